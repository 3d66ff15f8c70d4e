"""Local training: the plain loop, all clients together, and the optimisers against torch's own."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedModel
from fu_core.federation import federation, together
from fu_core.federation.augment import augment, augment_many
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, batches, train_client
from fu_core.federation.meter import Meter
from fu_core.federation.optim import FlatOptimiser
from fu_core.federation.together import Pool, dense_gradients, prepared, train_round
from fu_core.models import flat
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.linear import mlp, unit_softmax
from fu_core.streams import stream


@pytest.fixture
def images():
    """Three clients of different size, raw uint8 images, so that the last batches are partial, with a perceptron."""
    g = torch.Generator().manual_seed(0)
    clients = [
        (torch.randint(0, 256, (n, 1, 8, 8), generator=g, dtype=torch.uint8), torch.randint(0, 3, (n,), generator=g))
        for n in (23, 7, 40)
    ]
    scale = Standardize(torch.tensor([0.5]), torch.tensor([0.25]), 255)
    return Federation(FlatModel(nn.Sequential(scale, mlp(64, 3, (8,)))), clients, seed=3)


def check_same_as_the_loop(how, f, w, ids=None):
    """The same updates to rounding, which are not nothing, and the same counts."""
    ways = f.having(how="loop", meter=Meter()), f.having(how=how, meter=Meter())
    loop, other = (train_round(way, w, 2, ids) for way in ways)
    torch.testing.assert_close(other, loop, rtol=1e-9, atol=1e-12)
    assert loop.norm() > 0.01
    assert ways[0].meter == ways[1].meter
    assert ways[0].meter.images > 0


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_optimisers_equal_torch(kind):
    g = torch.Generator().manual_seed(1)
    w = torch.randn(6, generator=g, dtype=torch.float64)
    theirs_w = nn.Parameter(w.clone())
    if kind == "sgd":
        theirs = torch.optim.SGD([theirs_w], lr=0.05, momentum=0.9, weight_decay=0.01)
    else:
        theirs = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]([theirs_w], lr=0.05, weight_decay=0.01)
    ours = FlatOptimiser(kind, lr=0.05, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        gradient = torch.randn(6, generator=g, dtype=torch.float64)
        theirs_w.grad = gradient.clone()
        theirs.step()
        ours.step(w, gradient)
    torch.testing.assert_close(w, theirs_w.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("opt", [
    ClientOpt(lr=0.1, epochs=2, batch_size=8, momentum=0.9, weight_decay=1e-3),
    ClientOpt("adamw", lr=0.01, batch_size=8, weight_decay=0.1),
    ClientOpt("adam", lr=0.01, batch_size=8, epochs=0.5, augmentation="rotate_flip_crop"),
])  # fmt: skip
def test_vmap_equals_loop(images, opt):
    check_same_as_the_loop("vmap", images.having(local=opt), images.model.init(0, torch.float64))


def test_many_clients_are_trained_in_parts_and_nothing_changes(images, monkeypatch):
    f, w = images.having(local=ClientOpt(batch_size=7), how="vmap"), images.model.init(0)
    for start in (w, w + torch.arange(3)[:, None] / 100):  # one for all, or one each
        monkeypatch.setattr(together, "TOGETHER", 100)
        whole = train_round(f, start, 2)
        monkeypatch.setattr(together, "TOGETHER", 2)
        parts = train_round(f, start, 2)
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-7)
        assert whole.norm() > 0.01


def test_vmap_equals_loop_with_an_l2_term(images):
    f = images.having(local=ClientOpt(lr=0.1, batch_size=8))
    penalised = f.having(model=FlatModel(f.model.module, l2=0.3))
    w = f.model.init(0, torch.float64)
    loop, matrix, free = (
        train_round(one.having(how=how), w, 1) for one, how in ((penalised, "loop"), (penalised, "vmap"), (f, "vmap"))
    )
    torch.testing.assert_close(matrix, loop, rtol=1e-9, atol=1e-12)
    assert (matrix - free).norm() > 0.01


@pytest.fixture
def linear(images):
    """The same clients; softmax regression on features of length 1, which have to be computed first."""
    return images.having(model=FlatModel(nn.Sequential(images.model.module[0], unit_softmax(64, 3))))


@pytest.mark.parametrize("opt", [
    ClientOpt(lr=0.5, epochs=2, batch_size=8, momentum=0.9, weight_decay=1e-3),
    ClientOpt("adamw", lr=0.05, batch_size=8, weight_decay=0.1),
    ClientOpt(lr=0.5, batch_size=100),
])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 5)])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_written_out_backpropagation_equals_the_loop(linear, opt, bias, hidden, l2, task):
    widths = (64, *hidden)
    dense = [part for fan in pairwise(widths) for part in (nn.Linear(*fan, bias=bias), nn.ReLU())]
    layers = (
        *linear.model.module[1][:-1],
        *dense,
        nn.Linear(widths[-1], 3 if task == "classification" else 1, bias=bias),
    )
    model = FlatModel(nn.Sequential(*layers), task, l2=l2)
    clients = {
        i: (x.double() / 255, y if task == "classification" else y.double()) for i, (x, y) in linear.clients.items()
    }
    W = torch.stack([model.init(k, torch.float64) for k in range(3)])
    check_same_as_the_loop("dense", linear.having(model=model, clients=clients, local=opt), W, ids=[1, 2, 0])


def test_dense_models_are_trained_by_formula_unless_somebody_asks_otherwise(linear, monkeypatch):
    asked = []
    monkeypatch.setattr(together, "dense_gradients", lambda *args: asked.append(1) or dense_gradients(*args))
    for how, opt in (
        ("auto", ClientOpt()),
        ("vmap", ClientOpt()),
        ("auto", ClientOpt(augmentation="rotate_flip_crop")),
    ):
        train_round(linear.having(how=how, local=opt), linear.model.init(0), 1)
        assert asked == [1, 1]  # two batches of the largest client, the first time only


@pytest.mark.parametrize("why", ["tanh", "convolution", "augmentation", "tied", "task", "several numbers"])
def test_dense_is_refused_where_it_would_be_wrong(linear, why):
    f, tied = linear.having(how="dense"), nn.Linear(64, 64)
    if why == "augmentation":
        f = f.having(local=ClientOpt(augmentation="rotate_flip_crop"))
    else:
        f = f.having(
            model={
                "tanh": FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 3))),
                "convolution": FlatModel(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(36, 3))),
                "tied": FlatModel(nn.Sequential(nn.Flatten(), tied, nn.ReLU(), tied, nn.ReLU(), nn.Linear(64, 3))),
                "task": FlatModel(f.model.module, task="segmentation"),
                "several numbers": FlatModel(f.model.module, task="regression"),
            }[why]
        )
    with pytest.raises(UnsupportedModel, match="how='dense' needs classification, or regression of one number"):
        train_round(f, f.model.init(0), 1)


@pytest.mark.parametrize(("outputs", "targets"), [(1, (6,)), (1, (6, 1)), (2, (6, 2))], ids=["row", "column", "two"])
def test_targets_of_a_regression_have_any_shape(outputs, targets):
    """A client alone: one after the other is then how clients are trained that no formula is written for."""
    g = torch.Generator().manual_seed(0)
    client = tuple(torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((6, 4), targets))
    f = Federation(FlatModel(nn.Linear(4, outputs), "regression"), [client], ClientOpt(batch_size=4))
    w = f.model.init(0, torch.float64)
    torch.testing.assert_close(train_round(f, w, 1), train_round(f.having(how="loop"), w, 1), rtol=1e-9, atol=1e-12)


def test_an_unknown_way_is_refused(images):
    with pytest.raises(ValueError, match="how must be one of 'auto', 'loop', 'vmap', 'dense', got 'vmapp'"):
        train_round(images.having(how="vmapp"), images.model.init(0), 1)


def test_prepared_rounds_are_the_same_rounds_to_the_bit(linear, monkeypatch):
    w, f = linear.model.init(0), linear.having(local=ClientOpt(lr=0.5, batch_size=8))
    ready = prepared(f, w)
    assert isinstance(ready.clients, Pool)
    assert ready.clients.x.dtype == w.dtype
    assert ready.meter is f.meter
    assert torch.equal(train_round(ready, w, 4, [2, 0]), train_round(f, w, 4, [2, 0]))
    matrix = f.having(how="vmap")
    assert prepared(matrix, w) is matrix
    monkeypatch.setattr(flat, "MOST_FEATURES", 70 * 64 - 1)
    assert prepared(f, w) is f


def test_a_pool_is_a_mapping_of_the_same_clients(images):
    pool = Pool.of({7: images.clients[0], 3: images.clients[1]})
    assert list(pool) == [7, 3]
    for i, client in ((7, images.clients[0]), (3, images.clients[1])):
        assert torch.equal(pool[i][0], client[0])
        assert torch.equal(pool[i][1], client[1])
    assert Pool.of(pool) is pool


def test_vmap_equals_loop_for_convolutions(images):
    scale = Standardize(torch.tensor([0.5]), torch.tensor([0.25]), 255)
    f = images.having(
        model=FlatModel(nn.Sequential(scale, simple_cnn(1, 8, 3))), local=ClientOpt(lr=0.05, batch_size=16)
    )
    w = f.model.init(0, torch.float64)
    loop, matrix = (train_round(f.having(how=how), w, 1, [2, 0]) for how in ("loop", "vmap"))
    torch.testing.assert_close(matrix, loop, rtol=1e-8, atol=1e-11)


def test_one_client_with_E_epochs_is_plain_sgd(images):
    f = images.having(local=ClientOpt(lr=0.1, epochs=2, batch_size=8))
    module = nn.Sequential(*f.model.module)
    w = f.model.init(0)
    module.load_state_dict(f.model.views(w), strict=False)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = f.clients[0]
    for b in batches(len(y), f.local, seed=f.seed, round=1, client=0):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x[b]), y[b]).backward()
        sgd.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(train_client(f, w, 0, 1), theirs, rtol=1e-5, atol=1e-6)


class Shared(nn.Module):
    """Logits with the weight u + v: both have the same gradient, which autograd hands out as one tensor; t has none."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v, self.t = (nn.Parameter(torch.full((3, 64), value)) for value in (0.5, -0.2, 1.0))

    def forward(self, x):
        return (x.flatten(1) / 255) @ (self.u + self.v).T


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_parameters_that_share_a_gradient_decay_by_themselves(images, how, l2):
    local = ClientOpt(lr=0.1, epochs=2, batch_size=8, weight_decay=0.0 if l2 else 0.3)
    f = images.having(model=FlatModel(Shared(), l2=l2), local=local, how=how)
    w = torch.cat([p.detach().reshape(-1) for p in Shared().parameters()])
    module = Shared()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=l2 or 0.3)
    x, y = f.clients[0]
    for b in batches(len(y), f.local, seed=f.seed, round=1, client=0):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x[b]), y[b]).backward()
        module.t.grad = torch.zeros_like(module.t)  # torch would pass over it, decay included
        sgd.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(w + train_round(f, w, 1, [0, 1])[0], theirs, rtol=1e-5, atol=1e-6)


