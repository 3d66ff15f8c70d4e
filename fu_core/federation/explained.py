"""What is wrong where a net and clients' samples do not go together, said once and by name.

Nothing is asked of a training that runs: only one that has failed is looked into, client by client. Whether a net is a
function of a sample alone is asked once per net, on a few samples, since a module may hide in its `forward` what
`models.pure` looks for among its layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedModel
from fu_core.models.flat import NO_LABEL, FlatModel

if TYPE_CHECKING:
    from fu_core.federation.federation import Federation

FEW = 16  # samples, for a draw in two passes to differ somewhere
ALIKE = 1e-3  # of outputs; of a sample by itself and in a batch only rounding differs
_seen: WeakSet[FlatModel] = WeakSet()


@contextmanager
def explaining(f: Federation, w: Tensor, ids: Sequence[int]) -> Iterator[None]:
    """Raise InvalidRequest that names the client, in place of an error of torch's that comes of its samples.

    w: (d,), or a row for each of `ids`. An error that no client's first sample brings about by itself passes through.
    """
    if not isinstance(w, Tensor):
        raise ValueError(f"w must be a tensor, got {type(w).__name__}")
    try:
        yield
    except Exception as error:
        if isinstance(error, (IndexError, RuntimeError)) and "out of bounds" in str(error):
            raise InvalidRequest(_wrong_label({i: f.clients[i][1] for i in ids})) from error
        if callable(f.how) or _is_ours(error):  # clients elsewhere have errors of their own
            raise
        for row, i in enumerate(ids):
            if told := _told_of(f.model, w if w.dim() == 1 else w[row], i, *f.clients[i]):
                raise InvalidRequest(told) from error
        raise


def _wrong_label(y: Mapping[int, Tensor]) -> str:
    """Whose labels no output of the model belongs to, where a training has met one."""
    lowest = {i: int(labels[labels != NO_LABEL].min()) for i, labels in y.items() if (labels != NO_LABEL).any()}
    largest = {i: int(labels.max()) for i, labels in y.items()}
    below, above = min(lowest, key=lowest.__getitem__), max(largest, key=largest.__getitem__)
    if lowest[below] < 0:
        return f"labels must be 0 or more, got {lowest[below]} at client {below}"
    return f"labels must be below the number of the model's outputs, got {largest[above]} at client {above}"


def _told_of(model: FlatModel, w: Tensor, i: int, x: Tensor, y: Tensor) -> str:
    """What a plain pass over a client's first sample says, if it fails; empty if it does not."""
    if not len(y) or x.device.type == "meta":
        return ""
    try:
        with torch.no_grad():
            model.loss(w, x[:1], y[:1])
    except Exception as error:
        if _is_ours(error):
            return str(error)
        first = (str(error).strip().splitlines() or [""])[0]
        return (
            f"client {i} must hold samples that the model takes: x is {x.dtype} of shape {tuple(x.shape)}, y "
            f"{y.dtype} of shape {tuple(y.shape)}, w {w.dtype}, and a pass over the first one fails "
            f"({type(error).__name__}: {first})"
        )
    return ""


def refuse_what_depends(model: FlatModel, w: Tensor, x: Tensor) -> None:
    """Raise UnsupportedModel for a net that draws numbers, or whose output for a sample depends on its batch.

    w (d,), or one per client; x (n, ...): samples of anybody's. Asked once per model, and not of fewer than two.
    """
    if model in _seen or len(x) < 2 or x.device.type == "meta":
        return
    point, few = (w if w.dim() == 1 else w[0]).detach(), x[:FEW]
    first, again = model.predict(point, few), model.predict(point, few)
    try:
        alone = model.predict(point, few[:1])
    except ValueError:  # as normalisation says of a batch of one
        alone = torch.full_like(first[:1], torch.inf)
    if not torch.equal(first, again) and first.isfinite().all():
        raise UnsupportedModel(
            "the model must give the same output twice, but its forward draws numbers from no stream (functional "
            "dropout?); leave them out, or call eval() on the module"
        )
    if not torch.allclose(first[:1], alone, rtol=ALIKE, atol=ALIKE, equal_nan=True):
        raise UnsupportedModel(
            "the model's output for a sample must not depend on its batch, but its forward looks at the whole batch "
            "(functional batch normalisation?); use GroupNorm or LayerNorm"
        )
    _seen.add(model)


def _is_ours(error: Exception) -> bool:
    """Whether an error says by itself which parameter is wrong."""
    return type(error).__module__.startswith("fu_core.") or type(error) is ValueError
