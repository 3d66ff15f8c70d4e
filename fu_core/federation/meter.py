"""What a method really sends, computes and keeps, counted where it happens.

PUF's cost formulas (appendix B) are checked against these counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


def nbytes(tensor: Tensor) -> int:
    """Bytes of the values of `tensor`."""
    return tensor.numel() * tensor.element_size()


@dataclass
class Meter:
    """Counters of one phase, training, unlearning or recovery; of one thread, since nothing is locked.

    bytes_down, bytes_up: model vectors sent to and received from clients, by a server or, as bytes_up alone,
    by each other; images: training images
    passed through the model, forward and backward, counted once per epoch; products: images in
    curvature-vector products, counted once per product; rounds: federated rounds, of which
    off_schedule do not count in the training's schedule: what follows goes on as if they had not been;
    kept: bytes that must outlive a round for the method to work, by name.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    images: int = 0
    products: int = 0
    rounds: int = 0
    off_schedule: int = 0
    kept: dict[str, int] = field(default_factory=dict)

    def exchange(self, w: Tensor, deltas: Tensor) -> None:
        """The server sends `w` (d,) to each client that answers with a row of `deltas` (K, d)."""
        self.rounds += 1
        self.bytes_down += nbytes(w) * len(deltas)
        self.bytes_up += nbytes(deltas)

    def gossip(self, W: Tensor, links: int) -> None:
        """A round without a server: a row of `W` (K, d) goes over each of the `links`, 2|E| of an undirected graph.

        Counted once, as bytes_up: what one client sends is what another receives.
        """
        self.rounds += 1
        self.bytes_up += links * W.shape[1] * W.element_size()

    def send(self, vector: Tensor, *, down: int = 0, up: int = 0) -> None:
        """A vector like `vector` goes to `down` clients and comes from `up` clients, outside of a round."""
        self.bytes_down += nbytes(vector) * down
        self.bytes_up += nbytes(vector) * up

    def train(self, samples: int) -> None:
        """`samples` images take part in gradient steps."""
        self.images += samples

    def differentiate(self, samples: int) -> None:
        """`samples` images take part in a curvature-vector product."""
        self.products += samples

    def keep(self, name: str, *tensors: Tensor) -> None:
        """`tensors` stay in memory under `name` after the round."""
        self.kept[name] = sum(nbytes(tensor) for tensor in tensors)

    def add(self, other: Meter) -> None:
        """What another meter has counted, too; what is kept is not: it may be the same thing."""
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up
        self.images += other.images
        self.products += other.products
        self.rounds += other.rounds
        self.off_schedule += other.off_schedule

    def restore(self, counted: Mapping[str, Any]) -> None:
        """Go on from what was counted before an interruption: the fields by name."""
        for name, value in counted.items():
            setattr(self, name, value)

    @property
    def scheduled(self) -> int:
        """The rounds that the training's schedule has gone on by: recovery begins with `next_round` + scheduled."""
        return self.rounds - self.off_schedule

    @property
    def gradient_passes(self) -> int:
        """Images times gradients, with a curvature product counted as two gradients, as HF-KCU does (App. B.1)."""
        return self.images + 2 * self.products

    @property
    def bytes(self) -> int:
        """All bytes sent in either direction."""
        return self.bytes_down + self.bytes_up

    @property
    def storage(self) -> int:
        """All bytes kept."""
        return sum(self.kept.values())
