"""Notebook 01_puf: complete and tidy as committed; headless it obeys its parameters; figures need records only."""

import ast
import inspect
import re
import shutil
from dataclasses import fields

import nbformat
import pandas as pd
import pytest

from fu_core import report, reproduce
from fu_core.papers.problems import Setting
from fu_core.papers.puf_experiment import Experiment
from fu_core.reproduce import declared_parameters, notebooks
from tests.notebook_lab import DIGITS, PARAMETERS, PATTERNS, RECORDS, Lab

SECTIONS = (
    "Parameters",
    "Setting",
    "Training",
    "request",
    "PUF",
    "Recovery",
    "Table III",
    "Two readings",
    "Try it",
    "Claims",
    "Closing checks",
    "Exercises",
    "Where things are",
)
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(home|root|work|tmp|Users)\b")


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(notebooks()["puf"], as_version=4)


def code(notebook, tag=""):
    """The code cells, or only those with a tag."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if not tag or tag in cell.metadata.get("tags", [])]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell.outputs]


def calls(notebook, *names):
    """All calls of these functions in the code cells, whether written `f(...)` or `module.f(...)`."""
    nodes = [node for cell in code(notebook) for node in ast.walk(ast.parse(cell.source))]
    found = [node for node in nodes if isinstance(node, ast.Call)]
    return [node for node in found if ast.unparse(node.func).rpartition(".")[2] in names]


# --- as committed ---


def test_it_is_a_valid_notebook(notebook):
    nbformat.validate(notebook)


def test_it_has_one_parameters_cell_of_typed_and_commented_literals(notebook):
    (cell,) = code(notebook, "parameters")
    declared = declared_parameters(notebooks()["puf"])  # refuses anything but typed literals
    lines = cell.source.splitlines()
    assert len(lines) == len(declared)
    for line, name in zip(lines, declared, strict=True):
        assert re.fullmatch(rf"{name}: .+ = .+  # .+", line)


def test_the_experiment_gets_every_parameter_in_its_place(notebook):
    """Twenty arguments by position: two swapped numbers would pass every check of range and type."""
    (call,) = calls(notebook, "Experiment")
    names = [f.name for f in fields(Experiment)]
    given = dict(zip(names, map(ast.unparse, call.args), strict=False))
    given |= {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert given == {name: name for name in names}
    assert set(declared_parameters(notebooks()["puf"])) == {*names, "interactive"}


def test_one_cell_is_checked_by_nbval_and_its_output_is_kept(notebook):
    (cell,) = code(notebook, "nbval-check-output")
    assert "keep_output" in cell.metadata.tags
    assert cell.outputs
    assert cell is code(notebook)[-1]


def test_no_code_cell_is_long(notebook):
    lengths = [sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in code(notebook)]
    assert max(lengths) <= 25


def test_prose_comes_before_code(notebook):
    """8 of 10 code cells follow a markdown cell."""
    before = [a.cell_type for a, b in zip(notebook.cells, notebook.cells[1:], strict=False) if b.cell_type == "code"]
    assert before.count("markdown") >= 0.8 * len(before)


def test_the_sections_of_the_house_come_in_order_and_are_numbered(notebook):
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert prose.startswith("# PUF")
    headings = re.findall(r"^## (\d+)\. (.+)$", prose, flags=re.MULTILINE)
    assert [int(number) for number, _ in headings] == list(range(1, len(headings) + 1))
    titles = iter(title for _, title in headings)
    for section in SECTIONS:
        assert any(section in title for title in titles), f"no section {section!r} where it belongs"


def test_every_figure_and_table_names_its_data(notebook):
    shown = calls(notebook, "save_figure", "show_figure", "save_table", "show_table")
    assert len(shown) >= 10
    for call in shown:
        function = getattr(report, ast.unparse(call.func).rpartition(".")[2])
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        source = inspect.signature(function).bind(*call.args, **keywords).arguments["source"]
        assert not isinstance(source, ast.Constant) or source.value.strip()
    assert not calls(notebook, "savefig", "to_csv", "show")  # no way around it


def test_it_is_committed_stripped_or_run_from_top_to_bottom(notebook):
    counts = [cell.execution_count for cell in code(notebook)]
    if any(counts):
        assert counts == list(range(1, len(counts) + 1))
    else:
        kept = code(notebook, "keep_output")
        assert not [cell for cell in code(notebook) if cell.outputs and cell not in kept]


def test_it_was_committed_without_errors_and_warnings(notebook):
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"]


def test_no_path_of_any_machine_is_in_it(notebook):
    texts = [cell.source for cell in notebook.cells]
    for output in outputs(notebook):
        texts += [output.get("text", "")]
        texts += [str(value) for kind, value in output.get("data", {}).items() if kind != "image/png"]
    assert [text for text in texts if ABSOLUTE_PATH.search(text)] == []


# --- headless ---


def test_a_misspelt_parameter_is_refused_and_the_nearest_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FU_RUNS", str(tmp_path))
    assert reproduce.main(["--paper", "puf", "-p", "ronds", "2"]) == 2
    assert "01_puf.ipynb has no parameter 'ronds'; did you mean 'rounds'?" in capsys.readouterr().err
    assert reproduce.main(["--paper", "puf", "-p", "rounds", "2.5"]) == 2
    assert "rounds must be int, got 2.5" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_every_record_carries_the_overridden_parameters_and_the_profiles_for_the_rest(tiny):
    configs = [record["config"] for record in tiny.records().values()]
    assert len(configs) == RECORDS
    for config in configs:
        for name in ("clients", "n_train", "n_val", "n_test"):
            assert config[name] == PARAMETERS[name]
        assert Setting(*(config[name] for name in ("dataset", "split", "alpha", "model"))) in (
            Setting.parse(DIGITS),
            Setting.parse(PATTERNS),
        )
    trained = [config for config in configs if "rounds" in config]
    assert {(c["rounds"], c["epochs"], c["seed"], c["batch_size"]) for c in trained} == {(2, 1.0, 0, 10)}
    unlearned = [config for config in trained if "target" in config]
    assert {(c["target"], c["cap"]) for c in unlearned} == {(1, 2)}
    assert [c["exclude"] for c in trained if "target" not in c].count([1]) == 2


def test_its_figures_and_tables_exist(tiny):
    pictures = [name for name in tiny.shown() if name.endswith(".png")]
    recovery = [name for name in pictures if "fig4_recovery" in name]
    assert len(recovery) == 2
    assert {"quick/puf/fig3_label_distribution.png", "quick/puf/training.png", "quick/puf/forget_gap.png"} <= {
        *pictures
    }
    runs = pd.read_csv(tiny.out / "runs.csv", comment="#")
    assert len(runs) == 2 * 6 * 2  # settings, methods, stop rules
    assert set(runs.setting) == {DIGITS, PATTERNS}
    for table in tiny.out.glob("*.csv"):
        first, _, rest = table.read_text(encoding="utf-8").partition("\n")
        assert first.startswith("# source: Digits")
        assert rest


def test_claims_has_all_55_rows_and_verdicts_on_puf(tiny):
    claims = pd.read_csv(tiny.figures / "quick" / "claims.csv", keep_default_na=False).set_index("id")
    assert len(claims) == 55
    assert (claims.paper == "puf").sum() == 14
    assert claims.verdict["P5"] == "holds"
    assert claims.verdict["P4"] == "not run"  # needs two targets
    assert claims.reason["P4"] == "needs at least two targets"
    assert set(claims.records["P5"].split()) <= set(tiny.records())


def test_the_executed_copy_is_kept_and_ran_to_its_end(tiny):
    executed = nbformat.read(tiny.runs / "executed" / "quick" / "01_puf.ipynb", as_version=4)
    assert [cell.execution_count for cell in code(executed)] == list(range(1, len(code(executed)) + 1))
    assert not [output for output in outputs(executed) if output.output_type == "error"]
    (closing,) = code(executed, "nbval-check-output")
    assert ast.literal_eval(closing.outputs[0].data["text/plain"])["runs"] == RECORDS


def test_nothing_shown_or_recorded_has_a_path_of_this_machine(tiny):
    written = [path for path in tiny.figures.rglob("*") if path.suffix in (".csv", ".json")]
    assert [path.name for path in written if ABSOLUTE_PATH.search(path.read_text(encoding="utf-8"))] == []


def test_figures_only_draws_the_same_bytes_from_records_without_data_or_training(tiny, tmp_path):
    empty = tmp_path / "data"
    empty.mkdir()
    lab = Lab(tmp_path, empty)
    shutil.copytree(tiny.out / "records", lab.out / "records")
    done = lab.reproduce("--figures-only")
    assert done.returncode == 0, done.stderr
    assert lab.shown() == tiny.shown()
    assert lab.records() == tiny.records()
    assert list(empty.iterdir()) == []
    assert [path.name for path in lab.runs.iterdir()] == ["executed"]
