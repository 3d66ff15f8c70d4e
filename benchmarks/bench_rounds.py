"""Seconds, memory and start-up of federated rounds: ours, a plain PyTorch loop, Flower, pfl-research and BlazeFL.

    make bench                                          # twenty minutes: writes benchmarks/rounds.csv
    python benchmarks/bench_rounds.py --quick           # fewer repetitions
    python benchmarks/bench_rounds.py --only softmax --without flower pfl --out look.csv

Everybody trains the same clients from the same model on the same batches, in processes of their own (teams.py), and
does nothing but train: no evaluation between rounds.

seconds per round   the median over the repetitions, of a block of rounds each; the first two rounds are not among them.
                    Two trainings at the same time count together: what a grid of runs gains from JOBS=2
faster than plain   the plain loop's seconds over its own: the median of the repetitions' ratios
fu_core faster      its seconds over those of `fu_core auto` on as many cores, whichever way of ours to use two is best;
                    float32 against float32, and bf16 has rows of its own
start-up            from the start of the process to the end of its first round, less the median round: exact to what
                    rounds differ by
peak MiB            resident memory of all its processes during a round, see `Team.peak`
accuracy            on the test set after all rounds, in percent
difference          the largest difference of its model from the plain loop's after the first round: rounding, which
                    training lets grow later. With the accuracy, the proof of equal work
at the end          the same after all rounds: how far it has grown
same bits           of three starts with the same seed, how many end their first round in the same model, bit by bit

BlazeFL needs Python 3.12 or later: FU_BLAZEFL names an interpreter that has it and torch; else it is left out.

It takes about 10 GB of memory, since everybody's processes wait for their turns beside each other.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from teams import PLAIN, Contestant, Team, contestants, version
from torch import Tensor
from workloads import WORKLOADS, Workload, load_or_generate, prepare

from fu_core.data import Dataset
from fu_core.errors import check_choice
from fu_core.evaluation.accuracy import accuracy
from fu_core.models import FlatModel
from fu_papers.lab.jobs import default_jobs
from fu_papers.lab.provenance import MIB, machine

OUT = Path(__file__).resolve().parent / "rounds.csv"
USUAL = ("softmax", "cnn", "resnet")  # of WORKLOADS; the others have files of their own
REPETITIONS, QUICK = 7, 3
WARM_UP = 2  # rounds before the repetitions: one ends the start, memory is sampled during the other
OPTIONAL = ("flower", "pfl", "blazefl")
STARTS = 3  # of everybody with the same seed
STARTUP = 3.0  # seconds
SHOWN = [  # on the screen; the file has the rest
    "workload", "implementation", "seconds per round", "ms per local step", "faster than plain, x",
    "fu_core faster, x", "start-up, s", "peak MiB", "accuracy, %", "difference", "at the end",
    "same bits", "note",
]  # fmt: skip
TARGETS = {  # workload, framework: how many times faster we want to be, on as many cores
    ("small CNN", "flower"): 2.0,
    ("small CNN", "pfl"): 1.2,
    ("softmax regression", "flower"): 10.0,
    ("softmax regression", "pfl"): 10.0,
    ("LeNet, 100 clients", "blazefl"): 1.0,
    ("ResNet-18, 2 clients", "blazefl"): 1.0,
    **{(workload.name, "plain"): 1.0 for workload in WORKLOADS.values()},
}


@dataclass
class Result:
    """What was measured of one contestant."""

    first: float  # seconds from the start of its processes until all have done their first round
    first_models: list[Tensor]  # (d,) each, of its trainings: after that round
    peak: float  # MiB
    seconds: list[float] = field(default_factory=list)  # per round, for each repetition
    models: list[Tensor] = field(default_factory=list)  # after all rounds
    same: int = 1  # of `STARTS`, how many ended their first round in the same models, bit by bit


def run(workload: Workload, entered: Sequence[Contestant], repetitions: int, folder: Path) -> dict[str, Result]:
    """Results by contestant's name. The files of `prepare` are in `folder`."""
    results = {}
    with ExitStack() as stack:
        teams = []
        for contestant in entered:
            team = stack.enter_context(Team(contestant, folder))
            results[contestant.name] = Result(team.first_round(), team.models(), team.peak())
            teams.append(team)
            print(f"{workload.name}: {contestant.name} has started", flush=True)
        for repetition in range(repetitions):
            for team in teams:
                results[team.contestant.name].seconds.append(team.turn(workload.block))
            print(f"{workload.name}: repetition {repetition + 1} of {repetitions}", flush=True)
        for team in teams:
            results[team.contestant.name].models = team.models()
    for contestant in entered:
        result = results[contestant.name]
        for _ in range(STARTS - 1):
            again = first_models(contestant, folder)
            result.same += all(torch.equal(a, b) for a, b in zip(again, result.first_models, strict=True))
        print(f"{workload.name}: {contestant.name}: {result.same} of {STARTS} starts gave the same bits", flush=True)
    return results


def first_models(contestant: Contestant, folder: Path) -> list[Tensor]:
    """The models (d,) of a contestant's trainings after their first round, from a fresh start."""
    with Team(contestant, folder) as team:
        team.first_round()
        return team.models()


