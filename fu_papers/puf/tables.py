"""PUF's tables I and II, and what stands beside the printed ones; from run records only.

Tables III to VI are in `fu_papers.puf.printed_tables`. Every function takes the experiment and records or the frame of
`results`; nothing here trains.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pandas as pd
from scipy.stats import gmean

from fu_core.unlearning.method import method as registered
from fu_papers.evidence import completed, for_means, mostly_gave_up
from fu_papers.lab.paths import figures_dir
from fu_papers.lab.record import Record
from fu_papers.look import mean_spread, published, read_table
from fu_papers.parameters import SIZES
from fu_papers.problem_figures import title
from fu_papers.problems import Setting
from fu_papers.puf.grid import AGAIN, CONTROLS, DESTROYED, NOTHING, PUFS, Experiment, Scenario
from fu_papers.puf.printed_tables import DASH
from fu_papers.puf.results import Unlearnings, as_published, rows_of, unsupported
from fu_papers.puf.runs import best_trial, objective

SURE = 2  # a gap of so many noise floors is a gap
NOT_HERE = "not implemented here"
# Below tables of a method's readings.
YARDSTICKS = {NOTHING: "doing nothing", AGAIN: "Retrain again (noise floor)", DESTROYED: "random weights"}
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
    """How far Original is from Retrain on the target's data, in points: mean and smallest of a setting's runs.

    "noise floor": the same of the second retraining, what a smaller difference is not worth more than.
    """
    r = runs[(runs.group == "clients") & (runs.stop == "test")]
    deltas = r[r.method == "Original"].groupby("setting", sort=False)[["delta_forget", "delta_song", "delta_yeom"]]
    gap = deltas.agg(["mean", "min"]).round(1)
    gap.columns = [" gap, ".join(column).removeprefix("delta_") for column in gap.columns.to_list()]
    floor = r[r.method == AGAIN].groupby("setting").delta_forget.mean().round(1)
    gap.insert(2, "forget gap, noise floor", floor.reindex(gap.index))
    return gap.rename(index=title)


def gaps_by_size(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The forget gap of these runs, and beside it of every larger profile whose runs are saved: a row per setting.

    In points, and in noise floors, of which a gap that can be told from a second retraining has several.
    """
    above = {profile: figures_dir(profile, e.paper) / "runs.csv" for profile in SIZES[SIZES.index(e.profile) + 1 :]}
    saved = {profile: path for profile, path in above.items() if path.exists()}
    found = {profile: read_table(path)[0] for profile, path in saved.items()}
    rows = []
    for profile, frame in {e.profile: runs, **found}.items():
        r = frame.rename(columns={"scenario": "group"})
        r = r[(r.group == "clients") & (r.stop == "test")]
        floors = r[r.method == AGAIN].groupby("setting").delta_forget.mean()
        for setting, gaps in r[r.method == "Original"].groupby("setting", sort=False).delta_forget:
            mean, floor = float(gaps.mean()), float(floors[setting])
            rows.append({"profile": profile, "setting": title(str(setting)), "runs": len(gaps),
                         "forget gap, mean": mean, "forget gap, min": gaps.min(), "noise floor": floor,
                         "gap / floor": mean / floor if floor else math.inf})  # fmt: skip
    return pd.DataFrame(rows).round(1)


def most_to_forget(gaps: pd.DataFrame) -> str:
    """What `gaps_by_size` says in words: where most is to be forgotten, where that is surest, and where it is not."""
    most, surest = (gaps.loc[gaps[column].idxmax()] for column in ("forget gap, mean", "gap / floor"))
    unsure = int((gaps["gap / floor"] < SURE).sum())
    return (
        f"Most to forget: {most['forget gap, mean']:g} points, {most.setting} at {most.profile}, "
        f"{most['gap / floor']:g} times the floor. "
        f"Surest: {surest.setting} at {surest.profile}, {surest['gap / floor']:g} times the floor, "
        f"{surest['forget gap, mean']:g} points. Less than {SURE} times: {unsure} of {len(gaps)} rows"
    )


