"""Certified DFL's figures and tables, drawn from run records only. Numbers as in the paper: Fig. 1, 2, Tables I-IV.

Every function takes the experiment and what certified_dfl's run functions return, or the frame of `tidy`, and
returns a matplotlib figure or a DataFrame; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fu_papers import problem_figures
from fu_papers.certified_dfl.grid import DU_FORMS, REFERENCES, WHOLE_CLIENTS, Cell, Experiment, Place
from fu_papers.lab.record import Record
from fu_papers.look import colour, linestyle, published
from fu_papers.problem_figures import axes_row, spread_or_dash
from fu_papers.problems import DATASET_TITLES

Descriptions = Mapping[Place, Record]
Curves = Mapping[tuple[str, str, str], Record]
Speeds = Mapping[tuple[str, str], Record]

SHOWN = {
    "Original": "do nothing (Original)",
    "Fine-tune": "do nothing, 1 round more",
    "Retrain": "Retrain",
    "DU printed": "DU, as printed",
    "DU": "DU, corrected",
    "PDUDT": "PDUDT (reconstruction)",
}
ROWS = ("Original", "Fine-tune", "Retrain", *DU_FORMS)  # the order of every table
NET_TITLES = {
    "unit_softmax": "softmax regression",
    "softmax_regression": "softmax regression",
    "mlp": "MLP",
    "tiny_cnn": "tiny CNN",
    "lenet": "LeNet",
    "simple_cnn": "CNN",
    "small_resnet": "small ResNet",
    "resnet18": "ResNet-18",
}
TOPOLOGY_TITLES = {"ring": "ring", "erdos_renyi": "Erdős–Rényi"}
REQUESTS = {"sample": "sample-wise", "class": "class-wise", "client": "client-wise"}
PAPER_TABLES = {
    ("sample", "iid"): "i",
    ("sample", "dirichlet-0.3"): "ii",
    ("class", "iid"): "iii",
    ("class", "dirichlet-0.3"): "iv",
}
PAPER_NAMES = {  # ours -> the paper's; its DU is Algorithm 1, hence our printed form
    "mnist": "MNIST", "fashion_mnist": "F-MNIST", "cifar10": "CIFAR-10", "ring": "RING", "erdos_renyi": "ER",
    "Retrain": "RT", "DU printed": "DU",
}  # fmt: skip
SAME_PLACE = ["dataset", "split", "topology", "seed", "request"]  # what a run shares with its Retrain
COMPARED = ("test", "before_test", "removed", "remaining", "forget", "mia", "auc", "tpr", "mia_off", "auc_off")
POINT = 1.0  # "within 1 point of Retrain"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BYTES = 4  # of a float32, as everything is kept


def dataset_title(dataset: str) -> str:
    """The heading of a data set with its net: "Digits, MLP"."""
    name, net = dataset.split("/")
    return f"{DATASET_TITLES.get(name, name)}, {NET_TITLES.get(net, net)}"


def source(descriptions: Descriptions, datasets: Sequence[str] | None = None) -> str:
    """The line under every table and figure: which data, which net. `datasets`: only those (default: all)."""
    shown = {p.setting: r for p, r in descriptions.items() if datasets is None or p.dataset in datasets}
    return problem_figures.source(shown)


def tidy(unlearnings: Mapping[Cell, Record]) -> pd.DataFrame:
    """One row per cell and run, with differences to Retrain at the same place, for the same request and seed.

    `label`: the choice in the ablation, else the method. `mia_off`, `auc_off`: how far the attack is from guessing.
    `delta_...`: absolute difference to Retrain; `..._retrain`, `..._original`: the values of those two.
    """
    rows: list[dict[str, Any]] = []
    for cell, record in unlearnings.items():
        ablation = cell.group == "choices"
        where = {
            "group": cell.group,
            "request": "sample" if ablation else cell.request,
            "label": cell.request if ablation else cell.method,
            "method": cell.method,
            **cell.place._asdict(),
            "seed": cell.seed,
            "curvature": record.config.get("du", {}).get("curvature"),
        }
        rows.append({**where, **record.metrics, "record": record.key})
    runs = pd.DataFrame(rows)
    runs = runs.assign(mia_off=(runs.mia - 50).abs(), auc_off=(runs.auc - 0.5).abs())
    compared = [name for name in COMPARED if name in runs]
    for method in REFERENCES:
        references = runs[(runs.group == "tables") & (runs.method == method)]
        suffix = f"_{method.lower()}"
        runs = runs.merge(references[[*SAME_PLACE, *compared]], on=SAME_PLACE, how="left", suffixes=("", suffix))
    for name in compared:
        runs[f"delta_{name}"] = (runs[name] - runs[f"{name}_retrain"]).abs()
    return runs


def few(values: pd.Series) -> str:
    """mean ± standard deviation in two digits of the mean, however small or large; a dash unless every seed has one."""
    if not len(values) or values.isna().any():
        return "–"
    exponent = int(np.floor(np.log10(abs(values.mean())))) if values.mean() else 0
    if -4 <= exponent <= 3:
        return problem_figures.spread(values, max(0, 1 - exponent))
    mantissa = problem_figures.spread(values / 10.0**exponent)
    mantissa = f"({mantissa})" if "±" in mantissa else mantissa
    return f"{mantissa} · 10{str(exponent).translate(SUPERSCRIPTS)}"


# --- Tables I to IV --------------------------------------------------------------------------------------------------


def tables_1_to_4(e: Experiment, runs: pd.DataFrame, request: str, split: str) -> pd.DataFrame:
    """Tables I (sample, IID), II (sample, Dirichlet), III (class, IID), IV (class, Dirichlet); paper's rows beside."""
    rows: list[dict[str, Any]] = []
    for place in e.places():
        if place.split != split:
            continue
        for method in ROWS:
            where = {"data set, net": dataset_title(place.dataset), "graph": topology_title(place.topology)}
            row = {**where, "method": SHOWN[method], **_outcome(cell_runs(runs, place, request, method), request)}
            rows.append(row | papers_row(request, split, place.topology, place.dataset, method))
    table = pd.DataFrame(rows)
    pairs = [(name, f"paper: {name}") for name in map(str, table) if not name.startswith("paper: ")]
    return table[[name for pair in pairs for name in pair if name in table]]


