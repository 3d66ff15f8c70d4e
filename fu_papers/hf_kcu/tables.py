"""HF-KCU's tables, from run records only: Tables 1 to 9, and what stands beside them.

Every function takes the experiment and records or the wide frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fu_papers.controls import AGAIN, CONTROLS, DESTROYED, REFERENCES, Standing, warned, wrong_controls
from fu_papers.hf_kcu.cells import (
    NETS,
    all_diverged,
    beside_retrain,
    distances,
    faithfulness,
    floors_of,
    gain,
    gains,
    paper_faithfulness,
    step_length,
)
from fu_papers.hf_kcu.grid import BESIDE, FORMS, METHODS, ROUND, SAME_START, Experiment
from fu_papers.hf_kcu.results import Speeds, asr_reduction, main_runs, mean_of, on_setting, rows_of, shown, timed
from fu_papers.look import published_row
from fu_papers.problem_figures import spread_or_dash, title
from fu_papers.problems import Setting

PAPER_NAMES = {"Original": "FedAvg (trained)", "Retrain": "Retrained", "HF-KCU printed": "HF-KCU"}
# Rows of tables that have a column for Retrain
BESIDE_RETRAIN = ("Original", AGAIN, SAME_START, DESTROYED, *FORMS, *BESIDE)
DATASETS = {"mnist": "MNIST", "fashion_mnist": "FMNIST", "cifar10": "CIFAR-10"}
# the paper's column under our heading; which table has which
ACCURACY = {"paper: acc. %": "acc_pct"}
AFTER = {"paper: acc. %": "unlearned_acc_pct", "paper: Retrain": "retrained_acc_pct"}
FASTER = {"paper: ×": "speedup"}


def table_1(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table 1: every method on the main setting, with the paper's numbers and its CF recomputed from them.

    × faster: of one seed's run, which was timed alone.
    """
    rows: list[dict[str, Any]] = []
    for method in (*floors_of(e, runs), *METHODS):
        r = main_runs(e, runs, method)
        faster = gains(timed(e, speeds, e.main), method, r)
        row: dict[str, Any] = {
            "method": shown(method),
            "test acc. %": spread_or_dash(r.test),
            "forget acc. %": spread_or_dash(r.forget),
            "Δ forget": "–" if method == "Retrain" else spread_or_dash(r.delta_forget),
            "CF": faithfulness(r),
            "MIA": spread_or_dash(r.mia, 3),
            "Δ MIA": "–" if method == "Retrain" else spread_or_dash(r.delta_mia, 3),
            "step / |w|": step_length(r),
            **faster,
            **distances(r),
        }
        if all_diverged(r):  # what is far from everything has no score, and no speed
            row |= dict.fromkeys(("Δ forget", "CF", "MIA", "Δ MIA", *faster), "–")
        # the paper has the printed form, and no such controls
        if method not in ("HF-KCU", *BESIDE, AGAIN, SAME_START, DESTROYED):
            where = {"method": PAPER_NAMES.get(method, method)}
            row |= published_row("hf_kcu", "table_1", where, ACCURACY | {"paper: CF": "cf"})
            row["CF by its formula"] = paper_faithfulness(row["paper: acc. %"], method)
            row |= published_row("hf_kcu", "table_1", where, {"paper: MIA": "mia"} | FASTER)
        rows.append(row)
    return pd.DataFrame(rows)


