"""PUF's figures and tables, drawn from run records only. Numbers as in the paper: Figs. 3 and 4, Table III.

Every function takes the experiment and the records of puf.run_training or puf.run_unlearning and
returns a matplotlib figure or a DataFrame; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fu_core.evaluation.costs import NOMINAL_FLOPS
from fu_core.papers.problem_figures import axes_row, spread, title
from fu_core.papers.problems import Setting
from fu_core.papers.puf import STOP_RULES
from fu_core.papers.puf_experiment import METHODS, REFERENCES, Experiment
from fu_core.records import Record
from fu_core.report import colour, linestyle, mean_spread, published, seed_band

Trainings = Mapping[tuple[str, int, int | None], Record]
Unlearnings = Mapping[tuple[str, int, int, str], Record]

# The paper's nearest setting: it has no IID results on CIFAR-10, and no other data set of ours.
PAPER_SETTING = {"iid": "CIFAR-100, IID, ResNet-18, E=1", "dirichlet": "CIFAR-10, Non-IID, ResNet-18, E=1"}
SHOWN_BELOW_RETRAIN = 40  # points of accuracy; deeper falls leave the frame, so that the end stays readable
# our name -> heading, the published table's name
ATTACKS = {"forget": ("forget acc.", "forget_acc"), "song": ("Song", "mia_song"), "yeom": ("Yeom", "mia_yeom")}


# --- figures ---------------------------------------------------------------------------------------------------------


def training_curves(e: Experiment, trainings: Trainings) -> Figure:
    """Test accuracy per round of the original model (all seeds) and of the retrained ones (seeds and targets)."""
    fig, axes = axes_row(len(e.settings), height=3.4, width=4.4)
    for ax, text in zip(axes, e.settings, strict=True):
        for method in REFERENCES:
            runs = [r for (s, _, out), r in trainings.items() if s == text and (out is None) == (method == "Original")]
            rounds = [row["round"] for row in runs[0].rounds]
            seed_band(ax, rounds, [[row["test"] for row in run.rounds] for run in runs], method)
        ax.set(title=title(text), xlabel="federated round", ylabel="test accuracy (%)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].legend(loc="lower right")
    return fig


def forget_gap(e: Experiment, unlearnings: Unlearnings) -> Figure:
    """Is there something to forget? Forget accuracy of the original and the retrained model, per run."""
    fig, axes = axes_row(len(e.settings), height=3.4, width=3.6, sharey=True)
    for ax, text in zip(axes, e.settings, strict=True):
        for seed in e.seeds:
            for target in e.targets:
                pair = [unlearnings[text, seed, target, m].metrics["final"]["forget"] for m in REFERENCES]
                ax.plot([0, 1], pair, color="#999999", linewidth=1, zorder=1)
                for x, (method, value) in enumerate(zip(REFERENCES, pair, strict=True)):
                    ax.scatter(x, value, color=colour(method), zorder=2, s=30)
        ax.set(title=title(text), xticks=[0, 1], xlim=(-0.4, 1.4))
        ax.set_xticklabels(["Original\n(saw the data)", "Retrain\n(never saw it)"])
    axes[0].set_ylabel("forget accuracy (%)")
    return fig


def recovery_curves(e: Experiment, unlearnings: Unlearnings, setting: str, methods: Sequence[str] = METHODS) -> Figure:
    """Fig. 4: test accuracy (left) and forget accuracy (right) per recovery round, mean and spread over runs.

    Round 0 is right after the unlearning step. A run that has stopped keeps its last value; the mark is
    the mean round at which the paper's stop rule (test accuracy reaches Retrain's) would end recovery.
    """
    fig, axes = axes_row(2, height=3.8, width=5.2)
    last = max(len(r.rounds) for (s, _, _, m), r in unlearnings.items() if s == setting and m in methods)
    for ax, metric, label in zip(axes, ("test", "forget"), ("test accuracy (%)", "forget accuracy (%)"), strict=True):
        for method in methods:
            runs = _of(unlearnings, setting, method)
            paths = np.array([_extended([row[metric] for row in run.rounds], last) for run in runs])
            seed_band(ax, range(last), paths, method)
            stop = float(np.mean([run.metrics["test"]["rounds"] for run in runs]))
            height = float(np.interp(stop, range(last), paths.mean(axis=0)))
            ax.plot(stop, height, "o", color=colour(method), markersize=7, markeredgecolor="white")
        for reference in REFERENCES:
            values = [run.metrics["final"][metric] for run in _of(unlearnings, setting, reference)]
            ax.axhline(np.mean(values), color=colour(reference), linestyle=linestyle(reference), label=reference)
        ax.set(xlabel="recovery round (0: right after unlearning)", ylabel=label)
        ax.set_ylim(bottom=max(-2.0, float(np.mean(values)) - SHOWN_BELOW_RETRAIN))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_title(title(setting), loc="left")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def live_figure(
    curve: Sequence[Mapping[str, float]], references: Mapping[str, Mapping[str, float]], head: str
) -> Figure:
    """The recovery curve behind the notebook's sliders, for one run; `references`: method -> metrics."""
    fig, axes = axes_row(2, height=3.2, width=4.6)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        ax.plot([row["round"] for row in curve], [row[metric] for row in curve], "o-", color=colour("PUF-Special"))
        for method, values in references.items():
            ax.axhline(values[metric], color=colour(method), linestyle=linestyle(method), label=method)
        ax.set(xlabel="recovery round", ylabel=f"{metric} accuracy (%)", ylim=(0, 102))
    axes[0].set_title(head, loc="left")
    axes[1].legend(loc="lower right")
    return fig


