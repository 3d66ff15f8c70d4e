"""PUF's figures and tables, drawn from run records only. Numbers as in the paper: Figs. 1 to 6, Tables I, III to VI.

Every function takes the experiment and the records of puf.run_* and returns a matplotlib figure or a
DataFrame; nothing here trains.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fu_core.unlearning import puf
from fu_core.unlearning.baselines import fed_au, fed_eraser, mode, natural, pga, weight_negation
from fu_core.unlearning.needs import Needs
from fu_papers.lab.store import Record
from fu_papers.look import colour, linestyle, mean_spread, published, seed_band
from fu_papers.problem_figures import axes_row, spread, title
from fu_papers.problems import Setting
from fu_papers.puf.cost_model import NOMINAL_FLOPS
from fu_papers.puf.grid import METHODS, PUFS, REFERENCES, SWEPT_AGAINST, Cell, Experiment
from fu_papers.puf.runs import STOP_RULES

Trainings = Mapping[tuple[str, str, int, str], Record]
Unlearnings = Mapping[Cell, Record]

# The paper's nearest setting: it has no IID results on CIFAR-10, and no other data set of ours.
PAPER_SETTING = {
    ("clients", "iid"): ("iii", "CIFAR-100, IID, ResNet-18, E=1"),
    ("clients", "dirichlet"): ("iii", "CIFAR-10, Non-IID, ResNet-18, E=1"),
    ("long", "dirichlet"): ("iii", "CIFAR-100, Non-IID, ResNet-18, E=10"),
    ("samples", "iid"): ("iv", "CIFAR-100, IID, ResNet-18, E=1"),
    ("samples", "dirichlet"): ("iv", "CIFAR-100, Non-IID, ResNet-18, E=1"),
    ("pairs", "dirichlet"): ("v", "Multiple Unlearning, CIFAR-100, Non-IID, ResNet-18, E=1"),
    ("transformer", "dirichlet"): ("iii", "CIFAR-100, Non-IID, MiT-B0, E=1"),
    ("segmentation", "site"): ("vi", "ProstateMRI, U-NET"),
}
SHOWN_BELOW_RETRAIN = 40  # points of accuracy; deeper falls leave the frame, so that the end stays readable
# our name -> heading, the published table's name
ATTACKS = {"forget": ("forget acc.", "forget_acc"), "song": ("Song", "mia_song"), "yeom": ("Yeom", "mia_yeom")}
ON_MASKS = {"forget": ("forget Dice", "forget_acc"), "loss": ("forget loss", "forget_loss")}
# our name of a need -> heading of doing without, the published table's column
COLUMNS = {
    "history": ("no history", "no_historical_information"),
    "full_participation": ("not everybody online", "no_full_participation"),
    "stateful_clients": ("stateless clients", "no_stateful_clients"),
    "task": ("any task", "task_agnostic"),
    "auxiliary_data": ("no auxiliary data", "no_auxiliary_data"),
    "several_rounds": ("a single round", "single_round_unlearning"),
    "one_at_a_time": ("several at once", "simultaneous_unlearning"),
    "blind": ("selective", "selective_unlearning"),
}
NEEDS: dict[str, Needs] = {
    "Natural": natural.NEEDS,
    "FedEraser": fed_eraser.NEEDS,
    "PGA": pga.NEEDS,
    "MoDe": mode.NEEDS,
    "FedAU": fed_au.NEEDS,
    "NoT": weight_negation.NEEDS,
    "PUF-Special": puf.NEEDS,
    "PUF-Regular": puf.NEEDS,
}
MARKERS = {1.0: "o", 2.0: "s", 5.0: "^", 10.0: "D"}  # per E_u


# --- figures ---------------------------------------------------------------------------------------------------------


def training_curves(e: Experiment, trainings: Trainings, scenario: str = "clients") -> Figure:
    """Test accuracy per round of the original model (all seeds) and of the retrained ones (seeds and requests)."""
    s = e.scenario(scenario)
    fig, axes = axes_row(len(s.settings), height=3.4, width=4.4)
    for ax, text in zip(axes, s.settings, strict=True):
        for method in REFERENCES:
            runs = [
                record
                for (name, setting, _, request), record in trainings.items()
                if (name, setting) == (scenario, text) and (request == "none") == (method == "Original")
            ]
            rounds = [row["round"] for row in runs[0].rounds]
            seed_band(ax, rounds, [[row["test"] for row in run.rounds] for run in runs], method)
        ax.set(title=title(text), xlabel="federated round", ylabel=f"test {_measure(text)}")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].legend(loc="lower right")
    return fig


def forget_gap(e: Experiment, unlearnings: Unlearnings) -> Figure:
    """Is there something to forget? Forget accuracy of the original and the retrained model, per run."""
    s = e.scenarios()[0]
    fig, axes = axes_row(len(s.settings), height=3.4, width=3.6, sharey=True)
    for ax, text in zip(axes, s.settings, strict=True):
        for seed in s.seeds:
            for request in s.requests:
                cells = [Cell(s.name, text, seed, request, m) for m in REFERENCES]
                pair = [unlearnings[cell].metrics["final"]["forget"] for cell in cells]
                ax.plot([0, 1], pair, color="#999999", linewidth=1, zorder=1)
                for x, (method, value) in enumerate(zip(REFERENCES, pair, strict=True)):
                    ax.scatter(x, value, color=colour(method), zorder=2, s=30)
        ax.set(title=title(text), xticks=[0, 1], xlim=(-0.4, 1.4))
        ax.set_xticklabels(["Original\n(saw the data)", "Retrain\n(never saw it)"])
    axes[0].set_ylabel("forget accuracy (%)")
    return fig


def recovery_curves(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = METHODS
) -> Figure:
    """Fig. 4: test accuracy (left) and forget accuracy (right) per recovery round, mean and spread over runs.

    Round 0 is right after the unlearning step. A run that has stopped keeps its last value; the mark is
    the mean round at which the paper's stop rule (test accuracy reaches Retrain's) would end recovery.
    """
    fig, axes = axes_row(2, height=3.8, width=5.2)
    found = {m: runs for m in methods if (runs := _of(unlearnings, scenario, setting, m))}
    last = max(len(run.rounds) for runs in found.values() for run in runs)
    measure = _measure(setting)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        for method, runs in found.items():
            paths = np.array([_extended([row[metric] for row in run.rounds], last) for run in runs])
            if max(len(run.rounds) for run in runs) > 1:  # FedEraser has no recovery, hence no line
                seed_band(ax, range(last), paths, method)
            stop = float(np.mean([run.metrics["test"]["rounds"] for run in runs]))
            height = float(np.interp(stop, range(last), paths.mean(axis=0)))
            drawn = bool(ax.lines) and ax.lines[-1].get_label() == method
            name = None if drawn else method
            ax.plot(stop, height, "o", color=colour(method), markersize=7, markeredgecolor="white", label=name)
        for reference in REFERENCES:
            values = [run.metrics["final"][metric] for run in _of(unlearnings, scenario, setting, reference)]
            ax.axhline(np.mean(values), color=colour(reference), linestyle=linestyle(reference), label=reference)
        ax.set(xlabel="recovery round (0: right after unlearning)", ylabel=f"{metric} {measure}")
        ax.set_ylim(bottom=max(-2.0, float(np.mean(values)) - SHOWN_BELOW_RETRAIN))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_title(f"{title(setting)}: {e.scenario(scenario).heading}", loc="left")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def radar(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "test") -> Figure:
    """Fig. 1: three differences to Retrain and two costs per method; the smaller polygon is the better one.

    The outer ring is doing nothing (differences, linear) and retraining (costs, logarithmic: the centre is a
    thousandth of it).
    """
    spokes = ["Δ forget acc.", "Δ Song", "bytes sent", "FLOPs", "Δ Yeom"]
    angles = np.linspace(0, 2 * np.pi, len(spokes), endpoint=False)
    fig, ax = _polar(7.2, 4.4)
    nothing = _cell(runs, "clients", setting, "Original", stop)
    for method in METHODS:
        r = _cell(runs, "clients", setting, method, stop)
        if r.empty:
            continue
        deltas = {name: r[f"delta_{name}"].mean() / nothing[f"delta_{name}"].mean() for name in ATTACKS}
        costs = {name: _share_of_retraining(r[f"{name}_gain"]) for name in ("bytes", "images")}
        values = [deltas["forget"], deltas["song"], costs["bytes"], costs["images"], deltas["yeom"]]
        line = {"color": colour(method), "linestyle": linestyle(method), "label": method}
        ax.plot([*angles, angles[0]], [*values, values[0]], **line)
        if method in PUFS:
            ax.fill(angles, values, color=colour(method), alpha=0.15)
    ax.plot(np.linspace(0, 2 * np.pi, 200), np.ones(200), color="#888888", linewidth=1)
    ax.set_theta_offset(np.pi / 2)  # the first spoke points up
    ax.set(ylim=(0, 1.35), yticks=[0.5, 1.0])
    ax.set_xticks(angles, spokes)
    ax.set_yticklabels(["", "nothing /\nretraining"], fontsize=7)
    ax.set_title(title(setting), loc="left")
    ax.legend(loc="center left", bbox_to_anchor=(1.15, 0.5), frameon=False)
    return fig


def operating_modes() -> Figure:
    """Fig. 2, redrawn: who sends an update in a Regular and in a Special round, and with which sign it counts."""
    fig, axes = axes_row(2, height=3.4, width=4.6)
    for ax, (name, active) in zip(axes, (("PUF-Regular", True), ("PUF-Special", False)), strict=True):
        ax.set(xlim=(-0.6, 3.6), ylim=(-0.55, 2.6), xticks=[], yticks=[])
        ax.axis("off")
        box = {"boxstyle": "round,pad=0.4", "facecolor": "#eeeeee", "edgecolor": "#555555"}
        step = r"$w_t + \eta_s(\eta_r\Delta^+ - \eta_u\Delta^-)$" if active else r"$w_t - \eta_s\eta_u\Delta^-$"
        ax.text(1.5, 2.2, f"server: {step}", ha="center", va="center", bbox=box)
        for i in range(4):
            leaves = i == 3
            takes_part = leaves or active
            shade = colour(name) if leaves else "#ffffff" if active else "#f4f4f4"
            edge = "#333333" if takes_part else "#bbbbbb"
            who = "leaves" if leaves else f"client {i}"
            looks = {"boxstyle": "circle,pad=0.35", "facecolor": shade, "edgecolor": edge}
            ink = "#ffffff" if leaves else edge
            ax.text(i, 0, who, ha="center", va="center", fontsize=8, bbox=looks, color=ink)
            if takes_part:
                arrow = {"arrowstyle": "-|>", "color": colour(name) if leaves else "#333333", "linewidth": 1.5}
                ax.annotate("", (0.6 + 0.6 * i, 1.95), (i, 0.42), arrowprops=arrow)
                label = r"$-\eta_u\Delta_3$" if leaves else rf"$+\Delta_{i}$"
                ink = colour(name) if leaves else "#333333"
                ax.text(0.8 * i + 0.3, 1.18, label, ha="center", va="center", backgroundcolor="white", color=ink)
        ax.set_title(name, loc="left")
    return fig


def sweep_scatter(e: Experiment, runs: pd.DataFrame, scenario: str = "clients", stop: str = "test") -> Figure:
    """Fig. 5 (and 6, for segmentation): recovery rounds against what is left of the forget gap, per (eta_u, E_u).

    Means over the sweep's runs; near the origin is good. Natural, NoT and PGA on the same requests and seeds.
    Where a run diverged, no dot but a note.
    """
    settings = e.sweep_settings if scenario == "clients" else e.scenario(scenario).settings
    fig, axes = axes_row(len(settings), height=4.0, width=5.6)
    for ax, setting in zip(axes, settings, strict=True):
        swept = runs[(runs.scenario == scenario) & (runs.setting == setting) & (runs.stop == stop)]
        swept = swept[swept.seed.isin(list(e.few_seeds))]
        lost = []
        for key, r in swept[swept.variant != ""].groupby(["method", "eta_u", "epochs_u"]):
            method, eta_u, epochs_u = cast(tuple[str, float, float], key)
            x, y = r.rounds.mean(), r.delta_forget.mean()
            if r.delta_forget.isna().any():  # some targets survived it: their mean would flatter it
                lost.append(f"{method.removeprefix('PUF-')} {eta_u:g}, $E_u$ = {epochs_u:g}")
                continue
            marker = MARKERS.get(epochs_u, "v")
            ax.scatter(x, y, color=colour(method), marker=marker, s=45, edgecolor="white", zorder=3)
            side, dx = ("right", -5) if method == PUFS[0] else ("left", 5)
            ax.annotate(f"{eta_u:g}", (x, y), xytext=(dx, 4), textcoords="offset points", ha=side, fontsize=8)
        for method in SWEPT_AGAINST:
            r = swept[(swept.method == method) & (swept.variant == "")]
            if len(r):
                ax.scatter(r.rounds.mean(), r.delta_forget.mean(), color=colour(method), marker="*", s=130, zorder=2)
        _sweep_legend(ax, swept)
        if lost:
            told = textwrap.fill(f"diverged, not shown: {'; '.join(lost)}", 60)
            ax.text(0.5, -0.2, told, transform=ax.transAxes, ha="center", va="top", fontsize=8)
        ax.set(title=title(setting), xlabel="recovery rounds", ylabel=f"Δ forget {_measure(setting)}", ylim=(0, None))
    return fig


def _sweep_legend(ax: Axes, swept: pd.DataFrame) -> None:
    """Colours for methods, markers for E_u; the numbers beside the dots are eta_u."""
    for method in (*PUFS, *SWEPT_AGAINST):
        if (swept.method == method).any():
            marker = "o" if method in PUFS else "*"
            ax.scatter([], [], color=colour(method), marker=marker, label=method)
    for epochs_u in sorted(swept.epochs_u.dropna().unique()):
        marker = MARKERS.get(float(epochs_u), "v")
        ax.scatter([], [], color="#777777", marker=marker, label=f"$E_u$ = {epochs_u:g}")
    ax.legend(loc="best", fontsize=8, title="number: $\\eta_u$", title_fontsize=8)


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


def tidy(unlearnings: Unlearnings, trainings: Trainings, references: Unlearnings | None = None) -> pd.DataFrame:
    """One row per run and stop rule, with differences to the retrained model of the same seed and request.

    `references` holds the Retrain runs if `unlearnings` does not. Runs of unsupported cases have no row, those that
    diverged have one without numbers.
    """
    rows: list[dict[str, Any]] = []
    for cell, record in unlearnings.items():
        if "unsupported" in record.metrics:
            continue
        options = record.config.get("options", {})
        swept = {name: options[name] for name in ("eta_u", "epochs_u") if name in options}
        if "diverged" in record.metrics:
            rows += [{**cell._asdict(), "stop": stop, **swept, "record": record.key} for stop in STOP_RULES]
            continue
        retrained = (references or unlearnings)[cell._replace(method="Retrain", variant="")].metrics["final"]
        training = trainings[cell.scenario, cell.setting, cell.seed, cell.request].metrics
        for stop in STOP_RULES:
            m: dict[str, Any] = dict(record.metrics.get("final") or record.metrics[stop])
            if cell.method == "Retrain":
                m |= {"bytes": training["bytes"], "images": training["images"]}
            spent = [cost for cost in ("bytes", "images") if m.get(cost)]  # none where nothing was sent
            gains = {f"{cost}_gain": training[cost] / m[cost] for cost in spent}
            compared = [name for name in ("test", "loss", *ATTACKS) if name in m]
            deltas = {f"delta_{name}": abs(m[name] - retrained[name]) for name in compared}
            step = {f"unlearned_{k}": v for k, v in record.metrics.get("unlearned", {}).items() if k != "sha256"}
            rows.append({**cell._asdict(), "stop": stop, **m, **deltas, **gains, **step, **swept, "record": record.key})
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*Cell._fields, "stop", "record"])


def diverged(unlearnings: Unlearnings) -> dict[str, str]:
    """Method, and eta_u and E_u where they are swept -> in how many of its runs training left the numbers."""
    counts: dict[str, list[bool]] = {}
    for cell, record in unlearnings.items():
        name = f"{cell.method} ({cell.variant})" if cell.variant else cell.method
        counts.setdefault(f"{title(cell.setting)}: {name}", []).append("diverged" in record.metrics)
    return {name: f"{sum(lost)} of {len(lost)} runs" for name, lost in counts.items() if any(lost)}


def unsupported(unlearnings: Unlearnings, scenario: str) -> dict[str, str]:
    """Method -> why it cannot serve the scenario's requests, in its own words."""
    return {
        cell.method: record.metrics["unsupported"]
        for cell, record in unlearnings.items()
        if cell.scenario == scenario and "unsupported" in record.metrics
    }


