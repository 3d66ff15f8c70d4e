"""Resumable run records: a run is a pure function of a flat config, and its result is kept under its hash.

    store = RecordStore(runs_dir() / "records")
    record = store.run(train_and_unlearn, {"alpha": 0.1, "seed": 0}, data_hash=data.sha256)

A finished run is read, never repeated. An interrupted one continues from its last checkpoint. Two processes never
compute the same run twice. What is on disk is either whole or not there.

    <root>/<key>.json            the record               <root>/checkpoints/<key>.safetensors   last checkpoint
    <root>/<key>.safetensors     its tensors, if any      <root>/locks/<key>.lock, .owner        who computes it now
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm

from fu_core.errors import ConfigError, CorruptData, NumericalFailure, StorageError
from fu_core.precision import precision
from fu_core.version import __version__
from fu_papers.lab.paths import figures_dir, runs_dir
from fu_papers.lab.provenance import PhaseClock, code_state, machine

Tensors = dict[str, torch.Tensor]
RunFunction = Callable[[Mapping[str, Any], "RunContext"], tuple[Mapping[str, Any], Tensors | None]]

KEY_LENGTH = 20


# --- keys ------------------------------------------------------------------------------------------------------------


def run_key(function_name: str, config: Mapping[str, Any], data_hash: str = "") -> str:
    """The name of a run: 20 hex digits of the function, its config, its data, our version, and FU_PRECISION if set.

    Raises ConfigError if `config` holds anything but JSON scalars, lists and dicts, or an absolute path.
    """
    identity = {
        "function": function_name,
        "config": _checked_config(config),
        "data": data_hash,
        "version": __version__,
    }
    if precision() != "float32":
        identity["precision"] = precision()
    return _sha256(_canonical(identity))[:KEY_LENGTH]


def config_key(config: Mapping[str, Any]) -> str:
    """The same text for the same config. Raises ConfigError as `run_key` does."""
    return _canonical(_checked_config(config))


def run_function(name: str) -> Callable[[RunFunction], RunFunction]:
    """Declare the name under which a run function's records are kept: it survives when the code moves.

    @run_function("puf.train")
    def train(config, context): ...
    """

    def declare(fn: RunFunction) -> RunFunction:
        fn.run_name = name  # type: ignore[attr-defined]
        return fn

    return declare


def function_name(fn: Callable[..., Any]) -> str:
    """The declared name of a run function, else `module.function`.

    ConfigError for lambdas, inner and notebook-defined functions.

    Those are refused because their name does not stand for their code: editing a notebook cell would silently
    return the result of the old one.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        raise ConfigError(f"a run needs a function that can be imported from a module, got {fn!r}; move it into a file")
    if (declared := getattr(fn, "run_name", None)) is None:
        return f"{module}.{name}"
    paper, _, run = declared.partition(".")
    if "theory" in module.rpartition(".")[2] or run == "flower_round":  # until the records are carried over
        paper += "_flower" if run == "flower_round" else "_theory"
    return f"fu_core.papers.{paper}.{run}"


