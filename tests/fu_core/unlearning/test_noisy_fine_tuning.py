"""Certified clipping (Koloskova et al. 2025): published and derived constants, the reach of clipped runs, any loss."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import CertificateViolation
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.unlearning.baselines.noisy_fine_tuning import (
    NoisyFineTuning,
    clipped,
    least_noise_steps,
    mixed_after,
    noisy_steps,
    prepare,
    reach_and_room,
    release,
    serve,
    step_sigma,
    theta,
)
from fu_core.unlearning.gaussian_mechanism import gaussian_delta, gaussian_sigma
from fu_core.unlearning.method import unlearn
from fu_core.unlearning.noise import Draw, Noise, rehearsal
from fu_core.unlearning.released import caveats, least
from fu_core.unlearning.sums import Sums, as_linear
from tests import federations
from tests.certified_peers_lab import softmax, without


class Silent(Draw):
    """No noise: what the certificate's bound A is about."""

    def __init__(self):
        super().__init__(0, 0)

    def normal(self, name, i, like):
        return torch.zeros_like(like)


@pytest.fixture(autouse=True)
def rehearsed():
    """Numbers of noise may be used again by the next test."""
    with rehearsal():
        yield


# --- accounting ---


def test_sigma_of_clipped_gradients_is_the_derived_one_and_the_papers():
    """C0 = C1 = 1, gamma = .01, T = 100, epsilon = 1, delta = 1e-5."""
    config = NoisyFineTuning(lr=0.01, steps=100)
    assert config.noise_per_step == pytest.approx(1.960222, abs=1e-6)
    assert replace(config, calibration="printed").noise_per_step == pytest.approx(2.035842, abs=1e-6)
    assert reach_and_room(config, 100) == (4.0, 100.0)
    nearly = replace(config, decay=1e-9)
    assert nearly.noise_per_step == pytest.approx(config.noise_per_step, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "proved"), [(1.0, True), (20.0, False)])
def test_the_printed_sigma_is_a_certificate_where_it_is_large_enough(epsilon, proved):
    """At epsilon 20 it lets 23.8 through."""
    f = softmax(l2=0.5)
    config = NoisyFineTuning(epsilon=epsilon, calibration="printed", lr=1e-9, steps=1, training=5)
    done = release(f, prepare(f, config), without(f, {0: torch.arange(3)}), Noise(1))
    told = caveats("" if proved else done.nominal.split(";")[0], noise=Noise(1))
    assert done.nominal == told
    assert ("the printed sigma is less than" in done.nominal) != proved
    enough = gaussian_delta(reach_and_room(config, 1)[0], config.noise_per_step, epsilon=epsilon) <= config.delta
    assert enough == proved


def test_sigma_gives_back_epsilon():
    """r = A^2 / (2 sigma^2 V), epsilon = r + 2 sqrt(r ln(1/delta)): a Renyi divergence of alpha r at the best alpha."""
    config = NoisyFineTuning(lr=0.02, decay=3.0, steps=25, epsilon=2.5, delta=1e-4)
    A, V = reach_and_room(config, 25)
    r = A**2 / (2 * config.noise_per_step**2 * V)
    log = math.log(1e4)
    assert r + 2 * math.sqrt(r * log) == pytest.approx(2.5)
    best = min(alpha * r + log / (alpha - 1) for alpha in (1 + 0.001 * k for k in range(1, 60_000)))
    assert best == pytest.approx(2.5, rel=1e-4)


def test_reach_and_room_are_the_sums_written_out():
    config = NoisyFineTuning(lr=0.1, decay=2.0, start_clip=3.0, step_clip=0.7, steps=6)
    rho = 0.8
    A = 2 * 3.0 * rho**6 + sum(2 * 0.1 * 0.7 * rho**k for k in range(6))
    V = sum(rho ** (2 * k) for k in range(6))
    assert reach_and_room(config, 6) == pytest.approx((A, V))
    gone = NoisyFineTuning(lr=0.5, decay=2.0, steps=4)  # gamma lambda = 1: every step begins anew
    assert reach_and_room(gone, 4) == pytest.approx((1.0, 1.0))


def test_the_default_number_of_steps_has_the_least_noise():
    config = NoisyFineTuning(lr=0.03, start_clip=2.0, step_clip=0.5)
    T = config.rounds
    assert T == 134  # C0 / (C1 gamma) = 133.3
    assert step_sigma(config, T) <= min(step_sigma(config, T - 10), step_sigma(config, T + 10))
    assert least_noise_steps(replace(config, decay=10.0)) == math.ceil(math.log(80) / 0.3)


def test_theta_is_the_delta_of_a_gaussian():
    assert theta(1.0, 2.0) == pytest.approx(0.509862, abs=1e-6)


def test_rounds_of_model_clipping_are_the_ones_computed_by_hand():
    config = NoisyFineTuning(clip="model", model_clip=0.5, sigma=0.5)
    assert config.rounds == 6
    assert replace(config, model_clip=0.625).rounds == 9
    one = gaussian_sigma(2.0, epsilon=1.0, delta=1e-5)
    assert NoisyFineTuning(clip="model", sigma=one * (1 + 1e-9)).rounds == 1
    assert NoisyFineTuning(clip="model", sigma=one * (1 - 1e-6)).rounds == 2
    noisy = replace(config, start_clip=0.5, start_sigma=0.5)
    assert noisy.rounds == 5  # the start counts as the first
    assert mixed_after(config, 0.5, most=3) == 4