def needs_table(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> pd.DataFrame:
    """Table I for the methods here: ✓ where a method does without. From each method's own `NEEDS`.

    "agrees with the runs" counts the entries that the records can tell: the task, several clients at once,
    rounds, and whether the model depends on who leaves. "paper says" lists where Table I has it otherwise.
    """
    printed = published("puf", "table_i").set_index("work")
    printed.index = [name.split(" ")[0] for name in printed.index]
    rows = []
    for method, needs in NEEDS.items():
        seen = _seen(method, runs, unlearnings)
        agrees = sum(getattr(needs, name) == value for name, value in seen.items())
        row = {"method": method}
        row |= {heading: "–" if getattr(needs, name) else "✓" for name, (heading, _) in COLUMNS.items()}
        row["agrees with the runs"] = f"{agrees} of {len(seen)}"
        name = method.split("-")[0]
        if name in printed.index:
            differs = [h for n, (h, column) in COLUMNS.items() if bool(printed[column][name]) == getattr(needs, n)]
            row["paper says otherwise"] = ", ".join(differs) or "nowhere"
        else:
            row["paper says otherwise"] = "not in its table"
        rows.append(row)
    return pd.DataFrame(rows)


def _seen(method: str, runs: pd.DataFrame, unlearnings: Unlearnings) -> dict[str, bool]:
    """What the records show of a method's needs; only what they can show."""
    found = {}
    ran = {cell.scenario for cell in unlearnings if cell.method == method}
    for scenario, need in (("segmentation", "task"), ("pairs", "one_at_a_time")):
        if scenario in ran:
            found[need] = method in unsupported(unlearnings, scenario)
    own = runs[(runs.method == method) & (runs.scenario == "clients")]
    if method in METHODS and len(own):
        found["several_rounds"] = bool(own.unlearning_rounds.max() > 1)
    models = [
        (cell.setting, cell.seed, record.metrics["unlearned"]["sha256"])
        for cell, record in unlearnings.items()
        if (cell.scenario, cell.method) == ("clients", method) and "unlearned" in record.metrics
    ]
    if len(models) > len({model[:2] for model in models}):  # several targets
        found["blind"] = len(set(models)) < len(models)
    return found


def forgetting_table(
    e: Experiment, runs: pd.DataFrame, setting: str, scenario: str = "clients", stop: str = "validation"
) -> pd.DataFrame:
    """Tables III to VI, efficacy: mean ± standard deviation over runs, and Δ, the mean ± standard deviation of the
    absolute difference to the retrained model of the same seed and request, with the paper's Δ beside it.
    A method that cannot serve the request has dashes."""
    paper = _paper_rows(scenario, setting)
    masks = Setting.parse(setting).split == "site"
    rows = []
    for method in e.scenario(scenario).methods:
        r = _cell(runs, scenario, setting, method, stop)
        row = {"method": method, f"test {'Dice' if masks else 'acc.'} %": _spread(r, "test")}
        for name, (heading, printed) in (ON_MASKS if masks else ATTACKS).items():
            digits = 2 if name == "loss" else 1
            row[heading + ("" if name == "loss" else " %")] = _spread(r, name, digits)
            row[f"Δ {heading}"] = "–" if method == "Retrain" else _spread(r, f"delta_{name}", digits)
            row[f"paper's Δ {heading}"] = _printed_delta(paper, method, printed, digits)
        rows.append(row)
    return pd.DataFrame(rows)


def cost_table(
    e: Experiment,
    runs: pd.DataFrame,
    setting: str,
    flops: float,
    scenario: str = "clients",
    stop: str = "validation",
) -> pd.DataFrame:
    """Tables III to VI, efficiency: both phases together, counted, with the gain over retraining and the paper's.

    flops: measured per training image of the setting's net; the paper's nominal F stands beside it.
    """
    paper = _paper_rows(scenario, setting)
    rows = []
    for method in e.scenario(scenario).methods:
        r = _cell(runs, scenario, setting, method, stop)
        if method == "Original" or r.empty:
            continue
        row = {"method": method, "recovery rounds": "–"}
        if method in METHODS and method != "FedEraser":
            missed = f" ({(~r.reached.astype(bool)).sum()} of {len(r)} gave up)" if not r.reached.all() else ""
            row["recovery rounds"] = spread(r.rounds) + missed
        row |= {
            "bytes sent": f"{r.bytes.mean():.2e}",
            "of them unlearning": f"{r.unlearning_bytes.mean():.2e}" if method in METHODS else "–",
            "fewer, ×": _gain(r.bytes_gain),
            "paper's ×": f"{paper.comm_gain[method]:g}" if method in paper.index else "–",
            "FLOPs, measured": f"{r.images.mean() * flops:.2e}",
            "FLOPs, nominal F": f"{r.images.mean() * NOMINAL_FLOPS['ResNet-18']:.2e}",
            "fewer FLOPs, ×": _gain(r.images_gain),
        }
        if method in METHODS:
            row["bytes kept"] = f"{r.storage.mean():.2e}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("–")


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Numbers behind every table: mean, sample standard deviation and count per block, method and stop rule."""
    places = ["scenario", "setting", "method", "variant", "stop"]
    numeric = [c for c in runs.columns if c not in (*places, "seed", "request", "record", "reached")]
    groups = runs.groupby(places, sort=False)[numeric]
    wide = groups.agg(["mean", "std"])
    wide.columns = ["_".join(column) for column in wide.columns.to_list()]
    wide.insert(0, "n", groups.size())
    return wide.dropna(axis=1, how="all").reset_index()


def forms_table(e: Experiment, runs: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """PUF with n_i (corrected) and without (Algorithm 1 to the letter), first setting: what hangs on it."""
    rows = []
    for method in PUFS:
        for form, frame in (("corrected", runs[runs.variant == ""]), ("as printed", printed)):
            r = _cell(frame, "clients", e.settings[0], method, "validation", variant=None)
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


def norms_table(e: Experiment, runs: pd.DataFrame, full: pd.DataFrame) -> pd.DataFrame:
    """What `n` counts in a Special round for samples: the forgotten ones (Eq. 4), or all of the target's (its code)."""
    rows = []
    for setting in e.sample_settings:
        for counted, frame in (("forgotten samples", runs), ("all of the target's", full)):
            r = _cell(frame, "samples", setting, "PUF-Special", "validation", variant=None)
            rows.append(
                {
                    "setting": title(setting),
                    "n counts": counted,
                    "step / |w|": f"{r.unlearned_step.mean():.2g}",
                    "forget acc. % right after": mean_spread(r.unlearned_forget),
                    "recovery rounds": mean_spread(r.rounds),
                    "Δ forget after recovery": mean_spread(r.delta_forget),
                }
            )
    return pd.DataFrame(rows)


def settings_table(e: Experiment, descriptions: Mapping[str, Record]) -> pd.DataFrame:
    """Table II for our runs: every scenario and setting, with what is trained and how often."""
    rows = []
    for s in e.scenarios():
        for text in s.settings:
            config = e.training(s, text, s.seeds[0])
            rows.append(
                {
                    "who asks": s.heading,
                    "data": title(text),
                    "net": config["model"],
                    "P": f"{descriptions[text].metrics['parameters']:,}",
                    "clients": config["clients"],
                    "rounds": config["rounds"],
                    "E": config["epochs"],
                    "B": config["batch_size"],
                    "optimiser": f"{config['optimiser']}, lr {config['lr']:g}",
                    "requests x seeds": f"{len(s.requests)} x {len(s.seeds)}",
                }
            )
    return pd.DataFrame(rows)


def equivalence_table(equivalence: Unlearnings) -> pd.DataFrame:
    """Claim P14: |Special - Regular| in percent of the Special step, per setting."""
    rows = [(title(cell.setting), 100 * r.metrics["relative_difference"]) for cell, r in equivalence.items()]
    frame = pd.DataFrame(rows, columns=["setting", "difference"])
    return frame.groupby("setting", sort=False).difference.agg(["mean", "std", "max", "count"]).reset_index()


# --- helpers ---------------------------------------------------------------------------------------------------------


def _of(unlearnings: Unlearnings, scenario: str, setting: str, method: str) -> list[Record]:
    return [
        record
        for cell, record in unlearnings.items()
        if (cell.scenario, cell.setting, cell.method, cell.variant) == (scenario, setting, method, "")
        and not {"unsupported", "diverged"} & set(record.metrics)
    ]


def _extended(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[values[-1]] * (length - len(values))]


def _cell(
    runs: pd.DataFrame, scenario: str, setting: str, method: str, stop: str, variant: str | None = ""
) -> pd.DataFrame:
    """The rows of one block and method; `variant`: None for whichever."""
    here = (runs.scenario == scenario) & (runs.setting == setting) & (runs.method == method) & (runs.stop == stop)
    return runs[here if variant is None else here & (runs.variant == variant)]


def _measure(setting: str) -> str:
    return "Dice (%)" if Setting.parse(setting).split == "site" else "accuracy (%)"


def _polar(width: float, height: float) -> tuple[Figure, Any]:
    return plt.subplots(figsize=(width, height), subplot_kw={"projection": "polar"})


def _share_of_retraining(gain: pd.Series) -> float:
    """Cost relative to retraining on a logarithmic axis: 1 is retraining, 0 a thousandth of it or nothing."""
    share = (1 / gain).fillna(0.0).mean()
    return max(0.0, 1 + float(np.log10(share)) / 3) if share > 0 else 0.0


def _spread(runs: pd.DataFrame, name: str, digits: int = 1) -> str:
    return spread(runs[name], digits) if len(runs) else "–"


def _paper_rows(scenario: str, setting: str) -> pd.DataFrame:
    """The rows of the paper's nearest setting, by method; none where it has nothing of the kind."""
    place = PAPER_SETTING.get((scenario, Setting.parse(setting).split))
    if place is None:
        return pd.DataFrame()
    table = published("puf", f"table_{place[0]}")
    return table[table.setting == place[1]].set_index("method")


def _printed_delta(paper: pd.DataFrame, method: str, name: str, digits: int) -> str:
    if method not in paper.index or pd.isna(paper[f"{name}_delta"][method]):
        return "–"
    return f"{paper[f'{name}_delta'][method]:.{digits}f} ± {paper[f'{name}_delta_std'][method]:.{digits}f}"


def _gain(values: pd.Series) -> str:
    """Retrain's cost over the method's mean cost; infinite where nothing was sent in any run."""
    cost = (1 / values).fillna(0.0).mean()  # in units of Retrain's; missing: nothing was sent
    return f"{1 / cost:.1f}" if cost else "∞"