# --- records and the store -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One finished run. `metrics` and `rounds` depend on config, data and version only; times are in `provenance`."""

    function: str
    key: str
    config: dict[str, Any]
    data_hash: str
    version: str
    metrics: dict[str, Any]
    rounds: list[dict[str, Any]]
    tensors: str | None  # sha256 of the .safetensors file
    provenance: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Wall time of the whole run, interrupted attempts included up to their last checkpoint."""
        return float(self.provenance["phases"]["total"]["seconds"])

    def to_json(self) -> str:
        """The text of the record file, floats in a form that reads back to the same bits."""
        content = asdict(self) | {"checksum": self._checksum()}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, key: str) -> Record:
        """Read a record file. Raises CorruptData if it is not the whole, unchanged record of `key`."""
        try:
            content = json.loads(text)
            checksum = content.pop("checksum")
            record = cls(**content)
            whole = checksum in (record._checksum(), record._first_checksum())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"not a run record: {error}") from error
        if record.key != key:
            raise CorruptData(f"it is the record of {record.key}")
        if not whole:
            raise CorruptData("its content does not match its checksum")
        return record

    def _checksum(self) -> str:
        return _sha256(_canonical(vars(self)))

    def _first_checksum(self) -> str:
        """What records carried at first, over less than everything. Long runs made many of those; they stay valid."""
        return _sha256(_canonical({"metrics": self.metrics, "rounds": self.rounds, "config": self.config}))


class RecordStore:
    """A folder of run records.

    `read_only=True` never computes and never writes: the way to draw figures from committed records.
    """

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root = Path(root)
        self.read_only = read_only

    def get(self, key: str) -> Record | None:
        """The record of `key`, or None. A corrupt one is moved aside with a warning, and counts as missing."""
        try:
            return self._read(key)
        except CorruptData as error:
            if self.read_only:
                warnings.warn(f"{self._record_path(key)} is ignored: {error}", stacklevel=2)
                return None
        with self._lock(key, label=key):
            return self._read_or_move_aside(key)

    def run(self, fn: RunFunction, config: Mapping[str, Any], *, data_hash: str = "", label: str = "") -> Record:
        """The record of `fn(config, context)`: read if it is there, computed and kept if not.

        `fn` returns `(metrics, tensors or None)` and must depend on nothing but `config` and the data of `data_hash`.
        `label` is what messages call the run. Raises StorageError if the result cannot be written, NumericalFailure
        if a metric is not finite, RuntimeError if the store is read-only and has no such record.
        """
        name = function_name(fn)
        key = run_key(name, config, data_hash)
        if (record := self.get(key)) is not None:
            return record
        label = label or f"{name} {key}"
        if self.read_only:
            raise RuntimeError(
                f"no record of {label} (config {dict(config)!r}) in {self.root}, which is read only here; "
                "run `make reproduce` with the same profile, without FU_FIGURES_ONLY, to make it"
            )
        with self._lock(key, label):
            # Somebody else may have finished it while we waited.
            return self._read_or_move_aside(key) or self._compute(fn, name, key, config, data_hash)

    def finished(self, fn: RunFunction) -> dict[str, Record]:
        """All finished runs of `fn` by `config_key`, whatever data they were made from.

        For read-only stores: committed records can be drawn where the data itself is missing.
        """
        return {config_key(r.config): r for r in self.everything() if r.function == function_name(fn)}

    def everything(self) -> Iterator[Record]:
        """All finished runs, in the order of their keys."""
        for path in sorted(self.root.glob("*.json")):
            if (record := self.get(path.stem)) is not None:
                yield record

    def tensors(self, key: str, names: Collection[str] | None = None) -> Tensors:
        """The tensors that run `key` returned, on the CPU; only those in `names`, if given.

        Raises CorruptData if they are missing or damaged. Damaged ones are removed, unless the store is read-only: the
        next `run` of the same config computes them again.
        """
        record, path = self.get(key), self._tensor_path(key)
        if record is None or record.tensors is None:
            raise CorruptData(f"run {key} has kept no tensors in {self.root}")
        if not path.exists() or _file_sha256(path) != record.tensors:
            if not self.read_only:
                path.unlink(missing_ok=True)
            raise CorruptData(f"{path} is missing or damaged; call again, and the run of that name is made anew")
        return _load_tensors(path, names)[0]

    def export(self, keys: Collection[str], folder: Path) -> None:
        """Copy the records of `keys`, without tensors, into `folder`, and remove all other records there."""
        for key in keys:
            if self.get(key) is None:
                raise RuntimeError(f"cannot export run {key}: there is no such record in {self.root}")
        for key in keys:
            with written_atomically(Path(folder) / f"{key}.json") as part:
                part.write_bytes(self._record_path(key).read_bytes())
        for path in Path(folder).glob("*.json"):
            if path.stem not in keys:
                path.unlink()

    def merge(self, folder: Path) -> int:
        """Take over the records of another store, with their tensors; returns how many are new here.

        Runs that are finished here stay as they are. Raises StorageError if `folder` is none or cannot be copied,
        CorruptData if one of its records is damaged: those before it have been taken over then, whole.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise StorageError(f"--merge: there is no folder {folder}; give the runs/records of another machine")
        new = 0
        for path in sorted(folder.glob("*.json")):
            key = path.stem
            try:
                text = path.read_text(encoding="utf-8")
                record = Record.from_json(text, key)
            except (CorruptData, UnicodeDecodeError) as error:
                raise CorruptData(f"{path} is damaged: {error}; copy it again, or remove it") from error
            if self.get(key) is not None:
                continue
            if record.tensors is not None:
                tensors = folder / f"{key}.safetensors"
                if not tensors.exists() or _file_sha256(tensors) != record.tensors:
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

    def _compute(self, fn: RunFunction, name: str, key: str, config: Mapping[str, Any], data_hash: str) -> Record:
        self._remove_leftovers(key)
        context = RunContext(self, key)
        with context.phase("total"):
            returned, tensors = fn(config, context)
        metrics = plain(returned, "metrics")
        if tensors is not None:
            _save_tensors(self._tensor_path(key), tensors)
        record = Record(
            function=name,
            key=key,
            config=_checked_config(config),
            data_hash=data_hash,
            version=__version__,
            metrics=metrics,
            rounds=context.rounds,
            tensors=None if tensors is None else _file_sha256(self._tensor_path(key)),
            provenance={**code_state(), **machine(), "precision": precision(), "phases": context.clock.totals()},
        )
        with written_atomically(self._record_path(key)) as part:
            part.write_text(record.to_json(), encoding="utf-8")
        self._checkpoint_path(key).unlink(missing_ok=True)
        return record

    def _read(self, key: str) -> Record | None:
        try:
            text = self._record_path(key).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnicodeDecodeError as error:
            raise CorruptData(str(error)) from error
        record = Record.from_json(text, key)
        if self.read_only:
            return record
        if record.tensors is not None and not self._tensor_path(key).exists():
            return None  # whoever runs it now needs the tensors, too
        if self._checkpoint_path(key).exists():  # whoever made the record was killed just before removing this
            self._checkpoint_path(key).unlink(missing_ok=True)
        return record

    def _read_or_move_aside(self, key: str) -> Record | None:
        try:
            return self._read(key)
        except CorruptData as error:
            _move_aside(self._record_path(key), str(error))
            return None

    def _remove_leftovers(self, key: str) -> None:
        """Half-written files of an earlier attempt that was killed. Called with the lock held."""
        for folder in (self.root, self._checkpoint_path(key).parent):
            for part in folder.glob(f".{key}.*.part"):
                part.unlink(missing_ok=True)

    @contextmanager
    def _lock(self, key: str, label: str) -> Iterator[None]:
        """Hold the lock of `key`. The operating system frees it when its holder dies, so it never goes stale."""
        folder = self.root / "locks"
        owner = folder / f"{key}.owner"
        with _storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                tqdm.write(f"waiting for {label}: {_owner(owner)} is computing it", file=sys.stderr)
                lock.acquire(poll_interval=0.2)
        try:
            with _storage_errors(owner):
                owner.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()

    def _record_path(self, key: str) -> Path:
        return self.root / f"{key}.json"

    def _tensor_path(self, key: str) -> Path:
        return self.root / f"{key}.safetensors"

    def _checkpoint_path(self, key: str) -> Path:
        return self.root / "checkpoints" / f"{key}.safetensors"


