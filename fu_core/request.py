"""Who forgets what: one grammar for requests, and what they come to once the clients are known.

    none                nobody forgets anything
    client-3            client 3 leaves; client-0-1: both do
    sample-0-0.5        client 0 forgets half of its samples; sample-0.1: everybody forgets a tenth
    samples-50          fifty samples of all go
    class-0             everything of class 0 goes
    classes-2-50        half (50 %) of the samples of two classes, 1 and 2; class 0 comes last
    classes-2-50-from-6 the same of classes 6 and 7
    sequence-2-3-0.2    the first 2 of 3 requests that together take a fifth of everybody's samples

Which samples go is drawn from streams of seed 0: the same ones whatever the training seed. For `sample` and `sequence`
the streams are the clients' own, and it does not matter who else forgets; a client without samples forgets none, unless
it is named. For `classes` they are the class's: clients that hold equally many of it lose the same places among them.
For `samples` all lie in one row, in client order, and one draw depends on how many each client holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, check_count, listed, nearest
from fu_core.federation.local import Client, check_pair
from fu_core.streams import stream

Rows = Mapping[int, Tensor]  # client -> indices into its samples (int64)
Forget = int | Sequence[int] | Rows  # clients that leave, or what each forgets

SHARE = r"(?P<share>\d*\.?\d+(e-\d+)?)"  # 0.1, .1 or 1e-05, which has a dash of its own
GRAMMAR = {  # kind -> an example, and what follows the kind
    "none": ("none", r""),
    "client": ("client-3", r"(?P<clients>(-\d+)+)"),
    "sample": ("sample-0-0.5", rf"(?P<clients>(-\d+)*)-{SHARE}"),
    "samples": ("samples-50", r"-(?P<count>\d+)"),
    "class": ("class-0", r"-(?P<label>\d+)"),
    "classes": ("classes-2-50", r"-(?P<count>\d+)-(?P<percent>\d+)(-from-(?P<first>\d+))?"),
    "sequence": ("sequence-2-3-0.2", rf"-(?P<count>\d+)-(?P<of>\d+)-{SHARE}"),
}
DIGITS = 1000  # of one number; Python reads none of more than 4300


@dataclass(frozen=True)
class Request:
    """A request that has been read; what it means for given clients says `resolve`.

    clients: who leaves, or whose samples go (none named: everybody's); share: of the samples, in (0, 1); count: of
    samples, classes, or requests of a sequence already made; of: requests in the sequence; label: the class that goes;
    percent: of each class's samples, 1 to 100; first: of the classes.
    """

    text: str
    kind: str
    clients: tuple[int, ...] = ()
    share: float = 0.0
    count: int = 0
    of: int = 0
    label: int = 0
    percent: int = 0
    first: int = 1

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read a request; raises InvalidRequest that names what is wrong and how it should look."""
        if not isinstance(text, str):
            raise InvalidRequest(f"request must be a text such as 'client-3', got {text!r:.60}")
        kind = text.partition("-")[0]
        if kind not in GRAMMAR:
            known = ", ".join(GRAMMAR)
            raise InvalidRequest(f"request must begin with one of {known}, got {text!r}{nearest(kind, GRAMMAR)}")
        example, pattern = GRAMMAR[kind]
        found = re.fullmatch(kind + pattern, text, re.ASCII)
        if found is None or re.search(rf"\d{{{DIGITS}}}", text):
            raise InvalidRequest(f"request must look like {example!r}, got {text!r:.{DIGITS}}")
        words = found.groupdict()
        clients = tuple(int(i) for i in words.pop("clients", "").split("-")[1:])
        share = float(words.pop("share", 0.0))
        return cls(text, kind, clients, share, **{name: int(number) for name, number in words.items() if number})

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR:
            raise InvalidRequest(f"kind must be one of {', '.join(GRAMMAR)}, got {self.kind!r}")
        if len(set(self.clients)) != len(self.clients):
            raise InvalidRequest(f"request names a client twice: {self.text!r}")
        if self.kind in ("sample", "sequence") and not 0 < self.share < 1:
            raise InvalidRequest(f"request must take a share between 0 and 1 of the samples, got {self.text!r}")
        if self.kind == "classes" and not 0 < self.percent <= 100:
            raise InvalidRequest(f"request must take 1 to 100 percent of the classes' samples, got {self.text!r}")
        if self.kind == "sequence" and not 1 <= self.count <= self.of:
            raise InvalidRequest(f"request must count from 1 to the sequence's {self.of} requests, got {self.text!r}")

    def labels(self, classes: int) -> tuple[int, ...]:
        """The classes it is about, of `classes` in all; class 0, usually a backdoor's target, comes last."""
        if self.kind == "class":
            return (self.label,)
        return tuple((self.first + i) % classes for i in range(self.count)) if self.kind == "classes" else ()

    def rows(self, labels: Mapping[int, Tensor], classes: int | None = None) -> dict[int, Tensor]:
        """What each client forgets: sorted indices into its samples, given their labels (n_i, ...) by client.

        classes: how many there are, by default as many as the labels tell. Clients that forget nothing are absent.
        Raises InvalidRequest for clients or classes that do not exist, or if too little would be left.
        """
        if classes is not None:
            check_count("classes", classes, error=InvalidRequest)
        if not isinstance(labels, Mapping):
            raise InvalidRequest(f"labels must be (n_i, ...) by client, got {type(labels).__name__}")
        for i in self.clients:
            if i not in labels:
                raise InvalidRequest(f"{self.text!r} names client {i}, but clients are {listed(labels)}")
        chosen = {i: labels[i] for i in sorted(self.clients or labels)}
        some = {i: len(y) for i, y in chosen.items() if self.clients or len(y)}  # everybody: of those who hold any
        match self.kind:
            case "none":
                return {}
            case "client":
                return {i: torch.arange(len(y)) for i, y in chosen.items()}
            case "sample":
                return {i: _some(i, n, self.share * n, "forget samples") for i, n in some.items()}
            case "sequence":
                return {i: _some(i, n, self.count * self.share * n / self.of, "sequence") for i, n in some.items()}
            case "samples":
                return self._of_all(chosen)
            case _:
                return self._of_classes(chosen, classes)

    def resolve(self, clients: Mapping[int, Client] | Sequence[Client], classes: int | None = None) -> Deletion:
        """The request as samples of `clients`. Raises InvalidRequest as `rows` and `Deletion.of`."""
        held = _by_id(clients)
        return Deletion.of(held, self.rows({i: y for i, (_, y) in held.items()}, classes))

    def _of_all(self, labels: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """`count` random samples of all, as if the clients' samples lay in one row."""
        sizes = [len(y) for y in labels.values()]
        if not 0 < self.count < sum(sizes):
            raise InvalidRequest(f"request must leave some of {sum(sizes)} samples and take one, got {self.text!r}")
        gone = torch.zeros(sum(sizes), dtype=torch.bool)
        gone[torch.randperm(sum(sizes), generator=stream(0, "vertical request", "any"))[: self.count]] = True
        return _where(dict(zip(labels, gone.split(sizes), strict=True)))

    def _of_classes(self, labels: Mapping[int, Tensor], classes: int | None) -> dict[int, Tensor]:
        """All samples of a class, or of each of some classes a share, at random."""
        if not all(isinstance(y, Tensor) and y.dim() == 1 and not _broken(y) for y in labels.values()):
            raise InvalidRequest(f"{self.text!r} asks for classes, but these labels are not one class per sample")
        held = torch.cat([torch.zeros(0, dtype=torch.bool), *(y.cpu() for y in labels.values())]).unique().tolist()
        if self.kind == "class":
            if self.label not in held:
                raise InvalidRequest(f"{self.text!r} must name a class that some client holds, one of {held}")
            return _where({i: y.cpu() == self.label for i, y in labels.items()})
        seen = 1 + int(max(held, default=0))
        known = seen if classes is None else classes
        check_count("classes", known, least=seen, error=InvalidRequest)
        if not 0 < self.count <= known:
            raise InvalidRequest(f"request must name 1 to {known} classes, got {self.text!r}")
        if self.first > known:  # which is class 0 again
            raise InvalidRequest(f"request must begin from class 0 to {known - 1}, got {self.text!r}")
        rows = _where({i: _shares(y.cpu(), self.labels(known), self.percent) for i, y in labels.items()})
        if not rows:
            raise InvalidRequest(f"{self.text!r} takes no sample: there are too few of classes {self.labels(known)}")
        return rows


def _broken(y: Tensor) -> bool:
    """Whether these numbers can have a fraction, as classes have not."""
    return y.is_floating_point() or y.is_complex()


def _some(client: int, n: int, wanted: float, purpose: str) -> Tensor:
    """About `wanted` of a client's n samples at random, at least one and never all; its own stream."""
    if n < 2:
        raise InvalidRequest(f"client {client} holds {n} samples, too few to forget some and retain some")
    order = torch.randperm(n, generator=stream(0, purpose, client))
    return order[: min(max(round(wanted), 1), n - 1)].sort().values


def _shares(y: Tensor, labels: Sequence[int], percent: int) -> Tensor:
    """Which of a client's samples (n,) go: so many percent of those of each class, at random."""
    gone = torch.zeros(len(y), dtype=torch.bool)
    for label in labels:
        rows = (y == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=stream(0, "vertical request", label))
        gone[rows[order[: round(percent * len(rows) / 100)]]] = True
    return gone


def _where(gone: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Masks as indices, without the clients that lose nothing."""
    return {i: mask.nonzero().flatten() for i, mask in gone.items() if mask.any()}


# --- resolved --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Deletion:
    """Who forgets what: per client the forgotten and the kept samples. Clients without a part are absent."""

    clients: Mapping[int, Client]
    forgotten: Mapping[int, Client]
    kept: Mapping[int, Client]

    @classmethod
    def of(cls, clients: Mapping[int, Client] | Sequence[Client], forget: Forget) -> Deletion:
        """Check and resolve what to forget. Raises InvalidRequest naming the client or index that is wrong."""
        held = _by_id(clients)
        wanted = forget if isinstance(forget, Mapping) else dict.fromkeys(_client_list(forget))
        if not wanted:
            raise InvalidRequest("forget names nobody: at least one client must lose samples")
        forgotten: dict[int, Client] = {}
        kept: dict[int, Client] = {i: client for i, client in held.items() if len(client[1])}
        if other := [i for i in wanted if not _is_id(i)]:
            raise InvalidRequest(f"forget must name clients by their numbers, got {other[0]!r}")
        for i, indices in sorted(wanted.items(), key=lambda named: named[0]):  # sums run in client order
            if i not in held:
                raise InvalidRequest(f"forget names client {i}, but clients are {listed(held)}")
            x, y = held[i]
            gone = _mask(i, len(y), indices).to(y.device)
            forgotten[i], kept[i] = (x[gone], y[gone]), (x[~gone], y[~gone])
            if gone.all():
                del kept[i]
        if not kept:
            raise InvalidRequest("forget leaves no data at all: somebody must stay")
        return cls(held, forgotten, kept)

    def check_of(self, clients: Mapping[int, Client]) -> None:
        """Raise InvalidRequest unless it was resolved for these clients, with the samples that they hold."""
        if set(self.clients) != set(clients):
            theirs = listed(self.clients)
            raise InvalidRequest(f"request was resolved for clients {theirs}, but these are {listed(clients)}")
        for i, (x, y) in self.clients.items():
            if not (_same(x, clients[i][0]) and _same(y, clients[i][1])):
                raise InvalidRequest(
                    f"request was resolved for other samples of client {i} than these, which must be the same; "
                    "resolve it again"
                )

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


def _by_id(clients: Mapping[int, Client] | Sequence[Client]) -> dict[int, Client]:
    """The clients in order. Raises InvalidRequest as a federation does, for what is no client."""
    held = dict(enumerate(clients)) if isinstance(clients, Sequence) else clients
    if not isinstance(held, Mapping):
        raise InvalidRequest(f"clients must be (x, y) by id, or a list of them, got {type(clients).__name__}")
    for i, client in held.items():
        if not _is_id(i):
            raise InvalidRequest(f"clients must be numbered by whole numbers, got {i!r}")
        check_pair(i, client)
        x, y = client
        if not (x.dim() and y.dim() and len(x) == len(y)):
            given = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
            raise InvalidRequest(f"client {i} must hold as many samples in x as in y, got {given}")
    return dict(sorted(held.items()))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; labels may have been made whole numbers in between."""
    if one is other or one.shape != other.shape or one.device != other.device or one.device.type == "meta":
        return one.shape == other.shape
    return one.data_ptr() == other.data_ptr() or torch.equal(one.to(other.dtype), other)


def _is_id(i: Any) -> bool:
    return isinstance(i, Integral) and not isinstance(i, bool)


def _client_list(forget: int | Sequence[int]) -> list[int]:
    """Client numbers, also from NumPy or torch; a mask is none."""
    try:
        given = torch.as_tensor(forget).flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"forget must name clients by their numbers, got {forget!r}") from error
    if len(given) and (_broken(given) or given.dtype == torch.bool):
        raise InvalidRequest(f"forget must name clients by their numbers, got {forget!r}")
    if len(given.unique()) != len(given):
        raise InvalidRequest(f"forget names a client twice: {given.tolist()}")
    return given.tolist()


def _mask(i: int, n: int, indices: Tensor | None) -> Tensor:
    """Which of client i's n samples go; None: all."""
    if n == 0:
        raise InvalidRequest(f"forget names client {i}, which holds no data")
    gone = torch.zeros(n, dtype=torch.bool)
    if indices is None:
        return ~gone
    try:
        indices = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(
            f"forget must hold indices 0..{n - 1} of client {i} (int64), got {indices!r:.60}"
        ) from error
    if indices.numel() == 0:
        raise InvalidRequest(f"forget names client {i} but none of its samples")
    whole = indices.dtype == torch.int64 and indices.dim() == 1
    if not whole or int(indices.min()) < 0 or int(indices.max()) >= n:
        given = f"{indices.flatten().tolist()[:5]}, {indices.dtype} of shape {tuple(indices.shape)}"
        raise InvalidRequest(f"forget must hold indices 0..{n - 1} of client {i} (int64), got {given}")
    if len(indices.unique()) != len(indices):
        raise InvalidRequest(f"forget names a sample of client {i} twice")
    gone[indices.cpu()] = True
    return gone
