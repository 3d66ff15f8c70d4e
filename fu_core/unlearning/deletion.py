"""A request to forget, resolved: who loses which samples, and what everybody keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest
from fu_core.federation.local import Client

Forget = int | Sequence[int] | Mapping[int, Tensor]  # clients that leave, or {client: indices into its samples}


@dataclass(frozen=True)
class Deletion:
    """Who forgets what: per client the forgotten and the kept samples. Clients without a part are absent."""

    clients: Mapping[int, Client]
    forgotten: Mapping[int, Client]
    kept: Mapping[int, Client]

    @classmethod
    def of(cls, clients: Sequence[Client], forget: Forget) -> Deletion:
        """Check and resolve a request. Raises InvalidRequest naming the client or index that is wrong."""
        wanted = forget if isinstance(forget, Mapping) else dict.fromkeys(_client_list(forget))
        if not wanted:
            raise InvalidRequest("forget names nobody: at least one client must lose samples")
        forgotten: dict[int, Client] = {}
        kept: dict[int, Client] = {i: client for i, client in enumerate(clients) if len(client[1])}
        for i, indices in sorted(wanted.items(), key=lambda named: named[0]):  # sums run in client order
            if not 0 <= i < len(clients):
                raise InvalidRequest(f"forget names client {i}, but clients are 0 to {len(clients) - 1}")
            x, y = clients[i]
            gone = _mask(i, len(y), indices)
            forgotten[i], kept[i] = (x[gone], y[gone]), (x[~gone], y[~gone])
            if gone.all():
                del kept[i]
        if not kept:
            raise InvalidRequest("forget leaves no data at all: somebody must stay")
        return cls(dict(enumerate(clients)), forgotten, kept)

    @property
    def holders(self) -> dict[int, Client]:
        """The clients that hold data before the deletion."""
        return {i: client for i, client in self.clients.items() if len(client[1])}

    @property
    def n(self) -> int:
        """All samples before the deletion."""
        return sum(len(y) for _, y in self.clients.values())

    @property
    def m(self) -> int:
        """Samples to be forgotten."""
        return sum(len(y) for _, y in self.forgotten.values())


def check_targets(
    clients: int,
    targets: Sequence[int],
    forget: Mapping[int, Client] | None = None,
    *,
    duty: str = "leave",
    everybody: bool = False,
) -> None:
    """Raise InvalidRequest unless `targets` names some of 0..clients-1, each once.

    forget: the samples that targets want forgotten, of exactly the targets; None if the whole clients leave, and
    then somebody must stay, unless `everybody` may go. duty: what a target must do, for the message.
    """
    if not targets:
        raise InvalidRequest(f"targets names nobody: at least one client must {duty}")
    unknown = [j for j in targets if not 0 <= j < clients]
    if unknown:
        raise InvalidRequest(f"targets names client {unknown[0]}, but clients are 0 to {clients - 1}")
    if len(set(targets)) != len(targets):
        raise InvalidRequest(f"targets names a client twice: {list(targets)}")
    if forget is None and len(targets) == clients and not everybody:
        raise InvalidRequest(f"targets names all {clients} clients: nobody would be left")
    if forget is not None and set(forget) != set(targets):
        raise InvalidRequest(f"forget must hold data for exactly the targets {sorted(targets)}, got {sorted(forget)}")


def _client_list(forget: int | Sequence[int]) -> list[int]:
    named = [forget] if isinstance(forget, int) else [int(i) for i in forget]  # of a tensor too
    if len(set(named)) != len(named):
        raise InvalidRequest(f"forget names a client twice: {named}")
    return named


def _mask(i: int, n: int, indices: Tensor | None) -> Tensor:
    """Which of client i's n samples go; None: all."""
    if n == 0:
        raise InvalidRequest(f"forget names client {i}, which holds no data")
    gone = torch.zeros(n, dtype=torch.bool)
    if indices is None:
        return ~gone
    if len(indices) == 0:
        raise InvalidRequest(f"forget names client {i} but none of its samples")
    indices = torch.as_tensor(indices)
    if indices.dtype != torch.int64 or int(indices.min()) < 0 or int(indices.max()) >= n:
        raise InvalidRequest(f"forget must hold indices 0..{n - 1} of client {i} (int64), got {indices.tolist()[:5]}")
    if len(indices.unique()) != len(indices):
        raise InvalidRequest(f"forget names a sample of client {i} twice")
    gone[indices.cpu()] = True
    return gone
