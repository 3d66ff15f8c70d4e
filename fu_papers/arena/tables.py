"""The arena's tables, from the frames of `results` only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from fu_core.evaluation.klom import floor, klom
from fu_core.streams import stream
from fu_core.unlearning.method import Method
from fu_papers.arena.results import NOTHING, about, above_floor, check_controls, shown
from fu_papers.markdown import markdown_table
from fu_papers.problems import Setting

MEGABYTE = 1e6
REQUESTS = {"client": "one client", "clients": "several clients"}  # KINDS, where a table's word would mislead


def number(value: Any, digits: int = 3) -> str:
    """As many significant digits as a reader compares; what is beyond all comparison as such."""
    if value is None or pd.isna(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.0e}" if abs(value) >= 1e4 else f"{value:.{digits}g}"


def ranking_table(ranked: pd.DataFrame) -> pd.DataFrame:
    """The ranking as it is shown; `left` is what it is ranked by: 0 is Retrain, 100 is doing nothing.

    "classes": the same at requests to forget whole classes, which `left` leaves out.
    """
    rows: list[dict[str, Any]] = []
    for row in ranked[ranked.places > 0].to_dict("records"):
        rows.append(
            {
                "method": shown(row["method"]),
                "told from the one above": "" if not rows else "no" if row["tied"] else "yes",
                "guarantee": row["guarantee"],
                "places": f"{row['places']} of {row['of']}",
                "left of the distance, %": interval(row["left"], row["low"], row["high"]),
                "classes": interval(row["left_classes"], row["classes_low"], row["classes_high"]),
                "as Retrain": f"{row['as_good']:.0f} of {row['places']}",
                "KLoM, forgotten": number(row["klom_forget"]),
                "retained": number(row["klom_retain"]),
                "U-LiRA AUC": f"{row['auc']:.2f}",
                "found at 1 % FPR": f"{100 * row['tpr_1']:.0f} %",
                "at 0.1 %": f"{100 * row['tpr_01']:.0f} %",
                "RMIA AUC": f"{row['rmia']:.2f}",
                "excess ε": f"{row['excess']:.1f}",
                **relearned(row),
                "gave up": gave_up(about(row["method"]), row["gave_up"]),
                "forget acc. off": f"{row['forget_gap']:.1f}",
                "stayers exposed": f"{row['exposure']:+.3f}",
                "test acc. lost": f"{row['lost']:.1f}",
                "passes, % of Retrain": number(100 * row["price"]),
                "MB sent": number(row["bytes"] / MEGABYTE),
                "MB kept": number(row["storage"] / MEGABYTE),
                "seconds": number(row["seconds"], 2),
                "N": f"{row['models']:.0f}",
            }
        )
    return pd.DataFrame(rows)


def gave_up(known: Method | None, share: float) -> str:
    """The share of models that did not come back to Retrain's accuracy; "–" for who is under no such rule: controls,
    methods whose model is ready as it comes, and Natural, which has so many rounds and no more."""
    ruled = known is not None and known.recovers and known.name != "Natural"
    return f"{100 * share:.0f} %" if ruled else "–"


def interval(value: float, low: float, high: float) -> str:
    """`"37 [30, 45]"`, in whole numbers; "∞" where it is, and "–" where there is none."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if value > 1000:
        return "> 1000"
    return f"{value:z.0f} [{low:z.0f}, {high:z.0f}]"


def relearned(row: Mapping[Any, Any]) -> dict[str, str]:
    """The column of learning again, where that was measured: times as many passes as a retrained model needs.

    "≥" where some models had not got there when it ended.
    """
    if "relearn" not in row:
        return {}
    ratio, ended = row["relearn"], "≥ " if row["relearn_capped"] else ""
    return {"learned again in": "–" if pd.isna(ratio) else f"{ended}{number(ratio, 2)}"}


def request_table(frame: pd.DataFrame, setting: str, request: str) -> pd.DataFrame:
    """Every method in one place, the nearest to Retrain first; those that refuse it last, with their reason.

    In the order of what is left of doing nothing's distance, which knows that crowds of fewer models have a higher
    floor; the judges' own numbers do not.

    Raises ControlsFailed where the controls of this place are wrong.
    """
    here = frame[(frame.setting == setting) & (frame.request == request)]
    check_controls(here)
    here = here.sort_values(["left", "klom_forget"], kind="stable", na_position="last")
    rows = []
    for row in here.to_dict("records"):
        if pd.isna(row["klom_forget"]):
            rows.append({"method": shown(row["method"]), "remark": row["reason"]})
            continue
        rows.append(
            {
                "method": shown(row["method"]),
                "left, %": interval(row["left"], row["left_low"], row["left_high"]),
                "KLoM, forgotten": f"{number(row['klom_forget'])} [{number(row['low'])}, {number(row['high'])}]",
                "95th percentile": number(row["klom_forget_p95"]),
                "retained": number(row["klom_retain"]),
                "U-LiRA AUC": f"{row['auc']:.2f} [{row['auc_low']:.2f}, {row['auc_high']:.2f}]",
                "excess ε": f"{row['excess']:.1f}",
                **relearned(row),
                **({"backdoor %": f"{row['backdoor']:.1f}"} if pd.notna(row.get("backdoor")) else {}),
                "forget acc. %": f"{row['forget']:.1f}",
                "test acc. %": f"{row['test']:.1f}",
                "distance": number(row["distance"]),
                "recovery rounds": f"{row['recovery']:.1f}",
                "gave up": gave_up(about(row["method"]), row["gave_up"]),
                "passes": number(row["passes"]),
                "floor": number(row["floor"]),
                "N": f"{row['models']:.0f}",
                "remark": "",
            }
        )
    return pd.DataFrame(rows).fillna("–")