def open_store(profile: str, paper: str) -> RecordStore:
    """Where a notebook keeps its runs: working records, or with $FU_FIGURES_ONLY the committed ones, read only."""
    if os.environ.get("FU_FIGURES_ONLY"):
        return RecordStore(figures_dir(profile, paper) / "records", read_only=True)
    return RecordStore(runs_dir() / "records")


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

    def __init__(self, store: RecordStore, key: str) -> None:
        self.store = store
        self.key = key
        self.clock = PhaseClock()
        self.rounds: list[dict[str, Any]] = []
        self._path = store._checkpoint_path(key)
        self._interval = _checkpoint_seconds()
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
        _save_tensors(self._path, tensors, json.dumps(state, allow_nan=False))
        ended = time.monotonic()
        self._due = ended + (max(self._interval, 10 * (ended - began)) if self._interval else 0.0)

    def resume(self) -> tuple[Tensors, dict[str, Any]] | None:
        """`(tensors, meta)` of the last checkpoint, or None to start afresh. Brings back the logged rows.

        A corrupt checkpoint is moved aside with a warning, and None returned.
        """
        if not self._path.exists():
            return None
        try:
            tensors, metadata = _load_tensors(self._path)
            if metadata["sha256"] != _tensors_sha256(tensors, metadata["state"]):
                raise CorruptData("its content does not match its checksum")
            state = json.loads(metadata["state"])
            meta, rounds, phases = state["meta"], state["rounds"], state["phases"]
        except (SafetensorError, CorruptData, ValueError, KeyError, TypeError) as error:
            _move_aside(self._path, f"not a whole checkpoint: {error}")
            return None
        self.rounds = rounds
        self.clock.add_earlier(phases)
        return tensors, meta

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Measure wall seconds and peak memory of the enclosed block; they go to the record's provenance."""
        return self.clock.phase(name)

    def log(self, **values: Any) -> None:
        """Add one row of per-round metrics. Raises NumericalFailure if a value is not finite."""
        self.rounds.append(plain(values, "rounds"))


