"""The verdicts on PUF's claims, computed from records by the rules of claims.csv (`holds_if`).

Where the claim speaks of the end of recovery, the paper's own stop rule applies (test accuracy reaches
Retrain's). It looks at the test set; the tables of the notebook also show our rule, on validation data.

Whoever can be tuned has been, by the same number of trials. Differences are paired over targets and seeds, with the
distance between two retrainings as their floor (fu_papers.evidence). A run that gave up is no result, and doing nothing
must do worse than what a claim praises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from scipy.stats import spearmanr

from fu_papers.evidence import (
    Comparison,
    compare,
    completed,
    crossed,
    decide,
    floor_of,
    in_part,
    judge_all,
    paired,
    what_would_tell,
)
from fu_papers.lab.record import Record
from fu_papers.problem_figures import title
from fu_papers.problems import Setting
from fu_papers.puf.grid import AGAIN, METHODS, PUFS, RIVALS, Experiment
from fu_papers.puf.results import Unlearnings, natural_at
from fu_papers.verdicts import ClaimResult, judge

PAPER_STOP = "test"
PAPER_ROUNDS = 200
CHEAPER = 25  # P3
CLOSE = 0.05  # P14, of the step
USEFUL = 1.0  # points of test accuracy below Retrain's
GAP = "delta_forget"
NOTHING = "Original"


def verdicts(
    e: Experiment,
    runs: pd.DataFrame,
    sweep: pd.DataFrame,
    unlearnings: Unlearnings,
    equivalence: Unlearnings,
    descriptions: Mapping[str, Record],
    costs: Record,
) -> list[ClaimResult]:
    """One result per claim P1-P14. runs, sweep: `puf.results` of the tables' and of the sweep's runs;
    costs: the record of `puf.printed_costs`."""
    ended = runs[(runs.stop == PAPER_STOP) & (runs.label == "")]
    swept = sweep[sweep.stop == PAPER_STOP]
    return [
        _forgets_better("P1", ended, "clients", ["PUF-Regular"], RIVALS, skewed=True),
        _forgets_better("P2", ended, "clients", ["PUF-Regular"], RIVALS, skewed=False),
        _cheaper(e, ended),
        _not_is_blind(e, unlearnings),
        _storage(ended, descriptions),
        _natural_remembers(ended, unlearnings),
        _rate_matters(swept),
        _insensitive(e, ended, swept),
        _forgets_better("P9", ended, "pairs", ["PUF-Regular"], OTHERS),
        _forgets_better("P10", ended, "samples", PUFS, OTHERS, skewed=True),
        _forgets_better("P11", ended, "segmentation", PUFS, OTHERS),
        _fed_eraser(e, ended, descriptions),
        _cost_cells(costs),
        _modes_agree(equivalence),
    ]


OTHERS = tuple(m for m in METHODS if m not in (*PUFS, "FedEraser"))  # FedEraser does not recover: P12


# --- forgetting ------------------------------------------------------------------------------------------------------


def _forgets_better(
    id: str,
    ended: pd.DataFrame,
    scenario: str,
    ours: Sequence[str],
    rivals: Sequence[str],
    *,
    skewed: bool | None = None,
) -> ClaimResult:
    """P1, P2, P9 to P11: the forget gap of each of `ours` is smaller than that of every rival, beyond the noise floor.

    So it must be than that of doing nothing, and the model must be as useful as Retrain: a destroyed one forgets, too.
    Where one of the two fails, no rival is beaten; where the first is open, so is what hangs on it. A rival that cannot
    serve the request is no rival.
    """
    r = ended[ended.group == scenario]
    if skewed is not None:
        r = r[[Setting.parse(text).skewed == skewed for text in r.setting]]
    if r.empty:
        split = {None: "", True: ", not IID", False: ", IID"}[skewed]
        return ClaimResult(id, "not run", reason=f"needs a setting for the scenario {scenario!r}{split}")
    compared: dict[str, Comparison] = {}
    floors: dict[str, float] = {}
    useless: list[str] = []
    shown: list[str] = []
    gates: dict[str, str] = {}
    for setting, here in r.groupby("setting", sort=False):
        floor, where = _floor(here), title(str(setting))
        there = [m for m in (*rivals, NOTHING) if (here.method == m).any()]
        for method in ours:
            who = f"{method} against " if len(ours) > 1 else ""
            found = compare(here, method, there, value=GAP)
            named = {_part(f"{who}{_called(rival)}", where, r): c for rival, c in found.items()}
            useless += [] if _is_useful(here, method) else named
            gates |= dict.fromkeys(named, _part(f"{who}{_called(NOTHING)}", where, r))
            compared |= named
            floors |= dict.fromkeys(named, floor)
        shown.append(f"{where}: {_means(here, [*ours, *there])}; floor {floor:.1f}")
    used = r[r.method.isin([*ours, *rivals, NOTHING, AGAIN])]
    return _concluded(id, {}, compared, floors, " | ".join(shown), _keys(used), gates, useless)


def _part(name: str, where: str, r: pd.DataFrame) -> str:
    """What a part of a claim is called; where there is one setting, it goes without saying."""
    return name if r.setting.nunique() == 1 else f"{name} ({where})"


def _concluded(
    id: str,
    parts: Mapping[str, str],
    compared: Mapping[str, Comparison],
    floors: Mapping[str, float],
    ours: str,
    keys: Sequence[str],
    gates: Mapping[str, str] | None = None,
    useless: Sequence[str] = (),
) -> ClaimResult:
    """The result of a claim that rests on `parts` and on differences of forget gaps, all of them one family.

    gates: by comparison, the one without which it cannot hold; useless: those that are lost whatever the gap, since the
    model is of no use.
    """
    judged = judge_all(compared, claim="less", beyond=floors)
    judged = {name: replace(c, verdict="does not hold") if name in useless else c for name, c in judged.items()}
    for name, gate in (gates or {}).items():
        if judged[name].verdict == "holds":
            judged[name] = replace(judged[name], verdict=judged[gate].verdict)
    verdict, counted = in_part({**parts, **{name: found.verdict for name, found in judged.items()}})
    counted += "; no use: its test accuracy is below Retrain's" if useless else ""
    open_ = [sentence for name, found in judged.items() for sentence in _would_tell(name, found, floors[name])]
    intervals = "; ".join(f"{name}: {found.text()}" for name, found in judged.items())
    return ClaimResult(id, verdict, ours, intervals, keys, "; ".join([counted, *open_[:3]]))


def _is_useful(here: pd.DataFrame, method: str) -> bool:
    """Do the runs that came back have Retrain's test accuracy, to a point beyond what two retrainings differ by?"""
    done, _ = completed(here[here.method == method])
    slack = USEFUL + floor_of(here[here.method == AGAIN], value="delta_test")
    return bool((done.shortfall <= slack).all())


