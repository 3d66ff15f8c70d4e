"""Federated SISA: exact to the bit, and only what must be retrained is."""

import math

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.unlearning.baselines.retrain import retrain
from fu_core.unlearning.baselines.sisa import (
    SISA,
    ensemble_log_probabilities,
    shard_clients,
    sisa_train,
    sisa_unlearn,
    slice_numbers,
)

MODEL = FlatModel(softmax_regression(4, 3))
W_0 = MODEL.init(0)
SHARDS = [[0, 3], [1, 2, 5], [4, 6]]
LOCAL = ClientOpt(lr=0.3, lr_decay=0.9, momentum=0.5, epochs=2, batch_size=4)
PLAN = {"rounds": 6, "local": LOCAL, "seed": 3}


def federation():
    g = torch.Generator().manual_seed(1)
    sizes = (9, 12, 10, 8, 11, 7, 13)
    return [(torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


CLIENTS = federation()


def train(shards=SHARDS, **kwargs):
    return sisa_train(MODEL, W_0, CLIENTS, shards=shards, **PLAN, **kwargs)


def unlearn(state, targets, **kwargs):
    return sisa_unlearn(MODEL, state, CLIENTS, targets, **PLAN, **kwargs)


def same(a: SISA, b: SISA) -> bool:
    """Bit for bit: every checkpoint of every shard."""
    return a.shards == b.shards and all(
        len(v) == len(w) and all(map(torch.equal, v, w)) for v, w in zip(a.checkpoints, b.checkpoints, strict=True)
    )


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


def test_slices_are_balanced_and_cut_per_client():
    numbers = slice_numbers(11, 3, seed=0, client=2)
    assert numbers.bincount().tolist() == [0, 4, 4, 3]
    assert torch.equal(numbers, slice_numbers(11, 3, seed=0, client=2))
    assert not torch.equal(numbers, slice_numbers(11, 3, seed=0, client=3))
    assert slice_numbers(11, 1, seed=0, client=2).unique().tolist() == [1]


def test_one_shard_and_one_slice_is_plain_fedavg():
    state = train([list(range(7))])
    assert torch.equal(state.models[0], fedavg(MODEL, W_0, CLIENTS, **PLAN))


def test_slices_by_hand():
    """R_s = 3, R = 6: two rounds on slice 1, two on 1 and 2, two on all; round numbers go on."""
    state = train([[1, 4]], slices=3)
    w = W_0
    for q in (1, 2, 3):
        part = list(CLIENTS)
        for i in (1, 4):
            seen = slice_numbers(len(CLIENTS[i][1]), 3, seed=3, client=i) <= q
            part[i] = (CLIENTS[i][0][seen], CLIENTS[i][1][seen])
        w = fedavg(MODEL, w, part, rounds=2, local=LOCAL, seed=3, exclude=[0, 2, 3, 5, 6], first_round=2 * q - 1)
        assert torch.equal(state.checkpoints[0][q], w)
    assert torch.equal(state.checkpoints[0][0], W_0)
    assert state.slices == 3


def test_a_client_leaves_as_if_it_had_never_been_there():
    """R_s = 1: bit for bit the ensemble of retrained shards, and others keep the very same tensors."""
    state = train()
    after = unlearn(state, [2])
    assert after.shards == ((0, 3), (1, 5), (4, 6))
    assert torch.equal(after.models[1], retrain(MODEL, W_0, CLIENTS, [0, 2, 3, 4, 6], **PLAN))
    assert same(after, train([[0, 3], [1, 5], [4, 6]]))
    assert not torch.equal(after.models[1], state.models[1])
    assert after.checkpoints[0] is state.checkpoints[0]
    assert after.checkpoints[2] is state.checkpoints[2]


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_several_clients_leave_with_any_number_of_slices(slices):
    after = unlearn(train(slices=slices), [3, 5, 1])
    assert same(after, train([[0], [2], [4, 6]], slices=slices))


def test_a_request_to_every_shard_retrains_all():
    meter, full = Meter(), Meter()
    after = unlearn(train(), [0, 1, 4], meter=meter)
    fresh = sisa_train(MODEL, W_0, CLIENTS, shards=[[3], [2, 5], [6]], meter=full, **PLAN)
    assert same(after, fresh)
    assert meter == full


@pytest.mark.parametrize("slices", [1, 3])
def test_removed_samples_are_as_if_never_held(slices):
    keep = {2: torch.tensor([8, 1, 2, 5]), 4: torch.arange(1, 11)}
    after = unlearn(train(slices=slices), [2, 4], keep=keep)
    assert same(after, train(slices=slices, keep=keep))
    if slices == 1:
        kept = list(CLIENTS)
        kept[2] = tuple(part[torch.tensor([1, 2, 5, 8])] for part in CLIENTS[2])
        assert torch.equal(after.models[1], fedavg(MODEL, W_0, kept, exclude=[0, 3, 4, 6], **PLAN))


def test_retraining_starts_from_the_last_checkpoint_before_the_removed_slice():
    """A sample of slice 3 costs the last two rounds only; earlier checkpoints are the same tensors."""
    state, meter = train(slices=3), Meter()
    n = len(CLIENTS[5][1])
    in_last = int((slice_numbers(n, 3, seed=3, client=5) == 3).nonzero()[0])
    keep = {5: torch.tensor([i for i in range(n) if i != in_last])}
    after = unlearn(state, [5], keep=keep, meter=meter)
    assert all(after.checkpoints[1][q] is state.checkpoints[1][q] for q in (0, 1, 2))
    assert after.checkpoints[1][3] is not state.checkpoints[1][3]
    assert same(after, train(slices=3, keep=keep))
    assert (meter.rounds, meter.bytes) == (2, 2 * MODEL.d * 4 * 3 * 2)


def test_a_client_may_keep_less_than_one_sample_per_slice():
    """Nobody in the shard has data of slice 1 or 2: those steps leave the model as it is."""
    numbers = slice_numbers(len(CLIENTS[5][1]), 3, seed=3, client=5)
    keep = {5: (numbers == 3).nonzero()[:1, 0]}
    after = unlearn(train([[5]], slices=3), [5], keep=keep)
    assert same(after, train([[5]], slices=3, keep=keep))
    assert torch.equal(after.checkpoints[0][2], W_0)
    assert not torch.equal(after.checkpoints[0][3], W_0)


def test_requests_add_up():
    """Samples removed first stay removed when somebody else leaves, and when their client leaves later."""
    keep = {2: torch.arange(5)}
    first = unlearn(train(slices=2), [2], keep=keep)
    second = unlearn(first, [5])
    assert same(second, train([[0, 3], [1, 2], [4, 6]], slices=2, keep=keep))
    third = unlearn(second, [2])
    assert same(third, train([[0, 3], [1], [4, 6]], slices=2))
    assert third.keep == {}


def test_an_empty_shard_drops_out():
    state = train()
    after = unlearn(state, [0, 3])
    assert after.shards == ((1, 2, 5), (4, 6))
    assert after.checkpoints[0] is state.checkpoints[1]
    assert len(after.models) == 2


def test_state_is_left_untouched():
    w_init = W_0.clone()
    state = sisa_train(MODEL, w_init, CLIENTS, shards=SHARDS, slices=2, **PLAN)
    w_init.fill_(9)
    before = [[w.clone() for w in steps] for steps in state.checkpoints]
    unlearn(state, [0, 2, 4], keep={4: torch.arange(3)})
    assert state.shards == ((0, 3), (1, 2, 5), (4, 6))
    assert state.keep == {}
    assert all(
        torch.equal(v, w) for a, b in zip(before, state.checkpoints, strict=True) for v, w in zip(a, b, strict=True)
    )
    assert torch.equal(state.checkpoints[0][0], W_0)


@pytest.mark.parametrize(
    ("targets", "retrained"), [([2], [1, 5]), ([2, 6], [1, 4, 5]), ([0, 1, 2, 6], [3, 4, 5]), ([0, 3], [])]
)
def test_cost_is_two_models_per_affected_client_and_round(targets, retrained):
    """2 P B R sum_{s affected} C_{s,r} bytes, R E epochs over those clients' data, S R_s P B stored."""
    meter, P, B, R, E = Meter(), MODEL.d, 4, 6, 2
    after = unlearn(train(), targets, meter=meter)
    assert meter.bytes == 2 * P * B * R * len(retrained)
    assert meter.images == R * E * sum(len(CLIENTS[i][1]) for i in retrained)
    assert meter.storage == len(after.shards) * P * B
    assert meter.rounds == (R if retrained else 0)


@pytest.mark.parametrize("slices", [1, 2])
def test_training_stores_one_model_per_shard_and_slice(slices):
    meter = Meter()
    train(slices=slices, meter=meter)
    assert meter.storage == 3 * slices * MODEL.d * 4
    assert meter.bytes == 2 * MODEL.d * 4 * 6 * 7
    assert meter.rounds == 6


def test_ensemble_by_hand():
    """Softmax outputs (3/4, 1/4), (1/5, 4/5) and (1/2 + e, ...): their mean, and two votes to one."""
    model, x = FlatModel(softmax_regression(1, 2)), torch.zeros(2, 1)
    models = [torch.tensor([0, 0, math.log(odds), 0]) for odds in (3.0, 0.25, 1.5)]
    mean = ensemble_log_probabilities(model, models, x)
    expected = torch.tensor([(0.75 + 0.2 + 0.6) / 3, (0.25 + 0.8 + 0.4) / 3])
    torch.testing.assert_close(mean.exp(), expected.expand(2, 2))
    vote = ensemble_log_probabilities(model, models, x, how="vote")
    torch.testing.assert_close(vote.exp(), torch.tensor([2 / 3, 1 / 3]).expand(2, 2))
    unanimous = ensemble_log_probabilities(model, models[:1], x, how="vote")
    assert unanimous.isfinite().all()
    torch.testing.assert_close(unanimous[0], torch.tensor([0.0, math.log(1e-12)]))


def test_an_ensemble_of_one_is_the_model():
    x, w = CLIENTS[0][0], train().models[0]
    ours = ensemble_log_probabilities(MODEL, [w], x)
    torch.testing.assert_close(ours, MODEL.logits(w, x).log_softmax(dim=1))
    y = MODEL.logits(w, x).argmax(dim=1)
    assert torch.equal(ours.argmax(dim=1), y)
    assert accuracy(MODEL, w, x, y) == 100.0


def test_segmentation_ensembles_average_per_pixel():
    model = FlatModel(nn.Conv2d(1, 2, 1), task="segmentation")
    x = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    models = [model.init(0), model.init(1)]
    expected = sum(model.logits(w, x).softmax(dim=1) for w in models) / 2
    torch.testing.assert_close(ensemble_log_probabilities(model, models, x).exp(), expected)


def test_ensembles_need_classes(quadratics):
    with pytest.raises(UnsupportedTask, match="regressions"):
        ensemble_log_probabilities(quadratics.model, [torch.zeros(3)], torch.zeros(1, 3))
    with pytest.raises(ValueError, match="how must be one of 'mean', 'vote'"):
        ensemble_log_probabilities(MODEL, [W_0], CLIENTS[0][0], how="median")


@pytest.mark.parametrize(
    ("targets", "keep", "message"),
    [
        ([], None, "names nobody"),
        ([7], None, "client 7, which is in no shard"),
        ([2, 2], None, "twice"),
        (list(range(7)), None, "empties every shard"),
        ([2], {1: [0]}, "keep names client 1"),
        ([2], {2: []}, r"keep\[2\] is empty"),
        ([2], {2: [0, 10]}, r"keep\[2\] must be distinct indices from 0 to 9"),
        ([2], {2: [0, 0]}, r"keep\[2\] must be distinct"),
        ([2], {2: list(range(10))}, "removes nothing"),
    ],
)
def test_requests_that_cannot_be_served(targets, keep, message):
    state = SISA(tuple(map(tuple, SHARDS)), ((W_0, W_0),) * 3, {})
    keep = keep and {j: torch.tensor(index, dtype=torch.long) for j, index in keep.items()}
    with pytest.raises(InvalidRequest, match=message):
        unlearn(state, targets, keep=keep)


def test_data_once_removed_cannot_come_back():
    state = unlearn(train(), [2], keep={2: torch.arange(5)})
    with pytest.raises(InvalidRequest, match="removes nothing"):
        unlearn(state, [2], keep={2: torch.arange(5)})
    with pytest.raises(InvalidRequest, match="has removed before"):
        unlearn(state, [2], keep={2: torch.tensor([0, 7])})
    with pytest.raises(InvalidRequest, match="in no shard"):
        unlearn(unlearn(state, [2]), [2])


def test_trainings_that_make_no_sense():
    with pytest.raises(ValueError, match=r"rounds must be a multiple of slices \(4\), got 6"):
        train(slices=4)
    with pytest.raises(ValueError, match="at least one client each"):
        train([[0], []])
    with pytest.raises(ValueError, match="disjoint groups"):
        train([[0, 1], [1]])
    with pytest.raises(ValueError, match="disjoint groups of clients 0 to 6"):
        train([[0, 7]])
