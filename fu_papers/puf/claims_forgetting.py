"""PUF's claims on forgetting (P1, P2, P6, P9 to P12): who is nearest to the retrained model on the forgotten data?

Differences are paired over targets and seeds, with the distance between two retrainings as their floor
(fu_papers.evidence). A run that gave up is no result, and doing nothing must do worse than what a claim praises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fu_papers.controls import USEFUL
from fu_papers.evidence import (
    Comparison,
    Estimate,
    as_one_claim,
    compare,
    completed,
    decide,
    floor_of,
    for_means,
    in_part,
    judge_all,
    mostly_gave_up,
    paired,
    what_would_tell,
)
from fu_papers.lab.record import Record
from fu_papers.problem_figures import title
from fu_papers.problems import Setting
from fu_papers.puf.grid import AGAIN, NOTHING, PUFS, RIVALS, Experiment
from fu_papers.puf.results import Unlearnings, natural_at
from fu_papers.verdicts import ClaimResult

GAP = "delta_forget"


def forgets_better(
    id: str,
    ended: pd.DataFrame,
    scenario: str,
    ours: Sequence[str],
    rivals: Sequence[str],
    *,
    skewed: bool | None = None,
) -> ClaimResult:
    """P1, P2, P9 to P11: the forget gap of each of `ours` is smaller than that of every rival, beyond the noise floor.

    rivals: those of the paper's table that can serve the request; our additions stand beside them. Doing nothing must
    have a larger gap, too, and the model must be as useful as Retrain, which the stop rule sees to: a destroyed one
    forgets, too. Where one of the two fails, no rival is beaten.
    """
    r = ended[ended.group == scenario]
    if skewed is not None:
        r = r[[Setting.parse(text).skewed == skewed for text in r.setting]]
    if r.empty:
        split = {None: "", True: ", not IID", False: ", IID"}[skewed]
        return ClaimResult(id, "not run", reason=f"needs a setting for the scenario {scenario!r}{split}")
    if missing := {*ours, NOTHING, AGAIN} - set(r.method):
        return ClaimResult(id, "not run", reason=f"needs runs of {', '.join(sorted(missing))}")
    family = _Family()
    shown = []
    for setting, here in r.groupby("setting", sort=False):
        where, there = title(str(setting)), _those_of(here, rivals)
        for method in ours:
            who = f"{method} against " if len(ours) > 1 else ""
            family.add(here, method, there, {m: part(f"{who}{called(m)}", where, r) for m in (*there, NOTHING)})
        shown.append(f"{where}: {_means(here, [*ours, *there, NOTHING])}; floor {noise_floor(here):.1f}")
    used = r[r.method.isin([*ours, *rivals, NOTHING, AGAIN])]
    return family.result(id, " | ".join(shown), keys_of(used))


class _Family:
    """The differences of forget gaps that a claim rests on, each with its floor and what it hangs on."""

    def __init__(self) -> None:
        self.compared: dict[str, Comparison] = {}
        self.floors: dict[str, float] = {}
        self.gate_of: dict[str, str] = {}
        self.gates: dict[str, tuple[Comparison, float]] = {}  # doing nothing must do worse; no part of a claim
        self.never_back: list[str] = []
        self.useless: set[str] = set()

    def add(self, here: pd.DataFrame, ours: str, rivals: Sequence[str], names: Mapping[str, str]) -> None:
        """`ours` against each of `rivals` and against doing nothing, in one setting; names: what each is called.

        A rival that never came back is none, and only named, unless ours is of no use whatever its gap.
        """
        floor, useless = noise_floor(here), not is_useful(completed(here[here.method == ours])[0], here)
        for rival, found in compare(here, ours, [*rivals, NOTHING], value=GAP).items():
            name = names[rival]
            if rival == NOTHING:
                self.gates[name] = found, floor
            elif found.rival_runs == found.rival_gave_up and not found.ours_gave_up and not useless:
                self.never_back.append(name)
            else:
                self.compared[name], self.floors[name], self.gate_of[name] = found, floor, names[NOTHING]
                self.useless |= {name} if useless else set()

    def result(self, id: str, ours: str, keys: Sequence[str], parts: Mapping[str, str] | None = None) -> ClaimResult:
        """The verdict on all comparisons and `parts`."""
        gates, made = self._gates(), {name: c.estimate for name, c in self.compared.items() if c.estimate is not None}
        estimates, verdicts = as_one_claim(
            made, lambda of: {name: self._verdict(found, name, gates) for name, found in self._judged(of).items()}
        )
        judged = self._judged(estimates)
        if not verdicts:
            return ClaimResult(id, "undetermined", ours, "", keys, "no rival ever came back: no request would tell")
        verdict, counted = in_part({**(parts or {}), **verdicts})
        told = [counted]
        told += [f"never came back: {', '.join(self.never_back)}"] if self.never_back else []
        told += ["no use: its test accuracy is below Retrain's"] if self.useless else []
        told += [f"{name}: {found.verdict}" for name, found in gates.items() if found.verdict != "holds"][:2]
        told += [self._would_tell(name, judged[name]) for name, v in verdicts.items() if v == "undetermined"][:3]
        intervals = "; ".join(f"{name}: {found.text()}" for name, found in {**judged, **gates}.items())
        return ClaimResult(id, verdict, ours, intervals, keys, "; ".join(told))

    def _judged(self, estimates: Mapping[str, Estimate]) -> dict[str, Comparison]:
        compared = {name: replace(c, estimate=estimates.get(name)) for name, c in self.compared.items()}
        return judge_all(compared, claim="less", beyond=self.floors, one_family=False)

    def _gates(self) -> dict[str, Comparison]:
        floors = {name: floor for name, (_, floor) in self.gates.items()}
        return judge_all({name: c for name, (c, _) in self.gates.items()}, beyond=floors, one_family=False)

    def _verdict(self, found: Comparison, name: str, gates: Mapping[str, Comparison]) -> str:
        most = mostly_gave_up(found.ours_gave_up, found.ours_runs)
        if name in self.useless or (most and 2 * found.rival_gave_up < found.rival_runs):
            return "does not hold"
        gate = gates.get(self.gate_of[name])
        return gate.verdict if gate is not None and found.verdict == "holds" else found.verdict

    def _would_tell(self, name: str, found: Comparison) -> str:
        if found.ours_gave_up:
            return f"{name}: gave up in {found.ours_gave_up} of {found.ours_runs}, so it cannot win"
        if found.estimate is None:
            return f"{name}: no request that both came back from"
        if found.verdict == "holds":
            return f"{name}: hangs on doing nothing, which is undetermined"
        if decide(found.estimate, beyond=self.floors[name]) == "does not hold":
            return f"{name}: the rival is nearer, but gave up in {found.rival_gave_up} of {found.rival_runs}"
        return f"{name}: {what_would_tell(found.estimate, beyond=self.floors[name])}"


def on_patients(e: Experiment, found: ClaimResult) -> ClaimResult:
    """P11 speaks of patients: a generated phantom cannot say that it holds."""
    data = {Setting.parse(text).dataset for text in e.segmentation_settings}
    note = "methods with their own settings; no code path depends on the task (one federation, one round for all tasks)"
    if found.verdict == "not run":
        return found
    if data == {"prostate_mri"}:
        return replace(found, reason=f"{found.reason}; {note}")
    verdict = "undetermined" if found.verdict in ("holds", "holds in part") else found.verdict
    return replace(
        found, verdict=verdict, reason=f"on a generated phantom, ProstateMRI would tell: {found.reason}; {note}"
    )


def not_of_alike_clients_alone(found: ClaimResult, settings: Iterable[str]) -> ClaimResult:
    """P3 and P6 are printed for clients that differ: settings where none do cannot say that they hold."""
    if found.verdict not in ("holds", "holds in part") or any(Setting.parse(text).skewed for text in settings):
        return found
    return replace(found, verdict="undetermined", reason=f"on IID data alone, other splits would tell: {found.reason}")


def part(name: str, where: str, r: pd.DataFrame) -> str:
    """What a part of a claim is called; where there is one setting, it goes without saying."""
    return name if r.setting.nunique() == 1 else f"{name} ({where})"


def is_useful(done: pd.DataFrame, here: pd.DataFrame) -> bool:
    """Do the runs `done` have Retrain's test accuracy, to a point beyond what two retrainings `here` differ by?"""
    slack = USEFUL + floor_of(here[here.method == AGAIN], value="delta_test")
    return bool((done.shortfall <= slack).all())


