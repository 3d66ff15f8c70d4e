"""The formulas of PUF's appendix B: by hand, against the paper's cells, and against what runs really count."""

import warnings

import pytest
import torch
from torch import nn

from fu_core.errors import UnsupportedTask
from fu_core.evaluation.costs import measured_flops
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg, recovery_path
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.resnet import ResNet18
from fu_core.request import Deletion
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, unlearn
from fu_papers.puf.cost_model import NOMINAL_FLOPS, AppendixA, Cost, Workload, rounds_cost, unlearning_cost

PAPER = Workload(parameters=11_220_132, clients=10, leaving=1, samples=5000, classifier=51_300)


@pytest.mark.parametrize(
    ("method", "recovery", "comm", "comp", "models"),
    [
        ("Retrain", 0, 1.62e11, 1.35e15, 1),
        ("FedEraser", 0, 1.62e11, 6.75e14, 2000),
        ("PGA", 12.1, 9.86e9, 8.54e13, 11),
        ("MoDe", 4.5, 1.75e10, 1.46e14, 2),
        ("FedAU", 3.3, 2.67e9, 2.23e13, 1),
        ("NoT", 6.5, 5.25e9, 4.39e13, 1),
        ("PUF-Special", 4.1, 3.40e9, 2.84e13, 1),
        ("PUF-Regular", 5.2, 5.10e9, 4.26e13, 1),
    ],
)
def test_formulas_give_the_papers_cells(method, recovery, comm, comp, models):
    """PUF, Table III, CIFAR-100 IID, at the recovery rounds errata P1 derives; to three digits."""
    how = AppendixA(train_rounds=200, retained_rounds=200)
    cost = unlearning_cost(method, PAPER, how) + rounds_cost(PAPER, 9, recovery)
    assert cost.comm_bytes == pytest.approx(comm, rel=5e-3)
    assert cost.comp_flops == pytest.approx(comp, rel=5e-3)
    assert cost.storage_bytes == pytest.approx(models * 4.49e7, rel=1e-3)


def test_table_viii_by_hand():
    """P = 10, P_c = 3, C = 5, C_u = 2, N = 7, E = 2, F = 1: B = 4 makes 80 bytes of one model there and back."""
    f = Workload(parameters=10, clients=5, leaving=2, samples=7, epochs=2, flops=1, classifier=3)
    assert unlearning_cost("PGA", f, AppendixA(epochs_asc=3)) == Cost(80, 7 * 3 * 2, 6 * 40)
    guided = 3 * 4 + 5 * 6  # C_r R_d + C R_m
    assert unlearning_cost("MoDe", f, AppendixA(degradation_rounds=4, guidance_rounds=6)) == Cost(
        80 * guided, 14 * guided, 80
    )
    assert unlearning_cost("FedAU", f) == Cost(2 * 3 * 4, 0, 40)


def test_pga_stores_a_model_more_in_table_iii_than_in_table_viii():
    """Table III: 4.94e8, of (C + 1) P B. Table VIII: C P B."""
    table_viii = unlearning_cost("PGA", PAPER, AppendixA(pga_counts_global=False))
    assert table_viii.storage_bytes == 10 * 11_220_132 * 4
    assert f"{unlearning_cost('PGA', PAPER).storage_bytes:.2e}" == "4.94e+08"
    assert (table_viii + rounds_cost(PAPER, 9, 1)).storage_bytes == 10 * 11_220_132 * 4


def test_fed_au_needs_the_size_of_its_head():
    f = Workload(parameters=10, clients=5, leaving=1, samples=7)
    with pytest.raises(ValueError, match="classifier must be"):
        unlearning_cost("FedAU", f)
    assert unlearning_cost("NoT", f).comm_bytes == 0


def test_unknown_methods_have_no_formula():
    with pytest.raises(UnsupportedTask, match="did you mean 'PUF-Special'"):
        unlearning_cost("PUF-special", PAPER)


def test_phases_add_and_storage_is_the_larger():
    assert Cost(1, 2, 3) + Cost(10, 20, 2) == Cost(11, 22, 3)


