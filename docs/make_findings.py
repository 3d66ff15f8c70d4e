"""Write the tables of docs/findings.md: `python docs/make_findings.py`.

Each stands between two comments and is computed from the tables that lie beside the committed figures of the profile
`workstation`; tests/test_findings.py keeps the page in step. What a table cannot say stands in the text below it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from fu_papers.arena.tables import net_markdown
from fu_papers.evidence import for_means, mostly_gave_up
from fu_papers.intervals import crossed
from fu_papers.look import read_table
from fu_papers.markdown import filled, markdown_table
from fu_papers.problems import dataset_name, dataset_title

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "findings.md"
FIGURES = ROOT / "figures" / "workstation"
FASHION = "fashion_mnist"
SWEPT = {"/iid/": "alike clients", "/dirichlet": "clients that differ"}  # part of a setting -> who holds what
DASH = "–"
FLOOR, NOTHING, RANDOM = "a second Retrain (noise floor)", "doing nothing", "random weights"


def findings_page() -> str:
    """docs/findings.md with its tables as the committed records have them."""
    return filled(PAGE.read_text(encoding="utf-8"), lambda name: TABLES[name]())


def puf() -> str:
    """One client leaves, of those who hold alike data of Fashion-MNIST and of those who do not."""
    runs = _puf_runs("clients")
    return _puf_table({clients: runs[runs.setting.str.startswith(FASHION + split)] for split, clients in SWEPT.items()})


def puf_few() -> str:
    """Half of a client's samples leave, and two clients at once."""
    return _puf_table({"half of a client's samples": _puf_runs("samples"), "two clients": _puf_runs("pairs")})


def puf_cifar10() -> str:
    """One client leaves, of CIFAR-10."""
    runs = _puf_runs("clients")
    return _puf_table({"CIFAR-10": runs[runs.setting.str.startswith("cifar10/")]})


def _puf_runs(scenario: str) -> pd.DataFrame:
    """The scenario's runs under the paper's stop rule, each method as it was chosen."""
    runs, _, _ = read_table(FIGURES / "puf" / "runs.csv")
    return runs[(runs.scenario == scenario) & (runs.stop == "test") & runs.variant.isna()]


def _puf_table(blocks: dict[str, pd.DataFrame]) -> str:
    """Per method and block: points off Retrain on the target's images, runs that gave up, rounds of recovery, and what
    was sent in all, the method's own rounds included, as a share of retraining's bytes. The first block's nearest come
    first, who mostly gave up last."""
    head = ["", *(part for title in blocks for part in (f"{title}: points off Retrain", "gave up", "rounds (sent)"))]
    rows = []
    for method in pd.concat(blocks.values()).method.unique():
        if method != "Retrain":
            own = [runs[runs.method == method] for runs in blocks.values()]
            cells = [cell for runs in own for cell in _puf_cells(runs)]
            rows.append((_mean_off(own[0]), [_puf_name(str(method)), *cells]))
    return markdown_table(head, [cells for _, cells in sorted(rows, key=lambda row: row[0])])


def _mean_off(runs: pd.DataFrame) -> float:
    """What decides a method's place: infinity for who was not run or mostly gave up."""
    there, _ = for_means(runs)
    return float(there.delta_forget.mean()) if len(there) else float("inf")


def _puf_cells(runs: pd.DataFrame) -> list[str]:
    there, told = for_means(runs)
    gave_up = told.removeprefix("gave up (").removesuffix(")")
    if there.empty:  # nobody ran it there, or a mean of those who are left would be of the easy cases
        return [DASH, gave_up, DASH]
    off, rounds, sent = crossed(there, value="delta_forget"), there.rounds.mean(), (100 / there.bytes_gain).mean()
    # a distance of accuracies ends at 0 and 100, wherever an interval of its mean would; the floor's share trainings
    interval = "" if (runs.method == "Retrain again").all() else f" [{max(off.low, 0):.1f}, {min(off.high, 100):.1f}]"
    return [
        f"{off.effect:.1f}{interval}",
        gave_up,
        DASH if pd.isna(rounds) else f"{rounds:.1f} ({sent:.0f} %)",
    ]


def puf_sweep() -> str:
    """How hard to push: points off Retrain, rounds and runs that gave up by eta_u, of those that came back."""
    swept, _, _ = read_table(FIGURES / "puf" / "sweep.csv")
    swept = swept[(swept.scenario == "clients") & (swept.stop == "test")]
    runs, _, _ = read_table(FIGURES / "puf" / "runs.csv")
    runs = runs[(runs.scenario == "clients") & (runs.stop == "test")]
    head, rows = ["", "η_u"], []
    for clients in SWEPT.values():
        head += [f"{clients}: points off Retrain", "gave up", "rounds"]
    for (method, variant), points in swept.groupby(["method", "variant"], sort=False):
        row = [method, variant.partition(",")[0].removeprefix("eta_u=")]
        for split in SWEPT:
            (point,) = points[points.setting.str.contains(split)].itertuples()
            row += _sweep_cells(point.n, point.gave_up, point.delta_forget_mean, point.rounds_mean)
        rows.append(row)
    for control in ("Retrain again", "Original", "Destroyed"):
        row = [_puf_name(control), ""]
        for split in SWEPT:
            known = runs[(runs.method == control) & runs.setting.str.startswith(FASHION + split)]
            row += [f"{known.delta_forget.mean():.1f}", "", DASH]
        rows.append(row)
    return markdown_table(head, rows)


