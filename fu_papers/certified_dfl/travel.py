"""A correction on its way through a network: who has heard of it, and how far everybody is from retraining.

Ridge regression with two coefficients and a little data per client, everybody at the common optimum. Behind
the sliders of notebook 04_certified_dfl; computed when called, in milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fu_core.errors import check_choice
from fu_core.federation.decentralised import start
from fu_core.federation.federation import Federation
from fu_core.federation.flood import flood
from fu_core.federation.graphs import Peers, topology
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion, Forget
from fu_core.streams import stream
from fu_core.unlearning.du import DU, du
from fu_papers.certified_dfl.drawn_graphs import draw_links, layout
from fu_papers.look import colour, linestyle, say_below

SAMPLES, L2 = 12, 0.1
WHAT = ("some of its samples", "everything: it leaves")
SOURCE = "generated: ridge regression, two coefficients"
FORMS = {"DU": "corrected", "DU printed": "printed"}


class Travel(NamedTuple):
    """hops (N,): when each client hears; distances[form] (N,): |x_i - x'| / |x - x'| after it has heard, 1 before."""

    graph: nx.Graph
    hops: np.ndarray
    distances: dict[str, np.ndarray]


def travel(name: str, n: int, requester: int, what: str = WHAT[0]) -> Travel:
    """Let one of `n` clients ask, on the graph `name`. Random: data, from stream (0, "travel"). Deterministic."""
    check_choice("what", what, WHAT)
    graph, clients = topology(name, n), _clients(n)
    model = FlatModel(nn.Linear(2, 1, bias=False), task="regression", l2=L2)
    f = Federation(model, dict(enumerate(clients)), exchange=Peers(graph))
    forget: Forget = {requester: torch.arange(SAMPLES // 2)} if what == WHAT[0] else requester
    deletion = Deletion.of(clients, forget)
    x, retrained = _optimum(clients), _optimum([deletion.kept[i] for i in sorted(deletion.kept)])
    distances = {}
    for method, form in FORMS.items():
        models = du(f, start(x, n), deletion, DU(form=form))
        after = (models[0] - retrained).norm() / (x - retrained).norm()
        distances[method] = np.full(n, float(after))
    return Travel(graph, flood(f.peers.Q, [requester]).hops[0], distances)


def travel_figure(name: str, n: int, requester: int, hop: int, what: str = WHAT[0]) -> Figure:
    """Left: who has heard after `hop` steps. Right: everybody's mean distance to retraining, step by step."""
    found = travel(name, n, requester, what)
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6))
    at = layout(name, n)
    heard = found.hops <= hop
    draw_links(left, name, found.graph, at)
    size = 2600 / max(n, 8)
    for ours, look, label in (
        (heard, {"color": colour("DU printed")}, "has heard"),
        (~heard, {"color": "#e4e4e4", "edgecolors": "#8a8a8a"}, "has not"),
    ):
        here = np.array([at[i] for i in range(n) if ours[i]]).reshape(-1, 2)
        left.scatter(here[:, 0], here[:, 1], s=size, label=label, zorder=2, **look)
    left.scatter(*at[requester], s=0.45 * size, marker="*", color="black", label="asks to be forgotten", zorder=3)
    left.set_title(f"{heard.sum()} of {n} clients have heard after {hop} step{'s' * (hop != 1)}")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, fontsize=9, markerscale=0.7, frameon=False)
    steps = np.arange(found.hops.max() + 1)
    for method, after in found.distances.items():
        mean = [np.where(found.hops <= step, after, 1.0).mean() for step in steps]
        right.plot(steps, mean, color=colour(method), linestyle=linestyle(method), marker="o", label=FORMS[method])
    right.axvline(hop, color="#999999", linewidth=1)
    right.axhline(1, color=colour("Original"), linestyle=":", label="doing nothing")
    right.set(xlabel="steps of flooding", ylabel="mean distance to retraining,\nrelative to doing nothing")
    right.set_ylim(-0.03 * right.get_ylim()[1], None)  # a whole dot at 0
    right.set_xticks(steps[:: max(1, len(steps) // 10)])
    right.legend(title="the correction is", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, "One request; means over all clients; the upright line: the step on the left")
    return fig


def _clients(n: int) -> list[Client]:
    draws = stream(0, "travel")
    X = torch.randn(n, SAMPLES, 2, generator=draws, dtype=torch.float64)
    truth = torch.tensor([1.0, -1.0]) + torch.randn(n, 2, generator=draws, dtype=torch.float64)
    noise = 0.3 * torch.randn(n, SAMPLES, generator=draws, dtype=torch.float64)
    return [(X[i], X[i] @ truth[i] + noise[i]) for i in range(n)]


def _optimum(held: list[Client]) -> Tensor:
    """The minimiser (2,) of the clients' mean ridge loss."""
    A = torch.stack([X.T @ X / len(y) for X, y in held]).mean(dim=0) + L2 * torch.eye(2, dtype=torch.float64)
    b = torch.stack([X.T @ y / len(y) for X, y in held]).mean(dim=0)
    return torch.linalg.solve(A, b)
