"""FedORA's figures and tables, drawn from run records only. Numbers as in the paper: Fig. 4-8, Tables II-IX.

Every function takes the experiment and what fedora's run functions return, or the frame of `tidy`, and returns
a matplotlib figure or a DataFrame; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon
from fu_papers.fedora.grid import (
    ABLATIONS,
    BASELINES,
    METHODS,
    READINGS,
    REFERENCES,
    Cell,
    Experiment,
    Task,
)
from fu_papers.lab.record import Record
from fu_papers.look import colour, linestyle, published
from fu_papers.problem_figures import axes_row, spread_or_dash
from fu_papers.problems import DATASET_TITLES

TITLES = DATASET_TITLES | {"breast_cancer": "Breast cancer", "adult": "Income (Adult)", "pathmnist": "PathMNIST"}
PAPER_NAMES = {"adult": "Income", "pathmnist": "MedMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
               "tiny_imagenet": "Tiny-ImageNet"}  # fmt: skip
PAPER_MAIN = "CIFAR-10"  # data set of the paper's ablations and sweeps
SHOWN = {
    "Original": "do nothing (Original)",
    "FedORA": "FedORA, scalar dual",
    "FedORA vector": "FedORA, element-wise dual",
    "FedORA calibrated": "FedORA, threshold of unseen samples",
}
METRICS = ("test", "test_all", "forget", "entropy", "mia", "mia_fraction", "asr", "gap")
SAME_TASK = ["dataset", "request", "noise", "dp_std", "dp_clip", "seed"]


def shown(method: str) -> str:
    """A method's name in tables."""
    return SHOWN.get(method, method)


def dataset_title(dataset: str) -> str:
    """The heading of a data set with its bottom nets: "Digits, MLP"."""
    name, bottom = dataset.split("/")
    return f"{TITLES.get(name, name)}, {bottom.upper() if len(bottom) <= 3 else bottom}"


def request_title(request: str) -> str:
    """A request as the paper writes it: "m=2, n=50 %"."""
    kind, *numbers = request.split("-")
    if kind == "classes":
        return f"m={numbers[0]}, n={numbers[1]} %"
    return f"{numbers[0]} samples" if numbers[0] != "1" else "1 sample"


def source(descriptions: Mapping[str, Record], datasets: Sequence[str] | None = None) -> str:
    """The line under every table and figure: which data, which nets. `datasets`: only those (default: all)."""
    lines = [
        f"{record.metrics['source']}; bottoms: {text.split('/')[1]}"
        for text, record in descriptions.items()
        if datasets is None or text in datasets
    ]
    return " | ".join(dict.fromkeys(lines))


def parties_table(descriptions: Mapping[str, Record]) -> pd.DataFrame:
    """Who holds what: features per sample and parameters of every party."""
    rows = []
    for dataset, record in descriptions.items():
        m = record.metrics
        row = {"data set": dataset_title(dataset), "training samples": m["n_train"], "test samples": m["n_test"]}
        for k, (shape, parameters) in enumerate(zip(m["features"], m["parameters"], strict=False), start=1):
            row[f"party {k}: features"] = " × ".join(map(str, shape))
            row[f"party {k}: parameters"] = f"{parameters:,}"
        rows.append(row | {"active party: parameters": f"{m['parameters'][-1]:,}"})
    return pd.DataFrame(rows)


def tidy(unlearnings: Mapping[Cell, Record]) -> pd.DataFrame:
    """One row per cell and run; the backdoor's success of a task's poisoned twin stands in the row of the clean run.

    `asr`, `clean_asr`: with and without poisoned samples in training; `..._retrain`, `..._original`: the values
    of those two for the same task and seed; `delta_...`: absolute difference to Retrain.
    """
    rows, poisoned = [], []
    for cell, record in unlearnings.items():
        where = {
            **cell.task._asdict(),
            "group": cell.group,
            "seed": cell.seed,
            "label": cell.label,
            "method": cell.method,
        }
        if cell.poison:
            poisoned.append({**where, "asr": record.metrics["asr"], "poisoned_test": record.metrics["test"]})
        else:
            row = {**where, **record.metrics, "labels": cell.task.labels, "record": record.key}
            rows.append(row | {"clean_asr": record.metrics["asr"], "asr": np.nan})
    runs = pd.DataFrame(rows).drop(columns=["asr", "poison"])
    keys = [*SAME_TASK, "group", "label", "method"]
    runs = runs.merge(pd.DataFrame(poisoned), on=keys, how="left")
    for method in REFERENCES:
        references = runs[runs.method == method].drop_duplicates(SAME_TASK)
        suffix = f"_{method.lower()}"
        runs = runs.merge(references[[*SAME_TASK, *METRICS]], on=SAME_TASK, how="left", suffixes=("", suffix))
    for name in METRICS:
        runs[f"delta_{name}"] = (runs[name] - runs[f"{name}_retrain"]).abs()
    return runs


