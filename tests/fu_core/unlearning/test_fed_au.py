"""FedAU, PUF's variant: what a mixture of heads must satisfy exactly, what trains them, and what it must refuse."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure, UnsupportedModel, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.linear import mlp, unit_softmax
from fu_core.models.resnet import SmallResNet
from fu_core.models.vit import vit_tiny
from fu_core.request import Deletion
from fu_core.unlearning.baselines.fed_au import (
    FedAU,
    combine_heads,
    features,
    fed_au,
    find_head,
    fresh_head,
    random_labels,
    serve,
)
from fu_core.unlearning.method import Trained
from tests.nets import Backwards

NET = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))  # d = 25 + 18
W = NET.init(0, torch.float64)
HEAD = slice(25, 43)
LOCAL = ClientOpt(lr=0.5, lr_decay=0.9, weight_decay=1e-2, batch_size=4)
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def federation(sizes=(9, 12, 7), seed=0):
    g = torch.Generator().manual_seed(seed)
    clients = [
        (torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)) for n in sizes
    ]
    return Federation(NET, clients, LOCAL)


def unlearned(f, forget, config=None, *, round=6, w=W):
    return fed_au(f, w, Deletion.of(f.clients, forget), config or FedAU(), round)


def head_of(f, forget, config=None):
    """The auxiliary head itself: with c = 0 nothing is left of the original one."""
    return unlearned(f, forget, replace(config or FedAU(), c=0.0))[HEAD]


@pytest.mark.parametrize("c", [0.04, 0.5])
def test_logits_are_the_same_mixture_as_the_heads(c):
    """T7: f(x; h) = c z_L + (1 - c) z_A."""
    f = federation()
    x, _ = f.clients[0]
    auxiliary = W.clone()
    auxiliary[HEAD] = head_of(f, 1)
    mixed = NET.logits(unlearned(f, 1, FedAU(c=c)), x)
    torch.testing.assert_close(mixed, c * NET.logits(W, x) + (1 - c) * NET.logits(auxiliary, x), **EXACT)
    assert (mixed - NET.logits(W, x)).abs().max() > 0.1


def test_a_whole_original_head_changes_nothing():
    after = unlearned(federation(), 1, FedAU(c=1.0))
    assert torch.equal(after, W)
    assert after.data_ptr() != W.data_ptr()


def test_the_backbone_is_kept_bit_for_bit_and_the_input_untouched():
    w = W.clone()
    after = unlearned(federation(), [0, 2], w=w)
    assert torch.equal(after[:25], W[:25])
    assert not torch.isclose(after[HEAD], W[HEAD]).any()
    assert torch.equal(w, W)


def test_several_targets_leave_the_mean_of_their_heads():
    """h_A = (h_A^0 + h_A^2) / 2, unweighted although they hold 9 and 7 samples; the order of names is irrelevant."""
    f = federation()
    both = unlearned(f, [0, 2], FedAU(c=0.25))
    by_hand = 0.25 * W[HEAD] + 0.75 * (head_of(f, 0) + head_of(f, 2)) / 2
    torch.testing.assert_close(both[HEAD], by_hand, **EXACT)
    assert torch.equal(unlearned(f, [2, 0], FedAU(c=0.25)), both)


def test_heads_on_paper():
    """h_L = (4, 8), h_A = (1, 0) and (3, -4) with mean (2, -2), c = 1/4: (1, 2) + 3/4 (2, -2) = (2.5, 0.5)."""
    h_L, h_A = torch.tensor([4.0, 8.0]), torch.tensor([[1.0, 0.0], [3.0, -4.0]])
    assert combine_heads(h_L, h_A, c=0.25).tolist() == [2.5, 0.5]
    with pytest.raises(ValueError, match="c must be between 0 and 1"):
        combine_heads(h_L, h_A, c=1.5)


def by_hand(x, y, kept, *, client_id, epochs, lr):
    """Full-batch steps of softmax regression on tanh(W_1 x + b_1), h and b decayed, labels redrawn per epoch."""
    z = torch.tanh(x @ W[:20].view(5, 4).T + W[20:25])
    z = torch.cat([z, torch.ones(len(z), 1, dtype=torch.float64)], dim=1)
    h = fresh_head(find_head(NET, W, x), W, seed=0, client_id=client_id)
    h = torch.cat([h[:15].view(3, 5), h[15:, None]], dim=1)  # (3, 6), biases last
    drawn = []
    for e in range(epochs):
        random = random_labels(len(y) - kept, 3, seed=0, client_id=client_id, epoch=e)
        drawn.append(random.tolist())
        labels = torch.cat([y[:kept], random])
        excess = torch.softmax(z @ h.T, dim=1) - torch.eye(3, dtype=torch.float64)[labels]
        h = h - lr * (excess.T @ z / len(z) + 1e-2 * h)
    return torch.cat([h[:, :5].flatten(), h[:, 5]]), drawn


def test_a_leaving_clients_head_by_hand():
    """Ten epochs on random labels, new ones in each, at the rate of the last training round, 0.5 * 0.9^(T - 1)."""
    f = federation().having(local=replace(LOCAL, batch_size=10**6))
    expected, drawn = by_hand(*f.clients[1], 0, client_id=1, epochs=10, lr=0.5 * 0.9**4)  # round 6 follows T = 5
    torch.testing.assert_close(head_of(f, 1), expected, **EXACT)
    assert len({tuple(labels) for labels in drawn}) == 10
    served = serve(Trained(f, W, rounds=5), Deletion.of(f.clients, 1), FedAU(c=0.0))
    torch.testing.assert_close(served[HEAD], expected, **EXACT)


def test_a_head_keeps_what_its_target_keeps_by_hand():
    """Sample unlearning: true labels for the 8 samples kept, random ones for the 4 forgotten."""
    f = federation().having(local=replace(LOCAL, batch_size=10**6))
    x, y = f.clients[1]
    order = torch.cat([torch.arange(4, 12), torch.arange(4)])
    expected, _ = by_hand(x[order], y[order], 8, client_id=1, epochs=3, lr=0.5 * 0.9**4)
    torch.testing.assert_close(head_of(f, {1: torch.arange(4)}, FedAU(epochs=3)), expected, **EXACT)


def test_one_target_may_leave_while_another_keeps_a_part():
    """Their heads are those of the two requests made alone."""
    f, part = federation(), {0: torch.arange(9), 1: torch.arange(4)}
    both = unlearned(f, part, FedAU(c=0.0))[HEAD]
    torch.testing.assert_close(both, (head_of(f, 0) + head_of(f, {1: part[1]})) / 2, **EXACT)


def test_only_the_inputs_of_forgotten_data_are_used():
    f = federation()
    (x, y), after = f.clients[1], unlearned(f, 1)
    assert torch.equal(unlearned(f.having(clients={**f.clients, 1: (x, (y + 1) % 3)}), 1), after)


def test_batches_are_those_of_a_client_and_augmentation_is_off():
    """Every epoch visits all 12 samples in batches of 4, in an order of its own; features are cached once."""
    f, seen = federation(), []

    class Watched(FlatModel):
        def grad(self, w, x, y):
            seen.append(x)
            return super().grad(w, x, y)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fu_core.unlearning.baselines.fed_au.FlatModel", Watched)
        unlearned(f.having(local=replace(LOCAL, augmentation="flip_crop")), 1, FedAU(epochs=2))
    x, _ = f.clients[1]
    rows = features(NET, W, find_head(NET, W, x), x).tolist()
    visits = [rows.index(row) for z in seen for row in z.tolist()]
    assert [len(z) for z in seen] == [4] * 6
    assert sorted(visits[:12]) == sorted(visits[12:]) == list(range(12))
    assert visits[:12] != visits[12:]


def test_an_untrained_head_is_quiet():
    """N(0, 0.01^2) weights and zero biases, different ones for every target."""
    model = FlatModel(mlp(4, 10, (500,)))
    w = model.init(0)
    head = find_head(model, w, torch.zeros(2, 4))
    h = fresh_head(head, w, seed=0, client_id=3)
    assert h.dtype == w.dtype
    assert h[:5000].std() == pytest.approx(0.01, rel=0.05)
    assert h[5000:].tolist() == [0.0] * 10
    assert not torch.equal(fresh_head(head, w, seed=0, client_id=4), h)


def test_random_labels_are_uniform():
    """6000 draws from three classes: each within five deviations, 5 sqrt(6000 / 3 * 2 / 3) = 183, of 2000."""
    counts = random_labels(6000, 3, seed=0, client_id=1, epoch=0).bincount()
    assert len(counts) == 3
    assert (counts - 2000).abs().max() < 183


def test_a_memorised_client_is_forgotten():
    """A target whose labels nobody else could predict: recognised by the model, hardly by the unlearned one."""
    g = torch.Generator().manual_seed(1)
    model = FlatModel(mlp(20, 4, (64,)))
    clients = [(torch.randn(40, 20, generator=g), torch.randint(0, 4, (40,), generator=g)) for _ in range(3)]
    f = Federation(model, clients, ClientOpt(lr=0.3, batch_size=8))
    w = fedavg(f, model.init(0), 60)
    after = unlearned(f, 0, w=w, round=61)
    assert accuracy(model, w, *clients[0]) > 95
    assert accuracy(model, after, *clients[0]) < 50


@pytest.mark.parametrize(
    ("module", "shape", "name", "size"),
    [
        (nn.Linear(4, 3), (4,), "", 15),
        (unit_softmax(4, 3), (4,), "2", 12),  # without a bias
        (simple_cnn(3, 8, 10), (3, 8, 8), "12", 128 * 10 + 10),
        (nn.Sequential(Standardize(torch.zeros(3), torch.ones(3)), SmallResNet(3, 10)), (3, 8, 8), "1.head", 650),
        (vit_tiny(1, 8, 5), (1, 8, 8), "head", 32 * 5 + 5),
    ],
)
def test_the_head_is_found_and_reproduces_the_logits(module, shape, name, size):
    model = FlatModel(module)
    w, x = model.init(0), torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    head = find_head(model, w, x)
    assert (head.name, head.d) == (name, size)
    rows = model.views(w)
    weight, bias = (rows.get(f"{name}.{part}".lstrip(".")) for part in ("weight", "bias"))
    torch.testing.assert_close(
        nn.functional.linear(features(model, w, head, x), weight, bias), model.predict(w, x), rtol=1e-6, atol=1e-6
    )
    zero = model.views(head.put(w, torch.zeros(head.d)))
    silenced = {n for n in zero if not torch.equal(zero[n], rows[n])}
    assert silenced <= {f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")}


def test_features_of_a_large_set_come_in_batches():
    x = torch.randn(1500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = features(NET, W, find_head(NET, W, x), x)
    torch.testing.assert_close(z, torch.tanh(x @ W[:20].view(5, 4).T + W[20:25]), **EXACT)
    assert not z.requires_grad


def test_the_head_is_the_last_in_forward_order_not_in_name_order():
    model = FlatModel(Backwards())
    head = find_head(model, model.init(0), torch.ones(1, 4))
    assert (head.name, head.place) == ("a_last", slice(0, 8))


SHARED = nn.Linear(4, 4)


class Unused(nn.Module):
    """Holds a layer and never uses it."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(4, 3)

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), "must be nn.Linear, but '1' is LayerNorm"),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), "'0', are not the logits: something follows it"),
        (nn.Sequential(SHARED, nn.Tanh(), SHARED), "layer '0' is used more than once"),
        (Unused(), "Unused must have a layer with parameters that a forward pass reaches"),
    ],
)
def test_models_without_a_linear_head_are_refused(module, message):
    model = FlatModel(module)
    w = torch.linspace(-1, 1, model.d, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=message):
        unlearned(federation().having(model=model), 1, w=w)


