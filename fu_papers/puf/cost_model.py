"""The cost model of PUF's appendix B, as formulas: bytes sent, floating-point operations, bytes stored.

    recovery, all methods:  2 P B C_r R_rec  bytes,   F N E C_r R_rec  FLOPs
    unlearning:             Table VIII, a line per method below

`B` is 4 bytes, F the nominal FLOPs per image the paper uses; `fu_core.evaluation.costs.measured_flops` counts what an
image really takes. Tests hold these formulas against the counters of fu_core.federation.meter, which count what a run
really did, and `costs` holds them against the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from fu_core.errors import UnsupportedTask, check_positive, nearest

BYTES_PER_PARAMETER = 4  # B, float32
# F per image, as printed. Nobody knows what it counts (errata P5): our ResNet-18 takes 0.555e9 multiply-adds forward.
NOMINAL_FLOPS = {"ResNet-18": 0.15e9, "MiT-B0": 1.7e9}


@dataclass(frozen=True)
class Workload:
    """What the formulas need to know of a federation: P, C, C_u, N, E, F, and P_c for FedAU."""

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


def rounds_cost(f: Workload, participants: int, rounds: float) -> Cost:
    """`rounds` ordinary rounds with `participants` clients: 2 P B C R bytes and F N E C R FLOPs."""
    comm = 2 * f.model_bytes * participants * rounds
    return Cost(comm, f.flops * f.samples * f.epochs * participants * rounds, f.model_bytes)


@dataclass(frozen=True)
class AppendixA:
    """How long each method takes; the defaults are those of PUF's appendix A.

    train_rounds: of a training, which Retrain repeats. epochs_u: of a target of PUF, E_u. FedEraser calibrates
    `retained_rounds` (R_ret) with `epochs_cal` epochs (E_cal) each. PGA ascends for `epochs_asc` epochs (E_asc) and
    stores a local model per client beside the global one, (C + 1) P B, as Table III prints; without
    `pga_counts_global` it is Table VIII's C P B. MoDe takes `degradation_rounds` (R_d) and `guidance_rounds` (R_m).
    """

    train_rounds: int = 0
    epochs_u: float = 1.0
    retained_rounds: int = 0
    epochs_cal: float = 0.5
    epochs_asc: float = 5.0
    degradation_rounds: int = 6
    guidance_rounds: int = 10
    pga_counts_global: bool = True


def unlearning_cost(method: str, f: Workload, how: AppendixA | None = None) -> Cost:
    """Table VIII for every method of Tables III to VI.

    A target of PUF trains E_u epochs instead of E, which the table, with E_u = E = 1, leaves out. FedEraser replays
    the first round retained as stored, so that what runs is one round less than the table's. FedAU sends one head
    (2 P_c B), as in the table; a run sends one per target and has computation that the table calls negligible.

    Raises `UnsupportedTask` for an unknown method, ValueError for FedAU without `f.classifier`.
    """
    how = how or AppendixA()
    if method == "FedAU":
        check_positive("classifier", f.classifier)
    nothing = Cost(0, 0, f.model_bytes)
    at_targets = f.flops * f.samples * how.epochs_u * f.leaving
    at_others = f.flops * f.samples * f.epochs * f.remaining
    calibrations = f.remaining * how.retained_rounds  # C_r R_ret
    guided = f.remaining * how.degradation_rounds + f.clients * how.guidance_rounds  # C_r R_d + C R_m
    table = {
        "Retrain": rounds_cost(f, f.remaining, how.train_rounds),
        "Natural": nothing,
        "NoT": nothing,  # "negligible"
        "FedEraser": Cost(
            2 * f.model_bytes * calibrations,
            f.flops * f.samples * how.epochs_cal * calibrations,
            f.model_bytes * f.clients * how.retained_rounds,  # the targets' updates too: nobody knows who will leave
        ),
        "PGA": Cost(
            2 * f.model_bytes,
            f.flops * f.samples * how.epochs_asc * f.leaving,
            f.model_bytes * (f.clients + how.pga_counts_global),
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
