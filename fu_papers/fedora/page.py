"""What FedORA can and cannot do, in five sentences that are computed from the records at hand."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from fu_papers.controls import AGAIN, USEFUL
from fu_papers.fedora.grid import BASELINES, Experiment, Task
from fu_papers.fedora.results import RUINED, Unlearnings, kept_model, rows_of, shown, with_backdoor
from fu_papers.fedora.rules import who_forgot

OURS = "FedORA"  # the default form; tables have the others


def five_sentences(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> str:
    """Five sentences in Markdown, over all settings of Tables IV and V, methods as tuned, means over all runs.

    Nothing in them is known beforehand: with other records they say otherwise.
    """
    tasks = [*e.tasks(labels=False), *e.tasks(labels=True)]
    mean = _means(runs, tasks)
    mine = kept_model(_of(runs, tasks, OURS))
    ended = [r.metrics["ended"] for c, r in unlearnings.items() if _is_ours(c.group, c.method, c.label, r.metrics)]
    met = sum(end["score"] >= end["epsilon"] for end in ended)
    counts = who_forgot(runs, "main", tasks, (OURS, *BASELINES))
    others = ", ".join(f"{m} in {counts[m]}" for m in BASELINES)
    useful = int(((mine.test_retrain - mine.test) <= USEFUL).sum())
    gain = mine.retrain_images / mine.images

    def three(metric: str, factor: float = 1.0) -> tuple[str, str, str]:
        """Ours, Retrain's and doing nothing's."""
        ours, retrained, nothing = (f"{factor * mean(m, metric):.1f}" for m in (OURS, "Retrain", "Original"))
        return ours, retrained, nothing

    off, _, idle = three("delta_forget")
    test, test_retrained, _ = three("test")
    affected, affected_retrained, affected_before = three("test_affected")
    attacked, attacked_retrained, attacked_before = three("mia", 100)
    back = {m: with_backdoor(_of(runs, tasks, m)) for m in (OURS, "Retrain", "Original")}
    fooled, fooled_retrained, fooled_before = (f"{found.kept.asr.mean():.1f}" for found in back.values())
    gone = f"of its {back[OURS].n} models with a backdoor {back[OURS].diverged} diverged and {back[OURS].ruined} more "
    gone += f"lost over {RUINED:g} points of test accuracy to Retrain's, and are left out"
    sentences = (
        f"**Forgetting**: in {counts[OURS]} of {len(tasks)} settings {shown(OURS)}, ends within half of doing "
        f"nothing's distance to Retrain, above it or below, by intervals over seeds; {others}. Its accuracy on what is "
        f"forgotten is off Retrain's by {off} points, doing nothing's by {idle}, a second retraining's by "
        f"{mean(AGAIN, 'delta_forget'):.1f}.",
        f"**Utility**: its test accuracy is {test} %, Retrain's {test_retrained} %; it is at most {USEFUL:g} point "
        f"below Retrain's in {useful} of {len(mine)} runs.",
        f"**Who pays**: on the classes that lose samples test accuracy is {affected} %, Retrain's {affected_retrained} "
        f"%, doing nothing's {affected_before} %.",
        f"**Attacks**: the membership attack is right about {attacked} % (Retrain {attacked_retrained} %, doing "
        f"nothing {attacked_before} %), a backdoor succeeds in {fooled} % (Retrain {fooled_retrained} %, doing nothing "
        f"{fooled_before} %; {gone}).",
        f"**Price and certificate**: Retrain passes {gain.min():.1f} to {gain.max():.1f} times as many samples; the "
        f"constraint was met by the last score in {met} of {len(ended)} runs, which says nothing about the distance to "
        "Retrain.",
    )
    return "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1))


def _of(runs: pd.DataFrame, tasks: list[Task], method: str) -> pd.DataFrame:
    return pd.concat([rows_of(runs, "main", task, method) for task in tasks])


def _means(runs: pd.DataFrame, tasks: list[Task]) -> Callable[[str, str], float]:
    return lambda method, metric: float(kept_model(_of(runs, tasks, method))[metric].mean())


def _is_ours(group: str, method: str, label: str, metrics: dict[str, object]) -> bool:
    return (group, method, label) == ("main", OURS, "") and "ended" in metrics and not metrics["poison"]
