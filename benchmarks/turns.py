"""What every measured process shares: its task, read from files, and rounds that run when they are ordered.

A process is started as `python <implementation>_rounds.py FOLDER SEED ...` and takes its orders from standard
input, a line of JSON each:

    {"rounds": 20}      train for so many rounds; it answers {"seconds": ...} for all of them together
    {"save": "w.pt"}    write the model as it is, a vector (d,); it answers {}

Where its input ends, so does the process. Nothing in here imports more of fu_core than the random streams, which need
torch and no more: every implementation is to start, and to need memory, as it would by itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fu_core.streams import stream


@dataclass(frozen=True)
class Task:
    """Clients, first model and step size. Batches depend on `seed`: two seeds are two independent trainings."""

    x: Tensor  # (clients, samples, ...)
    y: Tensor  # (clients, samples)
    w: Tensor  # (d,), where the training starts
    per_round: int
    batch_size: int
    lr: float
    seed: int = 0

    def write(self, folder: Path) -> None:
        """Leave it in `folder`, from where `read` takes it."""
        torch.save(asdict(self), folder / "task.pt")

    @classmethod
    def read(cls, folder: str, seed: int) -> Task:
        """The task in `folder`, with the batches of `seed`."""
        return cls(**(torch.load(Path(folder) / "task.pt") | {"seed": seed}))

    def participants(self, round: int) -> list[int]:
        """Whose turn it is: the next `per_round` clients."""
        return [(round * self.per_round + k) % len(self.x) for k in range(self.per_round)]

    def batches(self, round: int, client: int) -> tuple[Tensor, ...]:
        """Indices of a client's batches, in order. The same as those of `fu_core.federation.local.batches`."""
        order = torch.randperm(self.x.shape[1], generator=stream(self.seed, "batch", round, client, 0))
        return order.split(self.batch_size)


class Orders:
    """The orders on standard input and the way to answer them. What libraries print goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def rounds(self, model: Callable[[], Tensor]) -> Iterator[int]:
        """The numbers of the rounds to run, from 1, each when it is ordered; `model` gives the vector to save."""
        done = 0
        for line in sys.stdin:
            order = json.loads(line)
            if "save" in order:
                torch.save(model(), order["save"])
                self._answer({})
                continue
            begin = time.perf_counter()
            for _ in range(order["rounds"]):
                done += 1
                yield done
            self._answer({"seconds": time.perf_counter() - begin})

    def _answer(self, content: dict[str, Any]) -> None:
        print(json.dumps(content), file=self._answers, flush=True)
