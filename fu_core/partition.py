"""Who holds what.

A partition is a list of sorted int64 index tensors, one per client, none of which share a sample. It is data: drawn
from named streams, checked, and hashed into the records. It covers the training set exactly once, but for two kinds,
whose other samples nobody holds: one with given sizes that add up to less (`dirichlet`), and one that somebody else has
published (`read`).
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import check_count, check_positive
from fu_core.streams import numpy_stream, stream

Parts = Sequence[Tensor]
INDICES = (torch.int64, torch.int32, torch.int16)
MOST_ALPHA = 1e300  # above, the numbers that shares are made of overflow, and one client would get everything


def iid(n: int, clients: int, *, seed: int) -> list[Tensor]:
    """`n` samples dealt uniformly at random; sizes differ by at most one."""
    check_count("n", n, least=0)
    _check_clients(clients, n)
    order = torch.randperm(n, generator=stream(seed, "partition iid"))
    return [part.sort().values for part in order.tensor_split(int(clients))]


def dirichlet(
    labels: Tensor | np.ndarray,
    clients: int,
    *,
    alpha: float,
    seed: int,
    min_size: int = 1,
    max_tries: int = 100,
    sizes: Sequence[int] | None = None,
) -> list[Tensor]:
    """Label skew: the samples of each class are shared out by proportions q ~ Dir(alpha · 1_N).

    Small `alpha` gives each client few classes, large `alpha` approaches `iid`. `labels`: int64 `(n,)`. All classes
    are redrawn until every client has `min_size` samples. Raises `ValueError` after `max_tries` draws.

    sizes: how many samples each client has, at most n together; what is left over nobody holds. Then every client draws
    class proportions q ~ Dir(alpha · C · prior) of its own, prior the C classes' shares in the data, and takes its
    samples by them without putting any back; where a class has run out, by the others' proportions. Clients choose in
    random order, as those who come late find less of what they would have. min_size and max_tries are of no account.
    """
    check_positive("alpha", alpha)
    if float(alpha) > MOST_ALPHA:
        raise ValueError(f"alpha must be at most {MOST_ALPHA:g}, got {alpha!r}")
    check_count("min_size", min_size, least=0)
    check_count("max_tries", max_tries)
    labels = _numbers("labels", labels)
    if labels.ndim != 1:
        raise ValueError(f"labels must have shape (n,), got {tuple(labels.shape)}")
    if sizes is not None:
        sizes = _checked_sizes(sizes, clients, len(labels))
        return _sized_draw(labels, sizes, alpha, numpy_stream(seed, "partition dirichlet sizes"))
    _check_clients(clients, len(labels), max(min_size, 1))
    best = 0
    for attempt in range(max_tries):
        parts = _dirichlet_draw(labels, clients, alpha, numpy_stream(seed, "partition dirichlet", attempt))
        smallest = min(len(part) for part in parts)
        if smallest >= min_size:
            return parts
        best = max(best, smallest)
    raise ValueError(
        f"no Dirichlet split in {max_tries} draws gave each of {clients} clients {min_size} of {len(labels)} samples "
        f"(alpha={alpha}; at best the smallest client had {best}); raise alpha or max_tries, or lower min_size"
    )


def _dirichlet_draw(labels: Tensor, clients: int, alpha: float, rng: np.random.Generator) -> list[Tensor]:
    owned: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for cls in labels.unique().tolist():
        samples = rng.permutation((labels == cls).nonzero().flatten().numpy())
        q = rng.dirichlet(np.full(clients, alpha))
        # Cutting at rounded cumulative shares loses and duplicates nothing, unlike rounding the shares themselves.
        cuts = np.rint(np.cumsum(q)[:-1] * len(samples)).astype(np.int64)
        for client, share in enumerate(np.split(samples, cuts)):
            owned[client].append(share)
    return [torch.from_numpy(np.sort(np.concatenate(shares))) for shares in owned]


def _sized_draw(labels: Tensor, sizes: Sequence[int], alpha: float, rng: np.random.Generator) -> list[Tensor]:
    classes, count = np.unique(labels.numpy(), return_counts=True)
    pools = [rng.permutation((labels == cls).nonzero().flatten().numpy()) for cls in classes.tolist()]
    left = count.copy()
    parts: dict[int, Tensor] = {}
    for client in rng.permutation(len(sizes)).tolist():
        q = rng.dirichlet(alpha * len(classes) * count / count.sum())
        taken = _counts(sizes[client], q, left, rng)
        ends = left.copy()
        left -= taken
        own = np.concatenate([pool[a:b] for pool, a, b in zip(pools, left, ends, strict=True)])
        parts[client] = torch.from_numpy(np.sort(own))
    return [parts[client] for client in range(len(sizes))]


def _counts(size: int, q: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many of each class (C,): `size` together, by the proportions `q` (C,), never more than are `left` (C,)."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        wanted = np.where(left > taken, q, 0.0)
        if wanted.sum() < 1e-12:  # nothing that it would have is left
            wanted = (left - taken).astype(float)
        taken = np.minimum(taken + rng.multinomial(missing, wanted / wanted.sum()), left)
    return taken


def read(path: str | Path, n: int) -> list[Tensor]:
    """The partition of n samples in a JSON file, {"0": [indices], "1": ...}, as papers publish theirs.

    Clients are numbered from 0 without a gap, in any order, and so are their indices; not all samples need be there.
    They count samples in the order of the data set that they were made for. Raises `ValueError` that names the file and
    the client that is wrong.
    """
    check_count("n", n)
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_named_once)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"path must name a JSON file with a partition, got {str(path)!r}: {error}") from error
    if not isinstance(held, dict) or not held:
        raise ValueError(f'{path} must hold lists of indices by client, {{"0": [...], ...}}, got {type(held).__name__}')
    if set(held) != {str(client) for client in range(len(held))}:
        expected = f'"0" to "{len(held) - 1}"'
        raise ValueError(f"{path} must name its {len(held)} clients {expected}, got {', '.join(map(repr, held))}")
    parts = [_indices(path, client, held[str(client)], n) for client in range(len(held))]
    owner = torch.full((n,), -1)
    for client, part in enumerate(parts):
        if (taken := part[owner[part] >= 0]).numel():
            raise ValueError(f"{path}: clients {int(owner[taken[0]])} and {client} both have index {int(taken[0])}")
        owner[part] = client
    return parts


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON's own reader would keep the last of two clients of one name, and lose the other's samples."""
    clients: dict[str, Any] = {}
    for name, held in pairs:
        if name in clients:
            raise ValueError(f"client {name!r} is there twice")
        clients[name] = held
    return clients


