"""Experiments with HF-KCU's parameters for tests: those of the paper, with what a test wants otherwise."""

from fu_papers.hf_kcu.grid import Experiment
from fu_papers.parameters import load_profile


def experiment(**changes):
    """One seed, no further nets, nothing tuned, nobody in turn, unless `changes` say otherwise."""
    few = {"profile": "test", "nets": [], "seeds": [0], "sweep_seeds": [0], "n_train": 0}
    few |= {"tuning_trials": 1, "longest_sequence": 1, "natural_rounds": [1]}
    return Experiment(**{**load_profile("hf_kcu", "paper"), **few, **changes})
