"""Original, Retrain, Natural and NoT: exactness and what they must not touch."""

import pytest
import torch
from torch import nn

from fu_core.errors import MissingHistory, UnsupportedModel
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.resnet import SmallResNet
from fu_core.request import Deletion
from fu_core.unlearning.baselines import retrain as references
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.retrain import original, retrain
from fu_core.unlearning.baselines.weight_negation import NoT, first_layer, negate_weights, serve
from fu_core.unlearning.method import NoParameters, Trained
from tests.nets import Backwards

W_0 = torch.zeros(3, dtype=torch.float64)
SMALL_BATCHES = ClientOpt(lr=0.05, batch_size=3)
NOTHING = NoParameters()


# --- references ---


def test_retraining_if_nobody_forgets_is_the_original_bit_for_bit(quadratics):
    f = quadratics.federation(local=SMALL_BATCHES)
    nobody = Deletion(f.clients, {}, f.clients)
    assert torch.equal(fedavg(f, W_0, 5), retrain(f, W_0, nobody, 5))


def test_retraining_reaches_the_retained_fixed_point(quadratics):
    f = quadratics.federation()
    ours = retrain(f, W_0, quadratics.without(2), 400)
    torch.testing.assert_close(ours, quadratics.fixed_point(exclude=[2]), rtol=1e-9, atol=1e-12)
    assert f.meter.storage == 3 * 8  # the global model


def test_who_forgets_samples_keeps_training_on_the_others(quadratics):
    """Bit for bit the training of a federation that never had those samples."""
    f = quadratics.federation(local=SMALL_BATCHES)
    X, y = quadratics.clients[2]
    never = f.having(clients=[*quadratics.clients[:2], (X[5:], y[5:]), quadratics.clients[3]])
    ours = retrain(f, W_0, Deletion.of(f.clients, {2: torch.arange(5)}), 5)
    assert torch.equal(ours, fedavg(never, W_0, 5))
    assert not torch.equal(ours, fedavg(f, W_0, 5))


def test_peers_are_retrained_on_the_ring_that_closes_again(quadratics):
    """Client 1 of four leaves: 0, 2 and 3 in a ring, Q = 1/3; X <- Q X + Delta with Delta_i = -M_i (x_i - a_i)."""
    q = quadratics
    ours = retrain(q.federation(exchange=Peers(ring(4), "cta")), W_0, q.without(1), 3)
    X = torch.zeros(3, 3, dtype=torch.float64)
    for _ in range(3):
        X = X.mean(dim=0) + torch.stack([-q.M[i] @ (x - q.a[i]) for i, x in zip((0, 2, 3), X, strict=True)])
    torch.testing.assert_close(ours, X, rtol=1e-10, atol=1e-12)


def test_retraining_begins_where_training_began_and_lasts_as_long_whatever_the_model(quadratics):
    f, leaves = quadratics.federation(local=SMALL_BATCHES), quadratics.without(2)
    nonsense = torch.full_like(W_0, torch.nan)
    ours = references.serve(Trained(f, nonsense, rounds=4, w_0=W_0 + 1), leaves, NOTHING)
    assert torch.equal(ours, fedavg(f.after(leaves), W_0 + 1, 4))
    with pytest.raises(MissingHistory, match="w_0: nobody kept where training began"):
        references.serve(Trained(f, W_0, rounds=4), leaves, NOTHING)


def test_retraining_for_no_rounds_is_a_copy_of_the_start(quadratics):
    w_0 = W_0 + 1
    ours = retrain(quadratics.federation(), w_0, quadratics.without(2), 0)
    assert torch.equal(ours, w_0)
    assert ours.data_ptr() != w_0.data_ptr()


def test_the_original_is_a_copy(quadratics):
    f, w = quadratics.federation(), W_0 + 1
    ours = original(Trained(f, w), quadratics.without(2), NOTHING)
    assert torch.equal(ours, w)
    assert ours.data_ptr() != w.data_ptr()
    assert (f.meter.bytes, f.meter.images, f.meter.storage) == (0, 0, 0)


