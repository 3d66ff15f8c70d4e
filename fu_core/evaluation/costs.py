"""The cost model of PUF's appendix B, as formulas: bytes sent, floating-point operations, bytes stored.

    recovery, all methods:  2 P B C_r R_rec  bytes,   F N E C_r R_rec  FLOPs
    unlearning:             Table VIII, one function per method below

`B` is 4 bytes, F the nominal FLOPs per image the paper uses; `measured_flops` counts what an image really
takes. Tests hold these formulas against the counters of fu_core.federation.meter, which count what a run
really did, and fu_papers.puf.costs against the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fu_core.errors import UnsupportedTask, check_positive, nearest
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel

BYTES_PER_PARAMETER = 4  # B, float32
NOMINAL_FLOPS = {"ResNet-18": 0.15e9, "MiT-B0": 1.7e9}  # F per image, as printed; see errata P5


@dataclass(frozen=True)
class Federation:
    """What the formulas need to know: P, C, C_u, N, E, F, and P_c for FedAU."""

    parameters: int  # P
    clients: int  # C
    leaving: int  # C_u
    samples: float  # N, mean samples per client
    epochs: float = 1.0  # E
    flops: float = NOMINAL_FLOPS["ResNet-18"]  # F
    classifier: int = 0  # P_c, of the P parameters

    @property
    def remaining(self) -> int:
        """C_r = C - C_u."""
        return self.clients - self.leaving

    @property
    def model_bytes(self) -> int:
        """P B."""
        return self.parameters * BYTES_PER_PARAMETER


@dataclass(frozen=True)
class Cost:
    """Bytes sent, FLOPs and bytes stored of one phase. Phases add; storage is the larger of the two."""

    comm_bytes: float
    comp_flops: float
    storage_bytes: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.comm_bytes + other.comm_bytes,
            self.comp_flops + other.comp_flops,
            max(self.storage_bytes, other.storage_bytes),
        )


def rounds_cost(f: Federation, participants: int, rounds: float) -> Cost:
    """`rounds` ordinary rounds with `participants` clients: 2 P B C R bytes and F N E C R FLOPs."""
    comm = 2 * f.model_bytes * participants * rounds
    return Cost(comm, f.flops * f.samples * f.epochs * participants * rounds, f.model_bytes)


def unlearning_cost(
    method: str,
    f: Federation,
    *,
    train_rounds: int = 0,
    epochs_u: float = 1.0,
    retained_rounds: int = 0,
    epochs_cal: float = 0.5,
    epochs_asc: float = 5.0,
    degradation_rounds: int = 6,
    guidance_rounds: int = 10,
    pga_counts_global: bool = True,
) -> Cost:
    """Table VIII for every method of Tables III to VI; the defaults are those of PUF's appendix A.

    Retrain is `train_rounds` rounds without the target. A target of PUF trains `epochs_u` epochs instead of
    E, which the table, with E_u = E = 1, leaves out. FedEraser calibrates `retained_rounds` rounds (R_ret)
    with `epochs_cal` epochs (E_cal) each; it replays the first one as stored, so that what runs is one round
    less than the table's. PGA ascends for `epochs_asc` epochs (E_asc) and stores a local model per client
    beside the global one, (C + 1) P B, as Table III prints; `pga_counts_global=False` is Table VIII's C P B.
    MoDe takes `degradation_rounds` (R_d) and `guidance_rounds` (R_m). FedAU sends one head (2 P_c B), as in
    the table; a run sends one per target and has computation that the table calls negligible.

    Raises `UnsupportedTask` for an unknown method, ValueError for FedAU without `f.classifier`.
    """
    if method == "FedAU":
        check_positive("classifier", f.classifier)
    nothing = Cost(0, 0, f.model_bytes)
    at_targets = f.flops * f.samples * epochs_u * f.leaving
    at_others = f.flops * f.samples * f.epochs * f.remaining
    calibrations = f.remaining * retained_rounds  # C_r R_ret
    guided = f.remaining * degradation_rounds + f.clients * guidance_rounds  # C_r R_d + C R_m
    table = {
        "Retrain": rounds_cost(f, f.remaining, train_rounds),
        "Natural": nothing,
        "NoT": nothing,  # "negligible"
        "FedEraser": Cost(
            2 * f.model_bytes * calibrations,
            f.flops * f.samples * epochs_cal * calibrations,
            f.model_bytes * f.clients * retained_rounds,  # the targets' updates too: nobody knows who will leave
        ),
        "PGA": Cost(
            2 * f.model_bytes,
            f.flops * f.samples * epochs_asc * f.leaving,
            f.model_bytes * (f.clients + pga_counts_global),
        ),
        "MoDe": Cost(2 * f.model_bytes * guided, f.flops * f.samples * f.epochs * guided, 2 * f.model_bytes),
        "FedAU": Cost(2 * f.classifier * BYTES_PER_PARAMETER, 0, f.model_bytes),
        "PUF-Special": Cost(2 * f.model_bytes * f.leaving, at_targets, f.model_bytes),
        "PUF-Regular": Cost(2 * f.model_bytes * f.clients, at_targets + at_others, f.model_bytes),
    }
    if method not in table:
        raise UnsupportedTask(
            f"method has no cost formula: got {method!r}, known are {list(table)}{nearest(method, table)}"
        )
    return table[method]


def total_cost(method: str, f: Federation, *, recovery_rounds: float, **settings: Any) -> Cost:
    """Unlearning plus recovery; `settings` as for `unlearning_cost`."""
    return unlearning_cost(method, f, **settings) + rounds_cost(f, f.remaining, recovery_rounds)


def counted_cost(meter: Meter, flops_per_image: float) -> Cost:
    """The same three numbers from what was counted while it ran."""
    return Cost(meter.bytes, flops_per_image * meter.images, meter.storage)


def measured_flops(model: FlatModel, example: Tensor, *, backward: bool = True) -> float:
    """FLOPs of one training image, counted while torch runs: forward and backward, or the forward pass alone.

    example (n, ...): raw inputs, of which only the shape matters. A multiply-add is two FLOPs; matrix products
    and convolutions count, element-wise work does not. Deterministic. Stands beside the paper's nominal F, of
    which nobody knows what it counts (errata P5): our ResNet-18 takes 0.555e9 multiply-adds forward.
    """
    w = torch.zeros(model.d, device=example.device, requires_grad=True)
    # a fused attention kernel on the CPU is unknown to the counter; plain products are not
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        outputs = model.logits(w, example)
        if backward:
            torch.autograd.grad(outputs.sum(), w)
    return counter.get_total_flops() / len(example)
