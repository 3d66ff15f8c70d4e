"""Data sets: `load(name) -> Dataset`."""

from fu_core.data.catalogue import NAMES
from fu_core.data.dataset import Dataset, channel_statistics
from fu_core.data.datasets import load, prepare

__all__ = ["NAMES", "Dataset", "channel_statistics", "load", "prepare"]
