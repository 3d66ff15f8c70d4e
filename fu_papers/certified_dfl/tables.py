"""Certified DFL's tables, drawn from run records only. Numbers as in the paper: Tables I to IV.

Every function takes the experiment and what the stages' runs returned, or the frame of `results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fu_papers import problem_figures
from fu_papers.certified_dfl.grid import DU_FORMS, WHOLE_CLIENTS, Experiment, granularity
from fu_papers.certified_dfl.results import (
    Certificates,
    Curves,
    Descriptions,
    Speeds,
    cell_runs,
    graph_of,
    needed_rounds,
    of_dataset,
    paths,
    releases,
    saved_percent,
    served,
)
from fu_papers.certified_dfl.titles import IN_CURVES, REQUESTS, SERVED, SHOWN, timed_title, topology_title
from fu_papers.controls import CONTROLS, REFERENCES
from fu_papers.look import published, published_row
from fu_papers.problem_figures import spread_or_dash
from fu_papers.problems import dataset_title

ROWS = (*CONTROLS, "Fine-tune", *DU_FORMS)  # the order of every table
PRICED = ("Original", "Fine-tune", "Retrain", *DU_FORMS, WHOLE_CLIENTS)
PAPER_TABLES = {
    ("sample", "iid"): "i", ("sample", "dirichlet-0.3"): "ii",
    ("class", "iid"): "iii", ("class", "dirichlet-0.3"): "iv",
}  # fmt: skip
PAPER_NAMES = {  # ours -> the paper's; its DU is Algorithm 1, hence our printed form
    "mnist": "MNIST", "fashion_mnist": "F-MNIST", "cifar10": "CIFAR-10", "ring": "RING", "erdos_renyi": "ER",
    "Retrain": "RT", "DU printed": "DU",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BYTES = 4  # of a float32, as everything is kept
MEASURED = "distance to the best model on retained data, at most"


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


def numbered(e: Experiment) -> list[tuple[str, str, str]]:
    """Which of Tables I to IV the experiment has: name, granularity, split."""
    both = [("sample", ("Table I", "Table II")), ("class", ("Table III", "Table IV"))]
    return [(name, kind, split) for kind, names in both for name, split in zip(names, e.splits, strict=False)]


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
    rows = []
    for method in (*CONTROLS, "DU printed"):
        found = cell_runs(runs, place, "sample", method)
        rows.append({"variant": SHOWN[method], **_outcome(found, "sample"), **_price(found)})
    r = runs[runs.group == "choices"]
    for label in r.label.unique():
        head = label if label.startswith("as printed") else f"corrected, but with {label}"
        head = SHOWN["DU"] if label == "corrected" else head
        found = r[r.label == label]
        rows.append({"variant": head, **_outcome(found, "sample"), **_price(found)})
    return pd.DataFrame(rows).fillna("–")


def net_choices_table(e: Experiment, runs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """On nets: which curvature and gradient a step takes, how long the printed one may be (one seed). kind: "class"…"""
    rows: list[dict[str, Any]] = []
    for place in e.on_last_graph(*e.datasets[1:]):
        where = {"data set, net": dataset_title(place.dataset), "split": place.split}
        for method in (*CONTROLS, *DU_FORMS):
            found = cell_runs(runs, place, kind, method)
            rows.append({**where, "variant": SHOWN[method], **_outcome(found, kind), **_price(found)})
        r = runs[(runs.group == "nets") & (runs.setting == place.setting) & (runs.request.map(granularity) == kind)]
        for label in r.label.unique():
            found = r[r.label == label]
            rows.append({**where, "variant": label, **_outcome(found, kind), **_price(found)})
    return pd.DataFrame(rows).fillna("–")


def _price(r: pd.DataFrame) -> dict[str, str]:
    """What the step and what follows it took: passes, a product counted as two, and vectors."""
    if bool(r.method.isin(CONTROLS).all()):
        return {}
    return {"passes": f"{(r.images + 2 * r.products).mean():,.0f}", "Newton steps": _range(r.get("steps"))}


def _range(values: Any) -> str:
    """`"2"`, or `"2 to 4"`; a dash for none."""
    if values is None or values.isna().all():
        return "–"
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def papers_row(request: str, split: str, topology: str, dataset: str, method: str) -> dict[str, str]:
    """The paper's accuracies for one row of Tables I to IV; empty where it has none."""
    if (request, split) not in PAPER_TABLES:
        return {}
    names = (PAPER_NAMES.get(ours) for ours in (dataset.split("/")[0], topology, method))
    where = dict(zip(("dataset", "topology", "method"), names, strict=True))
    columns = {f"{column}_{part}": f"{column}_{part}" for column in ("test_acc", "mia_acc") for part in ("mean", "std")}
    row = published_row("certified_dfl", f"table_{PAPER_TABLES[request, split]}", where, columns)
    return {
        heading: f"{row[f'{column}_mean']:.2f} ± {row[f'{column}_std']:.2f}"
        for heading, column in ((f"paper: {_test_heading(request)}", "test_acc"), ("paper: MIA acc. %", "mia_acc"))
        if row
    }


