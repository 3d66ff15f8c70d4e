"""What notebook 05 shows beside figures and tables: a paragraph per method, and which one to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown, display

from fu_core.request import Request
from fu_core.unlearning.method import EXCHANGES, GUARANTEES, KINDS, Method
from fu_core.unlearning.method import methods as registered_methods
from fu_papers.arena.figures import place_line
from fu_papers.arena.results import NOTHING, about, of_classes, shown
from fu_papers.arena.tables import MEGABYTE, gave_up, interval, needs_of, number
from fu_papers.arena.worlds import BACKDOOR, Where
from fu_papers.controls import CONTROLS
from fu_papers.explorable import labelled
from fu_papers.links import MARKDOWN_LINK, linked
from fu_papers.look import ROWS, read_table, show_table
from fu_papers.problem_figures import Descriptions
from fu_papers.problems import dataset_name

WHICH_COLUMNS = ("told nearer in", "gave up", "passes, % of Retrain", "test acc. lost")
NONE_FITS = "No method that has been measured here meets all five. Retraining always does."


def kind_of(request: str) -> str:
    """Which of KINDS a request's text is of."""
    read = Request.parse(request)
    if read.kind == "client":
        return "client" if len(read.clients) == 1 else "clients"
    return {"class": "classes"}.get(read.kind, "samples")


def source_of(descriptions: Descriptions, settings: Iterable[str]) -> str:
    """The line under what shows only these settings, of whatever world: their data and their nets.

    descriptions: of the settings with a server, by their text; a world without one there has the same data.
    """
    lines = []
    for setting in settings:
        dataset, _, net = setting.split("/")[:3]
        same = (
            str(record.metrics["source"]) for text, record in descriptions.items() if text.startswith(f"{dataset}/")
        )
        lines.append(f"{next(same, dataset_name(dataset))}; net: {net}")
    return " | ".join(dict.fromkeys(lines))


# --- a paragraph per method ------------------------------------------------------------------------------------------


def paragraphs(frame: pd.DataFrame, ranked: pd.DataFrame) -> str:
    """Markdown: what each method that is no control is good at and fails at, every number of it from the frames."""
    controls = [*CONTROLS, *(name for name in ranked.method if about(str(name)) is None)]
    told = [paragraph(frame, row) for row in ranked.to_dict("records") if row["method"] not in controls]
    return "\n\n".join(told)


def paragraph(frame: pd.DataFrame, row: Mapping[Any, Any]) -> str:
    """One method's: `row` is its line of the ranking."""
    name = row["method"]
    known = about(name)
    assert known is not None
    own = frame[frame.method == name]
    there = own[own.klom_forget.notna()]
    said = [f"**{name}** ({known.paper}; guarantee: {known.guarantee})."]
    if len(there):
        said.append(_distance(row, there))
        said.append(_best_and_worst(there))
        said.append(_side_effects(row))
        kept = row["storage"] / MEGABYTE
        said.append(
            f"It takes {number(100 * row['price'])} % of the passes of retraining and sends "
            f"{number(row['bytes'] / MEGABYTE)} MB; kept for it: {number(kept)} MB."
        )
    if needs := needs_of(known):
        said.append(f"It needs {', '.join(needs)}.")
    lost = own[own.klom_forget.isna()]
    for reason, places in lost.groupby("reason", sort=False) if len(lost) else ():
        requests = ", ".join(dict.fromkeys(places.request))
        verb = "Refuses" if set(places.lost) == {"unsupported"} else "Diverged at"
        said.append(f"{verb} {requests}: “{reason}”.")
    return linked(" ".join(said), MARKDOWN_LINK)


def _distance(row: Mapping[Any, Any], there: pd.DataFrame) -> str:
    """Which side of doing nothing a method is on: of the mean, by its interval over models, and place by place."""
    left = interval(row["left"], row["low"], row["high"])
    if row["as_good"] == row["places"]:
        return f"In all of {row['places']} places within twice the noise floor, on forgotten and on retained data."
    classes = interval(row["left_classes"], row["classes_low"], row["classes_high"])
    besides = "" if classes in ("–", left) else f" Where whole classes go, {classes} %."
    if left == "–":
        return f"Serves whole classes only: {classes} % of the distance is left."
    counted = there if of_classes(there).all() else there[~of_classes(there)]
    nearer, n = int((counted.left < 100).sum()), len(counted)
    mean, places = (" in the mean", "places") if n > 1 else ("", "place")
    if row["high"] < 100:
        said = f"Nearer to Retrain than doing nothing{mean}, and in {nearer} of {n} {places}"
    elif row["low"] > 100:
        said = f"Farther from Retrain than doing nothing{mean}, and in {n - nearer} of {n} {places}"
    else:
        said = f"Not told apart from doing nothing{mean}, and nearer in {nearer} of {n} {places}"
    return f"{said}: {left} % of the distance is left.{besides}"


