"""Fine-tune against its closed forms on quadratics, with a server and among peers."""

import pytest
import torch

from fu_core.federation.graphs import Peers, ring
from fu_core.federation.horizontal import recovery_path
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import FedOpt
from fu_core.request import Deletion
from fu_core.unlearning.baselines.fine_tune import FineTune, fine_tune, serve
from fu_core.unlearning.method import Trained

EXACT = {"rtol": 1e-10, "atol": 1e-12}
W = torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize("rounds", [1, 5])
def test_the_distance_to_the_retained_fixed_point_shrinks_by_what_all_move(quadratics, rounds):
    """w_R - w* = (I - sum p_i M_i)^R (w - w*), over the clients that stay."""
    q, ids = quadratics, [0, 1, 3]
    f, rest = q.federation(), q.fixed_point(exclude=[2])
    p = q.sizes[ids] / q.sizes[ids].sum()
    step = torch.eye(3, dtype=torch.float64) - sum(p_i * q.M[i] for p_i, i in zip(p, ids, strict=True))
    ours = fine_tune(f, W, q.without(2), FineTune(rounds), round=1)
    torch.testing.assert_close(ours, rest + torch.linalg.matrix_power(step, rounds) @ (W - rest), **EXACT)
    assert f.meter.rounds == rounds
    assert f.meter.images == rounds * 4 * (8 + 12 + 10)
    assert f.meter.bytes == rounds * 2 * 3 * (3 * 8)  # a model down to each of three, and one back
    assert f.meter.storage == 3 * 8


def test_who_forgets_samples_trains_on_the_others(quadratics):
    """Client 0 keeps 6 of 8: weights 6, 12, 20, 10 of 48."""
    q = quadratics
    X, eye = q.clients[0][0][2:], torch.eye(3, dtype=torch.float64)
    kept = -(eye - torch.linalg.matrix_power(eye - q.eta * X.T @ X / 6, q.epochs)) @ (W - q.a[0])
    deltas = q.deltas(W)
    by_hand = W + (6 * kept + 12 * deltas[1] + 20 * deltas[2] + 10 * deltas[3]) / 48
    ours = fine_tune(q.federation(), W, Deletion.of(q.clients, {0: torch.arange(2)}), FineTune(), round=1)
    torch.testing.assert_close(ours, by_hand, **EXACT)


@pytest.mark.parametrize(("order", "mixed"), [("cta", False), ("atc", True)])
def test_peers_take_a_round_on_the_ring_that_closes_again(quadratics, order, mixed):
    """Client 1 of four leaves, Q = 1/3 for the others: X <- Q X + Delta, or Q (X + Delta)."""
    q, ids = quadratics, [0, 2, 3]
    f = q.federation(exchange=Peers(ring(4), order))
    models = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    deltas = torch.stack([-q.M[i] @ (models[i] - q.a[i]) for i in ids])
    by_hand = models[ids].mean(dim=0) + (deltas.mean(dim=0) if mixed else deltas)
    ours = serve(Trained(f, models, rounds=7), q.without(1), FineTune())
    torch.testing.assert_close(ours, by_hand.expand(3, 3), **EXACT)
    assert (f.meter.rounds, f.meter.bytes, f.meter.storage) == (1, 6 * 3 * 8, 0)  # two ways over each of three links


def test_with_a_stateless_server_it_is_natural_ahead_of_time(quadratics):
    """The same bits as after two rounds of recovery from the original: same rounds, streams and decayed rates."""
    f = quadratics.federation(local=ClientOpt(lr=0.1, lr_decay=0.9, batch_size=3))
    leaves = quadratics.without(2)
    ours = serve(Trained(f, W, rounds=6), leaves, FineTune(rounds=2))
    _, _, (_, recovered) = recovery_path(f.after(leaves), W, first_round=7, cap=2)
    assert torch.equal(ours, recovered)


def test_the_servers_optimiser_is_the_federations(quadratics):
    args = (W, quadratics.without(2), FineTune(), 1)
    full = fine_tune(quadratics.federation(), *args) - W
    half = fine_tune(quadratics.federation(exchange=FedOpt(lr=0.5)), *args) - W
    torch.testing.assert_close(half, full / 2, **EXACT)


def test_without_rounds_nothing_happens(quadratics):
    for exchange, w in ((FedOpt(), W), (Peers(ring(4)), W.repeat(4, 1))):
        f = quadratics.federation(exchange=exchange)
        ours = serve(Trained(f, w), Deletion.of(f.clients, {0: torch.arange(2)}), FineTune(rounds=0))
        assert torch.equal(ours, w)
        assert ours.data_ptr() != w.data_ptr()
        assert (f.meter.images, f.meter.bytes) == (0, 0)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="rounds must be a whole number >= 0, got -1"):
        FineTune(rounds=-1)
