"""What the tests of certified DFL share: parameters of small networks, and the places in them."""

from fu_papers.certified_dfl.grid import Experiment, Place
from fu_papers.parameters import load_profile
from fu_papers.study import Cell

CONVEX, NET = "digits/unit_softmax", "digits/mlp"


def experiment(**changes):
    """Two data sets on four clients, one epoch a round; everything else as in the quick profile."""
    small = {
        "datasets": [CONVEX, NET], "n_train": [200, 200], "n_test": [100, 100], "rounds": [6, 4],
        "momentum": [0.0, 0.0], "batch_size": [20, 20], "epochs": [1.0, 1.0], "l2": [0.01, 0.0],
        "curvature_samples": [0, 20], "printed_samples": [0, 20], "clients": 4, "budget": 1.0,
        "pdudt_rounds": [2, 2], "timed_rounds": 2,
        "head_rounds": 3, "scale_clients": [4, 6], "scale_rounds": 3,
        "peer_l2": [0.01], "peer_fractions": [0.1], "peer_seeds": [0],
    }  # fmt: skip
    return Experiment(**{**load_profile("certified_dfl", "quick"), **small, **changes, "profile": "test"})


def cell(place: Place, seed: int, request: str, method: str, group: str = "tables", label: str = "") -> Cell:
    """Where the result of a run at a place belongs."""
    return Cell(group, place.setting, seed, request, method, label, place.topology)