def client_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """One client leaves: what Tables I to IV show of samples and classes. The paper has it in Fig. 1 (d-f) alone."""
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        place = e.main(dataset)
        for method in (*ROWS, WHOLE_CLIENTS):
            found = cell_runs(runs, place, "client", method)
            head = {"data set, net": dataset_title(dataset), "method": SHOWN[method]}
            rows.append(head | _outcome(found, "client"))
    return pd.DataFrame(rows)


def choices_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The corrected form with one choice changed at a time, sample-wise, on the convex data set."""
    place = e.main(e.datasets[0])
    rows = [
        {"variant": SHOWN[method], **_outcome(cell_runs(runs, place, "sample", method), "sample")}
        for method in ("Original", "Retrain", "DU printed")
    ]
    r = runs[runs.group == "choices"]
    for label in r.label.unique():
        head = SHOWN["DU"] if label == "corrected" else f"corrected, but with {label}"
        rows.append({"variant": head, **_outcome(r[r.label == label], "sample")})
    return pd.DataFrame(rows)


def cell_runs(runs: pd.DataFrame, place: Place, request: str, method: str) -> pd.DataFrame:
    """A method's runs at one place for one kind of request, a row per seed: one row of Tables I to IV."""
    here = (runs.dataset == place.dataset) & (runs.split == place.split) & (runs.topology == place.topology)
    return runs[here & (runs.group == "tables") & (runs.request == request) & (runs.method == method)]


def papers_row(request: str, split: str, topology: str, dataset: str, method: str) -> dict[str, str]:
    """The paper's accuracies for one row of Tables I to IV; empty where it has none."""
    if (request, split) not in PAPER_TABLES:
        return {}
    name, graph, theirs = (PAPER_NAMES.get(ours) for ours in (dataset.split("/")[0], topology, method))
    table = published("certified_dfl", f"table_{PAPER_TABLES[request, split]}")
    found = table[(table.dataset == name) & (table.topology == graph) & (table.method == theirs)].to_dict("records")
    return {
        heading: f"{row[f'{column}_mean']:.2f} ± {row[f'{column}_std']:.2f}"
        for row in found
        for heading, column in ((f"paper: {_test_heading(request)}", "test_acc"), ("paper: MIA acc. %", "mia_acc"))
    }


def topology_title(topology: str) -> str:
    """The heading of a graph."""
    return TOPOLOGY_TITLES.get(topology, topology)


