"""Which samples the parties of a vertical federation have in common, before any training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest

Intersect = Callable[[Sequence[set[bytes]]], set[bytes]]


def hashed_intersection(digests: Sequence[set[bytes]]) -> set[bytes]:
    """The digests that everybody has. A private set intersection protocol would take this function's place:
    here, whoever computes it sees all digests, and can guess IDs from a small range."""
    return set.intersection(*digests)


def align(
    ids: Sequence[Sequence[Hashable]], *, salt: str = "", intersect: Intersect = hashed_intersection
) -> list[Tensor]:
    """Row numbers per party (int64) that list the samples all parties have, in the same order for everybody.

    ids[k]: party k's sample IDs, each once, in any order, of the same type everywhere: 1 and "1" are different IDs.
    The common order is that of the salted digests: it depends on nothing but the IDs. Raises InvalidRequest if a party
    names an ID twice or nothing is common.
    """
    where: list[dict[bytes, int]] = []
    for k, own in enumerate(ids):
        rows = {hashlib.sha256(f"{salt}/{one!r}".encode()).digest(): row for row, one in enumerate(own)}
        if len(rows) != len(own):
            raise InvalidRequest(f"ids of party {k} must name each sample once, got {len(own) - len(rows)} twice")
        where.append(rows)
    common = sorted(intersect([set(rows) for rows in where]))
    if not common:
        raise InvalidRequest(f"ids have nothing in common: {len(ids)} parties of {[len(own) for own in ids]} samples")
    for k, rows in enumerate(where):
        missing = sum(digest not in rows for digest in common)
        if missing:
            raise InvalidRequest(f"party {k} lacks {missing} of the {len(common)} samples that were said to be common")
    return [torch.tensor([rows[digest] for digest in common]) for rows in where]
