"""Where a number comes from: the code, the machine, and what each phase of a run cost."""

from __future__ import annotations

import functools
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fu_core
import fu_papers

MIB = 2**20
SAMPLE_SECONDS = 0.05
SAMPLING_SHARE = 0.02  # of one core's time, at most


@functools.cache
def code_state() -> dict[str, Any]:
    """`{"commit", "dirty"}` of the checkout whose fu_core and fu_papers are imported; both None if that is none.

    Dirty looks at code only: re-drawn figures do not change what a run computes.
    """
    # Not where FU_HOME or the current folder is: the code may be installed, and another checkout lie around it.
    home, ours = (Path(str(package.__file__)).resolve().parents[1] for package in (fu_core, fu_papers))
    top = _output("git", "-C", str(home), "rev-parse", "--show-toplevel") if home == ours else None
    if top is None or Path(top).resolve() != home:
        return {"commit": None, "dirty": None}
    changes = _output("git", "-C", top, "status", "--porcelain", "--", "fu_core", "fu_papers", "notebooks")
    return {"commit": _output("git", "-C", top, "rev-parse", "HEAD"), "dirty": bool(changes)}


def machine() -> dict[str, Any]:
    """Versions and hardware that can move a number or a time. No host name, no user, no date, no path."""
    import torch  # here, because the runner measures memory with this module and has no other use for torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        "threads": torch.get_num_threads(),
    }


class PhaseClock:
    """Wall seconds and peak resident memory (MiB) per named phase; a phase entered twice adds up."""

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, float]] = {}
        self._open: dict[str, float] = {}

    def add_earlier(self, totals: Mapping[str, Mapping[str, float]]) -> None:
        """Count what an earlier, interrupted attempt has used, too."""
        for name, cost in totals.items():
            self._add(name, cost["seconds"], cost["peak_mib"])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the enclosed block under `name`. A phase cannot contain itself."""
        if name in self._open:
            raise RuntimeError(f"phase {name!r} is already being measured")
        self._open[name] = time.perf_counter()
        try:
            with PeakMemory() as peak:
                yield
        finally:
            self._add(name, time.perf_counter() - self._open.pop(name), peak.mib)

    def totals(self) -> dict[str, dict[str, float]]:
        """`{phase: {"seconds", "peak_mib"}}`, with the time that open phases have used so far."""
        so_far = {name: dict(cost) for name, cost in self._totals.items()}
        for name, start in self._open.items():
            cost = so_far.setdefault(name, {"seconds": 0.0, "peak_mib": _resident() / MIB})
            cost["seconds"] += time.perf_counter() - start
        return {
            name: {"seconds": round(cost["seconds"], 4), "peak_mib": round(cost["peak_mib"], 1)}
            for name, cost in so_far.items()
        }

    def _add(self, name: str, seconds: float, mib: float) -> None:
        cost = self._totals.setdefault(name, {"seconds": 0.0, "peak_mib": 0.0})
        cost["seconds"] += seconds
        cost["peak_mib"] = max(cost["peak_mib"], mib)


class PeakMemory:
    """The largest resident memory inside a `with` block, in `mib`; with `children`, of the whole process tree.

    The kernel's high-water mark is exact but covers the whole life of one process, so it tells only when it rises
    inside the block; otherwise the largest of regular samples is taken. The share that each of several large processes
    has in common pages takes the kernel long to count, and the more memory, the longer: samples that are slow are rare.
    """

    def __init__(self, children: bool = False) -> None:
        self.children = children
        self.mib = 0.0

    def __enter__(self) -> PeakMemory:
        self._mark = _high_water()
        self._sampled = _resident(self.children)
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._sampler.join()
        self._sampled = max(self._sampled, _resident(self.children))
        mark = _high_water()
        exact = not self.children and mark > self._mark
        self.mib = (mark if exact else self._sampled) / MIB

    def _sample(self) -> None:
        pause = SAMPLE_SECONDS
        while not self._stop.wait(pause):
            start = time.perf_counter()
            self._sampled = max(self._sampled, _resident(self.children))
            pause = max(SAMPLE_SECONDS, (time.perf_counter() - start) / SAMPLING_SHARE)


def _resident(children: bool = False) -> int:
    """Bytes in memory now. In a process tree, pages that processes share count once where the system can tell."""
    this = psutil.Process()
    if not children:
        return int(this.memory_info().rss)
    total = 0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            memory = process.memory_full_info()
            total += int(getattr(memory, "pss", memory.rss))  # Linux: a share of each shared page
    return total


def _high_water() -> int:
    """Largest resident size of this process so far, in bytes. macOS reports bytes, Linux KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cpu_model() -> str:
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
