"""A threshold that a retrained model could meet."""

import math

import torch
from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "fedora-5"


def trials() -> list[Arguments]:
    """unseen_logits (n, C), unseen_labels (n,), forgotten_labels (m,), beta."""
    draws = Draws(ID)
    by_hand = (
        torch.stack([numbers(1, 0), numbers(0, 4)]), torch.tensor([0, 1]), torch.tensor([0, 0]), 1.0,
    )  # fmt: skip
    return [by_hand, (2 * draws.normal(40, 4), draws.whole(0, 4, 40), torch.tensor([1, 3, 3]), 5.0)]


def share(logits: Tensor) -> Tensor:
    """Mean entropy of the predictions, as a share of log C."""
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean() / math.log(logits.shape[1])


def of_classes(unseen_logits: Tensor, unseen_labels: Tensor, forgotten_labels: Tensor) -> Tensor:
    """Those of the unseen that are of a class that is forgotten."""
    return unseen_logits[torch.isin(unseen_labels, forgotten_labels)]


EXERCISE = Exercise(
    id=ID,
    title="choose a threshold",
    stars=3,
    minutes=30,
    statement=r"""
        Which threshold could a retrained model meet? One that asks for no more uncertainty about the forgotten samples
        than *samples of the same classes that nobody has trained on* show already. You have the model's `unseen_logits`
        (n, C) on such held-out samples, their labels, the labels of the samples to be forgotten, and $\beta$. Return
        the threshold as a share of the largest score: take the mean entropy of the held-out samples whose class is
        among the forgotten, as a share $h$ of $\log C$, and turn it into a share of the score (exercise fedora-2,
        backwards).
    """,
    stub="""
        import math


        def threshold(unseen_logits, unseen_labels, forgotten_labels, beta):
            return ...
    """,
    answer="threshold",
    solution="""
        import math


        def threshold(unseen_logits, unseen_labels, forgotten_labels, beta):
            alike = torch.isin(unseen_labels, forgotten_labels)
            log_p = unseen_logits[alike].log_softmax(dim=1)
            h = -(log_p.exp() * log_p).sum(dim=1).mean() / math.log(unseen_logits.shape[1])
            return (1 + beta) * h - beta
    """,
    trials=trials,
    hints=(
        "`torch.isin(unseen_labels, forgotten_labels)` says which held-out samples are of a forgotten class.",
        "In fedora-2, h = (s + beta) / (1 + beta). Solve it for s.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda logits, labels, forgotten, beta: (1 + beta) * share(of_classes(logits, labels, forgotten)) + beta,
            "s = (1 + beta) h - beta: the beta is subtracted. A threshold above 1 could be met by no model at all.",
        ),
        Mistake(
            "all classes",
            lambda logits, labels, forgotten, beta: (1 + beta) * share(logits) - beta,
            "This takes all held-out samples. Classes differ in how sure a model is of them: take those that are "
            "forgotten.",
        ),
        Mistake(
            "entropy as it is",
            lambda logits, labels, forgotten, beta: share(of_classes(logits, labels, forgotten)),
            "This is a share of the entropy. The threshold is on the score, (1 + beta) H - beta log C.",
        ),
        Mistake(
            "in nats",
            lambda logits, labels, forgotten, beta: (
                ((1 + beta) * share(of_classes(logits, labels, forgotten)) - beta) * math.log(logits.shape[1])
            ),
            "This is the score itself. Divide by its largest value, log C.",
        ),
    ),
    commentary="""
        It is often negative: unseen samples are recognised, too, and a good model is sure of them. This is what the
        notebook runs as *threshold of unseen samples* (`FedORA calibrated` asks for no more). The paper's thresholds
        ask for far more than a retrained model shows (erratum F1).
    """,
)
