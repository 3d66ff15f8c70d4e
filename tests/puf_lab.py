"""Experiments with PUF's parameters for tests: those of the paper, small where they may be, and nothing beside them."""

from fu_papers.parameters import load_profile
from fu_papers.puf.grid import Experiment

MAIN_BLOCK_ONLY = {
    "profile": "test",
    "targets": [0],
    "seeds": [0],
    "few_seeds": [0],
    "n_val": 300,
    "augmentation": "none",
    "history_interval": 1,
    "natural_rounds": [1, 2],
    "relearn_cap": 2,
    "tuning_trials": 1,
    "tuning_targets": [3],
    "tuning_cap": 2,
    "official_settings": [],
    "long_settings": [],
    "sample_settings": [],
    "pair_settings": [],
    "pairs": [[0, 1]],
    "partial_settings": [],
    "backdoor_settings": [],
    "transformer_settings": [],
    "transformer_weights": "",
    "segmentation_settings": [],
    "segmentation_targets": [0],
    "segmentation_n_val": 30,
    "segmentation_special": [2.0],
    "segmentation_regular": [20.0],
    "sweep_settings": [],
    "sweep_seeds": [0],
    "sweep_special": [1.0, 2.0, 4.0],
    "sweep_regular": [10.0, 20.0, 40.0],
    "sweep_epochs_u": [1.0],
    "flower": False,
}


def experiment(settings, **changes):
    """One of the main block alone, unless `changes` say otherwise."""
    return Experiment(**{**load_profile("puf", "paper"), **MAIN_BLOCK_ONLY, "settings": settings, **changes})
