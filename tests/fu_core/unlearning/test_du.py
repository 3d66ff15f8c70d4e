"""DU against retraining it must equal: ridge regression, where one Newton step is exact (T3)."""

import math

import networkx as nx
import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, NumericalFailure, TopologyError, UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.meter import nbytes
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning import method
from fu_core.unlearning.certificate import Privacy, residual_radius
from fu_core.unlearning.du import CLOSE, DU, du, du_release
from fu_core.unlearning.method import Trained, unlearn
from tests.federations import among_peers as softmax_among_peers
from tests.ridge import EVERYBODY, L2, ONE, D, N, Ridge, among_peers, relative

TWO_LEAVE = [1, 3]
MIXED = {0: torch.arange(20), 3: torch.tensor([1, 2])}  # all of client 0's samples, some of client 3's


@pytest.fixture(scope="module")
def ridge():
    return Ridge()


def unlearned(ridge, w, forget, f=None, **options):
    """Everybody's model once the request is served, from `w` at everybody."""
    return du(f or ridge.federation(), ridge.consensus(w), ridge.deletion(forget), DU(**options))


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["clients", "samples"])
@pytest.mark.parametrize("forget", [EVERYBODY, ONE, 4, TWO_LEAVE, MIXED], ids=["all", "one", "leaves", "two", "mixed"])
@pytest.mark.parametrize("gradient", ["forgotten", "centred", "retained"])
def test_the_corrected_form_is_exact_retraining_on_ridge(ridge, forget, objective, gradient):
    w, retrained = ridge.worlds(forget, objective)
    W = unlearned(ridge, w, forget, objective=objective, gradient=gradient)
    assert len(W) == len(ridge.deletion(forget).kept)
    assert relative(W, retrained, w) < 1e-10
    assert residual_radius(ridge.model, W[0], ridge.deletion(forget), objective=objective) < 1e-10


def test_a_step_from_the_retained_gradient_is_exact_from_anywhere(ridge):
    """Training need not have converged, nor the clients agree."""
    w, retrained = ridge.worlds(ONE)
    W = ridge.consensus(w) + torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    from_retained = du(ridge.federation(), W, ridge.deletion(ONE), DU())
    from_forgotten, centred = (
        du(ridge.federation(), W, ridge.deletion(ONE), DU(gradient=gradient)) for gradient in ("forgotten", "centred")
    )
    assert relative(from_retained, retrained, w) < 1e-10
    assert relative(from_forgotten, retrained, w) > 0.1
    H, H_r = (dense(ridge, held) for held in (dict(enumerate(ridge.clients)), ridge.deletion(ONE).kept))
    left = torch.linalg.solve(H_r, H @ (W.mean(dim=0) - w))  # x* + H_r^-1 H (x - x*): how far training was from its end
    assert torch.allclose(centred[0] - retrained, left, rtol=1e-8)


def dense(ridge, held):
    """The Hessian (D, D) of the mean of the clients' losses."""
    return sum(X.T @ X / len(y) for X, y in held.values()) / len(held) + L2 * torch.eye(D).double()


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
def test_conjugate_gradient_finds_what_the_dense_matrix_finds(ridge, curvature):
    w, retrained = ridge.worlds(EVERYBODY)
    W = unlearned(ridge, w, EVERYBODY, curvature=curvature, dense_up_to=0)
    assert relative(W, retrained, w) < 1e-8


def test_the_printed_form_is_exact_where_clients_share_designs_and_ask_alike():
    """What its proof is about: one Hessian, equal requests at every client."""
    ridge = Ridge(same_design=True, sizes=(30,) * N)
    forget = {i: torch.arange(4) for i in range(N)}
    w, retrained = ridge.worlds(forget)
    W = unlearned(ridge, w, forget, form="printed")
    assert relative(W, retrained, w) < 1e-10
    assert torch.allclose(W, unlearned(ridge, w, forget))


