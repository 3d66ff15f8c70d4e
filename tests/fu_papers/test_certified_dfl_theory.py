"""Certified DFL on problems with known answers: what the errata prove is what our runs measure."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from fu_core.federation.decentralised import dpsgd_round, start
from fu_core.federation.graphs import metropolis, ring
from fu_papers import convex
from fu_papers.certified_dfl import show, theory_exactness, theory_mixing
from fu_papers.certified_dfl import theory_figures as figures
from fu_papers.certified_dfl import theory_problems as problems
from fu_papers.certified_dfl import theory_tables as tables
from fu_papers.convex import optimum, pooled
from fu_papers.look import save_figure, save_table, style
from fu_papers.study import Study
from tests.certified_dfl_lab import experiment
from tests.pictures import alike, below, covered, overprinted


@pytest.fixture(scope="module")
def records(theory_store):
    return Study(experiment(), theory_store, jobs=1).theory()


def only(records, **config):
    (found,) = [r for r in records if all(r.config.get(key) == value for key, value in config.items())]
    return found.metrics


# --- problems ---


def test_clients_are_what_the_lemmas_assume():
    """Ten clients of 40 rows of length 1, no row twice, the 169 others for testing; heterogeneous on demand."""
    for split in problems.SPLITS:
        _, clients, (x_test, y_test) = problems.unit_problem(0.1, split=split)
        rows = torch.cat([x for x, _ in clients] + [x_test])
        assert [len(y) for _, y in clients] == [40] * 10
        assert len(y_test) == 169
        assert len(rows.unique(dim=0)) == len(problems.unit_rows()[0].unique(dim=0)) == 569
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(569, dtype=torch.float64))
        benign = [float(y.double().mean()) for _, y in clients]
        assert (np.std(benign) > 0.3) == (split == "dirichlet")
    ridge = problems.unit_problem(0.1, loss="ridge")
    assert set(ridge.test[1].tolist()) == {-1.0, 1.0}


def test_the_ridge_optimum_has_no_gradient():
    clients, model = problems.ridge_clients(0.7, 0), problems.ridge_model()
    x = problems.ridge_optimum(clients)
    assert float(torch.stack([model.grad(x, *client) for client in clients]).mean(dim=0).norm()) < 1e-12


# --- Lemma 1 ---


def test_lemma_1_is_never_violated_and_the_ring_is_the_known_one(records):
    for record in records["mixing"]:
        assert record.metrics["violations"] == 0
        assert len(record.metrics["errors"]) == 100
        assert len(record.metrics["eigenvalues"]) == record.config["clients"]
    found = only(records["mixing"], topology="ring")
    assert found["rho"] == pytest.approx(0.7616, abs=5e-5)
    assert found["eigenvalues"][1] == pytest.approx(0.8727, abs=5e-5)
    assert len(found["edges"]) == 10
    assert found["errors"][30] == pytest.approx(found["rho"] ** 31, rel=1e-9)  # tight


def test_a_violation_of_lemma_1_would_be_counted(monkeypatch):
    error = theory_mixing.mixing_error
    monkeypatch.setattr(theory_mixing, "mixing_error", lambda Q, k: 1.01 * error(Q, k))
    metrics, _ = theory_mixing.mixing({"topology": "ring", "clients": 10, "p": 0.4, "steps": 20, "seed": 0}, None)
    assert metrics["violations"] == 20


# --- D-PSGD at rest ---


def test_dpsgd_rests_where_methods_t6_says():
    """(I - Q (x) I + gamma A) X = gamma r, written down in full."""
    clients, gamma = problems.ridge_clients(0.7, 1), 0.01
    eye = torch.eye(6, dtype=torch.float64)
    A = torch.block_diag(*[X.T @ X / len(y) + problems.L2 * eye for X, y in clients])
    r = torch.cat([X.T @ y / len(y) for X, y in clients])
    left = torch.eye(60, dtype=torch.float64) - torch.kron(metropolis(ring(10)), eye) + gamma * A
    expected = torch.linalg.solve(left, gamma * r).view(10, 6)
    f = problems.on_a_ring(problems.ridge_model(), clients, gamma)
    X = theory_mixing.at_rest(f, torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(X, expected, rtol=1e-9, atol=1e-11)


def test_another_round_of_dpsgd_leaves_models_at_rest(records):
    model, clients, _ = problems.unit_problem(0.01, split="dirichlet")
    f, x = problems.on_a_ring(model, clients, 1.0), optimum(model, pooled(clients))
    X = theory_mixing.at_rest(f, x)
    assert float((dpsgd_round(f, X, 1) - X).abs().max()) < 1e-11
    assert float((dpsgd_round(f, start(x, 10), 1) - x).abs().max()) > 1e-3
    assert max(max(r.metrics["rest"]) for r in records["fixed_point"]) < 1e-12


def test_a_constant_step_stops_farther_away_than_deletion_moves_the_optimum(records):
    """Errata D6: 0.96, 0.51, 0.082 against a shift of 0.025; D1: the difference of two models changes."""
    by_step = {r.config["gamma"]: {name: np.mean(v) for name, v in r.metrics.items()} for r in records["fixed_point"]}
    farthest = [by_step[gamma]["farthest"] for gamma in (0.05, 0.01, 0.001)]
    difference = [by_step[gamma]["difference"] for gamma in (0.05, 0.01, 0.001)]
    assert farthest == sorted(farthest, reverse=True)
    assert difference == sorted(difference, reverse=True)
    assert by_step[0.05]["farthest"] > 10 * by_step[0.05]["shift"]
    assert by_step[0.01]["mean"] > by_step[0.01]["shift"]  # averaging does not help
    assert by_step[0.05]["difference"] > 0.5 * by_step[0.05]["shift"]


# --- exactness ---


def test_corrected_is_retraining_and_printed_is_not(records):
    """Errata D2: 0.256, 0.994, 2.60 when all delete; 0.415, 1.80, 3.53 when one does; corrected 1e-13."""
    for who, published in (("all clients delete", (0.256, 0.994, 2.60)), ("one client deletes", (0.415, 1.80, 3.53))):
        means = []
        for record in records["exactness"]:
            errors = record.metrics["errors"]
            (exact,) = [values for name, values in errors.items() if name.startswith(f"{who}, corrected")]
            assert len(exact) == 20
            assert max(exact) < 1e-10
            means.append(np.mean(errors[f"{who}, printed"]))
        assert means == sorted(means)
        assert means[2] > means[1] > 1  # farther away than doing nothing
        assert means == pytest.approx(published, rel=0.4)  # drawn differently


def test_a_leaving_client_is_divided_by_n_twice(records):
    """Errata D4: exactly 1 - 1/N, and exact with weight 1."""
    for record in records["exactness"]:
        errors = record.metrics["errors"]
        assert errors["a client leaves, printed (1/N twice)"] == pytest.approx([0.9] * 20, rel=1e-9)
        assert max(errors["a client leaves, weight 1"] + errors["a client leaves, corrected"]) < 1e-10


def test_the_printed_error_is_of_first_order_in_the_share_deleted(records):
    """Errata D2: 0.0181, 0.0309, 0.0627 at m/n = 0.02, 0.04, 0.08, a slope of 0.90; Lemma 3 says 2."""
    assert convex.slope([0.02, 0.04, 0.08], [0.0181, 0.0309, 0.0627]) == pytest.approx(0.9, abs=0.01)
    for record in records["exactness"]:
        rows = record.metrics["growth"]
        slope = convex.slope([row["m"] for row in rows], [np.mean(row["printed"]) for row in rows])
        assert 0.5 < slope < 1.2
        assert max(max(row["corrected"]) for row in rows) < 1e-12


# --- Lemmas 2 and 3 ---


def test_corrected_obeys_every_bound_and_printed_breaks_lemma_3(records):
    """On ridge the bound is 0; on logistic regression the first order wins where m/n is small and lambda large."""
    for record in records["bounds"]:
        violations = record.metrics["violations"]
        assert violations["Lemma 2"] == violations["Lemma 3, corrected"] == violations["residual radius"] == 0
        if record.config["loss"] == "ridge":
            assert violations["Lemma 3, printed"] == len(record.metrics["rows"]) == 4
            assert all(row["lemma_3"] == 0 for row in record.metrics["rows"])
        else:
            assert (violations["Lemma 3, printed"] > 0) == (record.config["l2"] == 10)


def test_a_violation_of_the_bounds_would_be_counted(monkeypatch):
    tight = problems.unit_constants
    monkeypatch.setattr(theory_exactness, "unit_constants", lambda *a, **k: tight(*a, **k)._replace(L=1e-3, M=1e-3))
    config = {"loss": "logistic", "split": "iid", "l2": 0.1, "deleted": [4], "seed": 0}
    assert theory_exactness.bounds(config, None)[0]["violations"] == {
        "Lemma 2": 1, "Lemma 3, corrected": 1, "Lemma 3, printed": 1, "residual radius": 0,
    }  # fmt: skip


# --- Theorem 2 ---


def test_the_risk_does_not_grow_as_theorem_2_has_it(records):
    """Noise adds 4th, not 2nd order (its variance is m^4 / n^4, errata D11); chosen deletions more than first order."""
    for record in records["risk"]:
        slopes = record.metrics["slopes"]
        assert slopes["noise"] == pytest.approx(4, abs=0.1)
        assert slopes["second"] == pytest.approx(2, abs=1e-9)
        assert slopes["first"] == pytest.approx(1, abs=0.15)
        if record.config["who"] == "random":
            assert slopes["noise_free"] == pytest.approx(1, abs=0.15)
        else:
            assert slopes["noise_free"] > 1.3
        assert all(a < b for a, b in zip(record.metrics["noise_free"], record.metrics["first"], strict=True))


def test_noise_leaves_the_ball_of_the_papers_l_and_theorem_2_holds_with_one_that_reaches_as_far(records):
    """At lambda = 0.1 the expected risk is above the bound from some m on with the paper's L, never with ours."""
    for record in records["risk"]:
        l2, found = record.config["l2"], record.metrics
        leaves = found["reach"] > 1 / l2
        assert leaves == (l2 == 0.1)
        papers = problems.unit_constants(l2).L
        ours = problems.unit_constants(l2, norm=found["reach"]).L if leaves else papers
        assert found["second_reach"] == pytest.approx([two * ours / papers for two in found["second"]])
        for second, reading in (("second", "paper"), ("second_reach", "reach")):
            bound = [one + two for one, two in zip(found["first"], found[second], strict=True)]
            risk = [clean + noise for clean, noise in zip(found["noise_free"], found["noise"], strict=True)]
            assert found["violations"][reading] == sum(r > b for r, b in zip(risk, bound, strict=True))
        assert (found["violations"]["paper"] > 0) == (l2 == 0.1)
        assert found["violations"]["reach"] == 0


