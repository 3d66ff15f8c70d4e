"""What a run function gets beside its config."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from fu_core.errors import CorruptData
from fu_papers.lab.files import move_aside
from fu_papers.lab.provenance import PhaseClock
from fu_papers.lab.record import Needs, Record, plain
from fu_papers.lab.settings import seconds_setting
from fu_papers.lab.tensors import Tensors, load_tensors, save_tensors, tensors_sha256

if TYPE_CHECKING:
    from fu_papers.lab.store import RecordStore


class RunContext:
    """What a run function gets beside its config: checkpoints, per-round rows, and a clock.

    def train(config, context):
        state, start = initial_state(config), 0
        if (saved := context.resume()) is not None:
            state, start = saved[0]["state"], saved[1]["round"]
        for r in range(start, config["rounds"]):
            state = one_round(state, r)
            context.log(round=r, loss=...)
            context.checkpoint({"state": state}, {"round": r + 1})
    """

    def __init__(self, store: RecordStore, key: str, needs: Needs | None = None) -> None:
        self.store = store
        self.key = key
        self._needs = needs or {}
        self.clock = PhaseClock()
        self.rounds: list[dict[str, Any]] = []
        self._path = store.checkpoint_path(key)
        self._interval = seconds_setting("FU_CHECKPOINT_SECONDS", "1", zero=True)
        self._due = time.monotonic() + self._interval

    def checkpoint(self, tensors: Tensors, meta: Mapping[str, Any]) -> None:
        """Keep the state from which this run can continue, in place of the previous one.

        Call it after every round: it does nothing until `$FU_CHECKPOINT_SECONDS` (1) have passed since the last one,
        or ten times what that took, so that a run loses little time to keeping what it might lose. 0: always.
        The rows logged so far are kept with it. Raises StorageError if it cannot be written; the previous
        checkpoint is then still whole.
        """
        began = time.monotonic()
        if began < self._due:
            return
        state = {"meta": plain(meta, "meta"), "rounds": self.rounds, "phases": self.clock.totals()}
        # Not sorted: the columns of tables are in the order in which a run has named its metrics.
        save_tensors(self._path, tensors, json.dumps(state, allow_nan=False))
        ended = time.monotonic()
        self._due = ended + (max(self._interval, 10 * (ended - began)) if self._interval else 0.0)

    def resume(self) -> tuple[Tensors, dict[str, Any]] | None:
        """`(tensors, meta)` of the last checkpoint, or None to start afresh. Brings back the logged rows.

        A corrupt checkpoint is moved aside with a warning, and None returned.
        """
        if not self._path.exists():
            return None
        try:
            tensors, metadata = load_tensors(self._path)
            if metadata["sha256"] != tensors_sha256(tensors, metadata["state"]):
                raise CorruptData("its content does not match its checksum")
            state = json.loads(metadata["state"])
            meta, rounds, phases = state["meta"], state["rounds"], state["phases"]
        except (SafetensorError, CorruptData, ValueError, KeyError, TypeError) as error:
            move_aside(self._path, f"not a whole checkpoint: {error}")
            return None
        self.rounds = rounds
        self.clock.add_earlier(phases)
        return tensors, meta

    def needed(self, name: str, tensors: Collection[str] | None = None) -> Tensors:
        """The tensors of a run that this one declares as needed, on the CPU; only those in `tensors`, if given.

        The run is made if it is not there yet.
        """
        return self.store.tensors(self.needed_record(name).key, tensors)

    def needed_record(self, name: str) -> Record:
        """The record of a run that this one declares as needed; it is made if it is not there yet."""
        return self.store.run(*self._needs[name])

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Measure wall seconds and peak memory of the enclosed block; they go to the record's provenance."""
        return self.clock.phase(name)

    def log(self, **values: Any) -> None:
        """Add one row of per-round metrics. Raises NumericalFailure if a value is not finite."""
        self.rounds.append(plain(values, "rounds"))
