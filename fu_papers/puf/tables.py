"""PUF's tables, from run records only: Tables I to VI, and what stands beside them.

Every function takes the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fu_core.unlearning.method import method as registered
from fu_papers.lab.record import Record
from fu_papers.look import mean_spread, published
from fu_papers.problem_figures import spread, title
from fu_papers.problems import Setting
from fu_papers.puf.cost_model import NOMINAL_FLOPS
from fu_papers.puf.grid import PUFS, REFERENCES, Experiment
from fu_papers.puf.results import Unlearnings, rows_of, unsupported

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


def gap_table(runs: pd.DataFrame) -> pd.DataFrame:
    """How far Original is from Retrain on the target's data, in points: mean and smallest of a setting's runs."""
    originals = runs[(runs.group == "clients") & (runs.method == "Original") & (runs.stop == "test")]
    deltas = originals.groupby("setting", sort=False)[["delta_forget", "delta_song", "delta_yeom"]]
    gap = deltas.agg(["mean", "min"]).round(1)
    gap.columns = [" gap, ".join(column).removeprefix("delta_") for column in gap.columns.to_list()]
    return gap.rename(index=title)


def needs_table(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> pd.DataFrame:
    """Table I for the methods here: ✓ where a method does without. From each method's own `NEEDS`.

    "agrees with the runs" counts the entries that the records can tell: the task, several clients at once,
    rounds, and whether the model depends on who leaves. "paper says" lists where Table I has it otherwise.
    """
    printed = published("puf", "table_i").set_index("work")
    printed.index = [name.split(" ")[0] for name in printed.index]
    rows = []
    for method in e.methods:
        needs = registered(method).needs
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
    ran = {cell.group for cell in unlearnings if cell.method == method}
    for scenario, need in (("segmentation", "task"), ("pairs", "one_at_a_time")):
        if scenario in ran:
            found[need] = method in unsupported(unlearnings, scenario)
    own = runs[(runs.method == method) & (runs.group == "clients")]
    if len(own):
        found["several_rounds"] = bool(own.unlearning_rounds.max() > 1)
    models = [
        (cell.setting, cell.seed, record.metrics["unlearned"]["sha256"])
        for cell, record in unlearnings.items()
        if (cell.group, cell.method) == ("clients", method) and "unlearned" in record.metrics
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
        r = rows_of(runs, scenario, setting, method, stop)
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
        r = rows_of(runs, scenario, setting, method, stop)
        if method == "Original" or r.empty:
            continue
        row = {"method": method, "recovery rounds": "–"}
        if method not in REFERENCES and registered(method).recovers:
            missed = f" ({(~r.reached.astype(bool)).sum()} of {len(r)} gave up)" if not r.reached.all() else ""
            row["recovery rounds"] = spread(r.rounds) + missed
        row |= {
            "bytes sent": f"{r.bytes.mean():.2e}",
            "of them unlearning": f"{r.unlearning_bytes.mean():.2e}" if method not in REFERENCES else "–",
            "fewer, ×": _gain(r.bytes_gain),
            "paper's ×": f"{paper.comm_gain[method]:g}" if method in paper.index else "–",
            "FLOPs, measured": f"{r.images.mean() * flops:.2e}",
            "FLOPs, nominal F": f"{r.images.mean() * NOMINAL_FLOPS['ResNet-18']:.2e}",
            "fewer FLOPs, ×": _gain(r.images_gain),
        }
        if method not in REFERENCES:
            row["bytes kept"] = f"{r.storage.mean():.2e}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("–")


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Numbers behind every table: mean, sample standard deviation and count per block, method and stop rule."""
    places = ["group", "setting", "method", "label", "stop"]
    numeric = [c for c in runs.columns if c not in (*places, "seed", "request", "condition", "record", "reached")]
    groups = runs.groupby(places, sort=False)[numeric]
    wide = groups.agg(["mean", "std"])
    wide.columns = ["_".join(column) for column in wide.columns.to_list()]
    wide.insert(0, "n", groups.size())
    return wide.dropna(axis=1, how="all").reset_index()


def forms_table(e: Experiment, runs: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """PUF with n_i (corrected) and without (Algorithm 1 to the letter), first setting: what hangs on it."""
    rows = []
    for method in PUFS:
        for form, frame in (("corrected", runs[runs.label == ""]), ("as printed", printed)):
            r = rows_of(frame, "clients", e.settings[0], method, "validation", label=None)
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
            r = rows_of(frame, "samples", setting, "PUF-Special", "validation", label=None)
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
