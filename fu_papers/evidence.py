"""How numbers become verdicts: intervals and noise floors, families, parts of a claim, runs that gave up.

    compared = compare(runs, "PUF-Regular", ["PGA", "NoT"], value="forget_gap")     {rival: paired difference}
    judged = judge_all(compared, claim="less", beyond=floor_of(retrains_twice))
    verdict, reason = in_part({rival: c.verdict for rival, c in judged.items()})

Means over targets and seeds come from `fu_papers.intervals`, and can be had here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from fu_core.errors import ConfigError, check_choice, check_count, check_not_negative
from fu_papers.intervals import Estimate, crossed, degrees_of_freedom, floor_of, of_each, on_scale, paired

__all__ = [
    "Comparison",
    "Estimate",
    "as_one_claim",
    "can_win",
    "compare",
    "completed",
    "crossed",
    "decide",
    "family",
    "floor_of",
    "holm",
    "in_part",
    "judge_all",
    "paired",
    "seeds_needed",
    "what_would_tell",
]

SIDES = ("less", "more")
FAMILY_FROM = 6  # comparisons; up to five are taken as they are
MOST = 1000  # targets or seeds: what would need more of them is out of reach
AT = 1e-9  # of a margin, or of a ratio: what is nearer is there but for rounding


# --- verdicts --------------------------------------------------------------------------------------------------------


def decide(estimate: Estimate, *, claim: str = "less", beyond: float = 0.0, margin: float | None = None) -> str:
    """Whether the effect is on the claim's side, less or more: "holds", "does not hold" or "undetermined".

    It holds if the whole interval lies on the claim's side of no effect; it does not if the whole interval lies on the
    other side. beyond: the noise floor; an effect that is not larger is undetermined. Of a ratio: the share by which it
    must differ from 1, 0.1 for 10 %.

    margin: what the claim names, "at least `margin` less" (of a ratio: "`margin` times less"). The margin takes the
    place of no effect, for interval and floor: a gain that is clear, but clearly smaller than promised, does not hold.
    Negative (of a ratio: below 1): "at most so much worse".
    """
    distance, low, high, floor = _from_boundary(estimate, claim, beyond, margin)
    if floor > 0 and abs(distance) <= floor:
        return "undetermined"
    if low > 0 or (low == 0 and margin is not None):  # "at least" includes the margin
        return "holds"
    return "does not hold" if high < 0 else "undetermined"


def seeds_needed(
    estimate: Estimate, *, beyond: float = 0.0, claim: str = "less", margin: float | None = None
) -> int | None:
    """How many seeds, at as many targets, would decide, if effect and spread stay as they are; at least those there.

    None if no number would: the effect is within the floor, the spread over targets alone is too large, or a single
    target or seed does not show the spread.
    """
    return _needed(estimate, *_from_boundary(estimate, claim, beyond, margin), grow=(False, True))


def what_would_tell(
    estimate: Estimate, *, beyond: float = 0.0, claim: str = "less", margin: float | None = None
) -> str:
    """A sentence beside "undetermined": how many seeds, targets, or both would decide."""
    of = _from_boundary(estimate, claim, beyond, margin)
    now = of_each(estimate.targets, estimate.seeds)
    if estimate.spread is None:
        return f"{now} cannot tell: the spread shows from 2 targets x 2 seeds on"
    if _within(of[0], of[3]):
        what = "no effect" if margin is None else f"the margin {margin:.3g}"
        near = f"within the noise floor {beyond:.3g} of" if beyond else "exactly"
        return f"the effect is {near} {what}: no number of targets and seeds would tell"
    if of[1] > 0 or of[2] < 0:
        return f"{now} tell"
    if seeds := _needed(estimate, *of, grow=(False, True)):
        return f"about {of_each(estimate.targets, seeds)} would tell ({now} now)"
    if targets := _needed(estimate, *of, grow=(True, False)):
        return f"more seeds alone would not tell; about {of_each(targets, estimate.seeds)} would ({now} now)"
    if both := _needed(estimate, *of, grow=(True, True)):
        return f"neither more seeds nor more targets alone would tell; about {of_each(both, both)} would ({now} now)"
    return f"fewer than {MOST} targets x {MOST} seeds would not tell"


def _from_boundary(
    estimate: Estimate, claim: str, beyond: float, margin: float | None
) -> tuple[float, float, float, float]:
    """Effect and interval, measured from what divides the two verdicts, towards the claim's side; the floor."""
    check_choice("claim", claim, SIDES, ConfigError)
    check_not_negative("beyond", beyond, ConfigError)
    if margin is not None and not (np.isfinite(margin) and (margin > 0 or not estimate.ratio)):
        raise ConfigError(f"margin must be a finite number{', > 0 for a ratio' * estimate.ratio}, got {margin!r}")
    side = -1 if claim == "less" else 1
    boundary = 0.0 if margin is None else on_scale(margin, estimate.ratio)
    values = (estimate.effect, estimate.low, estimate.high)
    near = AT * (1.0 if estimate.ratio else abs(boundary))  # 0.4 - 0.7 is 0.3 less
    away = [side * on_scale(value, estimate.ratio) - boundary for value in values]
    effect, *ends = (0.0 if abs(distance) <= near else distance for distance in away)
    return effect, min(ends), max(ends), float(np.log1p(beyond)) if estimate.ratio else beyond