def test_of_peers_the_original_is_the_models_of_those_who_stay(quadratics):
    f = quadratics.federation(exchange=Peers(ring(4)))
    W = dpsgd(f, W_0, 2)
    trained = Trained(f, W)
    assert torch.equal(original(trained, quadratics.without(1), NOTHING), W[[0, 2, 3]])
    some = Deletion.of(f.clients, {1: torch.arange(4)})  # who forgets samples stays
    assert torch.equal(original(trained, some, NOTHING), W)


# --- Natural and NoT ---


def test_natural_changes_nothing_and_copies(quadratics):
    f, w = quadratics.federation(), torch.ones(3)
    after = natural(Trained(f, w), quadratics.without(0), NOTHING)
    assert torch.equal(after, w)
    assert after.data_ptr() != w.data_ptr()
    assert (f.meter.bytes, f.meter.images, f.meter.storage) == (0, 0, 12)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.Sequential(Standardize(torch.zeros(3), torch.ones(3)), SmallResNet(3, 10)), "1.stem.0.weight"),
        (simple_cnn(3, 16, 10), "0.weight"),
    ],
)
def test_only_the_first_weight_is_negated(module, name):
    """NoT: biases, norms and every other layer stay bit for bit."""
    model = FlatModel(module)
    w = model.init(0)
    clients = [(torch.zeros(2, 3, 16, 16), torch.zeros(2, dtype=torch.long)) for _ in range(2)]
    f, leaves = Federation(model, clients), Deletion.of(clients, 0)
    negated = serve(Trained(f, w), leaves, NoT())
    before, after = model.views(w), model.views(negated)
    assert torch.equal(after[name], -before[name])
    assert all(torch.equal(after[other], before[other]) for other in before if other != name)
    assert torch.equal(serve(Trained(f, negated), leaves, NoT()), w)
    assert torch.equal(negate_weights(model, w, [name.removesuffix(".weight")]), negated)
    assert (f.meter.bytes, f.meter.images, f.meter.storage) == (0, 0, 4 * model.d)


def test_negating_two_layers_of_an_odd_network_is_the_identity():
    """tanh(-z) = -tanh(z): without biases, two consecutive negations cancel in the function."""
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))
    model = FlatModel(module)
    w, x = model.init(0), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    both = negate_weights(model, w, layers=["0", "2"])
    torch.testing.assert_close(model.logits(both, x), model.logits(w, x))
    first = negate_weights(model, w, layers=["0"])
    torch.testing.assert_close(model.logits(first, x), -model.logits(w, x))


def test_layers_without_weights_are_named():
    model = FlatModel(simple_cnn(3, 16, 10))
    with pytest.raises(UnsupportedModel, match="layer '1' has no weight"):
        negate_weights(model, model.init(0), layers=["1"])


def test_the_first_layer_is_looked_for_where_the_model_is_and_in_its_precision():
    """NoT in float64, and on a device where the net's own parameters are not; first as a forward pass comes to it."""
    model = FlatModel(Backwards())
    for like in (torch.zeros(1).double(), torch.zeros(1, device="meta")):
        clients = [(torch.ones(3, 4).to(like), torch.zeros(3, dtype=torch.long, device=like.device)) for _ in range(2)]
        w = model.init(0).to(like)
        deletion = Deletion(dict(enumerate(clients)), {0: clients[0]}, {1: clients[1]})
        negated = serve(Trained(Federation(model, clients), w), deletion, NoT())
        assert (negated.dtype, negated.device) == (w.dtype, w.device)
        assert first_layer(model, w, clients[0][0][:1]) == "z_first"
    assert not any(part._forward_pre_hooks for part in model.module.modules())


@pytest.mark.parametrize("layers", ["fc1", 3, (0,)])
def test_layers_to_negate_are_names_in_a_sequence(layers):
    with pytest.raises(ValueError, match=r"layers must be a sequence of module names, \('fc1',\) say, got "):
        NoT(layers=layers)