def needs_table(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> pd.DataFrame:
    """Table I for the methods here: ✓ where a method does without. From each method's own `needs`.

    "agrees with the runs" counts the entries that the records can tell: the task, several clients at once,
    rounds, and whether the model depends on who leaves. "paper says otherwise" lists where Table I differs. Last
    come the works that the paper lists and that are not implemented here, with its entries.
    """
    printed = published("puf", "table_i").set_index("work")
    printed.index = [name.split(" [")[0].removesuffix(" (ours)") for name in printed.index]
    rows: list[dict[str, Any]] = []
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
    here = {method.split("-")[0] for method in e.methods}
    for name in printed.index.difference([*here, "FedEraser"], sort=False):  # which history_interval may leave out
        row = {"method": name}
        row |= {heading: "✓" if printed[column][name] else DASH for heading, column in COLUMNS.values()}
        rows.append({**row, "agrees with the runs": NOT_HERE, "paper says otherwise": "the paper's entries"})
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
        (cell.setting, cell.seed, cell.label, record.metrics["unlearned"]["sha256"])
        for cell, record in unlearnings.items()
        if (cell.group, cell.method) == ("clients", method) and "unlearned" in record.metrics
    ]
    if len(models) > len({model[:3] for model in models}):  # several targets
        found["blind"] = len(set(models)) < len(models)
    return found


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Numbers behind every table, per block, method and stop rule: mean and sample standard deviation of the runs that
    came back, if most did; n: how many runs there were, gave_up: how many of them did not."""
    places = ["group", "setting", "method", "label", "stop"]
    truths = ("reached", "relearned")
    numeric = [c for c in runs.columns if c not in (*places, "seed", "request", "condition", "record", *truths)]
    done, _ = completed(runs)
    wide = done.groupby(places, sort=False)[numeric].agg(["mean", "std"])
    wide.columns = ["_".join(column) for column in wide.columns.to_list()]
    counts = runs.groupby(places, sort=False).reached.agg(n="size", gave_up=lambda r: int((~r.astype(bool)).sum()))
    few = [index for index, row in counts.iterrows() if mostly_gave_up(int(row.gave_up), int(row.n))]
    wide = wide.dropna(axis=1, how="all").drop(index=few, errors="ignore")
    return counts.join(wide).reset_index()


def sweep_summary(e: Experiment, runs: pd.DataFrame, sweep: pd.DataFrame) -> pd.DataFrame:
    """`summary` of a sweep, below the controls of its settings and seeds among the main tables' `runs`."""
    swept = set(zip(sweep.group, sweep.setting, strict=True))
    beside = [
        method in CONTROLS and (group, setting) in swept and seed in e.swept_seeds(group)
        for group, setting, method, seed in zip(runs.group, runs.setting, runs.method, runs.seed, strict=True)
    ]
    return summary(pd.concat([runs[beside], sweep]))


def trials_table(e: Experiment, tuning: Unlearnings) -> pd.DataFrame:
    """Every trial of every method: what was tried on which request, its objective in points, whether it came back.

    Objective: forget gap to Retrain plus shortfall of validation accuracy, on clients and a seed that nobody is judged
    by. Missing where training left the numbers, and `reached` of who has no recovery to come back with.
    """
    rows, numbered = [], ["objective", "forget_gap", "shortfall", "rounds", "reached"]
    for cell, record in tuning.items():
        m = record.metrics
        tried = e.trials(cell.method)[int(cell.label)]
        numbers = {name: m.get(name) for name in numbered if name != "reached" or registered(cell.method).recovers}
        lost = next((name for name in ("unsupported", "diverged") if name in m), "")
        what = {"trial": int(cell.label), "tried": _told(tried), "request": cell.request}
        rows.append({"setting": cell.setting, "method": cell.method, **what, **numbers, "lost": lost})
    return pd.DataFrame(rows, columns=["setting", "method", "trial", "tried", "request", *numbered, "lost"])


def tuning_table(tuning: Unlearnings, unlearnings: Unlearnings) -> pd.DataFrame:
    """What the trials chose, per setting and method, and its mean objective in points, smaller is better, beside
    that of trial 0, which has the method's own settings; how many came back on every request, if recovery follows."""
    trials: dict[tuple[str, str], dict[int, list[Record]]] = {}
    for cell, record in tuning.items():
        trials.setdefault((cell.setting, cell.method), {}).setdefault(int(cell.label), []).append(record)
    chosen = {
        (cell.setting, cell.method): record.metrics
        for cell, record in unlearnings.items()
        if cell.group == "clients" and "chosen" in record.metrics
    }
    rows = []
    for (setting, method), by_number in trials.items():
        tried = [by_number[k] for k in sorted(by_number)]
        told = chosen.get((setting, method), {})
        best, options = told["trial"] if told else best_trial(tried), told.get("chosen")
        back = sum(all(record.metrics.get("reached") for record in trial) for trial in tried)
        rows.append(
            {
                "setting": title(setting),
                "method": method,
                "trials": len(tried),
                "came back": back if registered(method).recovers else math.nan,
                "chosen": _told(options) if options else f"trial {best}",
                "objective": objective(tried[best]),
                "as published": objective(tried[0]),
            }
        )
    columns = ["setting", "method", "trials", "came back", "chosen", "objective", "as published"]
    return pd.DataFrame(rows, columns=columns).replace(math.inf, math.nan)  # who diverged has none


