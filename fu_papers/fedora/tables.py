"""FedORA's tables, from run records only. Numbers as in the paper: Tables II to IX, and what stands beside them.

Every function takes the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fu_core.request import Request
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon
from fu_papers.controls import CONTROLS
from fu_papers.fedora.choices import ABLATIONS, READINGS, STEPS
from fu_papers.fedora.grid import (
    ELEMENT_WISE,
    FORMS,
    METHODS,
    NO_THRESHOLD,
    PEERS,
    PUBLISHED,
    Experiment,
    Task,
    refusal,
)
from fu_papers.fedora.results import (
    Speeds,
    Unlearnings,
    kept_model,
    request_title,
    rows_of,
    shown,
    with_backdoor,
)
from fu_papers.lab.record import Record
from fu_papers.look import published, published_row
from fu_papers.problem_figures import spread_or_dash
from fu_papers.problems import dataset_title

PAPER_NAMES = {"adult": "Income", "pathmnist": "MedMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
               "tiny_imagenet": "Tiny-ImageNet"}  # fmt: skip
PAPER_COLUMNS = {name: name for name in ("test_acc", "unlearning_acc", "mia_asr", "bd_asr")}
PAPER = "paper (test, unl., MIA, BD)"  # CIFAR-10, the data set of the paper's ablations and sweeps


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


def outcome(runs: pd.DataFrame) -> dict[str, str]:
    """The columns that every table of results has. What diverged is counted, and enters no mean."""
    cell = kept_model(runs)
    lost = f" ({len(runs) - len(cell)} of {len(runs)} diverged)" if len(cell) < len(runs) else ""
    return {
        "test acc. (%)": spread_or_dash(cell.test) + lost,
        "of the affected classes (%)": spread_or_dash(cell.test_affected),
        "unlearning acc. (%)": spread_or_dash(cell.forget),
        "off Retrain's (points)": spread_or_dash(cell.delta_forget),
        "KL to Retrain, forgotten": spread_or_dash(cell.kl, 2),
        "MIA-ASR": spread_or_dash(cell.mia, 3),
        **backdoor(runs),
        "entropy / log C": spread_or_dash(cell.entropy, 3),
    }


def backdoor(runs: pd.DataFrame) -> dict[str, str]:
    """The columns about the models with a backdoor; dashes where there are none.

    A backdoor that is gone because the model is gone has not been forgotten: the means are of the models that are of
    use, with their number where that is not all of them, and the others are counted.
    """
    found = with_backdoor(runs)
    left = f" (n={len(found.kept)})" if 0 < len(found.kept) < found.n else ""
    return {
        "BD-ASR (%)": spread_or_dash(found.kept.asr) + left,
        "test acc. with backdoor (%)": spread_or_dash(found.kept.poisoned_test) + left,
        "diverged with backdoor": f"{found.diverged} of {found.n}" if found.n else "–",
        "ruined with backdoor": f"{found.ruined} of {found.n}" if found.n else "–",
    }


def same_runs(e: Experiment, runs: pd.DataFrame, group: str, first: str) -> str:
    """For a caption: the rows of the ablations or readings that are the `first` over again, because the trials had
    chosen that or because it changes nothing there; "" if there are none."""

    def numbers(label: str) -> list[list[float]]:
        return rows_of(runs, group, e.main, "FedORA", label)[["test", "forget", "images"]].to_numpy().tolist()

    labels = dict.fromkeys(runs[runs.group == group].label)
    same = [label for label in labels if label != first and numbers(label) == numbers(first)]
    return f"; the same runs as {first}: {', '.join(same)}" if same else ""


# --- Tables IV and V -------------------------------------------------------------------------------------------------


def table_4_5(e: Experiment, runs: pd.DataFrame, *, labels: bool) -> pd.DataFrame:
    """Table IV (sample unlearning) or V (label unlearning): test accuracy, with forgetting and the attacks beside it.

    Test accuracy is over the classes of which something is left (errata F10); all classes stand beside it. The
    paper's value stands beside ours where it has the same data set and setting. Methods have the best of their trials;
    a second row has them as published, GA, ICO, CVFU and the peer of the first seed. A peer that cannot serve a request
    has a dash, and why.
    """
    rows: list[dict[str, Any]] = []
    for task in e.tasks(labels=labels):
        tuned = [(m, label) for m in (*METHODS, *PEERS) for label in ("", PUBLISHED)]
        for method, label in [*((m, "") for m in CONTROLS), *tuned]:
            cell = rows_of(runs, "main", task, method, label)
            reason = refusal(method, task) if method in PEERS and not label else ""
            if cell.empty and not reason:
                continue
            row = {
                "data set": dataset_title(task.dataset),
                "request": request_title(task.request),
                "method": _named(method, label),
                **outcome(cell),
            }
            if labels:
                row["all classes (%)"] = spread_or_dash(cell.test_all)
            if reason:
                row["test acc. (%)"] = f"– ({reason})"
            theirs = "–" if label else paper_accuracy(task, method)
            rows.append(row | {"paper's test acc. (%)": theirs})
    return pd.DataFrame(rows)


def _named(method: str, label: str = "") -> str:
    """A method's name in a table's row, with what differs there."""
    return f"{shown(method)}, {label}" if label else shown(method)


def paper_accuracy(task: Task, method: str) -> str:
    """What the paper prints for the same data set, setting and method, in percent, or a dash."""
    asked = Request.parse(task.request)
    where = {
        "method": method,
        "dataset": PAPER_NAMES.get(task.dataset.split("/")[0], ""),
        "unlearning_classes_m": asked.count,
        "unlearning_pct_n": asked.percent,
    }
    row = published_row("fedora", "table_v" if task.labels else "table_iv", where, {"test": "test_acc"})
    return f"{100 * row['test']:.2f}" if row else "–"


# --- Tables II and III: cost -----------------------------------------------------------------------------------------


def table_3(speeds: Speeds) -> pd.DataFrame:
    """Table III: seconds in one process, beside passes over samples and bytes, which no machine changes.

    The paper does not say which setting its times are of; ours are of all that Table IV has.
    """
    paper = published("fedora", "table_iii")
    rows = []
    for task, record in speeds.items():
        m = record.metrics
        named = PAPER_NAMES.get(task.dataset.split("/")[0], "")
        times = paper[paper.dataset == named].set_index("method").running_time
        for method, seconds in m["seconds"].items():
            if method in ABLATIONS and method != "FedORA":
                continue
            costs = m["costs"][method]
            rows.append(
                {
                    "data set": dataset_title(task.dataset),
                    "request": request_title(task.request),
                    "method": method,
                    "seconds": round(seconds, 3),
                    "Retrain / method": round(m["seconds"]["Retrain"] / seconds, 2),
                    "Retrain's epochs E": record.config["epochs"],
                    "samples passed": int(costs["images"]),
                    "samples / Retrain's": round(costs["images"] / m["costs"]["Retrain"]["images"], 2),
                    "MB up": round(costs["up"] / 1e6, 3),
                    "MB down": round(costs["down"] / 1e6, 3),
                    "paper: seconds": times.get(method, "–"),
                    "paper: Retrain / method": round(times["Retrain"] / times[method], 2) if method in times else "–",
                }
            )
    return pd.DataFrame(rows)


def table_2(e: Experiment, speeds: Speeds) -> pd.DataFrame:
    """Table II, reconstructed (methods 3.3), against what was counted: samples passed and bytes across the border.

    T: passes or iterations, at most, as chosen; rho, gamma: shares of the retained data. Both columns are in the same
    units, so that a ratio of 1 means the formula counts everything, and less that a method stopped early. ICO as we
    define it needs a batch of D_u beside each retained one, CVFU passes without gradients (kappa), which show in the
    bytes, and FedORA an evaluation at the end.
    """
    rows = []
    for task, record in speeds.items():
        m = record.metrics
        n_u, n_r, e_width = m["n_forget"], m["n_retain"], m["embedding"]
        counted, chosen = m["costs"], m["options"]
        T = {
            "Retrain": e.value("epochs", task.dataset),
            **{method: chosen[method]["epochs"] for method in ("GA", "ICO", "CVFU")},
            "FedORA": chosen["FedORA"]["iterations"],
        }
        share, ratio = chosen["ICO"]["share"], chosen["FedORA"]["ratio"]
        formulas = {
            "Retrain": ("T |D_r|", T["Retrain"] * n_r),
            "GA": ("T |D_u|", T["GA"] * n_u),
            "ICO": (
                "T (|D_u| + γ |D_r|)",
                T["ICO"] * (n_u + share * n_r),
            ),  # ours needs D_u beside every retained batch
            "CVFU": ("T |D_r| (1 + κ)", T["CVFU"] * n_r),  # κ: passes without gradients, counted in bytes alone
            "FedORA": ("T (|D_u| + ρ |D_r|)", T["FedORA"] * (n_u + ratio * n_r)),
        }
        for method, (text, samples) in formulas.items():
            if method not in counted:  # it has diverged
                continue
            sent = counted[method]["up"] + counted[method]["down"]
            rows.append(
                {
                    "data set": dataset_title(task.dataset),
                    "request": request_title(task.request),
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


# --- Tables VI to IX -------------------------------------------------------------------------------------------------


def paper_outcome(table: str, **where: Any) -> dict[str, str]:
    """The paper's four numbers of a row in one cell, or a dash."""
    row = published_row("fedora", table, where, PAPER_COLUMNS)
    return {PAPER: " / ".join(f"{value:.3f}" for value in row.values()) or "–"}


