"""The verdicts on HF-KCU's claims, computed from records by the rules of claims.csv (`holds_if`).

The paper's algorithm is judged in both readings. A claim holds if it does as printed and corrected, and
in part if only one of them meets the rule, or if doing nothing meets it as well. Whatever is claimed to be faster is
judged on gradient passes, which are the same on every machine; the seconds are told beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from fu_papers.hf_kcu.grid import FORMS, Experiment
from fu_papers.hf_kcu.results import Speeds, asr_reduction, main_runs, on_setting, rows_of, shown
from fu_papers.hf_kcu.theory_figures import slope_of
from fu_papers.lab.record import Record
from fu_papers.look import mean_spread
from fu_papers.problem_figures import spread, title
from fu_papers.problems import Setting
from fu_papers.verdicts import ClaimResult, Theory, judge, lowered

FASTER = 47.75


def verdicts(
    e: Experiment, runs: pd.DataFrame, speeds: Speeds, floor: Sequence[Record], theory: Theory
) -> list[ClaimResult]:
    """One result per claim H1-H15. runs: the wide frame of `results.of_runs`; floor: pairs of retrainings."""
    return [
        _faster(speeds["main"]),
        _accurate(e, runs),
        _private(e, runs),
        _causal_weighting(runs),
        _adaptive_scaling(runs),
        _cg_rate(theory),
        _more_clients(e, speeds),
        _backdoor(runs),
        _small_damping(e, speeds["main"]),
        _heterogeneity(e, runs),
        _equivalent(e, runs, floor),
        _direction(e, runs, theory),
        _naive_collapses(e, runs),
        _perturbation(theory),
        _carries_over(e, runs, speeds),
    ]


def _gains(record: Record, name: str) -> tuple[float, float]:
    """How many times fewer gradient passes than retraining, and seconds."""
    passes, seconds = (record.metrics[kind]["retrain"] / record.metrics[kind][name] for kind in ("passes", "seconds"))
    return passes, seconds


def _faster(record: Record) -> ClaimResult:
    """H1: unlearning takes at most a 47.75th of retraining's gradient passes."""
    gains = {method: _gains(record, method) for method in FORMS}
    ours = "; ".join(
        f"{shown(m)} {gain:.1f}x fewer passes ({taken:.1f}x in time)" for m, (gain, taken) in gains.items()
    )
    met = [gain >= FASTER for gain, _ in gains.values()]
    return judge("H1", met, ours, "time: one process, median of 5", [record.key], f"passes ratio >= {FASTER}")


