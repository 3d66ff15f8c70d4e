"""Certified DFL's experiments as runs: from the parameters of a notebook or profile to run records.

`train` makes original and retrained models by D-PSGD; `unlearn` lets one method serve a request and
evaluates before and after one round of fine-tuning; `curve` follows test accuracy over requests (Fig. 1);
`speed` times methods against retraining in one process (Fig. 2); `certify` releases under the budget rule.
Everything shown (certified_dfl_figures, certified_dfl_claims) is read from their records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median
from time import perf_counter
from typing import Any

import networkx as nx
import torch
from fu_core.unlearning.deletion import Deletion, Forget
from torch import Tensor

from fu_core import partition
from fu_core.errors import CertificateViolation, ConfigError
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.equivalence import parameter_gap
from fu_core.evaluation.membership import half_of_each_class, threshold_attack
from fu_core.federation.decentralised import consensus_distance, dpsgd, links, metropolis, start, topology, without
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models import FlatModel, build
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.baselines.pdudt import PeerHistory, pdudt
from fu_core.unlearning.certified import (
    DU,
    Release,
    du_release,
    residual_radius,
    softmax_constants,
)
from fu_papers.certified_dfl.grid import DU_FORMS, REFERENCES, WHOLE_CLIENTS, Cell, Experiment, Place
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import Record, RunFunction, run_function
from fu_papers.lab.store import RecordStore
from fu_papers.problems import PROBLEM_KEYS, Problem, client_opt, problem

REPEATS = 3  # timings of everything but a whole training
GLANCE = 2000  # test images behind the accuracies that are followed round by round


# --- who asks for what -----------------------------------------------------------------------------------------------


def forget_of(request: str, p: Problem) -> Forget | None:
    """Read a request: "none", "sample-0.1", "class-0", "client-3", or "sequence-2-3-0.2".

    The last: the first 2 of 3 requests that together take a fifth of every client's samples. Random: which
    samples, from streams that depend on the client alone, not on the training seed.
    """
    kind, *values = request.split("-", 3 if request.startswith("sequence") else 1)  # 1e-05 has a dash of its own
    if kind == "none":
        return None
    if kind == "client":
        return int(values[0])
    if kind == "sample":
        wanted = partition.forget_samples(p.parts, range(len(p.parts)), fraction=float(values[0]), seed=0)
        return partition.positions(p.parts, wanted.forget)
    if kind == "class":
        return partition.positions(p.parts, partition.forget_class(p.parts, p.dataset.y_train, int(values[0])).forget)
    if kind == "sequence":
        asked, of, fraction = int(values[0]), int(values[1]), float(values[2])
        orders = [torch.randperm(len(part), generator=stream(0, "sequence", i)) for i, part in enumerate(p.parts)]
        return {i: order[: max(1, round(asked * fraction * len(order) / of))] for i, order in enumerate(orders)}
    raise ConfigError(f"request must begin with none, sample, class, client or sequence, got {request!r}")


class Federation:
    """A problem with its graph and a request: who stays, on what, and who is linked to whom then."""

    def __init__(self, config: Mapping[str, Any], request: str) -> None:
        self.problem = p = problem(config)
        self.model: FlatModel = build(config["model"], p.dataset, l2=config["l2"])
        self.graph: nx.Graph = topology(config["topology"], config["clients"], p=config["edge_probability"], seed=0)
        self.Q = metropolis(self.graph)
        self.forget = forget_of(request, p)
        self.deletion = None if self.forget is None else Deletion.of(p.clients, self.forget)
        kept: Mapping[int, Client] = dict(enumerate(p.clients)) if self.deletion is None else self.deletion.kept
        self.ids = sorted(kept)
        gone = [i for i in range(config["clients"]) if i not in kept]
        self.Q_after = metropolis(without(self.graph, gone)) if gone else self.Q
        self.kept = [kept.get(i, (x[:0], y[:0])) for i, (x, y) in enumerate(p.clients)]
        self.local, self.order, self.seed = client_opt(config), config["order"], config["seed"]

    def train(self, W: Tensor, first_round: int, rounds: int, **hooks: Any) -> Tensor:
        """Rounds of D-PSGD on what is retained, among those who stay."""
        return dpsgd(
            self.model, W, self.kept, self.Q_after, rounds=rounds, local=self.local, seed=self.seed,
            ids=self.ids, order=self.order, first_round=first_round, **hooks,
        )  # fmt: skip

    def initial(self) -> Tensor:
        """One initial model for everybody."""
        return self.model.init(stream_seed(self.seed, "init")).to(device())

    def forgotten(self) -> Client:
        """All forgotten samples, in client order."""
        assert self.deletion is not None
        x, y = zip(*self.deletion.forgotten.values(), strict=True)
        return torch.cat(x), torch.cat(y)


@run_function("certified_dfl.describe")
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a place consists of: who holds which classes, who is linked to whom, the data's source, the net's size."""
    f = Federation(config, "none")
    p = f.problem
    counts = partition.label_counts(p.parts, p.dataset.y_train, p.dataset.classes)
    return {
        "label_counts": counts.tolist(),
        "source": p.dataset.source,
        "parameters": f.model.d,
        "edges": [list(edge) for edge in f.graph.edges],
        "links": links(f.Q),
    }, None