def _within(distance: float, floor: float) -> bool:
    return abs(distance) <= floor  # without a floor: no distance at all


def _needed(
    estimate: Estimate, distance: float, low: float, high: float, floor: float, *, grow: tuple[bool, bool]
) -> int | None:
    """The smallest number of targets or seeds (those of `grow`), or of both, that is enough; t intervals throughout.

    Those there have not been enough, even if a t interval of whole cells would do: of more than there are, then.
    """
    if estimate.spread is None or _within(distance, floor):
        return None
    targets, seeds = estimate.targets, estimate.seeds
    start = max(n for n, grows in zip((targets, seeds), grow, strict=True) if grows)
    if low > 0 or high < 0:
        return start
    n = np.arange(start, MOST + 1)
    i, j = (n if grows else np.full_like(n, fixed) for grows, fixed in zip(grow, (targets, seeds), strict=True))
    s_a, s_b, s_e = estimate.spread
    v_e = s_e / (i * j)
    se = np.sqrt(s_a / i + s_b / j + v_e)
    df = degrees_of_freedom(s_a / i + v_e, s_b / j + v_e, v_e, i, j)
    enough = t.ppf((1 + estimate.level) / 2, df) * se < abs(distance)
    enough &= (i > targets) | (j > seeds)
    enough = np.logical_and.accumulate(enough[::-1])[::-1]  # and any larger number: the degrees of freedom may fall
    return int(n[enough][0]) if enough.any() else None