# --- what runs count ---

FLOPS = 7.0  # per image
SHORT = AppendixA(
    train_rounds=3, epochs_u=2, retained_rounds=2, epochs_cal=1.0, epochs_asc=3, degradation_rounds=2, guidance_rounds=3
)
PARAMETERS = {
    "NoT": {"layers": ("0",)},
    "PUF-Special": {"epochs_u": 2},
    "PUF-Regular": {"epochs_u": 2},
    "PGA": {"epochs": 3, "batch_size": 5, "stop_distance": None},
    "MoDe": {"rounds_d": 2, "rounds_m": 3, "epochs_guidance": 2},
}


def counted(meter):
    """The same three numbers from what was counted while it ran."""
    return Cost(meter.bytes, FLOPS * meter.images, meter.storage)


@pytest.fixture(scope="module")
def trained():
    """Equal clients of 12 samples, E = 2, B = 5 (three batches, E_cal = 1: three), four bytes a parameter, 3 rounds."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 3, generator=g), torch.randint(0, 2, (12,), generator=g)) for _ in range(4)]
    model = FlatModel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    f = Federation(model, clients, ClientOpt(epochs=2, batch_size=5))
    w_0 = model.init(0)
    memory = Memory(UpdateHistory(w_0, interval=2), last_round=3)
    w = fedavg(f, w_0, 3, on_updates=memory.record)
    return Trained(f, w, rounds=3, w_0=w_0, memory=memory)


@pytest.fixture(scope="module")
def size(trained):
    """P, C, ... of that federation, when client 1 leaves."""
    d = trained.federation.model.d
    return Workload(d, clients=4, leaving=1, samples=12, epochs=2, flops=FLOPS, classifier=5 * 2 + 2)


@pytest.mark.parametrize("method", ["Retrain", "Natural", "NoT", "PUF-Special", "PUF-Regular", "PGA", "MoDe", "FedAU"])
def test_counters_equal_the_formulas(trained, size, method):
    """What ran is what Table VIII says: one target, so that one head of FedAU goes there and back.

    FedAU's computation, negligible in the table, is one way of the target's 12 images through the backbone.
    """
    expected = unlearning_cost(method, size, SHORT)
    if method == "FedAU":
        expected += Cost(0, 12 * FLOPS, 0)
    assert counted(unlearn(method, trained, "client-1", **PARAMETERS.get(method, {})).cost) == expected


def test_counters_of_recovery_equal_the_formula(trained, size):
    meter = Meter()
    f = trained.federation.having(meter=meter)
    left = f.after(Deletion.of(f.clients, 1))
    for _ in recovery_path(left, trained.w, first_round=4, cap=3):
        pass
    meter.keep("global model", trained.w)
    assert counted(meter) == rounds_cost(size, 3, 3)


def test_fed_eraser_sends_and_computes_one_round_less_than_the_formula(trained, size):
    """Of rounds 1 and 3, retained, the first is replayed as stored: 2 P B C_r R_ret. It keeps C R_ret P B."""
    table = unlearning_cost("FedEraser", size, SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meter = unlearn("FedEraser", trained, "client-1").cost
    ours, P = counted(meter), trained.federation.model.d
    assert table.comm_bytes == 2 * P * 4 * 3 * 2
    assert ours.comm_bytes == table.comm_bytes / 2
    assert ours.comp_flops == table.comp_flops / 2
    assert ours.storage_bytes == table.storage_bytes == trained.memory.history.nbytes == 4 * 2 * P * 4
    assert meter.rounds == 1


# --- the nominal F ---


def test_only_with_max_pooling_is_resnet18_near_the_nominal_f():
    """Errata P5: .140e9 multiply-adds forward with a max-pool after the 3x3 stem; F is 1.07 times that."""
    module = ResNet18(3, 100)
    module.maxpool = nn.MaxPool2d(3, 2, 1)
    macs = measured_flops(FlatModel(module), torch.zeros(1, 3, 32, 32), backward=False) / 2
    assert NOMINAL_FLOPS["ResNet-18"] / macs == pytest.approx(1.07, abs=5e-3)