def _test_heading(request: str) -> str:
    return "test acc. %, all classes" if request == "class" else "test acc. %"


def _outcome(r: pd.DataFrame, request: str) -> dict[str, str]:
    """What a method achieved, in the columns of Tables I to IV. References have no round of fine-tuning after them."""
    reference = bool(r.method.isin(REFERENCES).all())
    row = {_test_heading(request): spread_or_dash(r.test)}
    row["before fine-tuning"] = "–" if reference else spread_or_dash(r.before_test)
    if request == "class":
        row |= {"remaining classes %": spread_or_dash(r.remaining), "removed class %": spread_or_dash(r.removed)}
    return row | {
        "forgotten data %": spread_or_dash(r.forget),
        "MIA acc. %": spread_or_dash(r.mia),
        "MIA AUC": spread_or_dash(r.auc, 3),
        "MIA TPR % at 1 % FPR": spread_or_dash(r.tpr),
        "distance to Retrain (do nothing: 1)": spread_or_dash(r.gap, 2),
        "length of the step / of the model": "–" if reference else few(r.step),
    }


# --- Fig. 1: curves over requests ------------------------------------------------------------------------------------


def phases(curve: Record) -> list[list[tuple[int, float]]]:
    """A curve's (round, test accuracy) in training and after each request. Round 0: before anything was trained."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(1 + max(entry["phase"] for entry in curve.rounds))]
    for entry in curve.rounds:
        found[entry["phase"]].append((entry["round"], entry["test"]))
    return found


def rounds_to_reach(points: Sequence[tuple[int, float]], goal: float, within: float = POINT) -> int | None:
    """The first round whose accuracy is at least `goal - within`; None if there is none."""
    return next((t for t, accuracy in points if accuracy >= goal - within), None)


def curves_figure(e: Experiment, curves: Curves) -> Figure:
    """Fig. 1: test accuracy through training and the requests; top row samples, bottom row one client. One seed.

    After each request every method has its own rounds from the same place on; a thin line waits for the next one.
    """
    granularities = ("sample", "client")
    fig, axes = plt.subplots(2, len(e.datasets), figsize=(5.2 * len(e.datasets), 6.6), squeeze=False)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for row, granularity in zip(axes, granularities, strict=True):
        for ax, dataset in zip(row, e.datasets, strict=True):
            found = {m: curves[dataset, granularity, m] for d, g, m in curves if (d, g) == (dataset, granularity)}
            _curves(ax, found)
            ax.set_title(f"({next(letters)}) {dataset_title(dataset)}")
        row[0].set_ylabel(f"{REQUESTS[granularity]}\ntest accuracy (%)")
    methods = ["Original", *dict.fromkeys(method for _, _, method in curves)]
    handles = [
        Line2D([], [], label="training, the same for all", color=colour("Original")),
        *(Line2D([], [], label=SHOWN[method], **_look(method)) for method in methods),
        Line2D([], [], label="thin: no more rounds", color="#999999", linewidth=0.8),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    return fig


def _look(method: str) -> dict[str, Any]:
    return {"color": colour(method), "linestyle": linestyle(method)}


def _curves(ax: Axes, found: Mapping[str, Record]) -> None:
    """One panel of Fig. 1."""
    paths = {method: phases(record) for method, record in found.items()}
    training = next(iter(paths.values()))[0]  # the same for every method
    K = training[-1][0]
    requests = len(next(iter(paths.values()))) - 1
    width = max(phase[-1][0] for path in paths.values() for phase in path[1:])
    end = K + requests * width
    ax.plot(*zip(*training, strict=True), color=colour("Original"))
    ax.plot([K, end], [training[-1][1]] * 2, **_look("Original"))
    restarts = [phase[0][1] for phase in paths.get("Retrain", [[]])[1:]]
    inside = [accuracy for _, accuracy in training]
    # Dashes last: lines that lie on each other then show both colours.
    for method, path in sorted(paths.items(), key=lambda item: linestyle(item[0]) != "-"):
        for j, phase in enumerate(path[1:]):
            start = K + j * width
            rounds, accuracies = zip(*phase, strict=True)
            ax.plot([start + t for t in rounds], accuracies, **_look(method))
            ax.plot([start + rounds[-1], start + width], [accuracies[-1]] * 2, color=colour(method), lw=0.8)
            # A model that nobody trained yet would press everything else to the upper edge: it leaves the frame.
            inside += accuracies[1 if method == "Retrain" else 0 :]
    low, high = min(inside), max(inside)
    ax.set(xlim=(0, end), ylim=(low - 0.06 * (high - low), high + 0.18 * (high - low)))
    for j in range(requests):
        ax.axvline(K + j * width, color="#555555", linewidth=1.2, zorder=1)
        name = f"request {j + 1}" if requests > 1 else "request"
        ax.text(K + (j + 0.02) * width, 0.985, name, transform=ax.get_xaxis_transform(), va="top", fontsize=9)
    below = bool(restarts) and max(restarts) < ax.get_ylim()[0]
    ax.set_xlabel("rounds" + (f"  (below the frame: Retrain starts at {min(restarts):.0f} %)" if below else ""))
    ax.grid(axis="x", visible=False)


def curves_table(e: Experiment, curves: Curves) -> pd.DataFrame:
    """Fig. 1 in numbers, one entry per request: accuracy at once, at the end of the rounds, and rounds needed.

    Needed: until within one point of what Retrain ends at for that request, on the first seed.
    """
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        for granularity in ("sample", "client"):
            found = {
                m: phases(curves[dataset, granularity, m]) for d, g, m in curves if (d, g) == (dataset, granularity)
            }
            goals = [phase[-1][1] for phase in found["Retrain"][1:]]
            nothing = found["Retrain"][0][-1][1]
            untouched = [[(0, nothing)] for _ in goals]
            for method, after in {"Original": untouched, **{m: path[1:] for m, path in found.items()}}.items():
                rows.append(
                    {
                        "data set, net": dataset_title(dataset),
                        "requests": f"{len(goals)} {REQUESTS[granularity]}",
                        "method": SHOWN[method],
                        "right after each request %": _listed(f"{phase[0][1]:.1f}" for phase in after),
                        "rounds run": _listed(str(phase[-1][0]) for phase in after),
                        "after these rounds %": _listed(f"{phase[-1][1]:.1f}" for phase in after),
                        "rounds to within 1 point of Retrain": _listed(
                            _needed(phase, goal) for phase, goal in zip(after, goals, strict=True)
                        ),
                    }
                )
    return pd.DataFrame(rows)


def _needed(points: Sequence[tuple[int, float]], goal: float) -> str:
    reached = rounds_to_reach(points, goal)
    return f"not within {points[-1][0]}" if reached is None else str(reached)


def _listed(values: Any) -> str:
    """The values of consecutive requests; one for all if they are equal."""
    found = list(values)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


# --- Fig. 2: time ----------------------------------------------------------------------------------------------------


def time_figure(e: Experiment, speeds: Speeds) -> Figure:
    """Fig. 2: seconds from request to a usable model, on a log scale as in the paper; one thread, no seeds."""
    methods = ("Retrain", *DU_FORMS, "PDUDT")
    fig, axes = axes_row(len(REQUESTS), width=4.9, height=1.5 + 1.0 * len(e.datasets))
    slot = len(methods) + 0.8  # the bars of a data set are in the same places in all three panels
    middles = [place * slot + (len(methods) - 1) / 2 for place in range(len(e.datasets))]
    for ax, letter, (granularity, name) in zip(axes, "abc", REQUESTS.items(), strict=True):
        for place, dataset in enumerate(e.datasets):
            seconds = speeds[dataset, granularity].metrics["seconds"]
            for bar, method in enumerate(methods):
                if method not in seconds:
                    continue
                height = place * slot + bar
                ax.barh(height, seconds[method], height=0.85, color=colour(method))
                text = _seconds(seconds[method]) + ("" if method == "Retrain" else f", {_saved(seconds, method)}")
                ax.annotate(
                    text, (seconds[method], height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
                )
        ax.set(xscale="log", xlabel="seconds (log scale)", title=f"({letter}) {name}")
        ax.set_yticks(middles, labels=[dataset_title(d).replace(", ", ",\n") for d in e.datasets])
        ax.tick_params(axis="y", labelleft=ax is axes[0])
        ax.set_ylim(len(e.datasets) * slot - 0.9, -0.9)
        ax.grid(visible=False)  # would cross the numbers
    everything = [s for record in speeds.values() for m, s in record.metrics["seconds"].items() if m in methods]
    for ax in axes:
        ax.set_xlim(min(everything) / 3, max(everything) * 12)  # room for the numbers
    timed = ", ".join(sorted({str(record.metrics["timed_rounds"]) for record in speeds.values()}))
    names = {method: _timed(e, method) for method in methods} | {"Retrain": f"Retrain, from {timed} timed rounds"}
    handles = [Line2D([], [], color=colour(method), linewidth=7, label=name) for method, name in names.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return fig


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:#.2g} s"


def _saved(seconds: Mapping[str, float], method: str) -> str:
    percent = saved_percent(seconds, method)
    return f"{percent:.0f} % saved" if percent >= 0 else f"{-percent:.0f} % more"


def time_table(e: Experiment, speeds: Speeds) -> pd.DataFrame:
    """Fig. 2 in numbers, with the time saved against retraining beside the paper's 97 %."""
    paper = published("certified_dfl", "figure_numbers")
    claimed = paper[paper["where"].str.startswith("Fig. 2")]["value"].item()
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        for method in (*ROWS, "PDUDT"):
            row: dict[str, Any] = {"data set, net": dataset_title(dataset), "method": _timed(e, method)}
            taken = {g: speeds[dataset, g].metrics["seconds"] for g in REQUESTS}
            key = "round" if method == "Fine-tune" else method
            row |= {f"{name}, s": _three(taken[g].get(key)) for g, name in REQUESTS.items()}
            for g, name in REQUESTS.items():
                saved = key in taken[g] and method != "Retrain"
                row[f"saved, {name} %"] = f"{saved_percent(taken[g], key):.1f}" if saved else "–"
            row["paper: saved %"] = f"{claimed:g}" if method == "DU printed" else "–"
            rows.append(row)
    return pd.DataFrame(rows)


