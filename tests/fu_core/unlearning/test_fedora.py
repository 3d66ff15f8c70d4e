"""FedORA: its score against errata F2, its iteration against closed forms (methods 3.3), its bill, its direction."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fu_core.data import load
from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import Boundary, Optimisers, deal, epoch_batches, outputs, predict, train
from fu_core.unlearning import fedora as fedora_module
from fu_core.unlearning import method as methods
from fu_core.unlearning.fedora import (
    AtLeast,
    Calibrated,
    FedORA,
    InfeasibleConstraint,
    adjustment,
    entropy_share,
    fedora,
    largest_score,
    primal_dual,
    threshold_of_entropy,
    threshold_of_unseen,
    uncertainty_loss,
)
from fu_core.unlearning.method import Trained, unlearn
from tests.verticals import CLASSES, close, federated, forgetting, same, tables

LOG_10 = math.log(10)
FORMS = [("entropy", 1.0), ("entropy", 5.0), ("scaled", 0.5), ("scaled", 5.0), ("reverse", 1.0), ("reverse", 2.0)]


def logits(n=6, classes=10, spread=2.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n, classes, generator=g, dtype=torch.float64)


def gradient(function, z):
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def entropy(z):
    p = z.softmax(dim=1)
    return -(p * p.log()).sum(dim=1).mean()


# --- the forgetting score --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize(("score", "weight"), FORMS)
def test_the_score_is_largest_for_uniform_predictions_and_only_for_them(score, weight, classes):
    how = {"score": score, "weight": weight}
    largest = largest_score(classes, **how)
    assert largest == pytest.approx(math.log(classes) * (weight if score == "scaled" else 1))
    uniform = torch.arange(6.0, dtype=torch.float64)[:, None].expand(6, classes)  # a shift of all logits means nothing
    assert float(uncertainty_loss(uniform, **how)) == pytest.approx(largest, abs=1e-12)
    assert float(gradient(lambda z: uncertainty_loss(z, **how), uniform).norm()) < 1e-12
    for spread in (1e-3, 0.1, 1.0, 10.0):
        scores = [float(uncertainty_loss(logits(1, classes, spread, seed), **how)) for seed in range(20)]
        assert max(scores) < largest
    one_of_many = uniform.clone()
    one_of_many[3, 0] += 0.01
    assert float(uncertainty_loss(one_of_many, **how)) < largest


@pytest.mark.parametrize("weight", [0.5, 1.0, 20.0])
def test_entropy_less_divergence_is_entropy_scaled_and_shifted(weight):
    """Errata F2: H - beta KL(p || U) = (1 + beta) H - beta log C; the other bracketing is 2 beta H - beta log C."""
    z = logits()
    divergence = F.kl_div(torch.full_like(z, -LOG_10), z.softmax(dim=1), reduction="batchmean")  # KL(p || U)
    as_printed, scaled = (uncertainty_loss(z, weight=weight, score=score) for score in ("entropy", "scaled"))
    torch.testing.assert_close(as_printed, entropy(z) - weight * divergence)
    torch.testing.assert_close(as_printed, (1 + weight) * entropy(z) - weight * LOG_10)
    torch.testing.assert_close(scaled, weight * (entropy(z) - divergence))
    torch.testing.assert_close(scaled, 2 * weight * entropy(z) - weight * LOG_10)


@pytest.mark.parametrize("weight", [0.5, 1.0, 20.0])
def test_the_reverse_divergence_is_torchs(weight):
    z = logits()
    divergence = F.kl_div(z.log_softmax(dim=1), torch.full_like(z, 0.1), reduction="batchmean")  # KL(U || p)
    ours = uncertainty_loss(z, weight=weight, score="reverse")
    torch.testing.assert_close(ours, entropy(z) - weight * divergence)


def test_the_score_is_a_mean_over_samples():
    z = logits()
    for score, weight in FORMS:
        rows = [uncertainty_loss(row[None], weight=weight, score=score) for row in z]
        torch.testing.assert_close(uncertainty_loss(z, weight=weight, score=score), torch.stack(rows).mean())


@pytest.mark.parametrize(("weight", "ratio"), [(0.5, 1.5), (5.0, 6.0), (20.0, 21.0)])
def test_the_forgetting_weight_scales_the_gradient_and_nothing_else(weight, ratio):
    z = logits()
    ours = gradient(lambda z: uncertainty_loss(z, weight=weight), z)
    torch.testing.assert_close(ours, ratio * gradient(entropy, z))


@pytest.mark.parametrize(("p_max", "vanished"), [(0.9, 0.417), (0.99, 0.071), (0.999, 0.0096), (0.9999, 0.0012)])
def test_the_gradient_of_entropy_vanishes_for_confident_predictions_and_the_reverse_does_not(p_max, vanished):
    """Errata F2, C = 10. |grad KL(U || p)| = |p - U|; the reverse score adds the gradient of entropy, which agrees."""
    z = torch.full((1, 10), math.log((1 - p_max) / 9), dtype=torch.float64)
    z[0, 0] = math.log(p_max)
    of_entropy = gradient(lambda z: uncertainty_loss(z, weight=1.0), z) / 2
    one, two = (gradient(lambda z, w=w: uncertainty_loss(z, weight=w, score="reverse"), z) for w in (1.0, 2.0))
    assert float(of_entropy.norm()) == pytest.approx(vanished, rel=0.01)
    assert 0.84 < float((two - one).norm()) < 0.95
    torch.testing.assert_close(two - one, 0.1 - z.softmax(dim=1))
    torch.testing.assert_close(one, of_entropy + (two - one))


def test_scores_stay_finite_where_a_probability_is_zero():
    z = torch.tensor([[2000.0, 0.0, 0.0], [0.0, -3000.0, 0.0]])
    for score, weight in FORMS:
        assert uncertainty_loss(z, weight=weight, score=score).isfinite()
        assert gradient(lambda z, s=score, w=weight: uncertainty_loss(z, weight=w, score=s), z).isfinite().all()


@pytest.mark.parametrize("share", [0.3, 0.65, 0.95])
@pytest.mark.parametrize(("score", "weight"), [form for form in FORMS if form[0] != "reverse"])
def test_a_threshold_on_entropy_is_that_share_of_the_score(score, weight, share):
    """Predictions over ten classes, scaled until their mean entropy is the share: the score is at the threshold."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(entropy(middle * logits())) > share * LOG_10 else (low, middle)
    settings = FedORA(score=score, weight=weight, threshold=threshold_of_entropy(share, weight=weight, score=score))
    assert settings.epsilon(10) == pytest.approx(
        float(uncertainty_loss(low * logits(), weight=weight, score=score)), abs=1e-9
    )


