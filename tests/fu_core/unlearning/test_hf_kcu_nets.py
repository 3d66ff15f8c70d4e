"""HF-KCU by default on nets: what is solved for, how damping is chosen, several steps, held-out samples, recovery."""

import math

import pytest
import torch
from torch import nn

from fu_core import partition
from fu_core.data import load
from fu_core.errors import InvalidRequest
from fu_core.evaluation.equivalence import logits_kl
from fu_core.federation import fedavg
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.models import build
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu, hf_kcu_step
from fu_core.unlearning.krylov import krylov_space
from fu_core.unlearning.method import Trained, unlearn
from fu_core.unlearning.trust import matched_losses
from tests.fu_core.unlearning.hf_kcu_calls import EXACT, ONE_STEP

CLASSES = 4


def samples(n, seed):
    """Two features, four classes, a fifth of the labels wrong: what a net can only know by heart."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    return x, torch.where(torch.rand(n, generator=g) < 0.2, torch.randint(0, CLASSES, (n,), generator=g), y)


@pytest.fixture(scope="module")
def trained():
    """Five clients and a net that has learnt some of their wrong labels by heart, not to the end of its training."""
    model = FlatModel(nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, CLASSES)))
    f = Federation(model, [samples(30, i) for i in range(5)], ClientOpt(lr=0.5, epochs=5, batch_size=10))
    w_0 = model.init(0, torch.float64)
    return Trained(f, fedavg(f, w_0, 20), 20, w_0)


@pytest.fixture(scope="module")
def retrained(trained):
    return unlearn("Retrain", trained, "client-0").model


def pooled(clients, ids):
    return tuple(torch.cat([clients[i][side] for i in ids]) for side in (0, 1))


def right_sides(trained):
    """By hand, of client 0's leaving: what each gradient is."""
    f, w = trained.horizontal, trained.w
    g, g_r, g_u = (f.model.grad(w, *pooled(f.clients, ids)) for ids in (range(5), range(1, 5), [0]))
    return {"retained": -g_r, "centred": g - g_r, "forgotten": 30 / 120 * g_u}


@pytest.mark.parametrize("gradient", ["retained", "centred", "forgotten"])
def test_each_gradient_is_solved_for(trained, gradient):
    """(G_r + I)^-1 of it, G_r the retained Gauss-Newton matrix; the three differ, as w is no minimiser."""
    f, w = trained.horizontal, trained.w
    product = curvature_product(f.model, w, [(1.0, pooled(f.clients, range(1, 5)))], matrix="ggn")
    G = torch.stack([product(e) for e in torch.eye(f.model.d).double()])
    config = HFKCU(gradient=gradient, steps=1, damping=1.0, iters=200, tol=1e-12)
    ours = hf_kcu_step(f, w, Deletion.of(f.clients, 0), config)
    expected = torch.linalg.solve(G + torch.eye(f.model.d).double(), right_sides(trained)[gradient])
    torch.testing.assert_close(ours.step, expected, rtol=1e-7, atol=1e-9)
    by_hand = f.model.grad(w, *pooled(f.clients, range(5))).norm() / right_sides(trained)["forgotten"].norm()
    assert ours.stationarity == pytest.approx(float(by_hand))


def test_only_at_a_minimiser_may_the_forgotten_speak_alone(trained):
    f, deletion = trained.horizontal, Deletion.of(trained.horizontal.clients, 0)
    w = f.model.init(3, torch.float64)
    with pytest.warns(UserWarning, match=r"gradient of the whole loss is \d+\.\d+ times .* no minimiser"):
        hf_kcu(f, w, deletion, damping=10.0, **ONE_STEP)


def test_by_default_the_system_is_solved_and_the_step_nearer_to_retraining(trained, retrained):
    """The residual is told and at most 0.4, what it is measured on is the damped Gauss-Newton system, and behaviour
    comes nearer to Retrain's than doing nothing's on what is forgotten."""
    f, w = trained.horizontal, trained.w
    found = unlearn("HF-KCU", trained, "client-0")
    g, product = (
        right_sides(trained)["centred"],
        curvature_product(f.model, w, [(1.0, pooled(f.clients, range(1, 5)))], matrix="ggn"),
    )
    v = found.model - w
    residual = (g - product(v) - found.notes["damping"] * v).norm() / g.norm()
    assert found.notes["residual"] == pytest.approx(float(residual), rel=1e-6)
    assert residual <= 0.4
    assert found.notes["length"] == pytest.approx(float(v.norm() / w.norm()))
    assert not found.notes["clipped"]

    def loss(w):
        return float(f.model.loss(w, *f.clients[0]))

    assert abs(loss(found.model) - loss(retrained)) < 0.8 * abs(loss(w) - loss(retrained))


def test_a_hard_system_gets_the_damping_that_solves_it(trained):
    """Two products are too few for a small damping: more is taken, just as much as is needed."""
    f, w = trained.horizontal, trained.w
    for tol in (0.2, 0.05):
        found = unlearn("HF-KCU", trained, "client-0", iters=2, tol=tol, gain=1e-9).notes
        product = curvature_product(f.model, w, [(1.0, pooled(f.clients, range(1, 5)))], matrix="ggn")
        space = krylov_space(product, right_sides(trained)["centred"], iters=2)
        assert found["residual"] <= tol
        assert space.solved(0.9 * found["damping"]).residual > tol


