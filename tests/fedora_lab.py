"""Experiments with FedORA's parameters for tests: those of the quick profile, and what a test changes."""

from fu_papers.fedora.grid import Experiment
from fu_papers.parameters import load_profile

# Nobody is tuned, nothing is swept far, and two parties share the columns, unless a test says otherwise.
PLAIN = {
    "tuning_trials": 1,
    "splits": [],
    "ga_lrs": [0.02],
    "ico_scales": [2.0],
    "cvfu_rounds": [2],
    "few_shot_lrs": [0.001, 0.01],
    "sigmas": [0.05, 0.5],
    "sigmas_vector": [5.0],
    "thresholds": [0.0],
}


def experiment(**changes):
    """An experiment that no figures belong to."""
    quick = load_profile("fedora", "quick")
    binary = ("breast_cancer", "adult")
    requests = [
        [f"classes-1-50-from-{2 if dataset.startswith(binary) else 7}"]
        for dataset in changes.get("datasets", quick["datasets"])
    ]
    return Experiment(**{**quick, **PLAIN, "tuning_requests": requests, "profile": "test", **changes})
