"""Notebook 02_hf_kcu run headless: it obeys its parameters, and its figures need records only."""

import ast
import shutil

import nbformat
import pandas as pd
import pytest

from fu_core.papers import hf_kcu_theory
from fu_core.papers.hf_kcu_experiment import METHODS, REFERENCES
from tests.notebook_lab import ABSOLUTE_PATH, DIGITS, Lab, code, outputs

NOISY = "mnist/iid/softmax_regression"
PARAMETERS = {
    "settings": [DIGITS, NOISY],
    "nets": [],
    "seeds": [0, 1],
    "clients": 4,
    "n_train": 120,
    "n_test": 100,
    "n_attacker": 120,
    "rounds": 2,
    "epochs": 1.0,
    "curvature_samples": 20,
    "iters_sweep": [2, 10],
    "dampings": [0.1, 0.01],
    "betas": [0.01],
    "alphas": [1.0],
    "client_counts": [4, 6],
    "shadows": 2,
    "shards": 2,
    "ga_epochs": 2,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, data):
    """The notebook, run from beginning to end in one process."""
    lab = Lab(tmp_path_factory.mktemp("tiny"), data, "hf_kcu", PARAMETERS)
    done = lab.reproduce("--jobs", "1")
    assert done.returncode == 0, done.stderr
    return lab


def test_every_record_carries_the_overridden_parameters(tiny):
    configs = [record["config"] for record in tiny.records().values()]
    federated = [config for config in configs if "n_train" in config]
    assert len(federated) > 50
    for config in federated:
        assert (config["n_train"], config["n_test"]) == (120, 100)
        assert config["clients"] in (4, 6)
        assert (config["dataset"], config["model"]) in (
            ("digits", "softmax_regression"),
            ("mnist", "softmax_regression"),
        )
    trained = [config for config in federated if "rounds" in config]
    assert {(config["rounds"], config["epochs"]) for config in trained} == {(2, 1.0)}
    assert {config["method"] for config in trained if "method" in config} == {*REFERENCES, *METHODS}
    theory = [config for config in configs if "n_train" not in config]
    assert {config["seed"] for config in theory if config.get("data") == "diabetes"} == set(hf_kcu_theory.SEEDS)


def test_its_figures_and_tables_exist(tiny):
    names = {path.name for path in tiny.out.iterdir()}
    assert {f"table_{i}.csv" for i in range(1, 10)} <= names
    assert {"fig1_pareto.png", "exactness.png", "cg_convergence.png", "perturbation.png", "sweeps.png"} <= names
    runs = pd.read_csv(tiny.out / "runs.csv", comment="#")
    assert set(runs.setting) >= {DIGITS, NOISY}
    for table in tiny.out.glob("*.csv"):
        first, _, rest = table.read_text(encoding="utf-8").partition("\n")
        assert first.startswith("# source: ")
        assert rest


def test_claims_has_all_55_rows_and_verdicts_on_hf_kcu(tiny):
    claims = pd.read_csv(tiny.figures / "quick" / "claims.csv", keep_default_na=False).set_index("id")
    assert len(claims) == 55
    ours = claims[claims.paper == "hf_kcu"]
    assert list(ours.index) == [f"H{i}" for i in range(1, 16)]
    assert ours.verdict["H14"] == "holds"  # of the convex problems alone, which no parameter changes
    assert set(ours.records["H14"].split()) <= set(tiny.records())


def test_the_executed_copy_is_kept_and_ran_to_its_end(tiny):
    executed = nbformat.read(tiny.runs / "executed" / "quick" / "02_hf_kcu.ipynb", as_version=4)
    assert [cell.execution_count for cell in code(executed)] == list(range(1, len(code(executed)) + 1))
    assert not [output for output in outputs(executed) if output.output_type == "error"]
    (closing,) = code(executed, "nbval-check-output")
    assert isinstance(ast.literal_eval(closing.outputs[0].data["text/plain"]), dict)


def test_nothing_shown_or_recorded_has_a_path_of_this_machine(tiny):
    written = [path for path in tiny.figures.rglob("*") if path.suffix in (".csv", ".json")]
    assert [path.name for path in written if ABSOLUTE_PATH.search(path.read_text(encoding="utf-8"))] == []


def test_figures_only_draws_the_same_bytes_from_records_without_data_or_training(tiny, tmp_path):
    """Measured seconds are in the records: drawn again they are the same."""
    empty = tmp_path / "data"
    empty.mkdir()
    lab = Lab(tmp_path, empty, "hf_kcu", PARAMETERS)
    shutil.copytree(tiny.out / "records", lab.out / "records")
    done = lab.reproduce("--figures-only")
    assert done.returncode == 0, done.stderr
    assert lab.shown() == tiny.shown()
    assert lab.records() == tiny.records()
    assert list(empty.iterdir()) == []
    assert [path.name for path in lab.runs.iterdir()] == ["executed"]
