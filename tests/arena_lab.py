"""Small experiments of the arena: digits, softmax regression, few models, few methods."""

from fu_papers.arena.grid import Experiment

SMALL = {
    "further_places": [],
    "further_models": 8,
    "relearn_requests": [],
    "settings": ["digits/iid/softmax_regression"],
    "requests": ["class-0"],
    "skewed_requests": [],
    "methods": ["PUF-Special", "MoDe", "FedEraser", "SISA", "Natural"],
    "slow_methods": [],
    "slow_models": 4,
    "large_places": [],
    "models": 8,
    "few_models": 8,
    "memory_models": 8,
    "chunk": 4,
    "clients": 4,
    "n_train": 120,
    "n_val": 60,
    "n_test": 80,
    "rounds": 4,
    "epochs": 1.0,
    "recovery_cap": 2,
    "examples": 20,
    "resamples": 10,
}


def experiment(**changes):
    """The profile quick with these sizes, and `changes`."""
    return Experiment.of("quick", **{**SMALL, **changes})