def _sweep_cells(n: int, gave_up: int, off: float, rounds: float) -> list[str]:
    if mostly_gave_up(gave_up, n):  # as in Fig. 5: the mean of a few survivors says nothing of the rate
        return [DASH, f"{gave_up:.0f} of {n:.0f}", DASH]
    return [f"{off:.1f}", f"{gave_up:.0f} of {n:.0f}" if gave_up else "", f"{rounds:.1f}"]


def _puf_name(method: str) -> str:
    names = {"Original": NOTHING, "Retrain again": FLOOR, "Destroyed": RANDOM, "Natural": "eight ordinary rounds"}
    return names.get(method, method)


def hf_kcu() -> str:
    """Per method on two data sets: accuracy on the forgotten and on test images, KL to Retrain, passes saved."""
    methods, _, _ = read_table(FIGURES / "hf_kcu" / "table_2.csv")
    columns = {"forget acc. %": "known of the forgotten, %", "test acc. %": "test, %"}
    columns |= {"KL on the forgotten": "KL to Retrain", "× fewer passes": "times fewer passes"}
    places = ("Fashion-MNIST, Dirichlet 0.5, SimpleCNN", "CIFAR-10, Dirichlet 0.5, SimpleCNN")
    blocks = [methods[methods["data / net"] == place].set_index("method") for place in places]
    known = pd.DataFrame(
        {
            name: {"forget acc. %": block["Retrain's forget"].iloc[0], "test acc. %": block["Retrain's"].iloc[0]}
            for name, block in zip(places, blocks, strict=True)
        }
    )
    rows = [["Retrain", *(str(known.at[c, name]) if c in known.index else DASH for name in places for c in columns)]]
    for method in blocks[0].index:
        if method != "Destroyed":
            rows.append([method, *(str(block.at[method, c]) for block in blocks for c in columns)])
    heads = [f"{name.split(',')[0]}: {shown}" for name in places for shown in columns.values()]
    return markdown_table(["", *heads], rows)


def fedora() -> str:
    """Per setting and method: points off Retrain on what is forgotten, in brackets test accuracy above Retrain's.

    Means over three seeds. Last how many times fewer samples FedORA passes than retraining, mean against mean.
    """
    runs, _, _ = read_table(FIGURES / "fedora" / "runs.csv")
    runs = runs[runs.group == "main"]
    shown = {"Original": NOTHING, "Retrain again": "a second Retrain", "FedORA": "FedORA"}
    shown |= {
        "FedORA reverse": "FedORA, reverse divergence",
        "ICO": "ICO",
        "CVFU": "CVFU",
        "GA": "GA",
        "Destroyed": "random weights",
    }
    rows = []
    for (data, request), own in runs.groupby(["dataset", "request"], sort=False):
        kind, classes, percent = str(request).split("-")
        what = f"{classes} whole {kind}" if percent == "100" else f"{percent} % of {classes} {kind}"
        what = what.replace("of 1 classes", "of a class")
        cells = [_fedora_cell(own[own.label == label]) for label in shown]
        ours = own[own.label == "FedORA"]
        saved = f"{ours.retrain_images.mean() / ours.images.mean():.1f}"
        rows.append([f"{dataset_name(str(data))}, {what}", *cells, saved])
    return markdown_table(["", *shown.values(), "times fewer samples"], rows)


def _fedora_cell(runs: pd.DataFrame) -> str:
    lost = f", {int(runs.diverged.sum())} diverged" if runs.diverged.any() else ""
    there = runs[~runs.diverged.astype(bool)]
    off = (there.forget - there.forget_retrain).abs().mean()
    return f"{off:.1f} ({(there.test - there.test_retrain).mean():+z.1f}{lost})"


def certified_dfl() -> str:
    """Per request: what is known of the forgotten, in brackets the distance to exact retraining (doing nothing: 1).

    Means over seeds, and over both graphs where there are two. Nets have no exact retraining.
    """
    runs, _, _ = read_table(FIGURES / "certified_dfl" / "runs.csv")
    runs = runs[runs.group == "tables"]
    shown = {"Original": NOTHING, "Fine-tune": "one ordinary round", "DU printed": "DU as printed"}
    shown |= {"DU": "DU corrected", "Retrain": "Retrain", "Retrain again": "a second Retrain"}
    rows = []
    for (data, request, split), own in runs.groupby(["dataset", "request", "split"], sort=False):
        what = {"sample": "samples", "class": "a class", "client": "a client"}[str(request)]
        clients = "alike clients" if split == "iid" else "clients that differ"
        cells = [_certified_cell(own[own.method == method]) for method in shown]
        rows.append([f"{dataset_title(str(data))}, {what}, {clients}", *cells])
    return markdown_table(["", *shown.values()], rows)


def _certified_cell(runs: pd.DataFrame) -> str:
    known, left = f"{runs.forget.mean():.1f}", runs.exact_gap.mean()
    return known if pd.isna(left) else f"{known} ({left:.2g})"


def tiny_cnn() -> str:
    """The arena's places with a small convolutional net."""
    runs, _, _ = read_table(FIGURES / "arena" / "runs.csv")
    return net_markdown(runs, "tiny_cnn")


TABLES: dict[str, Callable[[], str]] = {
    "puf": puf,
    "puf_few": puf_few,
    "puf_sweep": puf_sweep,
    "puf_cifar10": puf_cifar10,
    "hf_kcu": hf_kcu,
    "fedora": fedora,
    "certified_dfl": certified_dfl,
    "tiny_cnn": tiny_cnn,
}

if __name__ == "__main__":
    PAGE.write_text(findings_page(), encoding="utf-8")
