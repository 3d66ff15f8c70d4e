"""Membership inference on forgotten data: Song's confidence, Yeom's loss, Shokri's shadow models, and a threshold.

The first two return the percent of the forget set taken for training data, the others say how well
forgotten and unseen samples can be told apart. The target value is the retrained
model's, not zero: some forgotten samples look familiar to any good model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.polynomial import Chebyshev
from torch import Tensor

from fu_core.errors import NumericalFailure, check_count
from fu_core.evaluation.margins import check_labels
from fu_core.streams import stream, stream_seed

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# scikit-learn takes as long to import as torch, hence the imports inside functions

ROUNDING = 1e-6  # of a probability in float32
GRID = 1024  # a thousandth is nothing to a kernel of unit width
DEGREE = 24  # of the polynomial through a sum of Gaussians of unit width on [0, 1], which it is equal to but for 1e-10


def confidences(logits: Tensor, y: Tensor) -> Tensor:
    """Softmax probability of the true class (n,) from logits (n, C): the one feature Song's attack sees.

    Raises ValueError unless `y` are labels (n,) from 0 to C - 1.
    """
    check_labels(logits, y)
    return logits.double().softmax(dim=1).gather(1, y[:, None]).squeeze(1)


def song(
    forget: Tensor,
    retain: Tensor,
    test: Tensor,
    *,
    seed: int,
    largest: int = 10_000,
    few: int = 4_000,
    exact: bool = False,
) -> float:
    """Percent of `forget` taken for members by Song and Mittal's confidence attack. PUF, Sec. V-C (i).

    forget, retain, test: true-class confidences (n,) under the attacked model. An RBF support vector
    machine (C = 3, gamma = 1) learns members (`retain`) against non-members (`test`), equally many of
    each and at most `largest`. Random: which ones, from stream (seed, "song").

    The default decides by the polynomial through the decision function's values at some points of [0, 1] and, where it
    learns from more than `few` samples, rounds them to multiples of 1 / GRID and lets equal ones count together;
    `exact=True` does neither, in a minute where the other takes a second. They agree within half a point (tested).
    Fewer samples would not do: a tenth of ten thousand moves the percentage by ten points where little is remembered.
    Nor would a threshold: the regions can be unions of intervals.

    Raises ValueError if a side is empty, of another shape than (n,) or outside of [0, 1], NumericalFailure if a
    confidence is not finite: a model that has diverged would seem to have forgotten everything.
    """
    from sklearn.svm import SVC

    for name, side in (("forget", forget), ("retain", retain), ("test", test)):
        values = _finite(name, side)
        if not -ROUNDING <= values.min() <= values.max() <= 1 + ROUNDING:
            raise ValueError(f"{name} must hold confidences in [0, 1], got {values.min():.3g} to {values.max():.3g}")
    k = min(largest, len(retain), len(test))
    chosen = [_sample(c, k, seed, side) for c, side in ((retain, "members"), (test, "non-members"))]
    if exact or 2 * k <= few:
        (members, others), weights = chosen, None
    else:
        (members, n_m), (others, n_o) = (np.unique(np.round(c * GRID) / GRID, return_counts=True) for c in chosen)
        weights = np.concatenate([n_m, n_o]).astype(float)
    features = np.concatenate([members, others])[:, None]
    labels = np.repeat([1, 0], [len(members), len(others)])
    machine = SVC(kernel="rbf", C=3.0, gamma=1.0).fit(features, labels, sample_weight=weights)
    points = forget.double().cpu().numpy()
    if exact:
        decision = machine.decision_function(points[:, None])
    else:
        interpolant = Chebyshev.interpolate(lambda c: machine.decision_function(c[:, None]), DEGREE, domain=[0, 1])
        decision = interpolant(points)
    return 100 * float((decision > 0).mean())


def yeom(forget: Tensor, retain: Tensor) -> float:
    """Percent of `forget` with a loss at most the mean loss of `retain`. PUF, Sec. V-C (ii). Deterministic.

    forget, retain: cross-entropy (n,) under the attacked model, over all forgotten and retained data.

    Raises ValueError if a side is empty, NumericalFailure if a loss is not finite: NaN is below no threshold, so that
    a model that has diverged would seem to have forgotten, and one infinite loss of `retain` lets every sample pass.
    """
    for name, side in (("forget", forget), ("retain", retain)):
        _finite(name, side)
    threshold = retain.double().mean()
    return 100 * float((forget.double() <= threshold).double().mean())


def half_of_each_class(y: Tensor, name: str) -> Tensor:
    """Which samples (n,) an attacker learns from: a random half of every class of `y` (n,). The others test it.

    Random: which, from stream (0, name), whatever the training seed. Half of all would do by chance only: in sorted
    data every second sample can be every second class.
    """
    order = torch.randperm(len(y), generator=stream(0, name)).to(y.device)
    half = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for label in y.unique():
        half[order[y[order] == label][::2]] = True
    return half


def class_matched(y: Tensor, like: Tensor, name: str) -> Tensor:
    """Indices into `y` (n,) of as many samples as there can be with the class shares of `like` (m,), ascending.

    A leaving client has other classes than the test set: against all of it, an attack would partly tell classes apart,
    not members. Random: which samples of a class, from stream (0, name), whatever the training seed. Raises ValueError
    if a class of `like` that matters (a hundredth of it or more) has no sample in `y`, or `like` has none at all.
    """
    check_count("samples of like", len(like))
    classes, counts = like.unique(return_counts=True)
    shares = counts.double() / len(like)
    there = torch.stack([(y == label).sum() for label in classes]).double()
    matters = shares >= 0.01
    if bool((there[matters] == 0).any()):
        missing = int(classes[matters][(there[matters] == 0).nonzero()[0]])
        raise ValueError(f"y must have samples of every class of `like`, got none of class {missing}")
    total = float((there[matters] / shares[matters]).min())  # the class that is scarcest decides
    order = torch.randperm(len(y), generator=stream(0, name)).to(y.device)
    taken = [
        order[y[order] == label][: math.floor(float(share) * total + 1e-9)]
        for label, share in zip(classes, shares, strict=True)
    ]
    return torch.cat(taken).sort().values


# --- shadow models ---------------------------------------------------------------------------------------------------

Labelled = tuple[Tensor, Tensor]  # logits (n, C), labels (n,)


class Attack(NamedTuple):
    """A classifier of `attack_features`: member or not. `classes`: of the task it was learnt on."""

    classifier: Pipeline
    classes: int


class ShadowResult(NamedTuple):
    """How well forgotten samples (members, if remembered) and unseen ones are told apart.

    balanced_accuracy: mean of both sides' hit rates, 0.5 is chance; fraction: forgotten samples taken for
    members; auc: of the attack's score, whatever the threshold.
    """

    balanced_accuracy: float
    fraction: float
    auc: float


def attack_features(data: Labelled) -> np.ndarray:
    """What the attacker looks at, (n, C + 1): sorted softmax probabilities, and the true class's log-probability.

    Raises ValueError unless the labels are those of the logits, NumericalFailure for a feature that is not finite.
    """
    logits, y = data
    check_labels(logits, y)
    log_p = logits.double().log_softmax(dim=1)
    probabilities = log_p.exp().sort(dim=1, descending=True).values
    features = torch.cat([probabilities, log_p.gather(1, y[:, None])], dim=1)
    if not bool(features.isfinite().all()):
        raise NumericalFailure("logits must give every true class a finite log-probability, but one is NaN or infinite")
    return features.cpu().numpy()


def fit_attack(members: Sequence[Labelled], others: Sequence[Labelled], *, seed: int, largest: int = 5_000) -> Attack:
    """Learn to tell training data from unseen data on shadow models (Shokri et al. 2017).

    members[s], others[s]: logits and labels of what shadow model s was and was not trained on. All models
    together, equally many of each side, at most `largest` per side. The classifier is a small neural net
    (64-32) on standardised `attack_features`. Random: which samples, and the net, from (seed, "shadow attack").

    Raises ValueError for no models or samples, sides that do not match or several numbers of classes, and as
    `attack_features`.
    """
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    check_count("shadow models", len(members))
    if len(members) != len(others):
        raise ValueError(f"others must match members, one per shadow model: got {len(others)} and {len(members)}")
    classes = {logits.shape[1] for logits, _ in (*members, *others)}
    if len(classes) > 1:
        raise ValueError(f"all shadow models must have the same classes, got {sorted(classes)}")
    inside, outside = (np.concatenate([attack_features(data) for data in side]) for side in (members, others))
    k = min(largest, len(inside), len(outside))
    check_count("samples of each side", k)
    chosen = [
        rows[torch.randperm(len(rows), generator=stream(seed, "shadow attack", name))[:k].numpy()]
        for name, rows in (("members", inside), ("others", outside))
    ]
    net = MLPClassifier(
        (64, 32), early_stopping=True, max_iter=200, random_state=stream_seed(seed, "shadow attack") % 2**32
    )
    classifier = make_pipeline(StandardScaler(), net).fit(np.concatenate(chosen), np.repeat([1, 0], k))
    return Attack(classifier, classes.pop())


def shadow(attack: Attack, forget: Labelled, unseen: Labelled) -> ShadowResult:
    """Apply `attack` to a model: can its forgotten samples still be told from unseen ones? Deterministic.

    forget, unseen: the attacked model's logits (n, C) and the labels (n,); `unseen` was used neither for
    training nor for `fit_attack`. Chance is what the retrained model scores, about 0.5.

    Raises ValueError for no samples or other classes than the attack's, and as `attack_features`.
    """
    for name, (logits, y) in (("forget", forget), ("unseen", unseen)):
        check_count(f"samples of {name}", len(y))
        if logits.shape[1] != attack.classes:
            raise ValueError(f"{name} must have logits of {attack.classes} classes, got {logits.shape[1]}")
    scores = [attack.classifier.predict_proba(attack_features(data))[:, 1] for data in (forget, unseen)]
    true_positive, true_negative = float((scores[0] > 0.5).mean()), float((scores[1] <= 0.5).mean())
    auc = _auc(*scores)
    return ShadowResult((true_positive + true_negative) / 2, true_positive, auc)


# --- threshold -------------------------------------------------------------------------------------------------------


class ThresholdResult(NamedTuple):
    """How well one score tells forgotten samples (members, if remembered) from unseen ones.

    accuracy: percent, mean of both sides' hit rates at the fitted threshold, 50 is chance; auc: whatever the
    threshold; tpr_at_1_fpr: percent of the forgotten found while at most 1 % of the unseen are; advantage:
    |auc - 0.5|, which also shows forgotten samples that look *less* familiar than unseen ones.
    """

    accuracy: float
    auc: float
    tpr_at_1_fpr: float
    advantage: float


def threshold_attack(members: Tensor, others: Tensor, forget: Tensor, unseen: Tensor) -> ThresholdResult:
    """Certified DFL's "MIA Acc" (Sec. VI-B2), in the simplest form; the paper does not say which attack. Deterministic.

    members, others, forget, unseen: (n,) scores under the attacked model, higher for what looks like training data,
    e.g. the negative loss. A sample is a member if its score is at least the threshold; that is the score with the
    largest balanced accuracy on `members` (retained data) against `others` (half of the test set), the highest if
    several are. It is applied to `forget` against `unseen` (the other half).

    Accuracy near 50 % alone proves little: it can hide inverted leakage, hence the other three numbers.
    `tpr_at_1_fpr` is not interpolated: with fewer than 100 unseen samples not one of them may be taken for a member.

    Raises ValueError if a side is empty, NumericalFailure if a score is not finite.
    """
    sides = {"members": members, "others": others, "forget": forget, "unseen": unseen}
    scores = {name: _finite(name, side) for name, side in sides.items()}
    fpr, tpr, thresholds = _roc(scores["members"], scores["others"])
    threshold = thresholds[np.argmax(np.round(tpr - fpr, 12))]  # rounded: what is equal must not differ by 1e-17
    hits = (scores["forget"] >= threshold).mean(), (scores["unseen"] < threshold).mean()
    fpr, tpr, _ = _roc(scores["forget"], scores["unseen"])
    auc = _auc(scores["forget"], scores["unseen"])
    return ThresholdResult(
        accuracy=50 * float(sum(hits)),
        auc=auc,
        tpr_at_1_fpr=100 * float(tpr[fpr <= 0.01].max()),
        advantage=abs(auc - 0.5),
    )


# --- helpers ---------------------------------------------------------------------------------------------------------


def _auc(positive: np.ndarray, negative: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_labelled(positive, negative)))


def _roc(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """False and true positive rates and thresholds, all of them, from the strictest threshold (nobody) down."""
    from sklearn.metrics import roc_curve

    return roc_curve(*_labelled(positive, negative), drop_intermediate=False)


def _labelled(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat([1, 0], [len(positive), len(negative)]), np.concatenate([positive, negative])


def _finite(name: str, scores: Tensor) -> np.ndarray:
    if scores.dim() != 1:
        raise ValueError(f"{name} must have shape (n,), a score per sample, got {tuple(scores.shape)}")
    check_count(f"samples of {name}", len(scores))
    values = scores.detach().double().cpu().numpy()
    if not np.isfinite(values).all():
        raise NumericalFailure(f"{name} has a score that is NaN or infinite")
    return values


def _sample(values: Tensor, k: int, seed: int, side: str) -> np.ndarray:
    chosen = torch.randperm(len(values), generator=stream(seed, "song", side))[:k]
    return values[chosen].double().cpu().numpy()
