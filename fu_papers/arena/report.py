"""One HTML file about a federation of one's own: request, methods, price, forgetting, controls, verdict, hashes.

Self-contained: pictures are in it, nothing is loaded from anywhere.
"""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from fu_papers.arena import figures, results, tables
from fu_papers.arena.own import REFERENCE_JUDGE
from fu_papers.lab.files import written_atomically
from fu_papers.look import style
from fu_papers.pictures import DPI

STYLE = """
body { font-family: sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 85%; margin: 1em 0; }
th, td { text-align: left; padding: 0.25em 0.7em; border-bottom: 1px solid #ddd; }
.verdict { background: #eef5ee; padding: 0.8em 1em; border-left: 4px solid #00876c; }
.wrong { background: #fdece9; padding: 0.8em 1em; border-left: 4px solid #b22222; }
img { max-width: 100%; } code { font-size: 90%; }
"""
JUDGED_BY = (
    "Every method made the same models forget. They are compared, as crowds, with models retrained without the data: "
    "KLoM is the divergence of their margins, example by example; U-LiRA an attacker who knows both crowds; the excess "
    "ε the least that his errors leave possible, beyond a perfect method's. “Left” is what is left of doing nothing's "
    "distance: 0 % is Retrain."
)
NOT_RETRAINED = (
    "Nobody was retrained, so it cannot be said whether the models are like those that never saw the data. The "
    "reference judge tells forgotten samples from unseen ones by the margin of a single model: AUC 0.5 is chance. That "
    "is necessary for having forgotten, not sufficient. Rounds of recovery aimed at the original's accuracy."
)


def write_report(frame: pd.DataFrame, path: Path, title: str = "Who wants out?") -> Path:
    """The report of a frame that `compare` returned with all judges, as one HTML file."""
    about = frame.attrs["about"]
    parts = [f"<h1>{html.escape(title)}</h1>", _facts(about)]
    parts += [f"<p>{JUDGED_BY if about['retrained'] else NOT_RETRAINED}</p>"]
    for request in frame.request.unique():
        here = frame[frame.request == request]
        parts.append(f"<h2>{html.escape(str(request))}</h2>")
        parts += _compared(here, str(request)) if about["retrained"] else [_table(_reference(here))]
        parts.append(_refusals(here))
    parts.append("<h2>Hashes of the crowds of models (sha256 of their parameters)</h2>")
    parts.append(_table(pd.DataFrame(list(about["hashes"].items()), columns=["models", "sha256"])))
    text = f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
    text += f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    with written_atomically(path) as part:
        part.write_bytes(text.encode())
    return path


def verdict(frame: pd.DataFrame, request: str) -> str:
    """One sentence on one request: whom to take, at which price. Raises ControlsFailed where nobody can tell."""
    here = frame[frame.request == request]
    ranked = results.ranking(here)
    ranked = ranked[(ranked.places > 0) & ~ranked.method.isin(figures.CONTROLS)]
    if not len(ranked):
        return "No method could serve the request: retrain."
    best = ranked.iloc[0]
    price = f"{tables.number(100 * best.price)} % of the passes that retraining takes"
    if best.as_good:
        return f"{best.method}: {best.models:.0f} of its models are not told from retrained ones, for {price}."
    left = tables.interval(best.left, best.low, best.high)
    if best.high < 100:
        return f"Retrain if you can. The nearest is {best.method}: {left} % of the distance is left, for {price}."
    return (
        f"Retrain. No method's models are nearer to retrained ones than doing nothing (best: {best.method}, {left} %)."
    )


def _compared(here: pd.DataFrame, request: str) -> list[str]:
    if wrong := results.wrong_controls(here):
        told = "".join(f"<li>{html.escape(one)}</li>" for one in wrong)
        sentence = "The controls did not come out as they must, so nothing is ranked here. More models would tell."
        return [f"<div class='wrong'><p>{sentence}</p><ul>{told}</ul></div>"]
    ranked = results.ranking(here)
    return [
        f"<p class='verdict'>{html.escape(verdict(here, request))}</p>",
        _picture(ranked),
        _table(tables.ranking_table(ranked)),
        "<p>Controls: doing nothing, a constant output and random weights fail, a second retraining passes.</p>",
    ]


def _reference(here: pd.DataFrame) -> pd.DataFrame:
    there = here[here[REFERENCE_JUDGE].notna()]
    rows = [
        {
            "method": results.shown(row["method"]),
            "forgotten told from unseen (AUC)": f"{row[REFERENCE_JUDGE]:.3f}",
            "forget acc. %": f"{row['forget']:.1f}",
            "test acc. %": f"{row['test']:.1f}",
            "passes over the data": tables.number(row["passes"]),
            "MB sent": tables.number(row["bytes"] / tables.MEGABYTE),
            "MB kept": tables.number(row["storage"] / tables.MEGABYTE),
        }
        for row in there.to_dict("records")
    ]
    return pd.DataFrame(rows)


def _refusals(here: pd.DataFrame) -> str:
    if "reason" not in here or not here.reason.notna().any():
        return ""
    lost = here[here.reason.notna()]
    told = "".join(f"<li>{html.escape(str(r.method))}: {html.escape(str(r.reason))}</li>" for r in lost.itertuples())
    return f"<p>Could not take part, in their own words:</p><ul>{told}</ul>"


def _facts(about: dict[str, Any]) -> str:
    facts = {name: value for name, value in about.items() if name not in ("hashes", "retrained")}
    return _table(pd.DataFrame(list(facts.items()), columns=["", "value"]))


def _picture(ranked: pd.DataFrame) -> str:
    with style():
        fig = figures.map_figure(ranked)
        drawn = io.BytesIO()
        fig.savefig(drawn, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
        plt.close(fig)
    data = base64.b64encode(drawn.getvalue()).decode()
    told = html.escape(str(fig.get_label()))
    return f"<img alt='forgetting against cost' src='data:image/png;base64,{data}'><p>{told}</p>"


def _table(frame: pd.DataFrame) -> str:
    return str(frame.to_html(index=False, border=0))
