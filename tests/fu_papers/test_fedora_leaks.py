"""What the border leaks: runs on tiny data against the attacks by hand, and the table on planted records."""

import pytest
import torch

from fu_core.errors import ConfigError
from fu_core.evaluation.boundary import infer_labels, overhear, reconstruction_r2
from fu_papers.controls import AGAIN, CONTROLS, DESTROYED, FLOOR
from fu_papers.fedora import further_tables, runs
from fu_papers.fedora.grid import LEAKING
from fu_papers.fedora.leaks import attacked, comparable_features, leaks
from fu_papers.fedora.problem import VerticalProblem
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Record, needs_of
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from tests.fedora_lab import experiment

TINY = experiment(
    datasets=["digits/mlp"], seeds=[0], classes=[[2]], percents=[[50]], n_train=[300], n_val=[100], n_test=[100],
    epochs=[4], lr=[0.2], batch_size=[16], iterations=2, ga_epochs=1, known_labels=3, known_features=60,
)  # fmt: skip
MAIN = TINY.main
TOLD = {"labels_retained", "labels_forgotten", "clusters_retained", "r2_retained", "r2_forgotten"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("leaks"))


@pytest.fixture(scope="module")
def found(store):
    with single_threaded():
        return {cell.method: store.run(leaks, config) for cell, config in TINY.leaks().items()}


def original(store):
    """The problem and the original parties of the main setting."""
    config = TINY.leaks()[MAIN.cell("leaks", 0, "Original")]
    p = VerticalProblem.of(config)
    return p, runs.trained_parties(p, RunContext(store, "test", needs_of(leaks, config)), "original"), config


def test_every_model_is_attacked_at_every_party_with_numbers_in_their_range(found):
    assert set(found) == {*CONTROLS, *LEAKING}
    for record in found.values():
        metrics = record.metrics
        assert set(metrics) == {*TOLD, "chance_retained", "chance_forgotten"}
        assert all(len(metrics[name]) == 2 for name in TOLD)
        shares = [*metrics["labels_retained"], *metrics["labels_forgotten"], *metrics["clusters_retained"]]
        assert all(0 <= share <= 100 for share in shares)
        assert all(r2 <= 1 for r2 in (*metrics["r2_retained"], *metrics["r2_forgotten"]))
        assert metrics["chance_forgotten"] == pytest.approx(50, abs=5)  # of two classes a half each


def test_gradients_of_a_trained_model_give_labels_away_and_embeddings_features(found):
    metrics = found["Original"].metrics
    assert min(metrics["labels_retained"]) > metrics["chance_retained"] + 40
    assert min(metrics["r2_retained"]) > 0.2


