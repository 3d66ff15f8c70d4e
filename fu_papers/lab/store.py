"""Resumable run records: a run is a pure function of a flat config, and its result is kept under its hash.

    store = RecordStore(runs_dir() / "records")
    record = store.run(train_and_unlearn, {"alpha": 0.1, "seed": 0}, data_hash=data.sha256)

A finished run is read, never repeated. An interrupted one continues from its last checkpoint. Two processes never
compute the same run twice. What is on disk is either whole or not there.

    <root>/<key>.json            the record               <root>/checkpoints/<key>.safetensors   last checkpoint
    <root>/<key>.safetensors     its tensors, if any      <root>/locks/<key>.lock, .owner        who computes it now

That is the working state of one machine. What is committed beside the figures are the two files of
`fu_papers.lab.committed`, which a CommittedStore reads.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from fu_core.errors import CorruptData, StorageError
from fu_core.precision import precision
from fu_core.version import __version__
from fu_papers.lab.committed import RECORDS, read_records, write_records
from fu_papers.lab.context import RunContext
from fu_papers.lab.files import file_sha256, move_aside, reading_errors, storage_errors, written_atomically
from fu_papers.lab.lookup import Lookup
from fu_papers.lab.paths import runs_dir
from fu_papers.lab.provenance import code_state, machine
from fu_papers.lab.record import (
    KEY,
    Config,
    Record,
    RunFunction,
    checked_config,
    config_key,
    data_hash_of,
    function_name,
    key_of,
    needs_of,
    plain,
)
from fu_papers.lab.settings import switch_setting
from fu_papers.lab.tensors import Tensors, load_tensors, save_tensors


class RecordStore:
    """A folder of run records. `read_only` stores compute nothing and write nothing."""

    read_only: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def get(self, key: str) -> Record | None:
        """The record of `key`, or None. A corrupt one is moved aside with a warning, and counts as missing.

        Raises StorageError if it may not be read.
        """
        try:
            return self._read(key)
        except CorruptData:
            with self._lock(key, label=key):
                return self._read_or_move_aside(key)

    def run(self, fn: RunFunction, config: Config, *, data_hash: str | None = None, label: str = "") -> Record:
        """The record of `fn(config, context)`: read if it is there, computed and kept if not.

        `fn` returns `(metrics, tensors or None)` and must depend on nothing but `config` and the data of `data_hash`,
        by default what it declares. `label` is what messages call the run. Raises StorageError if the result cannot be
        written, NumericalFailure if a metric is not finite.
        """
        name, data_hash = function_name(fn), data_hash_of(fn, config) if data_hash is None else data_hash
        key = key_of(fn, config, data_hash)
        if (record := self.get(key)) is not None:
            return record
        with self._lock(key, label or f"{name} {key}"):
            # Somebody else may have finished it while we waited.
            return self._read_or_move_aside(key) or self._compute(fn, name, key, config, data_hash)

    def finished(self, fn: RunFunction) -> dict[str, Record]:
        """All finished runs of `fn` by `config_key`, as `lookup` finds them."""
        found, of_fn = self.lookup, [r for r in self.everything() if r.function == function_name(fn)]
        return {config_key(r.config): own for r in of_fn if (own := found.get(fn, r.config)) is not None}

    @property
    def lookup(self) -> Lookup:
        """All that is finished now, to be found by what would be run."""
        return Lookup(self.everything(), of_data=True)

    def everything(self) -> Iterator[Record]:
        """All finished runs, in the order of their keys."""
        for path in _record_files(self.root):
            if (record := self.get(path.stem)) is not None:
                yield record

    def tensors(self, key: str, names: Collection[str] | None = None) -> Tensors:
        """The tensors that run `key` returned, on the CPU; only those in `names`, if given.

        Raises CorruptData if they are missing or damaged. Damaged ones are removed: the next `run` of the same config
        computes them again.
        """
        record, path = self.get(key), self._tensor_path(key)
        if record is None or record.tensors is None:
            raise CorruptData(f"run {key} has kept no tensors in {self.root}")
        with reading_errors(path):
            whole = path.exists() and file_sha256(path) == record.tensors
        if not whole:
            with storage_errors(path):
                path.unlink(missing_ok=True)
            raise CorruptData(f"{path} is missing or damaged; call again, and the run of that name is made anew")
        return load_tensors(path, names)[0]

    def export(self, keys: Collection[str], folder: Path) -> None:
        """Commit the records of `keys`, without tensors: makes `folder`/records.jsonl and clock.jsonl anew.

        Raises RuntimeError if there is no such record, StorageError if the files cannot be written.
        """
        records = []
        for key in set(keys):
            if (record := self.get(key)) is None:
                raise RuntimeError(f"cannot export run {key}: there is no such record in {self.root}")
            records.append(record)
        write_records(records, folder)

    def merge(self, folder: Path) -> int:
        """Take over the records of another store, with their tensors; returns how many are new here.

        From a folder of committed records come those that have kept none: a training is made again where a run that is
        still missing needs it. Runs that are finished here stay as they are. Raises StorageError if `folder` is none,
        has no records or cannot be copied, CorruptData if one of its records is damaged: those before it have been
        taken over, whole.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise StorageError(
                f"--merge: there is no folder {folder}; give the runs/records of another machine, or committed ones"
            )
        if not _has_records(folder):
            inside = ", ".join(str(each) for each in sorted(folder.iterdir()) if each.is_dir() and _has_records(each))
            raise StorageError(
                f"--merge: there are no records in {folder}, neither {RECORDS} nor files named like a run's key; "
                + (f"there are some in {inside}" if inside else "give the runs/records of another machine")
            )
        new = 0
        for key, record in read_records(folder).items():
            if record.tensors is None and record.provenance and self.get(key) is None:
                with written_atomically(self._record_path(key)) as part:
                    part.write_text(record.to_json(), encoding="utf-8")
                new += 1
        for path in _record_files(folder):
            key = path.stem
            try:
                with reading_errors(path):
                    text = path.read_text(encoding="utf-8")
                record = Record.from_json(text, key)
            except (CorruptData, UnicodeDecodeError) as error:
                raise CorruptData(f"{path} is damaged: {error}; copy it again, or remove it") from error
            if self.get(key) is not None:
                continue
            if record.tensors is not None:
                tensors = folder / f"{key}.safetensors"
                if not tensors.exists() or file_sha256(tensors) != record.tensors:
                    raise CorruptData(f"{tensors} is missing or damaged; copy it again, or remove {path.name}")
                with written_atomically(self._tensor_path(key)) as part:
                    shutil.copyfile(tensors, part)
            with written_atomically(self._record_path(key)) as part:
                part.write_text(text, encoding="utf-8")
            new += 1
        return new

    def tensor_bytes(self, key: str) -> int:
        """How large the file of a run's tensors is; 0 without one."""
        path = self._tensor_path(key)
        return path.stat().st_size if path.exists() else 0

    def under_way(self, key: str) -> bool:
        """Whether somebody computes the run now, or died in the middle of it: only those leave their owner's name."""
        return self._owner_path(key).exists()

    def checkpoint_path(self, key: str) -> Path:
        """Where a run keeps the state from which it can continue."""
        return self.root / "checkpoints" / f"{key}.safetensors"

    def _compute(self, fn: RunFunction, name: str, key: str, config: Config, data_hash: str) -> Record:
        context = RunContext(self, key, needs_of(fn, config))
        with context.phase("total"):
            returned, tensors = fn(config, context)
        metrics = plain(returned, "metrics")
        if tensors is not None:
            save_tensors(self._tensor_path(key), tensors, tidy=False)
        record = Record(
            function=name,
            key=key,
            config=checked_config(config),
            data_hash=data_hash,
            version=__version__,
            metrics=metrics,
            rounds=context.rounds,
            tensors=None if tensors is None else file_sha256(self._tensor_path(key)),
            provenance={**code_state(), **machine(), "precision": precision(), "phases": context.clock.totals()},
        )
        with written_atomically(self._record_path(key), tidy=False) as part:
            part.write_text(record.to_json(), encoding="utf-8")
        self._drop_checkpoint(key)
        return record

    def _read(self, key: str) -> Record | None:
        path = self._record_path(key)
        try:
            with reading_errors(path):
                text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnicodeDecodeError as error:
            raise CorruptData(str(error)) from error
        record = Record.from_json(text, key)
        if record.tensors is not None and not self._tensor_path(key).exists():
            return None  # whoever runs it now needs the tensors, too
        self._drop_checkpoint(key)  # if whoever made the record was killed just before that
        return record

    def _drop_checkpoint(self, key: str) -> None:
        """Of a finished run, which is none the worse for a file that nobody may remove here."""
        with suppress(OSError):
            if self.checkpoint_path(key).exists():
                self.checkpoint_path(key).unlink(missing_ok=True)

    def _read_or_move_aside(self, key: str) -> Record | None:
        try:
            return self._read(key)
        except CorruptData as error:
            move_aside(self._record_path(key), str(error))
            return None

    def _remove_leftovers(self, key: str) -> None:
        """Half-written files of an earlier holder of the lock that was killed. Called with the lock held."""
        for folder in (self.root, self.checkpoint_path(key).parent):
            for part in folder.glob(f".{key}.*.part"):
                part.unlink(missing_ok=True)

    @contextmanager
    def _lock(self, key: str, label: str) -> Iterator[None]:
        """Hold the lock of `key`. The operating system frees it when its holder dies, so it never goes stale."""
        folder = self.root / "locks"
        owner = self._owner_path(key)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                tqdm.write(f"waiting for {label}: {_owner(owner)} is computing it", file=sys.stderr)
                lock.acquire(poll_interval=0.2)
        try:
            # Lists the folder, which takes longer with every record: only where somebody may have left something.
            if owner.exists():
                self._remove_leftovers(key)
            with storage_errors(owner):
                owner.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()

    def _record_path(self, key: str) -> Path:
        return self.root / f"{key}.json"

    def _tensor_path(self, key: str) -> Path:
        return self.root / f"{key}.safetensors"

    def _owner_path(self, key: str) -> Path:
        return self.root / "locks" / f"{key}.owner"