def test_the_reverse_score_has_no_threshold_on_entropy():
    with pytest.raises(ValueError, match="score 'reverse' is no function of the entropy"):
        threshold_of_entropy(0.5, score="reverse")


# --- the constraint --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "weight"), FORMS)
def test_no_model_can_be_less_certain_than_uniform(score, weight):
    form = {"score": score, "weight": weight}
    assert FedORA(threshold=1.0, **form).epsilon(10) == pytest.approx(largest_score(10, **form), abs=1e-12)
    for threshold in (1.0001, 2.0, math.nan):
        with pytest.raises(InfeasibleConstraint, match=f"for 10 classes.*at most 1, got {threshold}"):
            FedORA(threshold=threshold, **form).epsilon(10)


# --- the iteration in closed form ------------------------------------------------------------------------------------

PARTS = [2, 1, 3]  # parameters of two passive parties and the active one
A = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.25], dtype=torch.float64)
C = torch.tensor([0.5, -0.25, 1.0, -0.75, 0.5, 1.0], dtype=torch.float64)
START = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -0.5], dtype=torch.float64)
FIXED = FedORA(tau=0.3, sigma=0.5, mu=0.0, iterations=400, adaptive=False, patience=False)


def dealt(vector):
    return [part.clone() for part in vector.split(PARTS)]


@dataclass
class Loss:
    """A loss whose value and gradients are known: what `primal_dual` asks of an answer."""

    value: float
    of: list

    def gradients(self, scale=1.0):
        return [scale * g_k for g_k in self.of]


def linear(c=C):
    """L_u = c^T theta"""
    return lambda theta: Loss(float(c @ torch.cat(theta)), dealt(c))


def quadratic(theta, t=0, j=0):
    """L_r = 1/2 |theta - a|^2"""
    away = torch.cat(theta) - A
    return Loss(float(away @ away) / 2, dealt(away))


def solution(c, mu, epsilon):
    """Methods 3.3: theta* and lambda*."""
    a = (A + mu * START) / (1 + mu)
    gap = max(0.0, epsilon - float(c @ a)) / float(c @ c)
    return a + gap * c, (1 + mu) * gap


def solved(s, epsilon, c=C, start=START):
    log = []
    theta = primal_dual(dealt(start), AtLeast(linear(c), epsilon), quadratic, s, substeps=1, on_iteration=log.append)
    assert [len(part) for part in theta] == PARTS
    return torch.cat(theta), log


@pytest.mark.parametrize("mu", [0.0, 0.001, 0.5])
@pytest.mark.parametrize("epsilon", [-5.0, 1.0, 4.0])
def test_quadratic_and_linear_end_at_the_closed_form_with_complementary_slackness(mu, epsilon):
    """At -5 the constraint does not bind, at 1 and 4 it does: c^T a = -1, or less."""
    theta, log = solved(replace(FIXED, mu=mu), epsilon)
    expected, dual = solution(C, mu, epsilon)
    torch.testing.assert_close(theta, expected, rtol=0, atol=1e-10)
    assert log[-1].dual == pytest.approx(dual, abs=1e-10)
    assert (dual > 0) == (epsilon > 0)
    assert abs(log[-1].dual * log[-1].residual) < 1e-9
    assert log[-1].residual < 1e-9
    assert log[-1].dual >= 0


def test_the_dual_variable_rises_relaxes_and_is_never_negative():
    """At a threshold of -2 the start is infeasible and the optimum feasible."""
    _, log = solved(FIXED, -2.0, start=START - 4 * C)
    duals = [iteration.dual for iteration in log]
    peak = max(duals)
    assert duals[0] == pytest.approx(0.5 * (-2 - float(C @ (START - 4 * C))))
    assert peak > 0
    assert duals[-1] == 0
    assert min(duals) == 0
    assert all(a >= b for a, b in zip(duals[duals.index(peak) :], duals[duals.index(peak) + 1 :], strict=False))