def _timed(e: Experiment, method: str) -> str:
    """A method's name where seconds are shown: PDUDT's depend on how many rounds follow its replay."""
    return f"PDUDT (reconstruction), {e.pdudt_rounds} rounds" if method == "PDUDT" else SHOWN[method]


def saved_percent(seconds: Mapping[str, float], method: str) -> float:
    """By how many percent `method` takes less time than retraining; negative if it takes longer."""
    return 100 * (1 - seconds[method] / seconds["Retrain"])


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


# --- the certificate -------------------------------------------------------------------------------------------------

MEASURED = "distance to the best model on retained data, at most"


def certificate_table(e: Experiment, certificates: Sequence[Record], runs: pd.DataFrame) -> pd.DataFrame:
    """Per epsilon: the noise of both calibrations, what it leaves of the accuracy, and whether a model came out.

    Rows without epsilon have no noise. The distance is measured: |gradient of the retained loss| / lambda.
    """
    metrics = pd.DataFrame([record.metrics for record in certificates])
    place = e.main(e.datasets[0])
    released = releases(certificates)
    models = {  # method: accuracy without noise, measured distance
        "Original": (cell_runs(runs, place, "sample", "Original").test, metrics.radius_original),
        "Retrain": (metrics.test_retrained, metrics.radius_retrained),
        "DU printed": (metrics.test_printed, metrics.radius_printed),
        "DU": (metrics.test, metrics.radius),
    }
    forms = {"DU printed": "printed", "DU": "corrected"}
    rows: list[dict[str, Any]] = []
    for method, (accuracy, distance) in models.items():
        retained = method == "DU" and certificates[0].config["du"]["gradient"] == "retained"
        head = {"model": SHOWN[method] + (" (retained gradient)" if retained else ""), MEASURED: few(distance)}
        rows.append({**head, "ε": "no noise", "test acc. %": spread_or_dash(accuracy)})
        for epsilon in e.epsilons if method in forms else ():
            r = released[(released.form == forms[method]) & (released.epsilon == epsilon)]
            came = r[r.released]
            covered = f"{e.budget:g} (budget)" if method == "DU" else few(came.claimed_radius)
            row = {
                "ε": f"{epsilon:g}",
                "released": f"{len(came)} of {len(r)}" if len(came) else "refused",
                "noise σ": few(came.sigma),
                "|noise| / |model|": few(came.ratio),
                "test acc. %": spread_or_dash(came.test),
                "Retrain with this noise %": spread_or_dash(came.retrained),
                "distance the noise covers": covered,
            }
            rows.append(head | row)
    order = [
        "model",
        "ε",
        "released",
        "noise σ",
        "|noise| / |model|",
        "test acc. %",
        "Retrain with this noise %",
        MEASURED,
    ]
    return pd.DataFrame(rows, columns=[*order, "distance the noise covers"]).fillna("–")


