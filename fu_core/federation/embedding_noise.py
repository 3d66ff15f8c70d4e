"""Noise that a vertical party puts on its embeddings before they leave it (FedORA, Table IX)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, check_not_negative
from fu_core.streams import stream


@dataclass(frozen=True)
class EmbeddingNoise:
    """What a party may do to its embeddings before they leave it: h min(1, clip / |h|) + N(0, std^2), Table IX.

    Without clipping (0) one sample can move an embedding any distance, so no (epsilon, delta) follows from the noise.
    Random: from the streams of (seed, "embedding noise", name and number of the exchange): methods on the same parties
    need boundaries with names of their own, or they draw the same noise; and so do parties need seeds of their own.
    """

    std: float
    clip: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("std", self.std)
        check_not_negative("clip", self.clip)

    def __call__(self, h: Tensor, exchange: tuple[str, int]) -> Tensor:
        """Embeddings (n, e_k) to what is sent, same shape."""
        if self.clip:
            h = h * (self.clip / h.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
        draws = stream(self.seed, "embedding noise", *exchange)
        return h + self.std * torch.randn(h.shape, generator=draws).to(h)


def check_own_noise(noises: Sequence[EmbeddingNoise | None]) -> None:
    """Raise InvalidRequest if two parties' noise, in party order, has the same seed: they would draw the same numbers.

    Who knew one party's embeddings could take the noise off the other's. A deviation of 0 draws nothing.
    """
    holder: dict[int, int] = {}
    for k, noise in enumerate(noises):
        if noise is None or not noise.std:
            continue
        if (other := holder.setdefault(noise.seed, k)) != k:
            raise InvalidRequest(
                f"noise must have a seed of its own at each passive party, got seed {noise.seed} at parties {other} "
                f"and {k}: they would draw the same noise"
            )


def warn_of_shared_draws(noises: Sequence[EmbeddingNoise | None], frames: int = 1) -> None:
    """Warn that embeddings leave in exchanges without a name, if any of these parties draws noise for them.

    frames: how many calls lie between here and whoever left the boundary out.
    """
    if any(noise is not None and noise.std for noise in noises):
        warnings.warn(
            "boundary is not given: the parties' noise is that of every other call without one, and the difference of "
            "two has none left; give the federation's boundary, or a Boundary with a name of its own",
            stacklevel=frames + 2,
        )