# --- training --------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.train")
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """K rounds of D-PSGD from scratch on what `request` leaves; keeps everybody's final model as "W" (K, d)."""
    f = Federation(config, config["request"])
    W, done, meter = start(f.initial(), len(f.ids)), 0, Meter()
    if (saved := context.resume()) is not None:
        tensors, meta = saved
        W, done, meter.bytes_up = tensors["W"].to(device()), meta["round"], meta["bytes"]

    def after_round(t: int, W_t: Tensor) -> None:
        context.log(round=t, test=_glance(f, W_t), consensus=consensus_distance(W_t))
        context.checkpoint({"W": W_t}, {"round": t, "bytes": meter.bytes_up})

    W = f.train(W, done + 1, config["rounds"] - done, meter=meter, after_round=after_round)
    return {"test": accuracy(f.model, W.mean(dim=0), *f.problem.test), "bytes": meter.bytes}, {"W": W}


def _glance(f: Federation, W: Tensor) -> float:
    x, y = f.problem.test
    return accuracy(f.model, W.mean(dim=0), x[:GLANCE], y[:GLANCE])


def training_record(config: Mapping[str, Any], store: RecordStore, request: str) -> Record:
    """The training that `config` belongs to, on what `request` leaves; run if need be."""
    training = {key: config[key] for key in TRAINING_KEYS} | {"request": request}
    return store.run(train, training, data_hash=problem(config).data_hash)


def models_of(config: Mapping[str, Any], store: RecordStore, request: str) -> Tensor:
    """Everybody's model (K, d) after that training."""
    return store.tensors(training_record(config, store, request).key, ["W"])["W"].to(device())