def test_it_stays_zero_where_everything_on_the_way_is_feasible():
    """From there it is gradient descent on L_r, to the last bit."""
    _, log = solved(FIXED, -5.0)
    assert {iteration.dual for iteration in log} == {0.0}
    theta, _ = solved(replace(FIXED, iterations=7), -5.0)
    descent = START.clone()
    for _ in range(7):
        descent -= 0.3 * (descent - A)
    assert torch.equal(theta, descent)


def test_scalar_duals_by_hand():
    """Eq. (20) with sigma 0.1 and threshold 1: scores of 0, 0.5, 2, 5."""
    scores, log = iter([0.0, 0.5, 2.0, 5.0, 7.0]), []
    nothing = [torch.zeros(1)]
    s = FedORA(sigma=0.1, iterations=4, adaptive=False, patience=False)
    primal_dual(
        nothing, AtLeast(lambda theta: Loss(next(scores), nothing), 1.0), lambda *_: Loss(0.0, nothing), s,
        substeps=1, on_iteration=log.append,
    )  # fmt: skip
    assert [i.dual for i in log] == pytest.approx([0.1, 0.15, 0.05, 0.0, 0.0], abs=1e-15)
    assert [i.residual for i in log] == [1.0, 0.5, -1.0, -4.0, -6.0]
    assert [i.t for i in log] == [0, 1, 2, 3, 4]


def concave(theta):
    """L_u = -1/2 |theta - b|^2, whose gradient moves with theta; b = 2."""
    away = torch.cat(theta) - 2
    return Loss(-float(away @ away) / 2, dealt(-away))


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("dual", ["scalar", "vector"])
def test_substeps_are_equation_34(dual, refresh):
    """Batch j of iteration t pulls to a + t + j. The dual moves once per iteration, theta^0 stays where it was."""
    s = FedORA(dual=dual, refresh=refresh, tau=0.1, sigma=0.3, mu=0.2, iterations=3, adaptive=False, patience=False)

    def retained(theta, t, j):
        return Loss(0.0, dealt(torch.cat(theta) - (A + t + j)))

    ours = primal_dual(dealt(START), AtLeast(concave, -1.0), retained, s, substeps=4)
    theta, lam = START.clone(), torch.zeros(6, dtype=torch.float64)
    for t in range(3):
        g_u = 2 - theta
        grown = g_u if dual == "vector" else -1.0 + float(g_u @ g_u) / 2
        lam = (lam + 0.3 * grown).clamp(min=0)
        for j in range(4):
            g_u = 2 - theta if refresh else g_u
            theta = theta - 0.1 * (theta - (A + t + j) - lam * g_u + 0.2 * (theta - START))
    torch.testing.assert_close(torch.cat(ours), theta, rtol=1e-12, atol=1e-12)


def test_cached_and_refreshed_gradients_differ_from_the_second_substep_on():
    for substeps, alike in ((0, True), (1, True), (2, False)):
        cached, anew = (
            primal_dual(dealt(START), AtLeast(concave, 0.0), quadratic, replace(FIXED, iterations=2, refresh=refresh),
                        substeps=substeps)
            for refresh in (False, True)
        )  # fmt: skip
        assert torch.equal(torch.cat(cached), torch.cat(anew)) == alike


def test_parameters_given_stay():
    start = dealt(START)
    primal_dual(start, AtLeast(linear(), 4.0), quadratic, FIXED, substeps=1)
    assert torch.equal(torch.cat(start), START)


# --- the vector dual -------------------------------------------------------------------------------------------------


def test_two_steps_of_the_vector_dual_by_hand():
    """(25), (27) with tau 0.5, sigma 0.2, L_u = (0.5, -1 | 2)^T theta and L_r = 1/2 |theta - (0, 0 | 1)|^2.

    lambda: (0.1, 0 | 0.4), then (0.2, 0 | 0.8): the second entry's gradient is negative, so it is projected to zero.
    theta: (1, -2 | 0.5) - 0.5 (1 - 0.05, -2 | -0.5 - 0.8) = (0.525, -1 | 1.15),
           then less 0.5 (0.525 - 0.1, -1 | 0.15 - 1.6) = (0.3125, -0.5 | 1.875).
    """
    parts, log = [[1.0, -2.0], [0.5]], []
    theta, c, a = (
        [torch.tensor(part, dtype=torch.float64) for part in two]
        for two in (parts, [[0.5, -1.0], [2.0]], [[0.0, 0.0], [1.0]])
    )
    s = FedORA(dual="vector", tau=0.5, sigma=0.2, mu=0.0, iterations=2, adaptive=False, patience=False)

    def after(iterations):
        return primal_dual(
            theta, AtLeast(lambda _: Loss(0.0, c), 1.0),
            lambda at, *_: Loss(0.0, [w - b for w, b in zip(at, a, strict=True)]),
            replace(s, iterations=iterations), substeps=1, on_iteration=log.append,
        )  # fmt: skip

    assert torch.cat(after(1)).tolist() == pytest.approx([0.525, -1.0, 1.15], abs=1e-15)
    log.clear()
    assert torch.cat(after(2)).tolist() == pytest.approx([0.3125, -0.5, 1.875], abs=1e-15)
    assert [i.dual for i in log] == pytest.approx([0.5 / 3, 1 / 3, 1 / 3])
    assert {i.sigma for i in log} == {0.2}


