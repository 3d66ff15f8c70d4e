"""The cost model of PUF's appendix B, as formulas: bytes sent, floating-point operations, bytes stored.

    recovery, all methods:  2 P B C_r R_rec  bytes,   F N E C_r R_rec  FLOPs
    unlearning:             Table VIII, one function per method below

`B` is 4 bytes, F the nominal FLOPs per image the paper uses. Tests hold these formulas against the
counters of fu_core.federation.meter, which count what a run really did.
"""

from __future__ import annotations

from dataclasses import dataclass

from fu_core.errors import UnsupportedTask, nearest
from fu_core.federation.meter import Meter

BYTES_PER_PARAMETER = 4  # B, float32
NOMINAL_FLOPS = {"ResNet-18": 0.15e9, "MiT-B0": 1.7e9}  # F per image, as printed; see errata P5


@dataclass(frozen=True)
class Federation:
    """What the formulas need to know: P, C, C_u, N, E and F."""

    parameters: int  # P
    clients: int  # C
    leaving: int  # C_u
    samples: float  # N, mean samples per client
    epochs: float = 1.0  # E
    flops: float = NOMINAL_FLOPS["ResNet-18"]  # F

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
) -> Cost:
    """Table VIII for the methods implemented; Retrain is `train_rounds` rounds without the target.

    A target of PUF trains `epochs_u` epochs instead of E, which the table, with E_u = E = 1, leaves out.
    FedEraser calibrates `retained_rounds` rounds (R_ret) with `epochs_cal` epochs (E_cal) each. It
    replays the first one as stored, so that what runs is one round less than the table's.
    """
    nothing = Cost(0, 0, f.model_bytes)
    at_targets = f.flops * f.samples * epochs_u * f.leaving
    at_others = f.flops * f.samples * f.epochs * f.remaining
    calibrations = f.remaining * retained_rounds  # C_r R_ret
    table = {
        "Retrain": rounds_cost(f, f.remaining, train_rounds),
        "Natural": nothing,
        "NoT": nothing,  # "negligible"
        "FedEraser": Cost(
            2 * f.model_bytes * calibrations,
            f.flops * f.samples * epochs_cal * calibrations,
            f.model_bytes * f.clients * retained_rounds,  # the targets' updates too: nobody knows who will leave
        ),
        "PUF-Special": Cost(2 * f.model_bytes * f.leaving, at_targets, f.model_bytes),
        "PUF-Regular": Cost(2 * f.model_bytes * f.clients, at_targets + at_others, f.model_bytes),
    }
    if method not in table:
        raise UnsupportedTask(
            f"method has no cost formula: got {method!r}, known are {list(table)}{nearest(method, table)}"
        )
    return table[method]


def total_cost(
    method: str,
    f: Federation,
    *,
    recovery_rounds: float,
    train_rounds: int = 0,
    epochs_u: float = 1.0,
    retained_rounds: int = 0,
    epochs_cal: float = 0.5,
) -> Cost:
    """Unlearning plus recovery. Arguments as for `unlearning_cost`."""
    unlearn = unlearning_cost(
        method,
        f,
        train_rounds=train_rounds,
        epochs_u=epochs_u,
        retained_rounds=retained_rounds,
        epochs_cal=epochs_cal,
    )
    return unlearn + rounds_cost(f, f.remaining, recovery_rounds)


def counted_cost(meter: Meter, flops_per_image: float) -> Cost:
    """The same three numbers from what was counted while it ran."""
    return Cost(meter.bytes, flops_per_image * meter.images, meter.storage)