# --- unlearning ------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.unlearn")
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; evaluated as it comes out ("before") and after one round of fine-tuning."""
    f = Federation(config, config["request"])
    original, retrained = (models_of(config, context.store, request) for request in ("none", config["request"]))
    meter, method = Meter(), config["method"]
    W, extra = _apply(config, f, original, retrained, meter)
    before = evaluate(f, W, retrained, original)
    more = 0 if method in REFERENCES else config.get("pdudt_rounds", 1)  # Remark 1: one round on retained data
    W = f.train(W, config["rounds"] + 1, more, meter=meter)
    metrics = evaluate(f, W, retrained, original) if more else before
    costs = {"images": meter.images, "products": meter.products, "bytes": meter.bytes, "kept": meter.storage}
    return {**metrics, **{f"before_{name}": value for name, value in before.items()}, **extra, **costs}, None


def _apply(
    config: Mapping[str, Any], f: Federation, original: Tensor, retrained: Tensor, meter: Meter
) -> tuple[Tensor, dict[str, Any]]:
    method = config["method"]
    if method == "Retrain":
        return retrained, {}
    staying = original[f.ids]
    if method in DU_FORMS:
        release = _release(config, f, original, meter)
        step = parameter_gap(release.noiseless.mean(dim=0), staying.mean(dim=0))
        return release.models, {"step": step, "scale": release.scale, "hops": int(release.hops.max())}
    if method == WHOLE_CLIENTS:
        whole, history = Federation(config, "none"), _history(config)
        whole.train(start(whole.initial(), len(whole.ids)), 1, config["rounds"], on_updates=history.record)
        (c,) = _gone(f)
        published = history.published_nbytes(whole.graph.degree[c])
        return pdudt(history, f.Q, [c], seed=f.seed, meter=meter), {"published": published}
    return staying, {}


def _release(config: Mapping[str, Any], f: Federation, W: Tensor, meter: Meter, **how: Any) -> Release:
    assert f.forget is not None
    return du_release(
        f.model, W, f.problem.clients, f.forget, f.Q, DU(**config["du"]), seed=config["seed"], meter=meter, **how
    )


def evaluate(f: Federation, W: Tensor, retrained: Tensor, original: Tensor) -> dict[str, float]:
    """Utility, forgetting and closeness to retraining of the average model, as the paper's final model is.

    gap: |x - x_r| / |x_o - x_r|, 1 for doing nothing. For class-wise requests the attack compares with unseen
    samples of the same class: other classes would be told apart by any model.
    """
    x_mean, r_mean, o_mean = (models.mean(dim=0) for models in (W, retrained, original))
    (x_test, y), (x_gone, y_gone) = f.problem.test, f.forgotten()
    outputs, outputs_gone = f.model.predict(x_mean, x_test), f.model.predict(x_mean, x_gone)
    metrics = {
        "test": outputs_accuracy(f.model.task, outputs, y),
        "forget": outputs_accuracy(f.model.task, outputs_gone, y_gone),
        "consensus": consensus_distance(W),
        "gap": float((x_mean - r_mean).norm() / (o_mean - r_mean).norm().clamp(min=1e-30)),
        "distance": parameter_gap(x_mean, r_mean),
    }
    removed = removed_class(f)
    if removed is not None:
        gone = y == removed
        metrics["removed"] = outputs_accuracy(f.model.task, outputs[gone], y[gone])
        metrics["remaining"] = outputs_accuracy(f.model.task, outputs[~gone], y[~gone])
    scores = -f.model.sample_losses(outputs, y)
    half = half_of_each_class(y, "test halves")
    unseen = ~half if removed is None else ~half & (y == removed)
    retained = _some_retained(f)
    attack = threshold_attack(
        members=-f.model.predict_losses(x_mean, *retained),
        others=scores[half],
        forget=-f.model.sample_losses(outputs_gone, y_gone),
        unseen=scores[unseen],
    )
    return metrics | {"mia": attack.accuracy, "auc": attack.auc, "tpr": attack.tpr_at_1_fpr}


def removed_class(f: Federation) -> int | None:
    """The class that is gone from all retained data, if there is one."""
    labels = f.forgotten()[1].unique()
    if len(labels) != 1:
        return None
    label = int(labels[0])
    return None if any((y == label).any() for _, y in f.kept) else label


def _some_retained(f: Federation, largest: int = 5000) -> Client:
    """At most `largest` random retained samples: the members the attacker learns from."""
    x = torch.cat([x for x, _ in f.kept])
    y = torch.cat([y for _, y in f.kept])
    chosen = torch.randperm(len(y), generator=stream(0, "retained members"))[:largest].to(y.device)
    return x[chosen], y[chosen]


# --- curves over requests (Fig. 1) -----------------------------------------------------------------------------------


@run_function("certified_dfl.curve")
def curve(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Test accuracy of the average model round by round: training, then each request and what follows it.

    Retrain starts from scratch for K rounds; DU takes its step (logged as round 0 of its phase) and fine-tunes;
    PDUDT replays its history and trains on. Requests are served one after the other, each on the state the
    last one left. Logs phase (0: training), round within it, and accuracy.
    """
    f = Federation(config, "none")
    method, more, seed = config["method"], config["pdudt_rounds"], config["seed"]
    W, history = _trained(config, f, context)
    for phase, request in enumerate(config["requests"], start=1):
        g = Federation(config, request)

        def follow(t: int, W_t: Tensor, f: Federation = g, phase: int = phase) -> None:
            context.log(phase=phase, round=t, test=_glance(f, W_t))

        if method == "Retrain":
            W, first, rounds = start(g.initial(), len(g.ids)), 1, config["rounds"]
        else:  # what follows unlearning goes on where the rounds before it ended
            first, rounds = config["rounds"] + 1 + (phase - 1) * more, more
            if history is None:
                W = _serve(config, g, config["requests"][: phase - 1], W)
            else:
                W = pdudt(history, g.Q, _gone(g), seed=seed)
        follow(0, W)
        W = g.train(W, first, rounds, after_round=lambda t, W_t, first=first, log=follow: log(t - first + 1, W_t))
    return {"test": accuracy(f.model, W.mean(dim=0), *f.problem.test)}, None