def test_only_the_scalar_dual_hears_that_the_constraint_is_met():
    """Errata F3: far above the threshold, a vector goes on accumulating and pushing."""
    duals, ends = {}, {}
    for dual in ("scalar", "vector"):
        ends[dual], log = solved(replace(FIXED, dual=dual, iterations=20, tau=0.01, sigma=0.1), -100.0)
        duals[dual] = [i.dual for i in log[:-1]]
        assert max(i.residual for i in log) < 0
    assert set(duals["scalar"]) == {0.0}
    assert duals["vector"] == pytest.approx([0.1 * (t + 1) * float(C.clamp(min=0).mean()) for t in range(20)])
    assert float(C @ ends["vector"]) > float(C @ ends["scalar"]) + 0.1


# --- step sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "previous", "factor"),
    [(1.3, 1.0, 0.7), (1.2, 1.0, 1.0), (1.0, 1.0, 1.0), (0.8, 1.0, 1.0), (0.79, 1.0, 1.4), (0.0, 1.0, 1.4),
     (5.0, 0.0, 1.0), (0.0, 0.0, 1.0), (130.0, 100.0, 0.7)],
)  # fmt: skip
def test_steps_shrink_after_larger_changes_and_grow_after_smaller_ones(change, previous, factor):
    """(32) with thresholds of 0.8 and 1.2, at which nothing happens yet; nothing follows from no change at all."""
    assert adjustment(change, previous, FedORA()) == factor


ADAPTIVE = FedORA(
    tau=1.0, sigma=0.1, mu=0.0, steps="printed", shrink=0.5, grow=2.0, largest_steps=4.0, iterations=9, patience=False
)


def scripted(s, passive, active):
    """Two parties with one parameter each and gradients as listed, so that |change| = tau |gradient|."""
    log = []

    def retained(theta, t, j):
        return Loss(1.0, [torch.tensor([passive[t]]), torch.tensor([active[t]])])

    enough = [torch.zeros(1), torch.zeros(1)]
    scored = AtLeast(lambda _: Loss(9.0, enough), 0.0)
    primal_dual(enough, scored, retained, s, substeps=1, on_iteration=log.append)
    return log


def test_step_sizes_on_a_scripted_sequence_of_changes():
    """(29) to (33), each party by its own changes, sigma by the active party's; at most four times the first steps.

    passive  changes 1, 2, 2, 0.5, 0, 2, 1, 0.4, 0.4   after the second: half; third: as is; then twice, twice,
             as is (from nothing), twice, and no more
    active   changes 1, 0.5, 0.5, 2, 2, 0.5, 0.2, 0.04, 0.04   twice, as is, half, as is, twice, twice, no more
    """
    log = scripted(
        ADAPTIVE, [1.0, 2.0, 4.0, 1.0, 0.0, 1.0, 0.5, 0.1, 0.1], [1.0, 0.5, 0.25, 1.0, 2.0, 0.5, 0.1, 0.01, 0.01]
    )
    assert [i.change[0] for i in log] == pytest.approx([1, 2, 2, 0.5, 0, 2, 1, 0.4, 0.4, 0], rel=1e-5)
    assert [i.change[1] for i in log] == pytest.approx([1, 0.5, 0.5, 2, 2, 0.5, 0.2, 0.04, 0.04, 0], rel=1e-5)
    assert [i.tau[0] for i in log] == [1, 1, 0.5, 0.5, 1, 2, 2, 4, 4, 4]
    assert [i.tau[1] for i in log] == [1, 1, 2, 2, 1, 1, 2, 4, 4, 4]
    assert [i.sigma for i in log] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.2, 0.4, 0.4, 0.4])


def test_without_adaptation_steps_are_fixed():
    log = scripted(replace(ADAPTIVE, adaptive=False, iterations=4), [1.0, 2.0, 0.1, 5.0], [1.0, 0.5, 3.0, 0.0])
    assert {i.tau for i in log} == {(1.0, 1.0)}
    assert {i.sigma for i in log} == {0.1}


STEEP = 10 * C  # |K|^2 = 312.5: tau sigma |K|^2 = 46.9


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_step_rule_bounds_the_dual_step(adaptive):
    s = replace(FIXED, step_rule=True, adaptive=adaptive, iterations=60)
    _, log = solved(s, 4.0, STEEP)
    products = [max(i.tau) * i.sigma * float(STEEP @ STEEP) for i in log[:-1]]
    assert max(products) <= 0.95 + 1e-12
    assert products[0] == pytest.approx(0.95)
    assert log[0].dual == pytest.approx(log[0].sigma * log[0].residual)  # the dual has moved by that step already


