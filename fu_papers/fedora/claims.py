"""The verdicts on FedORA's claims, computed from records by the rules of claims.csv (`holds_if`).

The paper describes two algorithms, with a scalar dual (7)-(20) and with one dual per parameter (25), (27); both are
judged. A claim holds if both meet the rule in every setting, and in part if only one, or only some settings do, or
if doing nothing meets it as well. What is claimed to be faster is judged on samples passed, which are the same on every
machine; the seconds are told beside.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from scipy.stats import spearmanr

from fu_papers.fedora.grid import ABLATIONS, BASELINES, Experiment, Task
from fu_papers.fedora.results import Speeds, dataset_title, rows_of, shown
from fu_papers.look import mean_spread
from fu_papers.verdicts import ClaimResult, Theory, judge, lowered

READINGS = ("FedORA", "FedORA vector")
POINT, CHANCE, BACKDOORED, TWICE, PRIVATE_POINTS, MONOTONE = 1.0, 0.05, 10.0, 2.0, 5.0, -0.8


def verdicts(e: Experiment, runs: pd.DataFrame, speeds: Speeds, theory: Theory) -> list[ClaimResult]:
    """One result per claim F1-F13. `runs`: the wide frame of `results.of_runs`."""
    samples, labels = e.tasks(labels=False), e.tasks(labels=True)
    noisy = [e.main._replace(noise=e.party_noise)]
    return [
        _accurate("F1", runs, "main", samples),
        _accurate("F2", runs, "main", labels),
        _forgotten(runs, [*samples, *labels]),
        _resilient(runs, [*samples, *labels]),
        _fast(speeds),
        _parts(e, runs),
        _little_is_enough(e, runs),
        _weight(e, runs),
        _one_sample(e, runs),
        _private(e, runs),
        _accurate("F11", runs, "noisy", noisy),
        _two_forces(theory),
        _bounded(theory),
    ]


def _keys(runs: pd.DataFrame, group: str, tasks: Sequence[Task], methods: Sequence[str]) -> list[str]:
    return [key for task in tasks for method in methods for key in rows_of(runs, group, task, method).record]


def _accurate(id: str, runs: pd.DataFrame, group: str, tasks: Sequence[Task]) -> ClaimResult:
    """F1, F2, F11: within a point of Retrain's test accuracy, and higher than GA, ICO and CVFU, in every setting."""

    def meets(task: Task, method: str) -> bool:
        mine = rows_of(runs, group, task, method)
        others = [rows_of(runs, group, task, other).test.mean() for other in BASELINES]
        return bool(mine.delta_test.mean() <= POINT and mine.test.mean() > max(others))

    met = [meets(task, method) for method in READINGS for task in tasks]
    nothing = all(rows_of(runs, group, task, "Original").delta_test.mean() <= POINT for task in tasks)
    gaps = {m: pd.concat([rows_of(runs, group, task, m) for task in tasks]).delta_test for m in ("Original", *READINGS)}
    per = {m: sum(meets(task, m) for task in tasks) for m in READINGS}
    ours = "; ".join(f"{shown(m)} in {count} of {len(tasks)} settings" for m, count in per.items())
    ours += "; mean |test - Retrain's|: " + ", ".join(f"{shown(m)} {gap.mean():.1f}" for m, gap in gaps.items())
    reason = (
        f"mean |test acc. - Retrain's| <= {POINT:g} and above GA, ICO and CVFU, in every setting; doing nothing, too?"
    )
    keys = _keys(runs, group, tasks, ("Retrain", *BASELINES, *READINGS))
    return judge(id, lowered(met, nothing), ours, mean_spread(gaps["FedORA"], 2), keys, reason)


def _forgotten(runs: pd.DataFrame, tasks: Sequence[Task]) -> ClaimResult:
    """F3: accuracy on the removed data at most Retrain's, in every setting. How far below is the error (errata F11)."""
    mean = {
        m: [rows_of(runs, "main", task, m).forget.mean() for task in tasks] for m in ("Original", "Retrain", *READINGS)
    }
    met = [a <= r for m in READINGS for a, r in zip(mean[m], mean["Retrain"], strict=True)]
    nothing = all(a <= r for a, r in zip(mean["Original"], mean["Retrain"], strict=True))
    gaps = {m: pd.concat([rows_of(runs, "main", task, m) for task in tasks]).delta_forget for m in READINGS}
    ours = "; ".join(f"{shown(m)} {pd.Series(mean[m]).mean():.1f} % (off by {gaps[m].mean():.1f})" for m in READINGS)
    ours += f"; Retrain {pd.Series(mean['Retrain']).mean():.1f} %"
    reason = "unlearning acc. <= Retrain's in every setting; the distance to Retrain's is the error"
    keys = _keys(runs, "main", tasks, ("Retrain", *READINGS))
    return judge("F3", lowered(met, nothing), ours, f"off by {mean_spread(gaps['FedORA'], 1)}", keys, reason)


