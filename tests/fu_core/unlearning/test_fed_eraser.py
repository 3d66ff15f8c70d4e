"""FedEraser: exact where it must be, lengths from storage and directions fresh, and its costs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import MissingHistory, UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import FedOpt
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.baselines.fed_eraser import NORM_SCOPES, FedEraser, calibrate, fed_eraser, serve
from fu_core.unlearning.baselines.retrain import retrain
from fu_core.unlearning.memory import Memory, PeerHistory, UpdateHistory
from fu_core.unlearning.method import Trained
from tests.quadratics import Quadratics, history_of

W_0 = torch.zeros(3, dtype=torch.float64)
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def parallel(a, b):
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1).min()) == pytest.approx(1.0, abs=1e-6)


def test_replaying_a_training_without_the_target_is_that_training(quadratics):
    """Who never took part, E_cal = E, the training's rates and streams: Retrain to rounding, in every scope."""
    f = quadratics.federation(local=ClientOpt(lr=0.05, lr_decay=0.9, epochs=2, batch_size=3))
    leaves = quadratics.without(2)
    history = history_of(f.after(leaves), W_0)
    reference = retrain(f, W_0, leaves, 5)
    for scope in NORM_SCOPES:
        ours = fed_eraser(f, history, leaves, FedEraser(calibration=1.0, norm_scope=scope))
        torch.testing.assert_close(ours, reference, **EXACT)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("interval", [1, 2])
def test_the_replay_by_hand(quadratics, released, interval):
    """Uh_k = -M_k (w - a_k) with E_cal = 2 of 4 steps, at lr 0.1 * 0.9^(t-1), or 0.9^i as released."""
    q, ids = quadratics, [0, 1, 3]
    f = q.federation(local=replace(q.local, lr_decay=0.9))
    history = history_of(f, W_0, interval=interval)
    p = q.sizes[ids] / q.sizes[ids].sum()
    w, eye = W_0, torch.eye(3, dtype=torch.float64)
    for i, t in enumerate(history.rounds, start=1):
        step = torch.stack([history.update(t, k) for k in ids])
        if i > 1:
            eta = 0.1 * 0.9 ** (i if released else t - 1)
            M = [eye - torch.linalg.matrix_power(eye - eta * q.A[k], 2) for k in ids]
            fresh = torch.stack([-M_k @ (w - q.a[k]) for M_k, k in zip(M, ids, strict=True)])
            step = step.norm(dim=1, keepdim=True) / fresh.norm(dim=1, keepdim=True) * fresh
        w = w + p @ step
    ours = fed_eraser(f, history, q.without(2), FedEraser(released_schedule=released))
    torch.testing.assert_close(ours, w, **EXACT)


def test_two_targets_leave_at_once(quadratics):
    """With one retained round: w_0 + sum_{k != u} p_k U_k^1 over the two who stay, unscaled."""
    f = quadratics.federation()
    ours = fed_eraser(f, history_of(f, W_0, rounds=1), quadratics.without(0, 2), FedEraser())
    U = quadratics.deltas(W_0)
    torch.testing.assert_close(ours, (12 * U[1] + 10 * U[3]) / 22, **EXACT)


NET = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


