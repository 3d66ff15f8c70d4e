"""What is kept while a model is trained: copies of the right rounds, that survive a file and change nothing."""

import pytest
import torch

from fu_core.errors import InvalidRequest, MissingHistory
from fu_core.federation.decentralised import dpsgd, start
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.memory import Memory, PeerHistory, UpdateHistory
from tests.quadratics import history_of

W_0 = torch.zeros(3, dtype=torch.float64)


# --- the updates of many rounds ---


def test_interval_retains_every_second_round(quadratics):
    history = history_of(quadratics.federation(), W_0, interval=2)
    assert history.rounds == [1, 3, 5]
    every = history_of(quadratics.federation(), W_0)
    assert every.rounds == [1, 2, 3, 4, 5]
    assert all(torch.equal(history.update(t, k), every.update(t, k)) for t in (1, 3, 5) for k in range(4))
    assert history.nbytes == 4 * 3 * 3 * 8  # C R_ret P B
    with pytest.raises(ValueError, match="interval must be"):
        UpdateHistory(W_0, interval=0)


def test_the_first_round_is_that_of_the_closed_form(quadratics):
    """U_k^1 = -M_k (w_0 - a_k)."""
    history = history_of(quadratics.federation(), W_0, rounds=1)
    torch.testing.assert_close(torch.stack(history.stored), quadratics.deltas(W_0), rtol=1e-10, atol=1e-12)


def test_history_shares_no_storage():
    w_0, deltas = W_0.clone(), torch.ones(2, 3, dtype=torch.float64)
    history = UpdateHistory(w_0)
    history.record(1, [0, 1], deltas)
    w_0.fill_(7), deltas.fill_(7)
    assert torch.equal(history.w_0, W_0)
    assert torch.equal(history.update(1, 1), torch.ones(3, dtype=torch.float64))


def test_history_survives_a_checkpoint(quadratics):
    """An interrupted training goes on with the restored history as if nothing had happened."""
    f = quadratics.federation()
    whole, first, second = history_of(f, W_0), history_of(f, W_0, rounds=2), UpdateHistory(W_0)
    second.record(1, [0], torch.ones(1, 3, dtype=torch.float64))
    saved = first.tensors()
    assert list(saved)[:5] == ["update/1/0", "update/1/1", "update/1/2", "update/1/3", "update/2/0"]
    second.restore({"w": W_0, **saved})
    fedavg(f, fedavg(f, W_0, 2), 3, first_round=3, on_updates=second.record)
    assert second.tensors().keys() == whole.tensors().keys()
    assert all(torch.equal(u, second.tensors()[name]) for name, u in whole.tensors().items())


def test_recording_does_not_change_training(quadratics):
    f, seen = quadratics.federation(), []
    plain = fedavg(f, W_0, 3)
    watched = fedavg(f, W_0, 3, on_updates=lambda t, ids, deltas: seen.append((t, ids, tuple(deltas.shape))))
    assert torch.equal(plain, watched)
    assert seen == [(t, [0, 1, 2, 3], (4, 3)) for t in (1, 2, 3)]


# --- and the last of every client ---


def test_a_memory_keeps_the_last_round_of_all_and_what_its_history_retains(quadratics):
    memory = Memory(UpdateHistory(W_0, interval=2), last_round=4)
    w_3 = fedavg(quadratics.federation(), W_0, 3, on_updates=memory.record)
    assert memory.last == {}
    fedavg(quadratics.federation(), w_3, 1, first_round=4, on_updates=memory.record)
    torch.testing.assert_close(torch.stack([memory.last[k] for k in range(4)]), quadratics.deltas(w_3))
    assert memory.history.rounds == [1, 3]


def test_a_memory_by_default_keeps_nothing(quadratics):
    memory = Memory()
    fedavg(quadratics.federation(), W_0, 2, on_updates=memory.record)
    assert (memory.history, memory.last, memory.tensors()) == (None, {}, {})