def _trained(config: Mapping[str, Any], f: Federation, context: RunContext) -> tuple[Tensor, PeerHistory | None]:
    """Everybody's model after training, its accuracies logged; trained again for PDUDT, which needs the history."""
    if config["method"] != "PDUDT":
        for row in training_record(config, context.store, "none").rounds:
            context.log(phase=0, round=row["round"], test=row["test"])
        return models_of(config, context.store, "none"), None
    history = _history(config)

    def follow(t: int, W_t: Tensor) -> None:
        context.log(phase=0, round=t, test=_glance(f, W_t))

    initial = start(f.initial(), len(f.ids))
    return f.train(initial, 1, config["rounds"], after_round=follow, on_updates=history.record), history


def _history(config: Mapping[str, Any]) -> PeerHistory:
    return PeerHistory(gamma=config["lr"], decay=config["lr_decay"])


def _gone(f: Federation) -> list[int]:
    return [i for i in range(len(f.problem.clients)) if i not in f.ids]


def _serve(config: Mapping[str, Any], g: Federation, before: Sequence[str], W: Tensor) -> Tensor:
    """DU's answer to the newest of cumulative requests: the samples that earlier ones took are no longer there."""
    if not before:
        return _release(config, g, W, Meter()).models
    earlier = forget_of(before[-1], g.problem)
    assert isinstance(earlier, Mapping)
    assert isinstance(g.forget, Mapping)
    held = [Deletion.of(g.problem.clients, earlier).kept[i] for i in g.ids]
    new = {}
    for i, (x, _) in enumerate(g.problem.clients):
        kept = torch.ones(len(x), dtype=torch.bool)
        kept[earlier[i]] = False
        asked = torch.zeros(len(x), dtype=torch.bool)
        asked[g.forget[i]] = True
        new[i] = asked[kept].nonzero().flatten()
    return du_release(g.model, W, held, new, g.Q, DU(**config["du"]), seed=config["seed"]).models


# --- time (Fig. 2) ---------------------------------------------------------------------------------------------------