def _resilient(runs: pd.DataFrame, tasks: Sequence[Task]) -> ClaimResult:
    """F4: membership attack within 5 points of 50 %, backdoor below 10 %, wherever it was measured."""

    def meets(task: Task, method: str) -> bool:
        cell = rows_of(runs, "main", task, method)
        hidden = abs(cell.mia.mean() - 0.5) <= CHANCE
        return bool(hidden and (cell.asr.isna().all() or cell.asr.mean() < BACKDOORED))

    met = [meets(task, method) for method in READINGS for task in tasks]
    nothing = all(meets(task, "Original") for task in tasks)
    shares = []
    for method in ("Original", "Retrain", *READINGS):
        cells = pd.concat([rows_of(runs, "main", task, method) for task in tasks])
        shares.append(f"{shown(method)} {cells.mia.mean():.3f} and {cells.asr.mean():.1f} %")
    spread = mean_spread(pd.concat([rows_of(runs, "main", task, "FedORA") for task in tasks]).mia, 3)
    reason = f"|MIA-ASR - 0.5| <= {CHANCE} and BD-ASR < {BACKDOORED:g} % in every setting"
    keys = _keys(runs, "main", tasks, ("Original", "Retrain", *READINGS))
    return judge("F4", lowered(met, nothing), "MIA-ASR, BD-ASR: " + "; ".join(shares), spread, keys, reason)


def _fast(speeds: Speeds) -> ClaimResult:
    """F5: at most half of the samples that retraining passes, and fewer than ICO and CVFU."""
    met, found = [], []
    for dataset, record in speeds.items():
        passed = {name: cost["images"] for name, cost in record.metrics["costs"].items()}
        seconds = record.metrics["seconds"]
        gain, taken = (cost["Retrain"] / cost["FedORA"] for cost in (passed, seconds))
        met += [gain >= TWICE, passed["FedORA"] < min(passed["ICO"], passed["CVFU"])]
        order = ", ".join(sorted(passed, key=lambda name: passed[name]))
        found.append(
            f"{dataset_title(dataset)}: {gain:.1f}x fewer samples ({taken:.1f}x in time), fewest first: {order}"
        )
    reason = f"samples passed: Retrain / FedORA >= {TWICE:g}, and FedORA below ICO and CVFU, on every data set"
    return judge("F5", met, "; ".join(found), "time: one process, median", [r.key for r in speeds.values()], reason)


