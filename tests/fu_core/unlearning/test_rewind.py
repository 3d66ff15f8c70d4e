"""Rewind-to-Delete: the bound's printed values, quadratics in closed form, retraining where all is rewound."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import CertificateViolation, MissingHistory
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.unlearning.baselines.retrain import retrain
from fu_core.unlearning.baselines.rewind import Rewind, growth, prepare, release, step_back
from fu_core.unlearning.memory import Memory, PeerHistory, UpdateHistory
from fu_core.unlearning.method import Trained, unlearn
from fu_core.unlearning.sums import Bounds, Sums, as_linear
from tests import federations
from tests.certified_peers_lab import logistic, softmax, without
from tests.quadratics import Quadratics


def test_growth_has_the_values_computed_by_hand():
    """T = 10, eta L = .1, m / n = .1."""
    values = {kind: [growth(kind, 10, K, step=0.1, gone=0.1) for K in (0, 5)] for kind in ("paper", "mean")}
    assert values["paper"] == pytest.approx([1.867972, 1.116903], abs=1e-6)
    assert values["mean"] == pytest.approx([1.593742, 0.983232], abs=1e-6)
    convex = growth("contraction", 10, 5, step=0.1, convexity=0.02)
    assert convex == pytest.approx(5 * (1 - 0.98**5) * 0.98**5)
    for kind in ("paper", "mean", "contraction"):
        bounds = [growth(kind, 10, K, step=0.1, convexity=0.02, gone=0.1) for K in range(11)]
        assert bounds[10] == 0
        assert bounds == sorted(bounds, reverse=True)
    assert convex < values["mean"][1] < values["paper"][1]
    assert growth("mean", 10**6, 0, step=1.0) == float("inf")


def identical_curvature():
    """Client i's loss is |w - a_i|^2 / 2, through features with X'X / n = I; a little of it is the regulariser's."""
    q = Quadratics(sizes=(10, 15, 25), isotropic=True)
    clients = [((1 - 0.01) ** 0.5 * x, y) for x, y in q.clients]
    return Federation(FlatModel(nn.Linear(3, 1, bias=False), task="regression", l2=0.01), clients)


def test_on_identical_quadratics_the_distance_to_retraining_is_a_product():
    """w_K - w'_T = (1 - eta)^K (1 - (1 - eta)^(T-K)) (w* - w'*), curvature 1 for everybody; and within Delta."""
    f, eta, T = identical_curvature(), 0.2, 12
    deletion = without(f, [1])
    rest = f.after(deletion)
    far = prepare(f, Rewind(1.0, 400, lr=0.5, bounds=Bounds(1.0, 1.0))).model
    far_without = prepare(rest, Rewind(1.0, 400, lr=0.5, bounds=Bounds(1.0, 1.0))).model
    for share, K in ((1 / 12, 1), (0.5, 6), (0.75, 9)):
        config = Rewind(share, T, lr=eta, bounds=Bounds(20.0, 0.99), growth="contraction", epsilon=1e3)
        assert config.back(T) == K
        done = release(f, prepare(f, config), deletion)
        retrained = prepare(rest, config).model
        apart = done.noiseless - retrained
        exact = (1 - eta) ** K * (1 - (1 - eta) ** (T - K)) * (far - far_without)
        torch.testing.assert_close(apart, exact, rtol=1e-9, atol=1e-12)
        for kind in ("contraction", "mean", "paper"):
            assert float(apart.norm()) <= release(f, prepare(f, replace(config, growth=kind)), deletion).radius


@pytest.mark.parametrize("seed", range(6))
def test_rewound_and_retrained_models_are_within_the_radius(seed):
    """Random logistic problems; requests in a row count together, of samples and of a client."""
    f = (softmax if seed % 2 else logistic)(seed=seed, l2=0.02)
    for kind in ("paper", "mean", "contraction"):
        config = Rewind(0.25 + 0.1 * seed, 20, growth=kind)
        state, rest = prepare(f, config), f
        for forget in ({0: torch.arange(5)}, [1]):
            deletion = without(rest, forget)
            done = release(rest, state, deletion)
            rest, state = rest.after(deletion), done.state
            apart = float((done.noiseless - prepare(rest, config).model).norm())
            assert 0 < apart <= done.radius
        assert state.gone == 25


def test_everything_rewound_is_retraining_without_noise():
    f = softmax()
    deletion = without(f, [2])
    config = Rewind(share=1.0, training=15)
    done = release(f, prepare(f, config), deletion)
    assert (done.sigma, done.radius) == (0.0, 0.0)
    assert torch.equal(done.model, prepare(f.after(deletion), config).model)
    assert done.certified
    assert (done.passes, done.vectors) == (15, 15 * 6)