def _told(options: Mapping[str, Any]) -> str:
    """Options as a reader has them: what a method leaves to the federation is "as in training"."""

    def shown(value: Any) -> str:
        return "as in training" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} = {shown(value)}" for name, value in options.items())


def forms_table(e: Experiment, runs: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """PUF with n_i (corrected) and without (Algorithm 1 to the letter), first setting: what hangs on it.

    Both with the method's own settings, whatever the tables are tuned to, and on the same seeds. Below them, of these
    seeds, the controls.
    """
    rows: list[dict[str, str]] = []
    corrected, used = as_published(runs), set()
    for method in PUFS:
        of = ("clients", e.settings[0], method, "validation")
        seeds = rows_of(corrected, *of, label=None).seed
        used |= set(seeds)
        for form, frame in (("corrected", corrected), ("as printed", printed)):
            r = rows_of(frame, *of, label=None)
            r = r[r.seed.isin(seeds)]
            rows.append({"method": method, "form": form, **_step_and_after(r)})
    for method, name in YARDSTICKS.items():
        r = rows_of(runs, "clients", e.settings[0], method, "validation")
        rows.append({"method": name, "form": DASH, **_where_it_is(r[r.seed.isin(used)])})
    return pd.DataFrame(rows)


def patience_table(e: Experiment, runs: pd.DataFrame, longer: pd.DataFrame) -> pd.DataFrame:
    """Who came back, by the paper's rule, within the tables' cap and within a longer one: one seed, the same requests.

    Where who did not stands then is no result; how far that is from Retrain's test accuracy says why it gave up.
    Below, of that seed, the controls, which recover from nothing.
    """
    rows: list[dict[str, str]] = []
    seed = e.seeds[0]
    for setting, given in itertools.groupby(e.longer(), key=itemgetter(0)):
        for _, method, cap in given:
            before, after = (rows_of(r, "clients", setting, method, "test", label=None) for r in (runs, longer))
            before = before[(before.seed == seed) & (before.label == "")]
            done, given_up = after[after.reached], after[~after.reached & after.test.notna()]
            row = {"setting": title(setting), "method": method}
            row[f"came back within {e.recovery_cap} rounds"] = f"{before.reached.sum()} of {len(before)}"
            row["given longer"] = f"{after.reached.sum()} of {len(after)} within {cap}"
            row["after rounds"] = _range(done.rounds, 0)
            row["Δ forget"] = _range(done.delta_forget)
            row["who did not: test accuracy below Retrain's"] = _range(given_up.shortfall)
            rows.append(row | {"who did not: Δ forget": _range(given_up.delta_forget)})
        for method, name in YARDSTICKS.items():
            r = rows_of(runs, "clients", setting, method, "test")
            where = {"setting": title(setting), "method": name}
            rows.append(where | {"Δ forget": _range(r[r.seed == seed].delta_forget)})
    return pd.DataFrame(rows).fillna(DASH)


def _range(values: pd.Series, digits: int = 1) -> str:
    """The mean, and the least and the most where they differ; a dash of nothing."""
    if values.empty:
        return DASH
    mean, low, high = (f"{each:z.{digits}f}" for each in (values.mean(), values.min(), values.max()))
    return mean if low == high else f"{mean} ({low} to {high})"


def norms_table(e: Experiment, runs: pd.DataFrame, full: pd.DataFrame) -> pd.DataFrame:
    """What `n` counts in a Special round for samples: the forgotten ones (Eq. 4), or all of the target's (its code).

    Both with the method's own settings, whatever the tables are tuned to, and on the same seeds. Recovery stopped on
    validation data. Below them, of these seeds, the controls.
    """
    rows: list[dict[str, str]] = []
    for setting in e.sample_settings:
        of = ("samples", setting, "PUF-Special", "validation")
        published = as_published(runs)
        seeds = rows_of(published, *of, label=None).seed
        for counted, frame in (("forgotten samples", published), ("all of the target's", full)):
            r = rows_of(frame, *of, label=None)
            r = r[r.seed.isin(seeds)]
            rows.append({"setting": title(setting), "n counts": counted, **_step_and_after(r)})
        for method, name in YARDSTICKS.items():
            r = rows_of(runs, "samples", setting, method, "validation")
            rows.append({"setting": title(setting), "n counts": name, **_where_it_is(r[r.seed.isin(seeds)])})
    return pd.DataFrame(rows)


def _where_it_is(r: pd.DataFrame) -> dict[str, str]:
    """The same columns for what takes no step and does not recover."""
    return {
        "step / |w|": DASH,
        "forget acc. % right after": mean_spread(r.forget) if len(r) else DASH,
        "recovery rounds": DASH,
        "Δ forget after recovery": mean_spread(r.delta_forget) if len(r) else DASH,
        "gave up": "",
    }


def _step_and_after(r: pd.DataFrame) -> dict[str, str]:
    """The unlearning step of all runs whose numbers stayed finite; where those that came back ended, if most did."""
    done, gave_up = for_means(r)
    r = r[r.test.notna()]
    return {
        "step / |w|": f"{r.unlearned_step.mean():.2g}" if len(r) else DASH,
        "forget acc. % right after": mean_spread(r.unlearned_forget) if len(r) else DASH,
        "recovery rounds": mean_spread(done.rounds) if len(done) else DASH,
        "Δ forget after recovery": mean_spread(done.delta_forget) if len(done) else DASH,
        "gave up": gave_up.removeprefix("gave up ").strip("()"),
    }


# our heading -> the published table's column
TABLE_II = {
    "Model": "model",
    "Dataset": "dataset",
    "Clients": "clients",
    "Unlearning Case": "unlearning_case",
    "Data Heterogeneity": "data_heterogeneity",
    "Pre-trained": "pretrained",
    "E": "local_epochs",
    "Task": "task",
    "# target clients": "max_target_clients",
}


def settings_table(e: Experiment, descriptions: Mapping[str, Record]) -> pd.DataFrame:
    """Table II: the paper's columns, in its order, for every scenario and setting of ours, and for its own below.

    Then what it says in its text: how large the net is, how it is trained, how many requests and seeds.
    """
    rows = []
    for s in e.scenarios():
        for text in s.settings:
            config = e.training(s, text, s.seeds[0])
            about = Setting.parse(text)
            rows.append(
                {
                    "whose": s.heading,
                    "Model": config["model"],
                    "Dataset": title(text).split(", ")[0],
                    "Clients": config["clients"],
                    "Unlearning Case": "sample" if s.name == "samples" else "client",
                    "Data Heterogeneity": _heterogeneity(about),
                    "Pre-trained": "✓" if config["weights"] else "×",
                    "E": f"{config['epochs']:g}",
                    "Task": "segmentation" if about.split == "site" else "classification",
                    "# target clients": _targets(s),
                    "P": f"{descriptions[text].metrics['parameters']:,}",
                    "rounds": config["rounds"],
                    "B": config["batch_size"],
                    "optimiser": f"{config['optimiser']}, lr {config['lr']:g}",
                    "take part": f"{100 * config['participation']:g} %",
                    "requests x seeds": f"{len(s.requests)} x {len(s.seeds)}",
                }
            )
    for row in published("puf", "table_ii").to_dict("records"):
        printed = {heading: row[column] for heading, column in TABLE_II.items()}
        printed["Pre-trained"] = "✓" if row["pretrained"] else "×"
        printed["# target clients"] = f"up to {row['max_target_clients']}"
        rows.append({"whose": "paper", **printed})
    return pd.DataFrame(rows).fillna(DASH)


def _heterogeneity(setting: Setting) -> str:
    drawn = f"LDA (alpha={setting.alpha:g})"
    told = {"iid": "IID", "dirichlet": drawn, "released": f"{drawn}, released sizes", "site": "Real-world feature skew"}
    return told.get(setting.split, setting.split)


def _targets(s: Scenario) -> str:
    """How many clients a request names."""
    return "2" if s.name == "pairs" else "1"


def equivalence_table(equivalence: Unlearnings) -> pd.DataFrame:
    """Claim P14: |Special - Regular| in percent of the Special step, per setting."""
    rows = [(title(cell.setting), 100 * r.metrics["relative_difference"]) for cell, r in equivalence.items()]
    by_setting = pd.DataFrame(rows, columns=["setting", "difference"]).groupby("setting", sort=False).difference
    return by_setting.agg(**{"geometric mean": gmean, "min": "min", "max": "max", "count": "count"}).reset_index()