def _called(method: str) -> str:
    return "doing nothing" if method == NOTHING else method


def _floor(here: pd.DataFrame) -> float:
    """The forget gap between two retrainings of different seeds: what a difference must exceed."""
    return floor_of(here[here.method == AGAIN], value=GAP)


def _means(here: pd.DataFrame, methods: Sequence[str]) -> str:
    """Mean forget gap of the runs that came back, per method."""
    told = []
    for method in methods:
        done, gave_up = completed(here[here.method == method])
        mean = f"{done[GAP].mean():.1f}" if len(done) else "–"
        told.append(f"{_called(method)} {mean}{f', {gave_up}' if gave_up else ''}")
    return ", ".join(told)


def _would_tell(name: str, found: Comparison, floor: float) -> list[str]:
    if found.verdict != "undetermined":
        return []
    if found.estimate is None:
        return [f"{name}: no request that both came back from"]
    return [f"{name}: {what_would_tell(found.estimate, beyond=floor)}"]


def _natural_remembers(ended: pd.DataFrame, unlearnings: Unlearnings) -> ClaimResult:
    """P6: after as many rounds as PUF has needed in all, Natural's forget gap is larger, beyond the noise floor."""
    natural = natural_at(unlearnings)
    r = ended[(ended.group == "clients") & ended.method.isin([*PUFS, AGAIN])]
    parts: dict[str, str] = {}
    intervals, open_ = [], []
    for setting, here in r.groupby("setting", sort=False):
        floor = _floor(here)
        waited = natural[natural.setting == setting]
        for method in PUFS:
            done, gave_up = completed(here[here.method == method])
            name = _part(method, title(str(setting)), r)
            if done.empty:
                parts[name] = "undetermined"
                intervals.append(f"{name}: {gave_up}")
                continue
            rounds = (done.rounds + done.unlearning_rounds).clip(upper=waited["round"].max()).astype(int)
            at = done[["seed", "request"]].assign(round=rounds).merge(waited, on=["seed", "request", "round"])
            found = paired(at, done, value=GAP)
            verdict = decide(found, claim="more", beyond=floor)
            parts[name] = "undetermined" if gave_up and verdict == "holds" else verdict
            intervals.append(f"{name}: Natural {at[GAP].mean():.1f}, PUF {done[GAP].mean():.1f}, {found.text()}")
            if parts[name] == "undetermined":
                open_.append(f"{name}: {what_would_tell(found, beyond=floor, claim='more')}")
    if not parts:
        return ClaimResult("P6", "not run", reason="needs PUF in the main block")
    verdict, counted = in_part(parts)
    keys = [*_keys(r), *natural.record.unique()]
    return ClaimResult("P6", verdict, "; ".join(intervals), "Natural - PUF, points", keys, "; ".join([counted, *open_]))


