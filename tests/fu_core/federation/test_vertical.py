"""Vertical learning against the same net written as one graph, and a watch over what crosses between parties."""

import copy
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.overrides import TorchFunctionMode

from fu_core.data import Dataset, load
from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedModel, UnsupportedTask
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.federation.vertical import (
    Boundary,
    EmbeddingNoise,
    Exchange,
    Optimisers,
    Parties,
    PassiveParty,
    VerticalFederation,
    deal,
    epoch_batches,
    forward,
    outputs,
    predict,
    split_features,
    train,
)
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.partition import vertical
from fu_core.request import Deletion, Request
from fu_core.streams import stream
from fu_core.unlearning import fedora as fedora_module
from fu_core.unlearning import fedora_steps
from fu_core.unlearning.fedora import Calibrated, FedORA, VectorDual, fedora, threshold_of_unseen, uncertainty_loss
from fu_core.unlearning.method import Trained, unlearn
from tests.verticals import CLASSES, WIDTHS, close, federated, forgetting, same, tables, toy

N = 24
ROWS = torch.arange(N)
PLAIN = ClientOpt(lr=0.1, batch_size=7)
MOMENTUM = ClientOpt(lr=0.05, lr_decay=0.8, momentum=0.9, weight_decay=5e-4, batch_size=7)
NEAR = {"rtol": 1e-6, "atol": 1e-12}


def images(n=12, shape=(3, 8, 12), seed=0):
    g = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, high, size, generator=g) for high, size in ((256, (n + 5, *shape)), (4, (n + 5,))))
    x = x.to(torch.uint8)
    return Dataset("toy", x[:n], y[:n], x[n:], y[n:], "generated", known_classes=4)


def table(n=12, p=7):
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(n + 5, p, generator=g) * torch.arange(1, p + 1) + 3, torch.randint(0, 4, (n + 5,), generator=g)
    return Dataset("toy table", x[:n], y[:n], x[n:], y[n:], "generated", known_classes=4)


def dealt(dataset, bottom, parties=2):
    """Dealt out, in float64."""
    given, _ = deal(dataset, bottom=bottom, parties=parties, seed=3)
    return given.having([w_k.double() for w_k in given.w])


class Composed(nn.Module):
    """All parties' nets as one torch module: what vertical learning must equal."""

    def __init__(self, parties):
        super().__init__()
        nets = [party.model for party in (*parties.passive, parties.active)]
        self.parts = nn.ModuleList(copy.deepcopy(net.module).to(parties.active.w.dtype) for net in nets)
        for part, w_k in zip(self.parts, parties.w, strict=True):
            vector_to_parameters(w_k.clone(), part.parameters())

    def forward(self, x):
        *bottoms, top = self.parts
        return top(torch.cat([net(x_k) for net, x_k in zip(bottoms, x, strict=True)], dim=1))

    def vectors(self, of=lambda parameter: parameter.detach()):
        return [parameters_to_vector([of(parameter) for parameter in part.parameters()]) for part in self.parts]


def features(parties, rows=slice(None)):
    return [party.x[rows] for party in parties.passive]


# --- one exchange is one graph ---------------------------------------------------------------------------------------

CASES = {
    "tables": lambda: tables(torch.float64),
    "a deeper top": lambda: tables(torch.float64, top=mlp(sum(WIDTHS), CLASSES, (4,))),
    "an MLP on each half of a table": lambda: dealt(table(), "mlp"),
    "convolutions on each half of an image": lambda: dealt(images(), "cnn"),
    "three stripes of an image": lambda: dealt(images(), "cnn", parties=3),
}
LOSSES = {"cross-entropy": F.cross_entropy, "forgetting score": lambda z, y: uncertainty_loss(z, weight=2.0)}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_equal_those_of_the_composed_model(case, loss):
    parties = case()
    rows = torch.tensor([3, 0, 7, 11, 8])
    exchange = forward(parties, parties.w, rows, Boundary())
    gradients = exchange.backward(loss(exchange.logits, exchange.y))
    whole = Composed(parties)
    z = whole(features(parties, rows))
    loss(z, parties.active.y[rows]).backward()
    close([exchange.logits.detach()], [z.detach()], **NEAR)
    close(gradients, whole.vectors(lambda parameter: parameter.grad), **NEAR)
    assert all(float(g_k.norm()) > 1e-3 for g_k in gradients)


class Blocks(nn.Module):
    """One party's bottom that is several: each sees its own columns, and their embeddings stand side by side."""

    def __init__(self, nets, widths):
        super().__init__()
        self.nets, self.widths = nn.ModuleList(nets), widths

    def forward(self, x):
        return torch.cat([net(part) for net, part in zip(self.nets, x.split(self.widths, dim=1), strict=True)], dim=1)


def as_one_party(parties):
    """The same nets and columns in one passive party's hands."""
    widths = [party.x.shape[1] for party in parties.passive]
    bottom = FlatModel(Blocks([copy.deepcopy(party.model.module) for party in parties.passive], widths))
    x = torch.cat([party.x for party in parties.passive], dim=1)
    return Parties((PassiveParty(bottom, torch.cat([party.w for party in parties.passive]), x),), parties.active)


SPLITS = {"2": (4, 4), "4": (2, 2, 2, 2), "8, one column each": (1,) * 8, "little and much": (1, 7)}