def task_runs(runs: pd.DataFrame, group: str, task: Task, label: str) -> pd.DataFrame:
    """The runs of one row of a table: a task's, all seeds."""
    same = (runs.group == group) & (runs.label == label)
    for name, value in task._asdict().items():
        same &= runs[name] == value
    return runs[same]


def outcome(cell: pd.DataFrame) -> dict[str, str]:
    """The columns that every table of results has."""
    return {
        "test acc. (%)": spread_or_dash(cell.test),
        "unlearning acc. (%)": spread_or_dash(cell.forget),
        "off Retrain's (points)": spread_or_dash(cell.delta_forget),
        "MIA-ASR": spread_or_dash(cell.mia, 3),
        "BD-ASR (%)": spread_or_dash(cell.asr),
        "entropy / log C": spread_or_dash(cell.entropy, 3),
    }


# --- Tables IV, V and Figures 4 to 7 ---------------------------------------------------------------------------------


def table_4_5(e: Experiment, runs: pd.DataFrame, *, labels: bool) -> pd.DataFrame:
    """Table IV (sample unlearning) or V (label unlearning): test accuracy, with forgetting and the attacks beside it.

    Test accuracy is over the classes of which something is left (errata F10); all classes stand beside it. The
    paper's value stands beside ours where it has the same data set and setting.
    """
    paper = published("fedora", "table_v" if labels else "table_iv")
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        for task in e.label_tasks(dataset) if labels else e.sample_tasks(dataset):
            for method in (*REFERENCES, *METHODS):
                cell = task_runs(runs, "main", task, method)
                if cell.empty:
                    continue
                row = {
                    "data set": dataset_title(dataset),
                    "request": request_title(task.request),
                    "method": shown(method),
                }
                row |= outcome(cell)
                if labels:
                    row["all classes (%)"] = spread_or_dash(cell.test_all)
                rows.append(row | {"paper's test acc. (%)": _paper_value(paper, dataset, task, method)})
    return pd.DataFrame(rows)


def _paper_value(paper: pd.DataFrame, dataset: str, task: Task, method: str) -> str:
    _, m, n = task.request.split("-")
    same = (paper.method == method) & (paper.dataset == PAPER_NAMES.get(dataset.split("/")[0], ""))
    same &= (paper.unlearning_classes_m == int(m)) & (paper.unlearning_pct_n == int(n))
    return f"{100 * paper[same].test_acc.iloc[0]:.2f}" if same.any() else "–"


def figure_4_7(e: Experiment, runs: pd.DataFrame, *, labels: bool, attacks: bool) -> Figure:
    """Unlearning accuracy (Fig. 4: samples, 5: labels), or the two attacks (Fig. 6, 7), per setting.

    Bars are means over seeds, whiskers standard deviations; the dashed line is Retrain, the dotted one doing nothing.
    """
    tasks = [t for d in e.datasets for t in (e.label_tasks(d) if labels else e.sample_tasks(d))]
    metrics = {"mia": "MIA-ASR", "asr": "BD-ASR (%)"} if attacks else {"forget": "unlearning acc. (%)"}
    shown_methods = [m for m in METHODS if any(len(task_runs(runs, "main", t, m)) for t in tasks)]
    rows: list[tuple[str, list[Task]]] = []  # at most four panels each, of tasks where the metric was measured
    for metric in metrics:
        measured = [task for task in tasks if task_runs(runs, "main", task, "Retrain")[metric].notna().any()]
        rows += [(metric, measured[i : i + 4]) for i in range(0, len(measured), 4)]
    columns = max(len(row) for _, row in rows)
    fig, grid = plt.subplots(len(rows), columns, figsize=(3.1 * columns, 3.1 * len(rows)), squeeze=False)
    for axes, (metric, row) in zip(grid, rows, strict=True):
        axes[0].set_ylabel(metrics[metric])
        for ax in axes[len(row) :]:
            ax.set_axis_off()
        for ax, task in zip(axes, row, strict=False):
            for i, method in enumerate(shown_methods):
                values = task_runs(runs, "main", task, method)[metric].dropna()
                if len(values):
                    spread_of = values.std() if len(values) > 1 else None
                    ax.bar(i, values.mean(), yerr=spread_of, color=colour(method), capsize=2)
            for method in REFERENCES:
                mean = task_runs(runs, "main", task, method)[metric].mean()
                ax.axhline(mean, color=colour(method), linestyle=linestyle(method), linewidth=1.5)
            name = task.dataset.split("/")[0]
            ax.set(xticks=[], title=f"{TITLES.get(name, name)}\n{request_title(task.request)}")
            if metric == "mia":
                ax.set_ylim(0.3, 1)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour(m)) for m in shown_methods]
    lines = [grid[0][0].plot([], [], color=colour(r), linestyle=linestyle(r))[0] for r in REFERENCES]
    names = [*map(shown, shown_methods), *map(shown, REFERENCES)]
    fig.legend([*handles, *lines], names, loc="outside upper center", ncols=4, frameon=False)
    return fig