def net_clients():
    g = torch.Generator().manual_seed(0)
    sizes = (9, 12, 15)
    return [(torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


@pytest.mark.parametrize("per_layer", [False, True])
def test_calibrated_updates_have_stored_lengths_and_fresh_directions(per_layer):
    """|Ub_k| = |U_k| and Ub_k = c Uh_k, c > 0: over the whole vector, or over every tensor of it."""
    g = torch.Generator().manual_seed(0)
    stored, fresh = torch.randn(3, NET.d, generator=g), torch.randn(3, NET.d, generator=g)
    calibrated, lost = calibrate(NET, stored, fresh, per_layer=per_layer)
    assert lost == 0
    cuts = NET.sizes if per_layer else [NET.d]
    for U, Uh, Ub in zip(*(v.split(cuts, dim=1) for v in (stored, fresh, calibrated)), strict=True):
        torch.testing.assert_close(Ub.norm(dim=1), U.norm(dim=1))
        assert parallel(Ub, Uh)


@pytest.mark.parametrize("scope", NORM_SCOPES)
def test_norm_scopes_in_a_second_round(scope):
    """The step from w_1 to w_2, client 1 leaving, against the definition of each scope."""
    w_0 = NET.init(0)
    f = Federation(NET, net_clients(), ClientOpt(lr=0.5, epochs=2, batch_size=5))
    history = history_of(f, w_0, rounds=2)
    p = torch.tensor([9 / 24, 15 / 24])
    w_1 = w_0 + p @ torch.stack([history.update(1, k) for k in (0, 2)])
    U = torch.stack([history.update(2, k) for k in (0, 2)])
    Uh = train_round(f.having(local=replace(f.local, epochs=1)), w_1, 2, [0, 2])
    ours = fed_eraser(f, history, Deletion.of(f.clients, 1), FedEraser(norm_scope=scope)) - w_1
    pieces = [v.split([NET.d] if scope == "global" else NET.sizes, dim=1) for v in (U, Uh)]
    expected = []
    for U_l, Uh_l in zip(*pieces, strict=True):
        if scope == "layer_avg":
            expected.append((p @ U_l).norm() / (p @ Uh_l).norm() * (p @ Uh_l))
        else:
            expected.append(p @ (U_l.norm(dim=1, keepdim=True) / Uh_l.norm(dim=1, keepdim=True) * Uh_l))
    torch.testing.assert_close(ours, torch.cat(expected), rtol=1e-4, atol=1e-6)


def test_isotropic_curvature_makes_calibrated_and_fresh_steps_parallel():
    """T2, one client left: M = m I, so the step points from w_1 to a_k and is as long as the stored update."""
    q = Quadratics(sizes=(8, 12), isotropic=True)
    f = q.federation()
    history = history_of(f, W_0, rounds=2)
    w_1 = history.update(1, 1)
    step = fed_eraser(f, history, q.without(0), FedEraser()) - w_1
    assert parallel(step, q.a[1] - w_1)
    torch.testing.assert_close(step.norm(), history.update(2, 1).norm(), **EXACT)


def test_a_fresh_update_without_direction_counts_as_zero(quadratics):
    """The first round lands on a_1, where client 1's gradient vanishes: it stays, with one warning."""
    history, a = UpdateHistory(W_0), quadratics.a[1]
    for t in (1, 2, 3):
        history.record(t, [1], a[None])
    with pytest.warns(UserWarning, match="2 fresh updates were shorter than 1e-12") as caught:
        ours = fed_eraser(quadratics.federation(), history, quadratics.without(0, 2, 3), FedEraser())
    assert len(caught) == 1
    torch.testing.assert_close(ours, a, **EXACT)


def test_the_replay_leaves_the_history_as_it_is(quadratics):
    f = quadratics.federation()
    history = history_of(f, W_0, rounds=2)
    before = {name: u.clone() for name, u in history.tensors().items()}
    ours = fed_eraser(f, history, quadratics.without(0), FedEraser())
    assert all(torch.equal(u, before[name]) for name, u in history.tensors().items())
    assert torch.equal(history.w_0, W_0)
    assert ours.data_ptr() != history.w_0.data_ptr()


def test_missing_history_names_round_and_client_before_any_training(quadratics):
    f, history = quadratics.federation(), UpdateHistory(W_0)
    for t in (1, 2, 3):
        ids = [0, 1, 2, 3] if t != 3 else [0, 1, 3]
        history.record(t, ids, torch.ones(len(ids), 3, dtype=torch.float64))
    with pytest.raises(MissingHistory, match=r"client 2 in round 3; .* rounds 1 to 3, interval 1"):
        fed_eraser(f, history, quadratics.without(0), FedEraser())
    assert f.meter.images == 0
    fed_eraser(f, history, quadratics.without(2), FedEraser())  # nobody asks for the target's
    with pytest.raises(MissingHistory, match="client 1 in round 1; the history holds nothing"):
        fed_eraser(f, UpdateHistory(W_0), quadratics.without(0), FedEraser())


def test_a_memory_without_history_is_missing_one(quadratics):
    """As a server that kept last updates only, and as peers that kept their own."""
    f = quadratics.federation()
    for memory in (Memory(last_round=3), PeerHistory(gamma=0.1)):
        with pytest.raises(MissingHistory, match="nothing was stored that FedEraser could replay"):
            serve(Trained(f, W_0, memory=memory), quadratics.without(0), FedEraser())


def test_a_skipped_round_is_missing(quadratics):
    history = UpdateHistory(W_0)
    for t in (1, 3):
        history.record(t, [0, 1, 2, 3], torch.ones(4, 3, dtype=torch.float64))
    with pytest.raises(MissingHistory, match="client 0 in round 2"):
        fed_eraser(quadratics.federation(), history, quadratics.without(3), FedEraser())


def test_single_samples_cannot_be_forgotten(quadratics):
    f = quadratics.federation()
    history = history_of(f, W_0, rounds=2)
    for forget in ({0: torch.arange(3)}, {0: torch.arange(3), 2: torch.arange(20)}):  # the second leaves altogether
        with pytest.raises(UnsupportedTask, match="whole clients"):
            fed_eraser(f, history, Deletion.of(quadratics.clients, forget), FedEraser())


@pytest.mark.parametrize("exchange", [FedOpt(lr=0.5), FedOpt(momentum=0.9), FedOpt("adam", lr=0.01)])
def test_a_server_that_does_not_average_is_not_replayed(quadratics, exchange):
    f = quadratics.federation(exchange=exchange)
    with pytest.raises(
        UnsupportedTask, match=r"exchange must be a server that averages, FedOpt\(\), for FedEraser, got "
    ):
        fed_eraser(f, history_of(f, W_0, rounds=2), quadratics.without(2), FedEraser())


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="norm_scope must be one of 'global', 'layer', 'layer_avg'"):
        FedEraser(norm_scope="tensor")
    with pytest.raises(ValueError, match="calibration must be"):
        FedEraser(calibration=0.0)