def table_6(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table VI: the main setting, and with noise on the first party's images. Paper's numbers: CIFAR-10.

    Methods as tuned, on clean data and without noise; FedORA's forms also as published.
    """
    settings = (("IID", "main", e.main), ("Non-IID", "noisy", e.main._replace(noise=e.party_noise)))
    wanted = [(m, "") for m in (*CONTROLS, *METHODS)] + [(m, PUBLISHED) for m in FORMS]
    rows = []
    for method, label in wanted:
        for name, group, task in settings:
            cell = rows_of(runs, group, task, method, label)
            if len(cell) or not label:
                theirs = paper_outcome("table_vi", method=method, setting=name) if not label else {PAPER: "–"}
                rows.append({"method": _named(method, label), "setting": name, **outcome(cell), **theirs})
    return pd.DataFrame(rows)


def table_7(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table VII: FedORA without one of its parts. Seconds are of one process, samples passed of no machine.

    The last rows, which are not timed: with adaptive steps for certain, where the first has what its trials chose; and
    the whole as published.
    """
    times = published("fedora", "table_vii").set_index("variant").time_s
    rows: list[dict[str, Any]] = _control_rows(e, runs, "variant")
    base = kept_model(rows_of(runs, "ablation", e.main, "FedORA", "FedORA")).images.mean()
    seconds = speeds[e.main].metrics["seconds"] if e.main in speeds else {}
    for label in (*ABLATIONS, *STEPS, PUBLISHED):
        cell = rows_of(runs, "main" if label == PUBLISHED else "ablation", e.main, "FedORA", label)
        if label == PUBLISHED and cell.empty:
            continue
        row: dict[str, Any] = {"variant": label, **outcome(cell)}
        row["samples passed / FedORA's"] = round(kept_model(cell).images.mean() / base, 2)
        row["seconds"] = round(seconds[label], 3) if label in seconds else None
        timed = {label, "FedORA"} <= set(seconds)  # what diverges has no time
        row["time / FedORA's"] = round(seconds[label] / seconds["FedORA"], 2) if timed else None
        paper_time = f"{times[label] / times['FedORA']:.2f}" if label in times else "–"
        theirs = f"{times[label]:.2f}" if label in times else "–"
        rows.append(
            {**row, **paper_outcome("table_vii", variant=label), "paper: seconds": theirs,
             "paper: time / FedORA's": paper_time}
        )  # fmt: skip
    return pd.DataFrame(rows)


def readings_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """What depends on how a lost formula is read: FedORA with one reading changed at a time."""
    rows = _control_rows(e, runs, "reading")
    for label in (*READINGS, ELEMENT_WISE):
        name = label + ", as the scalar dual was tuned" * (label == ELEMENT_WISE)
        rows.append({"reading": name, **outcome(rows_of(runs, "readings", e.main, "FedORA", label))})
    return pd.DataFrame(rows)


def _control_rows(e: Experiment, runs: pd.DataFrame, heading: str) -> list[dict[str, Any]]:
    """Of the main setting, under the `heading` of a table's first column."""
    return [{heading: shown(m), **outcome(rows_of(runs, "main", e.main, m))} for m in CONTROLS]


def table_8(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table VIII: few samples. Unlearning accuracy of one sample is all or nothing, so seeds decide (errata F11)."""
    rows = []
    for count in e.few:
        task = e.main._replace(request=f"samples-{count}")
        for method, label in [*((m, "") for m in CONTROLS), *(("FedORA", f"{ratio:g}") for ratio in e.few_ratios)]:
            cell = rows_of(runs, "small", task, method, label)
            percent = 100 * float(label) if label else -1.0  # which the paper has of no reference
            row = {
                "samples": count,
                "method": "FedORA" if label else shown(method),
                "ratio (%)": f"{percent:g}" if label else "–",
            }
            row |= outcome(cell) | {"taken for members": spread_or_dash(100 * cell.mia_fraction)}
            theirs = paper_outcome("table_viii", unlearning_samples=count, batch_selection_ratio_pct=percent)
            rows.append({**row, **theirs})
    return pd.DataFrame(rows)


def table_9(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table IX: Gaussian noise on the embeddings; with clipping, the (epsilon, delta) of one embedding that is sent."""
    rows = []
    for task in e.private_tasks():
        std, clip = task.dp_std, task.dp_clip
        for method, label in (*((m, "") for m in CONTROLS), ("FedORA", ""), ("FedORA", PUBLISHED)):
            cell = rows_of(runs, "private", task, method, label)
            if label and cell.empty:
                continue
            theirs = std if method == "FedORA" and not (clip or label) else -1.0  # the paper has no other row
            rows.append(
                {
                    "noise": std,
                    "clip": clip or "off",
                    "ε of one embedding": embedding_epsilon(std, clip, e.delta),
                    "method": _named(method, label),
                    **outcome(cell),
                    **paper_outcome("table_ix", gaussian_noise=theirs),
                }
            )
    return pd.DataFrame(rows)


def embedding_epsilon(std: float, clip: float, delta: float) -> str:
    """The epsilon of one embedding sent once, or why there is none. Sensitivity: twice the clipping length."""
    return f"{gaussian_epsilon(2 * clip, std, delta=delta):.1f} (δ={delta:g})" if clip else "none: unbounded"


# --- the constraint --------------------------------------------------------------------------------------------------


def violations_table(e: Experiment, unlearnings: Unlearnings) -> pd.DataFrame:
    """Is the constraint met in the end? How runs ended, last score, threshold, dual variable; means over seeds.

    The score is that of the forgotten samples that a run looks at (`forget_sample`), and decides when it stops.
    """
    rows = []
    for dataset in e.datasets:
        for task in (*e.sample_tasks(dataset), *e.label_tasks(dataset)):
            for method in FORMS:
                cells = [task.cell("main", seed, method) for seed in e.seeds]
                ended = [unlearnings[c] for c in cells if c in unlearnings and "ended" in unlearnings[c].metrics]
                if ended:
                    rows.append(_violation(task, method, ended))
    return pd.DataFrame(rows)


def _violation(task: Task, method: str, ended: Sequence[Record]) -> dict[str, Any]:
    ends = pd.DataFrame([record.metrics["ended"] for record in ended])
    outcomes = ends.outcome.value_counts()
    return {
        "data set": dataset_title(task.dataset),
        "request": request_title(task.request),
        "method": shown(method),
        "score": spread_or_dash(ends.score, 3),
        "threshold": "–" if method == NO_THRESHOLD else spread_or_dash(ends.epsilon, 3),
        "met": "–" if method == NO_THRESHOLD else f"{int((ends.score >= ends.epsilon).sum())} of {len(ends)}",
        "ended": ", ".join(f"{outcome} {count}" for outcome, count in outcomes.items()),
        "iterations": spread_or_dash(ends.iterations.astype(float), 0),
        "dual at the end": spread_or_dash(pd.Series([float(r.rounds[-1]["dual"]) for r in ended if r.rounds]), 3),
    }