@run_function("certified_dfl.speed")
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds of retraining, DU with one round of fine-tuning, and PDUDT with its rounds, one thread, in turn.

    Retraining is projected from `timed_rounds` rounds; everything else runs as it is, on the model those
    rounds made. All clients' work is added up, as it is in retraining.
    """
    f = Federation(config, config["request"])
    whole = Federation(config, "none")
    history = _history(config)
    W = whole.train(start(whole.initial(), len(whole.ids)), 1, config["timed_rounds"], on_updates=history.record)
    taken: dict[str, list[float]] = {"round": []}
    for t in range(config["timed_rounds"]):
        began = perf_counter()
        tuned = f.train(W[f.ids], t + 1, 1)
        taken["round"].append(perf_counter() - began)
        for name, du in config["variants"].items():
            if len(taken.setdefault(name, [])) < REPEATS:
                began = perf_counter()
                _release({**config, "du": du}, f, W, Meter())
                taken[name].append(perf_counter() - began)
    assert bool(tuned.isfinite().all())
    per_round = median(taken["round"])
    seconds = {"Retrain": config["rounds"] * per_round, "round": per_round}
    seconds |= {name: median(taken[name]) + per_round for name in config["variants"]}
    if config["pdudt_rounds"]:
        began = perf_counter()
        pdudt(history, f.Q, _gone(f), seed=config["seed"])
        replay = (perf_counter() - began) * config["rounds"] / config["timed_rounds"]
        seconds["PDUDT"] = replay + config["pdudt_rounds"] * per_round
        seconds["PDUDT replay"] = replay
    return {"seconds": seconds, "timed_rounds": config["timed_rounds"]}, None


# --- certificates ----------------------------------------------------------------------------------------------------


@run_function("certified_dfl.certify")
def certify(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """The budget rule on the convex problem: measured radius, noise and accuracy per epsilon, or the refusal.

    Beside it the printed calibration with its own constants, and what it does to accuracy.
    """
    f = Federation(config, config["request"])
    original, retrained = (models_of(config, context.store, request) for request in ("none", config["request"]))
    assert f.forget is not None
    plain = _release(config, f, original, Meter())
    x = plain.noiseless.mean(dim=0)
    length = float(x.norm())
    printed = _release({**config, "du": config["printed"]}, f, original, Meter())
    x_printed = printed.noiseless.mean(dim=0)

    def radius(w: Tensor) -> float:
        return residual_radius(f.model, w.double(), f.problem.clients, f.forget, objective="samples")  # type: ignore[arg-type]

    constants = softmax_constants(1.0, config["l2"], norm=length)
    for epsilon in config["epsilons"]:
        for form in ("corrected", "printed"):
            how: dict[str, Any] = {"epsilon": epsilon, "delta": config["delta"]}
            how |= {"budget": config["budget"]} if form == "corrected" else {"constants": constants}
            du = config["du"] if form == "corrected" else config["printed"]
            try:
                noiseless = plain if form == "corrected" else printed
                released = _release({**config, "du": du}, f, original, Meter(), plain=noiseless, **how)
            except CertificateViolation as refused:
                context.log(epsilon=epsilon, form=form, released=False, reason=str(refused))
                continue
            assert released.certificate is not None
            noise = (released.models - released.noiseless).mean(dim=0)
            context.log(
                epsilon=epsilon,
                form=form,
                released=True,
                sigma=released.sigma,
                claimed_radius=released.certificate.radius,
                test=accuracy(f.model, released.models.mean(dim=0), *f.problem.test),
                retrained=accuracy(f.model, retrained.mean(dim=0) + noise, *f.problem.test),  # world B, errata D7
            )
    return {
        "length": length,
        "d": f.model.d,
        "constants": constants._asdict(),
        "radius": radius(x),
        "radius_printed": radius(x_printed),
        "radius_original": radius(original.mean(dim=0)),
        "radius_retrained": radius(retrained.mean(dim=0)),
        "test": accuracy(f.model, x, *f.problem.test),
        "test_printed": accuracy(f.model, x_printed, *f.problem.test),
        "test_retrained": accuracy(f.model, retrained.mean(dim=0), *f.problem.test),
        "budget": config["budget"],
        "delta": config["delta"],
    }, None


# --- all of them -----------------------------------------------------------------------------------------------------


def run_descriptions(e: Experiment, store: RecordStore) -> dict[Place, Record]:
    """One `describe` record per place."""
    places = e.places()
    return dict(
        zip(places, _run(describe, [e.training(p, e.seeds[0]) for p in places], store, "settings", 1), strict=True)
    )


def run_training(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Any, Record]:
    """All trainings, originals and retrained: (place, seed, request) -> record."""
    configs = e.trainings()
    records = _run(train, configs, store, "training", jobs)
    return {config_place(config): record for config, record in zip(configs, records, strict=True)}


def run_unlearning(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """Everything behind Tables I to IV and the ablation."""
    cells = e.cells()
    return dict(zip(cells, _run(unlearn, list(cells.values()), store, "unlearning", jobs), strict=True))


def run_curves(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[tuple[str, str, str], Record]:
    """Everything behind Fig. 1."""
    curves = e.curves()
    return dict(zip(curves, _run(curve, list(curves.values()), store, "curves", jobs), strict=True))


def run_speed(e: Experiment, store: RecordStore) -> dict[tuple[str, str], Record]:
    """Everything behind Fig. 2, one run at a time: nothing else of ours may run beside a clock."""
    speeds = e.speeds()
    return dict(zip(speeds, _run(speed, list(speeds.values()), store, "timing", 1), strict=True))


def run_certificates(e: Experiment, store: RecordStore, jobs: int | None = None) -> list[Record]:
    """The budget rule on the convex data set, every seed."""
    return _run(certify, e.certificates(), store, "certificates", jobs)


def _run(
    fn: RunFunction, configs: list[dict[str, Any]], store: RecordStore, label: str, jobs: int | None
) -> list[Record]:
    return map_runs(fn, configs, store=store, jobs=jobs, label=label, data_hash=lambda c: problem(c).data_hash)


def config_place(config: Mapping[str, Any]) -> tuple[str, str, str, str, int, str]:
    """(dataset, model, split, topology, seed, request) of a training."""
    split = config["split"] + (f"-{config['alpha']:g}" if config["alpha"] else "")
    return config["dataset"], config["model"], split, config["topology"], config["seed"], config["request"]


_LOCAL = tuple(f.name for f in fields(ClientOpt))
TRAINING_KEYS = (*PROBLEM_KEYS, "l2", "topology", "edge_probability", "order", "rounds", *_LOCAL, "seed", "request")