@pytest.mark.parametrize("columns", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("what", ["training", "FedORA", "FedORA, sampled, in parts"])
def test_however_many_parties_hold_the_columns_it_is_what_one_with_all_of_them_would_do(columns, what):
    """Fixed steps: adaptive ones are each party's own. A party with a single column takes part like any other."""
    split = toy(columns, (3,) * len(columns), n=60)
    whole = as_one_party(split)

    def done(parties):
        f = federated(parties, 4)
        if what == "training":
            return train(f, torch.arange(50), Optimisers([MOMENTUM]), 3)
        how = {"tau": 0.1, "sigma": 0.5, "threshold": 1.0, "adaptive": False, "iterations": 4, "batch_size": 8}
        how |= {"forget_sample": 7, "part": 3} if "sampled" in what else {"forget_sample": 0}
        return fedora(f, forgetting(f, torch.arange(12)), FedORA(**how))

    ours, reference = done(split), done(whole)
    assert not torch.equal(ours.passive[0].w, split.passive[0].w)
    close([torch.cat(ours.w)], [torch.cat(reference.w)], rtol=1e-9, atol=1e-12)
    assert len(ours) == len(columns) + 1


@pytest.mark.parametrize("parties", [2, 4, 8])
def test_a_table_is_dealt_out_to_as_many_parties_as_it_has_columns(parties):
    given, test = deal(table(p=8), bottom="mlp", seed=0, parties=parties)
    assert [party.x.shape[1] for party in given.passive] == [8 // parties] * parties
    assert predict(given, test).shape == (5, 4)


@pytest.mark.parametrize(("parties", "widths"), [(4, [7] * 4), (8, [4, 4, 4, 4, 3, 3, 3, 3]), (28, [1] * 28)])
def test_narrow_stripes_of_an_image_have_a_net_of_their_own(parties, widths):
    """MNIST's 28 columns: under four are too few to be halved twice, and are not."""
    given, _ = deal(images(shape=(1, 28, 28)), bottom="cnn", seed=0, parties=parties)
    assert [party.x.shape[-1] for party in given.passive] == widths
    exchange = forward(given, given.w, torch.arange(5), Boundary())
    gradients = exchange.backward(F.cross_entropy(exchange.logits, exchange.y))
    assert all(float(g_k.norm()) > 0 for g_k in gradients)
    assert exchange.logits.shape == (5, 4)


def test_predictions_equal_those_of_the_composed_model():
    parties = tables(torch.float64)
    z = Composed(parties)(features(parties)).detach()
    close([predict(parties, features(parties)), predict(parties, features(parties), size=5)], [z, z], **NEAR)
    rows = torch.tensor([5, 2])
    close([outputs(parties, rows)], [z[rows]], **NEAR)


@pytest.mark.parametrize("opt", [MOMENTUM, replace(MOMENTUM, optimiser="adam", momentum=0.0)], ids=["momentum", "adam"])
def test_joint_training_is_torchs_training_of_the_composed_model(opt):
    """Momentum lives on from epoch to epoch, rates decay by the epoch, the last batch of an epoch is a small one."""
    parties = tables(torch.float64)
    trained = train(federated(parties, 4), ROWS[2:], Optimisers([opt]), 3)
    whole = Composed(parties)
    how = {"lr": opt.lr, "weight_decay": opt.weight_decay}
    if opt.optimiser == "adam":
        reference = torch.optim.Adam(whole.parameters(), **how)
    else:
        reference = torch.optim.SGD(whole.parameters(), momentum=opt.momentum, **how)
    for epoch in (1, 2, 3):
        reference.param_groups[0]["lr"] = opt.lr * opt.lr_decay ** (epoch - 1)
        for b in epoch_batches(ROWS[2:], 7, seed=4, epoch=epoch):
            reference.zero_grad()
            F.cross_entropy(whole(features(parties, b)), parties.active.y[b]).backward()
            reference.step()
    close(trained.w, whole.vectors(), rtol=1e-9, atol=1e-12)


def test_an_epoch_visits_every_row_once_and_in_an_order_of_its_own():
    rows = torch.tensor([4, 9, 1, 20, 17])
    first, second = (torch.cat(epoch_batches(rows, 2, seed=0, epoch=epoch)) for epoch in (1, 2))
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(rows.tolist())
    assert first.tolist() != second.tolist()
    assert [len(b) for b in epoch_batches(rows, 2, seed=0, epoch=1)] == [2, 2, 1]


def test_the_same_seed_trains_the_same_bits_and_leaves_what_was_given():
    parties = tables()
    before = copy.deepcopy([*parties.w, *features(parties), parties.active.y])
    once, again, other = (train(federated(parties, seed), ROWS, Optimisers([PLAIN]), 2) for seed in (0, 0, 1))
    assert same(once, again)
    assert not same(once, other)
    for now, then in zip([*parties.w, *features(parties), parties.active.y], before, strict=True):
        assert torch.equal(now, then)
    assert not any(torch.equal(a, b) for a, b in zip(once.w, parties.w, strict=True))


# --- optimisers ------------------------------------------------------------------------------------------------------

ADAM = replace(MOMENTUM, optimiser="adam", lr=0.01, momentum=0.0)
EVERYBODYS = {"momentum": [MOMENTUM], "adam": [ADAM], "each their own": [MOMENTUM, ADAM, PLAIN]}


@pytest.mark.parametrize("opts", EVERYBODYS.values(), ids=EVERYBODYS)
def test_training_resumed_midway_gives_the_bits_of_an_uninterrupted_run(opts):
    parties, kept = tables(), {}
    optimisers = Optimisers(opts)

    def checkpoint(epoch, w):
        kept[epoch] = copy.deepcopy((w, optimisers.tensors(), optimisers.states[0].steps))

    whole = train(federated(parties), ROWS, optimisers, 5, after_epoch=checkpoint)
    assert list(kept) == [1, 2, 3, 4, 5]
    w, tensors, steps = kept[2]
    resumed = Optimisers(opts)
    resumed.restore(tensors, steps, len(parties))
    f = federated(parties.having(w))
    assert same(train(f, ROWS, resumed, 3, first_epoch=3), whole)
    assert not same(train(f, ROWS, Optimisers(opts), 3, first_epoch=3), whole)  # nothing restored


def test_a_party_with_an_optimiser_of_its_own_is_the_only_one_to_use_it():
    """One step with everything: party 1 goes by Adam, whose first step is lr g / (|g| + eps)."""
    parties = tables(torch.float64)
    everybody = ClientOpt(lr=0.1, batch_size=N)
    opts = [everybody, ClientOpt("adam", lr=0.02, batch_size=N), replace(everybody, lr=0.3)]
    exchange = forward(parties, parties.w, ROWS, Boundary())
    g = exchange.backward(F.cross_entropy(exchange.logits, exchange.y))
    steps = [0.1 * g[0], 0.02 * g[1] / (g[1].abs() + 1e-8), 0.3 * g[2]]
    trained = train(federated(parties), ROWS, Optimisers(opts), 1)
    close(trained.w, [w_k - step for w_k, step in zip(parties.w, steps, strict=True)], rtol=1e-9, atol=1e-12)


# --- the federation as requests see it -------------------------------------------------------------------------------


def test_a_deletion_holds_the_rows_in_order():
    f = federated(tables())
    gone = torch.tensor([20, 3, 7])
    request = Deletion.of(f.clients, {0: gone})
    assert request.forget[0].tolist() == [3, 7, 20]
    assert request.retain[0].tolist() == [row for row in range(N) if row not in (3, 7, 20)]
    assert torch.equal(request.forget[1], f.parties.active.y[[3, 7, 20]])
    assert f.having(seed=3).boundary is f.boundary  # what is derived counts on


def test_a_request_for_nothing_for_everything_or_for_rows_that_are_not_there_is_refused():
    clients = federated(tables()).clients
    for rows, message in (
        (ROWS[:0], "client 0 but none of its samples"),
        (ROWS, "forget leaves no data at all"),
        (torch.tensor([24, 2]), r"indices 0\.\.23 of client 0"),
        (torch.tensor([7, -1]), r"indices 0\.\.23 of client 0"),
        (torch.tensor([7, 7]), "names a sample of client 0 twice"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            Deletion.of(clients, {0: rows})


# --- errors ----------------------------------------------------------------------------------------------------------


def test_errors_say_what_is_wrong():
    parties = tables()

    def run(opts, rows=ROWS):
        return train(federated(parties), rows, Optimisers(opts), 1)

    with pytest.raises(InvalidRequest, match="rows names no samples"):
        run([PLAIN], ROWS[:0])
    with pytest.raises(ValueError, match=r"opts must be one for all or one per party \(3\), got 2"):
        run([PLAIN, PLAIN])
    with pytest.raises(ValueError, match=r"batch_size must be the same at every party, got \[7, 7, 8\]"):
        run([PLAIN, PLAIN, replace(PLAIN, batch_size=8)])
    with pytest.raises(InvalidRequest, match="passive party 1 holds 23 samples, the active party 24: align first"):
        Parties((parties.passive[0], replace(parties.passive[1], x=parties.passive[1].x[1:])), parties.active)
    with pytest.raises(InvalidRequest, match="at least one party that holds features, got none"):
        Parties((), parties.active)
    with pytest.raises(InvalidRequest, match="x must have one tensor per passive party, 2, got 1"):
        predict(parties, features(parties)[:1])
    x, other = features(parties)
    for size in (5, 1000):
        with pytest.raises(
            InvalidRequest, match=r"x must hold the same samples for every passive party, got \[24, 9\]"
        ):
            predict(parties, [x, other[:9]], size=size)


@pytest.mark.parametrize(
    "rows", [[4, 0, 9], np.array([4, 0, 9]), torch.tensor([4, 0, 9], dtype=torch.int32)], ids=["list", "numpy", "int32"]
)
def test_rows_may_come_from_elsewhere(rows):
    f = federated(tables())
    expected = train(f, torch.tensor([4, 0, 9]), Optimisers([PLAIN]), 2)
    assert same(train(f, rows, Optimisers([PLAIN]), 2), expected)


@pytest.mark.parametrize("batch_size", [4, 100])
def test_a_mask_stands_for_the_rows_it_marks(batch_size):
    """As an index it would choose a batch by its own order, of whatever samples, without a word."""
    f, opt = federated(tables()), ClientOpt(lr=0.1, batch_size=batch_size)
    mask = (ROWS >= 5) & (ROWS < 16)
    assert same(train(f, mask, Optimisers([opt]), 2), train(f, ROWS[5:16], Optimisers([opt]), 2))


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        (torch.tensor([0, 24]), "24"),
        (torch.tensor([3, -1]), "-1"),
        (torch.tensor([0.0, 1.0]), r"torch.float32 \(2,\)"),
        (ROWS.view(4, 6), r"torch.int64 \(4, 6\)"),
        (torch.tensor(3), r"torch.int64 \(\)"),
        (torch.ones(23, dtype=torch.bool), r"a mask \(23,\)"),
        (torch.ones(24, dtype=torch.uint8), r"torch.uint8 \(24,\)"),
        ("all", "'all'"),
        (None, "None"),
    ],
)
def test_rows_that_are_none_are_refused(rows, given):
    allowed = r"rows must be row numbers 0 to 23, 1-D and of integers, or a mask \(24,\)"
    with pytest.raises(InvalidRequest, match=f"{allowed}, got {given}$"):
        train(federated(tables()), rows, Optimisers([PLAIN]), 1)


def test_no_rows_are_refused_in_every_form():
    for rows in ([], ROWS[:0], torch.zeros(N, dtype=torch.bool)):
        with pytest.raises(InvalidRequest, match="rows names no samples: there is nothing to train on"):
            train(federated(tables()), rows, Optimisers([PLAIN]), 1)


def test_epochs_are_a_whole_number():
    f = federated(tables(), local=replace(PLAIN, epochs=2.0))
    assert same(train(f, ROWS, f.optimisers(), f.local.epochs), train(f, ROWS, f.optimisers(), 2))
    assert same(train(f, ROWS, f.optimisers(), np.int64(2)), train(f, ROWS, f.optimisers(), 2))
    assert same(train(f, ROWS, f.optimisers(), 0), f.parties)
    for epochs in (0.5, -1, float("inf"), float("nan"), "2", True, None):
        with pytest.raises(ValueError, match=f"epochs must be a whole number >= 0, got {epochs!r}"):
            train(f, ROWS, f.optimisers(), epochs)


@pytest.mark.parametrize(("culprit", "name"), [(0, "passive party 0"), (1, "passive party 1"), (2, "the active party")])
def test_parameters_that_are_no_numbers_name_their_party_and_epoch(culprit, name):
    """One step whose weight decay alone overflows at one party."""
    opts = [ClientOpt(lr=0.1, batch_size=N)] * 3
    opts[culprit] = ClientOpt(lr=1e30, weight_decay=1e30, batch_size=N)
    with pytest.raises(NumericalFailure, match=f"parameters of {name} became NaN or infinite in epoch 4"):
        train(federated(tables()), ROWS, Optimisers(opts), 1, first_epoch=4)


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_an_epoch_sends_every_embedding_and_its_gradient_once():
    """2 n sum e_k floats of 4 bytes each; a prediction sends the embeddings alone."""
    parties = tables()
    f = federated(parties, local=PLAIN)
    train(f, ROWS[:20], f.optimisers(), 1)
    once = 20 * (3 + 5) * 4
    assert (f.meter.bytes_up, f.meter.bytes_down) == (once, once)
    assert f.meter.bytes == 2 * 20 * (3 + 5) * 4
    assert f.meter.images == 20
    train(f, ROWS[:20], f.optimisers(), 2)
    assert f.meter.bytes == 3 * 2 * once
    asked = Boundary()
    predict(parties, features(parties), asked, size=10)
    assert (asked.meter.bytes_up, asked.meter.bytes_down, asked.meter.images) == (N * (3 + 5) * 4, 0, 0)


def test_numbers_count_in_both_directions():
    boundary = Boundary()
    boundary.numbers(3)
    assert (boundary.meter.bytes_up, boundary.meter.bytes_down) == (12, 12)


# --- nothing else crosses --------------------------------------------------------------------------------------------

ACTIVE = "active"
READS = {"__float__", "__int__", "__index__", "__array__", "item", "tolist", "numpy"}


class Leak(AssertionError):
    """Something went from one party to another, past the border or over it without being what may cross."""


def leaves(held):
    """Everything in nested lists, tuples and dictionaries."""
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple)):
        for one in held:
            yield from leaves(one)
    else:
        yield held


