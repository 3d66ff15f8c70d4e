"""PGA against closed forms on quadratics and torch's own optimiser (methods 2.7), and what it must refuse."""

import copy
import math

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, MissingHistory, NumericalFailure, UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg, fedavg_round
from fu_core.federation.local import ClientOpt, batches
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.request import Deletion
from fu_core.unlearning.baselines.pga import PGA, ascent, clip_gradient, pga, radius, reference_model, serve
from fu_core.unlearning.memory import Memory
from fu_core.unlearning.method import Trained
from tests.quadratics import Quadratics

EXACT = {"rtol": 1e-10, "atol": 1e-12}
EYE = torch.eye(3, dtype=torch.float64)
NO_CLIP = 1e100
NET = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


def last_round(q, u):
    """A round from (1, 1, 1): its model, the target's local model, and the others' local models."""
    w_0, local = torch.ones(3, dtype=torch.float64), []
    w, _ = fedavg_round(q.federation(), w_0, 1, on_updates=lambda t, i, D: local.extend(w_0 + D))
    return w, local[u], torch.stack([w_k for k, w_k in enumerate(local) if k != u])


def climb(q, u, start, *, r=math.inf, seed=0, **options):
    """All iterates (K, 3) of the ascent on client u; the gradients are not clipped unless asked."""
    config = PGA(**{"clip": NO_CLIP, **options})
    return torch.stack(list(ascent(q.federation(seed=seed), start, u, config, r=r)))


def unlearned(q, w, w_u, targets, config=None, **changes):
    """PGA for the clients `targets`, or {client: indices}, with a federation of other fields if any are given."""
    f = q.federation(**changes)
    return pga(f, w, w_u, Deletion.of(f.clients, targets), config or PGA())


def net_problem():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(11, 4, generator=g).double(), torch.randint(0, 3, (11,), generator=g)
    return NET.init(0, torch.float64), (x, y)


def test_reference_model_on_paper():
    """N = 4, w = (1, 2), w_u = (4, -1): (4 (1, 2) - (4, -1)) / 3 = (0, 3)."""
    w_ref = reference_model(torch.tensor([1.0, 2.0]), torch.tensor([4.0, -1.0]), 0.25)
    torch.testing.assert_close(w_ref, torch.tensor([0.0, 3.0]))


def test_reference_model_is_the_mean_of_the_other_local_models(quadratics):
    """Averaging by samples: sum_{i != u} n_i w_i / n_{-u}, exactly."""
    w, w_u, others = last_round(quadratics, 1)
    n = quadratics.sizes[[0, 2, 3]]
    torch.testing.assert_close(reference_model(w, w_u, float(quadratics.p[1])), n @ others / n.sum(), **EXACT)


@pytest.mark.parametrize(("weighting", "exact"), [("weighted", True), ("uniform", False)])
def test_weighting_must_match_the_servers(quadratics, weighting, exact):
    """The ascent starts at the others' mean only if p_u is the target's weight in w: one tiny step shows where."""
    w, w_u, others = last_round(quadratics, 1)
    config = PGA(weighting=weighting, lr=1e-15, epochs=1)
    start = unlearned(quadratics, w, w_u, [1], config)
    n = quadratics.sizes[[0, 2, 3]]
    assert torch.allclose(start, n @ others / n.sum(), rtol=1e-10, atol=1e-12) is exact


def test_uniform_weighting_is_the_papers_form():
    """w_ref = (N w - w_u) / (N - 1), and clients of one size do not tell the two weightings apart."""
    q = Quadratics(sizes=(10, 10, 10, 10))
    w, w_u, others = last_round(q, 2)
    for weighting in ("weighted", "uniform"):
        config = PGA(weighting=weighting, lr=1e-15, epochs=1)
        start = unlearned(q, w, w_u, [2], config)
        torch.testing.assert_close(start, others.mean(dim=0), **EXACT)
        torch.testing.assert_close(start, (4 * w - w_u) / 3, **EXACT)


