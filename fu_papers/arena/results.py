"""The tidy frame of the arena's runs, the check of its controls, and the ranking.

A row is one method in one place (a setting and a request). Retrain is what everybody is compared with; as a row stands
Retrain again, N further retrainings of other seeds, whose distance is the noise floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from fu_core.request import Request
from fu_core.unlearning.method import Method
from fu_core.unlearning.method import method as registered
from fu_papers.arena.grid import OF_ITS_KIND, YARDSTICK
from fu_papers.arena.pools import BY_HAND, CONSTANT, ENSEMBLES
from fu_papers.arena.worlds import SERVER, world_of
from fu_papers.controls import AGAIN, DESTROYED, FLOOR
from fu_papers.lab.record import Record
from fu_papers.over_seeds import interval as interval_of
from fu_papers.study import Cell, tidy, wide

Found = Mapping[Cell, Record]
Chunk = tuple[Mapping[str, Any], int]  # what `runs.unlearn` tells of so many models
REASONS = ("unsupported", "diverged")
LEAST = 0.1  # of the floor: what is nearer than that by chance counts as no nearer
AS_GOOD = 2.0  # times the floor: below it, a crowd counts as not told apart from retrained models
NOTHING = "Original"
STAYS, LEAVES = 25.0, 10.0  # percent of triggered images: a backdoor works above, and not below
MUST_FAIL = (NOTHING, CONSTANT, DESTROYED)
OWN_NOTHING = dict.fromkeys(OF_ITS_KIND, ENSEMBLES)  # whose doing nothing is not the plain one
KNOWS, KNOWS_NOT = 0.5, 1.0  # of Retrain's passes: doing nothing learns again within, random weights not before
SHOWN = {NOTHING: "do nothing (Original)", AGAIN: FLOOR}


class ControlsFailed(RuntimeError):
    """The controls did not come out as they must, so the table that they stand in can tell nobody from anybody."""


def shown(name: str) -> str:
    """A method's name in tables."""
    return SHOWN.get(name, name)


def about(name: str) -> Method | None:
    """What is registered of a method; None for controls that no method makes."""
    return None if name in (AGAIN, *BY_HAND) else registered(name)


def of_runs(unlearned: Found, judged: Found, relearned: Found | None = None) -> pd.DataFrame:
    """Every number of every method in every place, wide. Where a method has no result, `reason` says why.

    relearn: passes until the forgotten data are known again over a retrained model's, 1 where nothing is left;
    relearn_capped: the share of models that did not get there. nan where no model can be trained on, or none needs to,
    and in places where this judge's controls come out wrong. gave_up: the share of models that did not come back to
    Retrain's validation accuracy within the cap of recovery.
    backdoor, backdoor_retrain: success in percent, where the leaving client carried one.

    excess: mean per-example epsilon, less what a perfect method shows with so many models, and less what is left of a
    second retraining's in the same place, since both depend on how far margins are spread.

    Accuracies in percent; `passes` over all training data, of unlearning and recovery together, and `price`, the same
    over Retrain's; bytes, storage and seconds of one model. What is infinite is inf, as a constant margin's KLoM is.
    """

    def measure(cell: Cell, record: Record) -> Iterator[dict[str, Any]]:
        row = row_of(record.metrics, *(_chunks(unlearned, cell, name) for name in (cell.method, AGAIN)))
        yield row if "reason" in row else {**row, **_relearned(relearned or {}, cell)}

    return compared(wide(tidy(judged, measure)))


def _relearned(relearned: Found, cell: Cell) -> dict[str, float]:
    """How soon a method's models know again what they forgot, in units of Retrain's of the same seeds; nothing where
    one of those did not get there in the time."""
    name = "Retrain" if cell.method == AGAIN else cell.method
    own, twins = (relearned.get(cell._replace(method=which)) for which in (name, "Retrain"))
    if own is None or twins is None or "passes" not in own.metrics or not sum(twins.metrics["passes"]):
        return {}
    passes, reached = own.metrics["passes"], own.metrics["reached"]
    if not all(twins.metrics["reached"][: len(passes)]):  # a unit that was cut short is none
        return {}
    # exact, since what Python's own sum rounds to depends on its version
    ratio = math.fsum(passes) / math.fsum(twins.metrics["passes"][: len(passes)])
    return {"relearn": ratio, "relearn_capped": 1 - sum(reached) / len(reached)}


