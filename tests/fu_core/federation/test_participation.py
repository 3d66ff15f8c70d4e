"""Rounds in which only a share of the clients takes part: who, what the others' draws depend on, and which methods."""

from dataclasses import replace

import pytest
import torch

from fu_core.errors import MissingHistory, UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.horizontal import fedavg, fedavg_round, recovery_path
from fu_core.federation.local import ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.request import Deletion, joined
from fu_core.unlearning.baselines.fed_au_official import fed_au_train
from fu_core.unlearning.baselines.fed_eraser import FedEraser, fed_eraser
from fu_core.unlearning.baselines.mode import MoDe, mode
from fu_core.unlearning.baselines.pga import PGA
from fu_core.unlearning.baselines.pga import serve as serve_pga
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, methods, unlearn
from fu_core.unlearning.puf import PUF, puf_round

W_0 = torch.zeros(3, dtype=torch.float64)
EXACT = {"rtol": 1e-10, "atol": 1e-12}
SERVED = {name: m for name, m in methods().items() if "server" in m.exchanges}
NEEDS_ALL = {
    "PGA", "FedEraser", "HF-KCU", "HF-KCU held-out", "Stored vectors", "FedORA horizontal", "FedORA horizontal reverse",
    "Trust-region Newton", "Last layer",
}  # fmt: skip
GIVEN = {  # parameters without which a method serves nobody, of those that are trained
    "HF-KCU held-out": lambda before: {"held_out": joined(before.horizontal.clients)},
    "SCRUB+R": lambda before: {"held_out": joined(before.horizontal.clients)},
    "Stored vectors": lambda before: {"vectors": {1: torch.ones_like(before.w)}},
}