def owner_of(held, doing):
    """Whose `held` is; None if it is everybody's, such as row numbers."""
    owners = {one.owner for one in leaves(held) if isinstance(one, (Tensor, Number)) and hasattr(one, "owner")}
    if len(owners) > 1:
        raise Leak(f"{doing} brings together what belongs to {sorted(map(str, owners))}")
    return next(iter(owners), None)


class Number(float):
    """A float that knows whose it is, and so does what is computed from it."""


def operation(name):
    def operate(self, *others):
        owner = owner_of([self, *others], name)
        result = getattr(float, name)(self, *others)
        return owned(Number(result), owner) if type(result) is float else result

    return operate


for symbol in ("add", "sub", "mul", "truediv"):
    setattr(Number, f"__{symbol}__", operation(f"__{symbol}__"))
    setattr(Number, f"__r{symbol}__", operation(f"__r{symbol}__"))
for symbol in ("lt", "le", "gt", "ge"):
    setattr(Number, f"__{symbol}__", operation(f"__{symbol}__"))


def owned(thing, owner):
    thing.owner = owner
    return thing


class Watch(TorchFunctionMode):
    """Every tensor belongs to whom it was computed from; an operation on two parties' tensors is a leak.

    Numbers are read by `number`, which stands in for `float`, and any other way is a leak, too. A yes or no may be
    asked for: whether parameters are finite stops everybody.
    """

    reading = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.__name__
        owner = owner_of([args, kwargs], name)
        if owner is not None and name in READS and not self.reading:
            raise Leak(f"{name} takes a number from {owner} and forgets whose it was")
        result = func(*args, **kwargs)
        if owner is not None:
            changed = []
            if name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__")):
                changed = [args[0], args[0]._base]  # a view's owner is its base's, too
            for one in leaves([result, changed]):
                if isinstance(one, Tensor):
                    one.owner = owner
        return result

    def number(self, value):
        """`float`, for what belongs to somebody."""
        if not isinstance(value, Tensor):
            return float(value)
        self.reading = True
        plain = float(value)
        self.reading = False
        return owned(Number(plain), value.owner) if hasattr(value, "owner") else plain


