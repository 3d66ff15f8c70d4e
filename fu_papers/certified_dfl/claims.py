"""The verdicts on certified DFL's claims, computed from records by the rules of claims.csv (`holds_if`).

The verdict is on DU as printed; where the corrected form can be held to the same rule, it has a verdict of its own,
which lifts nothing. Accuracies and attacks are judged by 95 % intervals over seeds, cell by cell (data set, split,
topology); a cell in which a control meets the rule as well (doing nothing, the round that follows DU, random weights)
does not hold, or is open where that says more of the attack than of the method (D3), as is one in which a second
retraining is not known to meet it. Time is judged on gradient passes, which are counted and the same on every machine;
the seconds are told beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fu_papers.certified_dfl.claims_curves import IDLE, Cells, forms, one_round, sequence
from fu_papers.certified_dfl.grid import DU_FORMS, WHOLE_CLIENTS, Experiment, Place, granularity
from fu_papers.certified_dfl.heads import nets
from fu_papers.certified_dfl.results import (
    POINT,
    Curves,
    Descriptions,
    Speeds,
    cell_runs,
)
from fu_papers.certified_dfl.theory_audit import LARGEST_CLAIM, OURS
from fu_papers.certified_dfl.theory_releases import MESSAGES
from fu_papers.certified_dfl.titles import SHOWN
from fu_papers.controls import AGAIN
from fu_papers.over_seeds import Part, all_of, at_most, exact, farthest, judged, of_each, unknown
from fu_papers.problems import dataset_title
from fu_papers.verdicts import NO_OTHER, ClaimResult, Theory

ABOUT_NETS = ("D1", "D2", "D3", "D4", "D5", "D6", "D7")
CIFAR_POINTS, REMOVED_POINTS = 5.0, 5.0
HALF_WAY = 0.5  # D13, of Newton's step
AUC_SLACK, SAVED = 0.02, 97.0
COARSE = 0.1  # of its claim: an audit that proves less of a release as bad as that sees only what is far worse
COUNTED = (*IDLE, AGAIN, *DU_FORMS)  # whose cells are told: the controls', too
STRONGER = "an attack that doing nothing fails would tell"
TRAININGS = (100, 200)  # D4, rounds: of the profile `paper`; the one number in the paper, 200, is of PDUDT's rounds
LONGER = "the number of rounds that the paper trained for would tell"


def verdicts(
    e: Experiment, descriptions: Descriptions, runs: pd.DataFrame, curves: Curves, speeds: Speeds, theory: Theory
) -> list[ClaimResult]:
    """One result per claim D1-D13. `runs`: of results.of_runs, wide."""
    return [judge() for judge in judges(e, descriptions, runs, curves, speeds, theory).values()]


def judges(
    e: Experiment, descriptions: Descriptions, runs: pd.DataFrame, curves: Curves, speeds: Speeds, theory: Theory
) -> dict[str, Callable[[], ClaimResult]]:
    """What judges each claim, by its name: who asks about one need not wait for all.

    Those on what happens to trained models are about nets, too: a profile that has none yet does not judge them.
    """
    found: dict[str, Callable[[], ClaimResult]] = {
        "D1": lambda: _sample_wise(e, runs),
        "D2": lambda: _class_wise(e, runs),
        "D3": lambda: _attack(e, runs),
        "D4": lambda: _time_saved(e, runs, speeds),
        "D5": lambda: one_round(e, curves),
        "D6": lambda: _client_wise(e, runs),
        "D7": lambda: sequence(e, curves),
        "D8": lambda: _mixing(theory),
        "D9": lambda: _lemmas(theory),
        "D10": lambda: _certified(theory),
        "D11": lambda: _risk(theory),
        "D12": lambda: _storage(descriptions, runs),
        "D13": lambda: _fisher(theory),
    }
    to_come = () if nets(e) else ABOUT_NETS
    return found | {name: partial(_nets_to_come, found[name]) for name in to_come}


def _nets_to_come(judge: Callable[[], ClaimResult]) -> ClaimResult:
    """What the convex model alone says, told and not counted."""
    result = judge()
    alone = result.verdict if result.corrected == result.verdict else f"{result.verdict}, corrected {result.corrected}"
    reason = f"nets are to come, of which it speaks, too; of the convex model alone: {alone}; {result.reason}"
    other = NO_OTHER if result.corrected == NO_OTHER else "not run"
    return replace(result, verdict="not run", corrected=other, reason=reason)


def _cells(e: Experiment, runs: pd.DataFrame, request: str, method: str) -> Iterator[tuple[Place, pd.DataFrame]]:
    """The runs of a method for a request, place by place, where there are any."""
    here = (runs.group == "tables") & (runs.method == method) & (runs.request.map(granularity) == request)
    found = dict(list(runs[here].groupby(["setting", "condition"])))
    for place in e.places():
        if (place.setting, place.topology) in found:
            yield place, found[place.setting, place.topology]


def _worst(e: Experiment, runs: pd.DataFrame, request: str, column: str, **how: Any) -> str:
    """The cell whose mean over seeds may be farthest beyond its limit, for both forms. how: as for `farthest`."""
    how = {"digits": 2, "possible": (0.0, np.inf), **how}  # of points, on either side of Retrain
    cells = {m: {_called(p): found[column] for p, found in _cells(e, runs, request, m)} for m in DU_FORMS}
    return "; ".join(f"{SHOWN[m]} {farthest(found, **how)}" for m, found in cells.items())


def _keys(e: Experiment, runs: pd.DataFrame, request: str) -> list[str]:
    return [key for method in COUNTED for _, found in _cells(e, runs, request, method) for key in found.record]


def _counted(cells: Cells) -> str:
    return "; ".join(
        f"{SHOWN[m]} in {sum(part.verdict == 'holds' for part in found.values())} of {len(found)} cells"
        for m, found in cells.items()
    )


def _called(place: Place) -> str:
    return f"{dataset_title(place.dataset)} {place.split} {place.topology}"


def _sizes(e: Experiment, cells: Cells) -> str:
    return of_each(len(cells["DU"]), "cell", len(e.seeds))


def _tolerance(place: Place) -> float:
    return CIFAR_POINTS if place.dataset.startswith("cifar10") else POINT


def _sample_wise(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D1: test accuracy within 1 point of Retrain's, 5 on CIFAR-10, in every cell."""
    cells = {
        method: {_called(p): at_most(r.delta_test, _tolerance(p)) for p, r in _cells(e, runs, "sample", method)}
        for method in COUNTED
    }
    limits = {_called(place): _tolerance(place) for place in e.places()}
    spread = f"{_sizes(e, cells)}; {_worst(e, runs, 'sample', 'delta_test', limits=limits)}"
    reason = "mean |test acc. - Retrain's| <= 1 (CIFAR-10: 5) in every cell, after one round"
    printed, corrected = forms(cells)
    return judged("D1", printed, _counted(cells), spread, _keys(e, runs, "sample"), reason, corrected)


