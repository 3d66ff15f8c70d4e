"""DU against retraining it must equal: ridge regression, where one Newton step is exact (T3), and logistic (T4)."""

import math
from collections import deque

import networkx as nx
import numpy as np
import pytest
import torch
from fu_core.unlearning.deletion import Deletion
from torch import nn

from fu_core.errors import (
    CertificateViolation,
    InvalidRequest,
    NumericalFailure,
    TopologyError,
    UnsupportedModel,
)
from fu_core.federation.decentralised import metropolis, ring, topology
from fu_core.federation.meter import Meter, nbytes
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp, softmax_regression
from fu_core.unlearning.certified import (
    DU,
    Certificate,
    Constants,
    after_fine_tuning,
    certified_unlearn,
    compose,
    du_release,
    flood,
    gaussian_sigma,
    residual_radius,
    softmax_constants,
)
from fu_core.unlearning.curvature import dense_curvature

N, D, L2 = 5, 4, 0.1
Q = metropolis(ring(N))
EVERYBODY = {i: torch.arange(3 + i) for i in range(N)}  # unequal requests
ONE = {2: torch.tensor([0, 5, 7])}
TWO_LEAVE = [1, 3]
MIXED = {0: torch.arange(20), 3: torch.tensor([1, 2])}  # all of client 0's samples, some of client 3's


class Ridge:
    """Heterogeneous ridge regression: every client has designs, targets and a number of samples of its own."""

    def __init__(self, *, same_design=False, sizes=(20, 25, 30, 35, 40), spread=1.0, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.model = FlatModel(nn.Linear(D, 1, bias=False), task="regression", l2=L2)
        truth = torch.randn(D, generator=g, dtype=torch.float64)
        shared = torch.randn(max(sizes), D, generator=g, dtype=torch.float64)
        self.clients = []
        for n in sizes:
            scale = 1 + spread * torch.rand(D, generator=g, dtype=torch.float64)
            X = shared[:n] if same_design else torch.randn(n, D, generator=g, dtype=torch.float64) * scale
            own = truth + spread * torch.randn(D, generator=g, dtype=torch.float64)
            self.clients.append((X, X @ own + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)))

    def optimum(self, held, objective):
        """Minimiser of the mean of the clients' ridge losses, or of all samples'."""
        total = sum(len(y) for _, y in held)
        weights = [1 / len(held) if objective == "clients" else len(y) / total for _, y in held]
        A = sum(a * X.T @ X / len(y) for a, (X, y) in zip(weights, held, strict=True)) + L2 * torch.eye(D).double()
        b = sum(a * X.T @ y / len(y) for a, (X, y) in zip(weights, held, strict=True))
        return torch.linalg.solve(A, b)

    def worlds(self, forget, objective="clients"):
        """The optimum with everything, and without what is forgotten."""
        kept = list(Deletion.of(self.clients, forget).kept.values())
        return self.optimum(self.clients, objective), self.optimum(kept, objective)

    def consensus(self, w):
        return w.repeat(N, 1)


@pytest.fixture(scope="module")
def ridge():
    return Ridge()


def relative(released, retrained, w):
    """1: as far from retraining as doing nothing."""
    return float((released - retrained).norm(dim=-1).max() / (w - retrained).norm())


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["clients", "samples"])
@pytest.mark.parametrize("forget", [EVERYBODY, ONE, 4, TWO_LEAVE, MIXED], ids=["all", "one", "leaves", "two", "mixed"])
@pytest.mark.parametrize("gradient", ["forgotten", "retained"])
def test_the_corrected_form_is_exact_retraining_on_ridge(ridge, forget, objective, gradient):
    w, retrained = ridge.worlds(forget, objective)
    W = certified_unlearn(
        ridge.model, ridge.consensus(w), ridge.clients, forget, Q, objective=objective, gradient=gradient
    )
    assert len(W) == len(Deletion.of(ridge.clients, forget).kept)
    assert relative(W, retrained, w) < 1e-10
    assert residual_radius(ridge.model, W[0], ridge.clients, forget, objective=objective) < 1e-10


