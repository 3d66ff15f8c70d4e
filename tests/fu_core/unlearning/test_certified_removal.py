"""Certified removal (Guo et al. 2020): exact on squares, bounded on logistic losses, and its budget ends."""

import math
from dataclasses import replace

import pytest
import torch

from fu_core.errors import CertificateViolation, UnsupportedModel
from fu_core.federation.federation import Federation
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.unlearning.baselines.certified_removal import (
    UNSOLVED,
    Removal,
    perturbed_minimum,
    prepare,
    release,
    residual_bound,
    worst_case,
)
from fu_core.unlearning.gaussian_mechanism import gaussian_delta
from fu_core.unlearning.noise import Noise, rehearsal
from fu_core.unlearning.sums import Bounds, Sums, as_linear, loss_bounds
from tests.certified_peers_lab import federation, logistic, softmax, without
from tests.ridge import L2, Ridge


@pytest.fixture(autouse=True)
def rehearsed():
    """Numbers of noise may be used again by the next test."""
    with rehearsal():
        yield


def true_residual(f, w, b) -> float:
    """|grad L_b(w; D)| over the samples of f, for one head."""
    sums = Sums(as_linear(f))
    return float((sums.n * sums.gradient(w) + b).norm())


def test_on_squares_removal_is_retraining_with_the_same_b():
    """T3: the Newton step is exact, the residual that of rounding. Three requests in a row, one of them a client."""
    ridge = Ridge()
    f = Federation(ridge.model, ridge.clients)
    top = float(torch.linalg.eigvalsh(Sums(as_linear(f)).gram())[-1]) / 10
    config = Removal(sigma=0.5, bounds=Bounds(1.0, top), tol=1e-13)
    state = prepare(f, config, Noise(1))
    for forget in ({2: torch.tensor([0, 5, 7])}, [4], {0: torch.arange(9)}):
        deletion = without(f, forget)
        done = release(f, state, deletion)
        f, state = f.after(deletion), done.state
        retrained, _, _ = perturbed_minimum(f, state.b, config)
        torch.testing.assert_close(done.model, retrained, rtol=1e-8, atol=1e-10)
        assert true_residual(f, done.model, state.b) < 1e-9
        assert state.spent < 1e-9
    n = Sums(as_linear(f)).n
    x, y = (torch.cat(part) for part in zip(*f.clients.values(), strict=True))
    by_hand = torch.linalg.solve(x.T @ x + n * L2 * torch.eye(4).double(), x.T @ y - state.b)
    torch.testing.assert_close(done.model, by_hand, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [logistic, softmax])
def test_the_residual_never_grows_more_than_beta_over_a_hundred_removals(make):
    f = make(sizes=(60, 50, 40))
    state = prepare(f, Removal(sigma=1.0, epsilon=1e6), Noise(2))  # never spent
    grown = []
    for k in range(100):
        client = k % 3
        deletion = without(f, {client: torch.tensor([0])})
        before = true_residual(f, state.w, state.b)
        done = release(f, state, deletion)
        f = f.after(deletion)
        growth = true_residual(f, done.model, state.b) - before
        assert growth <= done.state.spent - state.spent
        grown.append(growth)
        state = done.state
    assert true_residual(f, state.w, state.b) <= state.spent  # what the certificate needs
    assert max(grown) > 1e-6  # there was something to bound


def test_a_system_solved_less_well_saves_passes_and_spends_budget():
    f, spent, passes = softmax(sizes=(60, 50, 40)), [], []
    deletion = without(f, {1: torch.arange(3)})
    for cg_tol in (1e-12, 1e-2):
        done = release(f, prepare(f, Removal(sigma=1.0, epsilon=1e6, cg_tol=cg_tol), Noise(2 + len(spent))), deletion)
        assert true_residual(f.after(deletion), done.model, done.state.b) <= done.state.spent
        spent.append(done.state.spent)
        passes.append(done.passes)
        assert (UNSOLVED in done.nominal) == (cg_tol == 1e-2)
        assert done.state.nominal == done.nominal
    assert spent[1] > spent[0]
    assert passes[1] < passes[0]


def test_the_tight_bound_is_a_fifth_of_the_printed_and_above_the_truth():
    f = logistic(sizes=(50, 50))
    deletion = without(f, {0: torch.arange(4)})
    rest = as_linear(f.after(deletion))
    bounds = loss_bounds(rest, f.model)
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        w, v = torch.randn(2, 4, generator=g, dtype=torch.float64)
        sums = Sums(rest)
        moved = sums.n * (sums.gradient(w + v) - sums.gradient(w) - sums.product(w)(v))
        printed, tight = (residual_bound(sums, v, bounds, bound) for bound in ("printed", "tight"))
        assert float(moved.norm()) <= tight
        assert printed / tight == pytest.approx(0.25 * 2 * 6 * math.sqrt(3))  # 5.196


def test_the_data_dependent_bound_is_below_the_worst_case():
    f = logistic(l2=0.1, sizes=(100, 100))
    for bound in ("printed", "tight"):
        state = prepare(f, Removal(sigma=100.0, bound=bound), Noise(5 + (bound == "tight")))
        done = release(f, state, without(f, {0: torch.tensor([3])}))
        assert 0 < done.state.spent - state.spent <= worst_case(1, 200, 0.1, bound=bound)
    assert worst_case(1, 101, 0.1) == pytest.approx(4 * 0.25 / (0.01 * 100))
    assert worst_case(3, 103, 0.1) == pytest.approx(9 * worst_case(1, 101, 0.1))


