"""Certificates: what is measured, what is claimed, what is refused, and that a bound bounds (T5)."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import CertificateViolation, RepeatedNoise, UnsupportedModel
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp, softmax_regression
from fu_core.request import Deletion
from fu_core.unlearning.certificate import (
    Certificate,
    Constants,
    Privacy,
    after_fine_tuning,
    composed,
    measured,
    residual_radius,
    retained_gradient,
    softmax_constants,
    strong_convexity,
)
from fu_core.unlearning.curvature import dense_curvature
from fu_core.unlearning.du import DU, du, du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon, gaussian_sigma
from fu_core.unlearning.noise import Draw, Noise, rehearsal
from tests.ridge import EVERYBODY, L2, ONE, D, N, Ridge, among_peers, relative


@pytest.fixture(scope="module")
def ridge():
    return Ridge()


def release(ridge, W, forget, privacy, seed=0, **options):
    """What a request leads to, from the models W."""
    return du_release(ridge.federation(seed), W, ridge.deletion(forget), DU(**options), privacy)


# --- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [ONE, EVERYBODY], ids=["one", "all"])
@pytest.mark.parametrize("noise", ["consensus", "shared", "independent"])
def test_each_released_model_has_the_noise_it_claims(ridge, forget, noise):
    w, _ = ridge.worlds(forget)
    draws = []
    for seed in range(300):
        found = release(ridge, ridge.consensus(w), forget, Privacy(sigma=0.3), seed, noise=noise)
        draws.append(found.models - found.noiseless)
    noise_of = torch.stack(draws)  # (300, N, D)
    assert noise_of.std(dim=(0, 2)).numpy() == pytest.approx(0.3, rel=0.1)
    between = float((noise_of[:, 0] - noise_of[:, 1]).abs().max())
    assert between > 0.5 if noise == "independent" else between == 0  # errata D1: shared noise cancels


@pytest.mark.parametrize("noise", [None, "first"])
def test_models_and_samples_in_float32_are_measured_in_float64(ridge, noise):
    """A lone nn.Linear takes inputs of its own precision alone."""
    clients = [(x.float(), y.float()) for x, y in ridge.clients]
    f, deletion = among_peers(ridge.model, clients), Deletion.of(clients, ONE)
    W = ridge.consensus(ridge.worlds(ONE)[0]).float()
    found = du_release(f, W, deletion, DU(noise=noise), Privacy(epsilon=1.0, budget=1.0))
    wide = Deletion.of([(x.double(), y) for x, y in clients], ONE)
    at = W[0] if noise == "first" else found.noiseless[0]
    assert found.certificate.radius == pytest.approx(residual_radius(ridge.model, at.double(), wide), rel=1e-9)
    assert found.models.dtype == torch.float32


def test_other_noise_needs_no_other_solve(ridge):
    """The release without noise, handed in, gives the very models of a release from scratch."""
    w, _ = ridge.worlds(ONE)
    W, deletion = ridge.consensus(w), ridge.deletion(ONE)
    plain = du_release(ridge.federation(), W, deletion, DU())
    f, privacy = ridge.federation(), Privacy(sigma=0.3)
    again = du_release(f, W, deletion, DU(), privacy, plain)
    assert torch.equal(again.models, du_release(ridge.federation(), W, deletion, DU(), privacy).models)
    assert (f.meter.images, f.meter.products) == (0, 0)


def test_the_printed_calibration_is_that_of_algorithm_1(ridge):
    constants = Constants(lam=L2, L=2.0, M=0.5)
    w, _ = ridge.worlds(ONE)
    privacy = Privacy(epsilon=0.5, delta=1e-5, constants=constants)
    found = release(ridge, ridge.consensus(w), ONE, privacy, form="printed")
    sensitivity = 2 * 0.5 * 2.0**2 * 3**2 / (L2**3 * 30**2)
    sigma = sensitivity / 0.5 * math.sqrt(2 * math.log(1.25 / 1e-5))
    assert constants.sensitivity(3, 30) == pytest.approx(sensitivity)
    assert found.sigma == pytest.approx(sigma / N)  # of one message, times 1 / N
    assert found.certificate == Certificate(0.5, 1e-5, found.sigma, sensitivity, "all models", "printed")
    everybody = release(ridge, ridge.consensus(w), {i: torch.arange(3) for i in range(N)}, privacy, form="printed")
    sigmas = [Constants(L2, 2.0, 0.5).sensitivity(3, n) for n in (20, 25, 30, 35, 40)]
    factor = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.5
    assert everybody.sigma == pytest.approx(factor * math.hypot(*sigmas) / N)


def test_on_ridge_the_printed_certificate_adds_no_noise_to_a_wrong_model(ridge):
    """M = 0, so Delta F = 0: the paper promises exact retraining without noise (errata D2)."""
    w, retrained = ridge.worlds(ONE)
    privacy = Privacy(epsilon=1.0, delta=1e-5, constants=Constants(L2, 2.0, 0.0))
    found = release(ridge, ridge.consensus(w), ONE, privacy, form="printed")
    assert found.sigma == 0
    assert relative(found.models, retrained, w) > 0.3


# --- the budget rule -------------------------------------------------------------------------------------------------


def test_a_release_within_budget_gets_the_noise_of_the_budget(ridge):
    w, _ = ridge.worlds(ONE)
    found = release(ridge, ridge.consensus(w), ONE, Privacy(epsilon=1.0, budget=0.01))
    assert found.sigma == gaussian_sigma(0.01, epsilon=1.0, delta=1e-5)
    assert found.certificate.radius < 1e-10
    assert found.certificate.covers == "all models"


def test_a_release_beyond_budget_is_refused_with_the_numbers(ridge):
    w, _ = ridge.worlds(ONE)
    off, privacy = ridge.consensus(w) + 0.5, Privacy(epsilon=1.0, budget=0.01)  # training that has not converged
    with pytest.raises(CertificateViolation, match=r"may be .* from retraining, budget allows 0\.01.*retrain"):
        release(ridge, off, ONE, privacy, gradient="forgotten")
    assert release(ridge, off, ONE, privacy)


@pytest.mark.parametrize(("noise", "covers"), [("shared", "model"), ("independent", "all models")])
def test_models_of_their_own_are_covered_one_by_one_unless_their_noise_is_independent(ridge, noise, covers):
    w, _ = ridge.worlds(ONE)
    W = ridge.consensus(w) + 0.001 * torch.arange(N).double()[:, None]
    found = release(ridge, W, ONE, Privacy(epsilon=1.0, budget=5.0), noise=noise)
    assert found.certificate.covers == covers
    radii = [residual_radius(ridge.model, w_i, ridge.deletion(ONE)) for w_i in found.noiseless]
    expected = math.hypot(*radii) if covers == "all models" else max(radii)
    assert found.certificate.radius == pytest.approx(expected)


def test_a_radius_that_is_no_number_is_refused():
    with pytest.raises(CertificateViolation, match="may be nan from retraining"):
        measured(Privacy(epsilon=1.0, budget=0.1), math.nan, "all models")


@pytest.mark.parametrize("after", [nn.Tanh(), nn.ReLU()])
def test_a_layer_after_the_linear_one_is_not_convex(after):
    model = FlatModel(nn.Sequential(nn.Linear(3, 2), after), l2=0.1)
    with pytest.raises(UnsupportedModel, match="convex loss"):
        strong_convexity(model)
    assert strong_convexity(FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), l2=0.1)) == 0.1


class Own(nn.Module):
    """A linear layer in a container of somebody's own, whose `forward` is `of(layer, x)`."""

    def __init__(self, of, inputs=3, outputs=3):
        super().__init__()
        self.layer, self.of = nn.Linear(inputs, outputs), of

    def forward(self, x):
        return self.of(self.layer, x)


