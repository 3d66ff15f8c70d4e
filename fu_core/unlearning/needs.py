"""What a method asks of a federation: the columns of PUF's Table I, declared beside each method as its `needs`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """True where a method needs something, or lacks something, that a practical one should not (PUF, Table I)."""

    history: bool = False  # updates of past rounds
    full_participation: bool = False  # everybody who stays must be online for the unlearning step
    stateful_clients: bool = False  # clients must remember something between rounds
    task: bool = False  # works for classification only
    auxiliary_data: bool = False  # data beyond what clients train on
    several_rounds: bool = False  # of unlearning, before recovery
    one_at_a_time: bool = False  # cannot serve two leaving clients together
    blind: bool = False  # does the same whoever leaves
