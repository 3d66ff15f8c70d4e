"""The verdicts on FedORA's claims, computed from records by the rules of claims.csv (`holds_if`).

The paper prints two algorithms, with a scalar dual (7)-(20) and with one dual per parameter (25), (27); both are
printed, so both are parts of F1 to F4 and F11, in every setting, and none is a corrected form; the other claims are
judged of the scalar one. Accuracies and attacks are judged by 95 % intervals over seeds, of runs that did not diverge;
a part that doing nothing meets as well does not hold. Accuracy and speed are compared among methods that forgot
comparably (`rules.forgot`), since forgetting nothing costs neither; and forgetting counts where the model
is still of use, at most `USEFUL` points of test accuracy below Retrain. What is claimed to be faster is judged on
samples passed, which are counted and the same on every machine; the seconds are told beside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from fu_papers.controls import AGAIN, USEFUL
from fu_papers.fedora.claims_sweeps import every_part_matters, little_is_enough, more_weight
from fu_papers.fedora.claims_theory import bounded, two_forces
from fu_papers.fedora.grid import BASELINES, Experiment, Task
from fu_papers.fedora.results import (
    Speeds,
    counted_in,
    kept_model,
    request_title,
    rows_of,
    shown,
    with_backdoor,
)
from fu_papers.fedora.rules import POINT, ahead, forgot, unless_diverged, useful, who_forgot, with_losses
from fu_papers.over_seeds import (
    FAILS,
    HOLDS,
    OPEN,
    Part,
    above,
    all_of,
    at_least,
    at_most,
    below,
    difference,
    exact,
    farthest,
    judged,
    lowered_by,
    of_each,
    told,
    unknown,
    within,
)
from fu_papers.over_seeds_discrete import rarely, share_interval
from fu_papers.problems import dataset_title
from fu_papers.verdicts import ClaimResult, Theory

READINGS = ("FedORA", "FedORA vector")
CHANCE, BACKDOORED, TWICE, PRIVATE_POINTS = 0.05, 10.0, 2.0, 5.0
NEVER = 0.05  # of trainings: no finite number of them tells "never"


def verdicts(e: Experiment, runs: pd.DataFrame, speeds: Speeds, theory: Theory) -> list[ClaimResult]:
    """One result per claim F1-F13. `runs`: the wide frame of `results.of_runs`."""
    return [judge() for judge in judges(e, runs, speeds, theory).values()]


def judges(e: Experiment, runs: pd.DataFrame, speeds: Speeds, theory: Theory) -> dict[str, Callable[[], ClaimResult]]:
    """What judges each claim, by its name: who asks about one need not wait for all."""
    samples, labels = e.tasks(labels=False), e.tasks(labels=True)
    noisy = [e.main._replace(noise=e.party_noise)]
    return {
        "F1": lambda: _accurate("F1", runs, "main", samples),
        "F2": lambda: _accurate("F2", runs, "main", labels),
        "F3": lambda: _forgotten(runs, [*samples, *labels]),
        "F4": lambda: _resilient(runs, [*samples, *labels]),
        "F5": lambda: _fast(runs, speeds, [*samples, *labels]),
        "F6": lambda: every_part_matters(e, runs),
        "F7": lambda: little_is_enough(e, runs),
        "F8": lambda: more_weight(e, runs),
        "F9": lambda: _one_sample(e, runs),
        "F10": lambda: _private(e, runs),
        "F11": lambda: _accurate("F11", runs, "noisy", noisy),
        "F12": lambda: two_forces(theory),
        "F13": lambda: bounded(theory),
    }


def _keys(runs: pd.DataFrame, group: str, tasks: Sequence[Task], methods: Sequence[str]) -> list[str]:
    return [key for task in tasks for method in methods for key in rows_of(runs, group, task, method).record]


def _named(found: Mapping[tuple[str, Task], Part]) -> dict[str, Part]:
    """The parts of a claim by name: a reading in a setting."""
    return {
        f"{shown(m)} on {dataset_title(t.dataset)} {request_title(t.request)} {t.condition}".strip(): part
        for (m, t), part in found.items()
    }


def _counted(found: Mapping[tuple[str, Task], Part], tasks: Sequence[Task]) -> str:
    """In how many settings each reading holds."""
    holding = {m: sum(part.verdict == HOLDS for (of, _), part in found.items() if of == m) for m in READINGS}
    return "; ".join(f"{shown(m)} in {count} of {len(tasks)} settings" for m, count in holding.items())


def _accurate(id: str, runs: pd.DataFrame, group: str, tasks: Sequence[Task]) -> ClaimResult:
    """F1, F2, F11: within a point of Retrain's test accuracy, and higher than GA, ICO and CVFU, in every setting.

    Among methods that forgot comparably: who has not is not compared with, and does not hold.
    """

    def meets(task: Task, method: str) -> Part:
        has = {m: forgot(runs, group, task, m) for m in (method, *BASELINES)}
        rivals = {m: kept_model(rows_of(runs, group, task, m)) for m in BASELINES if has[m].verdict != FAILS}
        lonely = not any(has[m].verdict == HOLDS for m in rivals)

        def rule(mine: pd.DataFrame) -> Part:
            return all_of(
                at_most(mine.delta_test, POINT),
                *(ahead(has[m], above(difference(mine, rival, "test"), 0)) for m, rival in rivals.items()),
                *([unknown("no rival forgot comparably" + ", as far as can be told" * bool(rivals))] * lonely),
            )

        return all_of(has[method], unless_diverged(rows_of(runs, group, task, method), rule))

    nothing = {task: meets(task, "Original") for task in tasks}
    found = {(method, task): lowered_by(nothing[task], meets(task, method)) for method in READINGS for task in tasks}
    gaps = {m: pd.concat([rows_of(runs, group, task, m) for task in tasks]).delta_test for m in ("Original", *READINGS)}
    ours = _counted(found, tasks)
    ours += "; mean |test - Retrain's|: " + ", ".join(f"{shown(m)} {gap.mean():.1f}" for m, gap in gaps.items())
    counts = who_forgot(runs, group, tasks, (*READINGS, *BASELINES))
    ours += "; forgot comparably: " + ", ".join(f"{shown(m)} {count}" for m, count in counts.items())
    ours += f"; {_floor(runs, group, tasks, 'test')}{_chosen(runs, group, tasks)}{_lost(runs, group, tasks)}"
    reason = (
        f"mean |test acc. - Retrain's| <= {POINT:g} and above GA, ICO and CVFU, in every setting, "
        "among those that forgot comparably"
    )
    keys = _keys(runs, group, tasks, ("Original", "Retrain", AGAIN, *BASELINES, *READINGS))
    spread = f"{_sizes(runs, tasks)}; |test - Retrain's|: {_most(runs, group, tasks, lambda r: r.delta_test)}"
    return judged(id, _named(found), ours, spread, keys, reason)


def _floor(runs: pd.DataFrame, group: str, tasks: Sequence[Task], metric: str) -> str:
    """How far two retrainings are apart. A second one meets no rule: over all seeds it is the first again."""
    apart = pd.concat([rows_of(runs, group, task, AGAIN) for task in tasks])[f"delta_{metric}"]
    return f"two retrainings are {apart.mean():.1f} apart"


def _chosen(runs: pd.DataFrame, group: str, tasks: Sequence[Task]) -> str:
    """Where trials chose the reverse divergence (errata F2), and not the score that the text has, for a reading."""
    where: dict[str, list[str]] = {}
    for m, task in itertools.product(READINGS, tasks):
        if rows_of(runs, group, task, m).reverse.any():
            where.setdefault(m, []).append(dataset_title(task.dataset))
    places = "; ".join(f"{shown(m)} on {' and '.join(dict.fromkeys(names))}" for m, names in where.items())
    return f"; by trials with the reverse divergence for its score: {places}" * bool(places)


def _lost(runs: pd.DataFrame, group: str, tasks: Sequence[Task]) -> str:
    """How many runs of each reading diverged, and are in no mean."""
    cells = {m: pd.concat([rows_of(runs, group, task, m) for task in tasks]) for m in READINGS}
    lost = {m: len(cell) - len(kept_model(cell)) for m, cell in cells.items()}
    return "".join(f"; {shown(m)}: {n} of {len(cells[m])} runs diverged" for m, n in lost.items() if n)


def _sizes(runs: pd.DataFrame, tasks: Sequence[Task]) -> str:
    return of_each(len(tasks), "setting", runs.seed.nunique())


def _most(
    runs: pd.DataFrame,
    group: str,
    tasks: Sequence[Task],
    value: Callable[[pd.DataFrame], pd.Series],
    methods: Sequence[str] = READINGS,
    *,
    digits: int = 1,
    largest: float = 100.0,
    metric: str = "",
) -> str:
    """Of each method the setting whose mean of a value >= 0 may be largest, over the runs that count for a metric."""

    def told_of(method: str) -> str:
        found = {}
        for task in tasks:
            every = rows_of(runs, group, task, method)
            kept = value(counted_in(every, metric)).dropna()
            lost = f", {len(every) - len(kept)} of {len(every)} without" * (len(kept) < len(every))
            found[f"{dataset_title(task.dataset)} {request_title(task.request)}{lost}"] = kept
        return f"{shown(method)} {farthest(found, digits, (0, largest))}"

    return "; ".join(told_of(method) for method in methods)


def _forgotten(runs: pd.DataFrame, tasks: Sequence[Task]) -> ClaimResult:
    """F3: accuracy on the removed data at most Retrain's, by a model of use. How far below is the error (F11)."""

    def meets(task: Task, method: str) -> Part:
        retrained = rows_of(runs, "main", task, "Retrain")
        return unless_diverged(
            rows_of(runs, "main", task, method),
            lambda cell: all_of(at_most(difference(cell, retrained, "forget"), 0), useful(cell)),
        )

    nothing = {task: meets(task, "Original") for task in tasks}
    found = {(m, task): lowered_by(nothing[task], meets(task, m)) for m in READINGS for task in tasks}
    cells = {m: pd.concat([rows_of(runs, "main", task, m) for task in tasks]) for m in ("Retrain", *READINGS)}
    ours = _counted(found, tasks) + "; "
    ours += "; ".join(
        f"{shown(m)} {cells[m].forget.mean():.1f} % (off by {cells[m].delta_forget.mean():.1f})" for m in READINGS
    )
    ours += f"; Retrain {cells['Retrain'].forget.mean():.1f} %; {_floor(runs, 'main', tasks, 'forget')}"
    ours += _chosen(runs, "main", tasks) + _lost(runs, "main", tasks)
    reason = (
        f"unlearning acc. <= Retrain's at most {USEFUL:g} point of test acc. below it, in every setting; "
        "the distance to Retrain's is the error"
    )
    keys = _keys(runs, "main", tasks, ("Original", "Retrain", AGAIN, *READINGS))
    spread = f"{_sizes(runs, tasks)}; off Retrain's: {_most(runs, 'main', tasks, lambda r: r.delta_forget)}"
    return judged("F3", _named(found), ours, spread, keys, reason)


