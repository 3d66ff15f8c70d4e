"""Experiments with FedORA's parameters for tests: those of the quick profile, and what a test changes."""

from fu_papers.fedora.grid import Experiment
from fu_papers.parameters import load_profile


def experiment(**changes):
    """An experiment that no figures belong to."""
    return Experiment(**{**load_profile("fedora", "quick"), "profile": "test", **changes})