def _indices(path: str | Path, client: int, given: Any, n: int) -> Tensor:
    whole = isinstance(given, list) and all(type(index) is int for index in given)
    if not whole or not given:
        raise ValueError(f"{path}: client {client} must have a list of whole numbers, one at least, got {given!r:.60}")
    if wrong := [index for index in given if not 0 <= index < n]:
        raise ValueError(f"{path}: client {client} must have indices 0..{n - 1}, got {wrong[0]}")
    if again := len(given) - len(set(given)):
        raise ValueError(f"{path}: client {client} must have every index once, got {again} again")
    return torch.tensor(sorted(given), dtype=torch.int64)


def natural(site: Tensor | np.ndarray) -> list[Tensor]:
    """One client per hospital: the indices of each distinct value of `site` `(n,)`, in the order of the values."""
    site = _numbers("site", site)
    if site.ndim != 1 or len(site) == 0:
        raise ValueError(f"site must have shape (n,) with n >= 1, got {tuple(site.shape)}")
    return [(site == value).nonzero().flatten() for value in site.unique()]


def vertical(shape: int | Sequence[int], parties: int, *, axis: int = -1) -> list[Tensor]:
    """Features, not samples, divided: contiguous blocks of `shape[axis]`, whose sizes differ by at most one.

    `shape` is that of one sample: `p` or `(p,)` for a table, `(C, H, W)` for an image. By default the last axis is
    cut, so an image falls into vertical stripes; two parties get the left and the right half. A party's view is
    `x.index_select(axis, block)`. Deterministic.
    """
    sample = _sample_shape(shape)
    if not (isinstance(axis, Integral) and -len(sample) <= axis < 0):
        raise ValueError(f"axis counts from the end: -{len(sample)} to -1 for a sample of shape {sample}, got {axis}")
    check_count("parties", parties)
    if parties > sample[axis]:
        raise ValueError(f"parties must be at most {sample[axis]}, the size of axis {axis}, got {parties}")
    return [block.clone() for block in torch.arange(sample[axis]).tensor_split(int(parties))]


