"""FedAU, its authors' variant: two heads trained at once, what becomes of them, and what is sent for it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import train_client
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.models.resnet import SmallResNet
from fu_core.models.vit import vit_tiny
from fu_core.request import Deletion
from fu_core.unlearning.baselines.fed_au import find_head, fresh_head, random_labels
from fu_core.unlearning.baselines.fed_au_official import TwoHeaded, fed_au_train, fed_au_unlearn, subtract_heads
from tests.fu_core.unlearning.test_fed_au import EXACT, HEAD, LOCAL, NET, W, federation


def trained(f, forget, *, rounds=3, w=W):
    return fed_au_train(f, w, Deletion.of(f.clients, forget), rounds)


def without_backbone():
    """Softmax regression, where the heads share nothing, and its start."""
    model = FlatModel(nn.Linear(4, 3))
    return federation().having(model=model, how="loop"), model.init(0, torch.float64)


def own_head(f, w_0, u, labels):
    """Three rounds of client u's own SGD from its fresh head, on `labels`."""
    x, _ = f.clients[u]
    h = fresh_head(find_head(f.model, w_0, x), w_0, seed=0, client_id=u)
    alone = f.having(clients={u: (x, labels)})
    for t in (1, 2, 3):
        h = train_client(alone, h, u, t)
    return h[None]


def test_without_a_backbone_the_two_heads_train_apart():
    """Softmax regression: h_L is FedAvg's, and h_A is the target's own SGD on its random labels, drawn once."""
    f, w_0 = without_backbone()
    w, h_A = trained(f, 1, w=w_0)
    torch.testing.assert_close(w, fedavg(f, w_0, 3), **EXACT)
    labels = random_labels(12, 3, seed=0, client_id=1, epoch=0)
    torch.testing.assert_close(h_A, own_head(f, w_0, 1, labels), **EXACT)
    assert not torch.equal(labels, f.clients[1][1])


def test_the_backbone_learns_from_both_heads():
    """One full-batch step of the target: the gradient of CE(h_L; y) + CE(h_A; y_A), written out with autograd."""
    f = federation().having(local=replace(LOCAL, batch_size=10**6, weight_decay=0.0))
    x, y = f.clients[1]
    y_A = random_labels(12, 3, seed=0, client_id=1, epoch=0)
    h_0 = fresh_head(find_head(NET, W, x), W, seed=0, client_id=1)
    w, h = W.clone().requires_grad_(), h_0.clone().requires_grad_()
    z = torch.tanh(x @ w[:20].view(5, 4).T + w[20:25])
    z_L, z_A = (z @ p[:15].view(3, 5).T + p[15:] for p in (w[HEAD], h))
    loss = nn.functional.cross_entropy(z_L, y) + nn.functional.cross_entropy(z_A, y_A)
    g_w, g_h = torch.autograd.grad(loss, (w, h))
    others = train_round(f, W, 1, [0, 2])
    ours, h_A = trained(f.having(how="loop"), 1, rounds=1)
    by_hand = W + (9 * others[0] - 12 * 0.5 * g_w + 7 * others[1]) / 28
    torch.testing.assert_close(ours, by_hand, **EXACT)
    torch.testing.assert_close(h_A, (h_0 - 0.5 * g_h)[None], **EXACT)


def test_sample_requests_randomise_the_forgotten_labels_alone():
    """Every client trains on all it has; h_A sees true labels for the 8 samples kept."""
    f, w_0 = without_backbone()
    w, h_A = trained(f, {1: torch.arange(8, 12)}, w=w_0)
    torch.testing.assert_close(w, fedavg(f, w_0, 3), **EXACT)
    labels = torch.cat([f.clients[1][1][:8], random_labels(4, 3, seed=0, client_id=1, epoch=0)])
    torch.testing.assert_close(h_A, own_head(f, w_0, 1, labels), **EXACT)


def class_2_of_two_clients():
    """Three clear classes, everything of class 2 to be forgotten."""
    g = torch.Generator().manual_seed(0)
    centres, y = 3 * torch.eye(3, 4), torch.arange(60) % 3
    f = Federation(NET, [(centres[y] + 0.3 * torch.randn(60, 4, generator=g), y) for _ in range(2)], LOCAL, how="loop")
    return f, Deletion.of(f.clients, {i: (y == 2).nonzero()[:, 0] for i in (0, 1)})


