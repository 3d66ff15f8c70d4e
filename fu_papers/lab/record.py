"""What a run is called and what is kept of it: the names of run functions, keys, records, and the values in them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from fu_core.errors import ConfigError, CorruptData, NumericalFailure, check_count
from fu_core.precision import precision
from fu_core.version import __version__
from fu_papers.lab.tensors import Tensors

if TYPE_CHECKING:
    from fu_papers.lab.context import RunContext

Config = Mapping[str, Any]
RunFunction = Callable[[Mapping[str, Any], "RunContext"], tuple[Mapping[str, Any], Tensors | None]]

Needs = Mapping[str, tuple[RunFunction, Config]]

KEY_LENGTH = 20
KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")


# --- names and keys --------------------------------------------------------------------------------------------------


_raised: set[str] = set()  # the names of those whose revision is not 1: without any, no key needs to look for them


def run_function(
    name: str,
    *,
    data: Callable[[Config], str] | None = None,
    needs: Callable[[Config], Needs] | None = None,
    revision: int | Callable[[Config], int] = 1,
) -> Callable[[RunFunction], RunFunction]:
    """Declare what is to be known of a run function before it runs.

    @run_function("puf.unlearn", data=data_hash, needs=trainings, revision=2)
    def unlearn(config, context): ...

    name: under which its records are kept, wherever the code moves; data: the hash of the data behind a config; needs:
    the runs that one reads, by a name for each, which `RunContext.needed` gives it.

    revision: to be raised by one with every change after which a run makes another record of the same config, be it in
    this function or in what it calls; a mended fault is one, rounding of the last digits and speed are none. Its runs
    are then made again, and those that need them; no others. Where the change is not about all configs, a function of
    the config: of one method's runs, say.
    """
    if not callable(revision):
        check_count(f"revision of {name}", revision, error=ConfigError)

    def declare(fn: RunFunction) -> RunFunction:
        fn.run_name, fn.data, fn.needs, fn.revision = name, data, needs, revision  # type: ignore[attr-defined]
        if revision != 1:
            _raised.add(name)
        return fn

    return declare


def data_hash_of(fn: RunFunction, config: Config) -> str:
    """The hash of the data behind a run, as its function declares it; "" for runs on no data."""
    declared = getattr(fn, "data", None)
    return declared(config) if declared is not None else ""


def needs_of(fn: RunFunction, config: Config) -> Needs:
    """The runs that a run reads, by name, as its function declares them."""
    declared = getattr(fn, "needs", None)
    return declared(config) if declared is not None else {}


def function_name(fn: Callable[..., Any]) -> str:
    """The declared name of a run function, else `module.function`.

    ConfigError for lambdas, inner and notebook-defined functions.

    Those are refused because their name does not stand for their code: editing a notebook cell would silently
    return the result of the old one.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        raise ConfigError(f"a run needs a function that can be imported from a module, got {fn!r}; move it into a file")
    return getattr(fn, "run_name", f"{module}.{name}")


def key_of(fn: RunFunction, config: Config, data_hash: str) -> str:
    """The `run_key` of a run function's run, with the revisions that are behind it."""
    return run_key(function_name(fn), config, data_hash, _revisions(fn, config) if _raised else None)


def _revisions(fn: RunFunction, config: Config) -> dict[str, int]:
    """Of a run and of all that it needs, those that are not 1, by the name of the function."""
    revision = getattr(fn, "revision", 1)
    found = {function_name(fn): revision(config) if callable(revision) else revision}
    for needed, needed_config in needs_of(fn, config).values():
        found |= _revisions(needed, needed_config)
    return {name: revision for name, revision in found.items() if revision != 1}


def run_key(
    function_name: str, config: Mapping[str, Any], data_hash: str = "", revisions: Mapping[str, int] | None = None
) -> str:
    """The name of a run: 20 hex digits of the function, its config, its data, our version, and FU_PRECISION if set.

    revisions: those behind it that are not 1. Raises ConfigError if `config` holds anything but JSON scalars, lists and
    dicts, or an absolute path.
    """
    identity: dict[str, Any] = {
        "function": function_name,
        "config": checked_config(config),
        "data": data_hash,
        "version": __version__,
    }
    if precision() != "float32":
        identity["precision"] = precision()
    if revisions:
        identity["revisions"] = dict(revisions)
    return content_hash(identity)[:KEY_LENGTH]