def releases(certificates: Sequence[Record]) -> pd.DataFrame:
    """One row per seed, epsilon and form: released or refused, sigma, accuracy, and |noise| / |model|."""
    unknown = dict.fromkeys(("sigma", "test", "retrained", "claimed_radius"), np.nan)
    rows = [
        {
            **unknown,
            **entry,
            "seed": record.config["seed"],
            "length": record.metrics["length"],
            "d": record.metrics["d"],
        }
        for record in certificates
        for entry in record.rounds
    ]
    found = pd.DataFrame(rows)
    return found.assign(ratio=found.sigma * np.sqrt(found.d) / found.length)


def certificate_figure(e: Experiment, certificates: Sequence[Record]) -> Figure:
    """What a certificate costs: accuracy and noise per epsilon, and the measured distance against the budget."""
    metrics = pd.DataFrame([record.metrics for record in certificates])
    released = releases(certificates)
    fig, (left, middle, right) = axes_row(3, height=4.2, width=4.8)
    for form, method in (("printed", "DU printed"), ("corrected", "DU")):
        by_epsilon = released[(released.form == form) & released.released].groupby("epsilon")
        look = _look(method) | {"marker": "o", "capsize": 3}
        for ax, name in ((left, "test"), (middle, "ratio")):
            mean, error = by_epsilon[name].mean(), by_epsilon[name].std().fillna(0)
            ax.errorbar(mean.index, mean, yerr=error, label=f"{SHOWN[method]}, with noise", **look)
    left.axhline(metrics.test.mean(), color=colour("DU"), linewidth=1, label="DU, corrected, no noise")
    left.axhline(metrics.test_retrained.mean(), label="Retrain", **_look("Retrain"))
    left.set(ylim=(0, 102), ylabel="test accuracy (%)", title="(a) accuracy that is left")
    middle.axhline(1, color="#777777", linewidth=1)
    middle.annotate("1: noise as long as the model", (max(e.epsilons), 1), xytext=(0, 4), textcoords="offset points",
                    fontsize=9, ha="right", color="#555555")  # fmt: skip
    middle.set(yscale="log", ylabel="|noise| / |model| (log scale)", title="(b) how much noise")
    for ax in (left, middle):
        ax.set(xscale="log", xlabel="ε (smaller: stricter)")
        ax.set_xticks(list(e.epsilons), labels=[f"{epsilon:g}" for epsilon in e.epsilons])
        ax.minorticks_off()
    measured = {"Original": "radius_original", "Retrain": "radius_retrained", "DU printed": "radius_printed",
                "DU": "radius"}  # fmt: skip
    for place, (method, name) in enumerate(measured.items()):
        right.plot(place, metrics[name].mean(), "D", color=colour(method), markersize=11)
        right.scatter([place] * len(metrics), metrics[name], color="white", edgecolors="#333333", s=16, zorder=3)
    right.axhline(e.budget, color=colour("DU"), linestyle=":", label="budget that the corrected noise covers")
    right.set(yscale="log", ylabel="at most, as measured (log scale)", xlim=(-0.5, len(measured) - 0.5))
    right.set_title("(c) distance to the best model on retained data")
    right.set_xticks(range(len(measured)), labels=["do\nnothing", "Retrain", "DU,\nprinted", "DU,\ncorrected"])
    right.grid(axis="x", visible=False)
    handles = left.get_legend_handles_labels()[0] + right.get_legend_handles_labels()[0]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return fig