def many(n=20, share=0.25, seed=0):
    """A federation of which only the names of its clients matter."""
    client = (torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    return Federation(FlatModel(softmax_regression(2, 2)), [client] * n, seed=seed, participation=share)


def half(q, **fields):
    return q.federation(**{"participation": 0.5, "local": replace(q.local, batch_size=5), **fields})


@pytest.mark.parametrize(("share", "n", "m"), [(0.25, 20, 5), (0.1, 4, 1), (0.01, 20, 1), (0.5, 5, 3), (0.99, 20, 20)])
def test_as_many_take_part_as_the_share_says_and_at_least_one(share, n, m):
    """round(share N), halves up."""
    f = many(n, share)
    for t in range(1, 6):
        ids = f.taking_part(t)
        assert len(set(ids)) == m
        assert ids == sorted(ids)
        assert set(ids) <= set(f.ids)


def test_everybody_takes_part_equally_often():
    """A quarter of 20 in 400 rounds: 100 times each, give or take four standard errors of 8.7."""
    f = many()
    times = torch.zeros(20)
    for t in range(400):
        times[f.taking_part(t)] += 1
    assert (times - 100).abs().max() < 35
    assert [f.taking_part(t) for t in range(9)] == [many().taking_part(t) for t in range(9)]
    assert [f.taking_part(t) for t in range(9)] != [many(seed=1).taking_part(t) for t in range(9)]


def test_one_client_less_changes_one_place_at_most():
    """Whoever is drawn without client 7 was drawn with it, or takes its place."""
    f = many()
    without = f.having(clients={i: f.clients[i] for i in f.ids if i != 7})
    moved = []
    for t in range(200):
        before, after = set(f.taking_part(t)), set(without.taking_part(t))
        assert len(after - before) <= 1
        assert before - after <= {7}
        moved.append(before != after)
    assert 0 < sum(moved) < 100  # in the rounds that have client 7, about a quarter


def test_its_rounds_are_those_of_these_clients(quadratics):
    f, w, told = half(quadratics), W_0, []
    ours = fedavg(f, W_0, 5, first_round=3, on_updates=lambda t, ids, deltas: told.append((t, ids, len(deltas))))
    assert told == [(t, f.taking_part(t), 2) for t in range(3, 8)]
    assert len({tuple(ids) for _, ids, _ in told}) > 1
    assert f.meter.bytes == 5 * 2 * 2 * 3 * 8
    everybody = half(quadratics, participation=1.0)
    for t in range(3, 8):
        w, _ = fedavg_round(everybody, w, t, ids=f.taking_part(t))
    assert torch.equal(ours, w)


def test_all_of_them_are_what_there_was_without_a_share(quadratics):
    f, w = half(quadratics, participation=1.0), W_0
    assert quadratics.federation().participation == 1.0
    for t in (1, 2, 3):
        w, _ = fedavg_round(f, w, t, ids=[0, 1, 2, 3])
    assert torch.equal(fedavg(f, W_0, 3), w)
    assert torch.equal(fedavg(f.having(participation=1), W_0, 3), w)


def test_recovery_is_with_a_share_of_those_who_stay(quadratics):
    f = half(quadratics).after(quadratics.without(1))
    *_, (_, w) = recovery_path(f, W_0, first_round=4, cap=3)
    assert f.participation == 0.5
    assert torch.equal(w, fedavg(f, W_0, 3, first_round=4))
    assert all(len(f.taking_part(t)) == 2 and 1 not in f.taking_part(t) for t in range(4, 30))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan"), "half"])
def test_a_share_is_above_zero_and_at_most_one(quadratics, share):
    with pytest.raises(ValueError, match=r"^participation must be"):
        quadratics.federation(participation=share)


def test_peers_all_take_part(quadratics):
    with pytest.raises(ValueError, match=r"participation must be 1 among peers, who all take part, got 0\.5"):
        quadratics.federation(exchange=Peers(ring(4)), participation=0.5)


# --- unlearning ---


def test_a_regular_round_has_a_share_of_those_who_stay_and_the_target(quadratics):
    """Round 5 without client 1: two of three, by hand with eta_u = 3."""
    q, w = quadratics, torch.ones(3, dtype=torch.float64)
    f = q.federation(participation=0.5)
    staying = f.after(q.without(1)).taking_part(5)
    assert len(staying) == 2
    deltas, n = q.deltas(w), q.sizes
    total = n[[1, *staying]].sum()
    by_hand = w + sum(n[i] * deltas[i] for i in staying) / total - 3 * n[1] / total * deltas[1]
    config = PUF(mode="regular", eta_u=3.0, epochs_u=q.epochs)
    torch.testing.assert_close(puf_round(f, w, q.without(1), config, 5), by_hand, **EXACT)


def test_a_special_round_has_every_target_whatever_the_share(quadratics):
    w, config = torch.ones(3, dtype=torch.float64), PUF(epochs_u=4)
    for share in (0.01, 1.0):
        f = quadratics.federation(participation=share)
        ours = puf_round(f, w, quadratics.without(0, 2), config, 5)
        assert f.meter.bytes == 2 * 2 * 3 * 8
        torch.testing.assert_close(
            ours, puf_round(quadratics.federation(), w, quadratics.without(0, 2), config, 5), **EXACT
        )


def test_mode_needs_a_share_of_those_who_stay_and_its_target():
    """2 P B (2 R_d + 3 R_m) bytes for two of four who stay, R_d = 2 and R_m = 3."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(6, 2, generator=g), torch.arange(6) % 2) for _ in range(5)]
    f = Federation(FlatModel(softmax_regression(2, 2)), clients, ClientOpt(batch_size=3), participation=0.5)
    mode(f, f.model.init(0), Deletion.of(clients, 1), MoDe(rounds_d=2, rounds_m=3), 4)
    assert f.meter.bytes == 2 * f.model.d * 4 * (2 * 2 + 3 * 3)


def trained(share):
    """Six clients; the server has kept what those sent who took part."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 12, 4, generator=g)
    clients = [(x_i, x_i[:, :3].argmax(dim=1)) for x_i in x]
    local = ClientOpt(lr=0.1, batch_size=6)
    f = Federation(FlatModel(softmax_regression(4, 3), l2=0.1), clients, local, participation=share)
    w_0 = f.model.init(0)
    memory = Memory(UpdateHistory(w_0), last_round=4)
    return Trained(f, fedavg(f, w_0, 4, on_updates=memory.record), 4, w_0, memory)


@pytest.mark.parametrize("name", SERVED)
def test_every_method_serves_half_a_federation_or_says_that_it_needs_all(name):
    if name in NEEDS_ALL:
        message = rf"^{name} needs every client in every round, but participation is 0\.5$"
        with pytest.raises(UnsupportedTask, match=message):
            unlearn(name, trained(0.5), "client-1")
    else:
        before = trained(0.5)
        model = unlearn(name, before, "client-1", **GIVEN.get(name, lambda _: {})(before)).model
        if name == "Retrain":
            f = before.horizontal.after(Deletion.of(before.horizontal.clients, 1))
            assert torch.equal(model, fedavg(f, before.w_0, 4))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted(NEEDS_ALL))
def test_those_that_need_all_serve_a_whole_one(name):
    before = trained(1.0)
    given = GIVEN[name](before) if name in GIVEN else {}
    assert unlearn(name, before, "client-1", **given).model.isfinite().all()


def test_what_was_never_sent_is_missed_by_name():
    """Where the functions are called by themselves: FedEraser names the gap, PGA whoever was not there."""
    before = trained(0.5)
    f, memory, last = before.horizontal, before.server_memory, set(before.server_memory.last)
    assert len(last) == 3
    absent = min(set(f.ids) - set(f.taking_part(1)))
    leaves = max(i for i in f.ids if i != absent)
    with pytest.raises(MissingHistory, match=rf"no stored update of client {absent} in round 1"):
        fed_eraser(f, memory.history, Deletion.of(f.clients, leaves), FedEraser())
    with pytest.raises(MissingHistory, match=r"w_u: no stored local model of client .* from the last round"):
        serve_pga(before, Deletion.of(f.clients, min(set(f.ids) - last)), PGA())
    with pytest.raises(MissingHistory, match="w_u: 3 of 6 clients took part in the last round of training"):
        serve_pga(before, Deletion.of(f.clients, min(last)), PGA())


def test_fed_aus_own_training_is_with_all():
    f = trained(0.5).horizontal
    with pytest.raises(UnsupportedTask, match="participation must be 1, since heads are trained round by round"):
        fed_au_train(f, f.model.init(0), Deletion.of(f.clients, 1), 2)
