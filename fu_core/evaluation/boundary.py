"""What the border between vertical parties leaks, to those on either side of it.

In vertical learning nobody shows data, but every sample's embedding h_k goes up, and the gradient dL/dh_k of its loss
comes down. `overhear` has one exchange and keeps what crossed; the attacks are on that alone:

    labels from gradients      a passive party has dL/dh_k = J_k^T (p - e_y), J_k the top's Jacobian at its embedding.
                               Where the top is linear and p alike within a class, gradients of one class are parallel.
    features from embeddings   the active party has h_k. Who knows the features of a few samples fits x = B h + b on
                               them, by ridge regression, and applies it to the others.

Labels are inferred with a few known ones (the nearest class direction) and with none (clusters of directions). Lengths
are not used: they say how large a sample's loss is, and directions are what a model that fits well still gives away.
The first attack follows Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022), and Fu et
al., "Label Inference Attacks Against Vertical Federated Learning" (USENIX Security 2022), in idea; the form is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, check_count
from fu_core.federation.vertical import Boundary, Parties, forward
from fu_core.streams import stream_seed

ALPHAS = np.logspace(-6, 6, 13)  # weights of the ridge's penalty, on embeddings of spread 1; the samples known choose
STARTS = 10  # of the clusters, the best of which counts


class Crossed(NamedTuple):
    """What has crossed for some samples, in their order: per passive party embeddings and gradients, each (n, e_k)."""

    embeddings: list[Tensor]
    gradients: list[Tensor]


@dataclass
class Overheard(Boundary):
    """A border that keeps all that passes it, exchange by exchange and there party by party."""

    embeddings: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def up(self, embeddings: Tensor) -> Tensor:
        """As it arrives, with the noise that its party has put on it."""
        received = super().up(embeddings)
        self.embeddings.append(received.clone())
        return received

    def down(self, gradient: Tensor) -> Tensor:
        """As it is sent."""
        sent = super().down(gradient)
        self.gradients.append(sent.clone())
        return sent


def overhear(parties: Parties, rows: Tensor, *, name: str = "overheard", part: int = 500) -> Crossed:
    """What would cross if the parties trained on the samples `rows` (n,) now; nobody takes a step.

    The loss is the sum of the samples' cross-entropies, so that a gradient is a sample's own: in training a batch's
    mean divides all of them by one number, which changes no direction. name: of the exchanges, from which noise on
    embeddings is drawn; part: so many samples at a time. Deterministic otherwise.

    Raises ValueError for no samples, NumericalFailure if anything that crossed is NaN or infinite.
    """
    check_count("part", part)
    if rows.dim() != 1 or not len(rows):
        raise ValueError(f"rows must name at least one sample, shape (n,), got shape {tuple(rows.shape)}")
    border = Overheard(name=name)
    for b in rows.split(part):
        exchange = forward(parties, parties.w, b, border)
        exchange.backward(F.cross_entropy(exchange.logits, exchange.y, reduction="sum"))
    count = len(parties.passive)
    crossed = Crossed(*([torch.cat(heard[k::count]) for k in range(count)]
                        for heard in (border.embeddings, border.gradients)))  # fmt: skip
    for what, heard in crossed._asdict().items():
        for k, tensor in enumerate(heard):
            _check_finite(f"{what} of passive party {k}", tensor)
    return crossed


# --- labels from gradients, by a passive party -----------------------------------------------------------------------


class Inferred(NamedTuple):
    """Percent of the labels that an attack has right, and that the best constant answer would have right."""

    accuracy: float
    chance: float


def infer_labels(known: Tensor, known_labels: Tensor, gradients: Tensor, labels: Tensor) -> Inferred:
    """Labels of some samples from their gradients and a few samples' whose labels are known.

    Each class known has the direction of the mean of its gradients, each first brought to length 1; a sample gets the
    class whose direction has the largest cosine with its gradient. A gradient of zero has no direction: it gets the
    class that is the most frequent among those known.

    known: (s, e), known_labels: (s,); gradients: (n, e), labels: (n,), by which the answers are judged. Deterministic.
    Raises ValueError for shapes that do not fit or fewer than two known classes, NumericalFailure for gradients that
    are not finite.
    """
    _check_samples("known", known, "known_labels", known_labels)
    _check_samples("gradients", gradients, "labels", labels)
    if known.shape[1] != gradients.shape[1]:
        raise ValueError(f"known must be as wide as gradients ({gradients.shape[1]}), got {known.shape[1]}")
    classes, counts = known_labels.unique(return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"known_labels must name at least two classes, got {classes.tolist()}")
    of_known, of_others = directions(known), directions(gradients)
    means = torch.stack([of_known[known_labels == c].mean(dim=0) for c in classes])
    answers = classes[(of_others @ directions(means).T).argmax(dim=1)]  # the largest cosine
    answers[(of_others == 0).all(dim=1)] = classes[counts.argmax()]
    return Inferred(_percent(answers == labels), constant_answer(labels))


def infer_clusters(gradients: Tensor, labels: Tensor, classes: int, *, seed: int) -> Inferred:
    """The same without any label: `classes` clusters of directions, and how well they are the classes.

    A cluster has no name, so that clusters and classes are matched one to one, as well as possible: what is right then
    is what whoever learns one sample's label per cluster would have right.

    gradients: (n, e), labels: (n,). Random: where the clusters (k-means) begin, from (seed, "clusters"). Raises
    ValueError for shapes that do not fit or fewer samples than classes, NumericalFailure for gradients that are not
    finite.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    check_count("classes", classes, least=2)
    _check_samples("gradients", gradients, "labels", labels)
    if len(gradients) < classes:
        raise ValueError(f"gradients must be of at least as many samples as classes ({classes}), got {len(gradients)}")
    # adding 0 makes one zero of two: which of them a gradient has would be another cluster's start elsewhere
    points = directions(gradients).cpu().numpy() + 0.0
    start = stream_seed(seed, "clusters") % 2**32
    distinct = min(classes, len(np.unique(points, axis=0)))
    cluster = KMeans(distinct, n_init=STARTS, random_state=start).fit_predict(points)
    names, y = np.unique(labels.cpu().numpy(), return_inverse=True)
    together = np.zeros((distinct, len(names)))  # samples by cluster and class
    np.add.at(together, (cluster, y), 1)
    matched = together[linear_sum_assignment(together, maximize=True)].sum()
    return Inferred(100 * float(matched) / len(labels), constant_answer(labels))