class Border(Boundary):
    """Hands over embeddings to the active party and gradients to the party of that width; notes what passed."""

    def __init__(self):
        super().__init__()
        self.passed = []

    def up(self, embeddings):
        if owner_of(embeddings, "up") not in range(len(WIDTHS)) or embeddings.shape[1:] != (WIDTHS[embeddings.owner],):
            raise Leak(f"up went {tuple(embeddings.shape)} of {owner_of(embeddings, 'up')}")
        return self._handed("up", embeddings, super().up(embeddings), ACTIVE)

    def down(self, gradient):
        if owner_of(gradient, "down") != ACTIVE or gradient.dim() != 2 or gradient.shape[1] not in WIDTHS:
            raise Leak(f"down went {tuple(gradient.shape)} of {owner_of(gradient, 'down')}")
        return self._handed("down", gradient, super().down(gradient), WIDTHS.index(gradient.shape[1]))

    def _handed(self, way, sent, received, to):
        if received is sent or received.requires_grad:
            raise Leak(f"{way} went a graph, not numbers")
        self.passed.append((way, *sent.shape))
        return owned(received, to)


def marked(parties):
    """The same parties; what they hold, and the constants of their bottoms, knows whose it is."""
    for k, party in enumerate(parties.passive):
        for held in (party.w, party.x, *party.model.module.buffers()):
            owned(held, k)
    owned(parties.active.w, ACTIVE)
    owned(parties.active.y, ACTIVE)
    return parties