def test_a_step_from_the_retained_gradient_is_exact_from_anywhere(ridge):
    """Training need not have converged, nor the clients agree."""
    w, retrained = ridge.worlds(ONE)
    W = ridge.consensus(w) + torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    from_retained = certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, gradient="retained")
    from_forgotten = certified_unlearn(ridge.model, W, ridge.clients, ONE, Q)
    assert relative(from_retained, retrained, w) < 1e-10
    assert relative(from_forgotten, retrained, w) > 0.1


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
def test_conjugate_gradient_finds_what_the_dense_matrix_finds(ridge, curvature):
    w, retrained = ridge.worlds(EVERYBODY)
    W = certified_unlearn(
        ridge.model, ridge.consensus(w), ridge.clients, EVERYBODY, Q, curvature=curvature, dense_up_to=0
    )
    assert relative(W, retrained, w) < 1e-8


def test_the_printed_form_is_exact_where_clients_share_designs_and_ask_alike():
    """What its proof is about: one Hessian, equal requests at every client."""
    ridge = Ridge(same_design=True, sizes=(30,) * N)
    forget = {i: torch.arange(4) for i in range(N)}
    w, retrained = ridge.worlds(forget)
    W = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, forget, Q, form="printed")
    assert relative(W, retrained, w) < 1e-10
    assert torch.allclose(W, certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, forget, Q))


def test_the_printed_form_misses_by_local_curvature(ridge):
    """Errata D2: with Hessians of its own for every client, ridge is not exact, though M = 0 promises it."""
    forget = {i: torch.arange(5) for i in range(N)}
    w, retrained = ridge.worlds(forget)
    printed = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, forget, Q, form="printed")
    assert relative(printed, retrained, w) > 0.05
    shared = certified_unlearn(
        ridge.model, ridge.consensus(w), ridge.clients, forget, Q, form="printed", whose="global"
    )
    assert relative(shared, retrained, w) < relative(printed, retrained, w)


def test_for_one_requester_the_printed_form_lacks_a_term(ridge):
    """Errata D2: grad f_c is not zero at the optimum of the mean, and the printed step leaves it out."""
    w, retrained = ridge.worlds(ONE)
    printed = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, form="printed", whose="global")
    assert relative(printed, retrained, w) > 0.3


@pytest.mark.parametrize("c", range(N))
def test_for_a_leaving_client_the_printed_form_divides_by_n_twice(ridge, c):
    """Errata D4: the error is exactly 1 - 1/N of doing nothing's, and weight 1 is exact."""
    w, retrained = ridge.worlds(c)
    how = {"form": "printed"}
    printed = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, c, Q, **how)
    assert relative(printed, retrained, w) == pytest.approx(1 - 1 / N, rel=1e-9)
    once = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, c, Q, weight=1.0, **how)
    assert relative(once, retrained, w) < 1e-10


def test_requests_one_after_the_other_end_where_all_at_once_ends(ridge):
    first, second = {0: torch.arange(4), 2: torch.arange(3)}, {1: torch.tensor([0, 9])}
    w, _ = ridge.worlds({**first, **second})
    at_once = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, {**first, **second}, Q)
    once = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, first, Q)
    kept = Deletion.of(ridge.clients, first).kept
    twice = certified_unlearn(ridge.model, once, [kept[i] for i in range(N)], second, Q)
    assert torch.allclose(at_once, twice, atol=1e-10)


def test_a_client_that_left_before_takes_no_part(ridge):
    w, retrained = ridge.worlds(TWO_LEAVE)
    stayed = [0, 2, 3, 4]
    after_first = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, 1, Q)
    Q4 = metropolis(ring(4))
    after_second = certified_unlearn(ridge.model, after_first, ridge.clients, 3, Q4, ids=stayed)
    assert len(after_second) == 3
    assert relative(after_second, retrained, w) < 1e-10


def test_inputs_are_left_alone_and_the_same_seed_gives_the_same_bits(ridge):
    w, _ = ridge.worlds(ONE)
    W = ridge.consensus(w)
    before = W.clone()
    once, again = (certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, sigma=0.1, seed=3) for _ in range(2))
    assert torch.equal(once, again)
    assert torch.equal(W, before)
    assert not torch.equal(once, certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, sigma=0.1, seed=4))


# --- Fisher ----------------------------------------------------------------------------------------------------------