BENT = {
    "squared": lambda layer, x: layer(x).pow(2),
    "relu": lambda layer, x: layer(x).relu(),
    "twice": lambda layer, x: layer(layer(x)),
    "with itself": lambda layer, x: layer(x) * layer.weight.sum(),
    "cut off": lambda layer, x: layer(x).clamp(-30, 30),
    "cut off far away": lambda layer, x: layer(x).clamp(-1e6, 1e6),
    "another rule for large features": lambda layer, x: torch.where(
        x.abs().amax(1, True) < 7, layer(x), layer(x).sin()
    ),
    "left out near zero": lambda layer, x: nn.functional.softshrink(layer(x), 1e-4),
}


@pytest.mark.parametrize("bent", BENT)
def test_what_a_container_does_to_the_linear_layer_is_looked_at(bent):
    """Two stationary points of a squared layer, 4.5 apart, were certified to be 2e-9 from the only one."""
    with pytest.raises(UnsupportedModel, match="convex loss"):
        strong_convexity(FlatModel(Own(BENT[bent]), l2=0.1))


class Squared(nn.Linear):
    """A linear layer by name."""

    def forward(self, x):
        return super().forward(x).pow(2)


@pytest.mark.parametrize("inside", [lambda layer: layer, lambda layer: nn.Sequential(nn.Flatten(), layer)])
def test_what_only_looks_like_a_linear_layer_is_not_convex(inside):
    """Two "only minimisers" of a subclass, 3.6 apart, were both certified."""
    hooked = nn.Linear(3, 2)
    hooked.register_forward_hook(lambda module, inputs, outputs: outputs.pow(2))
    normed = nn.utils.spectral_norm(nn.Linear(3, 2))
    for layer in (Squared(3, 2), hooked, normed):
        with pytest.raises(UnsupportedModel, match=r"convex loss|spectral|vectors"):
            strong_convexity(FlatModel(inside(layer), l2=0.1))


