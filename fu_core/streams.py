"""Named random streams: every draw belongs to `(seed, purpose, round, client, ...)`.

Because a stream is found by name and not by position, leaving a client out or reordering clients
changes nothing for the others. That is what makes a model and its retrained twin comparable: they
see the same batches in the same order wherever both see data at all.
"""

from __future__ import annotations

import hashlib
import operator

import numpy as np
import torch


def whole_seed(seed: int) -> int:
    """Python's own integer, whoever's the given one is: 0 of NumPy's or torch's names the same stream.

    Raises `ValueError` for anything else: 0.0, None or "0" would each name another stream, and nobody would notice.
    """
    try:
        if not isinstance(seed, bool):
            return operator.index(seed)
    except (TypeError, ValueError):  # the second: torch's, of a tensor with several numbers
        pass
    raise ValueError(f"seed must be a whole number, got {seed!r}")


def stream_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """A 63-bit integer that depends on all arguments. Deterministic across machines and versions.

    Raises `ValueError` for a seed that is no whole number.
    """
    name = "/".join(str(part) for part in (whole_seed(seed), purpose, *keys))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def stream(seed: int, purpose: str, *keys: int | str, device: str = "cpu") -> torch.Generator:
    """A torch generator of its own for `(seed, purpose, *keys)`."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, purpose, *keys))


def numpy_stream(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """The same for NumPy, for the distributions torch does not offer with a generator."""
    return np.random.default_rng(stream_seed(seed, purpose, *keys))