def test_the_full_fisher_solves_with_the_matrix_of_per_sample_gradients(ridge):
    w, _ = ridge.worlds(ONE)
    kept = Deletion.of(ridge.clients, ONE).kept
    G = {i: ridge.model.per_sample_grads(w, *data) for i, data in kept.items()}
    data_G = {i: g - L2 * w for i, g in G.items()}
    F = sum(g.T @ g / len(g) for g in data_G.values()) / N + (L2 + 0.05) * torch.eye(D).double()
    x, y = ridge.clients[2]
    rest = len(y) - 3
    g = 3 / rest * (ridge.model.grad(w, x[ONE[2]], y[ONE[2]]) - ridge.model.grad(w, x, y)) / N
    released = certified_unlearn(
        ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, curvature="fisher", damping=0.05
    )
    assert torch.allclose(released[0] - w, torch.linalg.solve(F, g))
    printed = certified_unlearn(
        ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, curvature="fisher", form="printed"
    )
    own = G[2].T @ G[2] / rest  # Eq. (7): the regularised loss's gradients, nothing added
    step = torch.linalg.solve(own, 3 / rest * ridge.model.grad(w, x[ONE[2]], y[ONE[2]])) / N
    assert torch.allclose(printed[0] - w, step)


def test_the_diagonal_fisher_divides_by_mean_squares(ridge):
    w, _ = ridge.worlds(4)
    kept = Deletion.of(ridge.clients, 4).kept
    psi = sum((ridge.model.per_sample_grads(w, *data) - L2 * w).square().mean(dim=0) for data in kept.values()) / 4
    step = ridge.model.grad(w, *ridge.clients[4]) / 4 / (psi + L2 + 0.01)
    released = certified_unlearn(
        ridge.model, ridge.consensus(w), ridge.clients, 4, Q, curvature="diagonal_fisher", damping=0.01
    )
    assert torch.allclose(released[0] - w, step)


def test_a_fisher_matrix_without_an_inverse_asks_for_damping(ridge):
    few = [(x[:3], y[:3]) for x, y in ridge.clients]
    with pytest.raises(NumericalFailure, match=r"rank 2 at most.*damping must be > 0"):
        certified_unlearn(
            ridge.model, ridge.consensus(torch.ones(D).double()), few, {0: torch.tensor([0])}, Q,
            form="printed", curvature="fisher",
        )  # fmt: skip


def test_each_curvature_counts_the_memory_it_keeps(ridge):
    w, _ = ridge.worlds(ONE)
    kept = {}
    for curvature in ("hessian", "fisher", "diagonal_fisher"):
        meter = Meter()
        certified_unlearn(
            ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, curvature=curvature, damping=0.1, meter=meter
        )
        kept[curvature] = meter.storage
    n = sum(len(y) for _, y in ridge.clients) - 3
    assert kept == {"hessian": 8 * D * D, "fisher": 8 * n * D, "diagonal_fisher": 8 * D}


def test_the_cap_shortens_the_correction_and_says_so(ridge):
    w, _ = ridge.worlds(4)
    free = du_release(ridge.model, ridge.consensus(w), ridge.clients, 4, Q, DU())
    capped = du_release(ridge.model, ridge.consensus(w), ridge.clients, 4, Q, DU(cap=0.01))
    assert free.scale == 1
    assert float((capped.models[0] - w).norm()) == pytest.approx(0.01 * float(w.norm()))
    assert capped.scale == pytest.approx(0.01 * float(w.norm()) / float((free.models[0] - w).norm()))


def test_sampled_curvature_uses_that_many_samples(ridge):
    w, _ = ridge.worlds(ONE)
    full, few = Meter(), Meter()
    certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, meter=full)
    certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, curvature_samples=20, meter=few)
    assert full.products == D * 147
    assert D * 20 <= few.products <= D * (20 + N)


# --- flooding --------------------------------------------------------------------------------------------------------


def simulated(graph, source):
    """Message by message: forwarded when first heard, to all neighbours but the sender."""
    heard, sent, queue = {source: 0}, 0, deque([(source, None)])
    applied = dict.fromkeys(graph, 0)
    applied[source] = 1
    while queue:
        client, sender = queue.popleft()
        for neighbour in graph[client]:
            if neighbour == sender:
                continue
            sent += 1
            if neighbour not in heard:
                heard[neighbour] = heard[client] + 1
                applied[neighbour] += 1
                queue.append((neighbour, client))
    return heard, sent, applied


@pytest.mark.parametrize("name", ["ring", "erdos_renyi", "complete", "star", "torus"])
def test_flooding_reaches_everybody_once_with_2e_minus_n_plus_1_messages(name):
    graph = topology(name, 12, seed=1)
    spread = flood(metropolis(graph), [0, 7])
    for row, source in enumerate((0, 7)):
        heard, sent, applied = simulated(graph, source)
        assert [heard[i] for i in range(12)] == spread.hops[row].tolist()
        assert set(applied.values()) == {1}
        assert sent == 2 * graph.number_of_edges() - 11
    assert spread.messages == 2 * (2 * graph.number_of_edges() - 11)


