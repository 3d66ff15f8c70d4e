"""FedORA for clients with whole samples: who answers, that it does not matter who holds what, and its bill."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.data import load
from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.models import build
from fu_core.models.flat import FlatModel
from fu_core.partition import iid
from fu_core.request import Deletion, joined
from fu_core.unlearning.fedora import FedORA, InfeasibleConstraint, uncertainty_loss
from fu_core.unlearning.fedora_horizontal import Asked, Holders, fedora_horizontal
from fu_core.unlearning.method import Trained, unlearn

LINEAR = FlatModel(nn.Linear(3, 2, bias=False))
WHOLE = FedORA(  # no sampling, one step per iteration
    forget_sample=0, ratio=1.0, batch_size=10**6, adaptive=False, patience=False, passes=0.0, tau=0.1, sigma=0.5,
    iterations=3, threshold=0.9,
)  # fmt: skip
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def dealt(sizes=(6, 10, 8)):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 3, generator=g).double(), torch.randint(0, 2, (n,), generator=g)) for n in sizes]


def start():
    return 3 * torch.randn(LINEAR.d, generator=torch.Generator().manual_seed(1)).double()


def run(clients, config, *, forget=(1,), model=LINEAR, notes=None, watch=None, **about):
    f = Federation(model, clients, **about)
    return fedora_horizontal(f, start(), Deletion.of(clients, forget), config, watch, notes)


def gradient(loss, w):
    leaf = w.clone().requires_grad_()
    value = loss(leaf)
    return float(value.detach()), torch.autograd.grad(value, leaf)[0]


def test_three_iterations_by_hand():
    """lambda <- max(0, lambda + sigma (epsilon - L_u)); w <- w - tau (grad L_r - lambda grad L_u + mu (w - w_o))."""
    clients, w_o = dealt(), start()
    x_u, _ = clients[1]
    x_r, y_r = joined({0: clients[0], 2: clients[2]})
    epsilon, price, w, told = 0.9 * math.log(2), 0.0, w_o.clone(), []
    for _ in range(3):
        score, g_u = gradient(lambda v: uncertainty_loss(x_u @ v.view(2, 3).T), w)
        _, g_r = gradient(lambda v: F.cross_entropy(x_r @ v.view(2, 3).T, y_r), w)
        price = max(0.0, price + 0.5 * (epsilon - score))
        w = w - 0.1 * (g_r - price * g_u + 0.001 * (w - w_o))
        told.append((score, price))
    heard, notes = [], {}
    ours = run(clients, WHOLE, watch=heard.append, notes=notes)
    torch.testing.assert_close(ours, w, **EXACT)
    assert [(it.score, it.dual) for it in heard[:3]] == [pytest.approx(pair, rel=1e-10) for pair in told]
    assert notes["epsilon"] == pytest.approx(epsilon)
    assert notes["iterations"] == 3
    assert price > 0.1


@pytest.mark.parametrize("dual", ["scalar", "vector"])
def test_it_does_not_matter_who_holds_what(dual):
    """Batches, samples of what is forgotten and adaptive steps included: the same rows, dealt otherwise."""
    x, y = joined(dict(enumerate(dealt((30, 40, 30)))))
    config = FedORA(dual=dual, iterations=6, batch_size=16, forget_sample=10, ratio=0.5)
    models = []
    for sizes in ((70, 30), (5, 25, 40, 30), (69, 1, 20, 10)):
        clients = list(zip(x.split(sizes), y.split(sizes), strict=True))
        gone = [i for i in range(len(sizes)) if sum(sizes[:i]) >= 70]
        models.append(run(clients, config, forget=gone))
    torch.testing.assert_close(models[1], models[0], **EXACT)
    torch.testing.assert_close(models[2], models[0], **EXACT)
    assert float((models[0] - start()).norm()) > 0.01


def test_samples_find_their_holders():
    clients = dealt((2, 3, 4))
    holders = Holders({5: clients[1], 2: clients[0], 7: clients[2]})
    assert holders.rows.tolist() == list(range(9))
    found = holders.of(torch.tensor([8, 1, 5, 0]))
    assert list(found) == [2, 7]
    assert torch.equal(found[2][0], clients[0][0][[1, 0]])
    assert torch.equal(found[7][1], clients[2][1][[3, 0]])


def test_an_answer_is_the_mean_over_all_samples_and_is_counted():
    """Two holders, six and eight samples: one loss, one gradient each; the gradient goes up if it is asked for."""
    f, w = Federation(LINEAR, dealt()), start()
    samples = {0: f.clients[0], 2: f.clients[2]}
    asked = Asked(f, w, LINEAR.loss, samples)
    assert asked.value == pytest.approx(float(LINEAR.loss(w, *joined(samples))), rel=1e-12)
    model_bytes = 8 * LINEAR.d
    assert (f.meter.rounds, f.meter.images, f.meter.bytes_down, f.meter.bytes_up) == (1, 14, 2 * model_bytes, 0)
    (g,) = asked.gradients(-3.0)
    torch.testing.assert_close(g, -3 * LINEAR.grad(w, *joined(samples)), **EXACT)
    assert (f.meter.rounds, f.meter.images, f.meter.bytes_up) == (1, 14, 2 * model_bytes)


@pytest.mark.parametrize("part", [1, 4, 8, 13, 14])
def test_an_answer_in_parts_is_the_answer(part):
    """To rounding, and counted alike; as many samples as a part are looked at as they always were."""
    answers = []
    for size in (None, part):
        f = Federation(FlatModel(nn.Linear(3, 2, bias=False), l2=0.5), dealt())
        asked = Asked(f, start(), f.model.loss, {0: f.clients[0], 2: f.clients[2]}, size)
        answers.append((asked.value, *asked.gradients(-3.0), f.meter))
    (value, g, meter), (value_too, g_too, meter_too) = answers
    assert value_too == pytest.approx(value, rel=1e-14)
    torch.testing.assert_close(g_too, g, rtol=1e-12, atol=1e-15)
    assert meter_too == meter
    assert (value, g.tolist()) == (value_too, g_too.tolist()) or part < 14


def test_in_parts_nobody_holds_more_than_a_part_of_activations():
    """Graphs are of the batch size that the net is called with; a question for the value alone has none."""
    seen = []
    f = Federation(LINEAR, dealt())

    def loss(w, x, y):
        seen.append((len(x), torch.is_grad_enabled()))
        return LINEAR.loss(w, x, y)

    asked = Asked(f, start(), loss, {0: f.clients[0], 2: f.clients[2]}, 4)
    assert seen == [(4, False), (2, False), (4, False), (4, False)]
    asked.gradients()
    assert seen[4:] == [(4, True), (2, True), (4, True), (4, True)]


def test_the_score_is_asked_for_in_parts():
    """All of client 1's ten samples by three at a time: the same model, to rounding. The others are whole."""
    models, seen = [], []
    for part in (512, 3):
        net, sizes = FlatModel(nn.Linear(3, 2, bias=False)), []
        net.module.register_forward_hook(lambda _, given, out, sizes=sizes: sizes.append(len(out)))
        models.append(run(dealt(), replace(WHOLE, part=part), model=net))
        seen.append(set(sizes[1:]))  # the first is asked how many classes there are
    torch.testing.assert_close(models[1], models[0], **EXACT)
    assert seen == [{10, 6, 8}, {3, 1, 6, 8}]


