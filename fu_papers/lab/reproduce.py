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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm
from traitlets import default

from fu_core.errors import ConfigError
from fu_papers.lab import paths
from fu_papers.lab.notebooks import INTERACTIVE, Plan, guides, notebooks, plan
from fu_papers.lab.provenance import PeakMemory, machine
from fu_papers.parameters import profiles, read_yaml

if TYPE_CHECKING:
    from fu_papers.lab.plan import Planned

SAVED_EVERY = 10.0  # seconds

# What needs torch is imported where it is used: who waits for notebooks need not hold it in memory as well.


# --- running it ------------------------------------------------------------------------------------------------------


class OwnKernel(AsyncKernelManager):
    """A kernel in this very Python, whatever kernels the user has registered under the name of `python3`."""

    @default("transport_encryption")
    def _encrypt(self) -> str:
        return "auto"  # without it, every user of the machine can read the kernel's messages, and it warns of that

    @property
    def kernel_spec(self) -> KernelSpec:
        """The kernel of the running interpreter."""
        return KernelSpec(**get_kernel_dict())


class SeldomSaved(NBClientEngine):
    """papermill's engine, which writes the whole notebook before and after every cell: a third of the time of drawing.

    While cells run, ours writes at most every SAVED_EVERY seconds; at the end, failed or not, it is written anyway.
    """

    @classmethod
    def execute_managed_notebook(cls, nb_man: NotebookExecutionManager, kernel_name: str, **kwargs: Any) -> None:
        """Run all cells."""
        save = nb_man.save

        def seldom() -> None:
            if (nb_man.now() - nb_man.last_save_time).total_seconds() >= SAVED_EVERY:
                save()

        nb_man.save = seldom
        try:
            super().execute_managed_notebook(nb_man, kernel_name, **kwargs)
        finally:
            nb_man.save = save


papermill_engines.register("seldom saved", SeldomSaved)


@dataclass(frozen=True)
class Outcome:
    """What came of one plan; `failure` is empty if it ran to its end."""

    plan: Plan
    failure: str
    minutes: float
    peak_mib: float
    written: int

    def line(self) -> str:
        """One line of the closing summary."""
        figures = paths.figures_dir(self.plan.profile, self.plan.paper)
        state = "FAILED" if self.failure else "ok"
        return (
            f"{self.plan.notebook.name:<24} {state:<6} {self.minutes:5.1f} min  {self.peak_mib:6.0f} MiB  "
            f"{self.written} files in {_short(figures)}, executed copy {_short(self.plan.executed)}"
        )


def execute(plan: Plan) -> Outcome:
    """Run one notebook from the repository root. Its executed copy is kept whether it fails or not."""
    began, clock = time.time(), time.perf_counter()
    failure = ""
    with PeakMemory(children=True) as peak:
        try:
            plan.executed.parent.mkdir(parents=True, exist_ok=True)
            papermill.execute_notebook(
                str(plan.notebook),
                str(plan.executed),
                parameters=plan.parameters,
                engine_name="seldom saved",
                kernel_name="python3",
                language="python",
                kernel_manager_class=OwnKernel,
                cwd=str(paths.ROOT),
                progress_bar={"desc": plan.notebook.stem},
                stderr_file=sys.stderr,  # the progress bars of cells that train
            )
        except PapermillExecutionError as error:
            failure = _failed_cell(plan, error)
        except DeadKernelError:
            failure = "the kernel died, perhaps for lack of memory; finished runs are kept: call again"
        except OSError as error:
            failure = (
                f"{type(error).__name__}: {error}; the executed copy goes to {plan.executed}: "
                "free some space, or choose another folder with FU_RUNS"
            )
        except Exception as error:  # the other papers shall still run
            failure = f"{type(error).__name__}: {error}"
    minutes = (time.perf_counter() - clock) / 60
    return Outcome(plan, failure, minutes, peak.mib, _written_since(began, plan))


def _failed_cell(plan: Plan, error: PapermillExecutionError) -> str:
    """`cell 7 (`model.fit(x)`): ValueError: ...`, counting all cells of the notebook as the user has it."""
    executed = nbformat.read(plan.executed, as_version=4).cells
    ours = [cell for cell in executed if not {"injected-parameters", "papermill-error-cell-tag"} & _tags(cell)]
    number = next((n for n, cell in enumerate(ours, 1) if cell.get("execution_count") == error.exec_count), 0)
    first = next((line for line in error.source.splitlines() if line.strip()), "")
    return f"cell {number} (`{first.strip()}`): {error.ename}: {error.evalue}"


def _tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", []))


def _written_since(began: float, plan: Plan) -> int:
    folder = paths.figures_dir(plan.profile, plan.paper)
    # Some file systems keep whole seconds only.
    return sum(path.is_file() and path.stat().st_mtime >= int(began) for path in folder.rglob("*"))


def _short(path: Path) -> str:
    return str(path.relative_to(paths.ROOT)) if path.is_relative_to(paths.ROOT) else str(path)


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
    """The command line. Returns 0 if all went well, 1 if something failed, 2 if it was called wrongly."""
    options = _parser().parse_args(arguments)
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
    except (ValueError, RuntimeError) as error:  # the library's own, which name what is wrong
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    environment = {"FU_PROGRESS": "text"}
    # Runs have a thread each; what notebooks compute themselves has one, too: beside other work, a second thread that
    # small nets do not need waits for its turn at every step (10 minutes for notebook 00 that takes half of one).
    environment |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"}
    environment |= {"FU_JOBS": str(options.jobs)} if options.jobs else {}
    environment |= {"FU_FIGURES_ONLY": "1"} if options.figures_only else {}
    outcomes = []
    try:
        with _environment(**environment):
            for each in plans:
                outcomes.append(execute(each))
                if failure := outcomes[-1].failure:
                    print(f"error: {each.notebook.name}, {failure}", file=sys.stderr)
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it would show the kernel's traceback, too
        print("interrupted; finished runs are kept, call again to continue", file=sys.stderr)
        return 130
    print(*(outcome.line() for outcome in outcomes), sep="\n")
    return int(any(outcome.failure for outcome in outcomes))


def _show_plan(each: Plan, stages: Sequence[Planned], options: argparse.Namespace) -> None:
    """The listing of `--dry-run`, stage by stage as the notebook does them."""
    from fu_papers.lab.device import device
    from fu_papers.lab.plan import estimate, part_of

    stages = [part_of(stage, options.part) for stage in stages]
    print(f"\n{each.paper}, profile {each.profile}, on one {device()} ({machine()['cpu']}):")
    print(f"{'stage':<32} {'runs':>6} {'done':>6} {'GiB kept':>9} {'hours':>9}")
    rows = []
    for row in estimate(each.paper, stages):
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

    folder = paths.figures_dir(each.profile, each.paper)
    kept, wanted = export_finished(planned(each.paper, each.profile, each.changes), folder)
    print(f"{each.paper}, profile {each.profile}: {kept} of {wanted} runs are in {_short(folder)}")


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
    parser.add_argument("--jobs", type=_count, help="processes for the runs of a notebook (default: all cores)")
    parser.add_argument(
        "-p", dest="parameter", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"), help="set a parameter"
    )
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