def net_markdown(frame: pd.DataFrame, net: str) -> str:
    """What is left in every place of one net, as a table for a page of text.

    Rows: those who are nearer than doing nothing in most of the places where they have a result, and ordinary rounds,
    the nearest in the mean first; above them how many floors doing nothing is away. Cells: `left` of
    `results.compared` with its interval over models, and in brackets KLoM above the floor in percent of doing
    nothing's, which is no logarithm. Last what is paid, in percent of Retrain's passes, from the cheapest place to the
    dearest.
    """
    there = frame[frame.setting.str.split("/").str[2] == net].reset_index(drop=True)
    places = list(dict.fromkeys(zip(there.setting, there.request, strict=True)))
    there = there.assign(above=above_floor(there)).set_index(["setting", "request"])
    of = {str(name): own for name, own in there.groupby("method")}
    left = {name: own.left[np.isfinite(own.left)] for name, own in of.items()}
    nearer = [name for name, values in left.items() if (values < 100).mean() > 0.5 or name == "Natural"]
    floors = of[NOTHING].klom_forget / of[NOTHING].floor
    lines = [
        [
            "what is left, %",
            *(f"{request}: {Setting.parse(setting).title}" for setting, request in places),
            "passes, %",
        ],
        ["doing nothing, in floors", *(f"{floors[place]:,.0f}" for place in places), "0"],
    ]
    for name in sorted(nearer, key=lambda name: left[name].mean()):
        cells = [_left_cell(of[name].loc[place]) if place in of[name].index else "–" for place in places]
        least, most = (f"{100 * price:.0f}" for price in (of[name].price.min(), of[name].price.max()))
        lines.append([shown(name), *cells, least if least == most else f"{least} to {most}"])
    return markdown_table(lines[0], lines[1:])


def _left_cell(row: pd.Series) -> str:
    if pd.isna(row["klom_forget"]):
        return "diverged" if row["lost"] == "diverged" else "refuses"
    return f"{interval(row['left'], row['left_low'], row['left_high'])} ({row['above']:z.0f})"


def entrants_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Who takes part, whose it is, what it needs and what it cannot serve."""
    rows = []
    for name in frame.method.unique():
        known = about(name)
        if known is None:
            rows.append({"method": shown(name), "whose": "control"})
            continue
        rows.append(
            {
                "method": shown(name),
                "whose": known.paper,
                "guarantee": known.guarantee,
                "needs": ", ".join(needs_of(known)) or "–",
                "cannot serve": ", ".join(REQUESTS.get(kind, kind) for kind in known.refuses) or "–",
                "recovers": "yes" if known.recovers else "no",
            }
        )
    return pd.DataFrame(rows).fillna("–")


def needs_of(known: Method) -> list[str]:
    """What a method needs, in the words of PUF's Table I."""
    words = {
        "history": "updates of past rounds",
        "full_participation": "everybody online",
        "stateful_clients": "clients that remember",
        "task": "classification",
        "auxiliary_data": "further data",
        "several_rounds": "several rounds",
    }
    return [told for field, told in words.items() if getattr(known.needs, field)]


def judges_agree(frame: pd.DataFrame) -> pd.DataFrame:
    """Spearman's rank correlation of the judges over all methods and places that have a result."""
    judges = {"KLoM": "klom_forget", "U-LiRA AUC": "auc", "RMIA": "rmia", "ε": "epsilon", "forget acc. gap": "gap"}
    there = frame[frame.klom_forget.notna()]
    there = there.assign(
        gap=(there.forget - there.forget_retrain).abs(), rmia=(there.rmia - 0.5).abs(), auc=(there.auc - 0.5).abs()
    )
    ranks = there[list(judges.values())].astype(float).rank()
    table = ranks.corr().round(2)
    table.columns = table.index = pd.Index(judges)
    return table.reset_index(names="judge")


def binned_table(N: int = 64, S: int = 400) -> pd.DataFrame:
    """KLoM's binned form of the literature beside the Gaussian one, on margins whose divergence is known.

    Random: normal margins (N, S), from the stream (0, "binned").
    """
    draws = stream(0, "binned")
    q, p = (torch.randn(N, S, generator=draws, dtype=torch.float64) for _ in range(2))
    low, high = q.amax(0) + 1 + torch.zeros_like(q), 20 + torch.zeros_like(q)
    cases = {
        "the same law (0 would be right)": (p, q, f"{floor(N):.3f} expected"),
        "shifted by half a standard deviation": (p + 0.5, q, "0.125 is right"),
        "constant, and far from all others": (low + 5, high, "∞ is right"),
    }
    return pd.DataFrame(
        [
            {
                "unlearned models' margins": case,
                "Gaussian KLoM": number(float(klom(one, other).mean())),
                "binned, as published": number(float(klom(one, other, form="binned", source=True).mean())),
                "what is right": right,
            }
            for case, (one, other, right) in cases.items()
        ]
    )


def saved(frame: pd.DataFrame) -> pd.DataFrame:
    """The wide frame for a CSV file: what is infinite as text that reads back."""
    return frame.drop(columns=["group", "label", "condition", "seed", "left_draws"]).replace(np.inf, "inf")