def _those_of(here: pd.DataFrame, methods: Sequence[str]) -> list[str]:
    """Who of `methods` has runs there."""
    return [m for m in methods if (here.method == m).any()]


def called(method: str) -> str:
    """A method as sentences name it."""
    return "doing nothing" if method == NOTHING else method


def noise_floor(here: pd.DataFrame) -> float:
    """The mean forget gap between two retrainings of different seeds: what a mean difference must exceed."""
    return floor_of(here[here.method == AGAIN], value=GAP)


def beats_nothing(done: pd.DataFrame, here: pd.DataFrame) -> tuple[str, str]:
    """The verdict on: the runs `done`, all of which came back, end nearer to Retrain than doing nothing does.

    And what it rests on: the difference, and the floor.
    """
    if done.empty:
        return "undetermined", "nobody came back"
    found, floor = paired(done, here[here.method == NOTHING], value=GAP), noise_floor(here)
    return decide(found, beyond=floor), f"{found.text()}, floor {floor:.1f}"


def _means(here: pd.DataFrame, methods: Sequence[str]) -> str:
    """Mean forget gap of the runs that came back, per method; a dash where half did not."""
    told = []
    for method in methods:
        done, gave_up = for_means(here[here.method == method])
        mean = f"{done[GAP].mean():.1f}" if len(done) else "–"
        told.append(f"{called(method)} {mean}{f', {gave_up}' if gave_up else ''}")
    return ", ".join(told)


