"""What certified DFL's data sets, graphs, requests and methods are called for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fu_papers import problem_figures
from fu_papers.certified_dfl.grid import Experiment, Place
from fu_papers.lab.record import Record

SHOWN = {
    "Original": "do nothing (Original)",
    "Fine-tune": "do nothing, 1 round more",
    "Retrain": "Retrain",
    "Retrain again": "Retrain, another seed",
    "Destroyed": "random weights",
    "DU printed": "DU, as printed",
    "DU": "DU, corrected",
    "PDUDT": "PDUDT (reconstruction)",
}
IN_CURVES = {**SHOWN, "Fine-tune": "do nothing, the rounds alone"}  # where as many follow as follow the others
TOPOLOGY_TITLES = {"ring": "ring", "erdos_renyi": "Erdős–Rényi"}
REQUESTS = {"sample": "sample-wise", "class": "class-wise", "client": "client-wise"}
SERVED = {  # what certificates are about
    **REQUESTS,
    "own": "half of one client's samples",
    "clients": "two clients at once",
    "sequence": "samples, in turn",
    "classes": "classes, in turn",
    "leavers": "clients, in turn",
}


def topology_title(topology: str) -> str:
    """The heading of a graph."""
    return TOPOLOGY_TITLES.get(topology, topology)


def source(descriptions: Mapping[Place, Record], datasets: Sequence[str] | None = None) -> str:
    """The line under every table and figure: which data, which net. `datasets`: only those (default: all)."""
    shown = {p.setting: r for p, r in descriptions.items() if datasets is None or p.dataset in datasets}
    return problem_figures.source(shown)


def timed_title(e: Experiment, method: str) -> str:
    """A method's name where seconds are shown: PDUDT's depend on how many rounds follow its replay."""
    if method != "PDUDT":
        return SHOWN[method]
    return f"PDUDT (reconstruction), {' / '.join(map(str, dict.fromkeys(e.pdudt_rounds)))} rounds"