def config_key(config: Mapping[str, Any]) -> str:
    """The same text for the same config. Raises ConfigError as `run_key` does."""
    return _canonical(checked_config(config))


# --- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One finished run. `metrics` and `rounds` depend on config, data and version only; times are in `provenance`.

    Runs that measure time itself are the exception: an entry "seconds" of `metrics` or of a row of `rounds` is theirs.
    """

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
        """Wall time of the whole run, interrupted attempts included up to their last checkpoint.

        Raises CorruptData if the record comes without its times.
        """
        if not self.provenance:
            raise without_times(self.key)
        return float(self.provenance["phases"]["total"]["seconds"])

    def to_json(self) -> str:
        """The text of the record file, floats in a form that reads back to the same bits."""
        content = vars(self) | {"checksum": content_hash(vars(self))}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, key: str) -> Record:
        """Read a record file. Raises CorruptData if it is not the whole, unchanged record of `key`."""
        try:
            content = json.loads(text)
            checksum = content.pop("checksum")
            record = cls(**content)
            whole = checksum in (content_hash(vars(record)), record._first_checksum())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"not a run record: {error}") from error
        if record.key != key:
            raise CorruptData(f"it is the record of {record.key}")
        if not whole:
            raise CorruptData("its content does not match its checksum")
        return record

    def _first_checksum(self) -> str:
        """What records carried at first, over less than everything. Long runs made many of those; they stay valid."""
        return content_hash({"metrics": self.metrics, "rounds": self.rounds, "config": self.config})


def without_times(key: str) -> CorruptData:
    """The error of whoever asks a committed record for times that are not there."""
    return CorruptData(
        f"the times of run {key} are missing: the clock.jsonl beside its records.jsonl has no whole entry of it; "
        "restore that file, or run `make reproduce` with the same profile"
    )


# --- values ----------------------------------------------------------------------------------------------------------


def plain(value: Any, name: str) -> Any:
    """`value` as JSON types, with NumPy and one-element tensor numbers as Python numbers.

    Raises NumericalFailure for NaN and infinity, ConfigError for anything JSON cannot say; both name the entry.
    """
    return _walked(value, name, _plain_scalar)


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as JSON types, tuples as lists; ConfigError naming the entry for anything else."""
    checked: dict[str, Any] = _walked(config, "config", _config_scalar)
    return checked


def _walked(value: Any, name: str, scalar: Callable[[Any, str], Any]) -> Any:
    """Lists and dicts of what `scalar` makes of each entry, given with its name."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{name} has the key {key!r}; keys must be text")
        return {key: _walked(item, f"{name}.{key}", scalar) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walked(item, f"{name}[{position}]", scalar) for position, item in enumerate(value)]
    return scalar(value, name)


def _plain_scalar(value: Any, name: str) -> Any:
    if callable(getattr(value, "item", None)):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NumericalFailure(f"{name} is {value}; if that is a legitimate outcome, return None for it")
        return value
    raise ConfigError(f"{name} must be a number, text, None, a list or a dict of these, got {type(value).__name__}")


def _config_scalar(value: Any, name: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be finite, got {value}")
    if isinstance(value, str) and len(value) > 1 and PurePosixPath(value).is_absolute():
        raise ConfigError(f"{name} is an absolute path, {value!r}, which means nothing on another machine")
    # By type: NumPy's float64 is a float, too, and reads back as one.
    if value is None or type(value) in (str, bool, int, float):
        return value
    raise ConfigError(f"{name} must be a JSON value (number, text, bool, None, list, dict), got {type(value).__name__}")


def content_hash(value: Any) -> str:
    """sha256 of JSON content, whatever the order of its keys."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