# --- Fisher ---


def test_the_fisher_matrix_is_the_hessian_only_where_the_model_is_true(records):
    well, flipped, cancer = (
        only(records["fisher"], problem=p) for p in ("well specified", "labels flipped", "breast cancer")
    )
    assert well["matrix"][0] < flipped["matrix"][0] < 0.1
    for metrics in (well, flipped):
        for name in ("full Fisher, Eq. (7) as printed", "full Fisher, data term plus L2"):
            assert metrics["steps"][name]["cosine"][0] > 0.99
        assert metrics["steps"]["diagonal Fisher, data term plus L2"]["cosine"][0] < 0.95
    assert 0.55 < np.mean(cancer["matrix"]) < 0.72  # errata D5: 0.59-0.68
    assert np.mean(cancer["steps"]["full Fisher, Eq. (7) as printed"]["cosine"]) < 0.5


D5 = {
    "Hessian (Newton)": 0.031,
    "full Fisher, Eq. (7) as printed": 265,
    "full Fisher, data term plus L2": 0.70,
    "diagonal Fisher, as printed": 5.4,
    "diagonal Fisher, data term plus L2": 1.36,
    "diagonal Hessian": 0.88,
}


@pytest.mark.parametrize("name", D5)
def test_unlearning_a_tenth_of_breast_cancer_errs_as_errata_d5_says(records, name):
    """Over ten draws of the tenth, where the errata have one."""
    steps = only(records["fisher"], problem="breast cancer")["steps"]
    assert len(steps[name]["retraining"]) == 10
    assert np.mean(steps[name]["retraining"]) == pytest.approx(D5[name], rel=0.35)