def _test_heading(request: str) -> str:
    return "test acc. %, all classes" if request == "class" else "test acc. %"


def _outcome(r: pd.DataFrame, request: str) -> dict[str, str]:
    """What a method achieved, in the columns of Tables I to IV. References have no round of fine-tuning after them."""
    reference = bool(r.method.isin(CONTROLS).all())
    row = {_test_heading(request): spread_or_dash(r.test)}
    row["before fine-tuning"] = "–" if reference else spread_or_dash(r.before_test)
    if request == "class":
        row |= {"remaining classes %": spread_or_dash(r.remaining), "removed class %": spread_or_dash(r.removed)}
    return row | {
        "forgotten data %": spread_or_dash(r.forget),
        "MIA acc. %": spread_or_dash(r.mia),
        "MIA AUC": spread_or_dash(r.auc, 3),
        "MIA TPR % at 1 % FPR": spread_or_dash(r.tpr),
        "KL to Retrain on it, nats": few(r.kl),
        "distance to Retrain (do nothing: 1)": spread_or_dash(r.gap, 2),
        "to exact retraining (do nothing: 1)": spread_or_dash(r.exact_gap, 3) if "exact_gap" in r else "–",
        "length of the step / of the model": "–" if reference else few(r.step),
    }


# --- Fig. 1 and 2 in numbers -----------------------------------------------------------------------------------------


def curves_table(e: Experiment, curves: Curves) -> pd.DataFrame:
    """Fig. 1 in numbers, one entry per request: accuracy at once, at the end of the rounds, and rounds needed.

    Accuracies are means over seeds; needed: until within one point of what Retrain ends at for that request, from the
    seed that needs fewest to the one that needs most.
    """
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        for kind in ("sample", "client"):
            found = paths(curves, dataset, kind)
            requests = range(1, len(found["Retrain"][0]))
            goals = {j: [path[j][-1][1] for path in found["Retrain"]] for j in requests}
            untouched = [[path[0], *([(0, path[0][-1][1])] for _ in requests)] for path in found["Retrain"]]
            for method, of_seeds in {"Original": untouched, **found}.items():
                after = {j: [path[j] for path in of_seeds] for j in requests}
                rows.append(
                    {
                        "data set, net": dataset_title(dataset),
                        "requests": f"{len(requests)} {REQUESTS[kind]}",
                        "method": IN_CURVES[method],
                        "right after each request %": _listed(f"{_mean(after[j], 0):.1f}" for j in requests),
                        "rounds run": _listed(str(after[j][0][-1][0]) for j in requests),
                        "after these rounds %": _listed(f"{_mean(after[j], -1):.1f}" for j in requests),
                        "rounds to within 1 point of Retrain": _listed(
                            needed_rounds(after[j], goals[j]) for j in requests
                        ),
                        "seeds": len(of_seeds),
                    }
                )
    return pd.DataFrame(rows)


def _mean(phase: Sequence[Sequence[tuple[int, float]]], at: int) -> float:
    """The mean over seeds of what a phase's first (0) or last (-1) round reaches."""
    return float(np.mean([points[at][1] for points in phase]))


def _listed(values: Any) -> str:
    """The values of consecutive requests; one for all if they are equal."""
    found = list(values)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def time_table(e: Experiment, speeds: Speeds) -> pd.DataFrame:
    """Fig. 2 in numbers, with the time saved against retraining beside the paper's 97 %."""
    paper = published("certified_dfl", "figure_numbers")
    claimed = paper[paper["where"].str.startswith("Fig. 2")]["value"].item()
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        for method in PRICED:
            row: dict[str, Any] = {"data set, net": dataset_title(dataset), "method": timed_title(e, method)}
            row["curvature from"] = e.sampled(dataset, method)
            taken = {g: speeds[dataset, g].metrics["seconds"] for g in REQUESTS}
            key = "round" if method == "Fine-tune" else method
            row |= {f"{name}, s": _three(taken[g].get(key)) for g, name in REQUESTS.items()}
            for g, name in REQUESTS.items():
                saved = key in taken[g] and method != "Retrain"
                row[f"saved, {name} %"] = f"{saved_percent(taken[g], key):.1f}" if saved else "–"
            row["paper: saved %"] = f"{claimed:g}" if method == "DU printed" else "–"
            rows.append(row)
    return pd.DataFrame(rows)


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


# --- the certificate -------------------------------------------------------------------------------------------------