def test_a_class_is_the_label_of_everything_and_is_subtracted():
    """Everybody trains an auxiliary head that says class 2; without those heads nobody is told class 2 any more."""
    f, deletion = class_2_of_two_clients()
    w, h_A = fed_au_train(f, W.float(), deletion, 20)
    x, y = f.clients[0]
    assert accuracy(NET, w, x, y) > 95
    taught = w.clone()
    taught[HEAD] = h_A[0]
    assert (NET.predict(taught, x).argmax(dim=1) == 2).all()
    after = fed_au_unlearn(f, w, h_A, deletion)
    torch.testing.assert_close(after[HEAD], w[HEAD] - (h_A[0] + h_A[1]) / 2)
    assert torch.equal(after[:25], w[:25])
    assert (NET.predict(after, x).argmax(dim=1) != 2).all()
    assert accuracy(NET, after, x[y != 2], y[y != 2]) > 95


@pytest.mark.parametrize(("classes", "rows"), [((1, 2), 40), ((2,), 10)])
def test_only_one_whole_class_is_subtracted(classes, rows):
    """Two classes, or half of one, are samples like others: random labels, and the mixture of heads."""
    f, _ = class_2_of_two_clients()
    _, y = f.clients[0]
    gone = torch.isin(y, torch.tensor(classes)).nonzero()[:rows, 0]
    assert len(gone) == rows
    deletion = Deletion.of(f.clients, {0: gone, 1: gone})
    w, h_A = fed_au_train(f, W.float(), deletion, 1)
    after = fed_au_unlearn(f, w, h_A, deletion)
    torch.testing.assert_close(after[HEAD], 0.1 * w[HEAD] + 0.9 * (h_A[0] + h_A[1]) / 2)


def test_subtracted_heads_on_paper():
    """h_L = (4, 8), h_A = (1, 0) and (3, -4) with mean (2, -2): (2, 10)."""
    h_L, h_A = torch.tensor([4.0, 8.0]), torch.tensor([[1.0, 0.0], [3.0, -4.0]])
    assert subtract_heads(h_L, h_A).tolist() == [2.0, 10.0]


def test_the_official_mixture():
    """(1 - alpha) h_L + alpha / |U| sum h_A, alpha = 0.9 by default; alpha = 0 is the identity."""
    f = federation()
    deletion = Deletion.of(f.clients, [0, 2])
    w, h_A = trained(f, [0, 2])
    counted = f.having(meter=Meter())
    after = fed_au_unlearn(counted, w, h_A, deletion)
    torch.testing.assert_close(after[HEAD], 0.1 * w[HEAD] + 0.9 * (h_A[0] + h_A[1]) / 2, **EXACT)
    assert torch.equal(after[:25], w[:25])
    assert torch.equal(fed_au_unlearn(f, w, h_A, deletion, alpha=0.0), w)
    assert (counted.meter.bytes, counted.meter.rounds, counted.meter.storage) == (2 * 2 * 18 * 8, 1, 43 * 8)
    with pytest.raises(ValueError, match="alpha must be between 0 and 1, got 2"):
        fed_au_unlearn(f, w, h_A, deletion, alpha=2)


def test_training_sends_the_global_model_alone_and_overwrites_nothing():
    """C P B bytes each way per round, all images counted."""
    f, w = federation(), W.float()
    f = f.having(clients={i: (x.float(), y) for i, (x, y) in f.clients.items()})
    after, h_A = trained(f, [1, 0], w=w)
    assert torch.equal(w, W.float())
    assert (after.shape, h_A.shape) == ((43,), (2, 18))
    assert (f.meter.bytes_down, f.meter.bytes_up) == (3 * 3 * 43 * 4, 3 * 3 * 43 * 4)
    assert (f.meter.images, f.meter.rounds) == (3 * 28, 3)
    no_rounds, fresh = trained(f, [1, 0], rounds=0, w=w)
    assert torch.equal(no_rounds, w)
    assert torch.equal(fresh[1], fresh_head(find_head(NET, w, f.clients[0][0]), w, seed=0, client_id=1))


def test_the_servers_optimiser_is_the_federations():
    """eta_s = 1/2: half of FedAvg's step in one round."""
    f = federation()
    whole, h_A = trained(f, 1, rounds=1)
    half, same = trained(f.having(exchange=FedOpt(lr=0.5)), 1, rounds=1)
    torch.testing.assert_close(half - W, (whole - W) / 2, **EXACT)
    assert torch.equal(h_A, same)


def test_clients_together_or_one_by_one():
    loop, vmap = (trained(federation().having(how=how), [0, 2]) for how in ("loop", "vmap"))
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


def test_divergence_is_named():
    with pytest.raises(NumericalFailure, match="round 1: its update is not finite"):
        trained(federation().having(local=replace(LOCAL, lr=1e200, lr_decay=1.0, epochs=9), how="loop"), 1)