def there(n):
    return [("up", n, WIDTHS[0]), ("up", n, WIDTHS[1])]


def there_and_back(n):
    return [*there(n), ("down", n, WIDTHS[0]), ("down", n, WIDTHS[1])]


def test_training_and_prediction_send_embeddings_up_and_their_gradients_down():
    parties, border = marked(tables()), Border()
    with Watch():
        trained = train(federated(parties, boundary=border), ROWS[:20], Optimisers([MOMENTUM, ADAM, PLAIN]), 2)
        assert [w_k.owner for w_k in trained.w] == [0, 1, ACTIVE]
        assert border.passed == 2 * [*there_and_back(7), *there_and_back(7), *there_and_back(6)]
        border.passed.clear()
        z = predict(trained, features(parties), border, size=16)
    assert z.owner == ACTIVE
    assert border.passed == [*there(16), *there(8)]


def test_with_normalisation_and_noise_it_is_the_same():
    """`deal`'s nets, whose constants are their party's, with a layer on top for widths that tell parties apart."""
    parties, _ = deal(table(), bottom="mlp", seed=0)
    parts = []
    for k, (party, width) in enumerate(zip(parties.passive, WIDTHS, strict=True)):
        model = FlatModel(nn.Sequential(party.model.module, nn.Linear(32, width)))
        parts.append(replace(party, model=model, w=model.init(0), noise=EmbeddingNoise(0.1, 1.0, seed=k)))
    top = FlatModel(nn.Linear(sum(WIDTHS), 4))
    parties = marked(Parties(tuple(parts), replace(parties.active, model=top, w=top.init(0))))
    border = Border()
    with Watch():
        train(federated(parties, boundary=border), torch.arange(12), Optimisers([PLAIN]), 1)
    assert border.passed == [*there_and_back(7), *there_and_back(5)]


@pytest.fixture
def watch(monkeypatch):
    """Over FedORA's numbers, too."""
    watching = Watch()
    for module in (fedora_module, fedora_steps):
        monkeypatch.setattr(module, "float", watching.number, raising=False)
    from_above = VectorDual.value.fget

    def reported(dual):  # a mean over everybody's duals: for whoever runs the experiment, none of the parties
        with torch._C.DisableTorchFunction():
            return from_above(dual)

    monkeypatch.setattr(VectorDual, "value", property(reported))
    return watching


FORGET = ROWS[:5]  # of 21: 16 are retained, in batches of 6, 6, 4
VARIANTS = {
    "scalar": {},
    "scalar, clipped": {"clip": 0.1},
    "vector": {"dual": "vector"},
    "vector, clipped": {"dual": "vector", "clip": 0.1},
    "reverse": {"score": "reverse"},
    "guarded steps": {"steps": "guarded"},
    "in parts": {"part": 2},
}


@pytest.mark.parametrize("refresh", [False, True], ids=["cached", "refreshed"])
@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_fedora_sends_embeddings_up_and_their_gradients_down(watch, settings, refresh):
    """The price travels inside gradients, step sizes stay where they are; the last score needs embeddings alone."""
    border = Border()
    f = federated(marked(tables(n=21)), boundary=border)
    request = forgetting(f, FORGET)
    options = {"ratio": 1.0, "batch_size": 6, "iterations": 4, "patience": False, "refresh": refresh}
    options |= {"steps": "printed", "forget_sample": 0, "passes": 0.0, **settings}
    with watch:
        done = fedora(f, request, FedORA(tau=0.1, sigma=1.0, **options))
    assert [w_k.owner for w_k in done.w] == [0, 1, ACTIVE]
    anew = there_and_back(5) if refresh else []
    iteration = [*there_and_back(5), *there_and_back(6), *anew, *there_and_back(6), *anew, *there_and_back(4)]
    reference = [*there(6), *there(6), *there(4)] if options["steps"] == "guarded" else []  # L_r(theta^0)
    assert border.passed == reference + 4 * iteration + there(5)


def test_the_step_rule_needs_more_than_that(watch):
    """It adds up everybody's gradient norms: the numbers that its option is documented, and charged, to send."""
    f = federated(marked(tables(n=21)), boundary=Border())
    request = forgetting(f, FORGET)
    with watch, pytest.raises(Leak, match="brings together"):
        fedora(f, request, FedORA(threshold=0.95, ratio=1.0, iterations=1, step_rule=True))


def public(write):
    held = torch.zeros(3)
    write(held)
    return held


