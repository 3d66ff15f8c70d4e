"""Several notebooks at a time, each in a process of its own with its share of the cores.

One after the other they would leave cores idle while one of them imports, draws or waits for a long run. With one core
each they need no worker processes either, so that two at a time take no more memory than one did. Clocks run beside
another notebook, which is one more reason to do so in short profiles alone: their seconds decide nothing.

A child reads its plan as one line on its standard input, writes its outcome as JSON on its standard output, and ends
when that input does: whoever waits for it is no more. What it shows on the way comes through its standard error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from select import select
from typing import IO, cast

from tqdm import tqdm

from fu_papers.lab import paths
from fu_papers.lab.execute import Outcome, execute
from fu_papers.lab.notebooks import Plan

PULSE = 30.0  # seconds after which a log, which cannot be written over, is told how far a notebook is
# Moves of a cursor, which only its own screen can follow, and what a kernel says that still tidies up when its manager,
# before it lets a kernel go, interrupts whatever it might be computing.
UNSHOWN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[IPKernelApp\] ERROR \| KeyboardInterrupt caught in kernel\.\n?")


def execute_together(
    plans: Sequence[Plan], lanes: int, tell: Callable[[Outcome], Outcome] = lambda outcome: outcome
) -> list[Outcome]:
    """Run notebooks, `lanes` at a time, what took longest first, with the environment as it is: outcomes in order.

    tell: what to do with an outcome as soon as it is there.
    """
    screens: SimpleQueue[_Screen] = SimpleQueue()
    for row in range(lanes):
        screens.put(_Screen(row))
    running: list[_Lane] = []
    stopped = threading.Event()

    def run(plan: Plan) -> Outcome:
        screen = screens.get()
        lane = _Lane(plan, screen)
        running.append(lane)
        if stopped.is_set():  # just now
            lane.interrupt()
        outcome = tell(lane.outcome())
        screen.wipe()
        screens.put(screen)
        return outcome

    try:
        with ThreadPoolExecutor(lanes) as pool:
            futures = {plan.notebook: pool.submit(run, plan) for plan in sorted(plans, key=_seconds, reverse=True)}
            try:
                wait(futures.values())
            except KeyboardInterrupt:
                stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for lane in running:
                    lane.interrupt()
                raise
    finally:
        while not screens.empty():
            screens.get().close()
    return [futures[plan.notebook].result() for plan in plans]


def _seconds(plan: Plan) -> float:
    """How long the runs of a notebook took where its committed records were made; 0 if there are none.

    It only chooses an order: what cannot be read counts for nothing here, and is named where records are read.
    """
    try:
        lines = (paths.figures_dir(plan.profile, plan.paper) / "clock.jsonl").read_bytes().splitlines()
    except OSError:
        return 0.0
    seconds = 0.0
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # no JSON, or no time in it
            seconds += float(json.loads(line)["provenance"]["phases"]["total"]["seconds"])
    return seconds


class _Lane:
    """One child at work."""

    def __init__(self, plan: Plan, screen: _Screen) -> None:
        self.plan, self.screen = plan, screen
        self.child = subprocess.Popen(
            [sys.executable, "-m", "fu_papers.lab.lanes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"FU_HOME": str(paths.ROOT)},
            start_new_session=True,  # Ctrl-C is for us to pass on, once
        )
        self.to, self.answer, self.shown = (
            cast(IO[bytes], file) for file in (self.child.stdin, self.child.stdout, self.child.stderr)
        )

    def outcome(self) -> Outcome:
        """Show what the child shows until it ends."""
        said = b""
        with self.child, suppress(BrokenPipeError):  # of one who died at once
            self.to.write(f"{json.dumps(asdict(self.plan), default=str)}\n".encode())
            self.to.flush()
            for piece, stays in _pieces(self._blocks()):
                self.screen.show(self.plan.notebook.stem, piece, stays)
            said = self.answer.readline()
        try:
            return Outcome(**{**json.loads(said), "plan": self.plan})
        except ValueError:
            reason = f"its process ended with status {self.child.returncode}; finished runs are kept: call again"
            return Outcome(self.plan, reason, 0.0, 0.0, 0)

    def interrupt(self) -> None:
        """End it, and with it the kernel."""
        with suppress(ProcessLookupError):
            self.child.terminate()  # not SIGINT, which processes in the background may have to ignore

    def _blocks(self) -> Iterator[str]:
        """What comes from the child while it lives; a process that it leaves behind may hold its end open for ever."""
        while self.child.poll() is None or select([self.shown], [], [], 0)[0]:
            if select([self.shown], [], [], 0.2)[0]:
                if not (block := os.read(self.shown.fileno(), 65536)):
                    return
                yield block.decode("utf-8", "replace")


def _pieces(blocks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """What is written, line by line: (text, whether it stays), since progress bars write over themselves."""
    rest = ""
    for block in blocks:
        *lines, rest = re.split(r"([\r\n])", rest + UNSHOWN.sub("", block))
        for text, end in zip(lines[::2], lines[1::2], strict=True):
            if text.strip():
                yield text.rstrip(), end == "\n"
        if rest.strip():
            yield rest.rstrip(), False


class _Screen:
    """One line of the terminal for each lane, below what stays; in a log, a line now and then."""

    def __init__(self, row: int) -> None:
        self.told = time.monotonic()
        written_over = sys.stderr.isatty()
        self.line = tqdm(bar_format="{desc}", position=row, leave=False) if written_over else None

    def show(self, name: str, text: str, stays: bool) -> None:
        """`text` of the notebook `name`."""
        said = text if text.startswith(name) else f"{name}: {text}"
        if stays or (self.line is None and time.monotonic() - self.told >= PULSE):
            tqdm.write(said, file=sys.stderr)
            self.told = time.monotonic()
        elif self.line is not None:
            self.line.set_description_str(said[: shutil.get_terminal_size().columns - 1])  # one row each, or they mix

    def wipe(self) -> None:
        """Forget a notebook that has ended."""
        if self.line is not None:
            self.line.set_description_str("")

    def close(self) -> None:
        """Leave nothing behind."""
        if self.line is not None:
            self.line.close()


# --- the child -------------------------------------------------------------------------------------------------------


def _stop_without_parent() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock it would hold when the interpreter ends
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the notebook that standard input names."""
    plan = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that others print may be read as the outcome
    outcome = execute(Plan(**{**plan, **{name: Path(plan[name]) for name in ("notebook", "figures")}}))
    print(json.dumps({**asdict(outcome), "plan": None}), file=answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