def test_training_one_client_leaves_server_and_sibling_alone(images):
    f, w = images.having(how="loop"), images.model.init(0)
    before, data = w.clone(), f.clients[1][0].clone()
    alone, together = train_round(f, w, 1, [1]), train_round(f, w, 1)
    assert torch.equal(w, before)
    assert torch.equal(f.clients[1][0], data)
    torch.testing.assert_close(together[1], alone[0], rtol=0, atol=0)


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_everybody_takes_part_in_order_unless_somebody_is_named(images, how):
    f, w = (
        images.having(how=how, clients={i: images.clients[k] for i, k in ((5, 0), (1, 1), (9, 2))}),
        images.model.init(0),
    )
    everybody = train_round(f, w, 1)
    torch.testing.assert_close(everybody, train_round(f, w, 1, [1, 5, 9]), rtol=0, atol=0)
    torch.testing.assert_close(everybody[1], train_client(f, w, 5, 1) - w, rtol=1e-5, atol=1e-7)
    assert f.meter.bytes == 2 * 2 * 3 * 4 * f.model.d  # two rounds, three clients, up and down, float32


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_equal_starts_are_one_start_to_the_bit(images, how):
    f, w = images.having(local=ClientOpt(batch_size=8), how=how), images.model.init(0)
    assert torch.equal(train_round(f, w.repeat(3, 1), 1, [2, 0, 1]), train_round(f, w, 1, [2, 0, 1]))


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_each_row_of_starts_belongs_to_its_client(images, how):
    """Updates are relative to each client's own start, whatever the order of the ids; no server is counted."""
    f = images.having(local=ClientOpt(lr=0.1, batch_size=8, momentum=0.9), how=how)
    W = torch.stack([f.model.init(k, torch.float64) for k in range(3)])
    before, deltas = W.clone(), train_round(f, W, 1, [1, 2, 0])
    for i, w, delta in zip([1, 2, 0], W, deltas, strict=True):
        alone = train_client(f.having(meter=Meter()), w, i, 1)
        torch.testing.assert_close(w + delta, alone, rtol=1e-9, atol=1e-12)
    assert torch.equal(W, before)
    assert (f.meter.rounds, f.meter.bytes, f.meter.images) == (0, 0, 70)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_start_per_client_or_one_for_all(images, rows):
    d, W = images.model.d, images.model.init(0).repeat(rows, 1)
    with pytest.raises(ValueError, match=rf"w must have shape .*\(3, {d}\).*, got \({rows}, {d}\)"):
        train_round(images, W, 1)
    with pytest.raises(ValueError, match=rf"w must have shape \({d},\)"):
        train_round(images, W[0, 1:], 1)


