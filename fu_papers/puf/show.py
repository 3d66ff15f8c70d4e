"""What notebook 01 shows in many places: a scenario's tables, who diverged, a run of its sliders."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from IPython.display import display

from fu_papers.look import show_table
from fu_papers.problem_figures import source, title
from fu_papers.puf import results, tables
from fu_papers.puf.figures import Curve, References
from fu_papers.puf.grid import Experiment
from fu_papers.puf.runs import live_recovery
from fu_papers.study import Study


def scenario_tables(study: Study, runs: pd.DataFrame, scenario: str, stop: str = "validation") -> None:
    """Forgetting and cost of one scenario, per setting, and which methods cannot serve it or diverged.

    runs: the wide frame of `results.of_runs`; stop: the data whose accuracy ends recovery, "validation" or "test".
    """
    experiment = _experiment(study)
    found = {s.name: s for s in experiment.scenarios()}
    if scenario not in found:
        print("This profile has no setting for it.")
        return
    s = found[scenario]
    descriptions, unlearnings = study.run("settings"), study.run("unlearning and recovery")
    ended = runs[runs.test.notna()]  # what diverged has no numbers
    rule = "validation data" if stop == "validation" else "TEST data, as in the paper"
    for setting in s.settings:
        n = len(s.seeds) * len(s.requests)
        caption = f"{title(setting)}, {s.heading}, {n} runs each, recovery stopped on {rule}"
        data, flops = source(descriptions, [setting]), descriptions[setting].metrics["flops"]
        forgetting = tables.forgetting_table(experiment, ended, setting, scenario, stop)
        display(show_table(forgetting, data, f"Forgetting. {caption}"))
        cost = tables.cost_table(experiment, ended, setting, flops, scenario, stop)
        display(show_table(cost, data, f"Cost. {caption}"))
    for method, reason in results.unsupported(unlearnings, scenario).items():
        print(f"{method}: not possible. {reason}")
    own = {cell: record for cell, record in unlearnings.items() if cell.group == scenario}
    for name, lost in results.diverged(own).items():
        print(f"{name}: diverged in {lost}, which the means leave out")


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