def _checkpoint_seconds() -> float:
    given = os.environ.get("FU_CHECKPOINT_SECONDS") or "1"
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"FU_CHECKPOINT_SECONDS must be a number >= 0, got {given!r}")
    return seconds


# --- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes `path` at the end, or vanishes if anything fails.

    Makes missing folders, and clears away what a killed process left of `path`. Raises StorageError naming `path` if
    the disk is full or the folder cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{escape(path.name)}.*.part"):
            if not psutil.pid_exists(int(left.name.split(".")[-2])):
                left.unlink(missing_ok=True)
        try:
            yield part
            with part.open("rb+") as written:
                os.fsync(written.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"cannot write {path}: {reason}; free some space, or choose another folder with FU_RUNS (records) or "
            "FU_FIGURES (figures, tables)"
        ) from error


def _save_tensors(path: Path, tensors: Tensors, state: str | None = None) -> None:
    """Write `tensors`, and with a `state` beside them a checksum of both: nobody else knows what a checkpoint holds."""
    # safetensors refuses tensors that share memory, and views of one flat vector are our daily bread: hence clone.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    metadata = None if state is None else {"state": state, "sha256": _tensors_sha256(copies, state)}
    with written_atomically(path) as part:
        save_file(copies, part, metadata)


def _load_tensors(path: Path, names: Collection[str] | None = None) -> tuple[Tensors, dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        wanted = [name for name in file.keys() if names is None or name in names]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in wanted}, file.metadata() or {}


def _tensors_sha256(tensors: Tensors, state: str) -> str:
    """Of contiguous tensors on the CPU, with their names, types and shapes, and of the text beside them."""
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _move_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to `<name>.corrupt-<n>`, so that it can be looked at and is not read again."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    with _storage_errors(aside):
        path.rename(aside)
    warnings.warn(f"{path.name} was moved aside to {aside.name} and is computed again: {reason}", stacklevel=3)


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"


# --- values ----------------------------------------------------------------------------------------------------------


def plain(value: Any, name: str) -> Any:
    """`value` as JSON types, with NumPy and one-element tensor numbers as Python numbers.

    Raises NumericalFailure for NaN and infinity, ConfigError for anything JSON cannot say; both name the entry.
    """
    if isinstance(value, Mapping):
        _check_text_keys(value, name)
        return {key: plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{name}[{position}]") for position, item in enumerate(value)]
    if callable(getattr(value, "item", None)):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NumericalFailure(f"{name} is {value}; if that is a legitimate outcome, return None for it")
        return value
    raise ConfigError(f"{name} must be a number, text, None, a list or a dict of these, got {type(value).__name__}")


def _checked_config(value: Any, name: str = "config") -> Any:
    """`value` as JSON types, tuples as lists; ConfigError naming the entry for anything else."""
    if isinstance(value, Mapping):
        _check_text_keys(value, name)
        return {key: _checked_config(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_checked_config(item, f"{name}[{position}]") for position, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be finite, got {value}")
    if isinstance(value, str) and len(value) > 1 and PurePosixPath(value).is_absolute():
        raise ConfigError(f"{name} is an absolute path, {value!r}, which means nothing on another machine")
    # NumPy's float64 is a float, too, and reads back as one.
    if value is None or type(value) in (str, bool, int, float):
        return value
    raise ConfigError(f"{name} must be a JSON value (number, text, bool, None, list, dict), got {type(value).__name__}")


def _check_text_keys(value: Mapping[Any, Any], name: str) -> None:
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(f"{name} has the key {key!r}; keys must be text")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