def test_without_a_ball_the_ascent_diverges_at_rate_one_plus_eta_lambda(quadratics):
    """T1, no momentum: w_k - a_u = (I + eta A_u)^k (w_ref - a_u), in the end by 1 + eta lambda_max per step."""
    start, a, A = torch.zeros(3, dtype=torch.float64), quadratics.a[1], quadratics.A[1]
    walk = climb(quadratics, 1, start, lr=0.1, momentum=0.0, epochs=200)
    for k in (1, 2, 10):
        torch.testing.assert_close(walk[k - 1] - a, torch.linalg.matrix_power(EYE + 0.1 * A, k) @ (start - a), **EXACT)
    growth = float((walk[-1] - a).norm() / (walk[-2] - a).norm())
    assert growth == pytest.approx(1 + 0.1 * float(torch.linalg.eigvalsh(A)[-1]), rel=1e-6)


@pytest.mark.parametrize("clipping", ["global", "tensor"])
def test_steps_are_those_of_torch_on_the_negated_loss(clipping):
    """Loss times -1, gradients clipped, torch.optim.SGD with momentum 0.9: the authors' loop, without a ball."""
    w, (x, y) = net_problem()
    config = PGA(lr=0.2, epochs=3, batch_size=4, clip=0.1, clipping=clipping)
    net = copy.deepcopy(NET.module).double()
    nn.utils.vector_to_parameters(w.clone(), net.parameters())
    optimiser = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    plan = batches(11, ClientOpt(epochs=3, batch_size=4), seed=3, round=0, client=2)
    ours = list(ascent(Federation(NET, {2: (x, y)}, seed=3), w, 2, config, r=math.inf))
    for b, w_k in zip(plan, ours, strict=True):
        optimiser.zero_grad()
        (-nn.functional.cross_entropy(net(x[b]), y[b])).backward()
        groups = [net.parameters()] if clipping == "global" else [[p] for p in net.parameters()]
        lengths = [float(nn.utils.clip_grad_norm_(group, 0.1)) for group in groups]
        assert max(lengths) > 0.1  # clipping does something
        optimiser.step()
        torch.testing.assert_close(w_k, nn.utils.parameters_to_vector(net.parameters()), rtol=1e-4, atol=1e-6)


def test_clipping_on_paper():
    """|(3, 4)| = 5, |0| = 0: as one vector clipped at 1 to (0.6, 0.8, 0), and by tensors too; 5 leaves all alone."""
    model = FlatModel(nn.Linear(2, 1))
    g = torch.tensor([3.0, 4.0, 0.0])
    for per_tensor in (False, True):
        assert clip_gradient(model, g, 1.0, per_tensor=per_tensor).tolist() == pytest.approx([0.6, 0.8, 0.0])
        assert torch.equal(clip_gradient(model, g, 5.0, per_tensor=per_tensor), g)
    g = torch.tensor([3.0, 4.0, 12.0])  # length 13; tensors of 5 and 12
    assert clip_gradient(model, g, 6.5).tolist() == pytest.approx([1.5, 2.0, 6.0])
    assert clip_gradient(model, g, 6.0, per_tensor=True).tolist() == pytest.approx([3.0, 4.0, 6.0])