def test_the_step_rule_leaves_small_steps_alone():
    s = replace(FIXED, sigma=1e-4, iterations=5)
    free, ruled = (solved(replace(s, step_rule=rule), 4.0, STEEP) for rule in (False, True))
    assert torch.equal(free[0], ruled[0])
    assert {i.sigma for i in ruled[1]} == {1e-4}


def test_with_the_step_rule_it_converges_where_without_it_it_does_not():
    """Methods 3.3: at the solution the constraint binds, so that |residual| / |c| is the least an iterate can be away.

    Without the rule the dual throws L_u tau |K|^2 lambda = 94 lambda beyond the constraint, it drifts back, and so on:
    far at most times, near at some, so that no single iterate tells; the later ones together do.
    """
    expected, dual = solution(STEEP, 0.0, 4.0)
    ruled, log = solved(replace(FIXED, step_rule=True), 4.0, STEEP)
    torch.testing.assert_close(ruled, expected, rtol=0, atol=1e-10)
    assert log[-1].dual == pytest.approx(dual, abs=1e-10)
    assert all(abs(i.residual) < 1e-6 and abs(i.dual - dual) < 1e-6 for i in log[-100:])
    _, log = solved(FIXED, 4.0, STEEP)
    for late in (log[-300:-150], log[-150:]):  # it goes round and round, and does not calm down
        assert max(abs(i.residual) for i in late) / float(STEEP.norm()) > 1
        assert max(i.dual for i in late) - min(i.dual for i in late) > 1


@pytest.mark.parametrize(("tau", "ends"), [(0.19, True), (0.21, False)])
def test_the_step_rule_alone_does_not_bound_the_primal_step(tau, ends):
    """Errata F6: L_f = 10, K = 0.1, sigma = 0.1. tau sigma K^2 = 0.0002, and yet tau must be below 2 / L_f."""
    start, c = [torch.ones(1, dtype=torch.float64)], [torch.full((1,), 0.1, dtype=torch.float64)]
    theta = primal_dual(
        start, AtLeast(lambda theta: Loss(0.1 * float(theta[0]), c), -1e6),
        lambda theta, *_: Loss(0.0, [10 * theta[0]]),
        replace(FIXED, tau=tau, sigma=0.1, step_rule=True), substeps=1,
    )  # fmt: skip
    assert (float(theta[0].abs()) < 1e-10) == ends
    assert (float(theta[0].abs()) > 1e10) != ends


# --- when it stops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "substeps", "last"),
    [({}, 1, 3), ({"slack": 0.05}, 1, 2), ({"slack": 0.0}, 1, 4), ({"patience": False}, 1, 5), ({}, 0, 1),
     ({"unlearn": False}, 1, 5)],
)  # fmt: skip
def test_it_stops_once_the_score_suffices_and_what_is_retained_is_no_worse(settings, substeps, last):
    """Threshold 1; the score suffices from t = 2 on. L_r starts at 1: 2% above at t = 2, 0.5% at 3, 0% at 4."""
    scores, losses, log = [0.0, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0], [1.0, 1.5, 1.02, 1.005, 1.0, 1.0], []
    nothing, asked = [torch.zeros(1)], iter(scores)
    primal_dual(
        nothing, AtLeast(lambda _: Loss(next(asked), nothing), 1.0), lambda _, t, j: Loss(losses[t], nothing),
        FedORA(iterations=6, **settings), substeps=substeps, on_iteration=log.append,
    )  # fmt: skip
    assert [i.t for i in log] == list(range(last + 2))
    assert math.isnan(log[-1].retained)
    if substeps:
        assert [i.retained for i in log[:-1]] == losses[: last + 1]


def test_the_retained_loss_is_a_mean_over_the_batches():
    nothing, log = [torch.zeros(1)], []
    primal_dual(
        nothing, AtLeast(lambda _: Loss(0.0, nothing), 1.0), lambda _, t, j: Loss(10.0 * t + j, nothing),
        FedORA(iterations=2), substeps=3, on_iteration=log.append,
    )  # fmt: skip
    assert [i.retained for i in log[:-1]] == [1.0, 11.0]


# --- between parties -------------------------------------------------------------------------------------------------

N = 45
FORGET, RETAIN = torch.arange(5), torch.arange(5, N)
STEADY = {"adaptive": False, "patience": False}
PRINTED = {"forget_sample": 0, "passes": 0.0}  # all of D_u, and T as it is given
ASKED = {"threshold": 0.95, "tau": 0.01, "sigma": 0.1}  # more than any model shows untrained


def served(parties, *, seed=0, boundary=None, retain=None, on_iteration=None, **config):
    """`fedora` with the options `config`, for the request to forget the rows FORGET."""
    f = federated(parties, seed, boundary=boundary)
    return fedora(f, forgetting(f, FORGET, retain), FedORA(**{**PRINTED, **ASKED, **config}), on_iteration)


def composed_gradients(parties, rows, loss):
    """Value and gradients of a loss of the logits, by autograd over all nets as one graph."""
    nets = [copy.deepcopy(p.model.module).to(p.w.dtype) for p in (*parties.passive, parties.active)]
    for net, w_k in zip(nets, parties.w, strict=True):
        vector_to_parameters(w_k.clone(), net.parameters())
    h = [net(party.x[rows]) for net, party in zip(nets, parties.passive, strict=False)]
    value = loss(nets[-1](torch.cat(h, dim=1)))
    value.backward()
    return float(value.detach()), [parameters_to_vector([p.grad for p in net.parameters()]) for net in nets]


