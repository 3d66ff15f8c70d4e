"""Certified DFL's experiments as runs: from a flat config to a record.

`train` makes original and retrained models by D-PSGD; `unlearn` lets one method serve a request and evaluates before
and after one round of fine-tuning. `curve` (Fig. 1), `speed` (Fig. 2) and `certify` have modules of their own.
Everything shown in tables and figures is read from their records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.equivalence import parameter_gap
from fu_core.evaluation.membership import half_of_each_class, threshold_attack
from fu_core.federation.decentralised import consensus_distance, dpsgd, start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, links, topology
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.models import FlatModel, build
from fu_core.request import Deletion, Request
from fu_core.streams import stream
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.method import Trained, Unlearned
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.certified_dfl.grid import REFERENCES
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import PROBLEM_KEYS, TRAINING_FIELDS, data_hash, initial_model, problem

GLANCE = 2000  # test images behind the accuracies that are followed round by round
TRAINING_KEYS = (*PROBLEM_KEYS, "l2", "topology", "edge_probability", "order", "rounds", *TRAINING_FIELDS, "seed",
                 "request")  # fmt: skip


def federation(config: Mapping[str, Any]) -> Federation:
    """Everybody with all their data, linked as a run's config says."""
    p = problem(config)
    model = build(config["model"], p.dataset, l2=config["l2"])
    graph = topology(config["topology"], config["clients"], p=config["edge_probability"], seed=0)
    return p.federation(config).having(model=model, exchange=Peers(graph, config["order"]))


def asked(config: Mapping[str, Any], f: Federation) -> Deletion:
    """What the config's request takes of everybody's data."""
    return Request.parse(config["request"]).resolve(f.clients)


@run_function("certified_dfl.describe", data=data_hash)
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a place consists of: who holds which classes, who is linked to whom, the data's source, the net's size."""
    peers = federation(config).peers
    edges = [list(edge) for edge in peers.graph.edges]
    return {**problem(config).description, "edges": edges, "links": links(peers.Q)}, None


# --- training --------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.train", data=data_hash)
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """K rounds of D-PSGD from scratch on what `request` leaves; keeps everybody's final model as "W" (K, d)."""
    f, test = federation(config), problem(config).test
    if config["request"] != "none":
        f = f.after(asked(config, f))
    W, done = start(initial_model(config, f.model), len(f.ids)), 0
    if (saved := context.resume()) is not None:
        tensors, meta = saved
        W, done = tensors["W"].to(device()), meta["round"]
        f.meter.restore(meta["meter"])

    def after_round(t: int, W_t: Tensor) -> None:
        context.log(round=t, test=glance(f.model, W_t, test), consensus=consensus_distance(W_t))
        context.checkpoint({"W": W_t}, {"round": t, "meter": asdict(f.meter)})

    W = dpsgd(f, W, config["rounds"] - done, first_round=done + 1, after_round=after_round)
    return {"test": accuracy(f.model, W.mean(dim=0), *test), "bytes": f.meter.bytes}, {"W": W}


def glance(model: FlatModel, W: Tensor, test: Client) -> float:
    """Accuracy of the average of the models W (K, d) on some of the test images."""
    x, y = test
    return accuracy(model, W.mean(dim=0), x[:GLANCE], y[:GLANCE])


def needs(config: Mapping[str, Any]) -> Needs:
    """The trainings that a run starts from and is compared with."""
    training = {key: config[key] for key in TRAINING_KEYS}
    return {"original": (train, {**training, "request": "none"}), "retrained": (train, training)}


def recorded_training(
    f: Federation, config: Mapping[str, Any], rounds: int, after_round: Callable[[int, Tensor], None] | None = None
) -> tuple[Tensor, PeerHistory]:
    """The training once more, with what peers keep of it for a replay: too much to be kept with every training."""
    history = PeerHistory(gamma=config["lr"], decay=config["lr_decay"])
    w_0 = initial_model(config, f.model)
    return dpsgd(f, w_0, rounds, after_round=after_round, on_updates=history.record), history