def test_the_retained_loss_has_the_models_l2():
    model = FlatModel(nn.Linear(3, 2, bias=False), l2=0.5)
    config = replace(WHOLE, iterations=1, unlearn=False, mu=0.0)
    ours, plain = run(dealt(), config, model=model), run(dealt(), config)
    torch.testing.assert_close(ours - plain, -0.1 * 0.5 * start(), **EXACT)


def test_what_it_costs():
    """Three iterations and the last score: four times client 1's ten samples, three times the fourteen that stay."""
    clients = [(x.float(), y) for x, y in dealt()]
    f = Federation(LINEAR, clients)
    fedora_horizontal(f, start().float(), Deletion.of(clients, 1), WHOLE)
    model_bytes = 4 * LINEAR.d
    assert (f.meter.rounds, f.meter.images) == (4 + 3, 4 * 10 + 3 * 14)
    assert (f.meter.bytes_down, f.meter.bytes_up) == (model_bytes * (4 + 3 * 2), model_bytes * (3 + 3 * 2))
    assert f.meter.storage == 2 * model_bytes


def test_labels_of_what_is_forgotten_are_not_used():
    clients = dealt()
    (x, y), (x_0, y_0) = clients[1], clients[0]
    ours = run(clients, WHOLE)
    assert torch.equal(run([clients[0], (x, 1 - y), clients[2]], WHOLE), ours)
    assert not torch.equal(run([(x_0, 1 - y_0), clients[1], clients[2]], WHOLE), ours)


def test_a_constraint_that_holds_already_asks_for_nothing():
    """A low threshold: the price stays zero, and it stops before the first step."""
    notes, w = {}, start()
    ours = run(dealt(), replace(WHOLE, threshold=-50.0, patience=True), notes=notes)
    assert torch.equal(ours, w)
    assert (notes["outcome"], notes["iterations"]) == ("met", 0)


def test_a_class_of_digits_is_forgotten():
    """From nearly all to nearly none of class 3, ten clients, and most of the others still known."""
    digits = load("digits")
    x, y = digits.x_train, digits.y_train
    model = build("mlp", digits)
    clients = [(x[rows], y[rows]) for rows in iid(len(y), 10, seed=0)]
    f = Federation(model, clients, ClientOpt(lr=0.1, epochs=5))
    trained = Trained(f, fedavg(f, model.init(0), 10), 10)
    unlearned, _, notes = unlearn("FedORA horizontal", trained, "class-3")
    gone = y == 3
    assert accuracy(model, trained.model, x[gone], y[gone]) > 90
    assert accuracy(model, unlearned, x[gone], y[gone]) < 10
    assert accuracy(model, unlearned, x[~gone], y[~gone]) > 80
    assert notes["score"] > -1


def test_what_cannot_be_is_named():
    clients = dealt()
    with pytest.raises(UnsupportedTask, match="not about task 'regression'"):
        run(clients, WHOLE, model=FlatModel(nn.Linear(3, 1), task="regression"))
    with pytest.raises(InfeasibleConstraint, match="threshold must be a share of the largest score"):
        run(clients, replace(WHOLE, threshold=1.1))
    with pytest.raises(NumericalFailure, match="the parameters of the model became NaN or infinite in iteration 0"):
        run([(x * float("nan"), y) for x, y in clients], WHOLE)