# --- tables ----------------------------------------------------------------------------------------------------------


def tidy(e: Experiment, unlearnings: Unlearnings, trainings: Trainings) -> pd.DataFrame:
    """One row per run and stop rule, with differences to the retrained model of the same seed and target."""
    rows = []
    for (text, seed, target, method), record in unlearnings.items():
        retrain = unlearnings[text, seed, target, "Retrain"].metrics["final"]
        training = trainings[text, seed, target].metrics
        for stop in STOP_RULES:
            m: dict[str, Any] = dict(record.metrics.get("final") or record.metrics[stop])
            if method == "Retrain":
                m |= {"bytes": training["bytes"], "images": training["images"]}
            spent = [cost for cost in ("bytes", "images") if m.get(cost)]  # none where nothing was sent
            gains = {f"{cost}_gain": training[cost] / m[cost] for cost in spent}
            deltas = {f"delta_{name}": abs(m[name] - retrain[name]) for name in ("test", *ATTACKS)}
            step = {f"unlearned_{k}": v for k, v in record.metrics.get("unlearned", {}).items() if k != "sha256"}
            cell = {"setting": text, "seed": seed, "target": target, "method": method, "stop": stop}
            rows.append({**cell, **m, **deltas, **gains, **step, "record": record.key})
    return pd.DataFrame(rows)


def forgetting_table(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "validation") -> pd.DataFrame:
    """Table III, efficacy: mean ± standard deviation over runs, and Δ, the mean ± standard deviation of the
    absolute difference to the retrained model of the same seed and target, with the paper's Δ beside it."""
    paper = _paper_rows(setting)
    rows = []
    for method in (*REFERENCES, *METHODS):
        r = _cell(runs, setting, method, stop)
        row = {"method": method, "test acc. %": spread(r.test)}
        for name, (heading, printed) in ATTACKS.items():
            row[f"{heading} %"] = spread(r[name])
            row[f"Δ {heading}"] = "–" if method == "Retrain" else spread(r[f"delta_{name}"])
            row[f"paper's Δ {heading}"] = _printed_delta(paper, method, printed)
        rows.append(row)
    return pd.DataFrame(rows)