def test_several_steps_go_on_towards_where_the_retained_gradient_is_what_the_whole_one_was(trained):
    """grad L_r(w_u) = grad L(w): every step comes nearer or is halved until it does, and the outcome says how near."""
    f, w, left = trained.horizontal, trained.w, []
    for steps in (2, 4):
        found = unlearn("HF-KCU", trained, "client-0", steps=steps, iters=20, tol=0.1, gain=0.5)
        off = f.model.grad(w, *pooled(f.clients, range(5))) - f.model.grad(found.model, *pooled(f.clients, range(1, 5)))
        assert found.notes["left"] == pytest.approx(float(off.norm() / right_sides(trained)["centred"].norm()))
        assert 1 < found.notes["steps"] <= steps
        left.append(found.notes["left"])
    assert left[1] <= left[0] < 1
    one = unlearn("HF-KCU", trained, "client-0")
    assert one.notes["steps"] == 1
    assert "left" not in one.notes


# --- held-out samples, on digits ---


class Digits:
    """Ten clients with 400 digits of their own classes, a perceptron trained by heart, and 400 digits held out."""

    def __init__(self):
        data = load("digits")
        parts = partition.dirichlet(data.y_train[:400], 10, alpha=0.5, seed=0)
        clients = [(data.x_train[part], data.y_train[part]) for part in parts]
        f = Federation(build("mlp", data), clients, ClientOpt(lr=0.1, epochs=5, batch_size=10))
        w_0 = f.model.init(0)
        self.trained = Trained(f, fedavg(f, w_0, 20), 20, w_0)
        self.held_out = data.x_train[400:800], data.y_train[400:800]
        self.retrained = unlearn("Retrain", self.trained, "client-0").model

    def gap(self, w):
        mine, others = matched_losses(
            self.trained.horizontal.model, w, self.trained.horizontal.clients[0], self.held_out
        )
        return (others - mine) / others

    def kl(self, w):
        """On what is forgotten, to Retrain."""
        f = self.trained.horizontal
        return logits_kl(*(f.model.predict(v, f.clients[0][0]) for v in (w, self.retrained)))


@pytest.fixture(scope="module")
def digits():
    return Digits()


@pytest.mark.parametrize("steps", [1, 4])
def test_held_out_samples_say_when_it_is_forgotten(digits, steps):
    """The forgotten cost what held-out digits cost, and the model treats them as a retrained one does, which the rule
    never sees: its KL on them is smaller than what two ordinary rounds without the client leave."""
    ours = unlearn("HF-KCU held-out", digits.trained, "client-0", held_out=digits.held_out, steps=steps).model
    assert abs(digits.gap(ours)) < 0.02
    assert digits.gap(digits.trained.w) > 0.15
    natural = unlearn("Fine-tune", digits.trained, "client-0", rounds=2).model
    assert digits.kl(ours) < 0.8 * digits.kl(natural)
    assert digits.kl(natural) < digits.kl(digits.trained.w)


def test_the_default_step_is_nearer_to_retraining_than_ordinary_rounds(digits):
    found = unlearn("HF-KCU", digits.trained, "client-0")
    natural = unlearn("Fine-tune", digits.trained, "client-0", rounds=2).model
    assert digits.kl(found.model) < digits.kl(natural)
    assert found.notes["residual"] <= 0.4


def test_held_out_samples_are_needed(digits):
    with pytest.raises(InvalidRequest, match="held_out must be samples"):
        unlearn("HF-KCU held-out", digits.trained, "client-0")


def test_nothing_to_forget_is_nothing_done(trained):
    """Held-out samples that the model is sure of: it knows the client's samples no better, and stays as it is."""
    f = trained.horizontal
    x = torch.cat([samples(100, 5)[0], f.clients[0][0]])
    found = unlearn("HF-KCU held-out", trained, "client-0", held_out=(x, f.model.logits(trained.w, x).argmax(dim=1)))
    assert torch.equal(found.model, trained.w)
    assert math.isinf(found.notes["damping"])


def test_rounds_of_recovery_follow_and_are_counted(trained):
    """As those who stay train on, from the round after training; their images and bytes are in the price."""
    f = trained.horizontal
    plain, more = (unlearn("HF-KCU", trained, "client-0", recovery=rounds) for rounds in (0, 2))
    deletion = Deletion.of(f.clients, 0)
    torch.testing.assert_close(more.model, fedavg(f.after(deletion), plain.model, 2, first_round=21), **EXACT)
    assert more.cost.images - plain.cost.images == 2 * 5 * 120
    assert more.cost.rounds - plain.cost.rounds == 2
    assert more.cost.bytes - plain.cost.bytes == 2 * 2 * 4 * f.model.d * 8
    called = hf_kcu(f, trained.w, deletion, recovery=2, round=21)
    assert torch.equal(called, more.model)
    with pytest.raises(ValueError, match="round must number the first of 2 rounds"):
        hf_kcu(f, trained.w, deletion, recovery=2)


def test_a_step_longer_than_training_itself_is_a_warning(trained):
    how = {"damping": 1e-4, "iters": 200, "tol": 1e-6, "gradient": "retained", "steps": 1}
    with pytest.warns(UserWarning, match="times as long as training has moved the model; raise damping"):
        unlearn("HF-KCU", trained, "client-0", **how)


def test_damping_cannot_be_chosen_to_solve_to_the_last_digit(trained):
    with pytest.raises(ValueError, match=r"^tol must be > 0 where damping is None, .* got 0.0"):
        unlearn("HF-KCU", trained, "client-0", tol=0.0)
    assert unlearn("HF-KCU", trained, "client-0", tol=0.0, damping=0.1).model.isfinite().all()


@pytest.mark.parametrize("how", [{"decay": 0.9}, {"preconditioner": "jacobi"}])
def test_damping_cannot_be_chosen_with(trained, how):
    with pytest.raises(ValueError, match="damping must be given with decay or a preconditioner"):
        unlearn("HF-KCU", trained, "client-0", **how)
