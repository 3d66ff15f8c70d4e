"""What notebook 01 shows in many places: a scenario's tables, who diverged, a run of its sliders."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from IPython.display import display

from fu_papers.controls import warning
from fu_papers.look import keep_table, save_table, show_table
from fu_papers.problem_figures import source, title
from fu_papers.puf import printed_tables, results, tables
from fu_papers.puf.figures import Curve, References
from fu_papers.puf.grid import Experiment, Scenario
from fu_papers.puf.runs import live_recovery
from fu_papers.study import Study, wide

PRINTED = "the paper's printed numbers"
TABLES = ("iii", "iv", "v", "vi")


def scenario_tables(study: Study, runs: pd.DataFrame, scenario: str, stop: str = "validation") -> None:
    """A scenario's table as the paper prints it and that of the stronger judges, per setting; then the paper's blocks
    that none of our settings stands beside, and who cannot serve the scenario or diverged.

    runs: the wide frame of `results.of_runs`; stop: the data whose accuracy ends recovery, "validation" or "test".
    A caption says if the controls come out wrong.
    """
    experiment = _experiment(study)
    found = {s.name: s for s in experiment.scenarios()}
    if scenario not in found:
        print("This profile has no setting for it.")
        _papers_blocks(experiment, scenario)
        return
    s = found[scenario]
    descriptions, unlearnings = study.run("settings"), study.run("unlearning and recovery")
    rule = "validation data" if stop == "validation" else "TEST data, as in the paper"
    for setting in s.settings:
        caption = f"{title(setting)}, {s.heading}, {_of_runs(s)}, recovery stopped on {rule}"
        data, of = source(descriptions, [setting]), (scenario, stop)
        table = printed_tables.paper_table(experiment, runs, setting, descriptions[setting], *of)
        told = [printed_tables.nearest_note(scenario, setting), *_who_is_tuned(experiment, scenario, setting)]
        if wrong := warning({"": printed_tables.control_notes(experiment, runs, setting, *of)}):
            told.append(wrong)
        display(show_table(table, data, f"{caption}. {' '.join(told)}", "puf"))
        judged = printed_tables.judges_table(experiment, runs, setting, *of)
        display(show_table(judged, data, f"Stronger judges. {caption}", "puf"))
    _papers_blocks(experiment, scenario)
    for method, reason in results.unsupported(unlearnings, scenario).items():
        print(f"{method}: not possible. {reason}")
    own = {cell: record for cell, record in unlearnings.items() if cell.group == scenario}
    for name, lost in results.diverged(own).items():
        print(f"{name}: diverged in {lost}, which count as given up")


def _of_runs(s: Scenario) -> str:
    """Of how many runs each number of a table is the mean; one run is no measure of a method."""
    if s.runs_each == 1:
        return "one run each, which rounding on another processor can move by many points"
    return f"{s.runs_each} runs each"


def _who_is_tuned(e: Experiment, scenario: str, setting: str) -> list[str]:
    if not e.tunes(e.scenario(scenario), setting):
        return ["All methods with their own settings."]
    few = f" (of seed {e.seeds[0]} only)" if len(e.scenario(scenario).seeds) > 1 else ""
    tuned = f"Methods by their name alone are tuned, by {e.tuning_trials} trials each where there is a choice"
    return [f'{tuned}; "as published" are their own settings{few}.']


def _papers_blocks(e: Experiment, scenario: str) -> None:
    for place in printed_tables.alone(e, scenario):
        caption = f"Paper: Table {place[0].upper()}, {place[1]}. Not run in this profile"
        display(show_table(printed_tables.paper_block(place), PRINTED, caption, "puf"))


def tuning_tables(study: Study, out: Path, data: str) -> None:
    """What the trials chose, and every trial as tuning_trials.csv in `out`; `data`: where the data comes from."""
    experiment = _experiment(study)
    tuning = study.run("tuning")
    if not tuning:
        print("This profile takes all methods as published.")
        return
    chosen = tables.tuning_table(tuning, study.run("unlearning and recovery"))
    save_table(tables.trials_table(experiment, tuning), out / "tuning_trials.csv", data)
    caption = "What was chosen; objective: forget gap + shortfall of validation accuracy, in points"
    display(keep_table(out / "tuning.csv", data, chosen, caption))


def patience(study: Study, runs: pd.DataFrame, out: Path, data: str) -> None:
    """Who comes back if one waits longer, as patience.csv in `out`; `data`: where the data comes from."""
    experiment = _experiment(study)
    if not experiment.longer():
        print("Nobody is given longer in this profile.")
        return
    trainings, unlearnings = study.run("training"), study.run("unlearning and recovery")
    longer = wide(results.of_runs(study.run("with more patience"), trainings, unlearnings))
    table = tables.patience_table(experiment, runs, longer)
    caption = (
        f"Who came back to Retrain's test accuracy, given longer; seed {experiment.seeds[0]}, mean (least to most)"
    )
    display(keep_table(out / "patience.csv", data, table, caption))


def save_printed_tables(study: Study, runs: pd.DataFrame, out: Path, data: str) -> None:
    """Tables III to VI as CSV, each whole: table_iii.csv, ...; our stop rule on validation data."""
    experiment, descriptions = _experiment(study), study.run("settings")
    for table in TABLES:
        frame = printed_tables.paper_csv(experiment, runs, descriptions, table)
        save_table(frame, out / f"table_{table}.csv", f"{data} | {PRINTED}", _caption_of(experiment, runs, table))


def _caption_of(e: Experiment, runs: pd.DataFrame, table: str) -> str:
    """Of a whole table: how its rows were tuned, and where its controls come out wrong."""
    tuned, wrong, alone = [], {}, []
    for s, setting, _ in printed_tables.our_blocks(e, table):
        tuned += _who_is_tuned(e, s.name, setting)
        place = f"{title(setting)}, {s.heading}"
        if s.runs_each == 1:
            alone.append(f"{place}: {_of_runs(s)}.")
        wrong[place] = printed_tables.control_notes(e, runs, setting, s.name)
    head = f"Table {table.upper()}, whole: ours beside the paper's. Recovery stopped on validation data."
    return " ".join([head, *dict.fromkeys(tuned), *alone, *([found] if (found := warning(wrong)) else [])])


def figure_path(out: Path, name: str, setting: str) -> Path:
    """Where a figure of one setting is kept: named by its data set and split, whatever the net."""
    place = setting.rpartition("/")[0].replace("/", "_").replace(".", "")
    return out / f"{name}_{place}.png"


def live(study: Study, setting: str, target: int, mode: str, eta_u: float) -> tuple[Curve, References, str]:
    """Unlearn a client and recover right now, one seed: the curve, Original's and Retrain's metrics, and a heading."""
    experiment = _experiment(study)
    seed = experiment.seeds[0]
    training = study.run("training")["clients", setting, seed, "none"]
    original = study.store.tensors(training.key, ["w"])["w"]
    curve = live_recovery(experiment, original, setting, target, mode, eta_u)
    cell = results.Cell("clients", setting, seed, f"client-{target}", "Original")
    unlearnings = study.run("unlearning and recovery")
    references = {m: unlearnings[cell._replace(method=m)].metrics["final"] for m in ("Original", "Retrain")}
    return curve, references, f"{title(setting)}, client {target}, eta_u = {eta_u:g}"


def _experiment(study: Study) -> Experiment:
    if not isinstance(study.experiment, Experiment):
        raise TypeError(f"study must be one of PUF, got {study.experiment.paper}")
    return study.experiment
