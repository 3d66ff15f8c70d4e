"""A student and its teacher: Kullback-Leibler divergence from what a teacher says about the same samples.

    loss = divergence T^2 KL(p_teacher || p_w) + cross_entropy CE,   both probabilities softmax(logits / T)

What the teacher says travels as the labels do, so that clients train on a lesson as they train on anything else: by
`train_round`, in their own batches. T^2 keeps the gradient's size whatever the temperature: in the logits it is
T (p_w - p_teacher).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import UnsupportedTask, check_positive
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel


class Student(FlatModel):
    """`model`, of which a sample's label is a row of a `lesson`: what a teacher says of it, and its class.

    divergence, cross_entropy: the weights of both losses, of either sign; temperature: T, above zero. Raises
    `UnsupportedTask` for other tasks than classification.
    """

    def __init__(
        self, model: FlatModel, *, divergence: float, cross_entropy: float = 0.0, temperature: float = 1.0
    ) -> None:
        if model.task != "classification":
            raise UnsupportedTask(f"A teacher's probabilities are those of classes, not of task {model.task!r}")
        check_positive("temperature", temperature)
        super().__init__(model.module, model.task, model.l2)
        self.divergence, self.cross_entropy, self.temperature = divergence, cross_entropy, temperature

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The weighted sum of both losses of each sample (n,); `y` (n, C + 1) as `lesson` makes it."""
        says, labels = y[:, :-1].to(outputs.dtype), y[:, -1].long()
        apart = F.kl_div(
            (outputs / self.temperature).log_softmax(dim=1),
            (says / self.temperature).log_softmax(dim=1),
            reduction="none",
            log_target=True,
        ).sum(dim=1)
        losses = self.divergence * self.temperature**2 * apart
        if not self.cross_entropy:
            return losses
        return losses + self.cross_entropy * F.cross_entropy(outputs, labels, reduction="none")


def lesson(model: FlatModel, teacher: Tensor, client: Client) -> Client:
    """The client's samples, with the logits of the model `teacher` (d,) and the class as labels (n, C + 1).

    The teacher sees the samples as they are, not augmented. Deterministic.
    """
    x, y = client
    says = model.predict(teacher, x)
    return x, torch.cat([says, y[:, None].to(says.dtype)], dim=1)
