"""Retrain: the reference. Train again, from the same start, as if the forgotten data had never been there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from fu_core.federation.horizontal import FedOpt, ServerState, fedavg
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel


def retrain(
    model: FlatModel,
    w_init: Tensor,
    clients: Sequence[Client],
    targets: Sequence[int],
    *,
    rounds: int,
    local: ClientOpt,
    seed: int,
    keeps_data: bool = False,
    server: FedOpt | None = None,
    meter: Meter | None = None,
    after_round: Callable[[int, Tensor, ServerState], None] | None = None,
) -> Tensor:
    """The model (d,) trained from `w_init` on retained data only. PUF, Sec. V-C.

    Client unlearning: `targets` take no part. Sample unlearning (`keeps_data=True`): they do, and
    `clients[j]` is what target j keeps. Streams are named by client, so everybody else sees the very
    batches of the original training; with no targets the result equals it bit for bit.
    """
    exclude = () if keeps_data else targets
    return fedavg(
        model,
        w_init,
        clients,
        rounds=rounds,
        local=local,
        seed=seed,
        exclude=exclude,
        server=server,
        meter=meter,
        after_round=after_round,
    )
