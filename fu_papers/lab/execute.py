"""Run one notebook without a screen, and say in one line what came of it. papermill executes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from traitlets import default

from fu_papers.lab import paths
from fu_papers.lab.notebooks import Plan
from fu_papers.lab.provenance import PeakMemory

SAVED_EVERY = 10.0  # seconds

# What needs torch is not imported here: who waits for notebooks need not hold it in memory as well.


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
        state = "FAILED" if self.failure else "ok"
        return (
            f"{self.plan.notebook.name:<24} {state:<6} {self.minutes:5.1f} min  {self.peak_mib:6.0f} MiB  "
            f"{self.written} files in {paths.short(self.plan.figures)}, "
            f"executed copy {paths.short(self.plan.executed)}"
        )


def execute(plan: Plan) -> Outcome:
    """Run one notebook from the repository root. Its executed copy is kept whether it fails or not."""
    began, clock = time.time(), time.perf_counter()
    failure = ""
    with PeakMemory(children=True) as peak:
        try:
            plan.executed.parent.mkdir(parents=True, exist_ok=True)
            papermill.execute_notebook(
                _verbatim(plan.notebook),
                _verbatim(plan.executed),
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


def _verbatim(path: Path) -> str:
    """For papermill, which fills in what it finds between braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


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
    # Some file systems keep whole seconds only.
    return sum(path.is_file() and path.stat().st_mtime >= int(began) for path in plan.figures.rglob("*"))