def table_2(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table 2: other data sets and nets; accuracy after unlearning against Retrain's, both forms and the controls."""
    beside = {"paper: acc. after": "acc_after_pct", "paper: Retrain": "acc_retrain_pct", "paper: CF": "cf", **FASTER}
    rows: list[dict[str, Any]] = []
    for setting in (*e.settings, *e.nets):
        s = Setting.parse(setting)
        for method in BESIDE_RETRAIN:
            r = on_setting(e, runs, setting, method)
            if method == SAME_START and r.empty:
                continue
            row: dict[str, Any] = {
                "data / net": f"{title(setting)}, {NETS.get(s.model, s.model)}",
                "method": shown(method),
                **beside_retrain(r),
                "CF": faithfulness(r),
                **gains(timed(e, speeds, setting), method, r),
                **distances(r),
                "runs": len(r),
            }
            if method == "HF-KCU printed":
                where = {"dataset": DATASETS.get(s.dataset, ""), "model": NETS.get(s.model)}
                row |= published_row("hf_kcu", "table_2", where, beside)
            rows.append(row)
    return pd.DataFrame(rows)


def table_3(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table 3: the backdoor. ASR reduction is relative, as in the paper."""
    names = {"Original": "Poisoned Model", "HF-KCU printed": "HF-KCU", "Retrain": "Oracle Retrain"}
    beside = {"paper: clean acc. %": "clean_acc_pct", "paper: ASR %": "asr_pct"}
    beside |= {"paper: reduction %": "asr_reduction_pct", **FASTER}
    rows: list[dict[str, Any]] = []
    for method in ("Original", *FORMS, *BESIDE, "Retrain", AGAIN, DESTROYED):
        r = rows_of(runs, "backdoor", method)
        row: dict[str, Any] = {
            "model": "poisoned (do nothing)" if method == "Original" else shown(method),
            "clean acc. %": spread_or_dash(r.test),
            "change of clean acc.": spread_or_dash(r.test - r.test_original),
            "ASR % (other classes)": spread_or_dash(r.asr),
            "ASR reduction %": "–" if method == "Original" else spread_or_dash(asr_reduction(r)),
            "ASR % (all images)": spread_or_dash(r.asr_included),
            **_fewer_passes(timed(e, speeds, e.main)["passes"]["retrain"], r),
            **distances(r),
        }
        rows.append(row | published_row("hf_kcu", "table_3", {"method": names.get(method)}, beside))
    return pd.DataFrame(rows)


def _fewer_passes(retrain: float, r: pd.DataFrame) -> dict[str, str]:
    """Than retraining, of these very runs, whose price depends on what they met."""
    if (r.method == "Retrain").all() and len(r):
        return {"× fewer passes": "1"}
    return {"× fewer passes": gain(retrain, taken) if (taken := mean_of(r, "passes")) else "–"}


def table_4(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table 4: Algorithm 1 as printed with one component removed, beside the paper's row, below the controls."""
    names = {
        "full, with decay 0.9 (our reading)": "HF-KCU (full)",
        "w/o influence decay (= Algorithm 1)": "w/o influence decay",
        "uniform influence (our reading)": "uniform influence",
    }
    beside = {**ACCURACY, "paper: gap": "parameter_gap", "paper: MIA": "mia"}
    r = runs[runs.group == "ablation"]
    rows = _control_rows(e, runs)
    for label in r.label.unique():
        row = _variant_row(label, r[r.label == label])
        rows.append(row | published_row("hf_kcu", "table_4", {"variant": names.get(label, label)}, beside))
    return pd.DataFrame(rows)


def choices_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The corrected form with one choice changed at a time: sign, clip, whose curvature, which matrix."""
    r = runs[runs.group == "choice"]
    return pd.DataFrame(
        _control_rows(e, runs) + [_variant_row(label, r[r.label == label]) for label in r.label.unique()]
    )


def table_5(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table 5: damping. With k fixed it cannot change the time; negative curvature may end CG early."""
    seconds = timed(e, speeds, e.main)["seconds"]
    rows: list[dict[str, Any]] = []
    for name, r in _beside(e, runs):
        accuracies = {"test acc. %": spread_or_dash(r.test), "forget acc. %": spread_or_dash(r.forget)}
        rows.append({"damping": "–", "method": name, **accuracies, "CF": faithfulness(r), **distances(r)})
    for damping in e.dampings:
        for method in FORMS:
            r = rows_of(runs, "damping", method, f"{damping:g}")
            row: dict[str, Any] = {
                "damping": f"{damping:g}",
                "method": shown(method),
                "test acc. %": spread_or_dash(r.test),
                "forget acc. %": spread_or_dash(r.forget),
                "CF": faithfulness(r),
                **distances(r),
                "steps with negative curvature": str(int(r.negative.sum())),
                "× faster (first seed)": gain(seconds["retrain"], seconds[f"{method}, damping {damping:g}"]),
            }
            if method == "HF-KCU printed":
                beside = {"paper: acc. %": "accuracy_fraction", "paper: CF": "cf", **FASTER}
                printed = published_row("hf_kcu", "table_5", {"lambda": damping}, beside)
                row |= printed | {name: 100 * printed[name] for name in ACCURACY if name in printed}
            rows.append(row)
    return pd.DataFrame(rows)


def table_6(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table 6: heterogeneity alpha."""
    labels = [f"{alpha:g}" for alpha in e.alphas]
    return _sweep_table(runs, speeds, "alpha", labels, ("table_6", "dirichlet_alpha"))


def table_7(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> pd.DataFrame:
    """Table 7: number of clients."""
    labels = [str(count) for count in e.client_counts]
    return _sweep_table(runs, speeds, "clients", labels, ("table_7", "total_clients"))


def _sweep_table(
    runs: pd.DataFrame, speeds: Speeds, group: str, labels: Sequence[str], printed: tuple[str, str]
) -> pd.DataFrame:
    """One row per value and method. printed: the paper's table, and its column with the values."""
    rows: list[dict[str, Any]] = []
    for label in labels:
        for method in BESIDE_RETRAIN:
            r = rows_of(runs, group, method, label)
            if method == SAME_START and r.empty:
                continue
            row: dict[str, Any] = {
                group: label,
                "method": shown(method),
                **beside_retrain(r),
                **gains(speeds[f"{group} {label}"].metrics, method, r),
                **distances(r),
                "runs": len(r),
            }
            if method == "HF-KCU printed":
                row |= published_row("hf_kcu", printed[0], {printed[1]: float(label)}, AFTER | FASTER)
            rows.append(row)
    return pd.DataFrame(rows)


def table_8(e: Experiment, speeds: Speeds, parameters: Mapping[str, int]) -> pd.DataFrame:
    """Table 8: seconds by model size. `parameters`: setting -> d. Retraining is projected where not run in full."""
    rows: list[dict[str, Any]] = []
    for setting in (e.main, *e.nets):
        model = NETS.get(Setting.parse(setting).model, Setting.parse(setting).model)
        measured = timed(e, speeds, setting)
        seconds = measured["seconds"]
        row: dict[str, Any] = {
            "model": model,
            "parameters": parameters[setting],
            "Retrain, s": seconds["retrain"],
            "retraining timed": "in full"
            if setting == e.main
            else f"projected from {measured['timed_rounds']} round(s)",
            "HF-KCU corrected, s": seconds["HF-KCU"],
            "HF-KCU printed, s": seconds["HF-KCU printed"],
            "corrected, ×": gain(seconds["retrain"], seconds["HF-KCU"]),
            "printed, ×": gain(seconds["retrain"], seconds["HF-KCU printed"]),
        }
        beside = {"paper: HF-KCU, s": "hf_kcu_s", "paper: Retrain, s": "retrain_s"}
        if printed := published_row("hf_kcu", "table_8", {"model": model}, beside):
            retrain_s = float(str(printed["paper: Retrain, s"]).replace(",", ""))
            row |= {**printed, "paper: Retrain, s": retrain_s}
            row["paper: ×"] = gain(retrain_s, float(printed["paper: HF-KCU, s"]))
        rows.append(row)
    return pd.DataFrame(rows)


def table_9(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Table 9: functional equivalence to Retrain, beside random weights and both floors: a retraining from other
    weights, and one from the same weights, as every method starts from, with other batches."""
    metrics = {
        "kl": ("output KL (nats)", 4, 0.0023),
        "logit_mse": ("logit MSE", 3, 0.087),
        "logit_mse_centred": ("logit MSE, centred", 3, None),
        "agreement": ("same prediction %", 1, None),
        "delta_test": ("test accuracy gap", 2, 0.37),
        "mia": ("MIA", 3, 0.499),
        "delta_mia": ("privacy gap", 3, None),
        "gap": ("parameter gap", 3, None),
        "kl_forget": ("KL on the forgotten", 3, None),
        "distance": ("distance (do nothing = 1)", 3, None),
    }
    rows: list[dict[str, Any]] = []
    for name, (heading, digits, paper) in metrics.items():
        row: dict[str, Any] = {"metric": heading}
        floors = [method for method in floors_of(e, runs) if method not in REFERENCES]
        for method in ("Original", *FORMS, *BESIDE, *floors):
            row[shown(method)] = spread_or_dash(main_runs(e, runs, method)[name], digits)
        row["paper's HF-KCU"] = "–" if paper is None else f"{paper:g}"
        rows.append(row)
    return pd.DataFrame(rows)


# --- controls --------------------------------------------------------------------------------------------------------


def warned_of(caption: str, e: Experiment, runs: pd.DataFrame, block: str) -> str:
    """The caption of a table, with a warning where its controls come out wrong.

    block: "main" for the tables of the main setting, which say what KL's floor is where that is not the second
    retraining; "equivalence" for Table 9, which is about KL, "settings" for Table 2, "backdoor" for Table 3, where the
    success of the attack shows what is forgotten, "alpha" and "clients" for Tables 6 and 7.
    """
    if block == "backdoor":
        told = {"": _wrong({m: rows_of(runs, block, m) for m in CONTROLS}, "asr", "gap in attack success")}
    elif block in ("main", "equivalence"):
        controls = {m: main_runs(e, runs, m) for m in CONTROLS}
        told = {"": _wrong(controls) + (_wrong_in_kl(controls) if block == "equivalence" else [])}
        caption += _floor_of_kl(controls) if block == "main" else ""
    elif block == "settings":
        told = {
            f"{title(text)}, {Setting.parse(text).model}": _wrong({m: on_setting(e, runs, text, m) for m in CONTROLS})
            for text in (*e.settings, *e.nets)
        }
    else:
        told = {
            f"{block} {label}": _wrong({m: rows_of(runs, block, m, label) for m in CONTROLS})
            for label in runs[runs.group == block].label.unique()
        }
    return warned(caption, told)


def _wrong(of: Mapping[str, pd.DataFrame], forgetting: str = "forget", what: str = "forget gap") -> list[str]:
    return wrong_controls({method: Standing.of(r, forgetting) for method, r in of.items()}, what)


def _wrong_in_kl(of: Mapping[str, pd.DataFrame]) -> list[str]:
    """The second retraining starts from other weights than everybody else: it may be farther than doing nothing."""
    again, nothing = of[AGAIN].kl.mean(), of["Original"].kl.mean()
    return [f"{AGAIN}'s KL ({again:.3f}) is not smaller than Original's ({nothing:.3f})"] if again >= nothing else []


def _floor_of_kl(of: Mapping[str, pd.DataFrame]) -> str:
    again, nothing = of[AGAIN].kl_forget.mean(), of["Original"].kl_forget.mean()
    if not again >= nothing:
        return ""
    return (
        f". {AGAIN} starts from other weights than everybody else: its KL on the forgotten ({again:.3f}) is no less "
        f"than doing nothing's ({nothing:.3f}), and the floor is {SAME_START}"
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def _variant_row(label: str, r: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = {
        "variant": label,
        "test acc. %": spread_or_dash(r.test),
        "forget acc. %": spread_or_dash(r.forget),
        "parameter gap": spread_or_dash(r.gap, 3),
        "MIA": spread_or_dash(r.mia, 3),
        "KL": spread_or_dash(r.kl, 3),
        "step / |w|": step_length(r),
        **distances(r),
    }
    return row


def _control_rows(e: Experiment, runs: pd.DataFrame) -> list[dict[str, Any]]:
    return [_variant_row(name, r) for name, r in _beside(e, runs)]


def _beside(e: Experiment, runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """What every variant is read against: the controls, and Natural in several numbers of rounds, so that one of them
    costs about the same passes."""
    natural = [(f"Natural, {count} round{'s' * (count != 1)}", str(count)) for count in sorted(e.natural_rounds)]
    found = [(name, rows_of(runs, "price", ROUND, label)) for name, label in natural]
    return [(shown(method), main_runs(e, runs, method)) for method in floors_of(e, runs)] + found