@pytest.mark.parametrize(("scale", "ratio"), [(0.1, 0.0099), (1.0, 0.99), (3.0, 8.85)])
def test_least_squares_scale_with_the_variance_of_their_noise(records, scale, ratio):
    """Errata D5: Psi = s^2 H, so the step is 100 times too long or 9 times too short."""
    found = only(records["fisher"], problem="least squares", scale=scale)
    step = found["steps"]["full Fisher, Eq. (7) as printed"]
    assert found["trace"][0] == pytest.approx(ratio, rel=0.15)
    assert step["length"][0] == pytest.approx(1 / scale**2, rel=0.15)
    assert step["cosine"][0] > 0.99


# --- pictures and tables ---


def test_everything_is_drawn_from_records(records, tmp_path):
    for kind in ("mixing", "exactness", "bounds", "audit", "risk"):
        with style():
            figure = getattr(figures, f"{kind}_figure")(records[kind])
        assert isinstance(figure, Figure)
        assert save_figure(figure, tmp_path / f"{kind}.png", figures.SOURCE).stat().st_size > 10_000
        figure.draw_without_rendering()
        assert [*covered(figure), *overprinted(figure), *alike(figure), *below(figure)] == [], kind


def test_the_printed_error_is_drawn_from_the_least_draw_to_the_largest(records):
    top, bottom = figures.exactness_figure(records["exactness"]).axes
    for ax, form in ((top, "printed"), (bottom, "corrected")):
        bars = [segment[:, 1] for c in ax.collections for segment in c.get_segments()]
        draws = [row[form] for record in records["exactness"] for row in record.metrics["growth"]]
        assert len(bars) == len(draws)
        for ends, values in zip(bars, draws, strict=True):
            assert list(ends) == pytest.approx([min(values), max(values)])
    named = [text.get_text() for text in top.texts]
    assert sum(text.startswith("heterogeneity") for text in named) == len(records["exactness"])
    assert top.get_legend() is None


