"""Federated SISA: exact to the bit, and only what must be retrained is."""

import math

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.request import Deletion
from fu_core.unlearning.baselines.sisa import (
    SISA,
    Ensemble,
    in_shards,
    in_shards_many,
    serve,
    shard_clients,
    sisa,
    sisa_unlearn,
)
from fu_core.unlearning.memory import Memory
from fu_core.unlearning.method import Trained

MODEL = FlatModel(softmax_regression(4, 3))
W_0 = MODEL.init(0)
SHARDS = [[0, 3], [5, 1, 2], [4, 6]]
ROUNDS = 6
LOCAL = ClientOpt(lr=0.3, lr_decay=0.9, momentum=0.5, epochs=2, batch_size=4)


def clients():
    g = torch.Generator().manual_seed(1)
    sizes = (9, 12, 10, 8, 11, 7, 13)
    return [(torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


CLIENTS = clients()


def federation(meter=None):
    return Federation(MODEL, CLIENTS, LOCAL, seed=3, meter=meter or Meter())


def train(shards=SHARDS, f=None):
    return sisa(f or federation(), W_0, ROUNDS, shards)


def unlearn(ensemble, forget, meter=None):
    return sisa_unlearn(federation(meter), ensemble, Deletion.of(CLIENTS, forget), W_0, ROUNDS)


def same(a: Ensemble, b: Ensemble) -> bool:
    """Bit for bit: the same clients in the same shards with the same models, in one order."""
    return list(a.shards) == list(b.shards) and all(map(torch.equal, a.shards.values(), b.shards.values()))


def test_the_ensembles_of_many_seeds_are_those_of_each():
    f, seeds = federation(), (3, 8, 9)
    w_0 = torch.stack([MODEL.init(seed) for seed in seeds])
    for found, seed, start in zip(in_shards_many(f, seeds, w_0, ROUNDS, SISA(2)), seeds, w_0, strict=True):
        alone = in_shards(f.having(seed=seed), start, ROUNDS, SISA(2))
        assert list(found.shards) == list(alone.shards)
        for ids, w in found.shards.items():
            torch.testing.assert_close(w, alone.shards[ids], rtol=1e-4, atol=1e-6)
    assert f.meter == Meter()  # it is no cost of unlearning


@pytest.mark.parametrize(("clients", "shards"), [(10, 3), (9, 3), (4, 4), (5, 1)])
def test_shards_are_balanced_disjoint_and_complete(clients, shards):
    groups = shard_clients(clients, shards, seed=0)
    assert sorted(i for group in groups for i in group) == list(range(clients))
    assert len(groups) == shards
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert all(group == sorted(group) for group in groups)


def test_shards_depend_on_the_seed_alone():
    assert shard_clients(20, 3, seed=0) == shard_clients(20, 3, seed=0)
    assert shard_clients(20, 3, seed=0) != shard_clients(20, 3, seed=1)
    with pytest.raises(ValueError, match="clients must be a whole number >= 4"):
        shard_clients(3, 4, seed=0)


def test_one_shard_is_plain_fedavg():
    assert torch.equal(train([list(range(7))]).shards[tuple(range(7))], fedavg(federation(), W_0, ROUNDS))


def test_a_client_leaves_as_if_it_had_never_been_there():
    """Bit for bit the ensemble that never saw it; its shard is retrained, and others keep the very same tensors."""
    before = train()
    after = unlearn(before, 2)
    left = federation().having(clients={i: CLIENTS[i] for i in (1, 5)})
    assert torch.equal(after.shards[1, 5], fedavg(left, W_0, ROUNDS))
    never_there = federation().after(Deletion.of(CLIENTS, 2))
    assert same(after, train([[0, 3], [1, 5], [4, 6]], never_there))
    assert not torch.equal(after.shards[1, 5], before.shards[1, 2, 5])
    assert after.shards[0, 3] is before.shards[0, 3]
    assert after.shards[4, 6] is before.shards[4, 6]


def test_several_clients_leave():
    assert same(unlearn(train(), [3, 5, 1]), train([[0], [2], [4, 6]]))


def test_a_request_to_every_shard_retrains_all():
    meter, full = Meter(), Meter()
    after = unlearn(train(), [0, 1, 4], meter)
    assert same(after, train([[3], [2, 5], [6]], federation(full)))
    assert meter == full


def test_removed_samples_are_as_if_never_held():
    """Clients 2 and 4 keep some of their samples, in their own order, and stay in their shards."""
    gone = {2: torch.tensor([7, 0, 3, 4, 6, 9]), 4: torch.tensor([0])}
    kept = {2: torch.tensor([1, 2, 5, 8]), 4: torch.arange(1, 11)}
    less = {i: (x[kept[i]], y[kept[i]]) if i in kept else (x, y) for i, (x, y) in enumerate(CLIENTS)}
    before = train()
    after = unlearn(before, gone)
    assert same(after, train(f=federation().having(clients=less)))
    assert after.shards[0, 3] is before.shards[0, 3]


def test_requests_add_up():
    """Samples removed first stay removed when somebody else leaves, and when their client leaves later."""
    f, w_0, ensemble = federation(), W_0, train()
    for forget, shards in [
        ({2: torch.arange(5, 10)}, SHARDS),
        (5, [[0, 3], [1, 2], [4, 6]]),
        (2, [[0, 3], [1], [4, 6]]),
    ]:
        deletion = Deletion.of(f.clients, forget)
        ensemble = sisa_unlearn(f, ensemble, deletion, w_0, ROUNDS)
        f = f.after(deletion)
        assert same(ensemble, train(shards, f))


def test_an_empty_shard_drops_out():
    before = train()
    after = unlearn(before, [0, 3])
    assert list(after.shards) == [(1, 2, 5), (4, 6)]
    assert after.shards[1, 2, 5] is before.shards[1, 2, 5]
    with pytest.raises(InvalidRequest, match="an ensemble of none cannot predict"):
        unlearn(Ensemble(MODEL, {(0, 3): W_0}), [0, 3])


def test_a_target_in_no_shard_has_taught_no_model():
    meter, ensemble = Meter(), train([[0, 3], [1, 5]])
    after = unlearn(ensemble, [2, 6], meter)
    assert all(after.shards[ids] is w for ids, w in ensemble.shards.items())
    assert (meter.images, meter.bytes, meter.rounds) == (0, 0, 0)


def test_what_is_given_is_left_untouched():
    w_0 = W_0.clone()
    ensemble = sisa(federation(), w_0, ROUNDS, SHARDS)
    before = {ids: w.clone() for ids, w in ensemble.shards.items()}
    unlearn(ensemble, {0: torch.arange(9), 2: torch.arange(10), 4: torch.arange(3)})
    assert torch.equal(w_0, W_0)
    assert same(ensemble, Ensemble(MODEL, before))


@pytest.mark.parametrize(
    ("targets", "retrained"), [([2], [1, 5]), ([2, 6], [1, 4, 5]), ([0, 1, 2, 6], [3, 4, 5]), ([0, 3], [])]
)
def test_cost_is_two_models_per_affected_client_and_round(targets, retrained):
    """2 P B R sum_{s affected} C_s bytes, R E epochs over those clients' data, S P B stored."""
    meter, P, B, R, E = Meter(), MODEL.d, 4, 6, 2
    after = unlearn(train(), targets, meter)
    assert meter.bytes == 2 * P * B * R * len(retrained)
    assert meter.images == R * E * sum(len(CLIENTS[i][1]) for i in retrained)
    assert meter.storage == len(after.shards) * P * B
    assert meter.rounds == (R if retrained else 0)


def test_training_stores_one_model_per_shard():
    meter = Meter()
    train(f=federation(meter))
    assert meter.storage == 3 * MODEL.d * 4
    assert meter.bytes == 2 * MODEL.d * 4 * 6 * 7
    assert meter.rounds == 6


# --- as a method -----------------------------------------------------------------------------------------------------


def served(forget, memory=None, config=None, w_0=W_0):
    """What the method gives, and what it counts."""
    meter = Meter()
    trained = Trained(federation(meter), rounds=ROUNDS, w_0=w_0, memory=memory or Memory())
    return serve(trained, Deletion.of(CLIENTS, forget), config or SISA()), meter


def test_kept_shards_are_served():
    """As they were trained, or read back from a file."""
    before = train()
    written = Memory()
    written.restore(Memory(shards=before.shards).tensors())
    for memory in (Memory(shards=before.shards), written):
        after, meter = served(2, memory)
        assert same(after, unlearn(before, 2))
        assert after.shards[4, 6] is memory.shards[4, 6]
        assert meter.images == 6 * 2 * (12 + 7)


def test_shards_that_were_kept_without_the_target_are_ready():
    """Nothing is trained twice where somebody has retrained the target's shard already."""
    ready = unlearn(train(), 2)
    after, meter = served(2, Memory(shards=ready.shards))
    assert all(after.shards[ids] is w for ids, w in ready.shards.items())
    assert (meter.images, meter.bytes, meter.rounds) == (0, 0, 0)


def test_without_kept_shards_they_are_trained_and_only_the_targets_is_counted():
    groups = shard_clients(7, 2, seed=3)
    stay = [i for group in groups if 2 in group for i in group if i != 2]
    after, meter = served(2, config=SISA(shards=2))
    assert same(after, train([[i for i in group if i != 2] for group in groups]))
    assert meter.images == 6 * 2 * sum(len(CLIENTS[i][1]) for i in stay)
    assert meter.rounds == 6


def test_shards_of_clients_with_other_ids():
    f = federation().having(clients={10 * i + 3: client for i, client in enumerate(CLIENTS)})
    after = serve(Trained(f, rounds=1, w_0=W_0), Deletion.of(f.clients, 23), SISA(shards=2))
    groups = [tuple(10 * k + 3 for k in group if k != 2) for group in shard_clients(7, 2, seed=3)]
    assert list(after.shards) == groups


def test_where_training_began_must_be_known():
    with pytest.raises(MissingHistory, match="w_0: nobody kept where training began"):
        served(2, w_0=None)
    with pytest.raises(ValueError, match="shards must be a whole number >= 1, got 0"):
        SISA(shards=0)


# --- ensembles -------------------------------------------------------------------------------------------------------


def ensemble(model, *models):
    return Ensemble(model, {(s,): w for s, w in enumerate(models)})


def test_ensemble_by_hand():
    """Softmax outputs (3/4, 1/4), (1/5, 4/5) and (3/5, 2/5): their mean."""
    model, x = FlatModel(softmax_regression(1, 2)), torch.zeros(2, 1)
    models = [torch.tensor([0, 0, math.log(odds), 0]) for odds in (3.0, 0.25, 1.5)]
    expected = torch.tensor([(0.75 + 0.2 + 0.6) / 3, (0.25 + 0.8 + 0.4) / 3])
    torch.testing.assert_close(ensemble(model, *models).log_probabilities(x).exp(), expected.expand(2, 2))


def test_an_ensemble_of_one_is_the_model():
    x, w = CLIENTS[0][0], train().shards[0, 3]
    ours = ensemble(MODEL, w).log_probabilities(x)
    torch.testing.assert_close(ours, MODEL.logits(w, x).log_softmax(dim=1))
    y = MODEL.logits(w, x).argmax(dim=1)
    assert torch.equal(ours.argmax(dim=1), y)
    assert accuracy(MODEL, w, x, y) == 100.0


def test_segmentation_ensembles_average_per_pixel():
    model = FlatModel(nn.Conv2d(1, 2, 1), task="segmentation")
    x = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    models = [model.init(0), model.init(1)]
    expected = sum(model.logits(w, x).softmax(dim=1) for w in models) / 2
    torch.testing.assert_close(ensemble(model, *models).log_probabilities(x).exp(), expected)


def test_ensembles_need_classes(quadratics):
    with pytest.raises(UnsupportedTask, match="regressions"):
        ensemble(quadratics.model, torch.zeros(3)).log_probabilities(torch.zeros(1, 3))


def test_trainings_that_make_no_sense():
    for shards, message in [
        ([[0], []], "at least one client each"),
        ([[0, 1], [1]], "disjoint groups"),
        ([[0, 7]], r"disjoint groups of the clients \[0, 1, 2, 3, 4, 5, 6\], got \[0, 7\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(shards)
