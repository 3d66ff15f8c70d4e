"""DU from ten clients to a thousand: what it sends, how long that takes, and how close it comes to exact retraining.

The convex data set is dealt out to N clients on an Erdős-Rényi graph with p = 2 ln N / N, twice what connects most
graphs: a client has about 2 ln N links. Two requests, each served from the same training: a tenth of the clients
forgets some of its samples, and one client leaves.

A sum over all clients, of which DU takes one per gradient and one per curvature product, costs

    tree         2 (N - 1) vectors, up a spanning tree and down again, in 2 depth rounds of the network
    flooding     N (2|E| - (N - 1)) vectors, everybody's part to everybody
    D-PSGD       2|E| vectors a round, for comparison

The tree is breadth-first from a client in the middle, so that its depth is the graph's radius.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import networkx as nx
from torch import Tensor

from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.federation.flood import flood
from fu_core.federation.graphs import links
from fu_core.federation.meter import Meter
from fu_core.request import Request
from fu_core.unlearning.certificate import residual_radius
from fu_core.unlearning.du import DU, Release, du_release
from fu_papers.certified_dfl.exact import retrained_minimiser
from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.heads import newton
from fu_papers.certified_dfl.runs import federation
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function
from fu_papers.lab.timing import Stopwatch
from fu_papers.problems import data_hash, initial_model, plain_fields, problem

TOPOLOGY = "erdos_renyi"
ORDER = "atc"  # at a step this long models that take it before mixing drift apart
ASKING = 10  # one client of so many forgets samples


# --- which runs ------------------------------------------------------------------------------------------------------


def cells(e: Experiment) -> dict[int, dict[str, Any]]:
    """N -> config of a `scale` run: the convex data set, first split, first seed."""
    return {clients: scale_config(e, clients) for clients in e.scale_clients}


def scale_config(e: Experiment, clients: int) -> dict[str, Any]:
    """The config of one `scale` run. Everything but the network and the rounds is as in the tables."""
    config = {
        **e.training(e.main(e.datasets[0]), e.seeds[0]),
        "clients": clients,
        "topology": TOPOLOGY,
        "edge_probability": min(1.0, 2 * math.log(clients) / clients),
        "order": ORDER,
        "rounds": e.scale_rounds,
        "requests": requests(e, clients),
        "du": plain_fields(newton(e.close_budget)),
    }
    del config["request"]  # there are two
    return config


def requests(e: Experiment, clients: int) -> dict[str, str]:
    """Granularity -> request: of the first tenth of the clients, and of the one that leaves."""
    asking = "-".join(str(i) for i in range(max(1, clients // ASKING)))
    return {"sample": f"sample-{asking}-{e.fraction:g}", "client": f"client-{e.leaving}"}


# --- what a network costs --------------------------------------------------------------------------------------------


def depth(graph: nx.Graph) -> int:
    """Of the breadth-first tree from a client in the middle: how many links the farthest client is away from it."""
    return int(nx.radius(graph))


def vectors_sent(f: Federation, released: Release, like: Tensor) -> dict[str, int]:
    """Vectors like `like` (d,) that a release has sent by the tree, as f's meter counted them, and would by flooding.

    Everything but the sums is the same in both.
    """
    N = len(f.ids)
    by_tree = f.meter.bytes // (like.numel() * like.element_size())
    more = N * flood(f.peers.Q, [0]).messages - 2 * (N - 1)  # per sum
    return {"tree": by_tree, "flooding": by_tree + released.sums * more}


# --- the run ---------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.scale", data=data_hash)
def scale(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Both requests among N clients, a row of `rounds` each, after one training.

    gap: |x - x'| / |x_o - x'| to the minimiser x' of the retained loss; `..._again`: of Retrain by as many rounds of
    D-PSGD as the original had; latency: rounds of the network that the sums take one after the other, over the tree;
    seconds: of one thread that does the work of all clients.
    """
    f, test, watch = federation(config), problem(config).test, Stopwatch()
    w_0, rounds = initial_model(config, f.model), config["rounds"]
    W = watch.time("training", lambda: dpsgd(f, w_0, rounds))
    original = W.mean(dim=0)
    tall, sent_per_round = depth(f.peers.graph), links(f.peers.Q)

    for kind, request in config["requests"].items():
        deletion = Request.parse(request).resolve(f.clients)
        serving = f.having(meter=Meter())
        retraining = f.after(deletion).having(meter=Meter())
        watch.start()
        released = du_release(serving, W, deletion, DU(**config["du"]))
        seconds = {"DU": watch.lap("DU")}
        again = dpsgd(retraining, w_0, rounds).mean(dim=0)
        seconds["Retrain"] = watch.lap("Retrain")
        x, minimiser = released.noiseless[0], retrained_minimiser(f.model, original, deletion)

        def away(w: Tensor, to: Tensor = minimiser) -> float:
            return float((w.double() - to).norm())

        context.log(
            kind=kind,
            forgotten=deletion.m,
            asking=len(deletion.forgotten),
            steps=len(released.steps),
            sums=released.sums,
            latency=2 * tall * released.sums,
            vectors=vectors_sent(serving, released, x),
            vectors_again=rounds * links(retraining.peers.Q),
            passes=serving.meter.gradient_passes,
            passes_again=retraining.meter.gradient_passes,
            radius=residual_radius(f.model, x.double(), deletion, objective="samples"),
            radius_original=residual_radius(f.model, original.double(), deletion, objective="samples"),
            distance_original=away(original),
            gap=away(x) / away(original),
            gap_again=away(again) / away(original),
            test=accuracy(f.model, x, *test),
            test_again=accuracy(f.model, again, *test),
            test_retrained=accuracy(f.model, minimiser, *test),
            seconds=seconds,
        )
    return {
        "d": f.model.d,
        "samples": sum(len(y) for _, y in f.clients.values()),
        "links": sent_per_round // 2,
        "depth": tall,
        "test": accuracy(f.model, original, *test),
        "seconds": watch.medians()["training"],
    }, None