def test_a_lost_message_is_made_good_by_a_cycle_and_an_error_without_one():
    around = flood(metropolis(ring(6)), [0], lost=[(0, 1)])
    assert around.hops[0].tolist() == [0, 5, 4, 3, 2, 1]
    with pytest.raises(TopologyError, match="client 2 never received the message of client 0"):
        flood(metropolis(nx.path_graph(4)), [0], lost=[(1, 2)])


def test_sparse_mixing_matrices_flood_alike():
    graph = topology("torus", 12)
    dense, sparse = (flood(metropolis(graph, sparse=s), [3]) for s in (False, True))
    assert np.array_equal(dense.hops, sparse.hops)
    assert dense.messages == sparse.messages


def test_the_printed_form_sends_one_vector_per_requester_and_link(ridge):
    w, _ = ridge.worlds(EVERYBODY)
    meter = Meter()
    certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, EVERYBODY, Q, form="printed", meter=meter)
    assert meter.bytes == N * (2 * N - (N - 1)) * nbytes(w)


def test_the_corrected_form_also_pays_for_consensus_and_for_products(ridge):
    w, _ = ridge.worlds(ONE)
    meter = Meter()
    release = certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, dense_up_to=0, meter=meter)
    assert torch.equal(release, release[:1].expand_as(release))
    per_flood = (N + 1) * nbytes(w)
    averaging, message = N * per_flood, per_flood
    products = (meter.bytes - averaging - message) / (N * per_flood)
    assert products == round(products)
    assert 1 <= products <= D + 2
    dense, diagonal = Meter(), Meter()
    certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, meter=dense)
    certified_unlearn(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, curvature="diagonal_fisher",
                      damping=0.1, meter=diagonal)  # fmt: skip
    assert dense.bytes - averaging - message == D * N * per_flood  # everybody floods its (D, D) Hessian
    assert diagonal.bytes - averaging - message == N * per_flood


# --- noise and certificates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [ONE, EVERYBODY], ids=["one", "all"])
@pytest.mark.parametrize("noise", ["consensus", "shared", "independent"])
def test_each_released_model_has_the_noise_it_claims(ridge, forget, noise):
    w, _ = ridge.worlds(forget)
    draws = []
    for seed in range(300):
        config = DU(noise=noise)
        found = du_release(ridge.model, ridge.consensus(w), ridge.clients, forget, Q, config, sigma=0.3, seed=seed)
        draws.append(found.models - found.noiseless)
    noise_of = torch.stack(draws)  # (300, N, D)
    assert noise_of.std(dim=(0, 2)).numpy() == pytest.approx(0.3, rel=0.1)
    between = float((noise_of[:, 0] - noise_of[:, 1]).abs().max())
    assert between > 0.5 if noise == "independent" else between == 0  # errata D1: shared noise cancels


def test_the_printed_calibration_is_that_of_algorithm_1(ridge):
    constants = Constants(lam=L2, L=2.0, M=0.5)
    w, _ = ridge.worlds(ONE)
    config = DU(form="printed")
    found = du_release(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, config,
                       epsilon=0.5, delta=1e-5, constants=constants)  # fmt: skip
    sensitivity = 2 * 0.5 * 2.0**2 * 3**2 / (L2**3 * 30**2)
    sigma = sensitivity / 0.5 * math.sqrt(2 * math.log(1.25 / 1e-5))
    assert constants.sensitivity(3, 30) == pytest.approx(sensitivity)
    assert found.sigma == pytest.approx(sigma / N)  # of one message, times 1 / N
    assert found.certificate == Certificate(0.5, 1e-5, found.sigma, sensitivity, "all models", "printed")
    everybody = du_release(ridge.model, ridge.consensus(w), ridge.clients, {i: torch.arange(3) for i in range(N)}, Q,
                           config, epsilon=0.5, delta=1e-5, constants=Constants(L2, 2.0, 0.5))  # fmt: skip
    sigmas = [Constants(L2, 2.0, 0.5).sensitivity(3, n) for n in (20, 25, 30, 35, 40)]
    factor = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.5
    assert everybody.sigma == pytest.approx(factor * math.hypot(*sigmas) / N)


