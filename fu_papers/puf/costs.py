"""PUF's printed costs against its printed formulas (errata P1). Arithmetic only, nothing is trained.

    bytes = unlearning + 2 P B C_r R        FLOPs = unlearning + F N E C_r R        Tables VII and VIII

The recovery rounds R are not printed. They are a mean over ten runs (five in Table V), so a multiple of
0.1 (0.2), and one R must explain a row. A cell follows if the formula comes within half a unit of its third
and last printed digit. A row gets the R with which most of its cells follow; where bytes and FLOPs ask for
different ones, the FLOPs decide. How many runs Table IV has is not said; ten are assumed, and one cell
more would follow were it a multiple of three.

Tables III to V have 57 rows with costs: 171 cells of bytes, FLOPs and storage. Table VI is left out, since
its P is not the text's (errata P4); the rounds behind it are implied with P and F N of its Retrain row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fu_papers.puf.cost_model import (
    BYTES_PER_PARAMETER,
    NOMINAL_FLOPS,
    AppendixA,
    Cost,
    Workload,
    rounds_cost,
    unlearning_cost,
)

COLUMNS = ("comm_bytes", "comp_flops", "storage_bytes")
RUNS = {"III": 10, "IV": 10, "V": 5, "VI": 6}  # III and V: Sec. V-D; IV assumed; VI assumed, one per hospital
TRAIN_ROUNDS = {"ResNet-18": 200, "MiT-B0": 50, "Res-UNet": 500}  # Sec. V-A
PARAMETERS = {"ResNet-18": 11_220_132, "MiT-B0": 3_319_392}  # P; of MiT-B0 the encoder alone (errata P4)
CLASSIFIERS = {"ResNet-18": 512 * 100 + 100, "MiT-B0": 256 * 100 + 100}  # P_c for 100 classes, which P has everywhere
SAMPLES = 5000  # N: 50,000 images, 10 clients
FORGOTTEN_SHARE = 0.5  # of a target's samples in Table IV


def cost_cells() -> pd.DataFrame:
    """Every printed cost of Tables III to V beside the formula's.

    Columns: table, setting, method, column (its name in the published tables), printed, recomputed, ratio
    (printed over recomputed), follows, note (which other arithmetic prints this number, or which R the cell
    would need; empty where it follows).
    """
    cells = []
    for row in _rows("III", "IV", "V"):
        rounds = row.rounds()
        for column in COLUMNS:
            printed, recomputed = row.printed[column], getattr(row.cost(rounds), column)
            follows = bool(_same_digits(printed, recomputed))
            cells.append(
                {
                    **row.names,
                    "column": column,
                    "printed": printed,
                    "recomputed": recomputed,
                    "ratio": printed / recomputed,
                    "follows": follows,
                    "note": "" if follows else row.note(column, rounds),
                }
            )
    return pd.DataFrame(cells)


def mismatches() -> pd.DataFrame:
    """The cells of `cost_cells` that do not follow."""
    cells = cost_cells()
    return cells[~cells.follows].drop(columns="follows").reset_index(drop=True)


def implied_rounds() -> pd.DataFrame:
    """The recovery rounds behind every row of Tables III to VI but Retrain.

    Columns: table, setting, method, from_bytes and from_flops (any number; missing where the cell cannot be
    what its column says), rounding (how far the two may be apart because their cells are rounded), agree
    (they are not further apart), rounds (the mean of whole numbers by which `cost_cells` recomputes the row).
    """
    implied = []
    for row in _rows("III", "IV", "V", "VI"):
        if row.method == "Retrain":
            continue
        (from_bytes, half_bytes), (from_flops, half_flops) = row.implied("comm_bytes"), row.implied("comp_flops")
        rounding = half_bytes + half_flops
        implied.append(
            {
                **row.names,
                "from_bytes": from_bytes,
                "from_flops": from_flops,
                "rounding": rounding,
                "agree": abs(from_bytes - from_flops) <= rounding,
                "rounds": row.rounds(),
            }
        )
    return pd.DataFrame(implied)


@dataclass(frozen=True)
class _Row:
    """A printed row. `before` is the federation that unlearns, `after` the one that recovers or trains again."""

    table: str
    setting: str
    method: str
    train_rounds: int
    before: Workload
    after: Workload
    printed: dict[str, float]

    @property
    def names(self) -> dict[str, str]:
        return {"table": self.table, "setting": self.setting, "method": self.method}

    def cost(self, rounds: float) -> Cost:
        """Tables VII and VIII with R = `rounds` and E_u = E."""
        if self.method == "Retrain":
            return unlearning_cost("Retrain", self.after, AppendixA(train_rounds=self.train_rounds))
        how = AppendixA(epochs_u=self.before.epochs, retained_rounds=self.train_rounds, pga_counts_global=False)
        recovery = rounds_cost(self.after, self.after.remaining, rounds)
        return unlearning_cost(self.method, self.before, how) + recovery

    def read(self, column: str) -> float:
        """The cell as R is read from it: more bytes than recovering for as long as training can send are FLOPs."""
        misplaced = self.printed["comm_bytes"] > self.cost(self.train_rounds).comm_bytes
        if not misplaced:
            return self.printed[column]
        return {"comm_bytes": math.nan, "comp_flops": self.printed["comm_bytes"]}[column]

    def implied(self, column: str) -> tuple[float, float]:
        """The R with which the formula is the cell, and by how much R can vary before the cell changes."""
        start, slope = self.line(column)
        cell = self.read(column)
        return (cell - start) / slope, _half_unit(cell) / slope

    def line(self, column: str) -> tuple[float, float]:
        """`column` without recovery, and what each round of recovery adds."""
        start = getattr(self.cost(0), column)
        return start, getattr(self.cost(1), column) - start

    def rounds(self) -> float:
        """The R with which most cells of the row follow; of several, the nearest to what the FLOPs imply."""
        if self.method == "Retrain":
            return 0.0
        R = np.arange(self.train_rounds * RUNS[self.table] + 1) / RUNS[self.table]
        count = np.zeros(len(R), dtype=int)
        for column in ("comm_bytes", "comp_flops"):
            start, slope = self.line(column)
            count += _same_digits(self.read(column), start + slope * R)
        distance = np.abs(R - self.implied("comp_flops")[0])
        return float(R[np.lexsort((distance, -count))[0]])

    def note(self, column: str, rounds: float) -> str:
        """What else prints a cell that does not follow; failing that, the R it needs."""
        if self.method == "Retrain":
            return ""
        for R in (rounds, self.implied("comp_flops")[0]):
            for reading, value in self._readings(column, R):
                if _same_digits(self.printed[column], value):
                    return reading if column == "storage_bytes" else f"{reading}, R = {R:.2f}"
        if column == "storage_bytes":
            return ""
        other, name = {"comm_bytes": ("comp_flops", "FLOPs"), "comp_flops": ("comm_bytes", "bytes")}[column]
        return f"needs R = {self.implied(column)[0]:.2f}, the row's {name} R = {self.implied(other)[0]:.2f}"

    def _readings(self, column: str, R: float) -> Iterator[tuple[str, float]]:
        f, start, slope = self.before, *self.line(column)
        if column == "storage_bytes" and self.method == "PGA":
            yield "(C + 1) P B", unlearning_cost("PGA", f).storage_bytes
        if column == "comm_bytes":
            if self.after.remaining > f.remaining:  # sample unlearning: the target stays
                computing = self.after.clients * self.after.samples / SAMPLES
                sending = slope * f.remaining / self.after.remaining
                yield f"{f.remaining} clients send in recovery, {computing:g} compute", start + sending * R
            if f.leaving > 1:
                yield "unlearning round counted C_u times", f.leaving * start + slope * R
            yield "these are the FLOPs", self.cost(R).comp_flops
        if column == "comp_flops" and f.epochs > 1:
            one = replace(self, before=replace(f, epochs=1), after=replace(self.after, epochs=1))
            yield f"E = 1 instead of {f.epochs}", one.cost(R).comp_flops


def _rows(*tables: str) -> Iterator[_Row]:
    """All rows with costs, in print order."""
    from fu_papers.look import published  # here: who runs trainings needs no figures

    for table in tables:
        frame = published("puf", f"table_{table.lower()}").dropna(subset="comm_bytes")
        retrain = frame[frame.method == "Retrain"].set_index("setting")
        for row in frame.to_dict("records"):
            before = _workload(row, retrain.loc[row["setting"]])
            after = before
            if row["unlearning"] == "sample":  # nobody leaves, a share of the targets' samples does
                kept = before.clients - FORGOTTEN_SHARE * before.leaving
                after = replace(before, leaving=0, samples=before.samples * kept / before.clients)
                if row["method"] == "PUF-Special":
                    before = replace(before, samples=before.samples * FORGOTTEN_SHARE)
            printed = {column: row[column] for column in COLUMNS if column in row}
            yield _Row(table, row["setting"], row["method"], TRAIN_ROUNDS[row["model"]], before, after, printed)


def _workload(row: dict[Any, Any], retrain: pd.Series) -> Workload:
    model, leaving = row["model"], row["target_clients"]
    if model == "Res-UNet":  # N and F are not printed and P does not fit: P and F N from Retrain's row
        trainings = 5 * TRAIN_ROUNDS[model]  # C_r R, in 2 P B C_r R bytes and F N E C_r R FLOPs
        P = round(retrain.comm_bytes / (2 * BYTES_PER_PARAMETER * trainings))
        return Workload(P, clients=6, leaving=leaving, samples=1, flops=retrain.comp_flops / trainings)
    return Workload(
        PARAMETERS[model],
        clients=10,
        leaving=leaving,
        samples=SAMPLES,
        epochs=row["local_epochs"],
        flops=NOMINAL_FLOPS[model],
        classifier=CLASSIFIERS[model],
    )


def _half_unit(printed: float) -> float:
    """Half a unit of the third digit."""
    return 0.005 * 10 ** math.floor(math.log10(printed)) if math.isfinite(printed) else math.nan


def _same_digits(printed: float, recomputed: Any) -> Any:
    """Does `recomputed`, a number or an array, round to `printed`? Ties may go either way, as some do in print."""
    return np.abs(recomputed - printed) <= _half_unit(printed) * (1 + 1e-9)
