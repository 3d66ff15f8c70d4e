"""The verdicts on certified DFL's claims, computed from records by the rules of claims.csv (`holds_if`).

The paper's algorithm is judged in both readings. A claim holds if it does as printed and corrected, and in
part if only one of them, or only some of the cases, meet the rule, or if doing nothing meets it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from fu_papers.certified_dfl.grid import DU_FORMS, WHOLE_CLIENTS, Experiment, Place, granularity
from fu_papers.certified_dfl.results import Curves, Descriptions, Speeds, phases, rounds_to_reach, saved_percent
from fu_papers.certified_dfl.titles import SHOWN, dataset_title
from fu_papers.look import mean_spread
from fu_papers.verdicts import ClaimResult, Theory, judge, lowered

POINT, CIFAR_POINTS, REMOVED_POINTS = 1.0, 5.0, 5.0
AUC_SLACK, SAVED = 0.02, 97.0
JUDGED = ("Original", *DU_FORMS)


def verdicts(
    e: Experiment, descriptions: Descriptions, runs: pd.DataFrame, curves: Curves, speeds: Speeds, theory: Theory
) -> list[ClaimResult]:
    """One result per claim D1-D13. `runs`: of results.of_runs, wide."""
    return [
        _sample_wise(e, runs),
        _class_wise(e, runs),
        _attack(e, runs),
        _time_saved(speeds),
        _one_round(e, curves),
        _client_wise(e, runs),
        _sequence(e, curves),
        _mixing(theory),
        _lemmas(theory),
        _certified(theory),
        _risk(theory),
        _storage(descriptions, runs),
        _fisher(theory),
    ]


def _cells(e: Experiment, runs: pd.DataFrame, request: str, method: str) -> Iterator[tuple[Place, pd.DataFrame]]:
    """The runs of a method for a request, place by place, where there are any."""
    here = (runs.group == "tables") & (runs.method == method) & (runs.request.map(granularity) == request)
    found = dict(list(runs[here].groupby(["setting", "condition"])))
    for place in e.places():
        if (place.setting, place.topology) in found:
            yield place, found[place.setting, place.topology]


def _worst(e: Experiment, runs: pd.DataFrame, request: str, method: str, column: str) -> str:
    """The largest mean over seeds of a column, and where."""
    means = {place: found[column].mean() for place, found in _cells(e, runs, request, method)}
    place = max(means, key=lambda p: means[p])
    return (
        f"{SHOWN[method]} at most {means[place]:.2f} ({dataset_title(place.dataset)}, {place.split}, {place.topology})"
    )


def _keys(e: Experiment, runs: pd.DataFrame, request: str) -> list[str]:
    return [key for method in JUDGED for _, found in _cells(e, runs, request, method) for key in found.record]


Cells = Mapping[str, Sequence[bool]]  # method -> did it meet the rule, place by place


def _met(cells: Cells) -> list[bool]:
    """Both readings, everywhere; lowered if doing nothing meets the rule everywhere as well."""
    return lowered([one for method in DU_FORMS for one in cells[method]], all(cells["Original"]))


def _counted(cells: Cells) -> str:
    return "; ".join(f"{SHOWN[m]} in {sum(found)} of {len(found)} cells" for m, found in cells.items())


def _tolerance(place: Place) -> float:
    return CIFAR_POINTS if place.dataset.startswith("cifar10") else POINT


def _sample_wise(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D1: test accuracy within 1 point of Retrain's, 5 on CIFAR-10, in every cell."""
    cells = {
        method: [bool(r.delta_test.mean() <= _tolerance(place)) for place, r in _cells(e, runs, "sample", method)]
        for method in JUDGED
    }
    every = pd.concat([found for _, found in _cells(e, runs, "sample", "DU")])
    ours = f"{_counted(cells)}; {_worst(e, runs, 'sample', 'DU', 'delta_test')}"
    reason = "mean |test acc. - Retrain's| <= 1 (CIFAR-10: 5) in every cell, after one round; doing nothing, too?"
    return judge("D1", _met(cells), ours, mean_spread(every.delta_test, 2), _keys(e, runs, "sample"), reason)