def _resilient(runs: pd.DataFrame, tasks: Sequence[Task]) -> ClaimResult:
    """F4: membership attack within 5 points of 50 %, backdoor below 10 %, of a model of use, wherever measured.

    Of use with the backdoor in it, too: who loses that model has not resisted it.
    """

    def meets(task: Task, method: str) -> Part:
        def rule(cell: pd.DataFrame) -> Part:
            hidden = all_of(within(cell.mia - 0.5, CHANCE), useful(cell))
            lost = cell.poisoned_diverged.astype(bool)
            if lost.all():
                return exact(False)
            if cell.asr.isna().all():
                return hidden
            short = (cell.poisoned_test_retrain - cell.poisoned_test).dropna()
            part = all_of(hidden, below(cell.asr.dropna(), BACKDOORED), at_most(short, USEFUL))
            told = f"diverged with a backdoor for {lost.sum()} of {len(cell)} seeds"
            return unknown(told) if lost.any() and part.verdict == HOLDS else part

        return unless_diverged(rows_of(runs, "main", task, method), rule)

    nothing = {task: meets(task, "Original") for task in tasks}
    found = {(m, task): lowered_by(nothing[task], meets(task, m)) for m in READINGS for task in tasks}
    shares = []
    for method in ("Original", "Retrain", *READINGS):
        cells = pd.concat([rows_of(runs, "main", task, method) for task in tasks])
        back = with_backdoor(cells)
        told = f" (of {back.n} with a backdoor {back.lost()})" if back.lost() else ""
        shares.append(f"{shown(method)} {cells.mia.mean():.3f} and {back.kept.asr.mean():.1f} %{told}")
    reason = (
        f"|MIA-ASR - 0.5| <= {CHANCE} and BD-ASR < {BACKDOORED:g} % at most {USEFUL:g} point of test acc. below "
        "Retrain, in every setting"
    )
    ours = _counted(found, tasks) + "; MIA-ASR, BD-ASR: " + "; ".join(shares)
    keys = _keys(runs, "main", tasks, ("Original", "Retrain", *READINGS))
    off = _most(runs, "main", tasks, lambda r: (r.mia - 0.5).abs(), digits=3, largest=0.5)
    success = _most(runs, "main", tasks, lambda r: r.asr, metric="asr")
    spread = f"{_sizes(runs, tasks)}; |MIA-ASR - 0.5|: {off}; BD-ASR, %, of models of use: {success}"
    return judged("F4", _named(found), ours, spread, keys, reason)


