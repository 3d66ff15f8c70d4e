"""HF-KCU's options, what can go wrong, and what it costs: on a small net, on quadratics, as a registered method."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fu_core.errors import NumericalFailure
from fu_core.federation.federation import Federation
from fu_core.federation.meter import Meter
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning import method
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu, hf_kcu_step, hf_kcu_steps
from fu_core.unlearning.method import Trained, unlearn
from tests import federations
from tests.fu_core.unlearning.hf_kcu_calls import (
    CLOSED_FORM,
    EXACT,
    ONE_STEP,
    ONES,
    PLAIN,
    as_request,
    step_of,
    unlearned,
)
from tests.quadratics import Quadratics


@pytest.fixture
def net():
    """A tanh net with 43 parameters, three classes and three clients of 6, 9 and 5 samples, and 0.05 l2."""
    g = torch.Generator().manual_seed(3)
    model = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), l2=0.05)
    clients = [
        (torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)) for n in (6, 9, 5)
    ]
    return model, model.init(0, torch.float64), clients


def pooled(clients, ids):
    return tuple(torch.cat([clients[i][side] for i in ids]) for side in (0, 1))


@pytest.mark.parametrize(("curvature", "whose"), [("retained", [0, 2]), ("global", [0, 1, 2]), ("local", [1])])
def test_each_curvature_solves_with_the_hessian_it_names(net, curvature, whose):
    """Client 1 of 6 + 9 + 5 leaves: (H + 3 I)^-1 9/11 grad l_1, with H of who stays, of all, or its own."""
    model, w, clients = net
    H = torch.func.hessian(lambda p: model.loss(p, *pooled(clients, whose)))(w)
    g = 9 / 11 * torch.func.grad(lambda p: model.loss(p, *clients[1]))(w)
    expected = w + torch.linalg.solve(H + 3 * torch.eye(model.d, dtype=torch.float64), g)
    how = {**PLAIN, "iters": 40, "damping": 3.0}
    ours = unlearned(model, w, clients, 1, curvature=curvature, **how)
    torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize(("curvature", "whose"), [("retained", [0, 2]), ("global", [0, 1, 2])])
def test_the_printed_form_takes_other_curvatures_too(net, curvature, whose):
    model, w, clients = net
    H = torch.func.hessian(lambda p: model.loss(p, *pooled(clients, whose)))(w)
    g = torch.func.grad(lambda p: model.loss(p, *clients[1]))(w)
    expected = w - 9 / 20 * torch.linalg.solve(H + 3 * torch.eye(model.d, dtype=torch.float64), g)
    how = {"form": "printed", "iters": 40, "damping": 3.0, "scaling": False}
    torch.testing.assert_close(unlearned(model, w, clients, 1, curvature=curvature, **how), expected, **EXACT)


def test_each_affected_client_solves_alone_with_local_curvature(quadratics):
    """Two clients leave: w + sum_i n_i / (n - m) A_i^-1 A_i (w - a_i)."""
    ours = unlearned(quadratics.model, ONES, quadratics.clients, [0, 1], curvature="local", **CLOSED_FORM)
    by_hand = ONES + sum(quadratics.sizes[i] / 30 * (ONES - quadratics.a[i]) for i in (0, 1))
    torch.testing.assert_close(ours, by_hand, **EXACT)


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
def test_the_matrix_reaches_the_solve(net, matrix):
    model, w, clients = net
    product = curvature_product(model, w, [(1.0, pooled(clients, [0, 2]))], matrix=matrix)
    ours = unlearned(model, w, clients, 1, matrix=matrix, iters=60, damping=0.5, tol=0.0, **ONE_STEP) - w
    g = 9 / 11 * torch.func.grad(lambda p: model.loss(p, *clients[1]))(w)
    torch.testing.assert_close(product(ours) + 0.5 * ours, g, rtol=1e-8, atol=1e-10)


def test_adaptive_scaling_is_on_as_printed_and_off_otherwise(net):
    """Line 17: the step is at most beta |w| long, here exactly that, and the outcome says so."""
    model, w, clients = net
    asked = HFKCU(**{**PLAIN, "damping": 3.0}, beta=1e-4, scaling=True)
    found = step_of(model, w, clients, 1, asked)
    assert found.scale[0] == pytest.approx(1e-4 * float(w.norm() / found.solutions[0].v.norm()))
    assert float(found.step.norm()) == pytest.approx(1e-4 * float(w.norm()))
    assert found.clipped
    assert found.told(w)["length"] == pytest.approx(1e-4)
    whole = step_of(model, w, clients, 1, HFKCU(**{**PLAIN, "damping": 3.0}, beta=1e-4))
    assert (whole.scale, whole.clipped) == ([1.0], False)
    assert step_of(model, w, clients, 1, HFKCU(beta=1e-4, form="printed")).clipped


def test_decay_reaches_the_solve(quadratics):
    args = (quadratics.model, ONES, quadratics.clients, 1)
    how = {**PLAIN, "iters": 2}
    assert torch.equal(unlearned(*args, decay=1.0), unlearned(*args))
    whole, decayed = (unlearned(*args, decay=gamma, **how) - ONES for gamma in (1.0, 0.9))
    first = unlearned(*args, **{**how, "iters": 1}) - ONES
    torch.testing.assert_close(decayed, first + 0.9 * (whole - first), **EXACT)


def test_preconditioning_changes_the_way_and_not_the_end(net):
    model, w, clients = net
    how = {"matrix": "ggn", "iters": 400, "damping": 0.01, "tol": 1e-11, **ONE_STEP}
    plain = unlearned(model, w, clients, 1, **how)
    jacobi = unlearned(model, w, clients, 1, preconditioner="jacobi", **how)
    torch.testing.assert_close(jacobi, plain, rtol=1e-7, atol=0)
    short = {**how, "iters": 3}
    assert not torch.allclose(
        unlearned(model, w, clients, 1, preconditioner="jacobi", **short), unlearned(model, w, clients, 1, **short)
    )


def test_float32_gives_the_step_of_float64():
    """A convolutional net with max-pooling: CG in single precision, sums over batches in double."""
    model = FlatModel(simple_cnn(1, 8, 3, (2, 3, 3), 4))
    g = torch.Generator().manual_seed(0)
    clients = [(torch.rand(6, 1, 8, 8, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(3)]
    double = [(x.double(), y) for x, y in clients]
    w = model.init(0)
    given = {**PLAIN, "damping": 1.0}
    for how in (given, {"form": "printed", "scaling": False, "damping": 1.0}, {**given, "matrix": "ggn"}, {}):
        how = {**how, "iters": 5}
        single = unlearned(model, w, clients, 0, beta=10.0, **how)
        exact = unlearned(model, w.double(), double, 0, beta=10.0, **how) - w.double()
        assert single.dtype == torch.float32
        assert (single.double() - w.double() - exact).norm() < 1e-4 * exact.norm()


def test_sampled_curvature_depends_on_the_seed_alone(quadratics):
    args = (quadratics.model, ONES, quadratics.clients, 1)
    first, again, other = (unlearned(*args, curvature_samples=20, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for enough in (38, 1000):  # 50 - 12 samples stay
        assert torch.equal(unlearned(*args, curvature_samples=enough, seed=5), unlearned(*args))


def test_sampled_curvature_is_unbiased(quadratics):
    """The first step's g'H_S g / g'g is linear in H_S: its mean over 150 seeds is g'Hg / g'g within four standard
    errors. Ten samples of 8 + 20 + 10 are ceil(80/38) = 3, ceil(200/38) = 6 and ceil(100/38) = 3."""
    args, meter = (quadratics.model, ONES, quadratics.clients, 1), Meter()
    config = {**PLAIN, "iters": 1, "damping": 0.0}
    sampled = HFKCU(**config, curvature_samples=10)
    exact = step_of(*args, HFKCU(**config)).solutions[0].curvatures[0]
    drawn = np.array([step_of(*args, sampled, seed=s).solutions[0].curvatures[0] for s in range(150)])
    assert abs(drawn.mean() - exact) < 4 * drawn.std() / 150**0.5
    assert drawn.std() > 0.01 * exact
    step_of(*args, sampled, meter=meter)
    assert meter.products == 3 + 6 + 3


def test_a_client_without_data_changes_nothing(quadratics):
    """Dirichlet splits leave some clients empty: they have no part in any curvature."""
    x, y = quadratics.clients[0]
    more = [*quadratics.clients, (x[:0], y[:0])]
    for how in ({}, {"form": "printed"}, {"gradient": "retained"}, {"client_weights": "fixed"}):
        for curvature in ("retained", "global", "local") if "gradient" not in how else ("retained", "global"):
            for preconditioner in ("none", "jacobi"):
                options = {"curvature": curvature, "preconditioner": preconditioner, **how}
                ours = unlearned(quadratics.model, ONES, more, 1, **options)
                assert torch.equal(ours, unlearned(quadratics.model, ONES, quadratics.clients, 1, **options))


def test_inputs_are_left_untouched(quadratics):
    w, x_before = ONES.clone(), [x.clone() for x, _ in quadratics.clients]
    for how in ({}, {"form": "printed"}, {"gradient": "retained", "preconditioner": "jacobi"}):
        for forget in (0, {0: torch.tensor([1, 2])}):
            ours = unlearned(quadratics.model, w, quadratics.clients, forget, **how)
            ours.zero_()  # and the result is nobody else's memory
            assert torch.equal(w, ONES)
    assert all(torch.equal(x, before) for (x, _), before in zip(quadratics.clients, x_before, strict=True))


@pytest.mark.parametrize("how", [{}, {"form": "printed"}, {"scaling": True, "damping": 0.1}])
def test_a_model_that_requires_a_gradient_is_taken_for_what_it_is(quadratics, how):
    grows = ONES.clone().requires_grad_()
    f, deletion = Federation(quadratics.model, quadratics.clients), Deletion.of(quadratics.clients, 1)
    steps = [hf_kcu_step(f, w, deletion, HFKCU(**how)).step for w in (ONES, grows)]
    models = [hf_kcu(f, w, deletion, **how) for w in (ONES, grows)]
    shared = HFKCU(curvature="global", steps=1, damping=0.1)
    together = [hf_kcu_steps(f, w, [deletion, Deletion.of(quadratics.clients, 2)], shared) for w in (ONES, grows)]
    for plain, ours in (steps, models, together):
        assert torch.equal(ours, plain)
        assert not ours.requires_grad


# --- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [ONE_STEP, {"form": "printed"}, {"form": "printed", "influence": "broadcast"}])
def test_a_zero_gradient_returns_the_model_and_says_so(quadratics, how):
    """At w = a_1 client 1 fits its data perfectly: there is nothing to reverse."""
    w = quadratics.a[1].clone()
    with pytest.warns(UserWarning, match="gradient on the forgotten data is zero"):
        ours = unlearned(quadratics.model, w, quadratics.clients, 1, **how)
    assert torch.equal(ours, w)
    assert ours.data_ptr() != w.data_ptr()


def test_relative_residual_is_the_largest_over_the_solves_that_had_something_to_solve(quadratics):
    """At w = a_1 client 1 has none; client 2 makes one step: |g - a A g| / |g| with a = g'g / g'Ag."""
    w, A = quadratics.a[1], quadratics.A[2]
    found = step_of(quadratics.model, w, quadratics.clients, [1, 2], HFKCU(form="printed", iters=1, damping=0.0))
    g = A @ (w - quadratics.a[2])
    by_hand = (g - g.dot(g) / g.dot(A @ g) * A @ g).norm() / g.norm()
    assert found.relative_residual == pytest.approx(float(by_hand))


def test_a_model_that_is_not_finite_is_an_error(quadratics):
    for how in ({}, {"form": "printed"}):
        with pytest.raises(NumericalFailure, match="not finite"):
            unlearned(quadratics.model, ONES * float("nan"), quadratics.clients, 1, **how)


def test_negative_curvature_in_a_net():
    """f = w_2 w_1 x at w = (1, 1), x = 1, y = 4: residual -3, H = [[1, -2], [-2, 1]], gradient -3 (1, 1), along which
    p'Hp / p'p = -1. Printed: v = g / -1 = 3 (1, 1), w_u = w - 1/2 v. Corrected: an error, or Gauss-Newton."""
    model = FlatModel(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), task="regression")
    w = torch.ones(2, dtype=torch.float64)
    client = (torch.ones(2, 1, dtype=torch.float64), torch.full((2,), 4.0, dtype=torch.float64))
    args, how = (model, w, [client, client], 0), {"damping": 0.0, "iters": 1, "scaling": False}
    with pytest.raises(NumericalFailure, match=r"curvature -1 along .* matrix='ggn'"):
        unlearned(*args, matrix="hessian", **how, **ONE_STEP)
    with pytest.warns(UserWarning, match="negative curvature in 1 of 1 steps"):
        assert unlearned(*args, form="printed", **how).tolist() == [-0.5, -0.5]
    assert unlearned(*args, matrix="ggn", **how, **ONE_STEP).tolist() == [
        -0.5,
        -0.5,
    ]  # g = -3 (1, 1), G = [[1, 1], [1, 1]]


def test_all_samples_of_a_client_are_the_client(quadratics):
    for how in ({}, {"client_weights": "fixed"}, {"form": "printed"}):
        whole = unlearned(quadratics.model, ONES, quadratics.clients, 2, **how)
        assert torch.equal(unlearned(quadratics.model, ONES, quadratics.clients, {2: torch.arange(20)}, **how), whole)


@pytest.mark.parametrize(
    ("field", "value", "rest"),
    [
        ("iters", 0, {}),
        ("iters", 2.5, {}),
        ("damping", -0.1, {}),
        ("damping", float("nan"), {}),
        ("tol", -1.0, {}),
        ("beta", 0.0, {}),
        ("form", "print", {}),
        ("curvature", "remaining", {}),
        ("matrix", "hesse", {}),
        ("sign", 0, {}),
        ("influence", "none", {"form": "printed"}),
        ("decay", 0.0, {}),
        ("decay", 1.5, {}),
        ("gradient", "kept", {}),
        ("client_weights", "equal", {}),
        ("preconditioner", "diagonal", {}),
        ("curvature_samples", 0, {}),
        ("batch_size", 0, {}),
        ("influence", "broadcast", {}),
        ("gradient", "retained", {"form": "printed"}),
        ("gradient", "retained", {"curvature": "local"}),
        ("gradient", "forget", {}),
        ("steps", 0, {}),
        ("steps", 2, {"sign": -1}),
        ("steps", 2, {"curvature": "local"}),
        ("steps", 2, {"form": "printed"}),
        ("until", 1.5, {}),
        ("until", 0.1, {"form": "printed"}),
        ("gain", 0.0, {}),
        ("recovery", -1, {}),
        ("held_out", (torch.ones(1, 1), torch.ones(1)), {"form": "printed"}),
        ("damping", 0.1, {"held_out": (torch.ones(1, 1), torch.ones(1))}),
        ("client_weights", "fixed", {"form": "printed"}),
    ],
)
def test_bad_hyper_parameters_are_named(field, value, rest):
    with pytest.raises(ValueError, match=rf"^{field}[ =]"):
        HFKCU(**{field: value, **rest})


def test_an_unknown_option_is_named(quadratics):
    with pytest.raises(TypeError, match="dampening"):
        unlearned(quadratics.model, ONES, quadratics.clients, 1, dampening=0.1)


def test_options_are_fields_of_the_config_and_stand_in_for_them(quadratics):
    f = Federation(quadratics.model, quadratics.clients)
    deletion, config = Deletion.of(f.clients, 1), HFKCU(iters=1, damping=0.5)
    expected = hf_kcu(f, ONES, deletion, iters=1, damping=0.5)
    assert torch.equal(hf_kcu(f, ONES, deletion, config), expected)
    assert torch.equal(hf_kcu(f, ONES, deletion, HFKCU(iters=3, damping=0.5), iters=1), expected)
    assert torch.equal(hf_kcu(f, ONES, deletion), hf_kcu(f, ONES, deletion, HFKCU()))
    assert not torch.equal(hf_kcu(f, ONES, deletion), expected)


# --- registered ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), [("HF-KCU", "corrected"), ("HF-KCU printed", "printed")])
def test_the_registered_methods_make_the_step_of_their_form_and_note_how(quadratics, name, form, monkeypatch):
    """Two clients leave. Corrected: one solve of two steps, unclipped, as the loss is convex. Printed: a solve each."""
    monkeypatch.setattr(method, "_import_all", lambda: None)
    trained = Trained(Federation(quadratics.model, quadratics.clients), ONES)
    how = {**PLAIN, "iters": 2} if form == "corrected" else {"iters": 2}
    found = unlearn(name, trained, "client-1-2", **how)
    by_hand = step_of(quadratics.model, ONES, quadratics.clients, [1, 2], HFKCU(**how, form=form))
    assert torch.equal(found.model, ONES + by_hand.step)
    residuals = [s.residual_norms[2] / s.residual_norms[0] for s in by_hand.solutions]
    assert found.notes == {
        "residual": max(residuals),
        "negative": 0,
        "cg_steps": 2 if form == "corrected" else 4,
        "scale": 1.0 if form == "corrected" else min(0.01 * 3**0.5 / float(s.v.norm()) for s in by_hand.solutions),
        "clipped": form == "printed",
        "length": float(by_hand.step.norm()) / 3**0.5,
        "steps": 1,
        "damping": 0.01,
        **({"stationarity": by_hand.stationarity} if form == "corrected" else {}),
    }
    assert 0 < max(residuals) < 1
    assert found.cost.products == 2 * (8 + 10 if form == "corrected" else 12 + 20)
    assert trained.federation.meter.products == 0
    assert not method.method(name).recovers
    assert method.method(name).needs.full_participation == (form == "corrected")


# --- costs and symmetry ----------------------------------------------------------------------------------------------

VECTOR = 3 * 8  # bytes of three float64 parameters
RETAIN = {"gradient": "retained", "steps": 1}
MORE = {**RETAIN, "steps": 2, "until": 0.0}  # and no third


@pytest.mark.parametrize(
    ("forget", "how", "images", "per_step", "up", "down"),
    [
        # corrected, clients of 8, 12, 20, 10: all gradients up, p and q per step and client, the new model to all four
        (1, {}, 50, 38, 4 + 2 * 3, 2 * 3 + 4),
        ([0, 1], {}, 50, 30, 4 + 2 * 2, 2 * 2 + 4),
        ({1: torch.tensor([0, 1, 2])}, {}, 50, 47, 4 + 2 * 4, 2 * 4 + 4),
        ({1: torch.tensor([0, 1, 2])}, {"client_weights": "fixed"}, 50, 47, 4 + 2 * 4, 2 * 4 + 4),
        (1, {"curvature": "global"}, 50, 50, 4 + 2 * 4, 2 * 4 + 4),
        (1, {"curvature": "local"}, 50, 12, 4, 4),
        (1, RETAIN, 50, 38, 4 + 2 * 3, 2 * 3 + 4),
        (1, {"gradient": "centred", "steps": 1}, 50, 38, 4 + 2 * 3, 2 * 3 + 4),
        (1, MORE, 50 + 2 * 38, 2 * 38, 4 + 2 * (2 * 3 + 3), 2 * (2 * 3 + 3) + 4),  # and where each step has led
        (1, {"preconditioner": "jacobi"}, 50 + 38, 38, 4 + 3 + 2 * 3, 2 * 3 + 4),
        ([0, 1, 2], {}, 50, 10, 4 + 2 * 1, 2 * 1 + 4),  # one client stays, and is asked over the network all the same
        # printed: everybody hears the model, the affected send their steps and nothing else
        (1, {"form": "printed"}, 12, 12, 1, 4),
        ([0, 1], {"form": "printed"}, 20, 20, 2, 4),
        ({1: torch.tensor([0, 1, 2])}, {"form": "printed"}, 3, 12, 1, 4),
        (1, {"form": "printed", "preconditioner": "jacobi"}, 12 + 12, 12, 1, 4),
        (1, {"form": "printed", "influence": "broadcast"}, 12, 50, 1 + 4, 4 + 4),
        (1, {"form": "printed", "curvature": "retained"}, 12, 38, 1 + 2 * 3, 2 * 3 + 4),
    ],
)
def test_costs_are_counted(quadratics, forget, how, images, per_step, up, down):
    """k = 2 steps: a gradient of everybody (printed: of the forgotten), k products over those of the curvature."""
    meter = Meter()
    plain = {} if "form" in how else {**PLAIN, "damping": 0.01}
    unlearned(quadratics.model, ONES, quadratics.clients, forget, meter=meter, **{**plain, **how, "iters": 2})
    assert meter.images == images
    assert meter.products == 2 * per_step
    assert (meter.bytes_up, meter.bytes_down) == (up * VECTOR, down * VECTOR)
    assert meter.gradient_passes == images + 4 * per_step


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    order=st.permutations(range(4)),
    form=st.sampled_from(["corrected", "printed"]),
    forget=st.sampled_from([{0: None}, {1: None, 3: None}, {2: [1, 2, 7]}]),
)
def test_the_order_of_the_clients_is_irrelevant(order, form, forget):
    """Client order[j] becomes client j, in the data and in the request; rounding aside nothing changes."""
    q = Quadratics()
    expected = unlearned(q.model, ONES, q.clients, as_request(forget), form=form)
    moved = as_request({order.index(i): rows for i, rows in forget.items()})
    ours = unlearned(q.model, ONES, [q.clients[i] for i in order], moved, form=form)
    torch.testing.assert_close(ours, expected, **EXACT)


def test_local_curvature_is_solved_on_a_net_at_the_papers_damping_and_chooses_none():
    """It ended in an assertion without a word."""
    trained = federations.with_server()
    settled = HFKCU(curvature="local").settled(trained.horizontal.model)
    assert (settled.damping, settled.gradient, settled.steps) == (0.01, "forgotten", 1)
    assert unlearn("HF-KCU", trained, "sample-1-0.5", curvature="local").model.isfinite().all()
    with pytest.raises(ValueError, match="held_out must be None with curvature='local'"):
        HFKCU(curvature="local", held_out=federations.classified(40, seed=1))