def _fed_eraser(e: Experiment, ended: pd.DataFrame, descriptions: Mapping[str, Record]) -> ClaimResult:
    """P12: under IID FedEraser has the smallest forget gap, and stores C R_ret models."""
    r = ended[(ended.group == "clients") & (ended.method != "Retrain")]
    r = r[[not Setting.parse(text).skewed for text in r.setting]]
    eraser = r[r.method == "FedEraser"]
    if eraser.empty:
        return ClaimResult("P12", "not run", reason="needs an IID setting and history_interval of at least 1")
    retained = -(-e.rounds // e.history_interval)
    exact = bool((_models_kept(eraser, descriptions) == e.clients * retained).all())
    compared: dict[str, Comparison] = {}
    floors: dict[str, float] = {}
    for setting, here in r.groupby("setting", sort=False):
        there = [m for m in (*OTHERS, *PUFS, NOTHING) if (here.method == m).any()]
        found = compare(here, "FedEraser", there, value=GAP)
        named = {_part(_called(rival), title(str(setting)), r): c for rival, c in found.items()}
        compared |= named
        floors |= dict.fromkeys(named, _floor(here))
    ours = (
        f"{eraser.storage.mean():.2e} bytes, {'=' if exact else 'not'} C R_ret P B; "
        f"forget gap {eraser[GAP].mean():.1f}, test accuracy {eraser.shortfall.mean():.1f} points below Retrain's"
    )
    parts = {"storage C R_ret P B": "holds" if exact else "does not hold"}
    return _concluded("P12", parts, compared, floors, ours, _keys(r))


# --- costs -----------------------------------------------------------------------------------------------------------


def _cheaper(e: Experiment, ended: pd.DataFrame) -> ClaimResult:
    """P3: at least 25 times less communication than retraining, at the paper's 200 rounds.

    With other rounds of training the ratio is projected: retraining would send 200 / rounds as much, unlearning and
    recovery what they have sent here. A run that gave up has cost at least what it has sent, and speaks against it.
    """
    r = ended[(ended.group == "clients") & ended.method.isin(PUFS)]
    longer = PAPER_ROUNDS / e.rounds
    parts: dict[str, str] = {}
    shown, open_ = [], []
    for (setting, method), cell in r.groupby(["setting", "method"], sort=False):
        name = _part(str(method), title(str(setting)), r)
        done, gave_up = completed(cell)
        if done.empty:
            parts[name] = "does not hold"
            shown.append(f"{name}: {gave_up}")
            continue
        sent = done.assign(one=1.0, ratio=done.bytes_gain * longer)
        found = paired(sent.assign(value=sent.ratio), sent.assign(value=sent.one), value="value", log=True)
        verdict = decide(found, claim="more", margin=float(CHEAPER))
        parts[name] = "undetermined" if gave_up and verdict == "holds" else verdict
        told = f"{name}: {found.text()}, {done.rounds.mean():.1f} recovery rounds"
        shown.append(f"{told}, {gave_up}" if gave_up else told)
        if parts[name] == "undetermined":
            open_.append(f"{name}: {what_would_tell(found, claim='more', margin=float(CHEAPER))}")
    verdict, counted = in_part(parts)
    how = "as run" if longer == 1 else f"projected from {e.rounds} rounds of training"
    reason = "; ".join([f"bytes of retraining over 200 rounds / bytes sent, {how}: {counted}", *open_])
    return ClaimResult("P3", verdict, "; ".join(shown), "ratio with 95 % interval", _keys(r), reason)


def _not_is_blind(e: Experiment, unlearnings: Unlearnings) -> ClaimResult:
    """P4: NoT's output is the same bits whoever leaves."""
    models: dict[tuple[str, int], set[str]] = defaultdict(set)
    keys = []
    for cell, record in unlearnings.items():
        if (cell.group, cell.method, cell.label) == ("clients", "NoT", ""):
            models[cell.setting, cell.seed].add(record.metrics["unlearned"]["sha256"])
            keys.append(record.key)
    if len(e.targets) < 2:
        return ClaimResult("P4", "not run", reason="needs at least two targets")
    identical = [len(outputs) == 1 for outputs in models.values()]
    ours = f"{sum(identical)} of {len(identical)} models identical for all targets"
    verdict = "holds" if all(identical) else "does not hold"
    return ClaimResult("P4", verdict, ours, "exact", keys, "sha256 of the models compared")


def _storage(ended: pd.DataFrame, descriptions: Mapping[str, Record]) -> ClaimResult:
    """P5: of all that a server could have kept, PUF is handed one model, 4 P bytes, in every scenario.

    What it is handed is measured; with less than it needs it would have failed by name.
    """
    r = ended[ended.method.isin(PUFS)]
    ratio = pd.concat([_models_kept(r, descriptions), _models_kept(r, descriptions, "handed")])
    reason = (
        f"bytes handed to the method, and bytes it declares as kept: {int((ratio == 1).sum())} of {len(ratio)} are 4 P"
    )
    ours = f"{ratio.min():g} to {ratio.max():g} models of 4 P bytes"
    verdict = "holds" if bool((ratio == 1).all()) else "does not hold"
    return ClaimResult("P5", verdict, ours, "exact", _keys(r), reason)


def _models_kept(r: pd.DataFrame, descriptions: Mapping[str, Record], column: str = "storage") -> pd.Series:
    """Bytes in units of 4 P."""
    return r[column] / (4 * r.setting.map({text: d.metrics["parameters"] for text, d in descriptions.items()}))


def _cost_cells(costs: Record) -> ClaimResult:
    """P13: every printed cost cell of Tables III to V recomputed from Tables VII and VIII."""
    tables = costs.metrics
    follow = sum(table["follow"] for table in tables.values())
    cells = sum(table["cells"] for table in tables.values())
    met = [k < table["follow"] for table in tables.values() for k in range(table["cells"])]  # one part per cell
    listed = ", ".join(f"{name} {table['follow']} of {table['cells']}" for name, table in tables.items())
    reason = f"cells that follow, by table: {listed}; arithmetic on the printed numbers"
    return judge("P13", met, f"{follow} of {cells} cells follow", "exact", [costs.key], reason)


# --- the rate --------------------------------------------------------------------------------------------------------


def _rate_matters(swept: pd.DataFrame) -> ClaimResult:
    """P7: with eta_u the forget gap falls and the recovery rounds rise: the rank correlation of each request and seed,
    and its mean over them, with an interval on the claim's side."""
    r = swept[swept.group == "clients"]
    if r.groupby("method").eta_u.nunique().min() < 3 if len(r) else True:
        return ClaimResult("P7", "not run", reason="needs sweep_settings and at least three values of eta_u")
    lost, r = int(r[GAP].isna().sum()), r[r[GAP].notna()]
    parts: dict[str, str] = {}
    shown, open_ = [], []
    for (setting, method), cell in r.groupby(["setting", "method"], sort=False):
        for name, claim in ((GAP, "less"), ("rounds", "more")):
            where = _part(f"{method}, {'forget gap' if name == GAP else 'recovery rounds'}", title(str(setting)), r)
            ranks = [
                {"request": request, "seed": seed, "value": _rank_correlation(one.eta_u, one[name])}
                for (request, seed), one in cell.groupby(["request", "seed"], sort=False)
            ]
            found = crossed(pd.DataFrame(ranks))
            parts[where] = decide(found, claim=claim)
            shown.append(f"{where}: {found.text(2)}")
            if parts[where] == "undetermined":
                open_.append(f"{where}: {what_would_tell(found, claim=claim)}")
    verdict, counted = in_part(parts)
    gone = [f"{lost} runs diverged and are left out"] if lost else []
    reason = "; ".join([counted, *gone, *open_[:3]])
    return ClaimResult("P7", verdict, "; ".join(shown), f"Spearman, {len(r)} runs", _keys(r), reason)


def _rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Spearman's; 0 where y does not change at all."""
    return float(spearmanr(x, y).statistic) if y.nunique() > 1 else 0.0


def _insensitive(e: Experiment, ended: pd.DataFrame, swept: pd.DataFrame) -> ClaimResult:
    """P8: at least half of the grid of eta_u and E_u has a smaller forget gap than the best baseline of Fig. 5.

    A point of the grid counts if its gap is smaller beyond the floor, and not if a run of it gave up or diverged.
    """
    r = swept[swept.group == "clients"]
    if r.empty:
        return ClaimResult("P8", "not run", reason="needs sweep_settings")
    parts: dict[str, str] = {}
    shown, keys = [], _keys(r)
    for setting in e.sweep_settings:
        here = ended[(ended.group == "clients") & (ended.setting == setting) & ended.seed.isin(list(e.few_seeds))]
        floor, rivals = _floor(here), [m for m in OTHERS if (here.method == m).any()]
        done, _ = completed(here[here.method.isin(rivals)])
        best = str(done.groupby("method")[GAP].mean().idxmin())
        found = []
        for _, point in r[r.setting == setting].groupby(["method", "label"], sort=False):
            came_back, gave_up = completed(point)
            if gave_up:
                found.append("does not hold")
                continue
            found.append(decide(paired(came_back, done[done.method == best], value=GAP), beyond=floor))
        yes, no = found.count("holds"), found.count("does not hold")
        half = len(found) / 2
        parts[title(setting)] = "holds" if yes >= half else "does not hold" if no > half else "undetermined"
        shown.append(f"{title(setting)}: of {len(found)} points {yes} below {best}, the best baseline, {no} not")
        keys += _keys(here)
    verdict, counted = in_part(parts)
    reason = f"at least half of the grid below, beyond the floor: {counted}; more seeds and targets would tell the rest"
    return ClaimResult("P8", verdict, "; ".join(shown), f"{len(r)} runs", list(dict.fromkeys(keys)), reason)


def _modes_agree(equivalence: Unlearnings) -> ClaimResult:
    """P14: Regular(eta_r, eta_u) and Special((eta_r + eta_u) p_u) differ by less than 5 % of the step, after training.

    The closed form on quadratics is a test (tests/fu_core/unlearning/test_puf.py, case a).
    """
    rows = [
        {"setting": c.setting, "request": c.request, "seed": c.seed, "value": r.metrics["relative_difference"]}
        for c, r in equivalence.items()
    ]
    parts: dict[str, str] = {}
    shown, open_ = [], []
    for setting, cell in pd.DataFrame(rows).groupby("setting", sort=False):
        found = crossed(cell)
        parts[title(str(setting))] = decide(found, claim="less", margin=-CLOSE)  # at most so large
        shown.append(f"{title(str(setting))}: {found.text(2)}")
        if parts[title(str(setting))] == "undetermined":
            open_.append(what_would_tell(found, claim="less", margin=-CLOSE))
    verdict, counted = in_part(parts)
    close = sum(row["value"] < CLOSE for row in rows)
    reason = "; ".join([counted, f"{close} of {len(rows)} nets below 5 %; exact on quadratics (tested)", *open_])
    keys = [record.key for record in equivalence.values()]
    return ClaimResult("P14", verdict, "; ".join(shown), "share of the step, 95 % interval", keys, reason)


def _keys(runs: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(runs.record))