def _parts(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F6: every part missing has the printed effect."""
    cells = {label: rows_of(runs, "ablation", e.main, "FedORA", label) for label in ABLATIONS}
    whole, no_loss, no_batches, no_steps = (cells[label] for label in ABLATIONS)
    met = [
        no_loss.forget.mean() > whole.forget.mean(),
        no_batches.images.mean() > whole.images.mean() and abs(no_batches.test.mean() - whole.test.mean()) <= POINT,
        no_steps.test.mean() < whole.test.mean() and no_steps.forget.mean() > whole.forget.mean(),
    ]
    ours = "; ".join(
        f"{label}: test {c.test.mean():.1f}, unlearning {c.forget.mean():.1f}, "
        f"samples {c.images.mean() / whole.images.mean():.1f}x"
        for label, c in cells.items()
    )
    reason = (
        "w/o UL: unlearning acc. rises; w/o AB: more samples pass and test acc. stays within 1 point; "
        "w/o AS: test acc. falls and unlearning acc. rises"
    )
    keys = [key for cell in cells.values() for key in cell.record]
    return judge("F6", [bool(one) for one in met], ours, f"whole: {mean_spread(whole.forget, 1)}", keys, reason)


def _little_is_enough(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F7: with 5 % of the retained data test accuracy is within a point of what all of it gives."""
    five, all_of_it = (rows_of(runs, "ratios", e.main, "FedORA", f"{ratio:g}") for ratio in (0.05, 1.0))
    if five.empty or all_of_it.empty:
        return ClaimResult("F7", "not run", "", "", [], "ratios lacks 0.05 or 1.0")
    gap = abs(five.test.mean() - all_of_it.test.mean())
    ours = f"5 %: {five.test.mean():.1f}, 100 %: {all_of_it.test.mean():.1f}"
    keys = [*five.record, *all_of_it.record]
    return judge(
        "F7", [bool(gap <= POINT)], ours, mean_spread(five.test, 1), keys, "|test acc. at 5 % - at 100 %| <= 1"
    )


def _weight(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F8: unlearning and test accuracy fall with the forgetting weight."""
    cells = [rows_of(runs, "weights", e.main, "FedORA", f"{weight:g}") for weight in e.weights]
    means = {name: [cell[name].mean() for cell in cells] for name in ("forget", "test")}
    ranks = {name: float(spearmanr(list(e.weights), values).statistic) for name, values in means.items()}
    ours = "; ".join(
        f"{name} acc. {values[0]:.1f} -> {values[-1]:.1f} (Spearman {ranks[name]:.2f})"
        for name, values in means.items()
    )
    met = [bool(rank < MONOTONE) for rank in ranks.values()]  # NaN, of a constant, is not below
    keys = [key for cell in cells for key in cell.record]
    return judge("F8", met, ours, mean_spread(cells[0].forget, 1), keys, f"Spearman of weight and mean < {MONOTONE}")


def _one_sample(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F9: one sample is forgotten as printed: unlearning accuracy 0, attack at 50 %. Beside it what Retrain has."""
    task = e.main._replace(request=f"samples-{min(e.few)}")
    cells = [rows_of(runs, "small", task, "FedORA", f"{ratio:g}") for ratio in e.few_ratios]
    retrained = rows_of(runs, "small", task, "Retrain")
    met = [bool((c.forget == 0).all() and abs(c.mia.mean() - 0.5) <= CHANCE) for c in cells]
    ours = "; ".join(
        f"ratio {100 * ratio:g} %: unlearning acc. {c.forget.mean():.0f}, MIA-ASR {c.mia.mean():.2f}"
        for ratio, c in zip(e.few_ratios, cells, strict=True)
    )
    ours += f"; Retrain {retrained.forget.mean():.0f}, {retrained.mia.mean():.2f}"
    reason = "unlearning acc. 0 in every run and |MIA-ASR - 0.5| <= 0.05; what was never seen can still be recognised"
    keys = [key for cell in (*cells, retrained) for key in cell.record]
    return judge("F9", met, ours, mean_spread(cells[-1].forget, 0), keys, reason)


def _private(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F10: under noise on the embeddings unlearning accuracy stays below Retrain's plus 5 points."""
    tasks = [e.main._replace(dp_std=std) for std in e.embedding_noise]
    means = {
        m: [rows_of(runs, "private", t, m).forget.mean() for t in tasks] for m in ("Original", "Retrain", "FedORA")
    }
    met = [a < r + PRIVATE_POINTS for a, r in zip(means["FedORA"], means["Retrain"], strict=True)]
    nothing = all(a < r + PRIVATE_POINTS for a, r in zip(means["Original"], means["Retrain"], strict=True))
    ours = "; ".join(
        f"noise {std:g}: {a:.1f} (Retrain {r:.1f})"
        for std, a, r in zip(e.embedding_noise, means["FedORA"], means["Retrain"], strict=True)
    )
    every = pd.concat([rows_of(runs, "private", task, "FedORA") for task in tasks]).forget
    keys = _keys(runs, "private", tasks, ("Original", "Retrain", "FedORA"))
    reason = "unlearning acc. < Retrain's + 5 points at every noise level; doing nothing, too?"
    return judge("F10", lowered(met, nothing), ours, mean_spread(every, 1), keys, reason)


def _two_forces(theory: Theory) -> ClaimResult:
    """F12: the gradients of the two terms are not parallel. They are: H = log C - KL(p||U)."""
    (record,) = theory["one_force"]
    cosine = record.metrics["cosine"]
    ours = (
        f"cosine of grad H and -grad KL(p||U) {cosine['-KL(p||U)']:.6f}; and -grad KL(U||p) {cosine['-KL(U||p)']:.3f}"
    )
    met = [bool(cosine["-KL(p||U)"] < 1 - 1e-6)]
    return judge("F12", met, ours, "one trained model, exact", [record.key], "the two gradients are not parallel")


def _bounded(theory: Theory) -> ClaimResult:
    """F13: the distance to retraining never exceeds the recursion's bound."""
    records = [r for r in theory["theorem_1"] if r.config["batch"]]  # without batches: a step beyond the theorem's
    above = sum(start["violated"]["printed"]["rms"] for r in records for start in r.metrics["starts"].values())
    checked = sum(r.metrics["checked"]["rms"] * len(r.metrics["starts"]) for r in records)
    loose = [
        start["bounds"]["printed"][-1] / max(start["rms"][-1], 1e-12)
        for r in records
        for start in r.metrics["starts"].values()
    ]
    least = min(r.metrics["without"]["printed"] / r.metrics["limits"]["printed"] for r in records)
    ours = (
        f"above the bound at {above} of {checked} steps; the bound is {min(loose):.1f} to {max(loose):.0f} times the "
        f"distance in the end, and down to {least:.2f} of itself without unlearning"
    )
    reason = "root mean square of |theta^t - theta_R^t| over seeds <= bound (39) at every step, constants measured"
    return judge("F13", [above == 0], ours, f"{len(records)} settings", [r.key for r in records], reason)