def test_noise_never_falls_below_what_rounding_does():
    """(1 - eta lambda)^K of 450 steps is 1e-150; rewound and retrained models still differ by rounding."""
    f = logistic(l2=0.3)
    deletion = without(f, {0: torch.arange(2)})
    config = Rewind(share=0.9, training=500, growth="contraction")
    done = release(f, prepare(f, config), deletion)
    apart = float((done.noiseless - prepare(f.after(deletion), config).model).norm())
    assert apart <= done.radius < 1e-10
    assert done.radius > 1e-16
    assert not torch.equal(done.model, done.noiseless)


def test_noise_falls_with_epsilon_and_with_the_share_that_is_rewound():
    f = logistic(l2=0.1)
    deletion = without(f, {0: torch.arange(4)})

    def sigma(**options) -> float:
        return release(f, prepare(f, Rewind(training=10, **options)), deletion).sigma

    assert sigma(epsilon=2.0) < sigma(epsilon=1.0)
    assert sigma(share=0.8) < sigma(share=0.5)
    assert sigma(growth="contraction") < sigma(growth="mean") < sigma(growth="paper")
    assert f.meter.kept["checkpoint"] == 4 * 8


def test_a_bound_that_is_no_number_is_refused():
    f = logistic(l2=0.01)
    with pytest.raises(CertificateViolation, match="infinite after 4000 steps"):
        prepare(f, Rewind(training=4000))
    assert f.meter.images == 0


def test_a_step_back_undoes_a_step():
    f = as_linear(softmax(l2=0.1))
    sums, w = Sums(f), torch.linspace(-1, 1, 12, dtype=torch.float64)
    after = w - 0.9 * sums.gradient(w)
    torch.testing.assert_close(step_back(sums, after, lr=0.9, smoothness=0.6), w, rtol=1e-10, atol=1e-11)
    with pytest.raises(ValueError, match=r"lr must be < 1 / smoothness = 1\.67 for a step back, got 2"):
        step_back(sums, after, lr=2.0, smoothness=0.6)


# --- rounds of local training ---


@pytest.mark.parametrize("server", [FedOpt(), FedOpt(momentum=0.5), FedOpt("adam", lr=0.05)])
def test_with_a_server_it_is_the_last_rounds_again_from_the_updates_kept(server):
    base = federations.with_server()
    f = base.horizontal.having(exchange=server)
    w_0 = base.w_0
    memory, seen = Memory(UpdateHistory(w_0)), {}
    w = fedavg(f, w_0, 4, on_updates=memory.record, after_round=lambda t, w_t, _: seen.update({t: w_t}))
    trained = Trained(f, w, 4, w_0, memory)
    deletion = without(f, [1])
    model, _, notes = unlearn("Rewind", trained, deletion, share=0.5)
    assert notes == {"rewound": 2}
    assert torch.equal(model, fedavg(f.after(deletion), seen[2], 2, first_round=3))
    everything, _, _ = unlearn("Rewind", trained, deletion, share=1.0)
    assert torch.equal(everything, retrain(f, w_0, deletion, 4))


def test_among_peers_everybody_goes_back_to_its_own_model():
    trained = federations.among_peers()
    f, deletion = trained.horizontal, without(trained.horizontal, [1])
    model, _, notes = unlearn("Rewind", trained, deletion, share=0.3)
    assert notes == {"rewound": 1}
    history = trained.memory
    assert isinstance(history, PeerHistory)
    stay = history.models(3)[[0, 2, 3, 4]]
    assert torch.equal(model, dpsgd(f.after(deletion), stay, 1, first_round=3))


def test_a_checkpoint_that_nobody_kept_is_missed():
    trained = federations.with_server()
    with pytest.raises(MissingHistory, match="Rewind needs a checkpoint"):
        unlearn("Rewind", replace(trained, memory=Memory()), "client-1")
    gaps = Memory(UpdateHistory(trained.w_0, interval=2))
    f = trained.horizontal
    w = fedavg(f, trained.w_0, 4, on_updates=gaps.record)
    with pytest.raises(MissingHistory, match="no stored update of client 0 in round 2"):
        unlearn("Rewind", Trained(f, w, 4, trained.w_0, gaps), "client-1", share=0.5)
    assert f.local == ClientOpt(lr=0.1, batch_size=8)


def test_what_cannot_be_meant_is_refused_by_name():
    for wrong, says in (
        ({"share": 0.0}, "share must be"),
        ({"share": 1.5}, "share must be"),
        ({"growth": "convex"}, "growth must be one of"),
        ({"lr": -1.0}, "lr must be"),
        ({"training": 0}, "training must be"),
    ):
        with pytest.raises(ValueError, match=says):
            Rewind(**wrong)
    with pytest.raises(ValueError, match="needs 0 < eta lambda <= eta L <= 1"):
        growth("contraction", 10, 5, step=1.5, convexity=0.1)