def constant_answer(labels: Tensor) -> float:
    """Percent of `labels` (n,) that are of the most frequent class: what no gradient is needed for."""
    return 100 * float(labels.unique(return_counts=True)[1].max()) / len(labels)


def directions(gradients: Tensor) -> Tensor:
    """Each row of (n, e) brought to length 1, a row of zeros as it is; in float64, since squares may vanish in less."""
    g = gradients.double()
    lengths = g.norm(dim=1, keepdim=True)
    return g / torch.where(lengths == 0, 1.0, lengths)


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


# --- features from embeddings, by the active party -------------------------------------------------------------------


def reconstruction_r2(known_embeddings: Tensor, known_features: Tensor, embeddings: Tensor, features: Tensor) -> float:
    """R^2 of the features of some samples as a ridge regression from embeddings gives them, fitted on those known.

        R^2 = 1 - sum |x_i - x^_i|^2 / sum |x_i - mean x|^2        over all judged samples i and all features

    1: all features follow linearly from the embedding; 0: as good as the judged samples' mean; below 0: worse. The
    penalty is the one of ALPHAS that predicts the known samples best, each left out in turn (in closed form).

    embeddings: (s, e_k) known, (n, e_k) judged; features: (s, ...), (n, ...), in units in which they can be added up.
    Deterministic. Raises ValueError for shapes that do not fit, fewer than two known samples, or judged features that
    are all constant, where R^2 is not defined; NumericalFailure for numbers that are not finite.
    """
    from sklearn.linear_model import RidgeCV

    pairs = (("known_embeddings", known_embeddings, "known_features", known_features),
             ("embeddings", embeddings, "features", features))  # fmt: skip
    for name, h, of, x in pairs:
        if h.dim() != 2 or x.dim() < 2 or len(h) != len(x) or not len(h):
            raise ValueError(f"{name} and {of} must be (n, e) and (n, ...), got {tuple(h.shape)} and {tuple(x.shape)}")
        _check_finite(name, h)
        _check_finite(of, x)
    if known_embeddings.shape[1] != embeddings.shape[1] or known_features.shape[1:] != features.shape[1:]:
        raise ValueError(
            "known and judged samples must have the same shapes, got "
            f"{tuple(known_embeddings.shape[1:])} and {tuple(embeddings.shape[1:])} of embeddings, "
            f"{tuple(known_features.shape[1:])} and {tuple(features.shape[1:])} of features"
        )
    if len(known_embeddings) < 2:
        raise ValueError(f"known_embeddings must be of at least two samples, got {len(known_embeddings)}")
    h_known, x_known, h_judged, x_judged = (
        tensor.detach().double().flatten(1).cpu().numpy()
        for tensor in (known_embeddings, known_features, embeddings, features)
    )
    total = ((x_judged - x_judged.mean(axis=0)) ** 2).sum()
    if total == 0:
        raise ValueError(f"features must vary between the judged samples, got {len(x_judged)} alike")
    spread = (h_known - h_known.mean(axis=0)).std() or 1.0
    ridge = RidgeCV(alphas=ALPHAS).fit(h_known / spread, x_known)
    fitted = ridge.predict(h_judged / spread).reshape(x_judged.shape)
    return float(1 - ((x_judged - fitted) ** 2).sum() / total)


def _check_samples(name: str, gradients: Tensor, of: str, labels: Tensor) -> None:
    """Raise unless `gradients` are (n, e) and finite, and `labels` (n,)."""
    if gradients.dim() != 2 or labels.shape != gradients.shape[:1] or not len(gradients):
        raise ValueError(
            f"{name} and {of} must be (n, e) and (n,), got {tuple(gradients.shape)} and {tuple(labels.shape)}"
        )
    _check_finite(name, gradients)


def _check_finite(name: str, tensor: Tensor) -> None:
    if not bool(tensor.isfinite().all()):
        raise NumericalFailure(f"{name} has a number that is NaN or infinite")