def _fast(runs: pd.DataFrame, speeds: Speeds, tasks: Sequence[Task]) -> ClaimResult:
    """F5: at most half of the samples that retraining passes, and fewer than ICO and CVFU where those forgot, too.
    (Fewer than GA is better than claimed, and counted; trials weigh forgetting and use, and no method's price.)

    By a model that has forgotten comparably and is still of use: random weights are the cheapest of all. And where
    doing nothing, which costs nothing, is not as near to Retrain.
    """
    parts, gains, below_ga = {}, [], 0
    for task in tasks:
        cell = rows_of(runs, "main", task, "FedORA")
        mine, of_use = kept_model(cell), unless_diverged(cell, useful)
        rows = {m: kept_model(rows_of(runs, "main", task, m)) for m in BASELINES}
        below_ga += bool(mine.images.mean() < rows["GA"].images.mean())
        gains.append(mine.retrain_images.mean() / mine.images.mean())
        has = {m: forgot(runs, "main", task, m) for m in ("FedORA", "ICO", "CVFU")}
        rivals = [m for m in ("ICO", "CVFU") if has[m].verdict != FAILS]
        original = rows_of(runs, "main", task, "Original")
        nothing = all_of(at_most(original.delta_forget, POINT), useful(original))
        counted = {
            "half of Retrain's": at_least(mine.retrain_images / mine.images, TWICE),
            "fewer than ICO and CVFU": all_of(
                *(ahead(has[m], below(difference(mine, rows[m], "images"), 0)) for m in rivals)
            ),
        }
        for what, met in counted.items():
            name = f"{what} on {dataset_title(task.dataset)} {request_title(task.request)}"
            parts[name] = lowered_by(nothing, all_of(has["FedORA"], met, of_use))
    forgetting = who_forgot(runs, "main", tasks, ["FedORA"])["FedORA"]
    timed = [r.metrics["seconds"] for r in speeds.values()]  # what diverges has no time
    taken = [seconds["Retrain"] / seconds["FedORA"] for seconds in timed if "FedORA" in seconds]
    ours = (
        f"{min(gains):.1f}x to {max(gains):.1f}x fewer samples than Retrain in {len(tasks)} settings, forgot "
        f"comparably in {forgetting} (elsewhere too little, or more than Retrain); fewer than GA in {below_ga}; "
        f"{f'{min(taken):.1f}x to {max(taken):.1f}x' if taken else '–'} in time, on {len(taken)}"
    )
    reason = (
        "samples passed, counted (but for CVFU's passes without a gradient): "
        f"Retrain / FedORA >= {TWICE:g}, and FedORA below ICO and CVFU, in every setting, "
        f"among those that forgot comparably, at most {USEFUL:g} point of test acc. below Retrain, where doing nothing "
        f"is not so near, either: within {POINT:g} on what is forgotten, and at most {USEFUL:g} below"
    )
    keys = [
        *_keys(runs, "main", tasks, ("Original", AGAIN, "ICO", "CVFU", "FedORA")),
        *(r.key for r in speeds.values()),
    ]
    share = _most(runs, "main", tasks, lambda r: 100 * r.images / r.retrain_images, ["FedORA"], largest=np.inf)
    spread = f"{_sizes(runs, tasks)}; % of Retrain's samples: {share}; time: one process, median"
    return judged("F5", parts, ours, spread, keys, reason)