def feature_blocks(
    shape: int | Sequence[int], parties: int | None = None, blocks: Sequence[Tensor | Sequence[int]] | None = None
) -> list[Tensor]:
    """Who gets which columns of samples of `shape`: `blocks`, checked and int64, else those of `vertical`, for two.

    Some columns may be nobody's. Raises `ValueError` for no blocks, blocks that share one, are empty or reach beyond
    the last, and for another number of parties than there are blocks.
    """
    if blocks is None:
        return vertical(shape, 2 if parties is None else parties)
    if not isinstance(blocks, (Sequence, np.ndarray, Tensor)):
        raise ValueError(f"blocks must be the columns of each party, in a list, got {blocks!r:.60}")
    if not len(blocks):
        raise ValueError("blocks must name the columns of one party at least, got none")
    if parties is not None and parties != len(blocks):
        raise ValueError(f"parties must be {len(blocks)} if given beside so many blocks, one each, got {parties}")
    width = _sample_shape(shape)[-1]
    owner, cut = torch.full((width,), -1), []
    for k, given in enumerate(blocks):
        block = _numbers(f"blocks[{k}]", given)
        if block.ndim != 1 or block.dtype not in INDICES or not len(block):
            what = f"{block.dtype} of shape {tuple(block.shape)}"
            raise ValueError(
                f"blocks[{k}] must be columns 0 to {width - 1}, one at least, as whole numbers, got {what}"
            )
        for column in block.tolist():
            if not 0 <= column < width:
                raise ValueError(f"blocks[{k}] must be columns 0 to {width - 1}, got {column}")
            if owner[column] >= 0:
                first = int(owner[column])
                raise ValueError(f"blocks must have no column twice, got {column} in blocks[{first}] and blocks[{k}]")
            owner[column] = k
        cut.append(block.long())
    return cut


def label_counts(parts: Parts, labels: Tensor | np.ndarray, classes: int) -> Tensor:
    """How many samples of each class each client holds, int64 `(N, classes)`."""
    check_count("classes", classes)
    labels = _numbers("labels", labels)
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be whole numbers (n,), got {labels.dtype} of shape {tuple(labels.shape)}")
    if len(labels) and int(labels.min()) < 0:
        raise ValueError(f"labels must be 0 to {classes - 1}, got {int(labels.min())}")
    if len(labels) and int(labels.max()) >= classes:
        raise ValueError(f"classes must exceed every label, got {classes} for labels up to {int(labels.max())}")
    parts = _as_indices(parts)
    _check_range(parts, len(labels))
    counts = [torch.bincount(labels[part], minlength=classes) for part in parts]
    return torch.stack(counts) if counts else torch.zeros((0, classes), dtype=torch.int64)


