"""The records behind a paper's figures as they are committed: two files beside them, a line per run, sorted by key.

    records.jsonl   what config, data, version and arithmetic determine: the same bytes whenever it is made
    clock.jsonl     what clock and machine determine: the provenance, and every measured time

The rule that divides them: an entry called "seconds", at the top level of a record's metrics or in a row of its rounds,
is the clock's. In records.jsonl it is null, which keeps its place among the other entries (the columns of tables are in
their order); its value is in clock.jsonl, and is put back when the two are read.

Every line has a checksum of its own. `pandas.read_json(path, lines=True)` reads either file.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fu_papers.lab.files import reading_errors, written_atomically
from fu_papers.lab.record import Record, content_hash, without_times

RECORDS, CLOCK = "records.jsonl", "clock.jsonl"
TIME = "seconds"


def write_records(records: Iterable[Record], folder: Path) -> None:
    """Make the two files in `folder`, in place of those that are there; each is whole at any time.

    Raises StorageError if they cannot be written, CorruptData if a record comes without its times.
    """
    ordered = sorted(records, key=lambda record: record.key)
    texts = {
        RECORDS: "".join(_line(_determined(record)) for record in ordered),
        CLOCK: "".join(_line(_measured(record)) for record in ordered),
    }
    for name, text in texts.items():
        with written_atomically(Path(folder) / name) as part:
            part.write_bytes(text.encode())


def read_records(folder: Path) -> dict[str, Record]:
    """The records in `folder` by key, in the order of their lines; none if there is no such file.

    A line that is not whole is ignored with a warning. A record without its line in clock.jsonl has an empty
    provenance, and CorruptData is raised when a time is asked of it. StorageError for a file that may not be read.
    """
    clock = {line["key"]: line for line in _whole_lines(Path(folder) / CLOCK)}
    return {line["key"]: _joined(line, clock.get(line["key"])) for line in _whole_lines(Path(folder) / RECORDS)}


# --- what is whose ---------------------------------------------------------------------------------------------------


def _determined(record: Record) -> dict[str, Any]:
    """The line of records.jsonl."""
    content = {name: value for name, value in vars(record).items() if name != "provenance"}
    return content | {
        "metrics": _with_time(record.metrics, None),
        "rounds": [_with_time(row, None) for row in record.rounds],
    }


def _measured(record: Record) -> dict[str, Any]:
    """The line of clock.jsonl. `rounds`: of those rows that have a time."""
    if not record.provenance:
        raise without_times(record.key)
    return {
        "key": record.key,
        TIME: record.metrics.get(TIME),
        "rounds": [row[TIME] for row in record.rounds if TIME in row],
        "provenance": record.provenance,
    }


def _joined(line: dict[str, Any], clock: dict[str, Any] | None) -> Record:
    """The record of two lines."""
    metrics, rounds, key = line["metrics"], line["rounds"], line["key"]
    if clock is None or len(clock["rounds"]) != sum(TIME in row for row in rounds):
        untimed = {"metrics": _Untimed(metrics, key), "rounds": [_Untimed(row, key) for row in rounds]}
        return Record(**line | untimed, provenance={})
    times = iter(clock["rounds"])
    timed = {
        "metrics": _with_time(metrics, clock[TIME]),
        "rounds": [_with_time(row, next(times)) if TIME in row else row for row in rounds],
    }
    return Record(**line | timed, provenance=clock["provenance"])


def _with_time(entries: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """A copy with `value` in the place of the time, if there is one."""
    return {name: value if name == TIME else entry for name, entry in entries.items()}


class _Untimed(dict[str, Any]):
    """Entries whose time, if they have one, is not known: asking for it raises CorruptData."""

    def __init__(self, entries: Mapping[str, Any], key: str) -> None:
        super().__init__({name: entry for name, entry in entries.items() if name != TIME})
        self._key = key if TIME in entries else None

    def __missing__(self, name: str) -> Any:
        if name == TIME and self._key is not None:
            raise without_times(self._key)
        raise KeyError(name)


# --- lines -----------------------------------------------------------------------------------------------------------


def _line(content: Mapping[str, Any]) -> str:
    whole = {**content, "checksum": content_hash(content)}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The content of every line of `path` that is as it was written; the others are ignored with a warning."""
    try:
        with reading_errors(path, "FU_FIGURES"):
            lines = path.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line.decode())
            if content.pop("checksum") != content_hash(content):
                raise ValueError("its content does not match its checksum")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = re.search(rb'"key":"([0-9a-f]+)"', line)
            run = f" (run {found[1].decode()})" if found else ""
            warnings.warn(f"{path}, line {number}{run} is ignored: {error}", stacklevel=2)
        else:
            yield content