@pytest.mark.parametrize(("epochs", "expected"), [(1, 4), (2, 8), (0.5, 2), (0.01, 1)])
def test_number_of_batches(epochs, expected):
    """23 samples in batches of 6: three full ones and one of 5."""
    plan = batches(23, ClientOpt(epochs=epochs, batch_size=6), seed=0, round=1, client=0)
    assert len(plan) == expected
    if epochs == 1:
        assert sorted(torch.cat(plan).tolist()) == list(range(23))


def test_streams_do_not_depend_on_who_else_takes_part():
    opt = ClientOpt(batch_size=4)
    first = batches(10, opt, seed=0, round=1, client=3)
    assert all(torch.equal(a, b) for a, b in zip(first, batches(10, opt, seed=0, round=1, client=3), strict=True))
    assert not torch.equal(torch.cat(first), torch.cat(batches(10, opt, seed=0, round=1, client=4)))
    assert not torch.equal(torch.cat(first), torch.cat(batches(10, opt, seed=0, round=2, client=3)))


def test_learning_rate_decays_once_per_round():
    opt = ClientOpt(lr=0.1, lr_decay=0.998)
    assert opt.fresh(1).lr == 0.1
    assert opt.fresh(201).lr == pytest.approx(0.0670, abs=5e-5)  # PUF's unlearning round