LEAKS = {
    "sum": lambda a, b, watch: a + b,
    "concatenation": lambda a, b, watch: torch.cat([a, b]),
    "choice": lambda a, b, watch: torch.where(a > 0, b, 0.0),
    "in place": lambda a, b, watch: a.add_(b),
    "assignment": lambda a, b, watch: a.__setitem__(0, b[0]),
    "target": lambda a, b, watch: torch.mul(a, 2.0, out=b),
    "computed": lambda a, b, watch: (2 * a).exp().sum() + b.mean(),
    "copied into what is everybody's": lambda a, b, watch: public(lambda held: held.copy_(a)) + b,
    "copied into a view": lambda a, b, watch: public(lambda held: held[:2].copy_(a[:2])) + b,
    "assigned to what is everybody's": lambda a, b, watch: public(lambda held: held.__setitem__(0, a[0])) + b,
    "gradient": lambda a, b, watch: torch.autograd.grad(a.requires_grad_().dot(a), a, b.sum()),
    "number times tensor": lambda a, b, watch: watch.number(a.sum()) * b,
    "tensor times number": lambda a, b, watch: b / watch.number(a.sum()),
    "two numbers": lambda a, b, watch: 1 - watch.number(a.sum()) + 2 * watch.number(b.sum()),
    "the larger number": lambda a, b, watch: max(watch.number(a.sum()), watch.number(b.sum())),
    "a number taken otherwise": lambda a, b, watch: float(a.sum()),
    "an item": lambda a, b, watch: a[0].item(),
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_the_watch_sees_two_parties_brought_together(leak):
    with Watch() as watch, pytest.raises(Leak):
        leak(owned(torch.ones(3), 0), owned(torch.ones(3), 1), watch)


ALLOWED = [name for name in LEAKS if name not in ("a number taken otherwise", "an item")]


@pytest.mark.parametrize("harmless", [LEAKS[name] for name in ALLOWED], ids=ALLOWED)
def test_the_watch_lets_one_party_compute(harmless):
    with Watch() as watch:
        harmless(owned(torch.ones(3), 0), owned(torch.ones(3), 0), watch)


def test_the_watch_sees_a_border_that_is_gone_around():
    """The plain border does not hand over: what arrives still is the passive parties'."""
    parties = marked(tables())
    with Watch(), pytest.raises(Leak, match="cat brings together"):
        predict(parties, features(parties), Boundary())
    with Watch(), pytest.raises(Leak, match="cat brings together"):
        train(federated(parties), ROWS, Optimisers([PLAIN]), 1)


class Careless(Border):
    """Hands over tensors with the graph that made them."""

    def up(self, embeddings):
        return self._handed("up", embeddings, embeddings.view_as(embeddings), ACTIVE)


CROSSING = {
    "raw features": lambda border, p: border.up(p.passive[0].x),
    "parameters": lambda border, p: border.up(p.passive[0].w),
    "another's width": lambda border, p: border.up(p.passive[0].x[:, :1].expand(-1, WIDTHS[1])),
    "labels": lambda border, p: border.down(p.active.y),
    "the top's parameters": lambda border, p: border.down(p.active.w.view(CLASSES, -1)),  # (3, 9)
    "embeddings down": lambda border, p: border.down(
        p.passive[0].embed(p.passive[0].w, p.passive[0].x, border.begin())
    ),
    "gradients up": lambda border, p: border.up(owned(torch.zeros(N, WIDTHS[0]), ACTIVE)),
    "a graph": lambda border, p: Exchange(p, p.w, features(p), p.active.y, Careless()),
}


@pytest.mark.parametrize("crossing", CROSSING.values(), ids=CROSSING)
def test_the_border_of_the_watch_lets_nothing_else_pass(crossing):
    parties = marked(tables())
    with Watch(), pytest.raises(Leak, match="went"):
        crossing(Border(), parties)


# --- noise on embeddings ---------------------------------------------------------------------------------------------

FIRST, SECOND = ("training", 1), ("training", 2)  # exchanges


def test_embeddings_are_clipped_one_by_one():
    h = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    sent = EmbeddingNoise(0.0, clip=1.0)(h, FIRST)
    torch.testing.assert_close(sent, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert torch.equal(EmbeddingNoise(0.0)(h, FIRST), h)


def test_noise_has_its_deviation_and_belongs_to_seed_and_exchange():
    """10^5 draws: the sample deviation is within 4 of its own deviations, 0.5 / sqrt(2 10^5)."""
    h = torch.ones(1000, 100)
    first, *others = (
        EmbeddingNoise(0.5, seed=seed)(h, exchange) - h
        for seed, exchange in ((1, FIRST), (1, SECOND), (1, ("unlearning", 1)), (2, FIRST))
    )
    assert float(first.std()) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(2e5))
    assert torch.equal(EmbeddingNoise(0.5, seed=1)(h, FIRST) - h, first)
    for other in others:
        assert abs(float((first * other).mean())) < 4 * 0.25 / math.sqrt(1e5)


def noisy(parties, std=0.3, clip=0.2):
    first, second = parties.passive
    return Parties((replace(first, noise=EmbeddingNoise(std, clip)), second), parties.active)


def sent_by(f, monkeypatch, run):
    """What the passive parties send in `run`, less what they would send without noise: one tensor per embedding."""
    sent = []

    def noise(self, h, exchange):
        noisy = original(self, h, exchange)
        sent.append((noisy - h).detach())
        return noisy

    original = EmbeddingNoise.__call__
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddingNoise, "__call__", noise)
        run(f)
    return sent


def test_unlearning_has_none_of_the_noise_that_training_has_had(monkeypatch):
    """Whoever had both could subtract them."""
    f = federated(noisy(tables(), clip=0.0), local=PLAIN, boundary=Boundary(name="training"))
    trained = sent_by(f, monkeypatch, lambda f: train(f, ROWS, f.optimisers(), 2))
    unlearned = sent_by(f, monkeypatch, lambda f: unlearn("GA", Trained(f), "samples-7", epochs=2))
    assert (len(trained), len(unlearned)) == (8, 2)
    for ours in unlearned:
        same_size = [theirs for theirs in trained if theirs.shape == ours.shape]
        assert same_size
        assert not any(torch.allclose(ours, theirs, atol=1e-3) for theirs in same_size)


def test_two_parties_may_not_draw_the_same_noise():
    first, second = tables().passive
    active = tables().active

    def parties(one, other):
        return Parties((replace(first, noise=one), replace(second, noise=other)), active)

    with pytest.raises(InvalidRequest, match="noise must have a seed of its own at each passive party, got seed 3 at "
                                             "parties 0 and 1: they would draw the same noise"):  # fmt: skip
        parties(EmbeddingNoise(0.1, seed=3), EmbeddingNoise(0.2, 1.0, seed=3))
    parties(EmbeddingNoise(0.1, seed=3), EmbeddingNoise(0.1, seed=4))
    parties(EmbeddingNoise(0.0, clip=1.0), EmbeddingNoise(0.0, clip=1.0))  # clipped, and nothing is drawn
    parties(EmbeddingNoise(0.1), None)