# --- storage (Sec. IV-E) ---------------------------------------------------------------------------------------------


def storage_table(e: Experiment, descriptions: Descriptions, runs: pd.DataFrame) -> pd.DataFrame:
    """Sec. IV-E: what a client must keep to be able to forget; by formula, and counted where a run had it."""
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        place = e.main(dataset)
        d = int(descriptions[place].metrics["parameters"])
        neighbours = graph_of(descriptions[place], e.clients).degree[e.leaving]
        rounds = e.of("rounds", dataset)
        here = runs[runs.dataset == dataset]
        forms, replayed = here[here.method.isin(DU_FORMS)], here[here.method == WHOLE_CLIENTS]
        # Beyond a few thousand parameters, and for Gauss-Newton, no matrix is ever built.
        matrix_free = (forms.curvature != "diagonal_fisher") & (forms.kept == 0)
        kinds = {
            "nothing (do nothing, Retrain)": ("–", None, "–", here[here.method.isin(REFERENCES)]),
            "Hessian (DU)": ("d² B", d**2 * BYTES, "O(d²)", forms[(forms.curvature == "hessian") & (forms.kept > 0)]),
            "diagonal Fisher (DU)": ("d B", d * BYTES, "O(d)", forms[forms.curvature == "diagonal_fisher"]),
            "no matrix, products only (DU)": ("–", None, "–", forms[matrix_free]),
            "models and gradients (PDUDT)": (
                f"k N_c d B, k = {rounds}, N_c = {neighbours}",
                replayed.published.max(),
                "O(k N_c d)",
                replayed,
            ),
        }
        for kind, (formula, size, order, counted) in kinds.items():
            if kind.startswith("no matrix") and counted.empty:
                continue
            rows.append(
                {
                    "data set, net": dataset_title(dataset),
                    "parameters d": f"{d:,}",
                    "what is kept": kind,
                    "formula": formula,
                    "by formula": "–" if size is None else in_bytes(size),
                    "counted in our runs": "–" if counted.empty else in_bytes(counted.kept.max()),
                    "models' worth": "–" if size is None else f"{size / (d * BYTES):,.0f}",
                    "paper: order": order,
                }
            )
    return pd.DataFrame(rows)


