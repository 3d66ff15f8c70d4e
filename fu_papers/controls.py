"""The controls in every table of results, and the one check that they come out as they must.

    Original        doing nothing: must fail
    Retrain         the yardstick
    Retrain again   another seed's retraining: must pass; its distance to Retrain is the noise floor
    Destroyed       random weights: must fail, since what has forgotten everything is of no use

A judge that lets a destroyed model pass, or a second retraining fail, does not measure forgetting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from fu_core.errors import ConfigError

REFERENCES = ("Original", "Retrain")
AGAIN = "Retrain again"  # another seed's: what a difference to Retrain is worth
DESTROYED = "Destroyed"  # random weights: what has forgotten, and is of no use
CONTROLS = (*REFERENCES, AGAIN, DESTROYED)
FLOOR = f"{AGAIN} (noise floor)"  # what its row is called
HAS_NOT = "has not been run here"
NOT_RUN = f"A control {HAS_NOT}"
ROUNDING = 1e-9  # of a mean of percentages
USEFUL = 1.0  # points of test accuracy below Retrain's


def other_seed(seed: int, *lists: Sequence[int]) -> int:
    """Of the second retraining: the next of the seeds, of the first list that has several; else one more."""
    for given in lists:
        seeds = list(dict.fromkeys(given))  # a seed that is there twice is not its own other
        if len(seeds) > 1:
            if seed not in seeds:
                raise ConfigError(f"seed must be one of {', '.join(map(str, seeds))}, got {seed}")
            return seeds[(seeds.index(seed) + 1) % len(seeds)]
    return seed + 1


class Standing(NamedTuple):
    """Where a row of a table stands, in points: |forgetting - Retrain's|, |test accuracy - Retrain's|, and how much
    less test accuracy than Retrain. Means over the row's runs."""

    gap: float
    test: float
    shortfall: float

    @classmethod
    def of(cls, r: pd.DataFrame, forgetting: str = "forget") -> Standing:
        """That of the runs `r` of a wide frame. forgetting: the accuracy or success rate that a table looks at."""
        return cls(r[f"delta_{forgetting}"].mean(), r.delta_test.mean(), (r.test_retrain - r.test).mean())


def wrong_controls(rows: Mapping[str, Standing], what: str = "forget gap") -> list[str]:
    """What is wrong with a table's controls, for its caption; empty if they come out as they must.

    rows: the controls' by name, and of whoever else random weights must be worse than (a baseline that may collapse is
    no such row); what: the name of the gap. A second retraining must be nearer to the first than doing nothing is, in
    what is forgotten and, counted in the same points, in test accuracy. Random weights must have lost more test
    accuracy than everybody, and more than two retrainings differ by and a point. Where not, the table cannot tell who
    forgets; where a control is missing, nobody knows.
    """
    missing = [name for name in CONTROLS if name not in rows or any(pd.isna(number) for number in rows[name])]
    if missing:
        return [f"{name} {HAS_NOT}" for name in missing]
    nothing, again, destroyed = (rows[name] for name in ("Original", AGAIN, DESTROYED))
    gap, told = f"Original's {what} ({nothing.gap:.1f})", []
    if not again.gap < nothing.gap - ROUNDING:
        told.append(f"{AGAIN}'s {what} ({again.gap:.1f}) is not smaller than {gap}")
    if not again.test < nothing.gap - ROUNDING:
        told.append(f"{AGAIN}'s test accuracy is {again.test:.1f} points off, no less than {gap}")
    others = {name: row.shortfall for name, row in rows.items() if name != DESTROYED and pd.notna(row.shortfall)}
    if worse := [name for name, shortfall in others.items() if not shortfall < destroyed.shortfall]:
        names = ", ".join(FLOOR if name == AGAIN else name for name in worse)
        told.append(f"{DESTROYED} has no larger shortfall ({destroyed.shortfall:.1f}) than {names}")
    elif not destroyed.shortfall > again.test + USEFUL:
        told.append(
            f"{DESTROYED}'s shortfall ({destroyed.shortfall:.1f}) is at most {USEFUL:g} point more than two "
            f"retrainings differ by ({again.test:.1f})"
        )
    return told


def warning(wrong: Mapping[str, Sequence[str]]) -> str:
    """The sentence that a caption ends with where controls come out wrong or are missing, else "".

    wrong: what `wrong_controls` says of each block of a table, by the block's name; "" for a table of one block.
    """
    bad = {block: notes for block, notes in wrong.items() if notes and not notes[0].endswith(HAS_NOT)}
    absent = [note for notes in wrong.values() for note in notes if note.endswith(HAS_NOT)]
    sentences = []
    if bad:
        where = f" in {len(bad)} of {len(wrong)} blocks, where" if len(wrong) > 1 else ","
        told = ". ".join(f"{f'{block}: ' * bool(block)}{'; '.join(notes)}" for block, notes in bad.items())
        sentences.append(f"THE CONTROLS ARE WRONG{where} this table cannot tell who forgets: {told}.")
    if absent:
        sentences.append(f"Not all controls are there: {'; '.join(dict.fromkeys(absent))}.")
    return " ".join(sentences)


def warned(caption: str, wrong: Mapping[str, Sequence[str]]) -> str:
    """A caption, with the warning as its last sentence where there is one."""
    return f"{caption}. {found}" if (found := warning(wrong)) else caption
