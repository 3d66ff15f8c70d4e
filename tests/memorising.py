"""Models whose memory is known: tables that answer each example by its own entries."""

import torch
from torch import nn

from fu_core.models import FlatModel
from fu_core.streams import stream

EXAMPLES = 40


class Tables:
    """Examples are rows of the identity, labels alternate, and a model is the table (2, examples) of its logits.

    Entries are standard normal, so a margin is normal with variance 2; `strength` on the true class of what it was
    trained on is what it remembers.
    """

    def __init__(self, examples=EXAMPLES):
        self.model = FlatModel(nn.Linear(examples, 2, bias=False))
        self.x, self.y = torch.eye(examples), torch.arange(examples) % 2

    def trained(self, models, name, strength=0.0):
        """(models, d): all remember every example. Random: from stream (0, name)."""
        tables = torch.randn(models, 2, len(self.y), generator=stream(0, name))
        tables[:, self.y, torch.arange(len(self.y))] += strength
        return tables.flatten(1)


def normal(name, *shape, shift=0.0):
    """Normal margins from stream (0, name)."""
    return shift + torch.randn(*shape, generator=stream(0, name), dtype=torch.float64)
