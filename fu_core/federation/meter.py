"""What a method really sends, computes and keeps, counted where it happens.

The paper's cost formulas (fu_core.evaluation.costs) are checked against these counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


def nbytes(tensor: Tensor) -> int:
    """Bytes of the values of `tensor`."""
    return tensor.numel() * tensor.element_size()


@dataclass
class Meter:
    """Counters of one phase (unlearning or recovery).

    bytes_down, bytes_up: model vectors sent to and received from clients; images: training images
    passed through the model, forward and backward, counted once per epoch; rounds: federated rounds;
    kept: bytes that must outlive a round for the method to work, by name.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    images: int = 0
    rounds: int = 0
    kept: dict[str, int] = field(default_factory=dict)

    def exchange(self, w: Tensor, deltas: Tensor) -> None:
        """The server sends `w` (d,) to each client that answers with a row of `deltas` (K, d)."""
        self.rounds += 1
        self.bytes_down += nbytes(w) * len(deltas)
        self.bytes_up += nbytes(deltas)

    def train(self, samples: int) -> None:
        """`samples` images take part in gradient steps."""
        self.images += samples

    def keep(self, name: str, *tensors: Tensor) -> None:
        """`tensors` stay in memory under `name` after the round."""
        self.kept[name] = sum(nbytes(tensor) for tensor in tensors)

    @property
    def bytes(self) -> int:
        """All bytes sent in either direction."""
        return self.bytes_down + self.bytes_up

    @property
    def storage(self) -> int:
        """All bytes kept."""
        return sum(self.kept.values())