def test_every_iterate_stays_in_the_ball(quadratics):
    """|w_k - w_ref| <= r, and = r once the ascent has got there."""
    start, r = torch.ones(3, dtype=torch.float64), 0.7
    distances = (climb(quadratics, 2, start, r=r, lr=0.05, batch_size=6, epochs=20) - start).norm(dim=1)
    assert len(distances) == 80
    assert float(distances[0]) < r
    assert float(distances.max()) <= r + 1e-6
    torch.testing.assert_close(distances[-1], torch.tensor(r, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("clip", [0.5, NO_CLIP])
def test_in_a_ball_the_limit_lies_on_the_sphere_with_the_gradient_along_the_radius(quadratics, clip):
    """T1: A_u (w - a_u) is parallel to w - w_ref and points outwards; momentum and clipping do not move the limit."""
    start, r = torch.ones(3, dtype=torch.float64), 1.5
    w = climb(quadratics, 1, start, r=r, lr=0.1, epochs=3000, clip=clip)[-1]
    torch.testing.assert_close((w - start).norm(), torch.tensor(r, dtype=torch.float64), **EXACT)
    gradient = quadratics.A[1] @ (w - quadratics.a[1])
    torch.testing.assert_close(gradient / gradient.norm(), (w - start) / r, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("r", [0.5, 2.0])
def test_pufs_projection_goes_by_another_radius_than_it_projects_to(quadratics, r):
    """Beyond r^2 the model is set to the distance r: outwards for r < 1, and for r > 1 not before r^2."""
    start = torch.ones(3, dtype=torch.float64)
    free = climb(quadratics, 2, start, lr=0.01, epochs=60)
    first = int(((free - start).norm(dim=1) > r**2).nonzero()[0])
    walk = climb(quadratics, 2, start, r=r, radius="puf", lr=0.01, epochs=60)
    torch.testing.assert_close(walk[:first], free[:first], **EXACT)
    torch.testing.assert_close(walk[first], start + r * (free[first] - start) / (free[first] - start).norm(), **EXACT)
    distances = (walk - start).norm(dim=1)
    assert first > 0
    assert float(distances.max()) <= max(r, r**2) + 1e-6
    assert bool((distances > r + 1e-6).any()) is (r > 1)


class Planted(FlatModel):
    """Random models at the distances 1, 2, 3, ... from zero, one per distinct seed."""

    def __init__(self):
        super().__init__(nn.Linear(1, 1, bias=False), task="regression")
        self.seeds = []

    def init(self, seed, dtype=torch.float32):
        self.seeds.append(seed)
        return torch.tensor([float(sorted(set(self.seeds), key=self.seeds.index).index(seed) + 1)], dtype=dtype)


def test_radius_from_ten_models_with_seeds_of_their_own():
    """Squares 1, 4, ..., 100 with mean 38.5: r = sqrt(38.5 / 3)."""
    model = Planted()
    assert radius(model, torch.zeros(1), seed=0) == pytest.approx(math.sqrt(38.5 / 3))
    assert len(model.seeds) == len(set(model.seeds)) == 10
    again, other = Planted(), Planted()
    radius(again, torch.zeros(1), seed=0), radius(other, torch.zeros(1), seed=1)
    assert again.seeds == model.seeds
    assert not set(other.seeds) & set(model.seeds)


def test_pufs_radius_from_ten_models_of_one_seed():
    """w_ref = -6, the one random model 1: d = 7 and r = sqrt(7 / 3), where the squared radius would be 7 / sqrt(3)."""
    model = Planted()
    assert radius(model, torch.tensor([-6.0]), kind="puf", seed=0) == pytest.approx(math.sqrt(7 / 3))
    assert (len(model.seeds), len(set(model.seeds))) == (10, 1)


@pytest.mark.parametrize("kind", ["squared", "puf"])
def test_the_unlearned_model_is_within_the_radius(quadratics, kind):
    """A steep ascent without a stop ends on the sphere of `radius` around w_ref, by the target's own batches."""
    w, w_u, _ = last_round(quadratics, 1)
    options = {"lr": 1.0, "epochs": 100, "batch_size": 5, "radius": kind, "clip": 5.0}
    config = PGA(stop_distance=None, **options)
    ours = unlearned(quadratics, w, w_u, [1], config, seed=4)
    w_ref = reference_model(w, w_u, float(quadratics.p[1]))
    r = radius(quadratics.model, w_ref, kind=kind, seed=4)
    by_hand = climb(quadratics, 1, w_ref, r=r, seed=4, **options)[-1]
    torch.testing.assert_close(ours, by_hand, **EXACT)
    assert float((ours - w_ref).norm()) == pytest.approx(r)


def test_a_threshold_below_the_distance_of_the_start_takes_one_step(quadratics):
    """The check follows the step: w_1, not w_ref."""
    w, w_u, _ = last_round(quadratics, 2)
    w_ref = reference_model(w, w_u, float(quadratics.p[2]))
    config, f = PGA(batch_size=6, stop_distance=float((w_ref - w_u).norm()) / 2), quadratics.federation()
    ours = pga(f, w, w_u, Deletion.of(f.clients, 2), config)
    assert f.meter.images == 6
    torch.testing.assert_close(ours, climb(quadratics, 2, w_ref, batch_size=6, clip=5.0)[0], **EXACT)


def test_the_threshold_is_on_the_distance_and_not_its_square(quadratics):
    """Stops at the first iterate whose distance from w_u is larger; None takes every step."""
    w, w_u, _ = last_round(quadratics, 2)
    w_ref = reference_model(w, w_u, float(quadratics.p[2]))
    walk = climb(quadratics, 2, w_ref, r=radius(quadratics.model, w_ref, seed=0), batch_size=6, clip=5.0)
    distances = (walk - w_u).norm(dim=1)
    limit = float(distances[3] + distances[4]) / 2
    first = int((distances > limit).nonzero()[0])
    assert 0 < first != int((distances**2 > limit).nonzero()[0])
    for stop, expected in ((limit, walk[first]), (None, walk[-1])):
        config = PGA(batch_size=6, stop_distance=stop)
        torch.testing.assert_close(unlearned(quadratics, w, w_u, [2], config), expected, **EXACT)


def test_the_loss_to_be_forgotten_grows():
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(30, 4, generator=g), torch.randint(0, 3, (30,), generator=g)) for _ in range(3)]
    model = FlatModel(softmax_regression(4, 3))
    w_0 = model.init(0)
    w_u = w_0 + 0.01 * torch.randn(model.d, generator=g)
    ours = pga(Federation(model, clients), w_0, w_u, Deletion.of(clients, 1), PGA())
    assert ours.dtype == torch.float32
    assert model.loss(ours, *clients[1]) > model.loss(reference_model(w_0, w_u, 1 / 3), *clients[1])


def test_inputs_are_untouched_and_the_seed_decides(quadratics):
    w, w_u, _ = last_round(quadratics, 2)
    before = w.clone(), w_u.clone()

    def run(seed):
        return unlearned(quadratics, w, w_u, [2], PGA(batch_size=6), seed=seed)

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert torch.equal(w, before[0])
    assert torch.equal(w_u, before[1])


def test_iterates_are_copies(quadratics):
    start = torch.ones(3, dtype=torch.float64)
    kept = climb(quadratics, 2, start, r=0.7, batch_size=6, clip=5.0)
    for k, w_k in enumerate(ascent(quadratics.federation(), start, 2, PGA(batch_size=6), r=0.7)):
        torch.testing.assert_close(w_k, kept[k], **EXACT)
        w_k.fill_(float("nan"))
    assert torch.equal(start, torch.ones(3, dtype=torch.float64))


def test_counters_equal_the_formulas():
    """2 P B bytes, N E_asc images, and (C + 1) P B kept: 11 times the model, as PUF's Table III has it."""
    q = Quadratics(sizes=(12,) * 10)
    w, w_u, _ = last_round(q, 3)
    f, model_bytes = q.federation(), 3 * 8
    pga(f, w, w_u, Deletion.of(f.clients, 3), PGA(batch_size=5, stop_distance=None))
    meter = f.meter
    assert (meter.bytes_down, meter.bytes_up) == (model_bytes, model_bytes)
    assert (meter.images, meter.products, meter.rounds) == (5 * 12, 0, 0)
    assert meter.storage == (10 + 1) * model_bytes
    assert meter.storage / model_bytes == pytest.approx(4.94e8 / 4.49e7, rel=5e-3)


@pytest.mark.parametrize("exchange", [FedOpt(lr=0.5), FedOpt(momentum=0.9), FedOpt("adam", lr=0.01)])
def test_a_server_that_does_not_average_tells_nothing_of_a_local_model(quadratics, exchange):
    f, memory = quadratics.federation(exchange=exchange), Memory(last_round=1)
    w = fedavg(f, torch.ones(3, dtype=torch.float64), 1, on_updates=memory.record)
    with pytest.raises(
        UnsupportedTask, match=r"exchange must be a server that averages, FedOpt\(\), for PGA, got FedOpt"
    ):
        serve(Trained(f, w, rounds=1, memory=memory), Deletion.of(f.clients, 2), PGA())


def test_the_local_model_comes_from_the_last_round(quadratics):
    """Three rounds, the last one remembered: its update of client 2 on top of where that round began."""
    w_0, f = torch.ones(3, dtype=torch.float64), quadratics.federation()
    memory, seen = Memory(last_round=3), []
    w = fedavg(f, w_0, 3, on_updates=memory.record, after_round=lambda t, w_t, _: seen.append(w_t))
    deletion, config = Deletion.of(f.clients, 2), PGA(stop_distance=1e-3, lr=1e-3)
    ours = serve(Trained(f, w, rounds=3, memory=memory), deletion, config)
    own = seen[1] + quadratics.deltas(seen[1])[2]
    torch.testing.assert_close(ours, pga(f, w, own, deletion, config), **EXACT)
    with pytest.raises(MissingHistory, match="local model of client 2"):
        serve(Trained(f, w, rounds=3), deletion, config)


def test_other_ids_than_0_1_2_change_nothing_but_the_batches(quadratics):
    """p_u belongs to the target's place among the ids."""
    w, w_u, others = last_round(quadratics, 1)
    f = quadratics.federation(clients={3 * i + 5: client for i, client in enumerate(quadratics.clients)})
    start = pga(f, w, w_u, Deletion.of(f.clients, 8), PGA(lr=1e-15, epochs=1))
    n = quadratics.sizes[[0, 2, 3]]
    torch.testing.assert_close(start, n @ others / n.sum(), **EXACT)


def test_requests_that_cannot_be_served(quadratics):
    w, w_u, _ = last_round(quadratics, 1)
    with pytest.raises(InvalidRequest, match="p_u must be at least 0 and less than 1"):
        reference_model(w, w_u, 1.0)
    x, y = quadratics.clients[1]
    walk = ascent(quadratics.federation(clients={1: (x[:0], y[:0])}), w, 1, PGA(), r=1.0)
    with pytest.raises(InvalidRequest, match="client 1 holds no samples"):
        next(walk)
    with pytest.raises(UnsupportedTask) as refused:
        unlearned(quadratics, w, w_u, [1, 2])
    assert str(refused.value) == "targets must name one client, got [1, 2]: w_ref takes out one local model"
    with pytest.raises(UnsupportedTask) as refused:
        unlearned(quadratics, w, w_u, {1: torch.tensor([0, 1])})
    assert str(refused.value) == (
        "forget: PGA takes a whole client out of the average and cannot forget single samples"
    )
    with pytest.raises(ValueError, match=r"shape of w, \(3,\), got \(2,\)"):
        unlearned(quadratics, w, w_u[:2], [1])


def test_classes_are_single_samples_too():
    """Class 2 is only a part of what the clients hold."""
    _, (x, y) = net_problem()
    f = Federation(NET, [(x, y), (x, y)])
    with pytest.raises(UnsupportedTask, match="cannot forget single samples"):
        pga(f, NET.init(0), NET.init(1), Deletion.of(f.clients, {i: (y == 2).nonzero()[:, 0] for i in (0, 1)}), PGA())


def test_nan_is_an_error_and_named(quadratics):
    w, w_u, _ = last_round(quadratics, 1)
    (x, y), nan = quadratics.clients[1], torch.full((3,), float("nan"), dtype=torch.float64)
    with pytest.raises(NumericalFailure, match="client 1: the reference model is not finite"):
        unlearned(quadratics, w, nan, [1])
    broken = dict(enumerate([quadratics.clients[0], (x * float("nan"), y), *quadratics.clients[2:]]))
    with pytest.raises(NumericalFailure, match="client 1: a step of the ascent is not finite"):
        unlearned(quadratics, w, w_u, [1], clients=broken)
    with pytest.raises(NumericalFailure, match=r"lower lr \(1e\+200\)"):
        climb(quadratics, 1, w, lr=1e200, epochs=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "layer"}, "clipping must be one of 'global', 'tensor'"),
        ({"weighting": "weigthed"}, "did you mean 'weighted'"),
        ({"radius": "square"}, "did you mean 'squared'"),
        ({"clip": 0.0}, "clip must be a finite number > 0, got 0.0"),
        ({"stop_distance": -1.0}, "stop_distance must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"epochs": 0.0}, "epochs must be"),
        ({"momentum": -0.1}, "momentum"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PGA(**options)