def natural_remembers(ended: pd.DataFrame, unlearnings: Unlearnings) -> ClaimResult:
    """P6: after as many rounds as PUF has needed in all, Natural's forget gap is larger, beyond the noise floor.

    And PUF's is smaller than doing nothing's: Natural may be farther from Retrain than where it began.
    """
    natural = natural_at(unlearnings)
    r = ended[(ended.group == "clients") & ended.method.isin([*PUFS, NOTHING, AGAIN])]
    if natural.empty or {*PUFS, NOTHING, AGAIN} - set(r.method):
        return ClaimResult("P6", "not run", reason=f"needs runs of Natural, {', '.join([*PUFS, NOTHING, AGAIN])}")
    compared: dict[str, _Waited] = {}
    for setting, here in r.groupby("setting", sort=False):
        waited = natural[natural.setting == setting]
        for method in PUFS:
            name = part(method, title(str(setting)), r)
            compared[name] = _Waited.after(here[here.method == method], waited, here)
    estimates = {name: one.found for name, one in compared.items() if one.found is not None}
    estimates, parts = as_one_claim(
        estimates, lambda found: {name: one.verdict(found.get(name)) for name, one in compared.items()}
    )
    intervals = [f"{name}: {one.told(estimates.get(name))}" for name, one in compared.items()]
    open_ = [f"{name}: {why}" for name, one in compared.items() if (why := one.open_for(estimates.get(name)))]
    verdict, counted = in_part(parts)
    keys = [*keys_of(r), *natural.record.unique()]
    reason = "; ".join([counted, *open_])
    result = ClaimResult("P6", verdict, "; ".join(intervals), "Natural - PUF, points", keys, reason)
    return not_of_alike_clients_alone(result, r.setting.unique())