def test_counters_count_the_head_alone():
    """2 P_c B bytes per target, P B stored; each image takes the way through the backbone once."""
    f = federation()
    f = f.having(clients={i: (x.float(), y) for i, (x, y) in f.clients.items()})
    one, two = f.having(meter=Meter()), f.having(meter=Meter())
    unlearned(one, 1, w=W.float())
    assert (one.meter.bytes_down, one.meter.bytes_up) == (18 * 4, 18 * 4)
    assert (one.meter.images, one.meter.rounds, one.meter.storage) == (12, 1, 43 * 4)
    unlearned(two, [0, 1], w=W.float())
    assert (two.meter.bytes, two.meter.images, two.meter.rounds) == (2 * 2 * 18 * 4, 9 + 12, 1)


def test_requests_that_cannot_be_served():
    f = federation()
    for task in ("segmentation", "regression"):
        with pytest.raises(UnsupportedTask, match=f"classification only, got '{task}'"):
            unlearned(f.having(model=FlatModel(NET.module, task=task)), 1)
    with pytest.raises(NumericalFailure, match="client 1: its auxiliary head is not finite"):
        unlearned(f.having(local=replace(LOCAL, lr=1e3, lr_decay=1.0)), 1, FedAU(epochs=800))
    with pytest.raises(ValueError, match=r"c must be between 0 and 1, got -0\.1"):
        FedAU(c=-0.1)
    with pytest.raises(ValueError, match="epochs must be a whole number >= 1, got 0"):
        FedAU(epochs=0)
