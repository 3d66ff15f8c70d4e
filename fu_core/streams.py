"""Named random streams: every draw belongs to `(seed, purpose, round, client, ...)`.

Because a stream is found by name and not by position, leaving a client out or reordering clients
changes nothing for the others. That is what makes a model and its retrained twin comparable: they
see the same batches in the same order wherever both see data at all.

Of the 63 bits of a name, torch's generators on a CPU keep 32: of 10^5 streams, about one pair draws the
same numbers. NumPy's keep all.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import numpy as np
import torch


def whole_seed(seed: int) -> int:
    """Python's own integer, whoever's the given one is: 0 of NumPy's or torch's names the same stream.

    Raises `ValueError` for anything else: 0.0, None or "0" would each name another stream, and nobody would notice.
    """
    return _whole(seed, "seed must be a whole number")


def stream_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """A 63-bit integer that depends on all arguments. Deterministic across machines and versions.

    It is that of their texts, joined by "/": texts that have one themselves can name the same stream as others cut
    elsewhere, `("a/b", "c")` as `("a", "b/c")`.

    Raises `ValueError` for a seed that is no whole number, and for a purpose or key that is neither text nor one.
    """
    parts = [str(whole_seed(seed))]
    for key in (purpose, *keys):  # nearly all are plain: they are to cost no call, before every batch
        parts.append(key if type(key) is str else str(key) if type(key) is int else _text(key))
    return int.from_bytes(hashlib.sha256("/".join(parts).encode()).digest()[:8], "big") >> 1


def stream(seed: int, purpose: str, *keys: int | str, device: str = "cpu") -> torch.Generator:
    """A torch generator of its own for `(seed, purpose, *keys)`; errors as `stream_seed`.

    On a CPU it depends on the lowest 32 bits of `stream_seed` alone, all that torch's Mersenne twister takes.
    """
    return torch.Generator(device=device).manual_seed(stream_seed(seed, purpose, *keys))


def numpy_stream(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """The same for NumPy, for the distributions torch does not offer with a generator."""
    return np.random.default_rng(stream_seed(seed, purpose, *keys))


# --- helpers ---------------------------------------------------------------------------------------------------------


def _text(part: Any) -> str:
    return str(part) if isinstance(part, str) else str(_whole(part, "purpose and keys must be texts or whole numbers"))


def _whole(given: Any, wanted: str) -> int:
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except (TypeError, ValueError):  # the second: torch's, of a tensor with several numbers
        pass
    raise ValueError(f"{wanted}, got {given!r}")
