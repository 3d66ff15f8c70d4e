"""What FedORA can and cannot do, in five sentences that are computed from the records at hand."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from fu_papers.controls import AGAIN, USEFUL
from fu_papers.fedora.grid import BASELINES, Experiment, Task
from fu_papers.fedora.results import TOO_MUCH, Unlearnings, kept_model, rows_of, shown, with_backdoor
from fu_papers.fedora.rules import who_forgot
from fu_papers.problems import dataset_name

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

    def three(metric: str, factor: float = 1.0, of: Callable[[str, str], float] = mean) -> tuple[str, str, str]:
        """Ours, Retrain's and doing nothing's."""
        ours, retrained, nothing = (f"{factor * of(m, metric):.1f}" for m in (OURS, "Retrain", "Original"))
        return ours, retrained, nothing

    def paid(tasks: list[Task]) -> str:
        ours, retrained, nothing = three("test_affected", of=_means(runs, tasks))
        return f"test accuracy on those classes is {ours} %, Retrain's {retrained} %, doing nothing's {nothing} %"

    off, _, idle = three("delta_forget")
    test, test_retrained, _ = three("test")
    samples, classes = (e.tasks(labels=labels) for labels in (False, True))
    pays = f"where classes lose samples, {paid(samples)}" + f"; where they go, {paid(classes)}" * bool(classes)
    attacked, attacked_retrained, attacked_before = three("mia", 100)
    back = with_backdoor(_of(runs, tasks, OURS))  # everybody's success where our model is of use
    answered = (f"{back.kept[name].mean():.1f}" for name in ("asr", "asr_retrain", "asr_original"))
    fooled, fooled_retrained, fooled_before = answered
    spread = f"{back.kept.asr.min():.0f} to {back.kept.asr.max():.0f} %"
    gone = f"of its {back.n} models with a backdoor {back.diverged} diverged and {back.ruined} more lost {TOO_MUCH}, "
    gone += "and are left out of all three"
    idle_runs = sum(end["iterations"] == 0 for end in ended)
    sentences = (
        f"**Forgetting**: in {counts[OURS]} of {len(tasks)} settings {shown(OURS)}, ends within half of doing "
        f"nothing's distance to Retrain, above it or below, by intervals over seeds; {others}. Its accuracy on what is "
        f"forgotten is off Retrain's by {off} points, doing nothing's by {idle}, a second retraining's by "
        f"{mean(AGAIN, 'delta_forget'):.1f}{_chosen_score(unlearnings)}.",
        f"**Utility**: its test accuracy is {test} %, Retrain's {test_retrained} %; it is at most {USEFUL:g} point "
        f"below Retrain's in {useful} of {len(mine)} runs.",
        f"**Who pays**: {pays}.",
        f"**Attacks**: the membership attack is right about {attacked} % (Retrain {attacked_retrained} %, doing "
        f"nothing {attacked_before} %), a backdoor succeeds in {fooled} % in the mean, {spread} by model (Retrain "
        f"{fooled_retrained} %, doing nothing {fooled_before} %; {gone}).",
        f"**Price and certificate**: Retrain passes {gain.min():.1f} to {gain.max():.1f} times as many samples; the "
        "constraint was met by the last score (of the forgotten samples that a run looks at, which decides when it "
        f"stops) in {met} of {len(ended)} runs, in {idle_runs} of them before the first step, which says nothing about "
        "the distance to Retrain.",
    )
    return "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1))


def _of(runs: pd.DataFrame, tasks: list[Task], method: str) -> pd.DataFrame:
    return pd.concat([rows_of(runs, "main", task, method) for task in tasks])


def _means(runs: pd.DataFrame, tasks: list[Task]) -> Callable[[str, str], float]:
    return lambda method, metric: float(kept_model(_of(runs, tasks, method))[metric].mean())


def _chosen_score(unlearnings: Unlearnings) -> str:
    """Where trials chose another score for our form than the one that the paper's text has."""
    where = {
        dataset_name(c.setting)
        for c, r in unlearnings.items()
        if (c.group, c.method, c.label) == ("main", OURS, "") and r.metrics.get("chosen", {}).get("score") == "reverse"
    }
    return f" (as its score, its trials chose the reverse divergence on {' and '.join(sorted(where))})" * bool(where)


def _is_ours(group: str, method: str, label: str, metrics: dict[str, object]) -> bool:
    return (group, method, label) == ("main", OURS, "") and "ended" in metrics and not metrics["poison"]
