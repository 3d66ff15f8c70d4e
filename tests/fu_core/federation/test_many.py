"""Many federations at once, one seed each, against the same federations one by one."""

import pytest
import torch

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedTask
from fu_core.federation import together
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.many import fedavg_many
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp, softmax_regression
from fu_core.unlearning.memory import UpdateHistory
from tests.federations import among_peers, dealt

SEEDS = (3, 11, 12, 40)
ROUNDS = 3
LOCAL = ClientOpt(lr=0.1, batch_size=7, momentum=0.5, epochs=1.5)


def federation(net=mlp, **fields):
    """Four clients of different size, so that batches are partial and clients end at different steps."""
    return Federation(FlatModel(net(5, 3)), dealt([18, 9, 30, 21]), **{"local": LOCAL, "meter": Meter(), **fields})


def one_by_one(f, seeds=SEEDS):
    return torch.stack([fedavg(f.having(seed=s), f.model.init(s), ROUNDS) for s in seeds])


@pytest.mark.parametrize("net", [mlp, softmax_regression])
@pytest.mark.parametrize("how", ["auto", "vmap", "dense"])
def test_every_row_is_the_training_of_its_seed(net, how):
    f, plain = federation(net, how=how), federation(net, how="loop")
    many, each = fedavg_many(f, SEEDS, ROUNDS), one_by_one(plain)
    torch.testing.assert_close(many, each, rtol=1e-4, atol=1e-6)
    assert (each[0] - each[1]).norm() > 0.1  # seeds differ by far more than rounding
    assert f.meter == plain.meter  # together they cost what all of them cost


def test_the_plain_loop_is_the_same_bit_for_bit():
    f = federation(how="loop")
    assert torch.equal(fedavg_many(f, SEEDS, ROUNDS), one_by_one(f))


def test_a_share_of_the_clients_takes_part_as_alone():
    f = federation(participation=0.5)
    assert torch.equal(fedavg_many(f, SEEDS, ROUNDS), one_by_one(f))


@pytest.mark.parametrize("how", ["auto", "loop"])
def test_each_may_consist_of_some_of_the_clients(how):
    """As the shards of an ensemble do, two of which have the seed of one training."""
    f, plain, seen = federation(how=how), federation(how="loop"), []
    seeds, of = (3, 3, 11, 12), [[2, 0], [1, 3], [0, 1, 2, 3], [2]]
    many = fedavg_many(f, seeds, ROUNDS, of=of, on_updates=lambda s, t, ids, deltas: seen.append((s, t, ids, deltas)))
    each = [
        fedavg(plain.having(seed=s, clients={i: plain.clients[i] for i in sorted(ids)}), plain.model.init(s), ROUNDS)
        for s, ids in zip(seeds, of, strict=True)
    ]
    torch.testing.assert_close(many, torch.stack(each), rtol=1e-4, atol=1e-6)
    assert f.meter == plain.meter
    assert {(s, tuple(ids)) for s, _, ids, _ in seen} == {(s, tuple(sorted(i))) for s, i in zip(seeds, of, strict=True)}
    assert all(len(deltas) == len(ids) for _, _, ids, deltas in seen)


@pytest.mark.parametrize("limit", ["TOGETHER", "CACHED"])
def test_blocks_that_fit_the_cache_change_nothing(monkeypatch, limit):
    f = federation()
    whole = fedavg_many(f, SEEDS, ROUNDS)
    monkeypatch.setattr(together, limit, {"TOGETHER": 4, "CACHED": 4 * f.model.d}[limit])
    assert together.rows_at_once(whole, 100) == 4
    torch.testing.assert_close(fedavg_many(f, SEEDS, ROUNDS), whole, rtol=1e-5, atol=1e-7)


def test_large_models_are_trained_few_at_once_on_a_processor_and_never_none():
    """4 MB of them: a hundred softmax regressions on digits, ten perceptrons of a hundred thousand weights."""
    sizes = {650: 100, 101_770: 10, 10_000_000: 1}
    assert {d: together.rows_at_once(torch.empty(d, device="cpu"), 640) for d in sizes} == sizes
    assert together.rows_at_once(torch.empty(101_770, device="meta"), 640) == 640


def test_a_server_with_moments_keeps_one_for_each():
    f = federation(exchange=FedOpt("adam", lr=0.05))
    torch.testing.assert_close(fedavg_many(f, SEEDS, ROUNDS), one_by_one(f.having(how="loop")), rtol=1e-3, atol=1e-5)


def test_they_go_on_from_where_they_are():
    f = federation()
    half = fedavg_many(f, SEEDS, 1)
    torch.testing.assert_close(
        fedavg_many(f, SEEDS, ROUNDS - 1, half, first_round=2), fedavg_many(f, SEEDS, ROUNDS), rtol=1e-5, atol=1e-7
    )
    same = fedavg_many(f, SEEDS, 1, half[0])  # one start for all, and batches of their own
    torch.testing.assert_close(same, fedavg_many(f, SEEDS, 1, half[:1].expand(4, -1)))
    assert (same[0] - same[1]).norm() > 0.01


@pytest.mark.parametrize("how", ["auto", "loop"])
def test_every_federation_s_updates_are_seen(how):
    f = federation(how=how)
    histories = {s: UpdateHistory(f.model.init(s)) for s in SEEDS}
    fedavg_many(f, SEEDS, ROUNDS, on_updates=lambda s, t, ids, deltas: histories[s].record(t, ids, deltas))
    alone = UpdateHistory(f.model.init(SEEDS[1]))
    fedavg(f.having(seed=SEEDS[1]), alone.w_0, ROUNDS, on_updates=alone.record)
    for t in range(1, ROUNDS + 1):
        torch.testing.assert_close(histories[SEEDS[1]].update(t, 2), alone.update(t, 2), rtol=1e-4, atol=1e-6)


def test_what_is_wrong_is_named():
    f = federation()
    with pytest.raises(InvalidRequest, match="seeds must name at least one"):
        fedavg_many(f, [], ROUNDS)
    for wrong in ([[0], [7]], [[0], []], [[0], [1, 1]]):
        with pytest.raises(InvalidRequest, match="of must be groups of different clients among"):
            fedavg_many(f, [0, 1], ROUNDS, of=wrong)
    with pytest.raises(ValueError, match="of must name the clients of each of 2 federations, got 1 groups"):
        fedavg_many(f, [0, 1], ROUNDS, of=[[0]])
    with pytest.raises(ValueError, match=r"w_0 must have shape .*, got \(3,"):
        fedavg_many(f, SEEDS, ROUNDS, torch.zeros(3, f.model.d))
    with pytest.raises(ValueError, match="rounds must be"):
        fedavg_many(f, SEEDS, -1)
    with pytest.raises(UnsupportedTask, match="peers"):
        fedavg_many(among_peers().federation, SEEDS, ROUNDS)
    with pytest.raises(NumericalFailure, match="seed 3, round 2"):
        fedavg_many(f.having(local=ClientOpt(lr=1e38)), SEEDS, ROUNDS)