def test_the_attacks_are_the_librarys_on_retained_samples_that_nobody_knows(store, found):
    """What is known is retained, so many of each class; who is asked about is not among them."""
    p, parties, config = original(store)
    y, retained = parties.active.y, set(p.retain.tolist())
    heard = {}

    def listening(of, rows):
        heard.setdefault(len(heard), rows)
        return overhear(of, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fu_papers.fedora.leaks.overhear", listening)
        metrics = attacked(p, parties, config)
    assert metrics == found["Original"].metrics
    told, asked, forgotten, known, others, again = heard.values()
    assert y[told].bincount(minlength=10).tolist() == [3] * 10
    assert torch.equal(forgotten, p.forget)
    assert torch.equal(again, p.forget)
    assert len(known) == 60
    for first, second in ((told, asked), (known, others)):
        assert not set(first.tolist()) & set(second.tolist())
        assert {*first.tolist(), *second.tolist()} == retained
    g = [overhear(parties, rows).gradients[1] for rows in (told, p.forget)]
    assert metrics["labels_forgotten"][1] == infer_labels(g[0], y[told], g[1], y[p.forget]).accuracy
    h = [overhear(parties, rows).embeddings[0] for rows in (known, p.forget)]
    x = [comparable_features(p, parties, 0, rows) for rows in (known, p.forget)]
    assert metrics["r2_forgotten"][0] == reconstruction_r2(h[0], x[0], h[1], x[1])


def test_features_known_are_half_of_those_retained_at_most_and_labels_known_leave_some(store):
    p, parties, config = original(store)
    many = attacked(p, parties, {**config, "known_features": 10**6})
    assert many == attacked(p, parties, {**config, "known_features": len(p.retain) // 2})
    with pytest.raises(ConfigError, match=r"known_labels must leave some of \d+ retained samples .* got 1000 of each"):
        attacked(p, parties, {**config, "known_labels": 1000})


def test_columns_of_a_table_are_in_units_of_their_spread():
    e = experiment(datasets=["breast_cancer/mlp"], seeds=[0], classes=[[1]], percents=[[50]], n_train=[200], n_val=[40],
                   n_test=[60], epochs=[1], lr=[0.05], batch_size=[32])  # fmt: skip
    p = VerticalProblem.of(e.training(e.main, 0, e.main.request))
    x = comparable_features(p, p.parties, 1, torch.arange(200))
    torch.testing.assert_close(x.std(dim=0, correction=0), torch.ones(15).double(), rtol=1e-4, atol=0)


def test_what_diverges_has_no_leaks(store):
    config = TINY.leaks()[MAIN.cell("leaks", 0, "GA")]
    broken = {**config, "options": {**config["options"], "lr": 1e30, "clip": 0.0, "epochs": 9}}
    with single_threaded():
        metrics = store.run(leaks, broken).metrics
    assert set(metrics) == {"diverged"}
    assert "NaN or infinite" in metrics["diverged"]


# --- the table -------------------------------------------------------------------------------------------------------


def planted(e, **change):
    """Records of every cell: of method i and seed s all percentages are 10 i + s, and R^2 a hundredth of that."""
    methods = (*CONTROLS, *LEAKING)
    made = {}
    for cell in e.leaks():
        value = 10.0 * methods.index(cell.method) + cell.seed
        metrics = {name: [value, value + 2] for name in TOLD if not name.startswith("r2")}
        metrics |= {name: [value / 100, value / 100 + 0.5] for name in TOLD if name.startswith("r2")}
        metrics |= {"chance_retained": 12.0, "chance_forgotten": 50.0}
        made[cell] = Record("f", "k", {}, "", "0", change.get(cell.method, metrics), [], None, {})
    return made


def test_the_table_has_means_over_parties_and_what_separates_a_model_from_its_retrain():
    e = TINY.changed(seeds=[0, 2])
    table = further_tables.leaks_table(e, planted(e)).set_index("method")
    assert table.index.tolist()[:4] == [further_tables.CONSTANT, "do nothing (Original)", "Retrain", FLOOR]
    assert table.index.tolist()[4:] == [DESTROYED, "FedORA, scalar dual", "FedORA, reverse divergence", "GA"]
    chance = table.loc[further_tables.CONSTANT]
    assert (chance["labels, retained (%)"], chance["labels, forgotten (%)"]) == ("12.0 ± 0.0", "50.0 ± 0.0")
    assert set(chance.drop(["labels, retained (%)", "labels, forgotten (%)"])) == {"–"}
    row = table.loc["GA"]  # the seventh: 60 and 62, a point more as the mean of its parties
    assert row["labels, forgotten (%)"] == row["clusters, retained (%)"] == "62.0 ± 1.4"
    assert (row["R² of party 1, forgotten"], row["R² of party 2, retained"]) == ("0.61 ± 0.01", "1.11 ± 0.01")
    assert (row["off Retrain's (points)"], row["off Retrain's (R²)"]) == ("50.0 ± 0.0", "0.50 ± 0.00")
    assert table.loc["Retrain", "off Retrain's (points)"] == "0.0 ± 0.0"
    assert table.loc[FLOOR, "off Retrain's (points)"] == "10.0 ± 0.0"


def test_what_diverged_is_counted_and_a_stage_that_has_not_been_run_is_dashes():
    table = further_tables.leaks_table(TINY, planted(TINY, GA={"diverged": "why"})).set_index("method")
    assert table.loc["GA", "labels, retained (%)"] == "– (1 of 1 diverged)"
    assert set(table.loc["GA"].iloc[1:]) == {"–"}
    assert set(further_tables.leaks_table(TINY, {}).iloc[:, 1:].to_numpy().flatten()) == {"–"}


def test_another_seeds_retraining_is_its_own_record():
    e = TINY.changed(seeds=[0, 2])
    cells = e.leaks()
    assert cells[MAIN.cell("leaks", 0, AGAIN)] == cells[MAIN.cell("leaks", 2, "Retrain")]