@pytest.mark.parametrize("dual", ["scalar", "vector"])
@pytest.mark.parametrize(("score", "weight"), FORMS)
def test_one_step_without_retained_data_is_the_price_times_the_composed_models_gradient(score, weight, dual):
    """Ratio 0: theta + tau lambda grad L_u, with lambda = sigma (epsilon - L_u), or sigma max(0, grad L_u)."""
    parties = tables(torch.float64, N)
    how = {"dual": dual, "score": score, "weight": weight, "tau": 0.2, "sigma": 0.5, "threshold": 0.99}
    how["force"] = "printed"
    s = FedORA(**how)
    value, g = composed_gradients(parties, FORGET, lambda z: uncertainty_loss(z, weight=weight, score=score))
    lam = 0.5 * (s.epsilon(CLASSES) - value)
    assert lam > 0
    log = []
    done = served(parties, on_iteration=log.append, ratio=0.0, iterations=1, **how)
    duals = [torch.full_like(g_k, lam) if dual == "scalar" else 0.5 * g_k.clamp(min=0) for g_k in g]
    expected = [w_k + 0.2 * lam_k * g_k for w_k, lam_k, g_k in zip(parties.w, duals, g, strict=True)]
    close(done.w, expected, rtol=1e-6, atol=1e-12)
    assert log[0].score == pytest.approx(value, rel=1e-9)
    assert log[0].residual == pytest.approx(s.epsilon(CLASSES) - value, rel=1e-9)
    assert log[0].dual == pytest.approx(float(torch.cat(duals).mean()), rel=1e-9)
    assert math.isnan(log[0].retained)


def test_nothing_to_retain_is_ratio_zero():
    parties = tables(n=N)
    assert same(served(parties, retain=RETAIN[:0]), served(parties, ratio=0.0))


