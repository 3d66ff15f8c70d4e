"""A federation as its server sees it: how many samples each client holds, and of what shape, but none of them.

    seen = as_server(f)                                             the same clients, without their samples
    asked = seen.having(how=train)                                  train(f, w, round, ids) -> updates (K, d)
    unlearn("FedOSD", Trained(asked, w, rounds=20), departure(seen.clients, [3]))

Whatever carries the models, the methods run as they stand: `train_round` calls `train`, which asks the clients. What a
method wants beyond that is refused as it happens: it would compute with samples that are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedTask, check_count, listed
from fu_core.federation.federation import Clients, Federation
from fu_core.federation.local import Client
from fu_core.request import Deletion, Request


class Absent(Tensor):
    """Samples that somebody else holds: their number, shape and type can be asked, and nothing else.

    Raises `UnsupportedTask` for any computation.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Collection[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in _OUTSIDE:
            raise UnsupportedTask("it computes with samples of the clients, who have them and do nothing but train")
        return super().__torch_function__(func, types, args, kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Absent({tuple(self.shape)}, dtype={self.dtype})"


_OUTSIDE = {  # what can be seen of samples without them
    Tensor.__len__,
    Tensor.dim,
    Tensor.size,
    Tensor.is_floating_point,
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
}


def absent(
    n: int, shape: Sequence[int], *, dtype: torch.dtype = torch.float32, labels: torch.dtype = torch.long
) -> Client:
    """A client elsewhere: n samples x (n, *shape) of type `dtype`, and as many labels y (n,). No memory is used."""
    check_count("n", n, least=0)
    return _without((torch.empty((n, *shape), dtype=dtype, device="meta"), torch.empty(n, dtype=labels, device="meta")))


def as_server(f: Federation) -> Federation:
    """The federation without anybody's samples; one that has none comes back as it is."""
    if all(isinstance(x, Absent) for x, _ in f.clients.values()):
        return f
    return f.having(clients={i: _without(client) for i, client in f.clients.items()})


def departure(clients: Clients, request: str | Sequence[int]) -> Deletion:
    """Whole clients that leave, "client-3" or [3], found without a look at their samples.

    Raises `InvalidRequest` for unknown clients, clients without samples, nobody or everybody, `UnsupportedTask` for a
    request of single samples: which ones, only their clients could tell.
    """
    targets = _named(request, clients)
    if unknown := [j for j in targets if j not in clients]:
        raise InvalidRequest(f"targets names client {unknown[0]}, but clients are {listed(clients)}")
    if len(set(targets)) < len(targets):
        raise InvalidRequest(f"targets names a client twice: {targets}")
    if not targets:
        raise InvalidRequest("targets names nobody: at least one client must leave")
    if empty := [j for j in targets if not len(clients[j][1])]:
        raise InvalidRequest(f"targets names client {empty[0]}, which holds no data")
    held = {i: clients[i] for i in sorted(clients)}
    kept = {i: client for i, client in held.items() if i not in targets and len(client[1])}
    if not kept:
        raise InvalidRequest(f"targets names all {len(clients)} clients: nobody would be left")
    return Deletion(held, {j: held[j] for j in sorted(targets)}, kept)


def _named(request: str | Sequence[int], clients: Mapping[int, Client]) -> list[int]:
    if not isinstance(request, str):
        named = list(request) if isinstance(request, Iterable) else [request]
        if not isinstance(request, Iterable) or not all(isinstance(j, Integral) for j in named):
            raise InvalidRequest(f"request must be 'client-3' or a list of clients' numbers, got {request!r:.60}")
        return named
    read = Request.parse(request)
    if read.kind not in ("client", "none"):
        raise UnsupportedTask(
            f"request must name clients that leave, 'client-3' say: nobody else knows, got {request!r}"
        )
    return list(read.clients)


def _without(client: Client) -> Client:
    x, y = (torch.empty(part.shape, dtype=part.dtype, device="meta").as_subclass(Absent) for part in client)
    return x, y