def test_predictions_without_a_boundary_warn_of_noise_that_is_had_again():
    """They keep the draws that they have always had; a boundary that counts on has others."""
    f = federated(noisy(tables(), clip=0.0), local=PLAIN)
    x = features(f.parties)
    for ask in (lambda: predict(f.parties, x), lambda: outputs(f.parties, ROWS)):
        with pytest.warns(
            UserWarning, match="boundary is not given: the parties' noise is that of every other"
        ) as told:
            assert torch.equal(ask(), predict(f.parties, x, Boundary()))
        assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not torch.equal(predict(f.parties, x, f.boundary), predict(f.parties, x, f.boundary))
        assert not torch.equal(outputs(f.parties, ROWS, f.boundary), outputs(f.parties, ROWS, f.boundary))
        threshold_of_unseen(f.parties, Calibrated(unseen=x))  # a measure, which leaves no party
        plain = tables()
        assert torch.equal(predict(plain, x), outputs(plain, ROWS))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "0.1", None])
@pytest.mark.parametrize("name", ["std", "clip"])
def test_noise_that_would_be_none_is_refused(name, value):
    """A negative clip would turn embeddings round, a deviation that is no number would wipe them out."""
    with pytest.raises(ValueError, match=f"{name} must be a finite number >= 0, got {value!r}"):
        EmbeddingNoise(**{"std": 0.1, name: value})


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_in_parts_noise_is_that_of_the_whole_exchange(clip):
    """Drawn once for all rows; gradients go through the clipping, to which a part's own noise makes no difference."""
    parties, rows = noisy(tables(torch.float64), clip=clip), torch.arange(9)
    whole, parted = (forward(parties, parties.w, rows, Boundary(name="training"), part) for part in (None, 4))
    close([parted.logits], [whole.logits], **NEAR)
    ours, expected = (e.backward(F.cross_entropy(e.logits, e.y)) for e in (parted, whole))
    close(ours, expected, rtol=1e-9, atol=1e-12)


def test_gradients_go_through_clipping_and_noise():
    parties, boundary = tables(torch.float64), Boundary(name="training")
    exchange = forward(noisy(parties), parties.w, ROWS, boundary)
    gradients = exchange.backward(F.cross_entropy(exchange.logits, exchange.y))
    whole = Composed(parties)
    *bottoms, top = whole.parts
    h = [net(x_k) for net, x_k in zip(bottoms, features(parties), strict=True)]
    h[0] = EmbeddingNoise(0.3)(F.normalize(h[0], dim=1) * h[0].norm(dim=1, keepdim=True).clamp(max=0.2), FIRST)
    F.cross_entropy(top(torch.cat(h, dim=1)), parties.active.y).backward()
    close(gradients, whole.vectors(lambda parameter: parameter.grad), **NEAR)


def test_every_exchange_has_noise_of_its_own_and_the_same_one_again():
    parties = noisy(tables(), std=0.1, clip=0.0)
    boundary = Boundary(name="training")
    one, two = (forward(parties, parties.w, ROWS, boundary).logits for _ in range(2))
    assert boundary.exchanges == 2
    assert not torch.equal(one, two)
    again = Boundary(name="training", exchanges=1)
    assert torch.equal(forward(parties, parties.w, ROWS, again).logits, two)
    with torch.no_grad():
        asked = Boundary(name="asked")
        first, second = (predict(parties, features(parties), asked, size=12) for _ in range(2))
    assert asked.exchanges == 4
    assert not torch.equal(first, second)


def test_training_with_noise_is_deterministic_and_resumes_with_the_count_of_exchanges():
    parties, kept = noisy(tables()), {}

    def run(given, epochs, boundary, **how):
        return train(federated(given, boundary=boundary), ROWS, Optimisers([PLAIN]), epochs, **how)

    once = run(parties, 3, Boundary(), after_epoch=lambda epoch, w: kept.update({epoch: copy.deepcopy(w)}))
    assert same(once, run(parties, 3, Boundary()))
    assert not same(once, run(parties, 3, Boundary(name="another")))
    resumed = run(parties.having(kept[1]), 2, Boundary(exchanges=4), first_epoch=2)
    assert same(once, resumed)


# --- dealing out -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8)])
def test_joined_stripes_are_the_image(shape, parties):
    x = images(shape=shape).x_train
    stripes = split_features(x, vertical(shape, parties))
    assert len(stripes) == parties
    assert torch.equal(torch.cat(stripes, dim=-1), x)


def test_two_parties_get_the_left_and_the_right_half():
    dataset = images(shape=(3, 8, 12))
    parties, test = deal(dataset, bottom="cnn", seed=0)
    assert torch.equal(parties.passive[0].x, dataset.x_train[..., :6])
    assert torch.equal(parties.passive[1].x, dataset.x_train[..., 6:])
    assert torch.equal(torch.cat(test, dim=-1), dataset.x_test)
    assert torch.equal(parties.active.y, dataset.y_train)
    assert parties.active.classes == 4
    assert len(parties) == 3
    assert parties.d == sum(len(w_k) for w_k in parties.w) == 2 * parties.passive[0].model.d + 128 * 4 + 4


def test_a_table_goes_by_blocks_of_columns_each_with_its_own_normalisation():
    dataset, blocks = table(), [torch.tensor([0, 3, 5]), torch.tensor([1, 2, 4, 6])]
    parties, test = deal(dataset, bottom="mlp", seed=0, blocks=blocks)
    for party, x_test, block in zip(parties.passive, test, blocks, strict=True):
        assert torch.equal(party.x, dataset.x_train[:, block])
        assert torch.equal(x_test, dataset.x_test[:, block])
        standardised = party.model.module[0](party.x)
        torch.testing.assert_close(standardised.mean(dim=0), torch.zeros(len(block)), rtol=0, atol=1e-5)
        torch.testing.assert_close(standardised.std(dim=0, correction=0), torch.ones(len(block)))


