"""The verdicts on certified DFL's claims about accuracy round by round (Fig. 1): D5 and D7."""

from __future__ import annotations

from collections.abc import Mapping

from fu_papers.certified_dfl.grid import DU_FORMS, METHODS, WHOLE_CLIENTS, Experiment
from fu_papers.certified_dfl.results import POINT, Curves, needed_rounds, paths
from fu_papers.certified_dfl.titles import IN_CURVES
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.over_seeds import Part, above, all_of, at_most, farthest, judged, limited_by, lowered_by, of_each, told
from fu_papers.problems import dataset_title
from fu_papers.verdicts import ClaimResult

JUDGED = ("Original", *METHODS)
ALONE = "Fine-tune"  # with no steps of its own: the rounds that follow every method
IDLE = {  # who must not meet a rule: what it does is not DU's doing
    "Original": "doing nothing",
    ALONE: "the round of training that follows DU, alone,",
    DESTROYED: "a model of random weights",
}
Cells = Mapping[str, Mapping[str, Part]]  # method -> the rule there, place by place


def forms(cells: Cells) -> tuple[dict[str, Part], dict[str, Part]]:
    """The parts of the claim as printed and corrected: every cell, as far as its controls let it be told.

    Who does nothing must fail the rule there, and a second retraining meet it; controls that were not run say nothing.
    """

    def controlled(place: str, part: Part) -> Part:
        for control, called in IDLE.items():
            if place in cells.get(control, ()):
                part = lowered_by(cells[control][place], part, called)
        return limited_by(cells[AGAIN][place], part) if place in cells.get(AGAIN, ()) else part

    printed, corrected = ({place: controlled(place, part) for place, part in cells[m].items()} for m in DU_FORMS)
    return printed, corrected


def one_round(e: Experiment, curves: Curves) -> ClaimResult:
    """D5: one round after a client has left, DU is at most 1 point short of where Retrain ends, PDUDT is more (Fig. 1).

    Where doing nothing is not short, either, nothing had to be won back; where the round alone is not, DU won nothing.
    """
    parts: dict[str, dict[str, Part]] = {method: {} for method in DU_FORMS}
    gaps: dict[str, dict[str, list[float]]] = {method: {} for method in (*DU_FORMS, WHOLE_CLIENTS)}
    needed: dict[str, list[str]] = {method: [] for method in (*DU_FORMS, WHOLE_CLIENTS)}
    untouched = 0
    for dataset in e.datasets:
        found = paths(curves, dataset, "client")
        ends = [path[-1][-1][1] for path in found["Retrain"]]
        short = {m: [end - path[1][1][1] for path, end in zip(found[m], ends, strict=True)] for m in (ALONE, *needed)}
        nothing = at_most((end - path[0][-1][1] for path, end in zip(found["Retrain"], ends, strict=True)), POINT)
        untouched += nothing.verdict == "holds"
        for method, by_dataset in gaps.items():
            by_dataset[dataset_title(dataset)] = short[method]
        for method in DU_FORMS:
            both = all_of(at_most(short[method], POINT), above(short[WHOLE_CLIENTS], POINT))
            both = lowered_by(at_most(short[ALONE], POINT), both, IDLE[ALONE])
            parts[method][dataset_title(dataset)] = lowered_by(nothing, both)
        for method, shown in needed.items():
            shown.append(needed_rounds([path[1] for path in found[method]], ends))
    ours = "; ".join(f"{IN_CURVES[m]} {', '.join(shown)}" for m, shown in needed.items())
    ours += f"; doing nothing is at most 1 point short on {untouched} of {len(e.datasets)} data sets"
    keys = [record.key for (_, kind, _, _), record in curves.items() if kind == "client"]
    reason = (
        "Retrain's end - test acc. after one round: DU's <= 1 and PDUDT's > 1; ours: rounds until <= 1, by data set"
    )
    of_rival = gaps.pop(WHOLE_CLIENTS)  # which is to be short everywhere
    beside = f"{IN_CURVES[WHOLE_CLIENTS]} " + ", ".join(
        f"{told(found)} on {where}" for where, found in of_rival.items()
    )
    spread = (
        f"{of_each(len(e.datasets), 'data set', len(e.seeds))}; points short after one round: {_most(gaps)}; {beside}"
    )
    return judged("D5", parts["DU printed"], ours, spread, keys, reason, parts["DU"])


def _most(gaps: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Of each method the place where it is shortest: {method: {place: points short, by seed}}."""
    return "; ".join(f"{IN_CURVES[method]} {farthest(by_place)}" for method, by_place in gaps.items())


def sequence(e: Experiment, curves: Curves) -> ClaimResult:
    """D7: at most 1 point short of Retrain's end after each sequential request and one round, on every data set.

    A request comes when the rounds of the one before are over, as in Fig. 1: the second and third meet a model that has
    gone on training. So has a control, which does nothing else. Who went on training may be above Retrain.
    """
    cells: dict[str, dict[str, Part]] = {method: {} for method in JUDGED}
    gaps: dict[str, dict[str, list[float]]] = {method: {} for method in JUDGED}
    for dataset in e.datasets:
        found = paths(curves, dataset, "sample")
        after: dict[str, list[Part]] = {method: [] for method in JUDGED}
        for j in range(1, e.sequence + 1):
            ends = [path[j][-1][1] for path in found["Retrain"]]
            reached = {method: [path[j][1][1] for path in found[method]] for method in METHODS}
            reached["Original"] = [path[0][-1][1] for path in found["Retrain"]]  # where training ended
            for method in JUDGED:
                short = [end - accuracy for accuracy, end in zip(reached[method], ends, strict=True)]
                after[method].append(at_most(short, POINT))
                gaps[method][f"{dataset_title(dataset)} request {j}"] = short
        for method, requests in after.items():
            cells[method][dataset_title(dataset)] = all_of(*requests)
    largest = {m: max(sum(short) / len(short) for short in by_request.values()) for m, by_request in gaps.items()}
    ours = "; ".join(f"{IN_CURVES[m]} at most {most:z.1f} points short in the mean" for m, most in largest.items())
    keys = [record.key for (_, kind, _, _), record in curves.items() if kind == "sample"]
    reason = (
        f"Retrain's end - test acc. after each of {e.sequence} requests and one round <= 1, each request "
        f"{' or '.join(map(str, sorted(set(e.pdudt_rounds))))} rounds after the one before"
    )
    printed, corrected = forms(cells)
    spread = f"{of_each(len(e.datasets), 'data set', len(e.seeds))}; points short: {_most(gaps)}"
    return judged("D7", printed, ours, spread, keys, reason, corrected)