class CommittedStore(RecordStore):
    """The committed records beside the figures in the folder `root`, read once: neither data nor tensors are needed.

    others: folders whose records are there, too.
    """

    read_only = True

    def __init__(self, root: Path, *others: Path) -> None:
        super().__init__(root)
        self._folders = (*others, self.root)

    def get(self, key: str) -> Record | None:
        """The record of `key`, or None. Damaged lines count as missing, with a warning when the file is read."""
        return self._records.get(key)

    def run(self, fn: RunFunction, config: Config, *, data_hash: str | None = None, label: str = "") -> Record:
        """The record of such a run, whatever data it was made from, which need not be here; `NoRecord` without one.

        `label` is what the message calls the run. Where there are several records, of different data, those that are
        here decide; StorageError if there are none.
        """
        if (record := self.lookup.get(fn, config)) is not None:
            return record
        raise NoRecord(
            f"no record of {label or function_name(fn)} (config {dict(config)!r}) in {self.root}, which is read only "
            "here; run `make reproduce` with the same profile, without FU_FIGURES_ONLY, to make it "
            f"({self.counting})"
        )

    @property
    def counting(self) -> str:
        """Which records count, for messages."""
        return f"those of fu_core {__version__} with FU_PRECISION={precision()} count"

    @cached_property
    def lookup(self) -> Lookup:
        """Records to be found by what would be run."""
        return Lookup(self.everything(), of_data=False)

    def everything(self) -> Iterator[Record]:
        """All finished runs, in the order of their keys."""
        yield from self._records.values()

    def tensors(self, key: str, names: Collection[str] | None = None) -> Tensors:
        """Raises CorruptData: tensors are not committed."""
        raise CorruptData(f"run {key} has kept no tensors in {self.root}: only records are committed")

    @cached_property
    def _records(self) -> dict[str, Record]:
        found = {key: record for folder in self._folders for key, record in read_records(folder).items()}
        return dict(sorted(found.items()))


class NoRecord(RuntimeError):
    """A run that is not among the records, where nothing may be computed."""


def open_store(*folders: Path) -> RecordStore:
    """Where a notebook keeps its runs: working records, or with $FU_FIGURES_ONLY the committed ones of `folders`."""
    if switch_setting("FU_FIGURES_ONLY"):
        return CommittedStore(*dict.fromkeys(folders))
    return RecordStore(runs_dir() / "records")


def _record_files(folder: Path) -> list[Path]:
    """The files of a folder that are named as a store names its records, in the order of their keys."""
    return [path for path in sorted(folder.glob("*.json")) if KEY.fullmatch(path.stem)]


def _has_records(folder: Path) -> bool:
    return (folder / RECORDS).exists() or bool(_record_files(folder))


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"
