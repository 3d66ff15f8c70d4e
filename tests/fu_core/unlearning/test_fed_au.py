"""FedAU: what a mixture of heads must satisfy exactly, what trains them, and what it must refuse."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedModel, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt, train_client
from fu_core.federation.meter import Meter
from fu_core.federation.together import train_round
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.linear import mlp, unit_softmax
from fu_core.models.resnet import SmallResNet
from fu_core.models.vit import vit_tiny
from fu_core.unlearning.baselines.fed_au import (
    FedAU,
    TwoHeaded,
    combine_heads,
    features,
    fed_au,
    fed_au_train,
    fed_au_unlearn,
    find_head,
    fresh_head,
    random_labels,
    subtract_heads,
)

NET = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))  # d = 25 + 18
W = NET.init(0, torch.float64)
HEAD = slice(25, 43)
LOCAL = ClientOpt(lr=0.5, lr_decay=0.9, weight_decay=1e-2, batch_size=4)
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def federation(sizes=(9, 12, 7), seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)) for n in sizes
    ]


def unlearned(clients, targets, config=None, *, local=LOCAL, round=6, w=W, **kwargs):
    return fed_au(NET, w, clients, targets, config=config, local=local, seed=0, round=round, **kwargs)


def head_of(clients, u, config=None, **kwargs):
    """The auxiliary head itself: with c = 0 nothing is left of the original one."""
    return unlearned(clients, [u], replace(config or FedAU(), c=0.0), **kwargs)[HEAD]


@pytest.mark.parametrize("c", [0.04, 0.5])
def test_logits_are_the_same_mixture_as_the_heads(c):
    """T7: f(x; h) = c z_L + (1 - c) z_A."""
    clients = federation()
    x, _ = clients[0]
    auxiliary = W.clone()
    auxiliary[HEAD] = head_of(clients, 1)
    mixed = NET.logits(unlearned(clients, [1], FedAU(c=c)), x)
    torch.testing.assert_close(mixed, c * NET.logits(W, x) + (1 - c) * NET.logits(auxiliary, x), **EXACT)
    assert (mixed - NET.logits(W, x)).abs().max() > 0.1


def test_a_whole_original_head_changes_nothing():
    after = unlearned(federation(), [1], FedAU(c=1.0))
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
    clients = federation()
    both = unlearned(clients, [0, 2], FedAU(c=0.25))
    by_hand = 0.25 * W[HEAD] + 0.75 * (head_of(clients, 0) + head_of(clients, 2)) / 2
    torch.testing.assert_close(both[HEAD], by_hand, **EXACT)
    assert torch.equal(unlearned(clients, [2, 0], FedAU(c=0.25)), both)


def test_heads_on_paper():
    """h_L = (4, 8), h_A = (1, 0) and (3, -4) with mean (2, -2), c = 1/4: (1, 2) + 3/4 (2, -2) = (2.5, 0.5)."""
    h_L, h_A = torch.tensor([4.0, 8.0]), torch.tensor([[1.0, 0.0], [3.0, -4.0]])
    assert combine_heads(h_L, h_A, c=0.25).tolist() == [2.5, 0.5]
    assert subtract_heads(h_L, h_A).tolist() == [2.0, 10.0]
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
    clients, full = federation(), replace(LOCAL, batch_size=10**6)
    expected, drawn = by_hand(*clients[1], 0, client_id=1, epochs=10, lr=0.5 * 0.9**4)  # round 6 follows T = 5
    torch.testing.assert_close(head_of(clients, 1, local=full), expected, **EXACT)
    assert len({tuple(labels) for labels in drawn}) == 10


def test_a_head_keeps_what_its_target_keeps_by_hand():
    """Sample unlearning: true labels for the 8 samples kept, random ones for the 4 forgotten."""
    clients, full = federation(), replace(LOCAL, batch_size=10**6)
    x, y = clients[1]
    clients[1], forget = (x[4:], y[4:]), {1: (x[:4], y[:4])}
    order = torch.cat([torch.arange(4, 12), torch.arange(4)])
    expected, _ = by_hand(x[order], y[order], 8, client_id=1, epochs=3, lr=0.5 * 0.9**4)
    torch.testing.assert_close(head_of(clients, 1, FedAU(epochs=3), local=full, forget=forget), expected, **EXACT)


def test_only_the_inputs_of_forgotten_data_are_used():
    clients = federation()
    (x, y), after = clients[1], unlearned(clients, [1])
    assert torch.equal(unlearned([clients[0], (x, (y + 1) % 3), clients[2]], [1]), after)


def test_batches_are_those_of_a_client_and_augmentation_is_off():
    """Every epoch visits all 12 samples in batches of 4, in an order of its own; features are cached once."""
    clients, seen = federation(), []

    class Watched(FlatModel):
        def grad(self, w, x, y):
            seen.append(x)
            return super().grad(w, x, y)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fu_core.unlearning.baselines.fed_au.FlatModel", Watched)
        unlearned(clients, [1], FedAU(epochs=2), local=replace(LOCAL, augmentation="flip_crop"))
    head = find_head(NET, W, clients[1][0])
    rows = features(NET, W, head, clients[1][0]).tolist()
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
    local = ClientOpt(lr=0.3, batch_size=8)
    w = fedavg(model, model.init(0), clients, rounds=60, local=local, seed=0)
    after = fed_au(model, w, clients, [0], local=local, seed=0, round=61)
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
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.a_last, self.z_first = nn.Linear(3, 2), nn.Linear(4, 3)

        def forward(self, x):
            return self.a_last(self.z_first(x))

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
        (Unused(), "Unused reaches no layer with parameters"),
    ],
)
def test_models_without_a_linear_head_are_refused(module, message):
    clients, model = federation(), FlatModel(module)
    w = torch.linspace(-1, 1, model.d, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=message):
        fed_au(model, w, clients, [1], local=LOCAL, seed=0, round=6)


def test_counters_count_the_head_alone():
    """2 P_c B bytes per target, P B stored; each image takes the way through the backbone once."""
    clients, meter = [(x.float(), y) for x, y in federation()], Meter()
    fed_au(NET, W.float(), clients, [1], local=LOCAL, seed=0, round=6, meter=meter)
    assert (meter.bytes_down, meter.bytes_up) == (18 * 4, 18 * 4)
    assert (meter.images, meter.rounds, meter.storage) == (12, 1, 43 * 4)
    two = Meter()
    fed_au(NET, W.float(), clients, [0, 1], local=LOCAL, seed=0, round=6, meter=two)
    assert (two.bytes, two.images, two.rounds) == (2 * 2 * 18 * 4, 9 + 12, 1)


def test_requests_that_cannot_be_served():
    clients = federation()
    (x, y), part = clients[1], {1: clients[1]}
    empty = [clients[0], (x[:0], y[:0]), clients[2]]
    for targets, given, forget, message in [
        ([], clients, None, "targets names nobody"),
        ([3], clients, None, "targets names client 3, but clients are 0 to 2"),
        ([-1], clients, None, "targets names client -1"),
        ([1, 1], clients, None, "twice"),
        ([0, 1, 2], clients, None, "all 3 clients"),
        ([0, 1], clients, part, r"exactly the targets \[0, 1\], got \[1\]"),
        ([1], empty, None, "client 1, which has no samples to forget"),
    ]:
        with pytest.raises(InvalidRequest, match=message):
            unlearned(given, targets, forget=forget)
        with pytest.raises(InvalidRequest, match=message):
            fed_au_train(NET, W, given, targets, rounds=1, local=LOCAL, seed=0, forget=forget)
    for task in ("segmentation", "regression"):
        with pytest.raises(UnsupportedTask, match=f"classification only, got '{task}'"):
            fed_au(FlatModel(NET.module, task=task), W, clients, [1], local=LOCAL, seed=0, round=6)
    with pytest.raises(NumericalFailure, match="client 1: its auxiliary head is not finite"):
        unlearned(clients, [1], FedAU(epochs=800), local=replace(LOCAL, lr=1e3, lr_decay=1.0))
    with pytest.raises(ValueError, match=r"c must be between 0 and 1, got -0\.1"):
        FedAU(c=-0.1)
    with pytest.raises(ValueError, match="epochs must be a whole number >= 1, got 0"):
        FedAU(epochs=0)


def trained(clients, targets, *, rounds=3, local=LOCAL, model=NET, w=W, how="loop", **kwargs):
    return fed_au_train(model, w, clients, targets, rounds=rounds, local=local, seed=0, how=how, **kwargs)


def test_without_a_backbone_the_two_heads_train_apart():
    """Softmax regression: h_L is FedAvg's, and h_A is the target's own SGD on its random labels, drawn once."""
    model, clients = FlatModel(nn.Linear(4, 3)), federation()
    w_0 = model.init(0, torch.float64)
    w, h_A = trained(clients, [1], model=model, w=w_0)
    reference = fedavg(model, w_0, clients, rounds=3, local=LOCAL, seed=0, how="loop")
    torch.testing.assert_close(w, reference, **EXACT)
    x, y = clients[1]
    h = fresh_head(find_head(model, w_0, x), w_0, seed=0, client_id=1)
    labels = random_labels(12, 3, seed=0, client_id=1, epoch=0)
    for t in (1, 2, 3):
        h = train_client(model, h, (x, labels), LOCAL, seed=0, round=t, client_id=1)
    torch.testing.assert_close(h_A, h[None], **EXACT)
    assert not torch.equal(labels, y)


def test_the_backbone_learns_from_both_heads():
    """One full-batch step of the target: the gradient of CE(h_L; y) + CE(h_A; y_A), written out with autograd."""
    clients, full = federation(), replace(LOCAL, batch_size=10**6, weight_decay=0.0)
    x, y = clients[1]
    y_A = random_labels(12, 3, seed=0, client_id=1, epoch=0)
    h_0 = fresh_head(find_head(NET, W, x), W, seed=0, client_id=1)
    w, h = W.clone().requires_grad_(), h_0.clone().requires_grad_()
    z = torch.tanh(x @ w[:20].view(5, 4).T + w[20:25])
    z_L, z_A = (z @ p[:15].view(3, 5).T + p[15:] for p in (w[HEAD], h))
    loss = nn.functional.cross_entropy(z_L, y) + nn.functional.cross_entropy(z_A, y_A)
    g_w, g_h = torch.autograd.grad(loss, (w, h))
    others = train_round(NET, W, clients, full, seed=0, round=1, ids=[0, 2])
    ours, h_A = trained(clients, [1], rounds=1, local=full)
    by_hand = W + (9 * others[0] - 12 * 0.5 * g_w + 7 * others[1]) / 28
    torch.testing.assert_close(ours, by_hand, **EXACT)
    torch.testing.assert_close(h_A, (h_0 - 0.5 * g_h)[None], **EXACT)


def test_sample_requests_randomise_the_forgotten_labels_alone():
    """Every client trains on all it has; h_A sees true labels for the 8 samples kept."""
    model, clients = FlatModel(nn.Linear(4, 3)), federation()
    w_0, (x, y) = model.init(0, torch.float64), clients[1]
    split = [clients[0], (x[:8], y[:8]), clients[2]]
    w, h_A = trained(split, [1], model=model, w=w_0, forget={1: (x[8:], y[8:])})
    torch.testing.assert_close(w, fedavg(model, w_0, clients, rounds=3, local=LOCAL, seed=0, how="loop"), **EXACT)
    h = fresh_head(find_head(model, w_0, x), w_0, seed=0, client_id=1)
    labels = torch.cat([y[:8], random_labels(4, 3, seed=0, client_id=1, epoch=0)])
    for t in (1, 2, 3):
        h = train_client(model, h, (x, labels), LOCAL, seed=0, round=t, client_id=1)
    torch.testing.assert_close(h_A, h[None], **EXACT)


def test_a_class_is_the_label_of_everything_and_is_subtracted():
    """Everybody trains an auxiliary head that says class 2; without those heads nobody is told class 2 any more."""
    g = torch.Generator().manual_seed(0)
    centres = 3 * torch.eye(3, 4)
    clients = []
    for _ in range(2):
        y = torch.arange(60) % 3
        clients.append((centres[y] + 0.3 * torch.randn(60, 4, generator=g), y))
    w, h_A = trained(clients, [0, 1], w=W.float(), rounds=20, forget_class=2)
    x, y = clients[0]
    assert accuracy(NET, w, x, y) > 95
    taught = w.clone()
    taught[HEAD] = h_A[0]
    assert (NET.predict(taught, x).argmax(dim=1) == 2).all()
    after = fed_au_unlearn(NET, w, h_A, example=x, class_wise=True)
    torch.testing.assert_close(after[HEAD], w[HEAD] - (h_A[0] + h_A[1]) / 2)
    assert torch.equal(after[:25], w[:25])
    assert (NET.predict(after, x).argmax(dim=1) != 2).all()
    assert accuracy(NET, after, x[y != 2], y[y != 2]) > 95


def test_the_official_mixture():
    """(1 - alpha) h_L + alpha / |U| sum h_A, alpha = 0.9 by default; alpha = 0 is the identity."""
    clients, meter = federation(), Meter()
    w, h_A = trained(clients, [0, 2])
    after = fed_au_unlearn(NET, w, h_A, example=clients[0][0], meter=meter)
    torch.testing.assert_close(after[HEAD], 0.1 * w[HEAD] + 0.9 * (h_A[0] + h_A[1]) / 2, **EXACT)
    assert torch.equal(after[:25], w[:25])
    assert torch.equal(fed_au_unlearn(NET, w, h_A, example=clients[0][0], alpha=0.0), w)
    assert (meter.bytes, meter.rounds, meter.storage) == (2 * 2 * 18 * 8, 1, 43 * 8)
    with pytest.raises(ValueError, match="alpha must be between 0 and 1, got 2"):
        fed_au_unlearn(NET, w, h_A, example=clients[0][0], alpha=2)


def test_training_sends_the_global_model_alone_and_overwrites_nothing():
    """C P B bytes each way per round, all images counted."""
    clients, meter, w = [(x.float(), y) for x, y in federation()], Meter(), W.float()
    after, h_A = trained(clients, [1, 0], w=w, meter=meter)
    assert torch.equal(w, W.float())
    assert (after.shape, h_A.shape) == ((43,), (2, 18))
    assert (meter.bytes_down, meter.bytes_up) == (3 * 3 * 43 * 4, 3 * 3 * 43 * 4)
    assert (meter.images, meter.rounds) == (3 * 28, 3)
    no_rounds, fresh = trained(clients, [1, 0], rounds=0, w=w)
    assert torch.equal(no_rounds, w)
    assert torch.equal(fresh[1], fresh_head(find_head(NET, w, clients[0][0]), w, seed=0, client_id=1))


def test_clients_together_or_one_by_one():
    loop, vmap = (trained(federation(), [0, 2], how=how) for how in ("loop", "vmap"))
    torch.testing.assert_close(loop, vmap, **EXACT)


def test_two_headed_models_of_every_shape():
    """Logits of both heads side by side, wherever the head sits; `part` inverts `join`."""
    for module, shape in [(nn.Linear(4, 3), (4,)), (SmallResNet(3, 3), (3, 8, 8)), (vit_tiny(1, 8, 3), (1, 8, 8))]:
        model = FlatModel(module)
        w, x = model.init(0), torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
        head = find_head(model, w, x)
        two, h_A = TwoHeaded(model, head), torch.stack([w[head.place] + 1, 2 * w[head.place]])
        rows = two.join(w, h_A)
        assert rows.shape == (2, two.d) == (2, model.d + head.d)
        for row, h in zip(rows, h_A, strict=True):
            z_L, z_A = two.predict(row, x).chunk(2, dim=1)
            torch.testing.assert_close(z_L, model.predict(w, x))
            torch.testing.assert_close(z_A, model.predict(head.put(w, h), x))
        models, heads = two.part(rows)
        assert torch.equal(models, w.expand(2, -1))
        assert torch.equal(heads, h_A)


def test_training_requests_that_cannot_be_served():
    clients = federation()
    with pytest.raises(InvalidRequest, match="exclude each other"):
        trained(clients, [1], forget={1: clients[1]}, forget_class=0)
    with pytest.raises(InvalidRequest, match="forget_class must be in 0 to 2, got 3"):
        trained(clients, [1], forget_class=3)
    with pytest.raises(NumericalFailure, match="round 1: its update is not finite"):
        trained(clients, [1], local=replace(LOCAL, lr=1e200, lr_decay=1.0, epochs=9))
