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
from fu_core.evaluation.equivalence import logits_kl, parameter_gap
from fu_core.evaluation.membership import half_of_each_class, threshold_attack
from fu_core.federation.decentralised import consensus_distance, dpsgd, start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, links, topology
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.models import FlatModel, build
from fu_core.request import Deletion, Request
from fu_core.streams import stream
from fu_core.unlearning.certificate import residual_radius
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.method import Trained, Unlearned
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.certified_dfl.exact import retrained_minimiser
from fu_papers.controls import AGAIN, CONTROLS
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import PROBLEM_KEYS, TRAINING_FIELDS, data_hash, initial_model, problem

GLANCE = 2000  # test images behind the accuracies that are followed round by round
EXACT_KEYS = (*PROBLEM_KEYS, "l2", "request")
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
    """The trainings that a run starts from and is compared with; of a convex loss the minimiser, too."""
    training = {key: config[key] for key in TRAINING_KEYS}
    found: dict[str, Any] = {"original": (train, {**training, "request": "none"}), "retrained": (train, training)}
    if config.get("exact"):
        found["exact"] = (exact, {key: config[key] for key in EXACT_KEYS})
    if config.get("method") == AGAIN:
        found["again"] = (train, {**training, "seed": config["other_seed"]})
    return found


@run_function("certified_dfl.exact", data=data_hash)
def exact(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What retraining aims at: the minimiser "x" (d,) of the retained loss of all samples, by Newton's method.

    D-PSGD with a finite number of rounds does not get there, with what is forgotten or without it. The graph has no say
    in it; `radius` bounds what is left.
    """
    p = problem(config)
    model = build(config["model"], p.dataset, l2=config["l2"])
    deletion = Request.parse(config["request"]).resolve(dict(enumerate(p.clients)))
    x = retrained_minimiser(model, model.init(0), deletion)
    return {
        "radius": residual_radius(model, x, deletion, objective="samples"),
        "test": accuracy(model, x, *p.test),
        "length": float(x.norm()),
    }, {"x": x}


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
    """What a run is about: the federation as it was trained, the request, and both reference models, everybody's.

    exact (d,): the minimiser of the retained loss, where the loss is convex.
    """

    f: Federation
    deletion: Deletion
    test: Client
    original: Tensor
    retrained: Tensor
    exact: Tensor | None

    @classmethod
    def of(cls, config: Mapping[str, Any], context: RunContext) -> Case:
        """Read the trainings that the config needs; they are run if need be."""
        f = federation(config)
        original, retrained = (context.needed(name, ["W"])["W"].to(device()) for name in ("original", "retrained"))
        minimiser = context.needed("exact", ["x"])["x"].to(device()) if config.get("exact") else None
        return cls(f, asked(config, f), problem(config).test, original, retrained, minimiser)

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
    if method in ("Retrain", AGAIN):
        models = case.retrained if method == "Retrain" else context.needed("again", ["W"])["W"].to(device())
        W, cost, notes = Unlearned(models, Meter(), {})
    else:
        W, cost, notes = case.served(config)
    before = evaluate(case, W)
    more = 0 if method in CONTROLS else config.get("pdudt_rounds", 1)  # Remark 1: one round on retained data
    W = dpsgd(case.rest.having(meter=cost), W, more, first_round=config["rounds"] + 1)
    metrics = evaluate(case, W) if more else before
    costs = {"images": cost.images, "products": cost.products, "bytes": cost.bytes, "kept": cost.storage}
    return {**metrics, **{f"before_{name}": value for name, value in before.items()}, **notes, **costs}, None


def evaluate(case: Case, W: Tensor) -> dict[str, float]:
    """Utility, forgetting and closeness to retraining of the average model, as the paper's final model is.

    kl: E KL(Retrain || model) on the forgotten data, in nats: nets far apart in parameters can say the same.
    gap: |x - x_r| / |x_o - x_r|, 1 for doing nothing; exact_gap: the same with the minimiser of the retained loss in
    place of Retrain's x_r, which did not get there either; radius: |grad f_r(x)| / lambda, which bounds the distance to
    it. A class that is gone is attacked by its own samples alone, half of them to find the threshold and half to
    try it: a threshold for all classes would tell classes apart, and not members.
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
        "kl": logits_kl(outputs_gone, model.predict(r_mean, x_gone)),
    }
    removed = removed_class(case.deletion)
    if removed is not None:
        gone = y == removed
        metrics["removed"] = outputs_accuracy(model.task, outputs[gone], y[gone])
        metrics["remaining"] = outputs_accuracy(model.task, outputs[~gone], y[~gone])
    if case.exact is not None:
        o_exact = (o_mean - case.exact).norm()
        metrics["exact_gap"] = float((x_mean - case.exact).norm() / o_exact)
        metrics["radius"] = residual_radius(model, x_mean.double(), case.deletion, objective="samples")
    seen, unseen = -model.sample_losses(outputs_gone, y_gone), -model.sample_losses(outputs, y)
    if removed is None:
        half = half_of_each_class(y, "test halves")
        members, others = -model.predict_losses(x_mean, *some_retained(case.deletion)), unseen[half]
        unseen = unseen[~half]
    else:
        unseen = unseen[y == removed]
        (members, seen), (others, unseen) = halves(seen, "forgotten halves"), halves(unseen, "unseen halves")
    attack = threshold_attack(members=members, others=others, forget=seen, unseen=unseen)
    return metrics | {"mia": attack.accuracy, "auc": attack.auc, "tpr": attack.tpr_at_1_fpr}


def halves(scores: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The scores (n,) in two random halves, the same whatever the training seed."""
    order = torch.randperm(len(scores), generator=stream(0, name)).to(scores.device)
    return scores[order[::2]], scores[order[1::2]]


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