def certificate_table(e: Experiment, certificates: Certificates) -> pd.DataFrame:
    """Per epsilon: the noise of both calibrations, what it leaves of the accuracy, and whether a model came out.

    At the main place, sample-wise. Rows without epsilon have no noise. The distance is measured: |gradient of the
    retained loss| / lambda.
    """
    place = e.main(e.datasets[0])
    here = {where: record for where, record in certificates.items() if where[:2] == (place, "sample")}
    released, corrected, printed = releases(here), served(here), served(here, "printed")
    rows: list[dict[str, Any]] = [
        {"model": SHOWN["Original"], MEASURED: few(corrected.radius_before), "ε": "no noise",
         "test acc. %": spread_or_dash(corrected.test_before)},
        {"model": "exact retraining", MEASURED: "0", "ε": "no noise",
         "test acc. %": spread_or_dash(corrected.test_exact)},
    ]  # fmt: skip
    for method, form, plain in (("DU printed", "printed", printed), ("DU", "corrected", corrected)):
        head = {"model": SHOWN[method], MEASURED: few(plain.radius)}
        rows.append({**head, "ε": "no noise", "test acc. %": spread_or_dash(plain.test)})
        for epsilon in e.epsilons:
            r = released[(released.form == form) & (released.epsilon == epsilon)]
            came = r[r.released.astype(bool)]
            row = {
                "ε": f"{epsilon:g}",
                "released": f"{len(came)} of {len(r)}" if len(came) else "refused",
                "noise σ": few(came.sigma),
                "|noise| / |model|": few(came.ratio),
                "test acc. %": spread_or_dash(came.test),
                "exact retraining with this noise %": spread_or_dash(came.retrained),
                "distance the noise covers": f"{e.budget:g} (budget)" if method == "DU" else few(came.claimed_radius),
            }
            rows.append(head | row)
    order = ["model", "ε", "released", "noise σ", "|noise| / |model|", "test acc. %",
             "exact retraining with this noise %", MEASURED, "distance the noise covers"]  # fmt: skip
    return pd.DataFrame(rows, columns=order).fillna("–")


def certified_cells_table(e: Experiment, certificates: Certificates, epsilon: float) -> pd.DataFrame:
    """Every convex cell and kind of request with a certificate at one epsilon, DU as the tables use it: one variant.

    Requests one after the other: the last of them, and the epsilon of all releases together.
    """
    released, plain = releases(certificates), served(certificates)
    at = released[(released.form == "corrected") & (released.epsilon == epsilon)]
    rows: list[dict[str, Any]] = []
    for place, kind in dict.fromkeys((place, kind) for place, kind, _ in certificates):
        r = plain[(plain.place == place) & (plain.kind == kind)]
        last = r[r.of == r.of.max()]
        came = at[(at.place == place) & (at.kind == kind)]
        ended = came[came.request.isin(last.request) & came.released.astype(bool)]
        records = [record for (p, k, _), record in certificates.items() if (p, k) == (place, kind)]
        together = [record.metrics["composed"][f"{epsilon:g}"] for record in records]
        rows.append(
            {
                "data set, net": dataset_title(place.dataset),
                "split": place.split,
                "graph": topology_title(place.topology),
                "request": SERVED[kind],
                "distance before, at most": few(r[r.of == 1].radius_before),
                "Newton steps": _range(r.steps.map(len)),
                "and after": few(last.radius),
                "to exact retraining (do nothing: 1)": few(last.exact_gap),
                "passes": f"{(r.images + 2 * r.products).groupby(r.seed).sum().mean():,.0f}",
                "released": f"{int(came.released.sum())} of {len(came)}",
                "noise σ": few(ended.sigma),
                "test acc. %": spread_or_dash(ended.test),
                "exact retraining with this noise %": spread_or_dash(ended.retrained),
                "without noise %": spread_or_dash(last.test_exact),
                "ε of all releases": "–" if None in together else f"{np.mean(together):.3g}",
            }
        )
    return pd.DataFrame(rows)


# --- storage (Sec. IV-E) ---------------------------------------------------------------------------------------------


def storage_table(e: Experiment, descriptions: Descriptions, runs: pd.DataFrame) -> pd.DataFrame:
    """Sec. IV-E: what a client must keep to be able to forget; by formula, and counted where a run had it."""
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        place = e.main(dataset)
        d = int(descriptions[place].metrics["parameters"])
        neighbours = graph_of(descriptions[place], e.clients).degree[e.leaving]
        rounds = e.of_dataset("rounds", dataset)
        here = of_dataset(e, runs, dataset)
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

    The corrected form's curvature is everybody's: its products are summed over a tree.
    """
    rows: list[dict[str, Any]] = []
    for dataset in e.datasets:
        place = e.main(dataset)
        record = descriptions[place].metrics
        for request, title in REQUESTS.items():
            row: dict[str, Any] = {"data set, net": dataset_title(dataset), "request": title}
            row[SHOWN["Retrain"]] = f"{e.of_dataset('rounds', dataset) * record['links']:,}"
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