def test_divergence_names_the_client(images):
    x, y = images.clients[1]
    f = images.having(clients=[images.clients[0], (x.float() * float("nan"), y)])
    with pytest.raises(NumericalFailure, match="client 1, round 4"):
        train_round(f, f.model.init(0), 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr must be a finite number > 0, got 0.0"),
        ({"epochs": -1}, "epochs must be"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"optimiser": "sdg"}, "did you mean 'sgd'"),
        ({"augmentation": "flip"}, "augmentation must be one of"),
        ({"momentum": -0.1}, "momentum"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        ClientOpt(**change)


def test_augmentation_keeps_shape_dtype_and_is_seeded():
    x = torch.randint(0, 256, (5, 3, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    once, again, other = (augment(x, "rotate_flip_crop", stream(s, "augment")) for s in (0, 0, 1))
    assert once.shape == x.shape
    assert once.dtype == x.dtype
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert augment(x, "none", stream(0, "augment")) is x


@pytest.mark.parametrize("kind", ["none", "flip_crop", "rotate_flip_crop"])
def test_many_batches_are_augmented_as_each_by_itself(kind: str):
    """One call for all clients of a step: with the draws and the mean pixel of each, whatever pads the shorter ones."""
    x, lengths = torch.randint(256, (3, 8, 3, 8, 6), dtype=torch.uint8, generator=stream(0, "x")), [8, 5, 1]
    together = augment_many(x, lengths, kind, [stream(0, "augment", k) for k in range(3)])
    assert together.shape == x.shape
    assert together.dtype == x.dtype
    for k, n in enumerate(lengths):
        assert torch.equal(together[k, :n], augment(x[k, :n], kind, stream(0, "augment", k)))


def test_augmentation_of_many_refuses_what_is_no_images():
    draws = [stream(0, "augment", k) for k in range(2)]
    with pytest.raises(ValueError, match="kind must be one of"):
        augment_many(torch.zeros(2, 4, 3, 8, 8), [4, 4], "rotate", draws)
    with pytest.raises(InvalidRequest, match=r"is for images \(C, H, W\), got samples of shape \(7,\)"):
        augment_many(torch.zeros(2, 4, 7), [4, 4], "flip_crop", draws)


def test_flip_crop_moves_by_whole_pixels():
    """Every output image is a mirrored or plain copy of the input, shifted by at most two pixels."""
    x = torch.randint(1, 256, (20, 1, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    moved = augment(x, "flip_crop", stream(0, "augment"))
    for before, after in zip(x, moved, strict=True):
        inner = after[0, 2:-2, 2:-2]
        windows = [
            image[0, 2 + dy : 6 + dy, 2 + dx : 6 + dx]
            for image in (before, before.flip(-1))
            for dy in range(-2, 3)
            for dx in range(-2, 3)
        ]
        assert any(torch.allclose(inner, window, atol=1e-3) for window in windows)


def test_epochs_may_not_be_infinite():
    with pytest.raises(ValueError, match="epochs"):
        ClientOpt(epochs=math.inf)


def test_a_client_without_samples_is_named():
    with pytest.raises(InvalidRequest, match="client 3 holds no samples to train on \\(round 7\\)"):
        batches(0, ClientOpt(), seed=0, round=7, client=3)


def test_a_round_one_by_one_looks_at_every_client_once_at_most(images, monkeypatch):
    f, seen = images.having(how="loop"), []
    monkeypatch.setattr(federation, "_by_id", lambda clients: seen.append(len(clients)) or clients)
    train_round(f, f.model.init(0), 1)
    assert not seen  # nobody's training makes, and thereby checks, the whole federation again


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_bf16_rounds_the_layers_and_keeps_parameters_exact(images, how, monkeypatch):
    f, w = images.having(local=ClientOpt(batch_size=8), how=how), images.model.init(0)
    exact = train_round(f, w, 1)
    monkeypatch.setenv("FU_PRECISION", "bf16")
    rounded = train_round(f, w, 1)
    assert rounded.dtype == torch.float32
    assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.05


def test_dense_models_know_no_bf16(linear, monkeypatch):
    exact = train_round(linear, linear.model.init(0), 1)
    monkeypatch.setenv("FU_PRECISION", "bf16")
    assert torch.equal(train_round(linear, linear.model.init(0), 1), exact)


@pytest.mark.parametrize("field", ["momentum", "weight_decay"])
@pytest.mark.parametrize("given", [-0.1, math.nan, math.inf, "0.9"])
def test_what_a_client_cannot_train_with_is_named(field, given):
    with pytest.raises(ValueError, match=f"^{field} must be a finite number >= 0, got {given!r}$"):
        ClientOpt(**{field: given})