def _accurate(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """H2: test accuracy within 0.60 points of Retrain; in part if the original model already is."""
    r = {method: main_runs(e, runs, method) for method in ("Original", *FORMS)}
    gaps = {method: frame.delta_test.mean() for method, frame in r.items()}
    met = lowered([gaps[m] <= 0.60 for m in FORMS], gaps["Original"] <= 0.60)
    ours = "; ".join(f"{shown(m)} {gap:.2f}" for m, gap in gaps.items())
    keys = [key for frame in r.values() for key in frame.record]
    return judge("H2", met, ours, mean_spread(r["HF-KCU"].delta_test, 2), keys, "mean |test acc. - Retrain's| <= 0.60")


def _private(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """H3: MIA within 0.02 of Retrain's, where the original model's is at least 0.10 above."""
    means = {m: main_runs(e, runs, m).mia.mean() for m in ("Original", "Retrain", *FORMS)}
    exposed = means["Original"] - means["Retrain"] >= 0.10
    met = [exposed and abs(means[m] - means["Retrain"]) <= 0.02 for m in FORMS]
    ours = "; ".join(f"{shown(m)} {mia:.3f}" for m, mia in means.items())
    reason = f"original - Retrain = {means['Original'] - means['Retrain']:.3f} (needs 0.10)"
    keys = [key for m in means for key in main_runs(e, runs, m).record]
    return judge("H3", met, ours, mean_spread(main_runs(e, runs, "HF-KCU").mia, 3), keys, reason)


def _causal_weighting(runs: pd.DataFrame) -> ClaimResult:
    """H4: without causal weighting the parameter gap at least doubles. Printed form; the corrected one has none."""
    r = runs[runs.group == "ablation"]
    full, without = (r[r.label == label] for label in ("w/o influence decay (= Algorithm 1)", "w/o causal weighting"))
    ratio = without.gap.mean() / full.gap.mean()
    ours = f"gap {full.gap.mean():.4f} with, {without.gap.mean():.4f} without: {ratio:.3f}x"
    reason = "ratio >= 2; with one leaving client the weight is 1 (errata H8)"
    return judge("H4", [ratio >= 2], ours, mean_spread(without.gap, 4), [*full.record, *without.record], reason)


def _adaptive_scaling(runs: pd.DataFrame) -> ClaimResult:
    """H5: without adaptive scaling test accuracy drops by at least one point."""
    met, shown_here, keys = [], [], []
    for group, base, method in (
        ("ablation", "w/o influence decay (= Algorithm 1)", "HF-KCU printed"),
        ("choice", "corrected", "HF-KCU"),
    ):
        r = runs[runs.group == group]
        full, without = (r[r.label == label] for label in (base, "w/o adaptive scaling"))
        drop = full.test.mean() - without.test.mean()
        met.append(drop >= 1)
        shown_here.append(f"{shown(method)} {drop:.1f} points")
        keys += [*full.record, *without.record]
    return judge("H5", met, "; ".join(shown_here), "", keys, "drop >= 1 point")


def _cg_rate(theory: Theory) -> ClaimResult:
    """H6: the bound is never violated, and the steps grow with a log-log slope of 0.5 +- 0.1."""
    curves, counts = theory["cg_convergence"], theory["condition_number"]
    violations = sum(record.metrics["violations"] for record in curves)
    slope = slope_of(counts)
    met = [violations == 0 and abs(slope - 0.5) <= 0.1]
    ours = f"{violations} of {sum(r.metrics['checked'] for r in curves)} errors above the bound; slope {slope:.3f}"
    keys = [record.key for record in (*curves, *counts)]
    return judge("H6", met, ours, "exact spectra", keys, "no violation, slope 0.5 +- 0.1")


def _perturbation(theory: Theory) -> ClaimResult:
    """H14: the perturbation bound is never violated."""
    (record,) = theory["perturbation"]
    ratios = pd.Series(record.metrics["theorem 1"])
    ours = f"{int((ratios > 1).sum())} of {len(ratios)} above the bound; the largest at {ratios.max():.2f} of it"
    return judge("H14", [bool((ratios <= 1).all())], ours, mean_spread(ratios, 2), [record.key], "error <= bound")


def _direction(e: Experiment, runs: pd.DataFrame, theory: Theory) -> ClaimResult:
    """H12: the printed update brings the model nearer to the retrained one, exactly on ridge, measured on nets."""
    ridge = [record for record in theory["exactness"] if record.config["data"] == "diabetes"]
    error = {
        name: pd.Series([record.metrics[name]["error"] for record in ridge])
        for name in ("Algorithm 1 as printed, no clip", "corrected")
    }
    printed, nothing = main_runs(e, runs, "HF-KCU printed"), main_runs(e, runs, "Original")
    ratio = printed.gap.to_numpy() / nothing.gap.to_numpy()
    met = [bool((error["Algorithm 1 as printed, no clip"] < 1).all()), bool((ratio < 1).all())]
    corrected = main_runs(e, runs, "HF-KCU").gap.to_numpy() / nothing.gap.to_numpy()
    ours = (
        f"ridge: printed {error['Algorithm 1 as printed, no clip'].mean():.2f}x, "
        f"corrected {error['corrected'].mean():.1g}x the distance of doing nothing; "
        f"nets: printed {ratio.mean():.4f}x, corrected {corrected.mean():.4f}x"
    )
    keys = [*(record.key for record in ridge), *printed.record, *nothing.record]
    return judge("H12", met, ours, mean_spread(ratio, 4), keys, "distance below 1 on ridge, and on nets for all seeds")


def _more_clients(e: Experiment, speeds: Speeds) -> ClaimResult:
    """H7: the speed-up grows from 10 to 100 clients, or over what was run below 100."""
    counts = [count for count in sorted(e.client_counts) if count <= 100]
    records = [speeds[f"clients {count}"] for count in counts]
    met, shown_here = [], []
    for method in FORMS:
        gains, times = zip(*(_gains(record, method) for record in records), strict=True)
        met.append(len(gains) > 1 and all(a < b for a, b in pairwise(gains)))
        passes, taken = (", ".join(f"{value:.0f}x" for value in values) for values in (gains, times))
        shown_here.append(f"{shown(method)} {passes} fewer passes ({taken} in time)")
    reason = f"passes ratio monotone over {', '.join(map(str, counts))} clients"
    return judge("H7", met, "; ".join(shown_here), "one seed", [record.key for record in records], reason)


def _backdoor(runs: pd.DataFrame) -> ClaimResult:
    """H8: attack success falls by at least 10 % and clean accuracy by at most 0.5 points."""
    met, shown_here, keys = [], [], []
    for method in FORMS:
        r = rows_of(runs, "backdoor", method)
        reduction, drop = asr_reduction(r), r.test_original - r.test
        met.append(reduction.mean() >= 10 and drop.mean() <= 0.5)
        shown_here.append(
            f"{shown(method)}: {r.asr_original.mean():.1f} to {r.asr.mean():.1f} ({reduction.mean():.1f} % reduction), "
            f"clean {0.0 - drop.mean():+.2f}"
        )
        keys += list(r.record)
    shown_here.append(f"Retrain {r.asr_retrain.mean():.1f}")
    reason = "ASR over images of other classes; reduction >= 10 %, clean drop <= 0.5"
    return judge("H8", met, "; ".join(shown_here), mean_spread(asr_reduction(r)), keys, reason)


def _small_damping(e: Experiment, record: Record) -> ClaimResult:
    """H9: the smaller the damping, the faster."""
    dampings = sorted(e.dampings, reverse=True)
    met, shown_here = [], []
    for method in FORMS:
        found = [_gains(record, f"{method}, damping {damping:g}") for damping in dampings]
        gains, times = zip(*found, strict=True)
        met.append(len(gains) > 1 and all(a < b for a, b in pairwise(gains)))
        passes, taken = (", ".join(f"{value:.1f}x" for value in values) for values in (gains, times))
        shown_here.append(f"{shown(method)} {passes} fewer passes ({taken} in time)")
    reason = f"passes ratio monotone over damping {', '.join(f'{d:g}' for d in dampings)}; k is fixed"
    return judge("H9", met, "; ".join(shown_here), "time: one process, median of 5", [record.key], reason)


def _heterogeneity(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """H10: within one point of Retrain for every alpha; in part if doing nothing is, too."""
    r = runs[runs.group == "alpha"]
    gaps = r.groupby(["method", "label"], sort=False).delta_test.mean().unstack()
    met = [bool((gaps.loc[method] <= 1).all()) for method in FORMS]
    nothing = bool((gaps.loc["Original"] <= 1).all())
    ours = "; ".join(
        f"{shown(m)} " + ", ".join(f"{gaps.loc[m, label]:.2f}" for label in gaps.columns) for m in ("Original", *FORMS)
    )
    reason = f"|test acc. - Retrain's| <= 1 for alpha {', '.join(gaps.columns)}; {len(e.sweep_seeds)} seed(s)"
    return judge("H10", lowered(met, nothing), ours, "", list(r.record), reason)


def _equivalent(e: Experiment, runs: pd.DataFrame, floor: Sequence[Record]) -> ClaimResult:
    """H11: KL to Retrain at most that of two retrainings; in part if doing nothing is as near."""
    if not floor:
        return ClaimResult("H11", "not run", reason="needs two seeds for the noise floor")
    noise = pd.Series([record.metrics["kl"] for record in floor])
    kl = {m: main_runs(e, runs, m).kl for m in ("Original", *FORMS)}
    met = lowered([kl[m].mean() <= noise.mean() for m in FORMS], kl["Original"].mean() <= noise.mean())
    ours = "; ".join(f"{shown(m)} {values.mean():.4f}" for m, values in kl.items())
    keys = [*(key for m in kl for key in main_runs(e, runs, m).record), *(record.key for record in floor)]
    reason = f"KL <= {spread(noise, 4)}, two retrainings of different seeds"
    return judge("H11", met, ours, mean_spread(kl["HF-KCU"], 4), keys, reason)


def _naive_collapses(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """H13: naive gradient ascent ends at chance, at most 12 %."""
    r = main_runs(e, runs, "NaiveGA")
    value = r.test.mean()
    return judge("H13", [value <= 12], f"{value:.1f} %", mean_spread(r.test), list(r.record), "test acc. <= 12 %")


def _carries_over(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> ClaimResult:
    """H15: as H1 and H2 for every data set and net that was run."""
    met, shown_here, keys = [], [], []
    for setting in (*e.settings[1:], *e.nets):
        record = speeds[setting]
        keys.append(record.key)
        for method in FORMS:
            r = on_setting(e, runs, setting, method)
            (gain, taken), gap = _gains(record, method), r.delta_test.mean()
            met.append(gain >= FASTER and gap <= 0.60)
            keys += list(r.record)
            where = f"{title(setting)}, {Setting.parse(setting).model}"
            shown_here.append(f"{where}, {shown(method)}: {gain:.0f}x ({taken:.0f}x in time), {gap:.2f} points")
    short = f"nets on {e.nets_rounds} round(s) of {e.nets_epochs:g} epoch(s), {e.nets_n_train or 'all'} images"
    reason = f"passes ratio >= {FASTER} and gap <= 0.60: {sum(met)} of {len(met)}; {short}"
    return judge("H15", met, "; ".join(shown_here), "", keys, reason)