def test_an_audit_has_a_panel_per_way_to_train_and_every_case_in_it(records):
    fig = figures.audit_figure(records["audit"])
    ways = {figures._trained(record) for record in records["audit"]}
    assert {ax.get_title() for ax in fig.axes} == ways
    for ax in fig.axes:
        here = [record for record in records["audit"] if figures._trained(record) == ax.get_title()]
        dots = sum(len(c.get_offsets()) for c in ax.collections)
        assert dots == 2 * sum(row["distinct"] for record in here for row in record.metrics["rows"])
    assert figures._short(437.2) == "4e2"


def test_the_tables_show_what_the_records_hold(records, tmp_path):
    shown = {}
    for kind in ("fixed_point", "exactness", "bounds", "calibration", "noise_scale", "audit", "fisher"):
        shown[kind] = getattr(tables, f"{kind}_table")(records[kind])
        path = save_table(shown[kind], tmp_path / f"{kind}.csv", figures.SOURCE)
        assert len(pd.read_csv(path, comment="#")) == len(shown[kind]) > 2
    assert len(shown["bounds"]) == len(records["bounds"])
    assert list(shown["noise_scale"]["certified ε"])[2] == pytest.approx(1.24, abs=0.005)
    audited = shown["audit"]
    assert set(audited[audited.mechanism == "printed, ridge"].claim) == {"refuted"}
    assert set(audited[audited["world B"] == "exact retraining"].claim) == {"stands"}
    assert set(audited[audited.mechanism == "printed, noise that costs a point"].claim) == {"not counted"}
    assert shown["exactness"]["heterogeneity 0.7"][4].startswith("0.9 ")


def test_only_breast_cancer_runs_depend_on_its_table(records):
    on_it = {kind for kind, held in records.items() for r in held if r.data_hash != "generated"}
    assert on_it == {"bounds", "calibration", "audit", "risk", "fisher", "whole", "canaries"}
    assert {r.data_hash == "generated" for r in records["fisher"]} == {True, False}


def test_the_run_by_hand_is_drawn_with_every_client_and_every_distance():
    away = torch.tensor([[1.0, 2.0], [0.5, 0.25], [0.1, 0.2]])
    distances = {"do nothing": 0.1, "printed": 0.2, "corrected": 0.001, "corrected, with noise": 0.02}
    left, right = figures.by_hand_figure(away, distances, 0.0075).axes
    assert [list(line.get_ydata()) for line in left.lines] == [column.tolist() for column in away.T]
    *points, nothing = right.lines
    assert [line.get_xdata() for line in points] == [[value] for value in distances.values()]
    assert list(nothing.get_xdata()) == [0.1, 0.1]
    *plain, noisy = (label.get_text() for label in right.get_yticklabels())
    assert (plain, noisy) == (list(distances)[:3], "corrected, with noise\nσ = 0.0075")


def test_what_the_notebook_shows_together_is_kept_under_its_names(records, tmp_path):
    for shown in (show.exactness, show.bounds, show.audit):
        shown(records, tmp_path)
    kept = {f"{name}.{kind}" for name in ("exactness", "bounds", "audit", "audit_whole") for kind in ("png", "csv")}
    assert {path.name for path in tmp_path.iterdir()} == kept