# --- many comparisons, many parts ------------------------------------------------------------------------------------


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for their number (Holm 1979): the k-th smallest of m times m - k + 1, never below a smaller one's."""
    p = np.asarray(p_values, dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ConfigError(f"p_values must be between 0 and 1, got {p.tolist()}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in adjusted]


def family(estimates: Mapping[str, Estimate], *, step_down: bool = True) -> dict[str, Estimate]:
    """Comparisons that one claim rests on, with p and interval widened for their number if they are more than five.

    Step by step from the smallest p: the interval of the k-th of m gets level 1 - α/(m - k + 1); from the first that
    Holm does not reject, all get the level of that one. So an interval excludes no effect if Holm rejects it, and only
    then (up to the resolution of a bootstrap). That answers the question of no effect only: without `step_down` all
    intervals get 1 - α/m (Bonferroni) and can be read all at once, against a margin, too.
    """
    if len(estimates) < FAMILY_FROM:
        return dict(estimates)
    names = list(estimates)
    adjusted = dict(zip(names, holm([estimates[name].p for name in names]), strict=True))
    widened, left = {}, len(names)
    for name in sorted(names, key=lambda name: estimates[name].p):
        found = estimates[name]
        alpha = (1 - found.level) / left
        widened[name] = replace(found.at(1 - alpha), p=adjusted[name])
        left -= step_down and found.p < alpha
    return {name: widened[name] for name in names}


def as_one_claim(
    estimates: Mapping[str, Estimate],
    judge: Callable[[Mapping[str, Estimate]], dict[str, str]],
    *,
    step_down: bool = True,
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """The estimates that a claim's parts rest on, and `judge`'s verdicts by them: one `family`, unless all agree.

    That all parts hold needs no correction for their number: each must. Which of them count towards "in part" does.
    """
    verdicts = judge(estimates)
    if len(set(verdicts.values())) < 2:
        return dict(estimates), verdicts
    widened = family(estimates, step_down=step_down)
    return widened, judge(widened)


def in_part(parts: Mapping[str, str]) -> tuple[str, str]:
    """The verdict on a claim from those on its named parts, and the sentence that counts and names them.

    All hold: holds. None fails, but not all hold: undetermined. Some fail: holds in part if at least half of all parts
    hold; does not hold if fewer would even if every undetermined part did; else undetermined.
    """
    _check_parts(parts)
    hold, fail, open_ = (
        [name for name, verdict in parts.items() if verdict == wanted]
        for wanted in ("holds", "does not hold", "undetermined")
    )
    if len(hold) == len(parts):
        verdict = "holds"
    elif not fail:
        verdict = "undetermined"
    elif 2 * len(hold) >= len(parts):
        verdict = "holds in part"
    else:
        verdict = "does not hold" if 2 * (len(hold) + len(open_)) < len(parts) else "undetermined"
    listed = [f"{len(hold)} of {len(parts)} parts hold{': ' * bool(hold)}{', '.join(hold)}"]
    listed += [f"{what}: {', '.join(of)}" for what, of in (("does not hold", fail), ("undetermined", open_)) if of]
    return verdict, "; ".join(listed)


def _check_parts(parts: Mapping[str, str]) -> None:
    if not parts:
        raise ConfigError("parts must name at least one part of the claim, got none")
    for name, verdict in parts.items():
        check_choice(f"verdict of part {name!r}", verdict, ("holds", "does not hold", "undetermined"), ConfigError)


# --- runs that gave up -----------------------------------------------------------------------------------------------


def completed(frame: pd.DataFrame, reached: str = "reached") -> tuple[pd.DataFrame, str]:
    """The rows whose stop rule was met, and `"gave up (2 of 6)"`, or "" if none gave up.

    Where a run that gave up stands says when its patience ended, not what its method achieves.
    """
    check_choice("reached", reached, frame.columns, ConfigError)
    if frame[reached].isna().any():
        raise ConfigError(f"{reached} must be true or false in every row, got {frame[reached].isna().sum()} without it")
    if len(other := [given for given in frame[reached] if given not in (True, False)]):
        raise ConfigError(f"{reached} must be true or false in every row, got {other[0]!r}")
    done = frame[reached].astype(bool)
    return frame[done], f"gave up ({(~done).sum()} of {len(frame)})" if not done.all() else ""


def can_win(gave_up: int, n: int) -> bool:
    """Whether a method that gave up in `gave_up` of `n` judged runs can be best in final states: only if in none.

    The mean of those that came through would win by leaving out the hard cells.
    """
    check_count("n", n, error=ConfigError)
    check_count("gave_up", gave_up, least=0, error=ConfigError)
    if gave_up > n:
        raise ConfigError(f"gave_up must be at most n = {n}, got {gave_up}")
    return gave_up == 0


def mostly_gave_up(gave_up: int, n: int) -> bool:
    """Whether it gave up in at least half of `n` runs, and in more than one, which may be bad luck."""
    return gave_up > 1 and 2 * gave_up >= n


def for_means(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """As `completed`, of what means may be shown: no row if `mostly_gave_up`, since who is left had the easy cells."""
    done, gave_up = completed(frame)
    return done[:0] if mostly_gave_up(len(frame) - len(done), len(frame)) else done, gave_up


@dataclass(frozen=True)
class Comparison:
    """Ours against one rival on the cells that both completed, with a value; estimate: None if there are none.

    ours_gave_up, rival_gave_up: in how many of ours_runs, rival_runs; verdict: "" until `judge_all`.
    """

    estimate: Estimate | None
    ours_gave_up: int
    ours_runs: int
    rival_gave_up: int
    rival_runs: int
    verdict: str = ""

    def text(self, digits: int = 1) -> str:
        """The estimate, and who gave up how often."""
        shown = "no common cell" if self.estimate is None else self.estimate.text(digits)
        ours = f"; ours gave up ({self.ours_gave_up} of {self.ours_runs})" if self.ours_gave_up else ""
        rival = f"; rival gave up ({self.rival_gave_up} of {self.rival_runs})" if self.rival_gave_up else ""
        return shown + ours + rival


def compare(
    runs: pd.DataFrame,
    ours: str,
    rivals: Sequence[str],
    *,
    method: str = "method",
    reached: str = "reached",
    **how: Any,
) -> dict[str, Comparison]:
    """`ours` against each of `rivals`, by rival. runs: a row per method, target and seed; how: as for `paired`.

    Raises ConfigError for a method without runs, and as `paired`.
    """
    places, value = [how.get("target", "request"), how.get("seed", "seed")], how.get("value", "value")
    for column in (method, *places, value):
        check_choice("method, target, seed, value", column, runs.columns, ConfigError)
    done, gave_up, n = {}, {}, {}
    for name in (ours, *rivals):
        check_choice("ours and rivals", name, runs[method].unique(), ConfigError)
        of = runs[runs[method] == name]
        done[name], _ = completed(of, reached)
        n[name], gave_up[name] = len(of), len(of) - len(done[name])
    found = {}
    for rival in rivals:
        common = done[ours].dropna(subset=value)[places].merge(done[rival].dropna(subset=value)[places])
        estimate = paired(done[ours], done[rival], **how) if len(common) else None
        found[rival] = Comparison(estimate, gave_up[ours], n[ours], gave_up[rival], n[rival])
    return found


def judge_all(
    compared: Mapping[str, Comparison],
    *,
    claim: str = "less",
    beyond: float | Mapping[str, float] = 0.0,
    margin: float | None = None,
    one_family: bool = True,
) -> dict[str, Comparison]:
    """All comparisons that a claim rests on, as one `family` (in steps unless against a margin), with their verdicts.

    beyond: as for `decide`, one floor for all or one for each. one_family: False where all of them must hold for the
    claim to hold: then each may be at its own level, and the claim is still wrong at most that often.

    Whoever gave up anywhere cannot win: what would be decided in their favour is undetermined, as is what has no
    common cell.
    """
    check_choice("claim", claim, SIDES, ConfigError)
    if isinstance(beyond, Mapping) and (without := [name for name in compared if name not in beyond]):
        raise ConfigError(f"beyond must have a floor for every comparison, got none for {', '.join(without)}")
    made = {name: c.estimate for name, c in compared.items() if c.estimate is not None}
    estimates = family(made, step_down=margin is None) if one_family else made
    judged = {}
    for name, c in compared.items():
        verdict = "undetermined"
        if name in estimates:
            floor = beyond[name] if isinstance(beyond, Mapping) else beyond
            verdict = decide(estimates[name], claim=claim, beyond=floor, margin=margin)
        if verdict == "holds" and not can_win(c.ours_gave_up, c.ours_runs):
            verdict = "undetermined"
        if verdict == "does not hold" and not can_win(c.rival_gave_up, c.rival_runs):
            verdict = "undetermined"
        judged[name] = replace(c, estimate=estimates.get(name), verdict=verdict)
    return judged