def test_noise_for_so_many_rounds_is_the_least_that_needs_no_more():
    config = NoisyFineTuning(clip="model", steps=6, model_clip=0.5)
    sigma = config.noise_per_step
    assert sigma < 0.5
    assert mixed_after(config, sigma) == 6
    assert mixed_after(config, 0.9999 * sigma) > 6


def test_noise_that_does_not_mix_in_time_is_refused_and_certifies_nothing():
    """delta_t stays 1 to the last digit: theta of 20 standard deviations."""
    f, config = softmax(l2=0.1), NoisyFineTuning(clip="model", sigma=0.1)
    assert mixed_after(config, 0.1, most=50) == 51
    says = r"sigma 0\.1 does not prove epsilon 1 and delta 1e-05 within 100000 steps at model_clip 1: "
    with pytest.raises(CertificateViolation, match=says):
        release(f, prepare(f, config), without(f, [1]))


def test_a_start_with_noise_enough_needs_none_in_its_steps():
    """theta(1, 2 / 8) is below 1e-5: the steps that follow, without noise, are post-processing."""
    config = NoisyFineTuning(clip="model", steps=3, start_sigma=8.0)
    assert theta(1.0, 2 / 8.0) <= config.delta < theta(1.0, 2 / 7.0)
    assert (config.noise_per_step, config.rounds) == (0.0, 3)
    assert replace(config, start_sigma=7.0).noise_per_step > 0
    model, _, notes = unlearn("Model clipping", federations.with_server(), "client-1", steps=3, start_sigma=8.0)
    assert (notes["sigma"], notes["steps"]) == (0.0, 3)
    assert float(model.norm()) <= 1 + 1e-6  # clipped last, and nothing added


def test_where_every_number_suffices_the_least_is_none_at_all():
    asked = iter(range(2000))  # halving a double comes to zero after 1075

    def suffices(number):
        return next(asked) >= 0 < number

    assert least(suffices, 1.0) == 0.0
    assert least(lambda number: number >= 0.3, 1.0) == pytest.approx(0.3)


@pytest.mark.parametrize("clip", ["gradient", "model"])
def test_noise_falls_with_epsilon_and_grows_with_what_is_not_clipped(clip):
    base = NoisyFineTuning(clip=clip, lr=0.1, steps=8)
    sigma = base.noise_per_step
    assert replace(base, epsilon=2.0).noise_per_step < sigma
    assert replace(base, delta=1e-3).noise_per_step < sigma
    if clip == "model":
        assert replace(base, steps=16).noise_per_step < sigma
        assert replace(base, model_clip=2.0).noise_per_step == pytest.approx(2 * sigma)
    else:
        assert replace(base, start_clip=2.0).noise_per_step > sigma
        assert replace(base, step_clip=2.0).noise_per_step > sigma
        assert replace(base, decay=5.0).noise_per_step < sigma


def test_clipping_shortens_what_is_too_long_and_nothing_else():
    v = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(clipped(v, 2.5), torch.tensor([1.5, 2.0]))
    assert torch.equal(clipped(v, 6.0), v)
    assert torch.equal(clipped(torch.zeros(2), 1.0), torch.zeros(2))


# --- the steps ---


@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_two_runs_from_anywhere_end_at_most_a_apart(decay):
    """A net, whose loss is not convex: noiseless runs from different models on the same retained data."""
    g = torch.Generator().manual_seed(0)
    f = Federation(FlatModel(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))), federations.dealt([20, 30]))
    sums = Sums(f)
    apart = []
    for steps in (1, 5, 20):
        config = NoisyFineTuning(lr=0.3, decay=decay, start_clip=0.8, step_clip=0.1, steps=steps)
        for _ in range(4):
            ends = [
                noisy_steps(4 * torch.randn(f.model.d, generator=g), lambda x, t: sums.gradient(x), config, Silent())
                for _ in range(2)
            ]
            A, _ = reach_and_room(config, steps)
            apart.append(float((ends[0] - ends[1]).norm()) / A)
            assert apart[-1] <= 1 + 1e-6
    assert max(apart) > 0.4


def test_the_steps_are_the_papers():
    """By hand: direction x itself, C0 = 5, C1 = 1, gamma = .5, lambda = .2, no noise."""
    config = NoisyFineTuning(lr=0.5, decay=0.2, start_clip=5.0, steps=1)
    w = torch.tensor([6.0, 8.0]).double()
    x_1 = noisy_steps(w, lambda x, t: x, config, Silent())
    torch.testing.assert_close(x_1, torch.tensor([3.0 - 0.5 * 1.2, 4.0 - 0.5 * 1.6]).double())
    model = NoisyFineTuning(clip="model", lr=0.5, decay=0.2, start_clip=5.0, model_clip=1.0, steps=1)
    torch.testing.assert_close(noisy_steps(w, lambda x, t: x, model, Silent()), torch.tensor([0.6, 0.8]).double())
    tuned = replace(config, tuning=1)
    torch.testing.assert_close(noisy_steps(w, lambda x, t: x, tuned, Silent()), 0.5 * x_1)