def test_a_layer_in_a_row_with_itself_is_not_convex():
    layer = nn.Linear(3, 3)
    with pytest.raises(UnsupportedModel, match="called once"):
        strong_convexity(FlatModel(nn.Sequential(layer, layer), l2=0.1))


@pytest.mark.parametrize(
    "of", [lambda layer, x: layer(x.flatten(1)), lambda layer, x: torch.cat([0 * x[:, :1], layer(x)], dim=1)]
)
def test_a_container_that_keeps_its_layer_affine_is_convex(of):
    assert strong_convexity(FlatModel(Own(of), l2=0.1)) == 0.1


def test_a_plain_release_of_another_config_is_refused(ridge):
    w, _ = ridge.worlds(ONE)
    W = ridge.consensus(w) + torch.arange(N).double()[:, None]
    differing = du_release(ridge.federation(), W, ridge.deletion(ONE), DU(noise="shared"))
    with pytest.raises(ValueError, match="plain must be of the same config"):
        du_release(ridge.federation(), W, ridge.deletion(ONE), DU(), Privacy(epsilon=1.0, budget=9.0), differing)


class Logistic:
    """Four clients' logistic regression at the minimiser w, and a request; exact retraining by Newton's method."""

    def __init__(self, l2=0.1, scale=1.0):
        g = torch.Generator().manual_seed(0)
        self.clients = [
            (scale * torch.randn(30, 3, generator=g).double(), torch.randint(0, 2, (30,), generator=g))
            for _ in range(4)
        ]
        self.model = FlatModel(softmax_regression(3, 2), l2=l2)
        self.deletion = Deletion.of(self.clients, {0: torch.arange(20), 1: torch.arange(25)})
        self.w = minimiser(self.model, self.clients)
        self.retrained = minimiser(self.model, [self.deletion.kept[i] for i in range(4)])

    def release(self, privacy=None, w=None, **options):
        """Of everybody at w."""
        start = (self.w if w is None else w).repeat(4, 1)
        return du_release(among_peers(self.model, self.clients), start, self.deletion, DU(**options), privacy)