def tabulate(
    workload: Workload, data: Dataset, model: FlatModel, everybody: Sequence[Contestant], results: dict[str, Result]
) -> pd.DataFrame:
    """A row per contestant, also for those who are not installed and have no result."""
    plain = results[PLAIN.name]
    rows = []
    for contestant in everybody:
        row: dict[str, Any] = {
            "workload": workload.name,
            "implementation": contestant.name,
            "framework": contestant.framework,
            "trainings": contestant.trainings,
            "threads": contestant.threads,
            "cores": contestant.cores,
            "precision": contestant.precision,
        }
        if not contestant.missing:
            result = results[contestant.name]
            ours = _fastest([results[c.name] for c in everybody if _is_auto(c) and c.cores == contestant.cores])
            seconds = statistics.median(result.seconds)
            row |= {
                "seconds per round": seconds,
                "ms per local step": 1000 * seconds / workload.steps,
                "faster than plain, x": _ratio(plain, result),
                "fu_core faster, x": _ratio(result, ours),
                "start-up, s": result.first - contestant.trainings * seconds,
                "peak MiB": result.peak,
                "accuracy, %": accuracy(model, result.models[0], data.x_test, data.y_test),
                "difference": _apart(result.first_models, plain.first_models),
                "at the end": _apart(result.models, plain.models),
                "same bits": f"{result.same} of {STARTS}",
            }
        row["note"] = f"not installed: {', '.join(contestant.missing)}" if contestant.missing else ""
        rows.append(row)
    given = {
        "clients": workload.clients,
        "per round": workload.per_round,
        "samples per client": workload.samples,
        "batch": workload.batch_size,
        "rounds": WARM_UP + len(plain.seconds) * workload.block,
        "d": model.d,
        "updates (K, d), MiB": workload.per_round * model.d * plain.models[0].element_size() / MIB,
    }
    return pd.DataFrame(rows).assign(**given)


def measure(workload: Workload, everybody: Sequence[Contestant], repetitions: int) -> tuple[pd.DataFrame, str]:
    """The table of one workload and the source of its data."""
    data = load_or_generate(workload)
    with TemporaryDirectory(prefix="fu-bench-") as folder:
        model = prepare(workload, data, Path(folder))
        results = run(workload, [c for c in everybody if not c.missing], repetitions, Path(folder))
    return tabulate(workload, data, model, everybody, results), data.source


def _is_auto(contestant: Contestant) -> bool:
    return (contestant.framework, contestant.arguments, contestant.precision) == ("fu_core", ("auto",), "float32")


def _apart(models: Sequence[Tensor], plain: Sequence[Tensor]) -> float:
    """The largest difference of a parameter of the first training; the others have seeds that the plain loop lacks."""
    return float((models[0] - plain[0]).abs().max())


def _fastest(results: Sequence[Result]) -> Result:
    return min(results, key=lambda result: statistics.median(result.seconds))


def _ratio(slow: Result, fast: Result) -> float:
    """How many times faster `fast` is: each repetition by itself, then the median."""
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def verdicts(table: pd.DataFrame) -> list[str]:
    """Which of our aims are reached, a line each; a framework counts with the setting that is best against ours."""
    lines = []
    for (workload, framework), aim in TARGETS.items():
        rivals = table[
            (table["workload"] == workload) & (table["framework"] == framework) & (table["precision"] == "float32")
        ]
        least = rivals["fu_core faster, x"].min()
        if least == least:  # measured at all
            lines.append(f"{workload}: {least:.2f} times as fast as {framework} (aim: {aim}): {_word(least >= aim)}")
    for _, row in table[table["implementation"] == "fu_core auto"].iterrows():
        seconds = row["start-up, s"]
        lines.append(f"{row['workload']}: start-up in {seconds:.1f} s (aim: {STARTUP}): {_word(seconds <= STARTUP)}")
    return lines


def _word(reached: bool) -> str:
    return "reached" if reached else "NOT reached"


def provenance(sources: Sequence[str], repetitions: int) -> str:
    """The comment above the table."""
    here = machine()
    versions = {"Python": here["python"], "torch": here["torch"]}
    versions |= {package: version(package) or "not installed" for package in ("flwr", "ray", "pfl", "blazefl")}
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    told = f"{here['cpu']}; threads as listed; median of {repetitions} repetitions; {listed}"
    return "".join(f"# {line}\n" for line in (told, *sources))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} repetitions instead of {REPETITIONS}")
    parser.add_argument(
        "--only", nargs="+", metavar="WORKLOAD", default=USUAL,
        help=f"of {', '.join(WORKLOADS)}; without it {', '.join(USUAL)}",
    )  # fmt: skip
    parser.add_argument("--without", nargs="+", choices=OPTIONAL, default=[], help="frameworks to leave out")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--alone", nargs="+", metavar="IMPLEMENTATION", help="these alone, where memory is short")
    options = parser.parse_args(arguments)
    repetitions = QUICK if options.quick else REPETITIONS
    everybody = [c for c in contestants(cores=min(2, default_jobs())) if c.framework not in options.without]
    known = {"--only": (options.only, list(WORKLOADS)), "--alone": (options.alone or (), [c.name for c in everybody])}
    try:
        for option, (names, choices) in known.items():
            for name in names:
                check_choice(option, name, choices)
    except ValueError as error:
        parser.error(str(error))
    if options.alone is not None:
        everybody = [c for c in everybody if c.name in {PLAIN.name, *options.alone}]
    chosen = [WORKLOADS[name] for name in options.only]
    tables: list[pd.DataFrame] = []
    sources: list[str] = []
    for workload in chosen:
        table, source = measure(workload, everybody, repetitions)
        tables.append(table)
        sources.append(f"{workload.name}: {source}")
        told = provenance(sources, repetitions)  # written after each, since a quarter of an hour is not to be lost
        csv = pd.concat(tables).to_csv(index=False, float_format="%.4g", lineterminator="\n")
        options.out.write_text(told + csv, encoding="utf-8")
    whole = pd.concat(tables)
    print(told + whole[SHOWN].to_string(index=False, float_format="%.3g"))
    print("\n".join(verdicts(whole)))


if __name__ == "__main__":
    main()