def _best_and_worst(there: pd.DataFrame) -> str:
    ordered = there.sort_values("left", kind="stable")

    def place(row: pd.Series) -> str:
        left = interval(float(row.left), float(row.left_low), float(row.left_high)).split(" [")[0]
        return f"{row.request} on {place_line(row.setting)} ({left} %)"

    if len(ordered) == 1:
        return f"Seen in one place: {place(ordered.iloc[0])}."
    return f"Best: {place(ordered.iloc[0])}; worst: {place(ordered.iloc[-1])}."


def _side_effects(row: Mapping[Any, Any]) -> str:
    lost = row["lost"]
    accuracy = f"{abs(lost):.1f} points of test accuracy {'below' if lost > 0 else 'above'} Retrain"
    return f"Models end {accuracy}; U-LiRA tells a forgotten example with an AUC of {row['auc']:.2f}."


# --- which one? ------------------------------------------------------------------------------------------------------


def which(
    frame: pd.DataFrame, *, exchange: str, labels: bool, history: bool, guarantee: str, kind: str
) -> pd.DataFrame:
    """The methods that meet five demands, the nearest to Retrain at such requests first; Retrain's line is the last.

    exchange: one of EXCHANGES; labels: is the task classification, with labels? history: have updates been kept?
    guarantee: the least that is wanted, one of GUARANTEES; kind: of request, one of KINDS. "told nearer in": places
    where the whole interval over models is below doing nothing's 100.
    """
    enough = {"none": GUARANTEES, "certified": ("certified", "exact"), "exact": ("exact",)}[guarantee]
    fitting = {
        name: known
        for name, known in registered_methods().items()
        if name not in CONTROLS
        and exchange in known.exchanges
        and known.guarantee in enough
        and kind not in known.refuses
        and (labels or not known.needs.task)
        and (history or not (known.needs.history or known.needs.stateful_clients))
    }
    there = frame[[here.world != BACKDOOR and here.exchange == exchange for here in map(Where.parse, frame.setting)]]
    rows = [_suggested(there, name, known, kind) for name, known in fitting.items()]
    order = sorted(rows, key=lambda row: row["left"])
    columns = ("method", "guarantee", "left of the distance, %", *WHICH_COLUMNS)
    return pd.DataFrame([{column: row[column] for column in columns} for row in order], columns=list(columns))


def questions(runs: Path) -> None:
    """Five questions under dropdowns, and `which` methods meet the answers, from the file of all runs.

    runs: as the notebook has written it, so that nothing has to be computed before one can ask.
    """
    from ipywidgets import Checkbox, Dropdown, interact

    asked = {
        "exchange": Dropdown(options=EXCHANGES, **labelled("who exchanges models")),
        "labels": Checkbox(value=True, **labelled("classification, with labels")),
        "history": Checkbox(value=False, **labelled("updates were kept while training")),
        "guarantee": Dropdown(options=GUARANTEES, **labelled("guarantee wanted")),
        "kind": Dropdown(options=KINDS, **labelled("what is to be forgotten")),
    }
    frame, source, _ = read_table(runs)

    def answer(exchange: str, labels: bool, history: bool, guarantee: str, kind: str) -> None:
        found = which(frame, exchange=exchange, labels=labels, history=history, guarantee=guarantee, kind=kind)
        nearest = found.head(ROWS)  # a longer table would be folded
        caption = f"{exchange}, {kind}, guarantee: {guarantee}. The nearest {len(nearest)} of {len(found)}"
        display(show_table(nearest, source, caption) if len(found) else Markdown(NONE_FITS))

    interact(answer, **asked)


def _suggested(frame: pd.DataFrame, name: str, known: Method, kind: str) -> dict[str, Any]:
    own = frame[(frame.method == name) & frame.klom_forget.notna()]
    own = own[[kind_of(request) == kind for request in own.request]]
    row: dict[str, Any] = {"method": name, "guarantee": known.guarantee, "left": float("inf")}
    if not len(own):
        return {
            **row,
            "left of the distance, %": "not measured here",
            **dict.fromkeys(WHICH_COLUMNS, "–"),
        }
    left = float(own.left.astype(float).mean())
    return {
        **row,
        "left": left,
        "left of the distance, %": interval(left, left, left).split(" [")[0],
        "told nearer in": f"{int((own.left_high.astype(float) < 100).sum())} of {len(own)}",
        "gave up": gave_up(known, float(own.gave_up.astype(float).mean())),
        "passes, % of Retrain": number(100 * float(own.price.astype(float).mean())),
        "test acc. lost": f"{float((own.test_retrain - own.test).astype(float).mean()):.1f}",
    }


DEFAULT: dict[str, Any] = {
    "exchange": "server",
    "labels": True,
    "history": False,
    "guarantee": "none",
    "kind": "client",
}


def nothing_left(frame: pd.DataFrame) -> float:
    """Doing nothing's mean KLoM over the floor, over places: how much there is to forget."""
    rows = frame[frame.method == NOTHING]
    return float((rows.klom_forget / rows.floor).astype(float).median())


__all__ = [
    "DEFAULT",
    "kind_of",
    "nothing_left",
    "paragraph",
    "paragraphs",
    "questions",
    "shown",
    "source_of",
    "which",
]