def test_the_printed_form_misses_by_local_curvature(ridge):
    """Errata D2: with Hessians of its own for every client, ridge is not exact, though M = 0 promises it."""
    forget = {i: torch.arange(5) for i in range(N)}
    w, retrained = ridge.worlds(forget)
    printed = unlearned(ridge, w, forget, form="printed")
    assert relative(printed, retrained, w) > 0.05
    shared = unlearned(ridge, w, forget, form="printed", whose="global")
    assert relative(shared, retrained, w) < relative(printed, retrained, w)


def test_for_one_requester_the_printed_form_lacks_a_term(ridge):
    """Errata D2: grad f_c is not zero at the optimum of the mean, and the printed step leaves it out."""
    w, retrained = ridge.worlds(ONE)
    printed = unlearned(ridge, w, ONE, form="printed", whose="global")
    assert relative(printed, retrained, w) > 0.3


@pytest.mark.parametrize("c", range(N))
def test_for_a_leaving_client_the_printed_form_divides_by_n_twice(ridge, c):
    """Errata D4: the error is exactly 1 - 1/N of doing nothing's, and weight 1 is exact."""
    w, retrained = ridge.worlds(c)
    how = {"form": "printed"}
    printed = unlearned(ridge, w, c, **how)
    assert relative(printed, retrained, w) == pytest.approx(1 - 1 / N, rel=1e-9)
    once = unlearned(ridge, w, c, weight=1.0, **how)
    assert relative(once, retrained, w) < 1e-10


def test_requests_one_after_the_other_end_where_all_at_once_ends(ridge):
    first, second = {0: torch.arange(4), 2: torch.arange(3)}, {1: torch.tensor([0, 9])}
    w, _ = ridge.worlds({**first, **second})
    at_once = unlearned(ridge, w, {**first, **second})
    once = unlearned(ridge, w, first)
    left = ridge.federation().after(ridge.deletion(first))
    twice = du(left, once, Deletion.of(left.clients, second))
    assert torch.allclose(at_once, twice, atol=1e-10)


def test_a_client_that_left_before_takes_no_part(ridge):
    w, retrained = ridge.worlds(TWO_LEAVE)
    after_first = unlearned(ridge, w, 1)
    left = ridge.federation().after(ridge.deletion(1))
    after_second = du(left, after_first, Deletion.of(left.clients, 3))
    assert len(after_second) == 3
    assert relative(after_second, retrained, w) < 1e-10


