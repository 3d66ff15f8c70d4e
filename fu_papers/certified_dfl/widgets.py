"""What notebook 04 lets one move: a correction on its way through a network, and what noise a certificate needs.

The first is ridge regression with two coefficients (`travel.travel`), the second the exact Gaussian mechanism.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch
from IPython.display import Image
from matplotlib.axes import Axes

from fu_core.streams import stream
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_papers.certified_dfl.travel import WHAT, Travel, travel
from fu_papers.explorable import Choice, Drawn, Slider
from fu_papers.look import LINE, colour, style

GRAPHS = {
    "a ring": "ring",
    "a random graph": "erdos_renyi",
    "a star": "star",
    "a torus": "torus",
    "all linked": "complete",
}
CORRECTIONS = {"corrected": "DU", "as printed": "DU printed"}
EXACT = "exact accounting, no data"
DELTA = 1e-5
EPSILONS = np.logspace(-2, 1, 31)
AWAY = np.linspace(-4.0, 6.0, 121)  # in standard deviations of the noise
HEARD, NOT_YET = "#d55e00", "#cfcfcf"

_travel = lru_cache(maxsize=64)(travel)


class Hops:
    """Left, who has heard of the correction; right, how far from retraining everybody is, noise included."""

    def __init__(self) -> None:
        self.controls = {
            "hop": Slider("links it has travelled", 2, 0, 12, 1),
            "noise": Slider("noise, of the way to go", 0.0, 0.0, 1.0, 0.05),
            "step": Choice("the correction is", tuple(CORRECTIONS)),
            "graph": Choice("the network is", tuple(GRAPHS)),
            "n": Slider("clients", 16, 9, 36, 3),
            "what": Choice("client 3 deletes", WHAT),
        }
        with style():
            figure, (self.network, self.distances) = plt.subplots(1, 2, figsize=(10.4, 4.0))
        self.drawn = Drawn(figure)

    def show(self, **values: Any) -> Image:
        """The picture for a network, its size, a request, a number of hops, and noise."""
        n, hop, method = int(values["n"]), int(values["hop"]), CORRECTIONS[values["step"]]
        found = _travel(GRAPHS[values["graph"]], n, 3, values["what"])
        heard = found.hops <= hop
        away = distances(found, hop, float(values["noise"]), method)
        with style():
            _network(self.network, found, heard)
            _distances(self.distances, away, heard)
        said = f"{int(heard.sum())} of {n} clients have heard after {hop} links; mean distance {away.mean():.2f}"
        self.network.set_title(f"{int(heard.sum())} of {n} have heard", fontsize=10.5)
        self.distances.set_title(f"mean distance to retraining: {away.mean():.2f} of doing nothing's", fontsize=10.5)
        return self.drawn.picture(said)


def distances(found: Travel, hop: int, noise: float, method: str) -> np.ndarray:
    """Everybody's distance to retraining (N,), doing nothing being 1, after `hop` links.

    noise: standard deviation per coordinate, as a share of doing nothing's distance. The requester floods one draw
    with its correction, so that all who have heard add the same two numbers: stream (0, "travel", "noise").
    """
    draw = noise * _two_numbers()
    after = float(found.distances[method][0])
    with_noise = math.hypot(after + draw[0], draw[1])  # the first axis points to where the correction ends
    return np.where(found.hops <= hop, with_noise, 1.0)


class NoiseAgainstEpsilon:
    """Left, the noise that a promise takes; right, the two worlds that an attacker has to tell apart."""

    def __init__(self) -> None:
        self.controls = {
            "epsilon": Slider("what is promised: epsilon", 1.0, -2, 1, 0.25, powers=True),
            "budget": Slider("distance to be hidden (budget)", 0.01, -4, 0, 0.25, powers=True),
        }
        with style():
            figure, (self.curve, self.worlds) = plt.subplots(1, 2, figsize=(10.4, 3.8))
            self._dress()
        self.drawn = Drawn(figure)

    def show(self, **values: Any) -> Image:
        """The picture for an epsilon and a budget, both positive."""
        epsilon, budget = float(values["epsilon"]), float(values["budget"])
        sigma = gaussian_sigma(budget, epsilon=epsilon, delta=DELTA)
        for mechanism, line in self.lines.items():
            line.set_ydata(budget * _shares(mechanism))
        self.mark.set_data([epsilon], [sigma])
        right = attackers_success(budget, sigma)
        for line, shift in zip(self.bells, (0.0, budget / sigma), strict=True):
            line.set_ydata(np.exp(-((AWAY - shift) ** 2) / 2) / math.sqrt(2 * math.pi))
        self.curve.set_title(f"standard deviation {sigma:.3g}, {sigma / budget:.3g} times the budget", fontsize=10.5)
        said = f"the best attacker names the world rightly in {right:.1f} %"
        self.worlds.set_title(said, fontsize=10.5)
        return self.drawn.picture(f"epsilon {epsilon:.3g}, budget {budget:.3g}: sigma {sigma:.3g}; {said}")

    def _dress(self) -> None:
        looks = {"analytic": ("DU", "-", "exact"), "classical": ("DU printed", ":", "as printed (Theorem 1)")}
        self.lines = {
            name: self.curve.loglog(EPSILONS, EPSILONS, dash, color=colour(method), label=label)[0]
            for name, (method, dash, label) in looks.items()
        }
        (self.mark,) = self.curve.plot([], [], "D", color=colour("DU"), markersize=9)
        self.curve.set(xlabel="epsilon (left: more is promised)", ylabel="noise per parameter", ylim=(1e-6, 1e3))
        self.curve.legend(loc="upper right", fontsize=9)
        self.bells = [
            self.worlds.plot(AWAY, AWAY, color=colour(method), linestyle=dash, label=label)[0]
            for method, dash, label in (("Retrain", "--", "never had the data"), ("DU", "-", "has unlearned"))
        ]
        self.worlds.set(xlim=(AWAY[0], AWAY[-1]), ylim=(0, 0.5), yticks=[])
        self.worlds.set_xlabel("release, between the two models (in units of the noise)")
        self.worlds.legend(loc="upper right", fontsize=9)


def attackers_success(budget: float, sigma: float) -> float:
    """Percent of cases in which the best attacker tells N(0, sigma^2) from N(budget, sigma^2), both equally likely."""
    return 50 * (1 + math.erf(budget / sigma / 2 / math.sqrt(2)))


@lru_cache(maxsize=2)
def _shares(mechanism: str) -> np.ndarray:
    """sigma at each of EPSILONS for a budget of 1; sigma is proportional to it."""
    return np.array([gaussian_sigma(1.0, epsilon=e, delta=DELTA, mechanism=mechanism) for e in EPSILONS])


@lru_cache(maxsize=1)
def _two_numbers() -> np.ndarray:
    """Two standard normal numbers, the same in every call."""
    return torch.randn(2, generator=stream(0, "travel", "noise"), dtype=torch.float64).numpy()


def _network(ax: Axes, found: Travel, heard: np.ndarray) -> None:
    ax.clear()
    places = nx.circular_layout(found.graph)
    fill = [HEARD if known else NOT_YET for known in heard]
    edges = ["black" if hops == 0 else "white" for hops in found.hops]
    nx.draw_networkx_edges(found.graph, places, ax=ax, edge_color="#bbbbbb")
    size = 2600 / len(heard)
    nx.draw_networkx_nodes(found.graph, places, ax=ax, node_color=fill, edgecolors=edges, linewidths=2, node_size=size)
    ax.set_aspect("equal")
    ax.set_axis_off()


def _distances(ax: Axes, away: np.ndarray, heard: np.ndarray) -> None:
    ax.clear()
    for known, hue, label in ((False, NOT_YET, "has not heard yet"), (True, HEARD, "has heard")):
        at = np.flatnonzero(heard == known)
        ax.plot(at, away[at], "o", color=hue, markeredgecolor=LINE, markersize=7, label=label)
    ax.axhline(1, color=colour("Original"), linestyle=":")
    ax.annotate("doing nothing", (0, 1), xytext=(0, 3), textcoords="offset points", fontsize=9)
    ax.set(xlabel="client", ylabel="distance to retraining", ylim=(-0.05, 1.4 * max(1.0, float(away.max()))))
    ax.legend(loc="upper right", ncols=2, fontsize=9)