def test_on_ridge_the_printed_certificate_adds_no_noise_to_a_wrong_model(ridge):
    """M = 0, so Delta F = 0: the paper promises exact retraining without noise (errata D2)."""
    w, retrained = ridge.worlds(ONE)
    found = du_release(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, DU(form="printed"),
                       epsilon=1.0, delta=1e-5, constants=Constants(L2, 2.0, 0.0))  # fmt: skip
    assert found.sigma == 0
    assert relative(found.models, retrained, w) > 0.3


def test_a_release_within_budget_gets_the_noise_of_the_budget(ridge):
    w, _ = ridge.worlds(ONE)
    found = du_release(ridge.model, ridge.consensus(w), ridge.clients, ONE, Q, DU(), epsilon=1.0, budget=0.01)
    assert found.sigma == gaussian_sigma(0.01, epsilon=1.0, delta=1e-5)
    assert found.certificate.radius < 1e-10
    assert found.certificate.covers == "all models"


def test_a_release_beyond_budget_is_refused_with_the_numbers(ridge):
    w, _ = ridge.worlds(ONE)
    off = ridge.consensus(w) + 0.5  # training that has not converged
    with pytest.raises(CertificateViolation, match=r"may be .* from retraining, budget allows 0\.01.*retrain"):
        du_release(ridge.model, off, ridge.clients, ONE, Q, DU(), epsilon=1.0, budget=0.01)
    assert du_release(ridge.model, off, ridge.clients, ONE, Q, DU(gradient="retained"), epsilon=1.0, budget=0.01)


