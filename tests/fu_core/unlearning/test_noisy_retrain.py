"""The reference points: retraining with noise that nobody needs, output perturbation with all that it takes."""

import pytest
import torch

from fu_core.unlearning.baselines.noisy_retrain import (
    NoisyRetrain,
    OutputPerturbation,
    prepare,
    release,
    sensitivity,
)
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_core.unlearning.noise import Noise, rehearsal
from tests.certified_peers_lab import logistic, minimum, softmax, without


def test_retrain_is_the_minimum_of_what_is_retained_and_has_the_noise_it_is_given():
    f = softmax(l2=0.2)
    deletion = without(f, [1])
    plain = release(f, prepare(f, NoisyRetrain(training=400)), deletion)
    torch.testing.assert_close(plain.model, minimum(f.after(deletion)), rtol=1e-8, atol=1e-10)
    assert (plain.epsilon, plain.delta, plain.radius, plain.passes) == (0.0, 0.0, 0.0, 400)
    noisy = torch.stack([release(f, prepare(f, NoisyRetrain(0.3, training=1)), deletion).model for _ in range(200)])
    assert float(noisy.std(dim=0).mean()) == pytest.approx(0.3, rel=0.1)
    assert plain.certified


@pytest.mark.parametrize("seed", range(6))
def test_trainings_without_some_samples_are_within_the_sensitivity(seed):
    f = (softmax if seed % 2 else logistic)(seed=seed, l2=0.1)
    for steps in (1, 10, 200):
        fitted = prepare(f, OutputPerturbation(training=steps))
        for forget in ([seed % 4], {0: torch.arange(3)}):
            deletion = without(f, forget)
            again = prepare(f.after(deletion), OutputPerturbation(training=steps))
            assert 0 < float((fitted.w - again.w).norm()) <= sensitivity(fitted, 0.1, deletion.m)


def test_output_perturbation_does_nothing_but_add_noise():
    f = logistic(l2=0.1)
    deletion = without(f, {0: torch.arange(2)})
    state = prepare(f, OutputPerturbation(training=300))
    done = release(f, state, deletion)
    assert torch.equal(done.noiseless, state.w)
    assert (done.passes, done.vectors) == (0, 0)
    assert done.radius == pytest.approx(2 * 2 * 1.0 / (0.1 * 120), rel=1e-6)  # 2 m G / (lambda n)
    assert done.sigma == gaussian_sigma(done.radius, epsilon=1.0, delta=1e-5)
    short = release(f, prepare(f, OutputPerturbation(training=3)), deletion)
    assert short.sigma > done.sigma


def test_of_several_requests_the_old_model_knows_all_and_its_noise_covers_all():
    f = softmax(l2=0.1)
    state = prepare(f, OutputPerturbation(training=300))
    assert state.gone == 0
    for k, m in enumerate((2, 3, 5)):
        deletion = without(f, {k % 2: torch.arange(m)})
        done = release(f, state, deletion)
        f, gone = f.after(deletion), state.gone + m
        assert done.radius == sensitivity(state, 0.1, gone)  # of n samples, with which it was trained
        assert done.sigma == gaussian_sigma(done.radius, epsilon=1.0, delta=1e-5)
        assert float((done.noiseless - minimum(f)).norm()) <= done.radius
        state = done.state
        assert (state.gone, state.n) == (gone, 120)
    assert state.gone == 10


def test_clipped_models_need_no_loss_to_be_bounded():
    f = logistic(l2=0.1)
    deletion = without(f, [2])
    done = release(f, prepare(f, OutputPerturbation(clip=0.5)), deletion)
    assert float(done.noiseless.norm()) == pytest.approx(0.5)
    assert done.radius == 1.0
    assert done.sigma == pytest.approx(3.73063, abs=1e-5)
    larger = release(f, prepare(f, OutputPerturbation(epsilon=2.0, clip=0.5)), deletion)
    assert larger.sigma < done.sigma


def test_rehearsed_noise_certifies_nothing():
    f = logistic()
    state, deletion = prepare(f, OutputPerturbation(clip=1.0)), without(f, [0])
    assert release(f, state, deletion).certified
    with rehearsal():
        assert not release(f, state, deletion, Noise(1)).certified


def test_what_cannot_be_meant_is_refused_by_name():
    for made, wrong, says in (
        (NoisyRetrain, {"sigma": -1.0}, "sigma must be"),
        (NoisyRetrain, {"training": 0}, "training must be"),
        (OutputPerturbation, {"clip": 0.0}, "clip must be"),
        (OutputPerturbation, {"epsilon": 0.0}, "epsilon must be"),
    ):
        with pytest.raises(ValueError, match=says):
            made(**wrong)