def test_what_a_memory_keeps_is_a_copy():
    memory, deltas = Memory(last_round=1), torch.ones(2, 3)
    memory.record(1, [0, 5], deltas)
    deltas.fill_(7)
    assert torch.equal(memory.last[5], torch.ones(3))


def test_a_memory_survives_a_file(quadratics):
    """Both parts under names of their own; names of others are left alone; the history comes back only if wanted."""
    memory, back, updates_only = (Memory(UpdateHistory(W_0), 2), Memory(UpdateHistory(W_0), 2), Memory(last_round=2))
    fedavg(quadratics.federation(), W_0, 2, on_updates=memory.record)
    saved = memory.tensors()
    assert sorted(saved) == [f"last/{k}" for k in range(4)] + [f"update/{t}/{k}" for t in (1, 2) for k in range(4)]
    for restored in (back, updates_only):
        restored.restore({"w": W_0, **saved})
        assert all(torch.equal(restored.last[k], memory.last[k]) for k in range(4))
    assert back.tensors().keys() == saved.keys()
    assert all(torch.equal(back.tensors()[name], saved[name]) for name in saved)
    assert updates_only.history is None


def test_a_local_model_is_the_start_of_the_round_and_the_own_update():
    """On paper: sizes 1 and 3, updates (4, 0) and (0, 4), average (1, 3). From w = (1, 3): start (0, 0)."""
    memory = Memory(last={0: torch.tensor([4.0, 0.0]), 1: torch.tensor([0.0, 4.0])})
    sizes, w = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0])
    assert memory.local_model(w, sizes, 0).tolist() == [4.0, 0.0]
    assert memory.local_model(w, sizes, 1).tolist() == [0.0, 4.0]
    with pytest.raises(MissingHistory, match="no stored local model of client 2"):
        memory.local_model(w, sizes, 2)


# --- peers ---


def test_peers_remember_models_and_gradients(quadratics):
    """One full-batch step per round: g_i = A_i (x_i - a_i), times a rate that decays."""
    local = ClientOpt(lr=0.1, lr_decay=0.5, batch_size=10**6)
    f, history = quadratics.federation(local=local, exchange=Peers(ring(4))), PeerHistory(gamma=0.1, decay=0.5)
    models = [start(W_0, 4)]
    dpsgd(f, W_0, 3, after_round=lambda t, W: models.append(W), on_updates=history.record)
    assert (history.rounds, history.ids) == ([1, 2, 3], [0, 1, 2, 3])
    for t in (1, 2, 3):
        assert torch.equal(history.models(t), models[t - 1])
        g = torch.stack([A @ (x - a) for A, x, a in zip(quadratics.A, models[t - 1], quadratics.a, strict=True)])
        torch.testing.assert_close(history.gradients(t), g, rtol=1e-9, atol=1e-12)
    assert history.nbytes == 2 * 3 * 4 * 3 * 8
    assert history.published_nbytes(2) == 3 * 2 * 3 * 8


def test_what_peers_remember_survives_a_file(quadratics):
    f, history, back = quadratics.federation(exchange=Peers(ring(4))), PeerHistory(gamma=0.1), PeerHistory(gamma=0.1)
    dpsgd(f, W_0, 2, on_updates=history.record)
    back.restore({"w": W_0, **history.tensors()})
    assert (back.ids, back.rounds) == (history.ids, history.rounds)
    assert all(torch.equal(back.models(t), history.models(t)) for t in (1, 2))
    assert all(torch.equal(back.gradients(t), history.gradients(t)) for t in (1, 2))
    with pytest.raises(MissingHistory, match="of round 3; the history holds rounds 1 to 2"):
        back.models(3)
    with pytest.raises(InvalidRequest, match=r"round 3 has the clients \[0, 1\]"):
        back.record(3, [0, 1], torch.zeros(2, 3), torch.zeros(2, 3))
