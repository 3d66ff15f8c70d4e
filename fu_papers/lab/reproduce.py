"""Run the papers' notebooks without a screen: `python -m fu_papers --profile quick --paper puf`.

papermill executes; this module is the strictness around it. A misspelt parameter, a value out of range, a notebook
without its `parameters` cell are errors before anything runs, and a failing cell is one line that names it.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from fu_core.errors import ConfigError, check_choice
from fu_papers.lab import paths
from fu_papers.lab.execute import Outcome, execute
from fu_papers.lab.jobs import default_jobs
from fu_papers.lab.lanes import execute_together
from fu_papers.lab.notebooks import INTERACTIVE, Plan, guides, notebooks, plan
from fu_papers.lab.provenance import machine
from fu_papers.lab.settings import switch_setting
from fu_papers.parameters import profiles, read_yaml

if TYPE_CHECKING:
    from fu_papers.lab.plan import Planned

SHORT = ("quick",)  # profiles whose notebooks take minutes
KEPT = {"MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456"}  # bytes

# What needs torch is imported where it is used: who waits for notebooks need not hold it in memory as well.


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Settings for the kernels, which inherit our environment; put back afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


# --- command line ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 0 if all went well, 1 if something failed, 2 if it was called wrongly; 130: Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return _main(options)
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it would show the kernel's traceback, too
        print("interrupted; finished runs are kept, call again to continue", file=sys.stderr)
        return 130


def _main(options: argparse.Namespace) -> int:
    try:
        if options.list:
            print(*(f"{paper:<16} {', '.join(profiles(paper))}" for paper in notebooks()), sep="\n")
            print(*(f"{guide:<16} the same in all\n" for guide in guides()), sep="", end="")
            return 0
        if options.merge:
            _merge(options.merge)
            return 0
        plans = _plans(options)
        if options.export:
            for each in plans:
                _export(each)
            return 0
        if options.dry_run or options.stage or options.part != (1, 1):
            if options.figures_only and not options.dry_run:
                raise ConfigError("--figures-only computes nothing, so it cannot be given with --stage or --part")
            for each, stages in [(each, _stages(each, options)) for each in plans]:  # all are checked before one runs
                (_show_plan if options.dry_run else _run_part)(each, stages, options)
            return 0
        switch_setting("FU_FIGURES_ONLY")  # a wrong one is told now, and not by every notebook
        jobs = options.jobs or default_jobs()
        lanes = _lanes(plans, options, jobs)
    except (ValueError, RuntimeError) as error:  # the library's own, which name what is wrong
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    environment = {"FU_PROGRESS": "text"} | paths.settled()
    # Runs have a thread each; what notebooks compute themselves has one, too: beside other work, a second thread that
    # small nets do not need waits for its turn at every step (10 minutes for notebook 00 that takes half of one).
    environment |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"}
    environment |= {"FU_JOBS": str(jobs // lanes)}
    environment |= {"FU_FIGURES_ONLY": "1"} if options.figures_only else {}
    # glibc hands large arrays back to the system when they are let go, and asks for them again in the next step.
    environment |= {name: os.environ.get(name, value) for name, value in KEPT.items()}
    with _environment(**environment):
        outcomes = execute_together(plans, lanes, _tell) if lanes > 1 else [_tell(execute(each)) for each in plans]
    print(*(outcome.line() for outcome in outcomes), sep="\n")
    return int(any(outcome.failure for outcome in outcomes))


def _lanes(plans: Sequence[Plan], options: argparse.Namespace, jobs: int) -> int:
    """How many notebooks run at a time: two where all are short; one that takes hours shall have all cores."""
    short_ones = options.figures_only or options.profile in SHORT
    elsewhere = os.environ.get("FU_BACKEND", "loky") != "loky"
    return 2 if short_ones and not elsewhere and len(plans) > 1 and jobs > 1 else 1


def _tell(outcome: Outcome) -> Outcome:
    """Name a failure at once: the others may take hours."""
    if outcome.failure:
        tqdm.write(f"error: {outcome.plan.notebook.name}, {outcome.failure}", file=sys.stderr)
    return outcome


def _show_plan(each: Plan, stages: Sequence[Planned], options: argparse.Namespace) -> None:
    """The listing of `--dry-run`, stage by stage as the notebook does them."""
    from fu_papers.lab.device import device
    from fu_papers.lab.plan import estimate, part_of, planned

    everything = planned(each.paper, each.profile, each.changes)
    stages = [part_of(stage, options.part) for stage in stages]
    print(f"\n{each.paper}, profile {each.profile}, on one {device()} ({machine()['cpu']}):")
    print(f"{'stage':<32} {'runs':>6} {'done':>6} {'GiB kept':>9} {'hours':>9}")
    rows = []
    for row in estimate(each.paper, stages, everything):
        rows.append(row)
        unknown = f" + ?  {textwrap.shorten(row.reason, 90)}" if row.reason else ""
        tqdm.write(f"{row.stage:<32} {row.runs:>6} {row.done:>6} {row.gib:>9.2f} {row.hours:>9.2f}{unknown}")
    runs, done, gib, hours = (
        sum(column) for column in zip(*((r.runs, r.done, r.gib, r.hours) for r in rows), strict=True)
    )
    print(f"{'all':<32} {runs:>6} {done:>6} {gib:>9.2f} {hours:>9.2f}{' + ?' if any(r.reason for r in rows) else ''}")


def _merge(folder: Path) -> None:
    from fu_papers.lab.store import RecordStore

    print(f"{RecordStore(paths.runs_dir() / 'records').merge(folder)} new records")


def _export(each: Plan) -> None:
    from fu_papers.lab.plan import export_finished, planned

    kept, wanted = export_finished(planned(each.paper, each.profile, each.changes), each.figures)
    print(f"{each.paper}, profile {each.profile}: {kept} of {wanted} runs are in {paths.short(each.figures)}")


def _run_part(each: Plan, stages: Sequence[Planned], options: argparse.Namespace) -> None:
    from fu_papers.lab.plan import run_part

    runs = run_part(stages, options.part, options.jobs)
    print(f"{each.paper}: {runs} runs are there; the notebook, or --merge elsewhere, will find them")


def _stages(each: Plan, options: argparse.Namespace) -> list[Planned]:
    """Those stages of a paper that are asked for."""
    from fu_papers.lab.plan import chosen, planned

    try:
        return chosen(planned(each.paper, each.profile, each.changes), options.stage)
    except ConfigError as error:
        raise ConfigError(f"{each.paper}: {error}") from error


def _plans(options: argparse.Namespace) -> list[Plan]:
    everything = "all" in options.paper
    for paper in options.paper:
        check_choice("paper", paper, ["all", *guides(), *notebooks()], ConfigError)
    asked = [*guides(), *notebooks()] if everything else list(dict.fromkeys(options.paper))
    first, papers = [each for each in asked if each in guides()], [each for each in asked if each not in guides()]
    without = [paper for paper in papers if options.profile not in profiles(paper)]
    if everything and 0 < len(without) < len(papers):
        print(f"no profile {options.profile!r} yet: {', '.join(without)}")
        papers = [paper for paper in papers if paper not in without]
    changes = {name: read_yaml(value, f"-p {name}") for name, value in options.parameter}
    of_guides = {name: value for name, value in changes.items() if name == INTERACTIVE} if everything else changes
    if options.dry_run or options.export or options.stage or options.part != (1, 1):
        if first and not everything:
            raise ConfigError(f"{first[0]} has no runs, so there is nothing to plan, to share or to export")
        first = []
    return [
        *(plan(guide, options.profile, of_guides) for guide in first),
        *(plan(paper, options.profile, changes) for paper in papers),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fu_papers", description="Make the figures and tables.")
    parser.add_argument("--profile", default="quick", help="how large: quick (default), laptop, ... (--list)")
    parser.add_argument("--paper", nargs="+", default=["all"], help="which notebooks: puf ..., or all (default)")
    parser.add_argument("--jobs", type=_count, help="processes for runs, of all notebooks at work (default: all cores)")
    parser.add_argument(
        "-p", dest="parameter", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"),
        help="set a parameter; figures then go to figures/changed",
    )  # fmt: skip
    parser.add_argument("--figures-only", action="store_true", help="draw from the committed records, compute nothing")
    parser.add_argument("--dry-run", action="store_true", help="list the runs with hours and disk, compute nothing")
    parser.add_argument("--stage", default="", help="only the runs of one stage of --dry-run, without the notebook")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="only every N-th run, from the K-th")
    parser.add_argument(
        "--merge", type=Path, metavar="FOLDER", help="take over records: another machine's, committed ones"
    )
    parser.add_argument(
        "--export", action="store_true", help="put all finished runs where the figures go, to commit them"
    )
    parser.add_argument("--list", action="store_true", help="show the papers and their profiles")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    k, n = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= k <= n:
        raise argparse.ArgumentTypeError(f"must be K/N with 1 <= K <= N, like 2/8, got {text!r}")
    return k, n