# --- unlearning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What a run is about: the federation as it was trained, the request, and both reference models, everybody's."""

    f: Federation
    deletion: Deletion
    test: Client
    original: Tensor
    retrained: Tensor

    @classmethod
    def of(cls, config: Mapping[str, Any], context: RunContext) -> Case:
        """Read the trainings that the config needs; they are run if need be."""
        f = federation(config)
        original, retrained = (context.needed(name, ["W"])["W"].to(device()) for name in ("original", "retrained"))
        return cls(f, asked(config, f), problem(config).test, original, retrained)

    @property
    def rest(self) -> Federation:
        """Those who stay, with what they keep."""
        return self.f.after(self.deletion)

    def served(self, config: Mapping[str, Any]) -> Unlearned:
        """The unlearning step alone, by the config's method."""
        memory: Memory | PeerHistory = Memory()
        if registered(config["method"]).needs.history:
            _, memory = recorded_training(self.f, config, config["rounds"])
        trained = Trained(self.f, self.original, config["rounds"], memory=memory)
        return serve_request(config["method"], trained, self.deletion, **config["options"])


@run_function("certified_dfl.unlearn", data=data_hash, needs=needs)
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; evaluated as it comes out ("before") and after one round of fine-tuning."""
    case, method = Case.of(config, context), config["method"]
    retrained = Unlearned(case.retrained, Meter(), {})
    W, cost, notes = retrained if method == "Retrain" else case.served(config)
    before = evaluate(case, W)
    more = 0 if method in REFERENCES else config.get("pdudt_rounds", 1)  # Remark 1: one round on retained data
    W = dpsgd(case.rest.having(meter=cost), W, more, first_round=config["rounds"] + 1)
    metrics = evaluate(case, W) if more else before
    costs = {"images": cost.images, "products": cost.products, "bytes": cost.bytes, "kept": cost.storage}
    return {**metrics, **{f"before_{name}": value for name, value in before.items()}, **notes, **costs}, None


def evaluate(case: Case, W: Tensor) -> dict[str, float]:
    """Utility, forgetting and closeness to retraining of the average model, as the paper's final model is.

    gap: |x - x_r| / |x_o - x_r|, 1 for doing nothing. For class-wise requests the attack compares with unseen
    samples of the same class: other classes would be told apart by any model.
    """
    model = case.f.model
    x_mean, r_mean, o_mean = (models.mean(dim=0) for models in (W, case.retrained, case.original))
    (x_test, y), (x_gone, y_gone) = case.test, case.deletion.forget
    outputs, outputs_gone = model.predict(x_mean, x_test), model.predict(x_mean, x_gone)
    metrics = {
        "test": outputs_accuracy(model.task, outputs, y),
        "forget": outputs_accuracy(model.task, outputs_gone, y_gone),
        "consensus": consensus_distance(W),
        "gap": float((x_mean - r_mean).norm() / (o_mean - r_mean).norm().clamp(min=1e-30)),
        "distance": parameter_gap(x_mean, r_mean),
    }
    removed = removed_class(case.deletion)
    if removed is not None:
        gone = y == removed
        metrics["removed"] = outputs_accuracy(model.task, outputs[gone], y[gone])
        metrics["remaining"] = outputs_accuracy(model.task, outputs[~gone], y[~gone])
    scores = -model.sample_losses(outputs, y)
    half = half_of_each_class(y, "test halves")
    unseen = ~half if removed is None else ~half & (y == removed)
    attack = threshold_attack(
        members=-model.predict_losses(x_mean, *some_retained(case.deletion)),
        others=scores[half],
        forget=-model.sample_losses(outputs_gone, y_gone),
        unseen=scores[unseen],
    )
    return metrics | {"mia": attack.accuracy, "auc": attack.auc, "tpr": attack.tpr_at_1_fpr}


def removed_class(deletion: Deletion) -> int | None:
    """The class that is gone from all retained data, if there is one."""
    labels = deletion.forget[1].unique()
    if len(labels) != 1:
        return None
    label = int(labels[0])
    return None if any((y == label).any() for _, y in deletion.kept.values()) else label


def some_retained(deletion: Deletion, largest: int = 5000) -> Client:
    """At most `largest` random retained samples: the members the attacker learns from."""
    x, y = deletion.retain
    chosen = torch.randperm(len(y), generator=stream(0, "retained members"))[:largest].to(y.device)
    return x[chosen], y[chosen]