def test_the_budget_is_guo_and_others_and_more_if_b_were_only_shifted():
    config = Removal(sigma=1.0, epsilon=1.0, delta=1e-4)
    assert config.budget == pytest.approx(0.228, abs=5e-4)
    assert config.shifted_budget == pytest.approx(0.314, abs=5e-4)
    assert replace(config, sigma=3.0).budget == pytest.approx(3 * config.budget)
    assert replace(config, epsilon=0.5).budget < config.budget


@pytest.mark.parametrize("delta", [1e-5, 0.01])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 9.0, 20.0, 50.0])
def test_no_budget_is_larger_than_a_mere_shift_of_b_may_be(epsilon, delta):
    """The formula alone gives 4.1 sigma at epsilon 20, which is 25."""
    config = Removal(sigma=2.0, epsilon=epsilon, delta=delta)
    assert gaussian_delta(config.budget, 2.0, epsilon=epsilon) <= delta * (1 + 1e-9)
    assert config.epsilon_for(config.budget) == pytest.approx(epsilon)


def test_a_training_that_stops_early_is_nominal():
    """With a tolerance as large as b, 23 of 126 models were the start: no shift of b gives that."""
    f = softmax(l2=1.0)
    assert prepare(f, Removal(sigma=1000.0)).nominal == ""
    early = prepare(f, Removal(sigma=1000.0, epsilon=100.0, tol=1.0))
    assert "training stops at gradients up to 120, which depend on the secret b" in early.nominal
    assert not release(f, early, without(f, {0: torch.arange(3)})).certified


def served(epsilon) -> tuple[int, str]:
    """How many requests of three samples at sigma 1, and what the next one hears."""
    f, config = softmax(l2=0.2), Removal(sigma=1.0, epsilon=epsilon)
    with rehearsal():
        state = prepare(f, config, Noise(6))
    for count in range(9):
        deletion = without(f, {0: torch.arange(3)})
        try:
            done = release(f, state, deletion)
        except CertificateViolation as error:
            return count, str(error)
        f, state = f.after(deletion), done.state
        assert state.spent <= config.budget
    return 9, ""


def test_a_budget_that_is_spent_ends_the_service_and_a_larger_epsilon_later():
    (few, says), (more, _) = served(0.2), served(0.4)
    assert 0 < few < more < 9
    assert "sigma 1 allows 0.041 at epsilon 0.2" in says
    assert "train again with a new b" in says
    with pytest.raises(CertificateViolation, match="sigma 1e-12 allows"):
        prepare(softmax(), Removal(sigma=1e-12), Noise(9))


def test_one_against_the_rest_is_a_removal_per_class():
    """Heads side by side are the layer's own weights; their residuals add up; each is a logistic regression."""
    f = softmax(classes=3)
    config = Removal(sigma=1.0, epsilon=1e6, heads="one-vs-rest")
    state = prepare(f, config, Noise(3))
    deletion = without(f, {1: torch.arange(5)})
    done = release(f, state, deletion)
    spent = 0.0
    for c in range(3):
        one = logistic()
        one = one.having(clients={i: (x, (y == c).long()) for i, (x, y) in f.clients.items()})
        b = state.b[4 * c : 4 * c + 4]
        alone = replace(state, config=Removal(epsilon=1e6), w=state.w[4 * c : 4 * c + 4], b=b, spent=0.0)
        theirs = release(one, alone, without(one, {1: torch.arange(5)}))
        torch.testing.assert_close(done.model[4 * c : 4 * c + 4], theirs.model)
        spent += theirs.state.spent
    assert done.state.spent == pytest.approx(state.spent + spent, rel=1e-6)
    x, y = f.clients[2]
    assert (f.model.logits(done.model, x).argmax(dim=1) == y).float().mean() > 0.5


def test_peers_and_a_server_release_the_same_and_pay_for_their_sums():
    released = []
    for peers in (False, True):
        f = softmax(l2=1.0, peers=peers)
        with rehearsal():
            state = prepare(f, Removal(sigma=1.0), Noise(4))
        released.append(release(f, state, without(f, [1])))
    assert torch.equal(released[0].model, released[1].model)
    server, network = (one.vectors for one in released)
    assert server == pytest.approx(network * 6 / 4)  # 2 * 3 against 2 * (3 - 1), of three who stay
    assert not released[0].certified
    assert released[0].nominal == "rehearsed noise, which whoever knows its number can draw again"
    fresh = softmax(l2=1.0)
    done = release(fresh, prepare(fresh, Removal(sigma=1.0)), without(fresh, [1]))
    assert done.certified
    assert not torch.equal(done.model, released[0].model)


def test_what_cannot_be_meant_is_refused_by_name():
    for wrong, says in (
        ({"sigma": 0.0}, "sigma must be"),
        ({"delta": 2.0}, "delta must lie"),
        ({"heads": "both"}, "heads must be one of"),
        ({"bound": "tigth"}, "did you mean 'tight'"),
        ({"tol": 0.0}, "tol must be"),
        ({"cg_tol": -1.0}, "cg_tol must be"),
    ):
        with pytest.raises(ValueError, match=says):
            Removal(**wrong)
    biased = federation(FlatModel(softmax_regression(4, 3), l2=0.1), (9, 9), 4, 3, 0, False)
    with pytest.raises(UnsupportedModel, match="without a bias"):
        prepare(biased, Removal())
    with pytest.raises(UnsupportedModel, match="bound='printed' is proved for logistic"):
        prepare(softmax(), Removal(bound="printed"))
    with pytest.raises(UnsupportedModel, match="needs classification with an output per class"):
        prepare(logistic(), Removal(heads="one-vs-rest"))