def test_noise_has_the_variance_of_the_recursion():
    """Zero gradients: sigma^2 V per coordinate, around rho^T clip(w)."""
    config = NoisyFineTuning(lr=0.1, decay=2.0, start_clip=3.0, steps=7)
    w = torch.full((4000,), 1.0).double()
    x = noisy_steps(w, lambda x, t: torch.zeros_like(x), config, Draw(3, 0))
    _, V = reach_and_room(config, 7)
    noise = x - 0.8**7 * clipped(w, 3.0)
    assert float(noise.var()) == pytest.approx(config.noise_per_step**2 * V, rel=0.1)
    assert abs(float(noise.mean())) < 4 * float(noise.std()) / 4000**0.5


@pytest.mark.parametrize("clip", ["gradient", "model"])
def test_targets_data_enters_through_the_clipped_model_alone(clip):
    """Another target, and another model of the same direction beyond C0: the same bits with the same noise."""
    f = softmax()
    x, y = f.clients[1]
    other = f.having(clients={**f.clients, 1: (x + 1, (y + 1) % 3)})
    config = NoisyFineTuning(clip=clip, lr=0.5, steps=4)
    w = torch.linspace(1, 2, 12, dtype=torch.float64)
    ends = []
    for g, start in ((f, w), (other, 2 * w)):
        with rehearsal():
            ends.append(release(g, prepare(g, config, w=start), without(g, [1]), Noise(1)).model)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
    with rehearsal():
        farther = release(f, prepare(f, config, w=-w), without(f, [1]), Noise(1)).model
    assert not torch.allclose(farther, ends[0])


def test_a_release_trains_where_no_model_is_given_and_counts_what_it_costs():
    for peers, per_sum in ((False, 6), (True, 4)):
        f = softmax(peers=peers)
        state = prepare(f, NoisyFineTuning(lr=0.5, steps=3, tuning=2, training=10))
        sums, by_hand = Sums(as_linear(softmax())), torch.zeros(12).double()
        for _ in range(10):
            by_hand = by_hand - 0.5 * sums.gradient(by_hand)
        torch.testing.assert_close(state.w, by_hand)
        done = release(f, state, without(f, [0]))
        assert (done.passes, done.vectors) == (5, 5 * per_sum)
        assert done.certified
        assert done.noiseless is None
        assert torch.equal(done.state.w, done.model)


# --- rounds ---


@pytest.mark.parametrize(("name", "clip"), [("Noisy fine-tuning", "gradient"), ("Model clipping", "model")])
def test_without_noise_and_clipping_rounds_are_fedavg(name, clip, monkeypatch):
    """gamma = 1 along minus the average update is FedAvg; the registered method continues the count of rounds."""
    monkeypatch.setattr(Draw, "normal", lambda self, name, i, like: torch.zeros_like(like))
    trained = federations.with_server()
    wide = {"start_clip": 1e6, "step_clip": 1e6, "model_clip": 1e6, "steps": 3}
    deletion = without(trained.horizontal, [1])
    model, cost, notes = unlearn(name, trained, deletion, **wide)
    expected = fedavg(trained.horizontal.after(deletion), trained.model, 3, first_round=4)
    torch.testing.assert_close(model, expected, rtol=1e-5, atol=1e-6)
    assert notes["steps"] == cost.rounds == 3
    assert notes["sigma"] == NoisyFineTuning(clip=clip, **wide).noise_per_step


def test_peers_start_from_their_mean_and_end_with_one_model():
    trained = federations.among_peers()
    f, deletion = trained.horizontal.having(meter=Meter()), without(trained.horizontal, [1])
    config = NoisyFineTuning(steps=2, lr=0.5)
    W = serve(replace(trained, federation=f), deletion, config)
    assert W.shape == (4, f.model.d)
    assert all(torch.equal(w, W[0]) for w in W)
    assert f.meter.bytes == 2 * 2 * 3 * f.model.d * 4


def test_what_cannot_be_meant_is_refused_by_name():
    for wrong, says in (
        ({"clip": "weights"}, "clip must be one of"),
        ({"lr": 0.0}, "lr must be"),
        ({"start_clip": -1.0}, "start_clip must be"),
        ({"decay": -1.0}, "decay must be"),
        ({"decay": 2.0}, "lr times decay must be <= 1, got 1 times 2"),
        ({"steps": 0}, "steps must be"),
        ({"sigma": 1.0}, "sigma must be None for clip='gradient'"),
        ({"clip": "model"}, "needs steps or sigma, not both, got None and None"),
        ({"clip": "model", "steps": 3, "sigma": 1.0}, "got 3 and 1.0"),
        ({"calibration": "printed", "decay": 0.5}, "calibration='printed' is for"),
        ({"delta": 0.0}, "delta must lie"),
    ):
        with pytest.raises(ValueError, match=says):
            NoisyFineTuning(**wrong)
