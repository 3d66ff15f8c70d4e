"""Who is measured, and the processes they run in.

Every implementation runs in fresh processes of its own. Once all have started they take turns, a block of rounds each,
so that a busy machine slows all of them and ratios are those of one run.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from fu_papers.lab.provenance import MIB
from fu_papers.lab.reproduce import KEPT

HERE = Path(__file__).resolve().parent
PACKAGES = HERE / ".packages"  # pfl and what it needs, see requirements.txt: only its own process looks there
BLAZEFL = "FU_BLAZEFL"  # environment variable: an interpreter that has torch and blazefl
SAMPLE_SECONDS = 0.05
PATIENCE = 60  # seconds until a process that was told to end is killed


def version(package: str) -> str | None:
    """Of an installed package, ours, pfl's or in BlazeFL's interpreter; None if it is missing."""
    if package == "blazefl":
        return blazefl_version()
    return next((found.version for found in distributions(name=package, path=[str(PACKAGES), *sys.path])), None)


@cache
def blazefl_version() -> str | None:
    """In the interpreter that FU_BLAZEFL names, with that interpreter's own: BlazeFL needs Python 3.12 or later."""
    if not (python := os.environ.get(BLAZEFL)):
        return None
    asked = (
        "import platform, importlib.metadata as m; print(m.version('blazefl'), 'in Python', platform.python_version())"
    )
    answer = subprocess.run([python, "-c", asked], capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else None


@dataclass(frozen=True)
class Contestant:
    """An implementation with its settings."""

    name: str
    framework: str  # its file is <framework>_rounds.py
    arguments: tuple[str, ...] = ()  # of that file, after folder and seed
    trainings: int = 1  # independent ones at the same time, each in a process of its own
    threads: int = 1  # of torch, in every process
    cores: int = 1  # that it is meant to use
    packages: tuple[str, ...] = ()  # have to be installed
    precision: str = "float32"  # or bf16, see fu_core.precision

    @property
    def missing(self) -> list[str]:
        """Its packages that are not installed."""
        return [package for package in self.packages if version(package) is None]

    @property
    def python(self) -> str:
        """The interpreter of its processes."""
        return os.environ[BLAZEFL] if self.framework == "blazefl" else sys.executable

    def command(self, folder: Path, seed: int) -> list[str]:
        """What starts one of its trainings."""
        return [self.python, str(HERE / f"{self.framework}_rounds.py"), str(folder), str(seed), *self.arguments]

    def environment(self) -> dict[str, str]:
        """Fixed threads and precision, no accelerator, freed memory kept, nothing sent to anybody, pfl its packages."""
        fixed = {
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "FU_PRECISION": self.precision,
            "CUDA_VISIBLE_DEVICES": "",
            "PFL_PYTORCH_DEVICE": "cpu",
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        elsewhere = {"pfl": PACKAGES, "blazefl": HERE.parent}  # whose modules its interpreter does not have
        found = elsewhere.get(self.framework)
        return os.environ | fixed | KEPT | ({"PYTHONPATH": str(found)} if found else {})


PLAIN = Contestant("plain PyTorch loop", "plain")


def contestants(cores: int) -> list[Contestant]:
    """Everybody on one core and, with `cores` of 2, on both.

    One training uses two cores by torch's threads, or in Flower by two clients at a time. Two independent trainings
    are what JOBS=2 makes of a grid of runs: half of them in each of two processes, with a thread each. In bf16 ours,
    and the plain loop, since that is open to everybody.
    """
    pfl, flower, blazefl = ("pfl",), ("flwr", "ray"), ("blazefl",)
    on_one = [
        PLAIN,
        Contestant("fu_core loop", "fu_core", ("loop",)),
        Contestant("fu_core vmap", "fu_core", ("vmap",)),
        Contestant("fu_core auto", "fu_core", ("auto",)),
        Contestant("plain PyTorch loop, bf16", "plain", precision="bf16"),
        Contestant("fu_core auto, bf16", "fu_core", ("auto",), precision="bf16"),
        Contestant("pfl", "pfl", packages=pfl),
        Contestant("BlazeFL, one thread", "blazefl", ("single",), packages=blazefl),
    ]
    if cores == 1:
        return [*on_one, Contestant("Flower", "flower", ("1", "1"), packages=flower)]
    return [
        *on_one,
        Contestant("plain PyTorch loop, 2 threads", "plain", threads=2, cores=2),
        Contestant("fu_core auto, 2 threads", "fu_core", ("auto",), threads=2, cores=2),
        Contestant("fu_core auto, 2 trainings (JOBS=2)", "fu_core", ("auto",), trainings=2, cores=2),
        Contestant("fu_core auto, bf16, 2 trainings", "fu_core", ("auto",), trainings=2, cores=2, precision="bf16"),
        Contestant("pfl, 2 threads", "pfl", threads=2, cores=2, packages=pfl),
        Contestant("Flower, 1 client at a time, 2 threads", "flower", ("2", "1"), threads=2, cores=2, packages=flower),
        Contestant("Flower, 2 clients at a time", "flower", ("2", "2"), cores=2, packages=flower),
        Contestant("BlazeFL, 2 threads", "blazefl", ("threads",), cores=2, packages=blazefl),
        Contestant("BlazeFL, 2 processes", "blazefl", ("processes",), cores=2, packages=blazefl),
    ]


class Team:
    """The processes of one contestant: `with Team(contestant, folder) as team:` starts and ends them."""

    def __init__(self, contestant: Contestant, folder: Path) -> None:
        self.contestant, self.folder = contestant, folder
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Team:
        self._begin = time.perf_counter()
        for seed in range(self.contestant.trainings):
            with self._file(seed, "log").open("w", encoding="utf-8") as log:
                process = subprocess.Popen(
                    self.contestant.command(self.folder, seed),
                    env=self.contestant.environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            self._processes.append(process)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process in self._processes:
            with suppress(OSError):  # it may have ended before
                _pipe(process.stdin).close()
        for process in self._processes:
            try:
                process.wait(timeout=0 if kind else PATIENCE)
            except subprocess.TimeoutExpired:
                for member in reversed(_tree(process)):
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
                process.wait()
            _pipe(process.stdout).close()

    def first_round(self) -> float:
        """Seconds from the start of the processes until all have done their first round."""
        self.turn(1)
        return time.perf_counter() - self._begin

    def turn(self, rounds: int) -> float:
        """Seconds per round, of all trainings together: two that need 3 s for a round each make one in 1.5 s."""
        seconds = [answer["seconds"] for answer in self._ask(self._all({"rounds": rounds}))]
        return max(seconds) / rounds / len(seconds)

    def peak(self) -> float:
        """The largest resident memory in MiB during one more round, of all processes and those they have started.

        Their own pages, and once the largest part that one of them shares with others, such as torch's libraries: a
        number that does not depend on who else runs torch. Sampled.
        """
        samples = [self._resident()]
        self._ask(self._all({"rounds": 1}), while_waiting=lambda: samples.append(self._resident()))
        return max(*samples, self._resident()) / MIB

    def models(self) -> list[Tensor]:
        """The model (d,) of every training as it is now."""
        files = [self._file(seed, "pt") for seed in range(self.contestant.trainings)]
        self._ask([{"save": str(file)} for file in files])
        return [torch.load(file) for file in files]

    def _all(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        return [order] * self.contestant.trainings

    def _ask(
        self, orders: list[dict[str, Any]], while_waiting: Callable[[], object] | None = None
    ) -> list[dict[str, Any]]:
        """Give every process its order at once; their answers."""
        for process, order in zip(self._processes, orders, strict=True):
            with suppress(BrokenPipeError):  # the missing answer tells
                _pipe(process.stdin).write(json.dumps(order) + "\n")
                _pipe(process.stdin).flush()
        answers = []
        for seed, process in enumerate(self._processes):
            if while_waiting is not None:
                while not select.select([_pipe(process.stdout)], [], [], SAMPLE_SECONDS)[0]:
                    while_waiting()
            line = _pipe(process.stdout).readline()
            if not line:
                raise RuntimeError(self._failure(seed))
            answers.append(json.loads(line))
        return answers

    def _resident(self) -> int:
        own, shared = 0, 0
        for process in self._processes:
            for member in _tree(process):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    memory = member.memory_full_info()
                    own += memory.uss
                    shared = max(shared, memory.rss - memory.uss)
        return own + shared

    def _file(self, seed: int, kind: str) -> Path:
        return self.folder / f"{self.contestant.name}.{seed}.{kind}"

    def _failure(self, seed: int) -> str:
        status = self._processes[seed].wait()
        last = self._file(seed, "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        advice = f"; go on with --without {self.contestant.framework}" if self.contestant.packages else ""
        return "\n".join([f"{self.contestant.name} ended with status {status} instead of an answer{advice}:", *last])


def _pipe(pipe: Any) -> Any:
    """Popen's pipes, which it declares optional, are ours: both were asked for."""
    assert pipe is not None
    return pipe


def _tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """A process and all that came from it, as far as they still run."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    return []