def traffic_table(e: Experiment, descriptions: Descriptions, runs: pd.DataFrame) -> pd.DataFrame:
    """How many model vectors cross a link per request, counted, first seed; retraining: K rounds over all links.

    The corrected form's curvature is everybody's: its products, or its matrix, are flooded as well.
    """
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        place = e.main(dataset)
        record = descriptions[place].metrics
        for request, title in REQUESTS.items():
            row: dict[str, Any] = {"data set, net": dataset_title(dataset), "request": title}
            row[SHOWN["Retrain"]] = f"{e.of('rounds', dataset) * record['links']:,}"
            for method in (*DU_FORMS, WHOLE_CLIENTS):
                sent = cell_runs(runs, place, request, method).bytes.head(1) / (record["parameters"] * BYTES)
                row[SHOWN[method]] = "–" if sent.empty else f"{sent.item():,.0f}"
            rows.append(row)
    return pd.DataFrame(rows)


def in_bytes(size: float) -> str:
    """A number of bytes for readers: 2.56 kB, 499 TB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def graph_of(description: Record, clients: int) -> nx.Graph:
    """The graph that a place was described with."""
    graph = nx.empty_graph(clients)
    graph.add_edges_from(description.metrics["edges"])
    return graph


# --- who is linked to whom, who holds what ---------------------------------------------------------------------------


def network_figure(e: Experiment, descriptions: Descriptions) -> Figure:
    """The graphs: a dot per client, the one that leaves in the client-wise runs marked."""
    fig, axes = axes_row(len(e.topologies), height=2.9, width=3.4)
    for ax, topology in zip(axes, e.topologies, strict=True):
        graph = graph_of(next(r for place, r in descriptions.items() if place.topology == topology), e.clients)
        at = nx.circular_layout(graph)
        fill = [colour("DU printed") if i == e.leaving else "white" for i in graph]
        nx.draw_networkx_edges(graph, at, ax=ax, edge_color="#999999")
        nx.draw_networkx_nodes(graph, at, ax=ax, node_color=fill, edgecolors="black", node_size=330)
        nx.draw_networkx_labels(graph, at, ax=ax, font_size=10, font_family="DejaVu Sans")
        ax.set(title=f"{topology_title(topology)}, {graph.number_of_edges()} links", aspect="equal")
        ax.set_axis_off()
        ax.margins(0.12)
    fig.supxlabel("filled: the client that leaves", fontsize=10)
    return fig


def labels_figure(e: Experiment, descriptions: Descriptions, dataset: str) -> Figure:
    """How many samples of each class each client holds, one panel per split; the client that leaves is shaded."""
    places = [Place(dataset, split, e.topologies[0]) for split in e.splits]
    return problem_figures.label_distribution({p.setting: descriptions[p] for p in places}, [e.leaving])