def check_partition(parts: Parts, n: int, *, whole: bool = True) -> None:
    """Raise `ValueError` unless the parts are disjoint and cover `0..n-1`; with `whole=False` they may leave some."""
    check_count("n", n, least=0)
    times = torch.bincount(_check_range(_as_indices(parts), n), minlength=n)
    lost, repeated = int((times == 0).sum()), int((times > 1).sum())
    if repeated and not whole:
        raise ValueError(f"parts must hold none of {n} samples twice: {repeated} are repeated")
    if whole and (lost or repeated):
        raise ValueError(f"parts must hold each of {n} samples once: {lost} are lost, {repeated} are repeated")


def partition_hash(parts: Parts) -> str:
    """SHA-256 of the sizes and indices, in client order."""
    digest = hashlib.sha256()
    for part in _as_indices(parts):
        digest.update(f"{len(part)}\n".encode())
        digest.update(part.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def _as_indices(parts: Parts) -> list[Tensor]:
    """The parts as int64 (n_k,), be they NumPy's or lists; what torch would take for a mask is none."""
    if not isinstance(parts, (Sequence, np.ndarray, Tensor)):
        raise ValueError(f"parts must be the indices of each client, in a list, got {type(parts).__name__}")
    indices = []
    for k, given in enumerate(parts):
        part = _numbers(f"parts[{k}]", given)
        if part.ndim != 1 or (len(part) and part.dtype not in INDICES):
            raise ValueError(f"parts[{k}] must be whole numbers (n,), got {part.dtype} of shape {tuple(part.shape)}")
        indices.append(part.cpu().long())
    return indices


def _check_range(parts: list[Tensor], n: int) -> Tensor:
    """All indices of the parts, each below n."""
    indices = torch.cat([*parts, torch.empty(0, dtype=torch.int64)])
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < n:
        raise ValueError(f"parts must hold indices 0..{n - 1}, found {int(indices.min())}..{int(indices.max())}")
    return indices


def _numbers(parameter: str, given: Any) -> Tensor:
    """As a tensor, be it NumPy's or a list. NaN is no number: it equals nothing, and its samples would be lost."""
    try:
        numbers = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{parameter} must be numbers, as an array or tensor, got {given!r:.60}") from error
    if numbers.is_complex() or (numbers.is_floating_point() and bool(numbers.isnan().any())):
        what = "complex ones" if numbers.is_complex() else f"{int(numbers.isnan().sum())} that are NaN"
        raise ValueError(f"{parameter} must be numbers, as an array or tensor, got {what}")
    return numbers


def _sample_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of one sample's axes, one at least."""
    try:
        sample = (int(shape),) if isinstance(shape, Integral) else tuple(map(operator.index, shape))  # type: ignore
    except TypeError as error:
        raise ValueError(f"shape must be whole numbers, p or (C, H, W), got {shape!r:.60}") from error
    if not sample or min(sample) < 0:
        raise ValueError(f"shape must be one size >= 0 at least, p or (C, H, W), got {shape!r:.60}")
    return sample


def _checked_sizes(sizes: Sequence[int], clients: int, n: int) -> list[int]:
    """Python's integers: NumPy's narrow ones would overflow when they are added up."""
    check_count("clients", clients)
    if not isinstance(sizes, (Sequence, np.ndarray, Tensor)):
        raise ValueError(f"sizes must be one per client, {clients}, got {sizes!r:.60}")
    if len(sizes) != clients:
        raise ValueError(f"sizes must be one per client, {clients}, got {len(sizes)}")
    for client, size in enumerate(sizes):
        check_count(f"size of client {client}", size)
    whole = [int(size) for size in sizes]
    if sum(whole) > n:
        raise ValueError(f"sizes must not add up to more than there is: {sum(whole)} of {n} samples")
    return whole


def _check_clients(clients: int, n: int, each: int = 1) -> None:
    check_count("clients", clients)
    if clients * each > n:
        needed = f"{each} samples for each of {clients} clients" if each > 1 else f"{clients} clients"
        raise ValueError(f"clients must not ask for more than there is: {needed} of {n} samples")