def _class_wise(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D2: remaining classes within 1 point of Retrain's and the removed class within 5, in every cell."""

    def close(r: pd.DataFrame) -> Part:
        return all_of(at_most(r.delta_remaining, POINT), at_most(r.delta_removed, REMOVED_POINTS))

    cells = {method: {_called(p): close(r) for p, r in _cells(e, runs, "class", method)} for method in COUNTED}
    spread = f"{_sizes(e, cells)}; removed class: {_worst(e, runs, 'class', 'delta_removed')}"
    spread += f"; remaining ones: {_worst(e, runs, 'class', 'delta_remaining')}"
    reason = "mean |difference to Retrain| on remaining classes <= 1 and on the removed class <= 5, after one round"
    printed, corrected = forms(cells)
    return judged("D2", printed, _counted(cells), spread, _keys(e, runs, "class"), reason, corrected)


def _attack(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D3: |AUC - 0.5| at most Retrain's plus 0.02, of a model as useful as D1 and D2 ask: none is found in noise.

    Where the attack finds no more in a model that nobody has unlearned from, it cannot tell, and the cell is open.
    """

    def hidden(r: pd.DataFrame, request: str, place: Place) -> Part:
        useful = r.delta_test if request == "sample" else r.delta_remaining
        return all_of(at_most(r.auc_off - r.auc_off_retrain, AUC_SLACK), at_most(useful, _tolerance(place)))

    requests = ("sample", "class")
    cells = {
        method: {
            f"{request}-wise {_called(place)}": hidden(r, request, place)
            for request in requests
            for place, r in _cells(e, runs, request, method)
        }
        for method in COUNTED
    }
    keys = [key for request in requests for key in _keys(e, runs, request)]
    over = runs.assign(auc_over=runs.auc_off - runs.auc_off_retrain)
    reason = (
        "mean of |AUC - 0.5| <= Retrain's + 0.02 in every cell, sample- and class-wise, at its accuracy (of the "
        "remaining classes) as D1 has it"
    )
    printed, corrected = (
        {cell: replace(unknown(STRONGER), met_by=part.met_by) if part.met_by else part for cell, part in form.items()}
        for form in forms(cells)
    )
    signed = {"digits": 4, "possible": (-np.inf, np.inf)}
    worst = "; ".join(f"{request}-wise {_worst(e, over, request, 'auc_over', **signed)}" for request in requests)
    spread = f"{_sizes(e, cells)}; |AUC - 0.5| over Retrain's: {worst}"
    return judged("D3", printed, _counted(cells), spread, keys, reason, corrected)


def _time_saved(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> ClaimResult:
    """D4: unlearning and one round of fine-tuning save at least 97 % of retraining's gradient passes.

    A round of retraining passes what the round of fine-tuning alone does; there are K of them, of which the paper tells
    none. What was counted is held against `TRAININGS`, whatever K is here: a part holds from the shorter one on, it
    does not if not even the longer one is long enough, and hangs on K in between.
    """
    shorter, longer = TRAININGS
    parts: dict[str, dict[str, Part]] = {method: {} for method in DU_FORMS}
    worth, timed = ({method: list[float]() for method in DU_FORMS} for _ in range(2))
    keys = list[str]()
    for (dataset, request), record in speeds.items():
        cells = {m: cell_runs(runs, e.main(dataset), request, m) for m in ("Fine-tune", *DU_FORMS)}
        one_round, seconds = cells["Fine-tune"].images.mean(), record.metrics["seconds"]
        for method in DU_FORMS:
            passes = (cells[method].images + 2 * cells[method].products).mean()
            worth[method].append(passes / one_round)
            timed[method].append(seconds[method] / seconds["round"])
            early, late = (100 * (1 - passes / (K * one_round)) >= SAVED for K in (shorter, longer))
            found = exact(early) if early == late else unknown(LONGER)
            parts[method][f"{request}-wise {dataset_title(dataset)}"] = found
        keys += [record.key, *(key for cell in cells.values() for key in cell.record)]
    rounds_for = 100 / (100 - SAVED)
    ours = "; ".join(
        f"{SHOWN[m]} passes what {min(worth[m]):.3g} to {max(worth[m]):.3g} rounds do, {SAVED:g} % less than "
        f"{rounds_for * min(worth[m]):.0f} to {rounds_for * max(worth[m]):.0f} of them "
        f"(in seconds {min(timed[m]):.3g} to {max(timed[m]):.3g} rounds)"
        for m in DU_FORMS
    )
    reason = (
        f"passes saved >= {SAVED:g} % of {shorter} rounds, for each kind of request at the first split and last graph; "
        f"open where that takes more and {longer} are enough, as the paper names no number; a price alone: what it "
        "buys is judged in D1, D2, D3 and D6"
    )
    return judged("D4", parts["DU printed"], ours, "time: one process, medians", keys, reason, parts["DU"])


def _client_wise(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """D6: after a client has left, test accuracy within 1 point of Retrain's."""
    cells = {
        method: {_called(p): at_most(r.delta_test, POINT) for p, r in _cells(e, runs, "client", method)}
        for method in COUNTED
    }
    spread = f"{_sizes(e, cells)}; {_worst(e, runs, 'client', 'delta_test')}"
    reason = "mean |test acc. - Retrain's| <= 1 on every data set, after one round"
    printed, corrected = forms(cells)
    return judged("D6", printed, _counted(cells), spread, _keys(e, runs, "client"), reason, corrected)


def _mixing(theory: Theory) -> ClaimResult:
    """D8: Lemma 1, k = 1 to 100."""
    records = [r for r in theory["mixing"] if r.config["topology"] in ("ring", "erdos_renyi")]
    parts = {r.config["topology"]: exact(not r.metrics["violations"]) for r in records}
    ours = "; ".join(
        f"{r.config['topology']}: rho {r.metrics['rho']:.4f}, {r.metrics['violations']} above" for r in records
    )
    reason = "|Q^k - 11'/N|^2 <= rho^k for k = 1 to 100 (both are equal, up to rounding)"
    return judged("D8", parts, ours, "exact spectra", [r.key for r in records], reason)


def _lemmas(theory: Theory) -> ClaimResult:
    """D9: the bounds of Lemmas 2 and 3, the latter for Algorithm 1 and for the corrected step."""
    records = theory["bounds"]
    counts = {
        name: sum(r.metrics["violations"][name] for r in records)
        for name in ("Lemma 2", "Lemma 3, printed", "Lemma 3, corrected")
    }
    cases = sum(len(r.metrics["rows"]) for r in records)
    ours = "; ".join(f"{name} violated in {count} of {cases}" for name, count in counts.items())
    loose = sum(row["shift"] <= row["lemma_3"] for r in records for row in r.metrics["rows"])
    ours += f"; doing nothing is within Lemma 3's bound, too, in {loose}"
    reason = "logistic and ridge regression, equal and different clients, exact optima; ridge has M = 0 (errata D2)"
    printed, corrected = (
        {"Lemma 2": exact(not counts["Lemma 2"]), "Lemma 3": exact(not counts[f"Lemma 3, {form}"])}
        for form in ("printed", "corrected")
    )
    return judged("D9", printed, ours, "exact optima", [r.key for r in records], reason, corrected)


def _certified(theory: Theory) -> ClaimResult:
    """D10: nothing above the claimed epsilon, be it audited or exact, for what each certificate compares with.

    A certificate is about every case: one that refutes it refutes it for what was released there. Counted are outputs
    that differ, and the releases that they are of; one model that all publish is one output, and stands for all three.
    Claims so large that they promise nothing are not counted, nor is what is planted, nor the printed noise in a
    calibration of ours. An audit that in the median proves (`expected`) less than a tenth of its claim of a release
    that is as bad finds only what is much worse: how many those are is told; of guessed canaries it is not known.
    """
    records = [record for kind in ("audit", "whole", "canaries") for record in theory[kind]]
    rows = [(record.key, row) for record in records for row in record.metrics["rows"] if not row["planted"]]
    every = [(key, row) for key, row in rows if row["mechanism"] != OURS]
    forms, shown = [], []
    for form in ("printed", "corrected"):
        # the corrected certificate is about exact retraining x' (errata D6), the printed one about the same training
        found = [
            (key, row)
            for key, row in every
            if row["counted"] and row["mechanism"].startswith(form) and (form == "printed" or row["reference"] == "x'")
        ]
        outputs = dict.fromkeys(row["output"] for _, row in found)
        wrong = [row for _, row in found if row["refuted"] or row["broken"]]
        forms.append(
            {output: exact(not any(row["output"] == output for row in wrong)) for output in outputs}
            or {"any release": exact(False)}
        )
        releases = {(key, row["mechanism"], row["claimed"]) for key, row in found}
        refuted = [row["audited"] for _, row in found if row["refuted"] and row["distinct"]]
        most = f" (up to {max(refuted):.1f})" if refuted else ""
        shown.append(
            f"{form}: {len(refuted)} of {sum(row['distinct'] for _, row in found)} outputs of {len(releases)} releases "
            f"refuted{most}, {sum(row['distinct'] for row in wrong)} broken"
        )
        audited = [row for _, row in found if row["distinct"] and row["by"] != "canaries"]
        if weak := sum(row["expected"] < COARSE * row["claimed"] for row in audited):
            shown[-1] += f", {weak} of them audited too coarsely to see a release that is as bad as its claim"
    of_corrected = [row for _, row in every if row["mechanism"].startswith("corrected") and row["distinct"]]
    beyond = [row for row in of_corrected if row["counted"] and row["reference"] != "x'"]
    if beyond:
        told = f"{sum(row['refuted'] for row in beyond)} of {len(beyond)}"
        shown.append(f"against the same training, which no corrected certificate is about: {told} outputs refuted")
    if uncounted := sum(row["distinct"] for _, row in every if not row["counted"]):
        shown.append(f"not counted: {uncounted} that claim more than {LARGEST_CLAIM:g}")
    of_worlds = [
        (record, row) for kind in ("audit", "whole") for record in theory[kind] for row in record.metrics["rows"]
    ]
    draws = sorted({row.get("draws", record.config["draws"]) for record, row in of_worlds})
    reason = (
        "audited lower bound and exact epsilon <= the claimed one in every case, of "
        + ", ".join(dict.fromkeys(row["output"] for _, row in every))
        + (" (after a noisy start, as a client reads them)" * any(row["output"] == MESSAGES for _, row in every))
    )
    spread = f"{' or '.join(map(str, draws))} releases per world" + ", and one with canaries" * bool(theory["canaries"])
    printed, corrected = forms
    return judged("D10", printed, "; ".join(shown), spread, [r.key for r in records], reason, corrected)


def _risk(theory: Theory) -> ClaimResult:
    """D11: the excess risk is below the bound; how it grows does not decide, since a bound need not be tight.

    As printed with the paper's L, which the noise leaves; corrected with one that holds as far as the noise carries
    models.
    """
    records = theory["risk"]
    cases = sum(len(r.metrics["share"]) for r in records)
    beyond = {reading: sum(r.metrics["violations"][reading] for r in records) for reading in ("paper", "reach")}
    printed, corrected = ({"the bound": exact(not times)} for times in beyond.values())
    slopes = {name: [r.metrics["slopes"][name] for r in records] for name in ("noise_free", "noise")}
    grows = "; ".join(f"{name.replace('_', '-')} slopes {min(s):.2f} to {max(s):.2f}" for name, s in slopes.items())
    ours = (
        f"exceeded in {beyond['paper']} of {cases} cases with the paper's L, in {beyond['reach']} with one that holds "
        f"as far as the noise reaches; {grows}"
    )
    reason = (
        "asked: excess risk <= the two terms of the bound in every case; log-log slopes in m/n, of which the terms "
        "have 1 and 2, are told and do not decide: an upper bound need not be tight"
    )
    return judged("D11", printed, ours, f"{len(records)} settings", [r.key for r in records], reason, corrected)


def _storage(descriptions: Descriptions, runs: pd.DataFrame) -> ClaimResult:
    """D12: what DU keeps with a Fisher matrix is a model's worth of bytes; PDUDT's k N_c d is the paper's formula.

    As printed the matrix is whole, Eq. (7); corrected it is its diagonal, which alone has d numbers.
    """
    size = {place.setting: 4 * record.metrics["parameters"] for place, record in descriptions.items()}
    fisher = runs[runs.curvature.isin(["fisher", "diagonal_fisher"])]
    ratios = {str(kind): list(r.kept / r.setting.map(size)) for kind, r in fisher.groupby("curvature")}
    shown = {"fisher": "the full Fisher matrix", "diagonal_fisher": "its diagonal"}
    remark = {"fisher": " (by samples, in float64; as a matrix d models)", "diagonal_fisher": ""}
    parts = {kind: {name: unknown(f"runs with {name} would tell")} for kind, name in shown.items()}  # of none nothing
    parts |= {kind: {shown[kind]: exact(all(ratio <= 1 for ratio in found))} for kind, found in ratios.items()}
    ours = "; ".join(
        f"{shown[kind]}{remark[kind]} takes as many bytes as {max(found):.3g} models" for kind, found in ratios.items()
    )
    pdudt = runs[runs.method == WHOLE_CLIENTS]
    factors, counted = pdudt.published / pdudt.setting.map(size), pdudt.kept / pdudt.setting.map(size)
    ours += f"; PDUDT k N_c d = {factors.min():.0f} to {factors.max():.0f} d, our reconstruction {counted.max():.0f} d"
    keys = [*fisher.record, *pdudt.record]
    reason = (
        "Eq. (7) is the whole matrix, d x d; O(d) needs the diagonal, which the paper never names (errata D5) and is "
        "the corrected form"
    )
    printed, corrected = (parts[kind] for kind in ("fisher", "diagonal_fisher"))
    return judged("D12", printed, ours, "bytes, counted", keys, reason, corrected)


def _fisher(theory: Theory) -> ClaimResult:
    """D13: at the optimum the full Fisher's step has a cosine of at least 0.9 with Newton's, and goes at least half of
    the way to where that one ends: a direction alone is no update."""
    parts, shown = {}, []
    name = "full Fisher, Eq. (7) as printed"
    records = theory["fisher"]
    for record in records:
        cosines = record.metrics["steps"][name]["cosine"]
        errors = record.metrics["steps"][name]["error"]
        scale = record.config.get("scale")
        problem = record.config["problem"] + (f" at scale {scale:g}" if scale else "")
        parts[problem] = exact(min(cosines) >= 0.9 and max(errors) <= HALF_WAY)
        shown.append(f"{problem}: cosine {min(cosines):.2f}, error {max(errors):.2g}")
    reason = (
        "cosine >= 0.9 and error <= 0.5 (relative to Newton's step) at the optimum, well- and mis-specified, "
        "in the worst of a problem's draws"
    )
    draws = " or ".join(map(str, sorted({record.config["draws"] for record in records})))
    return judged("D13", parts, "; ".join(shown), f"{draws} draws of what leaves", [r.key for r in records], reason)