# --- Tables II and III: cost -----------------------------------------------------------------------------------------


def table_3(speeds: Mapping[Task, Record]) -> pd.DataFrame:
    """Table III: seconds in one process, beside passes over samples and bytes, which no machine changes."""
    paper = published("fedora", "table_iii")
    rows = []
    for task, record in speeds.items():
        m = record.metrics
        named = PAPER_NAMES.get(task.dataset.split("/")[0], "")
        times = paper[paper.dataset == named].set_index("method").running_time
        for method, seconds in m["seconds"].items():
            costs = m["costs"][method]
            rows.append(
                {
                    "data set": dataset_title(task.dataset),
                    "method": method,
                    "seconds": round(seconds, 3),
                    "Retrain / method": round(m["seconds"]["Retrain"] / seconds, 2),
                    "samples passed": int(costs["images"]),
                    "MB up": round(costs["up"] / 1e6, 3),
                    "MB down": round(costs["down"] / 1e6, 3),
                    "paper: seconds": times.get(method, "–"),
                    "paper: Retrain / method": round(times["Retrain"] / times[method], 2) if method in times else "–",
                }
            )
    return pd.DataFrame(rows)


def table_2(e: Experiment, speeds: Mapping[Task, Record]) -> pd.DataFrame:
    """Table II, reconstructed (methods 3.3), against what was counted: samples passed and bytes across the border.

    T: passes or iterations, at most; rho, gamma: shares of the retained data. Both columns are in the same units, so
    that a ratio of 1 means the formula counts everything. ICO as we define it needs a batch of D_u beside each
    retained one, CVFU passes without gradients (kappa), which show in the bytes, and FedORA an evaluation at the end.
    """
    rows = []
    for task, record in speeds.items():
        m = record.metrics
        n_u, n_r, e_width = m["n_forget"], m["n_retain"], m["embedding"]
        counted = m["costs"]
        T = {
            "Retrain": e.of("epochs", task.dataset),
            "GA": e.ga_epochs,
            "ICO": 1,
            "CVFU": e.cvfu_epochs,
            "FedORA": e.iterations,
        }
        formulas = {
            "Retrain": ("T |D_r|", T["Retrain"] * n_r),
            "GA": ("T |D_u|", T["GA"] * n_u),
            "ICO": ("T (|D_u| + γ |D_r|)", n_u + e.ico_share * n_r),  # ours needs D_u beside every retained batch
            "CVFU": ("T |D_r| (1 + κ)", T["CVFU"] * n_r),  # κ: passes without gradients, counted in bytes alone
            "FedORA": ("T (|D_u| + ρ |D_r|)", T["FedORA"] * (n_u + e.ratio * n_r)),
        }
        for method, (text, samples) in formulas.items():
            sent = counted[method]["up"] + counted[method]["down"]
            rows.append(
                {
                    "data set": dataset_title(task.dataset),
                    "method": method,
                    "formula (samples)": text,
                    "T": T[method],
                    "samples by formula": int(samples),
                    "samples counted": int(counted[method]["images"]),
                    "counted / formula": round(counted[method]["images"] / samples, 2),
                    "MB by formula": round(samples * 2 * e_width * 4 / 1e6, 3),
                    "MB counted": round(sent / 1e6, 3),
                }
            )
    return pd.DataFrame(rows)


# --- Tables VI to IX, Figure 8 ---------------------------------------------------------------------------------------


def _paper_columns(row: pd.DataFrame) -> dict[str, str]:
    """The paper's four numbers (CIFAR-10) in one cell."""
    if row.empty:
        return {"paper (test, unl., MIA, BD)": "–"}
    first = row.iloc[0]
    values = [first.test_acc, first.unlearning_acc, first.mia_asr, first.bd_asr]
    return {"paper (test, unl., MIA, BD)": " / ".join(f"{value:.3f}" for value in values)}


