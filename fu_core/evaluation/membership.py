"""Membership inference on forgotten data: Song's confidence attack and Yeom's loss attack.

Both return the percent of the forget set taken for training data. The target value is the retrained
model's, not zero: some forgotten samples look familiar to any good model.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.svm import SVC
from torch import Tensor

from fu_core.streams import stream

GRID = np.linspace(0.0, 1.0, 2001)


def confidences(logits: Tensor, y: Tensor) -> Tensor:
    """Softmax probability of the true class (n,) from logits (n, C): the one feature Song's attack sees."""
    return logits.double().softmax(dim=1).gather(1, y[:, None]).squeeze(1)


def song(
    forget: Tensor,
    retain: Tensor,
    test: Tensor,
    *,
    seed: int,
    largest: int = 10_000,
    fit: int = 4_000,
    exact: bool = False,
) -> float:
    """Percent of `forget` taken for members by Song and Mittal's confidence attack. PUF, Sec. V-C (i).

    forget, retain, test: true-class confidences (n,) under the attacked model. An RBF support vector
    machine (C = 3, gamma = 1) learns members (`retain`) against non-members (`test`), equally many of
    each and at most `largest`. Random: which ones, from stream (seed, "song").

    The default fits on at most `fit` samples in all and decides by interpolating the decision function
    on a grid of [0, 1]; `exact=True` uses all and evaluates every point. They agree within half a point
    (tested). A threshold would not do: the regions can be unions of intervals.
    """
    k = min(largest, len(retain), len(test))
    if not exact:
        k = min(k, fit // 2)
    members, others = (_sample(c, k, seed, side) for c, side in ((retain, "members"), (test, "non-members")))
    features = np.concatenate([members, others])[:, None]
    labels = np.repeat([1, 0], k)
    machine = SVC(kernel="rbf", C=3.0, gamma=1.0).fit(features, labels)
    points = forget.double().cpu().numpy()
    if exact:
        decision = machine.decision_function(points[:, None])
    else:
        decision = np.interp(points, GRID, machine.decision_function(GRID[:, None]))
    return 100 * float((decision > 0).mean())


def yeom(forget: Tensor, retain: Tensor) -> float:
    """Percent of `forget` with a loss at most the mean loss of `retain`. PUF, Sec. V-C (ii). Deterministic.

    forget, retain: cross-entropy (n,) under the attacked model, over all forgotten and retained data.
    """
    threshold = retain.double().mean()
    return 100 * float((forget.double() <= threshold).double().mean())


def _sample(values: Tensor, k: int, seed: int, side: str) -> np.ndarray:
    chosen = torch.randperm(len(values), generator=stream(seed, "song", side))[:k]
    return values[chosen].double().cpu().numpy()
