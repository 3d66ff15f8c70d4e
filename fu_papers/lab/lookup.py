"""Which of many records is a run's: that of its own key, of our version and precision and of the data that are here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fu_core.data.catalogue import CACHED
from fu_core.data.datasets import cache_path
from fu_core.errors import StorageError
from fu_papers.lab.record import Config, Record, RunFunction, config_key, data_hash_of, function_name, key_of


class Lookup:
    """Records by run. of_data: whether those of other data than the ones here count as none.

    What is committed is shown whatever data it was made from. It is only where there is more than one, which may come
    from different data, that the data here decide, and nothing else may: they are an error where there are none.
    """

    def __init__(self, records: Iterable[Record], *, of_data: bool) -> None:
        self.of_data = of_data
        self._found: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        for record in records:  # of several with the same key, the last
            self._found[record.function, config_key(record.config)][record.key] = record

    def get(self, fn: RunFunction, config: Config) -> Record | None:
        """The record of a run, or None. StorageError if there are several and the data are not here."""
        candidates = self.candidates(fn, config)
        if len(candidates) > 1 or (candidates and self.of_data):
            data_hash = _hash_here(fn, config)
            if data_hash is not None:
                candidates = [record for record in candidates if record.data_hash == data_hash]
        if len(candidates) > 1:
            told = ", ".join(f"{record.key} (data {record.data_hash})" for record in candidates)
            raise StorageError(
                f"there are {len(candidates)} records of one run of {function_name(fn)}, made from different data: "
                f"{told}; bring the data here, which tells them apart, or remove all but one (config {dict(config)!r})"
            )
        return candidates[0] if candidates else None

    def has(self, fn: RunFunction, config: Config) -> bool:
        """Whether there is a record of a run, be there several of them."""
        try:
            return self.get(fn, config) is not None
        except StorageError:
            return True

    def candidates(self, fn: RunFunction, config: Config) -> list[Record]:
        """All records of our version, precision and revisions, from whatever data, in the order of their keys."""
        found = self._found.get((function_name(fn), config_key(config)), {})
        # A key has all of them in it, so a record whose key we would give it, too, is of ours.
        return [found[key] for key in sorted(found) if key == key_of(fn, config, found[key].data_hash)]


def _hash_here(fn: RunFunction, config: Config) -> str | None:
    """The hash of the data behind a run; None where they are not here. None are downloaded for it."""
    if any(not cache_path(name).exists() for name in _texts(config) if name in CACHED):
        return None
    try:
        return data_hash_of(fn, config)
    except (ValueError, RuntimeError, OSError):  # a data set, a file of a split: damaged, or other than the config says
        return None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a config, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