def table_6(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table VI: the main setting, and with noise on the first party's images. Paper's numbers: CIFAR-10."""
    paper = published("fedora", "table_vi")
    rows = []
    for method in (*REFERENCES, *METHODS):
        settings = (("IID", "main", e.main), ("Non-IID", "noisy", e.main._replace(noise=float(e.party_noise))))
        for name, group, task in settings:
            cell = task_runs(runs, group, task, method)
            theirs = paper[(paper.method == method) & (paper.setting == name)]
            rows.append({"method": shown(method), "setting": name, **outcome(cell), **_paper_columns(theirs)})
    return pd.DataFrame(rows)


def table_7(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table VII: FedORA without one of its parts. Samples passed stand for time: they do not depend on the machine."""
    paper = published("fedora", "table_vii").set_index("variant")
    rows = []
    base = task_runs(runs, "ablation", e.main, "FedORA").images.mean()
    for label in ABLATIONS:
        cell = task_runs(runs, "ablation", e.main, label)
        theirs = paper.loc[[label]] if label in paper.index else paper.iloc[:0]
        row = {"variant": label, **outcome(cell), "samples passed / FedORA's": round(cell.images.mean() / base, 2)}
        paper_time = f"{paper.loc[label].time_s / paper.loc['FedORA'].time_s:.2f}" if label in paper.index else "–"
        rows.append({**row, **_paper_columns(theirs), "paper: time / FedORA's": paper_time})
    return pd.DataFrame(rows)


def readings_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """What depends on how a lost formula is read: FedORA with one reading changed at a time."""
    rows = []
    for label in (*READINGS, "element-wise dual"):
        cell = task_runs(runs, "readings", e.main, label)
        rows.append({"reading": label, **outcome(cell), "gap to Retrain / doing nothing": spread_or_dash(cell.gap, 2)})
    return pd.DataFrame(rows)


def table_8(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table VIII: few samples. Unlearning accuracy of one sample is all or nothing, so seeds decide (errata F11)."""
    paper = published("fedora", "table_viii")
    rows = []
    for count in e.few:
        task = e.main._replace(request=f"samples-{count}")
        for label in (*REFERENCES, *(f"{ratio:g}" for ratio in e.few_ratios)):
            cell = task_runs(runs, "small", task, label)
            reference = label in REFERENCES
            ratio = -1.0 if reference else 100 * float(label)
            theirs = paper[(paper.unlearning_samples == count) & (paper.batch_selection_ratio_pct == ratio)]
            row = {
                "samples": count,
                "method": shown(label) if reference else "FedORA",
                "ratio (%)": "–" if reference else f"{ratio:g}",
            }
            row |= outcome(cell) | {"taken for members": spread_or_dash(100 * cell.mia_fraction)}
            rows.append({**row, **_paper_columns(theirs)})
    return pd.DataFrame(rows)


def table_9(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table IX: Gaussian noise on the embeddings; with clipping, the (epsilon, delta) of one embedding that is sent."""
    paper = published("fedora", "table_ix")
    rows = []
    levels = [*((float(std), 0.0) for std in e.embedding_noise), (float(min(e.embedding_noise)), float(e.clip))]
    for std, clip in levels:
        task = e.main._replace(dp_std=std, dp_clip=clip)
        for label in (*REFERENCES, "FedORA"):
            cell = task_runs(runs, "private", task, label)
            theirs = paper[np.isclose(paper.gaussian_noise, std)] if label == "FedORA" and not clip else paper.iloc[:0]
            row = {"noise": std, "clip": clip or "off", "ε of one embedding": embedding_epsilon(std, clip, e.delta)}
            rows.append({**row, "method": shown(label), **outcome(cell), **_paper_columns(theirs)})
    return pd.DataFrame(rows)


def embedding_epsilon(std: float, clip: float, delta: float) -> str:
    """The epsilon of one embedding sent once, or why there is none. Sensitivity: twice the clipping length."""
    return f"{gaussian_epsilon(2 * clip, std, delta=delta):.1f} (δ={delta:g})" if clip else "none: unbounded"


def figure_8(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Fig. 8: accuracies and attacks against the forgetting weight (a) and the batch selection ratio (b)."""
    fig, axes = axes_row(2, height=4.0, width=5.4)
    sweeps = (
        ("weights", e.weights, "(a) forgetting weight β"),
        ("ratios", e.ratios, "(b) batch selection ratio ρ (%)"),
    )
    lines = {
        "test": ("test acc. (%)", "#0072b2", "-"), "forget": ("unlearning acc. (%)", "#e3550f", "-"),
        "mia": ("MIA-ASR (%)", "#6a6a6a", "-."), "asr": ("BD-ASR (%)", "#7a52a8", ":"),
    }  # fmt: skip
    for ax, (group, values, name) in zip(axes, sweeps, strict=True):
        scale = 100.0 if group == "ratios" else 1.0
        for metric, (label, hue, dash) in lines.items():
            cells = [task_runs(runs, group, e.main, f"{value:g}")[metric] for value in values]
            factor = 100.0 if metric == "mia" else 1.0
            mean = np.array([factor * cell.mean() for cell in cells])
            deviation = np.array([factor * cell.std() for cell in cells])
            x = list(range(len(values)))
            ax.plot(x, mean, dash, color=hue, marker="o", markersize=4, label=label)
            ax.fill_between(x, mean - deviation, mean + deviation, color=hue, alpha=0.15, linewidth=0)
        retrained = task_runs(runs, "main", e.main, "Retrain")
        ax.axhline(
            retrained.forget.mean(),
            color=colour("Retrain"),
            linestyle="--",
            linewidth=1,
            label="Retrain: unlearning acc.",
        )
        ax.set(xlabel=name, ylim=(-3, 103))
        ax.set_xticks(range(len(values)), [f"{scale * value:g}" for value in values])
    axes[0].set_ylabel("percent")
    handles, names = axes[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return fig


# --- the certificate's story -----------------------------------------------------------------------------------------


def trace(e: Experiment, unlearnings: Mapping[Cell, Record]) -> Figure:
    """Per iteration of the main setting: forgetting score against its threshold, dual variable, step sizes.

    First seed; both duals. A score that reaches the threshold is what "certified" can mean, not the dual's value.
    """
    fig, axes = axes_row(3, height=3.8, width=4.4)
    for method in ("FedORA", "FedORA vector", "FedORA calibrated"):
        cell = Cell("main", e.main, e.seeds[0], method, method, False)
        if cell not in unlearnings:
            continue
        rows = pd.DataFrame(unlearnings[cell].rounds)
        look: dict[str, Any] = {"color": colour(method), "linestyle": linestyle(method), "label": shown(method)}
        axes[0].plot(rows.t, rows.score, **look)
        axes[0].axhline((rows.score + rows.residual).iloc[0], color=colour(method), linewidth=1, linestyle=":")
        axes[1].plot(rows.t, rows.dual / max(rows.dual.abs().max(), 1e-30), **look)
        steps = np.array(rows.tau.tolist())
        axes[2].plot(rows.t, steps[:, 0], **look)
        axes[2].plot(rows.t, steps[:, -1], **(look | {"label": None, "alpha": 0.4}))
    axes[0].set(title="forgetting score $L_u$ (dotted: threshold)", xlabel="iteration")
    axes[1].set(title="dual variable / its largest value", xlabel="iteration")
    axes[2].set(title="primal step: first party (pale: active)", xlabel="iteration", yscale="log")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return fig


def violations_table(e: Experiment, unlearnings: Mapping[Cell, Record]) -> pd.DataFrame:
    """Is the constraint met in the end? Score of the final model, threshold, dual variable; means over seeds."""
    rows = []
    for dataset in e.datasets:
        for task in (*e.sample_tasks(dataset), *e.label_tasks(dataset)):
            for method in METHODS:
                if method in BASELINES:
                    continue
                cells = [Cell("main", task, seed, method, method, False) for seed in e.seeds]
                last = [unlearnings[cell].rounds[-1] for cell in cells if cell in unlearnings]
                if last:
                    rows.append(_violation(dataset, task, method, last))
    return pd.DataFrame(rows)


def _violation(dataset: str, task: Task, method: str, last: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scores = pd.Series([row["score"] for row in last])
    residuals = pd.Series([row["residual"] for row in last])
    return {
        "data set": dataset_title(dataset),
        "request": request_title(task.request),
        "method": shown(method),
        "score": spread_or_dash(scores, 3),
        "threshold": spread_or_dash(scores + residuals, 3),
        "met": f"{int((residuals <= 0).sum())} of {len(residuals)}",
        "iterations": spread_or_dash(pd.Series([float(row["t"]) for row in last]), 0),
        "dual at the end": spread_or_dash(pd.Series([row["dual"] for row in last]), 3),
    }