def row_of(judged: Mapping[str, Any], own: Sequence[Chunk], again: Sequence[Chunk]) -> dict[str, Any]:
    """The numbers of one method in one place: from the judges', and the runs of its models and of the twins."""
    if lost := [why for why in REASONS if why in judged]:
        return {"reason": judged[lost[0]] + _in_how_many(own, lost[0]), "lost": lost[0]}
    found = {name: value for name, value in judged.items() if name not in ("klom_draws", "example")}
    draws = judged["klom_draws"]
    infinite = {name: math.inf for name, value in found.items() if value is None}
    costs = {name: _mean(own, name) for name in ("bytes", "passes", "rounds", "storage", "seconds")}
    low, high = _interval(judged)
    return {
        **found,
        **infinite,
        "low": low,
        "high": high,
        "draws": None if None in draws else tuple(np.log(draws)),
        "gave_up": 1 - _mean(own, "reached"),
        "excess": found["epsilon"] - found["epsilon_null"],
        **{part: _mean(own, part) for part in ("test", "forget", "retain", "recovery")},
        "test_retrain": _mean(again, "test"),
        "forget_retrain": _mean(again, "forget"),
        "distance": _mean(own, "distance") if own[0][0]["distance"] else None,
        **(
            {"backdoor": _mean(own, "backdoor"), "backdoor_retrain": _mean(again, "backdoor")}
            if "backdoor" in own[0][0]
            else {}
        ),
        **costs,
        "passes": costs["passes"] / own[0][0]["samples"],
        "price": costs["passes"] / _mean(again, "passes"),
    }


def _in_how_many(own: Sequence[Chunk], why: str) -> str:
    """Of how many runs that is true, where it is not of all: a few diverged models are enough for no result."""
    lost = sum(why in metrics for metrics, _ in own)
    return "" if lost == len(own) else f" (in {lost} of {len(own)} runs of {own[0][1]} models)"


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """With `left`, `left_low`, `left_high`: how much of doing nothing's distance from Retrain is left, in percent.

    On the scale of log KLoM, from the floor (0) to doing nothing in the same place (100), so that places with more and
    with less to forget count alike; above 100 is farther away than doing nothing. `left_draws`: how far each of the
    resampled crowds lies from their mean, on that scale. An ensemble's doing nothing is an ensemble.

    The floor is that of doing nothing's crowd, for everybody: fewer models have a higher one, from which the same
    distance would look nearer. What they are above their own floor, or below it by chance, is counted from there.
    Intervals are of a method's own models. Floor and doing nothing are taken as known, which matters where they are
    near each other.
    """
    if "klom_forget" not in frame:
        return frame
    klom, own = (frame[name].to_numpy(float) for name in ("klom_forget", "floor"))
    common = doing_nothing(frame, frame.floor, of_its_kind=False)
    on_scale = np.maximum(klom - own + common, LEAST * common)
    with np.errstate(divide="ignore", invalid="ignore"):
        span = np.log(doing_nothing(frame, pd.Series(on_scale, frame.index)) / common)
        left = 100 * np.log(on_scale / common) / span
        # how much faster the logarithm grows there than KLoM's own, in which models were resampled
        steeper = np.where(np.isfinite(klom), klom / on_scale, 1.0)
        reach = 100 * np.log(frame.high.to_numpy(float) / klom) * steeper / span
    reach = np.where(np.isinf(left), 0.0, reach)
    of = {"left": left, "left_low": left - reach, "left_high": left + reach}
    apart = [tuple(100 * slope * (np.array(draws) - np.mean(draws)) / scale) if isinstance(draws, tuple) else None
             for draws, slope, scale in zip(frame.draws, steeper, span, strict=True)]  # fmt: skip
    found = frame.drop(columns="draws").assign(**of, left_draws=pd.Series(apart, frame.index))
    return _where_relearning_tells(_beyond_again(found))


def _beyond_again(frame: pd.DataFrame) -> pd.DataFrame:
    """With `excess` less that of the second retraining in the same place, which is none's merit or fault."""
    if "excess" not in frame:
        return frame
    place = ["setting", "request"]
    again = frame[frame.method == AGAIN].set_index(place).excess.astype(float)
    own = again.reindex(pd.MultiIndex.from_frame(frame[place])).fillna(0.0).to_numpy()
    return frame.assign(excess=frame.excess - own)


def as_good(frame: pd.DataFrame) -> pd.Series:
    """Which rows' models these judges do not tell from retrained ones (bool): KLoM on forgotten and on retained data at
    most `AS_GOOD` floors, and no model that gave up."""
    near = frame[["klom_forget", "klom_retain"]].astype(float).le(AS_GOOD * frame.floor, axis=0).all(axis=1)
    return near & ~(frame.gave_up > 0)


def doing_nothing(frame: pd.DataFrame, values: pd.Series, *, of_its_kind: bool = True) -> np.ndarray:
    """Of each row, what `values` (of the same rows) are where nothing is done in the same place.

    of_its_kind: to an ensemble beside ensembles, if that is there.
    """
    places = ["setting", "request", "method"]
    known = values.astype(float).set_axis(pd.MultiIndex.from_frame(frame[places]))
    beside = OWN_NOTHING if of_its_kind else {}
    own = [
        here if (here := (s, r, beside.get(m, NOTHING))) in known.index else (s, r, NOTHING)
        for s, r, m in frame[places].itertuples(index=False)
    ]
    return known.reindex(pd.MultiIndex.from_tuples(own)).to_numpy(float)