def test_the_radius_bounds_the_distance_to_retraining():
    """T5, on logistic regression, whose retrained model is found by Newton's method."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(30, 3, generator=g).double(), torch.randint(0, 2, (30,), generator=g)) for _ in range(4)]
    model = FlatModel(softmax_regression(3, 2), l2=0.1)
    Q4 = metropolis(ring(4))

    w = minimiser(model, clients)
    forget = {0: torch.arange(6), 1: torch.arange(3)}
    kept = [Deletion.of(clients, forget).kept[i] for i in range(4)]
    retrained = minimiser(model, kept)
    for form in ("corrected", "printed"):
        released = certified_unlearn(model, w.repeat(4, 1), clients, forget, Q4, form=form)[0]
        distance = float((released - retrained).norm())
        assert 0 < distance <= residual_radius(model, released, clients, forget)
    assert residual_radius(model, retrained, clients, forget) < 1e-9


def minimiser(model, held):
    """Of the mean of the clients' losses, by Newton's method on the whole Hessian."""
    x, y = torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])
    shares = torch.cat([torch.full((len(y_i),), 1 / len(y_i) / len(held), dtype=torch.float64) for _, y_i in held])

    def loss(p):
        return shares.dot(model.sample_losses(model.logits(p, x), y)) + 0.5 * model.l2 * p.dot(p)

    w = torch.zeros(model.d, dtype=torch.float64)
    for _ in range(20):
        w = w - torch.linalg.solve(torch.func.hessian(loss)(w), torch.func.grad(loss)(w))
    return w


def test_fine_tuning_keeps_a_guarantee_for_all_models_and_loses_one_per_model():
    held = Certificate(1.0, 1e-5, 0.1, 0.0, "all models")
    assert after_fine_tuning(held) == held
    assert after_fine_tuning(Certificate(1.0, 1e-5, 0.1, 0.0, "model")) is None
    assert after_fine_tuning(None) is None


@pytest.mark.parametrize(("noise", "covers"), [("shared", "model"), ("independent", "all models")])
def test_models_of_their_own_are_covered_one_by_one_unless_their_noise_is_independent(ridge, noise, covers):
    w, _ = ridge.worlds(ONE)
    W = ridge.consensus(w) + 0.001 * torch.arange(N).double()[:, None]
    found = du_release(ridge.model, W, ridge.clients, ONE, Q, DU(noise=noise), epsilon=1.0, budget=1.0)
    assert found.certificate.covers == covers
    radii = [residual_radius(ridge.model, w_i, ridge.clients, ONE) for w_i in found.noiseless]
    expected = math.hypot(*radii) if covers == "all models" else max(radii)
    assert found.certificate.radius == pytest.approx(expected)


def test_releases_compose_by_addition():
    one = Certificate(0.5, 1e-6, 0.1, 0.0, "all models")
    assert compose([one, one, one]) == (pytest.approx(1.5), pytest.approx(3e-6))


def test_constants_of_softmax_regression_bound_what_can_be_measured():
    """Gradient lengths and Hessian changes at random points stay below L and M, and come near."""
    g = torch.Generator().manual_seed(1)
    model = FlatModel(nn.Linear(3, 4, bias=False))
    x = torch.nn.functional.normalize(torch.randn(1, 3, generator=g).double())
    constants = softmax_constants(1.0, 0.01)
    slopes, changes = [], []
    for _ in range(200):
        p, q = (3 * torch.randn(model.d, generator=g).double() for _ in range(2))
        y = torch.randint(0, 4, (1,), generator=g)
        slopes.append(float(model.grad(p, x, y).norm()))
        H = [dense_curvature(model, z, [(1.0, (x, y))]) for z in (p, q)]
        changes.append(float(torch.linalg.matrix_norm(H[0] - H[1], ord=2) / (p - q).norm()))
    assert 0.6 * constants.L < max(slopes) <= constants.L
    assert 0 < max(changes) <= constants.M
    far, binary = softmax_constants(1.0, 0.5, norm=2.0), softmax_constants(2.0, 0.5, binary=True)
    assert pytest.approx(math.sqrt(2) + 1.0) == far.L
    assert pytest.approx(8 / (6 * math.sqrt(3))) == binary.M


# --- bad input -------------------------------------------------------------------------------------------------------


def test_requests_that_cannot_be_served_say_why(ridge):
    W = ridge.consensus(torch.ones(D).double())
    with pytest.raises(InvalidRequest, match="client 9"):
        certified_unlearn(ridge.model, W, ridge.clients, 9, Q)
    with pytest.raises(InvalidRequest, match="zeta allows 4"):
        certified_unlearn(ridge.model, W, ridge.clients, {0: torch.arange(5)}, Q, capacity=4)
    with pytest.raises(InvalidRequest, match="somebody must stay"):
        certified_unlearn(ridge.model, W, ridge.clients, list(range(N)), Q)
    with pytest.raises(ValueError, match=r"W must be \(5, 4\)"):
        certified_unlearn(ridge.model, W[:3], ridge.clients, ONE, Q)


def test_a_certificate_needs_a_strongly_convex_loss_and_its_numbers(ridge):
    W = ridge.consensus(torch.ones(D).double())
    certify = {"epsilon": 1.0, "budget": 0.1}
    net = FlatModel(mlp(D, 2), l2=0.1)
    deep = [(x, (y > 0).long()) for x, y in ridge.clients]
    with pytest.raises(UnsupportedModel, match="convex"):
        certified_unlearn(net, torch.zeros(N, net.d).double(), deep, ONE, Q, **certify)
    plain = FlatModel(nn.Linear(D, 1, bias=False), task="regression")
    with pytest.raises(UnsupportedModel, match="l2 must be > 0"):
        certified_unlearn(plain, W, ridge.clients, ONE, Q, **certify)
    with pytest.raises(ValueError, match="needs budget"):
        certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, epsilon=1.0)
    with pytest.raises(ValueError, match="needs constants"):
        certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, epsilon=1.0, form="printed")
    with pytest.raises(ValueError, match="not both"):
        certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, sigma=1.0, **certify)
    with pytest.raises(ValueError, match="belong to a certificate"):
        certified_unlearn(ridge.model, W, ridge.clients, ONE, Q, budget=1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("form", "exact"), ("curvature", "newton"), ("objective", "mean"), ("whose", "mine"), ("noise", "none"),
     ("damping", -1.0), ("weight", 0.0), ("cap", 0.0), ("capacity", 0), ("gradient", "both")],
)  # fmt: skip
def test_a_wrong_option_is_named(field, value):
    with pytest.raises(ValueError, match=field):
        DU(**{field: value})


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="no meaning in the printed form"):
        DU(form="printed", gradient="retained")
    with pytest.raises(ValueError, match="whose='global'"):
        DU(gradient="retained", whose="local")


def test_a_singular_hessian_asks_for_damping():
    model = FlatModel(nn.Linear(D, 1, bias=False), task="regression")
    clients = [(torch.zeros(5, D).double(), torch.ones(5).double()) for _ in range(N)]
    with pytest.raises(NumericalFailure, match="raise damping"):
        certified_unlearn(model, torch.ones(N, D).double(), clients, {0: torch.tensor([1])}, Q)
