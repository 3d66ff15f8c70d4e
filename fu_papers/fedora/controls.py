"""The controls of FedORA's tables by paired intervals over seeds; what is wrong or open stands in the caption."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fu_papers.controls import AGAIN, CONTROLS, DESTROYED, HAS_NOT, USEFUL, warned
from fu_papers.fedora.grid import Experiment, Task
from fu_papers.fedora.results import request_title, rows_of
from fu_papers.over_seeds import FAILS, OPEN, Part, above, all_of, below, difference
from fu_papers.problem_figures import counted
from fu_papers.problems import dataset_title


def places(e: Experiment) -> dict[str, list[tuple[str, Task]]]:
    """The blocks of every table of results: of which group, on which task."""
    main = [("main", e.main)]
    return {
        "iv": [("main", task) for task in e.tasks(labels=False)],
        "v": [("main", task) for task in e.tasks(labels=True)],
        "vi": [*main, ("noisy", e.main._replace(noise=e.party_noise))],
        "vii": main,
        "viii": [("small", e.main._replace(request=f"samples-{count}")) for count in e.few],
        "ix": [("private", task) for task in e.private_tasks()],
        "parties": [*main, *(("parties", task) for task in e.split_tasks())],
        "readings": main,
    }


def warned_of(caption: str, e: Experiment, runs: pd.DataFrame, table: str) -> str:
    """The caption of one of the tables of `places`, with what is wrong with its controls, and what seeds leave open."""
    blocks = places(e)[table]
    wrong: dict[str, list[str]] = {}
    unsure: dict[str, str] = {}
    for group, task in blocks:
        rows = {m: rows_of(runs, group, task, m) for m in CONTROLS}
        block = _block(task) * (len(blocks) > 1)
        if absent := [f"{m} {HAS_NOT}" for m in CONTROLS if rows[m].test.isna().all()]:
            wrong[block] = absent
            continue
        found = conditions(rows)
        wrong[block] = [text.replace(" is ", " is not ", 1) for text, part in found.items() if part.verdict == FAILS]
        open_ = {text: part for text, part in found.items() if part.verdict == OPEN}
        if open_ and not wrong[block]:
            text = max(open_, key=lambda text: open_[text].needed)  # what decides this decides the others
            unsure[block] = text + _enough(open_[text])
    told = warned(caption, wrong)
    if not unsure:
        return told
    where = f" in {len(unsure)} of {len(blocks)} blocks" if len(blocks) > 1 else ""
    listed = ". ".join(f"{f'{block}: ' * bool(block)}that {text}" for block, text in unsure.items())
    shows = f"{counted(len(e.seeds), 'seed')} {'do' if len(e.seeds) > 1 else 'does'} not show"
    return f"{told.removesuffix('.')}. {shows} that the controls are right{where}: {listed}."


def conditions(rows: Mapping[str, pd.DataFrame]) -> dict[str, Part]:
    """What must be so of the controls of one block, in words with means, and whether the seeds show it.

    A second retraining must be nearer to the first than doing nothing is, in what is forgotten and, counted in the same
    points, in test accuracy. Random weights must have less test accuracy than every other control, and must have lost
    more than two retrainings differ by and a point.
    """
    nothing, again, destroyed = (rows[name].set_index("seed") for name in ("Original", AGAIN, DESTROYED))
    others = [rows[name] for name in CONTROLS if name != DESTROYED]
    short = destroyed.test_retrain - destroyed.test
    gap = f"Original's forget gap ({nothing.delta_forget.mean():.1f})"
    return {
        f"{AGAIN}'s forget gap ({again.delta_forget.mean():.1f}) is smaller than {gap}": below(
            again.delta_forget - nothing.delta_forget, 0
        ),
        f"{AGAIN}'s distance in test accuracy ({again.delta_test.mean():.1f}) is smaller than {gap}": below(
            again.delta_test - nothing.delta_forget, 0
        ),
        f"{DESTROYED}'s test accuracy ({destroyed.test.mean():.1f}) is the lowest": all_of(
            *(below(difference(rows[DESTROYED], other, "test"), 0) for other in others)
        ),
        f"{DESTROYED}'s shortfall ({short.mean():.1f}) is larger than two retrainings' distance and {USEFUL:g} point": (
            above(short - again.delta_test, USEFUL)
        ),
    }


def _enough(part: Part) -> str:
    return f" (about {part.needed:.0f} would)" if 0 < part.needed < float("inf") else ""


def _block(task: Task) -> str:
    """What a table's block is called: "Digits, MLP, m=2, n=50 %, party noise 0.2"."""
    condition = f", {task.condition}" if task.condition else ""
    return f"{dataset_title(task.dataset)}, {request_title(task.request)}{condition}"