def _class_wise(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D2: remaining classes within 1 point of Retrain's and the removed class within 5, in every cell."""

    def close(r: pd.DataFrame) -> bool:
        return bool(r.delta_remaining.mean() <= POINT and r.delta_removed.mean() <= REMOVED_POINTS)

    cells = {method: [close(r) for _, r in _cells(e, runs, "class", method)] for method in JUDGED}
    ours = f"{_counted(cells)}; removed class: {_worst(e, runs, 'class', 'DU', 'delta_removed')}"
    removed = pd.concat([found for _, found in _cells(e, runs, "class", "DU")]).delta_removed
    reason = "mean |difference to Retrain| on remaining classes <= 1 and on the removed class <= 5, after one round"
    spread = f"removed class {mean_spread(removed, 1)}"
    return judge("D2", _met(cells), ours, spread, _keys(e, runs, "class"), reason)


def _attack(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D3: |AUC - 0.5| at most Retrain's plus 0.02."""
    requests = ("sample", "class")
    cells = {
        method: [
            bool((r.auc_off - r.auc_off_retrain).mean() <= AUC_SLACK)
            for request in requests
            for _, r in _cells(e, runs, request, method)
        ]
        for method in JUDGED
    }
    mia = pd.concat([r for request in requests for _, r in _cells(e, runs, request, "DU")]).mia
    keys = [key for request in requests for key in _keys(e, runs, request)]
    reason = "mean of |AUC - 0.5| <= Retrain's + 0.02 in every cell, sample- and class-wise"
    return judge("D3", _met(cells), _counted(cells), f"MIA acc. {mean_spread(mia, 1)} %", keys, reason)


def _time_saved(speeds: Speeds) -> ClaimResult:
    """D4: unlearning and one round of fine-tuning save at least 97 % of retraining's time."""
    saved = {
        (where, method): saved_percent(record.metrics["seconds"], method)
        for where, record in speeds.items()
        for method in DU_FORMS
    }
    shown = {method: [value for (_, m), value in saved.items() if m == method] for method in DU_FORMS}
    ours = "; ".join(f"{SHOWN[m]} {min(values):.1f} to {max(values):.1f} %" for m, values in shown.items())
    keys = [record.key for record in speeds.values()]
    met = [value >= SAVED for value in saved.values()]
    reason = f"saved >= {SAVED:g} %: {sum(met)} of {len(met)} cases; the round alone is {_round_share(speeds)}"
    return judge("D4", met, ours, "one process, medians", keys, reason)


def _round_share(speeds: Speeds) -> str:
    shares = [100 * r.metrics["seconds"]["round"] / r.metrics["seconds"]["Retrain"] for r in speeds.values()]
    return f"{min(shares):.1f} to {max(shares):.1f} % of retraining"


def _one_round(e: Experiment, curves: Curves) -> ClaimResult:
    """D5: DU is within 1 point of Retrain after one round, PDUDT only later (client-wise, Fig. 1)."""
    needed: dict[str, list[int | None]] = {method: [] for method in (*DU_FORMS, WHOLE_CLIENTS)}
    untouched = []
    for dataset in e.datasets:
        training, *_, after = phases(curves[dataset, "client", "Retrain"])
        untouched.append(abs(training[-1][1] - after[-1][1]) <= POINT)
        for method, rounds in needed.items():
            rounds.append(rounds_to_reach(phases(curves[dataset, "client", method])[1], after[-1][1]))
    quick = [n is not None and n <= 1 for method in DU_FORMS for n in needed[method]]
    slow = [n is None or n > 1 for n in needed[WHOLE_CLIENTS]]
    ours = "; ".join(
        f"{SHOWN[m]} {', '.join('never' if n is None else str(n) for n in ns)}" for m, ns in needed.items()
    )
    ours += f"; doing nothing is within 1 point on {sum(untouched)} of {len(untouched)} data sets"
    keys = [record.key for (_, granularity, _), record in curves.items() if granularity == "client"]
    reason = f"rounds per data set until within 1 point, of at most {e.pdudt_rounds}; DU <= 1 and PDUDT > 1"
    return judge("D5", lowered([*quick, *slow], all(untouched)), ours, "one seed", keys, reason)


def _client_wise(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D6: after a client has left, test accuracy within 1 point of Retrain's."""
    cells = {
        method: [bool(r.delta_test.mean() <= POINT) for _, r in _cells(e, runs, "client", method)] for method in JUDGED
    }
    every = pd.concat([found for _, found in _cells(e, runs, "client", "DU")])
    ours = f"{_counted(cells)}; {_worst(e, runs, 'client', 'DU', 'delta_test')}"
    reason = "mean |test acc. - Retrain's| <= 1 on every data set, after one round"
    return judge("D6", _met(cells), ours, mean_spread(every.delta_test, 2), _keys(e, runs, "client"), reason)


def _sequence(e: Experiment, curves: Curves) -> ClaimResult:
    """D7: within 1 point of Retrain's end after each of the sequential requests and one round."""
    gaps: dict[str, list[float]] = {method: [] for method in JUDGED}
    for dataset in e.datasets:
        training, *after = phases(curves[dataset, "sample", "Retrain"])
        ends = [phase[-1][1] for phase in after]
        gaps["Original"] += [abs(training[-1][1] - end) for end in ends]
        for method in DU_FORMS:
            after_one = [dict(phase)[1] for phase in phases(curves[dataset, "sample", method])[1:]]
            gaps[method] += [abs(ours - end) for ours, end in zip(after_one, ends, strict=True)]
    ours = "; ".join(f"{SHOWN[m]} at most {max(found):.1f} points" for m, found in gaps.items())
    keys = [record.key for (_, granularity, _), record in curves.items() if granularity == "sample"]
    reason = f"|test acc. - Retrain's| <= 1 after each of {e.sequence} requests and one round, on every data set"
    cells = {method: [gap <= POINT for gap in found] for method, found in gaps.items()}
    return judge("D7", _met(cells), ours, "one seed", keys, reason)


def _mixing(theory: Theory) -> ClaimResult:
    """D8: Lemma 1, k = 1 to 100."""
    records = [r for r in theory["mixing"] if r.config["topology"] in ("ring", "erdos_renyi")]
    violations = [r.metrics["violations"] for r in records]
    ours = "; ".join(
        f"{r.config['topology']}: rho {r.metrics['rho']:.4f}, {v} above"
        for r, v in zip(records, violations, strict=True)
    )
    reason = "|Q^k - 11'/N|^2 <= rho^k for k = 1 to 100 (both are equal, up to rounding)"
    return judge("D8", [not v for v in violations], ours, "exact spectra", [r.key for r in records], reason)


def _lemmas(theory: Theory) -> ClaimResult:
    """D9: the bounds of Lemmas 2 and 3, for Algorithm 1 and for the corrected step."""
    records = theory["bounds"]
    counts = {
        name: sum(r.metrics["violations"][name] for r in records)
        for name in ("Lemma 2", "Lemma 3, printed", "Lemma 3, corrected")
    }
    cases = sum(len(r.metrics["rows"]) for r in records)
    ours = "; ".join(f"{name} violated in {count} of {cases}" for name, count in counts.items())
    reason = "logistic and ridge regression, equal and different clients, exact optima; ridge has M = 0 (errata D2)"
    return judge("D9", [not count for count in counts.values()], ours, "exact optima", [r.key for r in records], reason)


def _certified(theory: Theory) -> ClaimResult:
    """D10: no audited lower bound above the claimed epsilon, for what each certificate compares with."""
    rows = [row for record in theory["audit"] for row in record.metrics["rows"]]
    met, shown = [], []
    for form in ("printed", "corrected"):
        # the corrected certificate is about exact retraining x' (errata D6), the printed one about the same training
        found = [r for r in rows if r["mechanism"].startswith(form) and (form == "printed" or r["reference"] == "x'")]
        refuted = [row for row in found if row["refuted"]]
        met.append(bool(found) and not refuted)
        worst = max((row["audited"] for row in refuted), default=0.0)
        shown.append(f"{form}: {len(refuted)} of {len(found)} refuted" + (f" (up to {worst:.1f})" if refuted else ""))
    keys = [record.key for record in theory["audit"]]
    draws = theory["audit"][0].config["draws"]
    reason = "Clopper-Pearson lower bound <= claimed epsilon for the mean model, one client's, and the tuple of models"
    return judge("D10", met, "; ".join(shown), f"{draws} releases per world", keys, reason)


def _risk(theory: Theory) -> ClaimResult:
    """D11: the noise-free excess risk grows with slope 1 and the noise's with slope 2."""
    records = theory["risk"]
    slopes = {name: [r.metrics["slopes"][name] for r in records] for name in ("noise_free", "noise")}
    met = [
        all(abs(s - 1) <= 0.15 for s in slopes["noise_free"]),
        all(abs(s - 2) <= 0.3 for s in slopes["noise"]),
    ]
    ours = "; ".join(f"{name.replace('_', '-')} slopes {min(s):.2f} to {max(s):.2f}" for name, s in slopes.items())
    above = sum(r.metrics["violations"] for r in records)
    reason = f"log-log slopes in m/n of 1 +- 0.15 and 2 +- 0.3; the bound itself is exceeded {above} times"
    return judge("D11", met, ours, f"{len(records)} settings", [r.key for r in records], reason)


def _storage(descriptions: Descriptions, runs: pd.DataFrame) -> ClaimResult:
    """D12: what DU keeps with a Fisher matrix is d numbers; PDUDT's k N_c d is the paper's formula."""
    size = {place.setting: 4 * record.metrics["parameters"] for place, record in descriptions.items()}
    fisher = runs[runs.curvature.isin(["fisher", "diagonal_fisher"])]
    ratios = {str(kind): list(r.kept / r.setting.map(size)) for kind, r in fisher.groupby("curvature")}
    met = [all(ratio <= 1 for ratio in found) for found in ratios.values()]
    shown = {"fisher": "the full Fisher matrix (by samples, in float64)", "diagonal_fisher": "its diagonal"}
    ours = "; ".join(f"{shown[kind]} keeps {max(found):.3g} d numbers" for kind, found in ratios.items())
    pdudt = runs[runs.method == WHOLE_CLIENTS]
    factors, counted = pdudt.published / pdudt.setting.map(size), pdudt.kept / pdudt.setting.map(size)
    ours += f"; PDUDT k N_c d = {factors.min():.0f} to {factors.max():.0f} d, our reconstruction {counted.max():.0f} d"
    keys = [*fisher.record, *pdudt.record]
    return judge(
        "D12", met, ours, "bytes, counted", keys, "O(d) needs the diagonal, which the paper never names (errata D5)"
    )


def _fisher(theory: Theory) -> ClaimResult:
    """D13: the full Fisher's step has a cosine of at least 0.9 with Newton's, at the optimum."""
    met, shown = [], []
    name = "full Fisher, Eq. (7) as printed"
    records = [r for r in theory["fisher"] if r.config["problem"] != "least squares"]
    for record in records:
        cosines = record.metrics["steps"][name]["cosine"]
        errors = record.metrics["steps"][name]["error"]
        met.append(min(cosines) >= 0.9)
        shown.append(f"{record.config['problem']}: cosine {min(cosines):.2f}, error {max(errors):.2g}")
    reason = "cosine >= 0.9 at the optimum, well- and mis-specified; the error is relative to Newton's step"
    return judge("D13", met, "; ".join(shown), "", [r.key for r in records], reason)