def test_the_retained_step_is_the_composed_models_gradient_of_cross_entropy():
    parties = tables(torch.float64, N)
    y = parties.active.y
    _, g_r = composed_gradients(parties, RETAIN, lambda z: F.cross_entropy(z, y[RETAIN]))
    value, g_u = composed_gradients(parties, FORGET, uncertainty_loss)
    lam = 0.5 * (FedORA(threshold=0.95).epsilon(CLASSES) - value)
    expected = [w - 0.2 * (r - lam * u) for w, r, u in zip(parties.w, g_r, g_u, strict=True)]
    ours = served(parties, ratio=1.0, batch_size=len(RETAIN), iterations=1, tau=0.2, sigma=0.5)
    close(ours.w, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dual", ["scalar", "vector"])
def test_pressure_is_clipped_party_by_party(dual):
    """Without retained data and proximal term a step is tau times the pressure."""
    parties = tables(torch.float64, N)
    how = {"ratio": 0.0, "iterations": 1, "dual": dual, "tau": 0.2, "sigma": 5.0}
    free = [a - b for a, b in zip(served(parties, **how).w, parties.w, strict=True)]
    norms = [float(step.norm()) / 0.2 for step in free]
    clip = sorted(norms)[1] * 0.99  # two of three are longer
    clipped = served(parties, clip=clip, **how)
    expected = [w_k + step * min(1.0, clip / norm) for w_k, step, norm in zip(parties.w, free, norms, strict=True)]
    close(clipped.w, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize(("ratio", "substeps"), [(0.0, 0), (0.05, 1), (0.25, 2), (0.5, 3), (1.0, 5)])
def test_the_ratio_decides_how_many_exchanges_an_iteration_takes(ratio, substeps, refresh):
    """40 retained samples in batches of 8; 3 + 5 floats per sample. The last score needs no gradients."""
    boundary, parties = Boundary(), tables(n=N)
    served(parties, ratio=ratio, batch_size=8, iterations=3, refresh=refresh, boundary=boundary, **STEADY)
    samples = 3 * (5 + 8 * substeps + refresh * 5 * max(0, substeps - 1))
    assert boundary.meter.bytes_down == samples * 8 * 4
    assert boundary.meter.bytes_up == (samples + 5) * 8 * 4
    assert boundary.meter.images == samples + 5
    assert boundary.meter.storage == 2 * 4 * parties.d


@pytest.mark.parametrize(("ratio", "retained"), [(0.001, 8), (1.0, 37)])
def test_a_small_share_is_one_whole_batch_and_all_of_the_data_ends_with_a_small_one(ratio, retained):
    """37 samples: 8, 8, 8, 8, 5."""
    boundary = Boundary()
    served(tables(n=42), ratio=ratio, batch_size=8, iterations=1, boundary=boundary, **STEADY)
    assert boundary.meter.bytes_down == (5 + retained) * 8 * 4


def test_batches_are_retained_samples_in_a_new_order_each_iteration(monkeypatch):
    asked = []

    def spied(parties, w, rows, *others):
        asked.append(rows.tolist())
        return forward(parties, w, rows, *others)

    forward = fedora_module.forward
    monkeypatch.setattr(fedora_module, "forward", spied)
    served(tables(n=N), ratio=1.0, batch_size=8, iterations=3, **STEADY)
    passes = [asked[6 * t : 6 * t + 6] for t in range(3)]
    orders = [[row for batch in batches for row in batch] for _, *batches in passes]
    assert all(first == FORGET.tolist() for first, *_ in passes)
    assert all(sorted(order) == RETAIN.tolist() for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert asked[18:] == [FORGET.tolist()]


def test_without_unlearning_it_is_fine_tuning():
    """The paper's "w/o UL": SGD on what is retained, with the same batches."""
    parties = tables(torch.float64, N)
    tuned = parties
    for t in range(3):
        plain = Optimisers([ClientOpt(lr=0.1, batch_size=8)])
        tuned = train(federated(tuned, 4), RETAIN, plain, 1, first_epoch=-1 - t)
    how = {"seed": 4, "tau": 0.1, "mu": 0.0, "ratio": 1.0, "batch_size": 8, "iterations": 3, "adaptive": False}
    done = served(parties, unlearn=False, **how)
    close(done.w, tuned.w, rtol=1e-12, atol=1e-14)
    once = served(parties, unlearn=False, **{**how, "ratio": 0.4, "iterations": 1})
    by_hand = parties
    for b in epoch_batches(RETAIN, 8, seed=4, epoch=-1)[:2]:
        y = parties.active.y[b]
        _, g = composed_gradients(by_hand, b, lambda z, y=y: F.cross_entropy(z, y))
        by_hand = by_hand.having([w_k - 0.1 * g_k for w_k, g_k in zip(by_hand.w, g, strict=True)])
    close(once.w, by_hand.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"dual": "vector", "score": "scaled", "weight": 3.0}, {"unlearn": False}])
def test_the_last_iteration_reports_the_score_of_what_is_returned(settings):
    log = []
    s = FedORA(**{**ASKED, **settings})
    done = served(
        tables(n=N), on_iteration=log.append, ratio=0.5, batch_size=8, iterations=4, tau=0.1, sigma=1.0, **settings
    )
    score = float(uncertainty_loss(outputs(done, FORGET), weight=s.weight, score=s.score))
    last = log[-1]
    assert last.score == pytest.approx(score, rel=1e-6)
    assert last.residual == pytest.approx(s.epsilon(CLASSES) - score, rel=1e-5)
    assert last.score != log[0].score
    assert last.t == len(log) - 1
    assert last.change == (0.0, 0.0, 0.0)
    assert math.isnan(last.retained)


def test_the_same_seed_gives_the_same_bits_and_leaves_what_was_given():
    parties = tables(n=N)
    held = [*parties.w, *(party.x for party in parties.passive), parties.active.y, FORGET, RETAIN]
    before = copy.deepcopy(held)
    how = {"ratio": 0.5, "batch_size": 8, "tau": 0.1, "sigma": 1.0}
    once, again, other = (served(parties, seed=seed, **how) for seed in (0, 0, 1))
    assert same(once, again)
    assert not same(once, other)
    assert not any(torch.equal(a, b) for a, b in zip(once.w, parties.w, strict=True))
    for now, then in zip(held, before, strict=True):
        assert torch.equal(now, then)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_constraint_that_nobody_can_meet_is_refused_before_anything_is_sent():
    boundary = Boundary()
    with pytest.raises(InfeasibleConstraint, match=r"largest score \(1\.099 for 3 classes\), at most 1, got 1\.5"):
        served(tables(n=N), threshold=1.5, boundary=boundary)
    assert boundary.meter.bytes == 0


def test_parameters_that_are_no_numbers_name_party_and_iteration():
    with pytest.raises(NumericalFailure, match=r"parameters of .* became NaN or infinite in iteration \d"):
        served(tables(n=N), tau=1e30, sigma=1e30, ratio=1.0, adaptive=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ratio": -0.1}, r"ratio must be between 0 and 1, got -0.1"),
        ({"ratio": 1.1}, r"ratio must be between 0 and 1, got 1\.1"),
        ({"ratio": math.nan}, "ratio must be between"),
        ({"dual": "matrix"}, "dual must be one of 'scalar', 'vector', got 'matrix'"),
        ({"score": "entropie"}, "got 'entropie'; did you mean 'entropy'"),
        ({"weight": 0.0}, "weight must be a finite number > 0"),
        ({"tau": -1.0}, "tau must be a finite number > 0"),
        ({"sigma": 0.0}, "sigma must be a finite number > 0"),
        ({"mu": -0.1}, "mu must be a finite number >= 0"),
        ({"clip": -1.0}, "clip must be a finite number >= 0"),
        ({"slack": math.nan}, "slack must be a finite number >= 0"),
        ({"iterations": 0}, "iterations must be a whole number >= 1"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"largest_steps": 0.0}, "largest_steps must be a finite number > 0"),
        ({"shrink_above": 0.9}, "adaptive steps need .* got 0.8, 0.9, 0.7, 1.4"),
        ({"grow_below": 1.1}, "adaptive steps need"),
        ({"grow_below": 0.0}, "adaptive steps need"),
        ({"shrink": 1.0}, "adaptive steps need"),
        ({"grow": 1.0}, "adaptive steps need"),
    ],
)
def test_options_that_mean_nothing_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        FedORA(**fields)