def _one_sample(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F9: one sample is forgotten as printed, by a model of use: unlearning accuracy 0, attack at 50 %.

    One sample is recognised after a training, or it is not, so that its accuracy is how often it is: at most `NEVER`,
    by the exact binomial interval, where three trainings without it would be 0 without any width by a t interval.
    """
    task = e.main._replace(request=f"samples-{min(e.few)}")
    cells = {ratio: rows_of(runs, "small", task, "FedORA", f"{ratio:g}") for ratio in e.few_ratios}
    nothing, retrained = (rows_of(runs, "small", task, m) for m in ("Original", "Retrain"))

    def meets(cell: pd.DataFrame) -> Part:
        return unless_diverged(
            cell, lambda kept: all_of(rarely(kept.forget > 0, NEVER), within(kept.mia - 0.5, CHANCE), useful(kept))
        )

    def told_of(kept: pd.DataFrame) -> str:
        count, n = int((kept.forget > 0).sum()), len(kept)
        low, high = (100 * end for end in share_interval(count, n))
        return f"recognised in {count} of {n} [{low:.0f} %, {high:.0f} %], MIA-ASR {told(kept.mia, 2, (0, 1))}"

    parts = {
        f"{100 * ratio:g} % of the retained data": lowered_by(meets(nothing), meets(c)) for ratio, c in cells.items()
    }
    ours = "; ".join(
        f"ratio {100 * ratio:g} %: unlearning acc. {c.forget.mean():.0f}, MIA-ASR {c.mia.mean():.2f}, "
        f"test acc. {c.test.mean():.1f}"
        for ratio, c in cells.items()
    )
    ours += f"; Retrain {retrained.forget.mean():.0f}, {retrained.mia.mean():.2f}, {retrained.test.mean():.1f}"
    reason = (
        f"recognised in at most {100 * NEVER:g} % of trainings and |MIA-ASR - 0.5| <= {CHANCE} at most {USEFUL:g} "
        "point of test acc. below Retrain; what was never seen can still be recognised"
    )
    keys = [key for cell in (*cells.values(), nothing, retrained) for key in cell.record]
    spread = "; ".join(f"ratio {100 * r:g} %: {with_losses(c, told_of)}" for r, c in cells.items())
    if at_most(nothing.forget, 0).verdict == HOLDS:
        tells = unknown("a sample that the trained model recognises would tell, more seeds of this one would not")
        parts = {name: tells if part.verdict == OPEN else part for name, part in parts.items()}
    return judged("F9", parts, ours, spread, keys, reason)


def _private(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F10: under noise on the embeddings unlearning accuracy stays below Retrain's plus 5 points, of a model of use."""
    tasks = {std: e.main._replace(dp_std=std) for std in e.embedding_noise}

    def over(task: Task, method: str) -> pd.Series:
        mine, retrained = (kept_model(rows_of(runs, "private", task, m)) for m in (method, "Retrain"))
        return difference(mine, retrained, "forget")

    def meets(task: Task, method: str) -> Part:
        low = below(over(task, method), PRIVATE_POINTS)
        return unless_diverged(rows_of(runs, "private", task, method), lambda cell: all_of(low, useful(cell)))

    parts = {
        f"noise {std:g}": lowered_by(meets(task, "Original"), meets(task, "FedORA")) for std, task in tasks.items()
    }
    cells = {m: [rows_of(runs, "private", t, m) for t in tasks.values()] for m in ("FedORA", "Retrain")}
    ours = "; ".join(
        f"noise {std:g}: {a.forget.mean():.1f} at test acc. {a.test.mean():.1f} "
        f"(Retrain {r.forget.mean():.1f} at {r.test.mean():.1f})"
        for std, a, r in zip(tasks, cells["FedORA"], cells["Retrain"], strict=True)
    )
    spread = "over Retrain's: " + "; ".join(f"noise {std:g} {told(over(t, 'FedORA'))}" for std, t in tasks.items())
    keys = _keys(runs, "private", list(tasks.values()), ("Original", "Retrain", "FedORA"))
    reason = (
        f"unlearning acc. < Retrain's + 5 points at most {USEFUL:g} point of test acc. below Retrain, at every level"
    )
    return judged("F10", parts, ours, spread, keys, reason)