def test_columns_may_be_named_by_lists():
    dataset, blocks = table(), [[0, 5, 3], [1, 2]]
    (ours, x), (theirs, x_too) = (
        deal(dataset, bottom="mlp", seed=0, blocks=given) for given in (blocks, [torch.tensor(b) for b in blocks])
    )
    assert same(ours, theirs)
    for k in range(2):
        assert torch.equal(x[k], x_too[k])
        assert torch.equal(ours.passive[k].x, dataset.x_train[:, blocks[k]])
    assert all(torch.equal(a, b) for a, b in zip(split_features(dataset.x_test, blocks), x, strict=True))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"blocks": [[0, 1], [2, 7]]}, r"blocks\[1\] must be columns 0 to 6, got 7"),
        ({"blocks": [[0, -1], [2]]}, r"blocks\[0\] must be columns 0 to 6, got -1"),
        ({"blocks": [[0, 1], [2, 1]]}, r"blocks must have no column twice, got 1 in blocks\[0\] and blocks\[1\]"),
        ({"blocks": [[0, 0], [2]]}, r"blocks must have no column twice, got 0 in blocks\[0\] and blocks\[0\]"),
        ({"blocks": [[0, 1], []]}, r"blocks\[1\] must be columns 0 to 6, one at least, as whole numbers"),
        ({"blocks": [[0.0], [1.0]]}, r"blocks\[0\] must be columns .* got torch.float32 of shape \(1,\)"),
        ({"blocks": [torch.ones(7, dtype=torch.bool)]}, r"blocks\[0\] must be .* got torch.bool of shape \(7,\)"),
        ({"blocks": ["left", "right"]}, r"blocks\[0\] must be numbers, as an array or tensor, got 'left'"),
        (
            {"blocks": [[0, 1], [2, 3]], "parties": 5},
            "parties must be 2 if given beside so many blocks, one each, got 5",
        ),
        ({"blocks": []}, "blocks must name the columns of one party at least, got none"),
        ({"parties": 8}, "parties must be at most 7"),
        ({"parties": 0}, "parties must be a whole number >= 1, got 0"),
    ],
)
def test_columns_that_cannot_be_dealt_out_are_named(how, message):
    with pytest.raises(ValueError, match=message):
        deal(table(), bottom="mlp", seed=0, **how)


def test_as_many_parties_as_blocks_may_be_said():
    blocks = [[0, 1], [2, 3]]
    once, again = (deal(table(), bottom="mlp", seed=0, blocks=blocks, **how)[0] for how in ({}, {"parties": 2}))
    assert same(once, again)


def test_masks_and_stripes_too_small_are_refused():
    with pytest.raises(UnsupportedTask, match="dataset must have one label per sample, got 'phantom', task 'segm"):
        deal(load("phantom"), bottom="cnn", seed=0)
    with pytest.raises(UnsupportedModel, match=r"bottom 'densenet121' needs at least 8 x 8 .*, got 8 x 4: take "):
        deal(load("digits"), bottom="densenet121", seed=0)


def test_dealing_is_deterministic_and_a_seed_of_its_own_each():
    once, again, other = (deal(images(), bottom="cnn", seed=seed)[0] for seed in (0, 0, 1))
    assert same(once, again)
    assert not any(torch.equal(a, b) for a, b in zip(once.w, other.w, strict=True))
    assert not torch.equal(once.w[0], once.w[1])  # same net, same shape


def test_a_partys_first_parameters_do_not_depend_on_the_others():
    first, second, wider, third = (torch.tensor(block) for block in ([0, 1], [2, 3], [0, 1, 4], [5, 6]))
    dataset = table()
    two, beside, three = (
        deal(dataset, bottom="mlp", seed=0, blocks=blocks)[0]
        for blocks in ([first, second], [wider, second], [first, second, third])
    )
    assert torch.equal(two.passive[1].w, beside.passive[1].w)
    assert torch.equal(two.passive[0].w, three.passive[0].w)
    assert torch.equal(two.passive[1].w, three.passive[1].w)


# --- as a federation -------------------------------------------------------------------------------------------------


def test_a_request_sees_the_aligned_samples_as_those_of_one_client():
    f = VerticalFederation(tables(), ClientOpt())
    rows, labels = f.clients[0]
    assert list(f.clients) == [0]
    assert rows.tolist() == list(range(N))
    assert torch.equal(labels, f.parties.active.y)
    deletion = Request.parse("class-1").resolve(f.clients)
    assert torch.equal(deletion.forget[0], (labels == 1).nonzero().flatten())
    assert torch.equal(deletion.retain[0], (labels != 1).nonzero().flatten())
    assert Request.parse("samples-5").resolve(f.clients).forget[0].tolist() == sorted(
        torch.randperm(N, generator=stream(0, "vertical request", "any"))[:5].tolist()
    )


def test_another_meter_is_another_border_of_the_same_name_that_counts_on():
    """Noise belongs to the name and number of an exchange: a method's exchanges come after those there have been."""
    f = VerticalFederation(tables(), ClientOpt(), seed=4, boundary=Boundary(name="fedora", exchanges=7))
    f.meter.train(1)
    counted = f.having(meter=Meter())
    assert (counted.boundary.name, counted.boundary.exchanges, counted.seed) == ("fedora", 7, 4)
    assert counted.parties is f.parties
    assert (counted.meter.images, f.meter.images, f.boundary.exchanges) == (0, 1, 7)
    assert counted.meter is counted.boundary.meter