def above_floor(frame: pd.DataFrame) -> np.ndarray:
    """KLoM above the floor in percent of doing nothing's, of each row: the scale of `left` without its logarithm."""
    excess = (frame.klom_forget - frame.floor).astype(float)
    return 100 * excess.to_numpy() / doing_nothing(frame, excess)


def _where_relearning_tells(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the numbers of learning again in places where its controls are wrong: doing nothing must know the data
    again sooner than Retrain, and random weights no sooner."""
    if "relearn" not in frame:
        return frame
    by_place = frame.set_index(["setting", "request"])
    known, lost = (by_place.relearn[by_place.method == name] for name in (NOTHING, DESTROYED))
    wrong = {*known[~(known <= KNOWS)].index, *lost[~(lost >= KNOWS_NOT)].index}
    there = np.array([place not in wrong for place in by_place.index])
    return frame.assign(**{name: frame[name].where(there) for name in ("relearn", "relearn_capped")})


def _chunks(unlearned: Found, cell: Cell, name: str) -> list[Chunk]:
    """The runs of a method in the cell's place and crowd, of the seeds that are judged."""
    place = (cell.setting, cell.request, name, cell.label)
    own = [r for c, r in unlearned.items() if (c.setting, c.request, c.method, c.label) == place]
    return [(r.metrics, r.config["models"]) for r in own if r.config["first_seed"] < YARDSTICK]


def _mean(chunks: Sequence[Chunk], name: str) -> float:
    """Over all models of all chunks, of lists with a number per model as of means."""
    means = [float(np.mean(metrics[name])) for metrics, _ in chunks]
    return float(np.average(means, weights=[models for _, models in chunks]))


def _interval(judged: Mapping[str, Any]) -> tuple[float, float]:
    """95 % of KLoM on forgotten examples, from its resampled logarithms: it is a ratio, and never below 0. Near the
    floor it covers 91 % with 64 models a side and 80 % with 16, in simulations with examples that go together.

    Resampled sets hold models twice, which moves the level of KLoM; their spread is what is taken of them.
    """
    value, draws = judged["klom_forget"], judged["klom_draws"]
    if value is None or None in draws:
        return (math.inf, math.inf) if value is None else (0.0, math.inf)
    reach = 1.96 * float(np.std(np.log(draws)))
    return value * math.exp(-reach), value * math.exp(reach)


# --- controls --------------------------------------------------------------------------------------------------------


def wrong_controls(frame: pd.DataFrame) -> list[str]:
    """What is wrong with the controls, place by place; empty if they come out as they must.

    Doing nothing (an ensemble's, too), a constant output and random weights must fail: be told from retrained models,
    the whole interval of KLoM above twice the floor. A second retraining must pass: KLoM at most twice the floor.
    """
    told = []
    for (setting, request), rows in frame.groupby(["setting", "request"], sort=False):
        place, by_name = f"{setting}, {request}", rows.set_index("method")
        own = [ENSEMBLES] if ENSEMBLES in by_name.index else []  # only where there is an ensemble to be judged
        for name in (*MUST_FAIL, *own, AGAIN):
            if name not in by_name.index or pd.isna(by_name.klom_forget[name]):
                told.append(f"{place}: {shown(name)} has not been judged")
                continue
            row = by_name.loc[name]
            allowed = AS_GOOD * row.floor
            if name == AGAIN and not row.klom_forget <= allowed:
                told.append(f"{place}: {shown(name)} fails, with KLoM {row.klom_forget:.3g} above {allowed:.3g}")
            if name != AGAIN and not row.low > allowed:
                told.append(f"{place}: {shown(name)} passes, with KLoM down to {row.low:.3g}, not above {allowed:.3g}")
    return told


def check_controls(frame: pd.DataFrame) -> None:
    """Raise ControlsFailed, naming what is wrong, unless all controls come out as they must."""
    if wrong := wrong_controls(frame):
        raise ControlsFailed(
            f"controls: {len(wrong)} did not come out as they must, so nothing is ranked. {'; '.join(wrong[:5])}"
        )


# --- ranking ---------------------------------------------------------------------------------------------------------


def ranking(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per method, those nearest to Retrain first: means over the places where it has a result.

    `left` with its 95 % interval over models (of all places at once: their trainings share seeds) is over requests
    of clients and of samples; `left_classes` over those of whole classes. They are apart because a class that goes
    leaves such a hole that random weights, too, are nearer to Retrain than doing nothing; where nothing else is
    asked for, `left` is of classes. `tied`: not told from the one before it, place by place. `always_nearer`: in
    each of `left`'s places below 100 with its interval, and diverged in none; costs and lost accuracy are of the
    same places. `klom_*`: geometric means; `gave_up`: of its models; `places`: where it has a result, of how many.
    Methods with no result come last.
    Raises ControlsFailed where the controls are wrong.
    """
    check_controls(frame)
    places = len(frame.groupby(["setting", "request"]))
    only_classes = bool(of_classes(frame).all())
    rows = []
    for name, own in frame.groupby("method", sort=False):
        there = own[own.klom_forget.notna()]
        known = about(str(name))
        row: dict[str, Any] = {
            "method": name,
            "guarantee": "none" if known is None else known.guarantee,
            "places": len(there),
            "of": places,
        }
        if len(there):
            row |= {part: _geometric(there[part]) for part in ("klom_forget", "klom_retain", "klom_test", "floor")}
            classes = there[of_classes(there)]
            others = there if only_classes else there[~of_classes(there)]
            row["left"], (row["low"], row["high"]) = float(others.left.mean()), _mean_interval(others)
            row["left_classes"] = float(classes.left.mean())
            row["classes_low"], row["classes_high"] = _mean_interval(classes)
            diverged = "lost" in own and bool((own.lost == "diverged").any())
            row["always_nearer"] = bool((others.left_high < 100).all()) and not diverged
            means: tuple[str, ...] = ("gave_up", "auc", "tpr_1", "tpr_01", "rmia", "excess", "exposure", "models")
            if "relearn" in there:  # over places where there is something to learn again
                means += ("relearn", "relearn_capped")
            costs = ("price", "passes", "bytes", "storage", "seconds")
            row |= {mean: float(there[mean].astype(float).mean()) for mean in means}
            row |= {cost: float(others[cost].astype(float).mean()) for cost in costs}
            row["lost"] = float((others.test_retrain - others.test).astype(float).mean())
            row["forget_gap"] = float((there.forget - there.forget_retrain).astype(float).abs().mean())
            row["as_good"] = int(as_good(there).sum())
        rows.append(row)
    ranked = pd.DataFrame(rows).sort_values("left", kind="stable", na_position="last").reset_index(drop=True)
    counted = frame if only_classes else frame[~of_classes(frame)]
    return ranked.assign(tied=_tied(counted, list(ranked.method)))


def _tied(frame: pd.DataFrame, names: Sequence[str]) -> list[bool]:
    """Whether each method's distance is told from that of the one before it: paired over the places that both have, by
    a t interval, since places differ by more than crowds of models do."""
    left = frame.pivot_table(index=["setting", "request"], columns="method", values="left", dropna=False)
    tied = [False]
    for before, after in pairwise(names):
        apart = (left[after] - left[before]).replace([np.inf, -np.inf], np.nan).dropna()
        infinite = [bool(np.isinf(left[name]).any()) for name in (before, after)]
        low = float(interval_of(apart)[0]) if len(apart) > 1 else -math.inf
        alone = infinite == [False, True]  # like no retrained models in some place, where the one above is
        tied.append(all(infinite) or not (left[after].isna().all() or alone or low > 0))
    return tied


def backdoors_tell(frame: pd.DataFrame) -> bool:
    """Does every backdoor stay where nothing is done, and leave with retraining? True where nobody carries one."""
    if "backdoor" not in frame:
        return True
    marked = frame[frame.backdoor.notna()]
    stays, leaves = (marked.backdoor[marked.method == name] for name in (NOTHING, AGAIN))
    return bool((stays > STAYS).all() and (leaves < LEAVES).all())


def with_a_server(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of places with a server and nothing else, which are ranked together."""
    return frame[frame.setting.map(world_of) == SERVER].reset_index(drop=True)


def of_classes(frame: pd.DataFrame) -> pd.Series:
    """Which rows are of a request to forget whole classes (bool)."""
    return frame.request.map(lambda request: Request.parse(request).kind == "class").astype(bool)


def _geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values.astype(float)).mean()))


def _mean_interval(there: pd.DataFrame) -> tuple[float, float]:
    """95 % of the mean of `left` over places; nan without any.

    Draw by draw: places of one setting have the same originals, and what moves one of them moves the others. Of a
    frame read from a file, which has no draws, as if one and the same thing moved all.
    """
    middle = float(there.left.mean())
    if not len(there):
        return (math.nan, math.nan)
    if not np.isfinite(there[["left_low", "left_high"]].astype(float)).all(axis=None):
        return (math.inf, math.inf) if math.isinf(middle) else (-math.inf, math.inf)
    if "left_draws" in there:
        reach = 1.96 * float(np.std(np.mean(np.stack(there.left_draws.to_list()), axis=0)))
    else:
        reach = float((there.left_high - there.left_low).astype(float).mean()) / 2
    return middle - reach, middle + reach