def test_scores_refuse_unknown_forms_and_weights():
    with pytest.raises(ValueError, match="score must be one of 'entropy', 'scaled', 'reverse', got 'kl'"):
        uncertainty_loss(logits(), score="kl")
    with pytest.raises(ValueError, match="weight must be a finite number > 0, got -1"):
        uncertainty_loss(logits(), weight=-1.0)


# --- direction -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    """A federation trained on 600 digits, and the request to forget 30 of its threes."""
    dataset = load("digits").subset(600, 100, seed=0)
    parties, _ = deal(dataset, bottom="mlp", seed=0)
    f = federated(parties, local=ClientOpt(lr=0.05, momentum=0.9, batch_size=32))
    f = f.having(parties=train(f, torch.arange(600), f.optimisers(), 8), boundary=Boundary())
    return f, forgetting(f, (dataset.y_train == 3).nonzero().flatten()[:30])


def accuracy(parties, rows):
    return float((outputs(parties, rows).argmax(dim=1) == parties.active.y[rows]).float().mean())


def score(parties, rows):
    return float(uncertainty_loss(outputs(parties, rows)))


def test_it_forgets_what_it_is_told_to_forget(digits):
    """Threes were known for sure; afterwards predictions on them are nearly uniform, and the dual has relaxed."""
    f, request = digits
    (forget, _), (retain, _), log = request.forget, request.retain, []
    done = fedora(
        f, request, FedORA(threshold=0.95, tau=0.1, sigma=1.0, steps="printed", grow=1.05, **PRINTED), log.append
    )
    assert accuracy(f.parties, forget) > 0.9
    assert accuracy(done, forget) < 0.3
    assert score(f.parties, forget) < 0
    assert score(done, forget) > 0.95 * LOG_10
    assert log[-1].residual < 0 < log[0].residual
    assert log[-1].dual < max(i.dual for i in log)
    assert score(done, forget) > score(done, retain)


def test_fine_tuning_alone_forgets_nothing(digits):
    f, request = digits
    done = fedora(f, request, FedORA(tau=0.1, unlearn=False))
    assert accuracy(done, request.forget[0]) > 0.9
    assert score(done, request.forget[0]) < 0


def test_the_vector_dual_raises_the_score_too(digits):
    f, request = digits
    done = fedora(f, request, FedORA(tau=0.1, sigma=1.0, dual="vector"))
    assert score(done, request.forget[0]) > score(f.parties, request.forget[0]) + 0.1


# --- as a method ---


@pytest.fixture
def only_here(monkeypatch):
    """No method but those of this module is asked for."""
    monkeypatch.setattr(methods, "_import_all", lambda: None)


@pytest.mark.parametrize(
    ("name", "config"), [("FedORA", {"tau": 0.1}), ("FedORA vector", {"dual": "vector", "sigma": 10.0})]
)
def test_served_by_name_it_is_the_same_and_every_iteration_is_told(only_here, digits, name, config):
    f, request = digits
    log, told, counted = [], [], f.meter.bytes
    ours, cost, _ = unlearn(name, Trained(f, watch=told.append), request, tau=config.get("tau", 0.05))
    direct = f.having(boundary=Boundary())
    assert same(ours, fedora(direct, request, FedORA(**config), log.append))
    assert repr(told) == repr(log)  # nothing is equal to a number that is none
    assert cost == direct.meter
    assert f.meter.bytes == counted  # nothing more


def test_calibrated_asks_for_no_more_than_unseen_samples_show(only_here, digits):
    """Its threshold is the mean entropy on the test set's threes, over log 10: the score, (1 + 1) share - 1."""
    f, request = digits
    test = load("digits").x_test[load("digits").y_test == 3]
    unseen = [test[..., :4], test[..., 4:]]
    share = float(entropy(predict(f.parties, unseen).double())) / LOG_10
    assert entropy_share(predict(f.parties, unseen)) == pytest.approx(share, rel=1e-5)
    threshold = threshold_of_unseen(f.parties, Calibrated(unseen=unseen))
    assert threshold == pytest.approx(2 * share - 1, rel=1e-5)
    ours, cost, notes = unlearn("FedORA calibrated", Trained(f), request, unseen=unseen, tau=0.1)
    direct = f.having(boundary=Boundary())
    assert same(ours, fedora(direct, request, FedORA(tau=0.1, threshold=threshold)))
    assert notes["threshold"] == threshold
    assert cost == direct.meter
    assert score(ours, request.forget[0]) < score(fedora(direct, request, FedORA(tau=0.1)), request.forget[0])


def test_calibrated_needs_somebody_unseen(only_here, digits):
    f, request = digits
    for unseen in ([], [f.parties.passive[0].x[:0], f.parties.passive[1].x[:0]]):
        with pytest.raises(InvalidRequest, match="unseen must hold samples never trained on"):
            unlearn("FedORA calibrated", Trained(f), request, unseen=unseen)
    with pytest.raises(InvalidRequest, match="x must have one tensor per passive party, 2, got 1"):
        unlearn("FedORA calibrated", Trained(f), request, unseen=[f.parties.passive[0].x])