@pytest.fixture(scope="module")
def logistic():
    return Logistic()


def test_newton_steps_go_on_until_the_budget_is_met(logistic):
    """One step leaves the second-order term; a smaller budget takes more steps, and each is shorter than the last."""
    counts = []
    for budget in (1e-1, 1e-3, 1e-8):
        found = logistic.release(Privacy(epsilon=1.0, budget=budget))
        distance = float((found.noiseless[0] - logistic.retrained).norm())
        assert distance <= found.certificate.radius <= budget
        assert found.certificate.radius == pytest.approx(found.steps[-1].after / logistic.model.l2)
        assert all(step.after < step.before for step in found.steps)
        counts.append(len(found.steps))
    assert counts[0] < counts[1] < counts[2]
    with pytest.raises(CertificateViolation, match="budget allows 1e-08"):
        logistic.release(Privacy(epsilon=1.0, budget=1e-8), steps=1)


def test_the_error_of_a_newton_step_is_quadratic_in_the_error_before():
    """|e+| <= M / (2 lambda) |e|^2 with the softmax's M, from several starts (peers 7)."""
    found = Logistic(l2=0.5)
    radius = max(float(x.norm(dim=1).max()) for x, _ in found.clients)
    M = softmax_constants(math.hypot(radius, 1.0), found.model.l2).M  # the bias is one more feature
    for seed in range(5):
        off = torch.randn(found.model.d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        w = found.retrained + 0.02 * off
        after = found.release(w=w).noiseless[0]
        before = float((w - found.retrained).norm())
        assert float((after - found.retrained).norm()) <= M / (2 * found.model.l2) * before**2


def test_a_full_step_that_overshoots_is_halved():
    """Far from the minimiser the softmax is flat, and Newton's full step diverges."""
    found = Logistic(l2=1e-4, scale=3.0)
    w = 30 * torch.randn(found.model.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    release = found.release(w=w, until=1e-6, steps=200)
    assert min(step.share for step in release.steps) < 1
    assert float((release.noiseless[0] - found.retrained).norm()) < 1e-6


def test_noise_that_comes_first_covers_every_message_after_it(logistic):
    """Both worlds begin with the same noise; Newton's steps from there are the same map, and end in retraining."""
    privacy = Privacy(epsilon=1.0, budget=3.0, noise=Noise(rehearsed=1))
    found = logistic.release(privacy, noise="first", until=1e-6, steps=100)
    assert found.certificate.against == "messages"
    assert found.certificate.radius >= float((logistic.w - logistic.retrained).norm())
    assert float((found.models[0] - logistic.retrained).norm()) < 1e-6
    assert found.sigma == gaussian_sigma(3.0, epsilon=1.0, delta=1e-5)
    assert torch.equal(found.models, found.noiseless)
    assert float((found.noisy_start - logistic.w).std()) == pytest.approx(found.sigma * math.sqrt(4 / 3), rel=0.5)
    assert logistic.release(Privacy(epsilon=1.0, budget=3.0)).noisy_start is None
    with pytest.raises(CertificateViolation, match=r"budget allows 0\.001"):
        logistic.release(Privacy(epsilon=1.0, budget=0.001), noise="first", until=1e-6)


def test_what_noise_first_checks_is_counted(logistic):
    """A retained gradient at each client's model, and a sum of each: a certificate takes them, sigma alone does not."""

    def price(privacy):
        f = among_peers(logistic.model, logistic.clients, 0)
        options = DU(noise="first", damping=1e12, steps=1, objective="samples")  # as many steps either way
        du_release(f, logistic.w.repeat(4, 1), logistic.deletion, options, privacy)
        return f.meter

    certified = price(Privacy(epsilon=1.0, budget=3.0, noise=Noise(rehearsed=3)))
    bare = price(Privacy(sigma=gaussian_sigma(3.0, epsilon=1.0, delta=1e-5)))
    assert certified.images - bare.images == 4 * (logistic.deletion.n - logistic.deletion.m)
    assert certified.bytes - bare.bytes == 4 * 2 * 3 * logistic.model.d * 8  # up a tree of four and down again


def test_the_start_with_noise_has_it_even_for_who_knows_a_part(logistic):
    """N parts of variance sigma^2 / (N - 1): without any one of them sigma is left."""
    draws = []
    for seed in range(300):
        f = among_peers(logistic.model, logistic.clients, seed)
        options = DU(noise="first", damping=1e12)  # no step to speak of
        found = du_release(f, logistic.w.repeat(4, 1), logistic.deletion, options, Privacy(sigma=0.3))
        torch.testing.assert_close(found.models[0], found.noisy_start, rtol=0, atol=1e-9)
        draws.append(found.noisy_start)
    spread = (torch.stack(draws) - logistic.w).std()
    assert float(spread) == pytest.approx(0.3 * math.sqrt(4 / 3), rel=0.1)


# --- fresh noise -----------------------------------------------------------------------------------------------------


def test_two_releases_never_share_their_noise(ridge):
    """Or their difference would be free of it: the federation's seed has no say once epsilon is given."""
    w, _ = ridge.worlds(ONE)
    privacy = Privacy(epsilon=1.0, budget=0.01)
    first, second = (release(ridge, ridge.consensus(w), ONE, privacy, seed=0) for _ in range(2))
    apart = (first.models - second.models)[0] / first.sigma
    assert float(apart.abs().min()) > 0
    assert torch.equal(first.noiseless, second.noiseless)


def test_fresh_noise_has_more_than_a_generators_32_bits():
    """Entropy that is equal in its low 32 bits, which is all that torch's generators keep of a seed."""
    like = torch.zeros(50, dtype=torch.float64)
    first, second = (Draw(0, 1, entropy=7 + k * 2**32).normal("message", 3, like) for k in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, Draw(0, 1, entropy=7).normal("message", 3, like))
    assert not torch.equal(first, Draw(0, 1, entropy=7).normal("message", 4, like))
    many = Draw(0, 1, entropy=9).normal("message", 0, torch.zeros(100_000, dtype=torch.float64))
    assert float(many.std()) == pytest.approx(1, abs=0.02)
    assert Noise().draw().entropy.bit_length() > 128


def test_a_certificate_says_that_its_noise_was_rehearsed(ridge):
    w, _ = ridge.worlds(ONE)
    with rehearsal():
        known = release(ridge, ridge.consensus(w), ONE, Privacy(epsilon=1.0, budget=0.01, noise=Noise(rehearsed=11)))
    assert known.certificate.rehearsed
    assert not release(ridge, ridge.consensus(w), ONE, Privacy(epsilon=1.0, budget=0.01)).certificate.rehearsed


def test_rehearsed_noise_counts_its_releases_and_refuses_to_repeat_one(ridge):
    w, _ = ridge.worlds(ONE)

    def noise_of(source):
        found = release(ridge, ridge.consensus(w), ONE, Privacy(epsilon=1.0, budget=0.01, noise=source))
        return found.models - found.noiseless

    with rehearsal():
        source = Noise(rehearsed=5)
        first, second = noise_of(source), noise_of(source)
        assert not torch.equal(first, second)
        with pytest.raises(RepeatedNoise, match=r"noise 5 has been released before \(release 1\)"):
            noise_of(Noise(rehearsed=5))
    with rehearsal():
        assert torch.equal(noise_of(Noise(rehearsed=5)), first)


@pytest.mark.parametrize("rehearsed", ["7", 1.5, True])
def test_a_rehearsal_needs_a_whole_number(rehearsed):
    with pytest.raises(ValueError, match="rehearsed must be a whole number"):
        Noise(rehearsed=rehearsed)


def test_releases_compose_as_gaussians_do(logistic):
    """Ten releases at mu = 0.1 are one at 0.3162, and less than ten times its epsilon."""
    delta, mu = 1e-5, 0.1
    epsilon = gaussian_epsilon(mu, 1.0, delta=delta)
    one = Certificate(epsilon, delta, sigma=1.0, radius=0.05, covers="all models", budget=mu)
    assert one.mu == pytest.approx(mu)
    assert composed([one] * 10, delta) == pytest.approx(gaussian_epsilon(math.sqrt(10) * mu, 1.0, delta=delta))
    assert composed([one], delta) == pytest.approx(epsilon)
    assert composed([one] * 10, delta) < 10 * epsilon
    found = logistic.release(Privacy(epsilon=1.0, budget=0.1)).certificate
    assert found.mu == pytest.approx(0.26805, abs=1e-5)
    other = replace(one, against="messages")
    with pytest.raises(CertificateViolation, match="same observers"):
        composed([one, other], delta)
    with pytest.raises(CertificateViolation, match="printed form's claim"):
        composed([one, Certificate(1.0, delta, 1.0, 0.1, "all models", "printed")], delta)


def test_the_radius_bounds_the_distance_to_retraining():
    """T5, on logistic regression, whose retrained model is found by Newton's method."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(30, 3, generator=g).double(), torch.randint(0, 2, (30,), generator=g)) for _ in range(4)]
    model = FlatModel(softmax_regression(3, 2), l2=0.1)
    f = among_peers(model, clients)

    w = minimiser(model, clients)
    deletion = Deletion.of(clients, {0: torch.arange(6), 1: torch.arange(3)})
    retrained = minimiser(model, [deletion.kept[i] for i in range(4)])
    for form in ("corrected", "printed"):
        released = du(f, w.repeat(4, 1), deletion, DU(form=form))[0]
        distance = float((released - retrained).norm())
        assert 0 < distance <= residual_radius(model, released, deletion)
    assert residual_radius(model, retrained, deletion) < 1e-9


def minimiser(model, held):
    """Of the mean of the clients' losses, by Newton's method on the whole Hessian."""
    x, y = torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])
    shares = torch.cat([torch.full((len(y_i),), 1 / len(y_i) / len(held), dtype=torch.float64) for _, y_i in held])

    def loss(p):
        return shares.dot(model.sample_losses(model.logits(p, x), y)) + 0.5 * model.l2 * p.dot(p)

    w = torch.zeros(model.d, dtype=torch.float64)
    for _ in range(20):
        w = w - torch.linalg.solve(torch.func.hessian(loss)(w), torch.func.grad(loss)(w))
    return w


@pytest.mark.parametrize("objective", ["clients", "samples"])
def test_the_retained_gradient_is_that_of_ridge(ridge, objective):
    """A w - b + lambda w, of the clients' means or of all samples alike; the radius is its length over lambda."""
    deletion, w = ridge.deletion({0: torch.arange(20), 3: torch.tensor([1, 2])}), torch.arange(D).double()
    held = [deletion.kept[i] for i in (1, 2, 3, 4)]
    weights = [0.25] * 4 if objective == "clients" else [25 / 128, 30 / 128, 33 / 128, 40 / 128]
    expected = sum(a * X.T @ (X @ w - y) / len(y) for a, (X, y) in zip(weights, held, strict=True)) + L2 * w
    found = retained_gradient(ridge.model, w, deletion, objective=objective)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    radius = residual_radius(ridge.model, w, deletion, objective=objective)
    assert radius == pytest.approx(float(expected.norm()) / L2)


# --- certificates by themselves --------------------------------------------------------------------------------------


def test_fine_tuning_keeps_a_guarantee_for_all_models_and_loses_one_per_model():
    held = Certificate(1.0, 1e-5, 0.1, 0.0, "all models")
    assert after_fine_tuning(held) == held
    assert after_fine_tuning(Certificate(1.0, 1e-5, 0.1, 0.0, "model")) is None
    assert after_fine_tuning(None) is None


def test_constants_of_softmax_regression_bound_what_can_be_measured():
    """Gradient lengths and Hessian changes at random points stay below L and M, and come near."""
    g = torch.Generator().manual_seed(1)
    model = FlatModel(nn.Linear(3, 4, bias=False))
    x = torch.nn.functional.normalize(torch.randn(1, 3, generator=g).double())
    constants = softmax_constants(1.0, 0.01)
    slopes, changes = [], []
    for _ in range(200):
        p, q = (3 * torch.randn(model.d, generator=g).double() for _ in range(2))
        y = torch.randint(0, 4, (1,), generator=g)
        slopes.append(float(model.grad(p, x, y).norm()))
        H = [dense_curvature(model, z, [(1.0, (x, y))]) for z in (p, q)]
        changes.append(float(torch.linalg.matrix_norm(H[0] - H[1], ord=2) / (p - q).norm()))
    assert 0.6 * constants.L < max(slopes) <= constants.L
    assert 0 < max(changes) <= constants.M
    far, binary = softmax_constants(1.0, 0.5, norm=2.0), softmax_constants(2.0, 0.5, binary=True)
    assert pytest.approx(math.sqrt(2) + 1.0) == far.L
    assert pytest.approx(8 / (6 * math.sqrt(3))) == binary.M


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_a_certificate_needs_a_strongly_convex_loss(ridge):
    certify = Privacy(epsilon=1.0, budget=0.1)
    net = FlatModel(mlp(D, 2), l2=0.1)
    deep = [(x, (y > 0).long()) for x, y in ridge.clients]
    with pytest.raises(UnsupportedModel, match="convex"):
        du(among_peers(net, deep), torch.zeros(N, net.d).double(), Deletion.of(deep, ONE), privacy=certify)
    plain = FlatModel(nn.Linear(D, 1, bias=False), task="regression")
    W = ridge.consensus(torch.ones(D).double())
    with pytest.raises(UnsupportedModel, match="l2 must be > 0"):
        du(among_peers(plain, ridge.clients), W, ridge.deletion(ONE), privacy=certify)


def test_each_form_needs_its_own_numbers(ridge):
    f, W = ridge.federation(), ridge.consensus(torch.ones(D).double())
    claim, budget = Privacy(epsilon=1.0, constants=Constants(L2, 1.0, 1.0)), Privacy(epsilon=1.0, budget=0.1)
    with pytest.raises(ValueError, match="needs budget"):
        du(f, W, ridge.deletion(ONE), DU(), claim)
    with pytest.raises(ValueError, match="needs constants"):
        du(f, W, ridge.deletion(ONE), DU(form="printed"), budget)
    assert (f.meter.bytes, f.meter.images) == (0, 0)  # refused before anything is sent or computed


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epsilon": 1.0}, "needs budget, .*, or, for the printed form, constants: .*; got neither"),
        ({"epsilon": 1.0, "budget": 0.1, "constants": Constants(1.0, 1.0, 1.0)}, "needs budget, .*; got both"),
        ({"epsilon": 1.0, "budget": 0.1, "sigma": 1.0}, "not both"),
        ({"budget": 1.0}, "belong to a certificate"),
        ({"constants": Constants(1.0, 1.0, 1.0)}, "belong to a certificate"),
        ({"sigma": -1.0}, "sigma must be >= 0, got -1"),
        ({"sigma": math.inf}, "sigma must be >= 0, got inf"),
        ({"epsilon": 0.0, "budget": 0.1}, "epsilon must be a finite number > 0, got 0"),
        ({"epsilon": 1.0, "budget": 0.1, "delta": 1.0}, r"delta must lie in \(0, 1\), got 1"),
        ({"epsilon": 1.0, "budget": 0.0}, "budget must be a finite number > 0, got 0"),
    ],
)
def test_privacy_that_cannot_be_meant_is_refused_by_name(given, says):
    with pytest.raises(ValueError, match=says):
        Privacy(**given)
