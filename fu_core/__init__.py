"""fu_core: federated unlearning, four papers, one idea.

A model is a vector, a federation is a matrix, an unlearning method is a function between them.
"""

from fu_core import evaluation, federation, partition, unlearning
from fu_core.data import Dataset, load
from fu_core.models import FlatModel
from fu_core.version import __version__

__all__ = ["Dataset", "FlatModel", "__version__", "evaluation", "federation", "load", "partition", "unlearning"]