@dataclass(frozen=True)
class _Waited:
    """One mode in one setting against Natural after as many rounds; found: Natural - PUF, None where nothing is."""

    found: Estimate | None
    means: str
    floor: float
    gave_up: str
    mostly: bool
    watched: bool
    useful: bool
    nearer: tuple[str, str]  # than doing nothing: the verdict, and what it rests on

    @classmethod
    def after(cls, own: pd.DataFrame, waited: pd.DataFrame, here: pd.DataFrame) -> _Waited:
        """The runs `own` of the mode, Natural's state after every round, all that was run in the setting."""
        done, gave_up = completed(own)
        rounds = (done.rounds + done.unlearning_rounds).astype(int)
        at = done[["seed", "request"]].assign(round=rounds).merge(waited, on=["seed", "request", "round"])
        mostly, floor = 2 * len(done) <= len(own), noise_floor(here)
        found = None if mostly or at.empty else paired(at, done, value=GAP)
        means = f"Natural {at[GAP].mean():.1f}, PUF {done[GAP].mean():.1f}, floor {floor:.1f}"
        nearer, useful = beats_nothing(done, here), is_useful(done, here)
        return cls(found, means, floor, gave_up, mostly, 0 < len(done) == len(at), useful, nearer)

    def verdict(self, found: Estimate | None) -> str:
        """By `found`, the difference at whatever level it is read, and by what else is asked."""
        if self.mostly or not self.useful:
            return "does not hold"
        if found is None:
            return "undetermined"
        verdict = decide(found, claim="more", beyond=self.floor)
        if verdict != "holds":
            return verdict
        return "undetermined" if self.gave_up or not self.watched else self.nearer[0]

    def told(self, found: Estimate | None) -> str:
        """Means, floor and interval, and who gave up."""
        if found is None:
            return self.gave_up or "nothing to compare"
        return "; ".join([f"{self.means}, {found.text()}", *filter(None, [self.gave_up])])

    def open_for(self, found: Estimate | None) -> str:
        """Why it does not hold, where the interval does not say so: a sentence, or nothing."""
        if self.mostly:
            return ""
        if not self.useful:
            return "no use, its test accuracy is below Retrain's"
        if found is None:
            return "Natural has not been watched for so long"
        verdict = decide(found, claim="more", beyond=self.floor)
        if verdict == "undetermined":
            return what_would_tell(found, beyond=self.floor, claim="more")
        if verdict == "does not hold":
            return ""
        if self.gave_up or not self.watched:
            return self.gave_up or "Natural has not been watched for as long as all of PUF took"
        return "" if self.nearer[0] == "holds" else f"nearer to Retrain than doing nothing {': '.join(self.nearer)}"


def fed_eraser(e: Experiment, ended: pd.DataFrame, descriptions: Mapping[str, Record]) -> ClaimResult:
    """P12: under IID FedEraser has the smallest forget gap of the paper's table, and stores C R_ret models.

    It has no recovery and hence no stop rule: its model must be as useful as Retrain, or it is best by being bad. Where
    a server keeps few of the rounds, a replay that fails is not the paper's: undetermined.
    """
    r = ended[(ended.group == "clients") & (ended.method != "Retrain")]
    r = r[[not Setting.parse(text).skewed for text in r.setting]]
    eraser = r[(r.method == "FedEraser") & r.storage.notna()]
    if eraser.empty or {NOTHING, AGAIN} - set(r.method):
        return ClaimResult("P12", "not run", reason="needs an IID setting and history_interval of at least 1")
    intervals = eraser.setting.map(e.history_of)
    retained = -(-e.rounds // intervals)  # rounds, a number per run
    exact = bool((models_kept(eraser, descriptions) == e.clients * retained).all())
    family = _Family()
    for setting, here in r.groupby("setting", sort=False):
        where, there = title(str(setting)), _those_of(here, (*RIVALS, *PUFS))
        family.add(here, "FedEraser", there, {m: part(called(m), where, r) for m in (*there, NOTHING)})
    stored = f"{'=' if exact else 'not'} C R_ret P B, {retained.min()} of {e.rounds} rounds"
    ours = (
        f"{eraser.storage.mean():.2e} bytes, {stored}; "
        f"forget gap {eraser[GAP].mean():.1f}, test accuracy {eraser.shortfall.mean():.1f} points below Retrain's"
    )
    found = family.result("P12", ours, keys_of(r), {"storage C R_ret P B": "holds" if exact else "does not hold"})
    if found.verdict != "does not hold" or intervals.max() == 1:
        return found
    # what a replay of some rounds loses, the method need not
    told = f"of the rounds only every {intervals.max()}th is replayed, all of them would tell: {found.reason}"
    return replace(found, verdict="undetermined", reason=told)


def models_kept(r: pd.DataFrame, descriptions: Mapping[str, Record], column: str = "storage") -> pd.Series:
    """Bytes in units of 4 P."""
    return r[column] / (4 * r.setting.map({text: d.metrics["parameters"] for text, d in descriptions.items()}))


def keys_of(runs: pd.DataFrame) -> list[str]:
    """Of the records behind rows, each once."""
    return list(dict.fromkeys(runs.record))
