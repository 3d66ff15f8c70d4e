"""How sure is a model of the true class? One number per model and example, on which the judges of many models agree.

    phi(w, x) = z_y - log sum_{j != y} exp(z_j) = log(p_y / (1 - p_y))

The logit of the true class's probability: about normal over training seeds, where the probability itself is not
(Carlini et al. 2022), and without the rounding that a probability near 1 has. A pool of N models gives a matrix
(N, S), examples in columns. `klom`, `lira` and `per_example_epsilon` compare the matrix of unlearned models with that
of retrained ones, `rmia` uses the probabilities (`true_class_probabilities`).

    unlearned = margins_of(model, W_unlearned, x_forget, y_forget)    # (N, S)
    retrained = margins_of(model, W_retrained, x_forget, y_forget)
    klom(unlearned, retrained).mean()
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from fu_core.errors import NumericalFailure, UnsupportedTask, check_choice, check_count
from fu_core.models.flat import FlatModel

WAYS = ("auto", "batched", "loop")  # of evaluating many models, see `margins_of`
LEAST_MODELS = 4  # of a side: with fewer, a variance estimated from them has no finite mean of its inverse
UNSQUARED = "margins must neither be too large nor differ by too little to be squared"  # the judges' error for these
MOST_AT_ONCE = 2**24  # numbers, 64 MiB of float32: what models evaluated at once may take, each with the samples


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """`z_y - logsumexp_{j != y} z_j` (..., n), in float64, from logits (..., n, C) and labels (n,). Deterministic.

    Raises ValueError for shapes that do not fit, fewer than two classes or a label that is not a class,
    NumericalFailure if a margin is not finite.
    """
    check_labels(logits, y, least=2)
    classes = logits.shape[-1]
    z = logits.detach().double()
    own = torch.nn.functional.one_hot(y.long(), classes).bool()  # (n, C)
    others = z.masked_fill(own, -torch.inf).logsumexp(dim=-1)
    phi = z.masked_fill(~own, 0.0).sum(dim=-1) - others
    if not bool(phi.isfinite().all()):
        raise NumericalFailure("logits must give finite margins, but one is NaN or infinite")
    return phi


def margins_of(model: FlatModel, w: Tensor, x: Tensor, y: Tensor, *, how: str = "auto") -> Tensor:
    """Margins (N, n) of N models w (N, d) on x (n, ...), y (n,), in float64. Deterministic.

    how: "batched" passes several models through the net at once, "loop" one after the other; they agree up to rounding
    (tested). "auto" batches nets that are dense from their first parameters on, twice as fast on one core, and loops
    over others: a convolution with weights for every model is a slow one.

    Raises `UnsupportedTask` for a model that is no classifier, ValueError for an unknown `how` or a `w` that is not
    (N, d), and as `margins`.
    """
    check_choice("how", how, WAYS)
    if model.task != "classification":
        raise UnsupportedTask(f"margins are those of a classifier, not of {model.task}")
    if w.ndim != 2 or w.shape[1] != model.d:
        raise ValueError(f"w must have shape (N, {model.d}), one model a row, got {tuple(w.shape)}")
    if how == "loop" or (how == "auto" and model.dense_tail is None):
        return torch.stack([margins(model.predict(one, x), y) for one in w])
    if model.dense_tail is not None:  # what comes before has no parameters: it is passed once for all models
        x, model = model.features(x, w), model.dense_tail
    return torch.cat([margins(_logits_of_many(model, some, x), y) for some in w.split(_models_at_once(model, x))])


def true_class_probabilities(phi: Tensor) -> Tensor:
    """Softmax probabilities `p_y` of any shape from margins: their logistic function."""
    return phi.double().sigmoid()


def check_labels(logits: Tensor, y: Tensor, *, least: int = 1) -> None:
    """Raise ValueError unless these are logits (..., n, C), C >= least, and labels (n,) of the samples, 0 to C - 1."""
    if logits.ndim < 2 or y.shape != logits.shape[-2:-1]:
        shapes = f"{tuple(logits.shape)} and {tuple(y.shape)}"
        raise ValueError(f"logits and y must have shapes (..., n, C) and (n,), got {shapes}")
    classes = logits.shape[-1]
    check_count("classes", classes, least=least)
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise ValueError(f"y must be classes from 0 to {classes - 1}, got {int(y.min())} to {int(y.max())}")


def check_margins(name: str, given: Tensor) -> Tensor:
    """Margins of many models, as the judges take them: (N, S) in float64, N >= 4, S >= 1, all finite.

    Raises ValueError for another shape or too few, NumericalFailure for NaN or infinity.
    """
    if given.ndim != 2:
        raise ValueError(f"{name} must have shape (N, S), a model a row, an example a column; got {tuple(given.shape)}")
    check_count(f"models of {name}", given.shape[0], least=LEAST_MODELS)
    check_count(f"examples of {name}", given.shape[1])
    values = given.detach().double()
    if not bool(values.isfinite().all()):
        raise NumericalFailure(f"{name} has a margin that is NaN or infinite")
    return values


def check_pair(first: str, one: Tensor, second: str, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two sides on the same examples: both as `check_margins`, equally many columns; rows may differ."""
    a, b = check_margins(first, one), check_margins(second, other)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{first} and {second} must be of the same examples, got {a.shape[1]} and {b.shape[1]}")
    return a, b


# --- helpers ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _logits_of_many(model: FlatModel, w: Tensor, x: Tensor) -> Tensor:
    """(K, n, C) of K models w (K, d)."""
    one_model = vmap(model.logits, in_dims=(0, None))
    return torch.cat([one_model(w, model.arrange(part)) for part in x.split(1000)], dim=1)


def _models_at_once(model: FlatModel, x: Tensor) -> int:
    """How many models pass together, each with its parameters and as many activations as there are inputs."""
    return max(1, MOST_AT_ONCE // (model.d + x.numel()))