def test_rows_are_those_of_the_ids_in_order(ridge):
    """Clients 2, 4, 7, 8, 9: models and hops do not depend on what clients are called."""
    names = dict(zip((2, 4, 7, 8, 9), ridge.clients, strict=True))
    f = Federation(ridge.model, names, exchange=Peers(nx.relabel_nodes(ring(N), dict(enumerate(names)))))
    W = torch.randn(N, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    config = DU(form="printed")
    named = du_release(f, W, Deletion.of(names, {4: torch.arange(5), 8: torch.arange(35)}), config)
    plain = du_release(ridge.federation(), W, ridge.deletion({1: torch.arange(5), 3: torch.arange(35)}), config)
    assert torch.equal(named.models, plain.models)
    assert (named.ids, plain.ids) == ([2, 4, 7, 9], [0, 1, 2, 4])
    assert list(named.messages) == [4, 8]
    assert named.hops.tolist() == plain.hops.tolist() == [[1, 0, 1, 2, 2], [2, 2, 1, 0, 1]]


def test_inputs_are_left_alone_and_the_same_seed_gives_the_same_bits(ridge):
    w, _ = ridge.worlds(ONE)
    W, noise = ridge.consensus(w), Privacy(sigma=0.1)
    before = W.clone()
    once, again, other = (du(ridge.federation(seed), W, ridge.deletion(ONE), privacy=noise) for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert torch.equal(W, before)
    assert not torch.equal(once, other)


# --- Fisher ----------------------------------------------------------------------------------------------------------


def test_the_full_fisher_solves_with_the_matrix_of_per_sample_gradients(ridge):
    w, _ = ridge.worlds(ONE)
    kept = ridge.deletion(ONE).kept
    G = {i: ridge.model.per_sample_grads(w, *data) for i, data in kept.items()}
    data_G = {i: g - L2 * w for i, g in G.items()}
    F = sum(g.T @ g / len(g) for g in data_G.values()) / N + (L2 + 0.05) * torch.eye(D).double()
    x, y = ridge.clients[2]
    rest = len(y) - 3
    g = 3 / rest * (ridge.model.grad(w, x[ONE[2]], y[ONE[2]]) - ridge.model.grad(w, x, y)) / N
    released = unlearned(ridge, w, ONE, curvature="fisher", damping=0.05)
    assert torch.allclose(released[0] - w, torch.linalg.solve(F, g))
    printed = unlearned(ridge, w, ONE, curvature="fisher", form="printed")
    own = G[2].T @ G[2] / rest  # Eq. (7): the regularised loss's gradients, nothing added
    step = torch.linalg.solve(own, 3 / rest * ridge.model.grad(w, x[ONE[2]], y[ONE[2]])) / N
    assert torch.allclose(printed[0] - w, step)


def test_the_diagonal_fisher_divides_by_mean_squares(ridge):
    w, _ = ridge.worlds(4)
    kept = ridge.deletion(4).kept
    psi = sum((ridge.model.per_sample_grads(w, *data) - L2 * w).square().mean(dim=0) for data in kept.values()) / 4
    step = ridge.model.grad(w, *ridge.clients[4]) / 4 / (psi + L2 + 0.01)
    released = unlearned(ridge, w, 4, curvature="diagonal_fisher", damping=0.01)
    assert torch.allclose(released[0] - w, step)


def test_a_fisher_matrix_without_an_inverse_asks_for_damping(ridge):
    few = [(x[:3], y[:3]) for x, y in ridge.clients]
    with pytest.raises(NumericalFailure, match=r"rank 2 at most.*damping must be > 0"):
        du(
            among_peers(ridge.model, few),
            ridge.consensus(torch.ones(D).double()),
            Deletion.of(few, {0: torch.tensor([0])}),
            DU(form="printed", curvature="fisher"),
        )


def test_each_curvature_counts_the_memory_it_keeps(ridge):
    w, _ = ridge.worlds(ONE)
    kept = {}
    for curvature in ("hessian", "fisher", "diagonal_fisher"):
        f = ridge.federation()
        unlearned(ridge, w, ONE, f, curvature=curvature, damping=0.1)
        kept[curvature] = f.meter.storage
    n = sum(len(y) for _, y in ridge.clients) - 3
    assert kept == {"hessian": 8 * D * D, "fisher": 8 * n * D, "diagonal_fisher": 8 * D}


def test_the_cap_shortens_the_correction_and_says_so(ridge):
    w, _ = ridge.worlds(4)
    free, capped = (
        du_release(ridge.federation(), ridge.consensus(w), ridge.deletion(4), config) for config in (DU(), DU(cap=0.01))
    )
    assert free.scale == 1
    assert float((capped.models[0] - w).norm()) == pytest.approx(0.01 * float(w.norm()))
    assert capped.scale == pytest.approx(0.01 * float(w.norm()) / float((free.models[0] - w).norm()))


def test_sampled_curvature_uses_that_many_samples(ridge):
    w, _ = ridge.worlds(ONE)
    full, few = ridge.federation(), ridge.federation()
    unlearned(ridge, w, ONE, full)
    unlearned(ridge, w, ONE, few, curvature_samples=20)
    assert full.meter.products == D * 147
    assert D * 20 <= few.meter.products <= D * (20 + N)


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_the_printed_form_sends_one_vector_per_requester_and_link(ridge):
    w, _ = ridge.worlds(EVERYBODY)
    f = ridge.federation()
    unlearned(ridge, w, EVERYBODY, f, form="printed")
    assert f.meter.bytes == N * (2 * N - (N - 1)) * nbytes(w)


@pytest.mark.parametrize(("sums", "each"), [("tree", 2 * (N - 1)), ("flood", N * (N + 1))])
def test_the_corrected_form_pays_for_every_sum_over_the_network(ridge, sums, each):
    """The mean of the models, the gradient, its check after the step, and a sum per product or row of a matrix."""
    w, _ = ridge.worlds(ONE)
    by_cg, whole, diagonal = (ridge.federation() for _ in range(3))
    models = unlearned(ridge, w, ONE, by_cg, dense_up_to=0, sums=sums)
    assert torch.equal(models, models[:1].expand_as(models))
    others = 3 * each * nbytes(w)
    products = (by_cg.meter.bytes - others) / (each * nbytes(w))
    assert products == round(products)
    assert 1 <= products <= D + 2
    unlearned(ridge, w, ONE, whole, sums=sums)
    unlearned(ridge, w, ONE, diagonal, curvature="diagonal_fisher", damping=10.0, sums=sums)
    assert whole.meter.bytes - others == D * each * nbytes(w)
    assert diagonal.meter.bytes - others == each * nbytes(w)


def test_the_printed_form_collects_the_hessians_of_all_others_for_a_client_that_leaves(ridge):
    """Eq. (5): N - 1 matrices of D rows, added up on their way to client 4; then one flood (errata D4)."""
    w, _ = ridge.worlds(4)
    f = ridge.federation()
    unlearned(ridge, w, 4, f, form="printed")
    assert f.meter.bytes == ((N - 1) * D + 2 * N - (N - 1)) * nbytes(w)


def test_noise_for_all_is_one_more_sum_unless_it_rides_on_the_messages_or_is_everybodys_own(ridge):
    w, _ = ridge.worlds(ONE)
    more = {}
    for options in ({}, {"noise": "independent"}, {"form": "printed"}):
        without, noisy = ridge.federation(), ridge.federation()
        for f, privacy in ((without, None), (noisy, Privacy(sigma=0.1))):
            du(f, ridge.consensus(w), ridge.deletion(ONE), DU(**options), privacy)
        more[str(options)] = noisy.meter.bytes - without.meter.bytes
    assert list(more.values()) == [2 * (N - 1) * nbytes(w), 0, 0]


# --- as a registered method ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), [("DU", "corrected"), ("DU printed", "printed")])
def test_it_serves_a_request_by_name_and_tells_how(ridge, monkeypatch, name, form):
    """Step: what the mean of the models that stay has moved, beside its length; client 4 is two links from two."""
    monkeypatch.setattr(method, "_import_all", lambda: None)
    W = torch.randn(N, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    f = ridge.federation()
    served = unlearn(name, Trained(f, W), "client-4", cap=0.01)
    release = du_release(ridge.federation(), W, ridge.deletion(4), DU(form=form, cap=0.01))
    assert torch.equal(served.model, release.models)
    before = W[:4].mean(dim=0)
    step = float((release.models.mean(dim=0) - before).norm() / before.norm())
    told = {"step": pytest.approx(step), "scale": release.scale, "hops": 2, "sums": release.sums}
    left = {"steps": 1, "gradient_left": pytest.approx(0, abs=1e-10)} if form == "corrected" else {}
    assert served.notes == told | left
    assert served.notes["scale"] < 1
    assert served.cost.bytes > 0
    assert f.meter.bytes == 0
    with pytest.raises(InvalidRequest, match="client 9"):
        unlearn(name, Trained(f, W), "client-9")
    with pytest.raises(UnsupportedTask, match="peers, but this one is server"):
        unlearn(name, Trained(Federation(ridge.model, ridge.clients), W[0]), "client-4")


def test_iterated_it_ends_where_one_step_does_not_by_the_radius_that_certifies():
    trained = softmax_among_peers()
    deletion = Deletion.of(trained.horizontal.clients, 2)
    left = {
        name: residual_radius(trained.horizontal.model, unlearn(name, trained, "client-2").model.mean(dim=0), deletion)
        for name in ("DU", "DU iterated")
    }
    assert left["DU iterated"] <= CLOSE < left["DU"]


# --- bad input -------------------------------------------------------------------------------------------------------


def test_requests_that_cannot_be_served_say_why(ridge):
    W, f = ridge.consensus(torch.ones(D).double()), ridge.federation()
    with pytest.raises(InvalidRequest, match="zeta allows 4"):
        du(f, W, ridge.deletion({0: torch.arange(5)}), DU(capacity=4))
    with pytest.raises(ValueError, match=r"W must be \(5, 4\)"):
        du(f, W[:3], ridge.deletion(ONE))
    with pytest.raises(ValueError, match=r"Q square with as many rows.*got \(5, 4\) and \(4, 4\)"):
        du(f.having(exchange=Peers(ring(4))), W, ridge.deletion(ONE))
    with pytest.raises(UnsupportedTask, match="exchange must be Peers"):
        du(Federation(ridge.model, ridge.clients), W, ridge.deletion(ONE))


@pytest.mark.parametrize("name", ["DU", "DU printed"])
def test_a_graph_of_others_is_refused_whose_rows_would_be_matched_by_rank(ridge, name):
    clients = {10 * i: client for i, client in enumerate(ridge.clients, start=1)}
    f = ridge.federation().having(clients=clients)
    W = ridge.consensus(torch.ones(D).double())
    with pytest.raises(TopologyError, match="graph must link clients 10, 20, 30, 40, 50, but its nodes are 0 to 4"):
        unlearn(name, Trained(f, W), "client-10")
    linked = f.having(exchange=Peers(nx.relabel_nodes(f.peers.graph, {i: 10 * (i + 1) for i in range(N)})))
    assert len(unlearn(name, Trained(linked, W), "client-10").model) == N - 1


def test_models_that_require_a_gradient_are_taken_for_what_they_are(ridge):
    W = ridge.consensus(torch.ones(D).double())
    for options in ({}, {"form": "printed"}, {"noise": "first"}):
        plain, grown = (
            du(ridge.federation(), of, ridge.deletion(ONE), DU(**options)) for of in (W, W.clone().requires_grad_())
        )
        assert torch.equal(plain, grown)
        assert not grown.requires_grad


@pytest.mark.parametrize(
    ("field", "value"),
    [("form", "exact"), ("curvature", "newton"), ("objective", "mean"), ("whose", "mine"), ("noise", "none"),
     ("damping", -1.0), ("weight", 0.0), ("cap", 0.0), ("capacity", 0), ("gradient", "both"), ("steps", 0),
     ("until", -1.0), ("sums", "ring"), ("iters", 0), ("iters", "x"), ("iters", math.nan), ("tol", -1.0),
     ("tol", math.nan), ("tol", "x"), ("dense_up_to", -1), ("dense_up_to", "x"), ("dense_up_to", math.nan),
     ("damping", "x"), ("damping", math.nan)],
)  # fmt: skip
def test_a_wrong_option_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be .*, got {value!r}"):
        DU(**{field: value})


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="no meaning in the printed form"):
        DU(form="printed", gradient="retained")
    with pytest.raises(ValueError, match="whose='local' needs gradient='forgotten'"):
        DU(whose="local")
    with pytest.raises(ValueError, match="until has no meaning in the printed form"):
        DU(form="printed", until=0.1)
    with pytest.raises(ValueError, match="until needs gradient='retained'"):
        DU(gradient="centred", until=0.1)
    with pytest.raises(ValueError, match="noise='first' needs the corrected form"):
        DU(form="printed", noise="first")


def test_a_singular_hessian_asks_for_damping():
    model = FlatModel(nn.Linear(D, 1, bias=False), task="regression")
    clients = [(torch.zeros(5, D).double(), torch.ones(5).double()) for _ in range(N)]
    with pytest.raises(NumericalFailure, match="raise damping"):
        du(among_peers(model, clients), torch.ones(N, D).double(), Deletion.of(clients, {0: torch.tensor([1])}))
