"""Who forgets what: one grammar for requests, and what they come to once the clients are known.

    none                nobody forgets anything
    client-3            client 3 leaves; client-0-1: both do
    sample-0-0.5        client 0 forgets half of its samples; sample-0.1: everybody forgets a tenth
    samples-50          fifty samples of all go
    class-0             everything of class 0 goes
    classes-2-50        half (50 %) of the samples of two classes, 1 and 2; class 0 comes last
    sequence-2-3-0.2    the first 2 of 3 requests that together take a fifth of everybody's samples

Which samples go is drawn from streams that depend on the request, the client and the class alone: the same ones
whatever the training seed, and whoever else forgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest
from fu_core.federation.local import Client
from fu_core.streams import stream

Rows = Mapping[int, Tensor]  # client -> indices into its samples (int64)
Forget = int | Sequence[int] | Rows  # clients that leave, or what each forgets

GRAMMAR = {  # kind -> an example, and how many numbers may follow
    "none": ("none", (0, 0)),
    "client": ("client-3", (1, None)),
    "sample": ("sample-0-0.5", (1, None)),
    "samples": ("samples-50", (1, 1)),
    "class": ("class-0", (1, 1)),
    "classes": ("classes-2-50", (2, 2)),
    "sequence": ("sequence-2-3-0.2", (3, 3)),
}


@dataclass(frozen=True)
class Request:
    """A request that has been read; what it means for given clients says `resolve`.

    clients: who leaves, or whose samples go (none named: everybody's); share: of the samples, in (0, 1); count: of
    samples, classes, or requests of a sequence already made; of: requests in the sequence.
    """

    text: str
    kind: str
    clients: tuple[int, ...] = ()
    share: float = 0.0
    count: int = 0
    of: int = 0

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read a request; raises InvalidRequest that names what is wrong and how it should look."""
        kind, _, rest = text.partition("-")
        if kind not in GRAMMAR:
            raise InvalidRequest(f"request must begin with one of {', '.join(GRAMMAR)}, got {text!r}")
        example, (least, most) = GRAMMAR[kind]
        words = rest.replace("e-", "e_").split("-") if rest else []  # 1e-05 has a dash of its own
        numbers = [_number(word.replace("e_", "e-")) for word in words]
        wrong = InvalidRequest(f"request must look like {example!r}, got {text!r}")
        if any(n is None for n in numbers) or len(numbers) < least or (most is not None and len(numbers) > most):
            raise wrong
        *whole, last = [n for n in numbers if n is not None] or [0]
        if not all(isinstance(n, int) for n in whole):
            raise wrong
        ids = tuple(int(n) for n in whole)
        if kind in ("client", "samples", "class", "classes") and not isinstance(last, int):
            raise wrong
        if kind in ("sample", "sequence") and not 0 < last < 1:
            raise InvalidRequest(f"request must take a share between 0 and 1 of the samples, got {text!r}")
        match kind:
            case "client":
                return cls(text, kind, clients=(*ids, int(last)))
            case "sample":
                return cls(text, kind, clients=ids, share=float(last))
            case "classes":
                if not 0 < last <= 100:
                    raise InvalidRequest(f"request must take 1 to 100 percent of the classes' samples, got {text!r}")
                return cls(text, kind, count=ids[0], share=last / 100)
            case "sequence":
                if not 1 <= ids[0] <= ids[1]:
                    raise InvalidRequest(f"request must name one of {ids[1]} requests, 1 to {ids[1]}, got {text!r}")
                return cls(text, kind, count=ids[0], of=ids[1], share=float(last))
        return cls(text, kind, count=int(last))

    def labels(self, classes: int) -> tuple[int, ...]:
        """The classes that the request is about, of `classes` in all; class 0, a backdoor's usual target, comes last."""
        if self.kind == "class":
            return (self.count,)
        return tuple((1 + i) % classes for i in range(self.count)) if self.kind == "classes" else ()

    def rows(self, labels: Mapping[int, Tensor], classes: int | None = None) -> dict[int, Tensor]:
        """What each client forgets: sorted indices into its samples, given their labels (n_i,) by client.

        classes: how many there are, by default as many as the labels tell. Clients that forget nothing are absent.
        Raises InvalidRequest for clients or classes that do not exist, or if too little would be left.
        """
        known = classes or 1 + max((int(y.max()) for y in labels.values() if len(y)), default=0)
        match self.kind:
            case "none":
                return {}
            case "client":
                return {i: torch.arange(len(labels[i])) for i in _known(self.clients, labels, self.text)}
            case "sample":
                chosen = _known(self.clients, labels, self.text) if self.clients else sorted(labels)
                return {i: _share(i, len(labels[i]), self.share) for i in chosen}
            case "sequence":
                return {i: _sequence(i, len(y), self) for i, y in sorted(labels.items())}
            case "samples":
                return _of_all(self.count, labels, self.text)
        if self.kind == "class":
            hits = {i: y.cpu() == self.count for i, y in sorted(labels.items())}
        else:
            if not 0 < self.count <= known:
                raise InvalidRequest(f"classes must be 1 to {known}, got {self.count} in {self.text!r}")
            hits = {i: _of_classes(self, y.cpu(), known) for i, y in sorted(labels.items())}
        found = {i: hit.nonzero().flatten() for i, hit in hits.items() if hit.any()}
        if not found:
            raise InvalidRequest(f"no client holds a sample of class {self.count}, as {self.text!r} wants")
        return found

    def resolve(self, clients: Mapping[int, Client], classes: int | None = None) -> Deletion:
        """The request as samples of `clients`. Raises InvalidRequest as `rows` and `Deletion.of`."""
        return Deletion.of(clients, self.rows({i: y for i, (_, y) in clients.items()}, classes))


def _number(word: str) -> int | float | None:
    if word.isdecimal():
        return int(word)
    try:
        return float(word)
    except ValueError:
        return None


def _known(ids: Sequence[int], labels: Mapping[int, Tensor], text: str) -> list[int]:
    for i in ids:
        if i not in labels:
            raise InvalidRequest(f"{text!r} names client {i}, but clients are {_listed(sorted(labels))}")
    if len(set(ids)) != len(ids):
        raise InvalidRequest(f"{text!r} names a client twice")
    return sorted(ids)


def _share(client: int, n: int, share: float) -> Tensor:
    """A random share of a client's n samples, at least one and never all; its own stream."""
    if n < 2:
        raise InvalidRequest(f"client {client} holds {n} samples, too few to forget some and retain some")
    count = min(max(round(share * n), 1), n - 1)
    return torch.randperm(n, generator=stream(0, "forget samples", client))[:count].sort().values


def _sequence(client: int, n: int, request: Request) -> Tensor:
    order = torch.randperm(n, generator=stream(0, "sequence", client))
    return order[: max(1, round(request.count * request.share * n / request.of))].sort().values


def _of_all(count: int, labels: Mapping[int, Tensor], text: str) -> dict[int, Tensor]:
    """`count` random samples of all, as if the clients' samples lay in one row."""
    ids = sorted(labels)
    sizes = [len(labels[i]) for i in ids]
    if not 0 < count < sum(sizes):
        raise InvalidRequest(f"request must leave some of {sum(sizes)} samples and take one, got {text!r}")
    gone = torch.zeros(sum(sizes), dtype=torch.bool)
    gone[torch.randperm(sum(sizes), generator=stream(0, "vertical request", "any"))[:count]] = True
    parts = {i: part.nonzero().flatten() for i, part in zip(ids, gone.split(sizes), strict=True)}
    return {i: rows for i, rows in parts.items() if len(rows)}


def _of_classes(request: Request, y: Tensor, classes: int) -> Tensor:
    """Which of a client's samples (n,) go: a share of those of each class, at random."""
    gone = torch.zeros(len(y), dtype=torch.bool)
    for label in request.labels(classes):
        rows = (y == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=stream(0, "vertical request", label))
        gone[rows[order[: round(request.share * len(rows))]]] = True
    return gone


# --- resolved --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deletion:
    """Who forgets what: per client the forgotten and the kept samples. Clients without a part are absent."""

    clients: Mapping[int, Client]
    forgotten: Mapping[int, Client]
    kept: Mapping[int, Client]

    @classmethod
    def of(cls, clients: Mapping[int, Client] | Sequence[Client], forget: Forget) -> Deletion:
        """Check and resolve what to forget. Raises InvalidRequest naming the client or index that is wrong."""
        held = dict(enumerate(clients)) if isinstance(clients, Sequence) else dict(clients)
        wanted = forget if isinstance(forget, Mapping) else dict.fromkeys(_client_list(forget))
        if not wanted:
            raise InvalidRequest("forget names nobody: at least one client must lose samples")
        forgotten: dict[int, Client] = {}
        kept: dict[int, Client] = {i: client for i, client in held.items() if len(client[1])}
        for i, indices in sorted(wanted.items(), key=lambda named: named[0]):  # sums run in client order
            if i not in held:
                raise InvalidRequest(f"forget names client {i}, but clients are {_listed(sorted(held))}")
            x, y = held[i]
            gone = _mask(i, len(y), indices).to(y.device)
            forgotten[i], kept[i] = (x[gone], y[gone]), (x[~gone], y[~gone])
            if gone.all():
                del kept[i]
        if not kept:
            raise InvalidRequest("forget leaves no data at all: somebody must stay")
        return cls(held, forgotten, kept)

    @property
    def targets(self) -> list[int]:
        """Who forgets something."""
        return sorted(self.forgotten)

    @property
    def leaving(self) -> list[int]:
        """Those of whom nothing is left."""
        return [i for i in self.targets if i not in self.kept]

    @property
    def of_clients(self) -> bool:
        """Do all who forget leave altogether?"""
        return self.leaving == self.targets

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

    @property
    def forget(self) -> Client:
        """All samples to be forgotten, in client order."""
        return joined(self.forgotten)

    @property
    def retain(self) -> Client:
        """All samples that stay, in client order."""
        return joined(self.kept)


def joined(parts: Mapping[int, Client]) -> Client:
    """The samples of several clients as one, in client order."""
    x, y = zip(*(parts[i] for i in sorted(parts)), strict=True)
    return torch.cat(x), torch.cat(y)


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


def _listed(ids: Sequence[int]) -> str:
    """`"0 to 9"`, or all of them where some are missing."""
    whole = list(ids) == list(range(ids[0], ids[-1] + 1))
    return f"{ids[0]} to {ids[-1]}" if whole else ", ".join(map(str, ids))