def cost_table(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "validation") -> pd.DataFrame:
    """Table III, efficiency: both phases together, counted, with the gain over retraining and the paper's."""
    paper = _paper_rows(setting)
    rows = []
    for method in ("Retrain", *METHODS):
        r = _cell(runs, setting, method, stop)
        row = {"method": method}
        if method in METHODS:
            missed = f" ({(~r.reached.astype(bool)).sum()} of {len(r)} gave up)" if not r.reached.all() else ""
            row["recovery rounds"] = spread(r.rounds) + missed
        row |= {
            "bytes sent": f"{r.bytes.mean():.2e}",
            "fewer, ×": _gain(r.bytes_gain),
            "paper's ×": f"{paper.comm_gain[method]:g}" if method in paper.index else "–",
            "FLOPs (nominal F)": f"{r.images.mean() * NOMINAL_FLOPS['ResNet-18']:.2e}",
            "fewer FLOPs, ×": _gain(r.images_gain),
        }
        if method in METHODS:
            row["bytes kept"] = f"{r.storage.mean():.2e}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("–")


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Numbers behind every table: mean, sample standard deviation and count per setting, method and stop rule."""
    numeric = [c for c in runs.columns if c not in ("setting", "seed", "target", "method", "stop", "record", "reached")]
    groups = runs.groupby(["setting", "method", "stop"], sort=False)[numeric]
    wide = groups.agg(["mean", "std"])
    wide.columns = ["_".join(column) for column in wide.columns.to_list()]
    wide.insert(0, "n", groups.size())
    return wide.dropna(axis=1, how="all").reset_index()


def forms_table(e: Experiment, runs: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """PUF with n_i (corrected) and without (Algorithm 1 to the letter), first setting: what hangs on it."""
    rows = []
    for method in ("PUF-Special", "PUF-Regular"):
        for form, frame in (("corrected", runs), ("as printed", printed)):
            r = frame[(frame.setting == e.settings[0]) & (frame.method == method) & (frame.stop == "validation")]
            rows.append(
                {
                    "method": method,
                    "form": form,
                    "step / |w|": f"{r.unlearned_step.mean():.2g}",
                    "forget acc. % right after": mean_spread(r.unlearned_forget),
                    "Δ forget after recovery": mean_spread(r.delta_forget),
                }
            )
    return pd.DataFrame(rows)


def equivalence_table(equivalence: Mapping[tuple[str, int, int], Record]) -> pd.DataFrame:
    """Claim P14: |Special - Regular| in percent of the Special step, per setting."""
    rows = [(title(s), 100 * record.metrics["relative_difference"]) for (s, _, _), record in equivalence.items()]
    frame = pd.DataFrame(rows, columns=["setting", "difference"])
    return frame.groupby("setting", sort=False).difference.agg(["mean", "std", "max", "count"]).reset_index()


def printed_runs(e: Experiment, printed: Unlearnings, unlearnings: Unlearnings, trainings: Trainings) -> pd.DataFrame:
    """`tidy` for the runs of puf.run_printed."""
    references = {key: record for key, record in unlearnings.items() if key[3] == "Retrain"}
    frame = tidy(e, {**references, **printed}, trainings)
    return frame[frame.method != "Retrain"]


# --- helpers ---------------------------------------------------------------------------------------------------------


def _of(unlearnings: Unlearnings, setting: str, method: str) -> list[Record]:
    return [record for (s, _, _, m), record in unlearnings.items() if s == setting and m == method]


def _extended(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[values[-1]] * (length - len(values))]


def _cell(runs: pd.DataFrame, setting: str, method: str, stop: str) -> pd.DataFrame:
    return runs[(runs.setting == setting) & (runs.method == method) & (runs.stop == stop)]


def _paper_rows(setting: str) -> pd.DataFrame:
    """Table III's rows of the nearest setting, by method."""
    table = published("puf_table_iii")
    return table[table.setting == PAPER_SETTING[Setting.parse(setting).split]].set_index("method")


def _printed_delta(paper: pd.DataFrame, method: str, name: str) -> str:
    if method not in paper.index or pd.isna(paper[f"{name}_delta"][method]):
        return "–"
    return f"{paper[f'{name}_delta'][method]:.1f} ± {paper[f'{name}_delta_std'][method]:.1f}"


def _gain(values: pd.Series) -> str:
    """Retrain's cost over the method's mean cost; infinite where nothing was sent in any run."""
    cost = (1 / values).fillna(0.0).mean()  # in units of Retrain's; missing: nothing was sent
    return f"{1 / cost:.1f}" if cost else "∞"
