"""HF-KCU's experiments as runs: from the parameters of a notebook or profile to run records.

`train` makes original, retrained, poisoned and shard models; `shadow_federation` the attacker's own;
`unlearn` lets one method forget client 0 and evaluates; `speed` times methods against retraining in one
process. Everything shown (hf_kcu_figures, hf_kcu_claims) is read from their records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core import partition
from fu_core.errors import ConfigError
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.backdoor import Trigger, attack_success, poison
from fu_core.evaluation.equivalence import logit_mse, logits_kl, parameter_gap, prediction_agreement
from fu_core.evaluation.membership import Attack, fit_attack, shadow
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.streams import stream
from fu_core.unlearning.baselines.fed_eraser import UpdateHistory, fed_eraser
from fu_core.unlearning.baselines.naive_ga import naive_ga
from fu_core.unlearning.baselines.sisa import ensemble_log_probabilities, shard_clients
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step
from fu_core.unlearning.krylov import solve
from fu_papers.hf_kcu.grid import REFERENCES, TARGET, Cell, Experiment, shards_without_target
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import Record, run_function
from fu_papers.lab.store import RecordStore
from fu_papers.problems import PROBLEM_KEYS, Problem, client_opt, initial_model, problem, train_resumably

REPEATS = 5  # timings of everything but a whole training,
LONG_ENOUGH = 20.0  # seconds: unless it has been timed for so long already
RESIDUAL_CLIENTS = (1, 2)  # whose CG the paper's appendix figure shows
RESIDUAL_ITERS = 30

Outputs = Callable[[Tensor], Tensor]  # x (n, ...) -> logits (n, C)


@run_function("hf_kcu.describe")
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a setting consists of: who holds which classes, where the data comes from, how large the net is."""
    p = problem(config)
    counts = partition.label_counts(p.parts, p.dataset.y_train, p.dataset.classes)
    return {"label_counts": counts.tolist(), "source": p.dataset.source, "parameters": p.model.d}, None


# --- training --------------------------------------------------------------------------------------------------------


@run_function("hf_kcu.train")
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One training from scratch without the clients in `exclude`; keeps the final model as "w".

    `poison`: client 0 has stamped that fraction of its images with the trigger. `history`: the updates of
    every so-many-th round are kept, too, for FedEraser.
    """
    p = problem(config)
    clients = training_clients(config, p)
    history = UpdateHistory(initial_model(config, p), config["history"]) if config["history"] else None

    def scores(w: Tensor) -> dict[str, float]:
        return {"test": accuracy(p.model, w, *p.test), "forget": accuracy(p.model, w, *clients[TARGET])}

    w, meter = train_resumably(config, context, p, scores, clients=clients, history=history)
    kept = history.tensors() if history is not None else {}
    return {**context.rounds[-1], "bytes": meter.bytes, "images": meter.images}, {"w": w, **kept}


def training_clients(config: Mapping[str, Any], p: Problem) -> list[Client]:
    """Everybody's data as it is trained on: client 0's may be poisoned."""
    if not config["poison"]:
        return p.clients
    if (target := config["trigger"][1]) >= p.dataset.classes:
        raise ConfigError(f"trigger_target must be a class, 0 to {p.dataset.classes - 1}, got {target}")
    poisoned = poison(
        p.clients[TARGET], _trigger(config), fraction=config["poison"], seed=config["seed"], client_id=TARGET
    )
    return [poisoned if i == TARGET else client for i, client in enumerate(p.clients)]


def _trigger(config: Mapping[str, Any]) -> Trigger:
    size, target = config["trigger"]
    return Trigger(size=size, target=target)


def training_record(config: Mapping[str, Any], store: RecordStore, exclude: Sequence[int] = ()) -> Record:
    """The training that `config` belongs to, without `exclude`; run if need be."""
    training = {key: config[key] for key in TRAINING_KEYS} | {"exclude": list(exclude)}
    if TARGET in exclude:  # without client 0 nothing is poisoned, and nobody asks for the history
        training |= {"poison": 0.0, "trigger": [], "history": 0}
    return store.run(train, training, data_hash=problem(config).data_hash)


def model_of(config: Mapping[str, Any], store: RecordStore, exclude: Sequence[int] = ()) -> Tensor:
    """The final model (d,) of that training."""
    key = training_record(config, store, exclude).key
    return store.tensors(key, ["w"])["w"].to(device())


# --- the attacker ----------------------------------------------------------------------------------------------------


@run_function("hf_kcu.shadow_federation")
def shadow_federation(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A federation of the attacker's own, on data the target federation never sees (the held-out part).

    A random half, at most as many as the target federation trains on, is dealt out to clients and trained
    on; the other half is not. Keeps the logits and labels of both sides. `config["seed"]` numbers it.
    """
    p, seed = problem(config), config["seed"]
    x, y = p.validation
    order = torch.randperm(len(y), generator=stream(seed, "shadow split"))
    size = min(len(y) // 2, len(p.dataset.y_train))
    members, others = order[:size], order[len(y) - size :]
    parts = (
        partition.iid(size, config["clients"], seed=seed)
        if config["split"] == "iid"
        else partition.dirichlet(y[members].cpu(), config["clients"], alpha=config["alpha"], seed=seed)
    )
    clients = [(x[members[part]], y[members[part]]) for part in parts]

    def scores(w: Tensor) -> dict[str, float]:
        return {
            "members": accuracy(p.model, w, x[members], y[members]),
            "others": accuracy(p.model, w, x[others], y[others]),
        }

    w, _ = train_resumably(config, context, p, scores, clients=clients)
    kept = {"members": p.model.predict(w, x[members]), "others": p.model.predict(w, x[others])}
    return dict(context.rounds[-1]), {**kept, "members_y": y[members], "others_y": y[others]}


def attack_of(config: Mapping[str, Any], store: RecordStore) -> Attack:
    """The attack learnt from `config["attack"]` shadow federations; the same for every method and seed."""
    training = {key: config[key] for key in TRAINING_KEYS} | {"exclude": [], "poison": 0.0, "trigger": [], "history": 0}
    data_hash = problem(config).data_hash
    records = [
        store.run(shadow_federation, {**training, "seed": s}, data_hash=data_hash) for s in range(config["attack"])
    ]
    return _fitted(str(store.root), tuple(record.key for record in records))


@lru_cache(maxsize=2)
def _fitted(root: str, keys: tuple[str, ...]) -> Attack:
    store = RecordStore(Path(root))
    kept = [store.tensors(key) for key in keys]
    members = [(t["members"], t["members_y"]) for t in kept]
    others = [(t["others"], t["others_y"]) for t in kept]
    return fit_attack(members, others, seed=0)


# --- unlearning ------------------------------------------------------------------------------------------------------


@run_function("hf_kcu.unlearn")
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method forgets client 0; utility, forgetting, equivalence to Retrain, attack, and what it cost."""
    p = problem(config)
    clients = training_clients(config, p)
    original, retrained = (model_of(config, context.store, exclude) for exclude in ((), (TARGET,)))
    meter = Meter()
    outputs, w, extra = apply_method(config, p, clients, original, retrained, meter, context)
    seen = Seen.by(outputs, p, clients)
    metrics = evaluate(p, seen, p.model.predict(retrained, p.test[0]))
    if w is not None:
        metrics |= {"gap": parameter_gap(w, retrained), "step": parameter_gap(w, original)}
    if config["poison"]:
        for name, included in (("asr", False), ("asr_included", True)):
            success = attack_success(outputs, *p.test, _trigger(config), include_target_class=included)
            metrics[name] = success
    if config["attack"]:
        metrics |= attacked(attack_of(config, context.store), p, seen)
    costs = {"images": meter.images, "products": meter.products, "bytes": meter.bytes, "passes": meter.gradient_passes}
    return {**metrics, **extra, **costs}, None


def apply_method(
    config: Mapping[str, Any],
    p: Problem,
    clients: list[Client],
    original: Tensor,
    retrained: Tensor,
    meter: Meter,
    context: RunContext,
) -> tuple[Outputs, Tensor | None, dict[str, Any]]:
    """The unlearned model as a function of inputs, as a vector if it is one, and what the method reports."""
    method, seed, store = config["method"], config["seed"], context.store
    extra: dict[str, Any] = {}
    if method == "SISA":
        models, spent = _sisa(config, p, store)
        meter.images, meter.bytes_up = spent["images"], spent["bytes"]
        return lambda x: ensemble_log_probabilities(p.model, models, x), None, extra
    if method in REFERENCES:
        w = original if method == "Original" else retrained
    elif method == "NaiveGA":
        local = client_opt(config)
        with context.phase("unlearn"):
            w = naive_ga(
                p.model,
                original,
                clients[TARGET],
                epochs=config["ga_epochs"],
                lr=local.lr,
                batch_size=local.batch_size,
                seed=seed,
                until_explosion=True,
                meter=meter,
            )
    elif method == "FedEraser":
        history = _history(config, p, store)
        with context.phase("unlearn"):
            w = _replayed(config, p, history, meter)
    else:
        with context.phase("unlearn"):
            step = hf_kcu_step(p.model, original, clients, TARGET, HFKCU(**config["hf_kcu"]), seed=seed, meter=meter)
        w = original + step.step
        extra = {
            "residual": step.relative_residual,
            "negative": step.negative_steps,
            "cg_steps": sum(len(s.curvatures) for s in step.solutions),
            "scale": min(step.scale),
        }
    return lambda x: p.model.predict(w, x), w, extra


class Seen(NamedTuple):
    """A model's logits on test images, on client 0's clean images, and on everything the others hold."""

    test: Tensor
    forget: Tensor
    retain: Tensor
    retain_y: Tensor

    @classmethod
    def by(cls, outputs: Outputs, p: Problem, clients: Sequence[Client]) -> Seen:
        """Run the model once over all. Where an exploded net has no finite output, it counts as zero."""
        kept = [client for i, client in enumerate(clients) if i != TARGET]
        x_kept, y_kept = torch.cat([x for x, _ in kept]), torch.cat([y for _, y in kept])
        test, forget, retain = (outputs(x).nan_to_num() for x in (p.test[0], p.clients[TARGET][0], x_kept))
        return cls(test, forget, retain, y_kept)


def evaluate(p: Problem, seen: Seen, retrained: Tensor) -> dict[str, float]:
    """Accuracy on test, forgotten and retained data, and how near the outputs on test data are to `retrained`."""
    return {
        "n_test": len(p.test[1]),
        "test": outputs_accuracy(p.model.task, seen.test, p.test[1]),
        "forget": outputs_accuracy(p.model.task, seen.forget, p.clients[TARGET][1]),
        "retain": outputs_accuracy(p.model.task, seen.retain, seen.retain_y),
        "kl": logits_kl(seen.test, retrained),
        "logit_mse": logit_mse(seen.test, retrained),
        "logit_mse_centred": logit_mse(seen.test, retrained, centred=True),
        "agreement": 100 * prediction_agreement(seen.test, retrained),
    }


def attacked(attack: Attack, p: Problem, seen: Seen) -> dict[str, float]:
    """The shadow attack on client 0's data, against test images that neither side has trained on."""
    found = shadow(attack, (seen.forget, p.clients[TARGET][1]), (seen.test, p.test[1]))
    return {"mia": found.balanced_accuracy, "mia_fraction": found.fraction, "mia_auc": found.auc}


def _sisa(config: Mapping[str, Any], p: Problem, store: RecordStore) -> tuple[list[Tensor], dict[str, int]]:
    """The shards' models, that of client 0 trained without it, and what that one training cost.

    By construction the very ensemble that `sisa_unlearn` returns: shards share no data and no random stream.
    """
    models, spent = [], {"images": 0, "bytes": 0}
    with_target = next(g for g in _groups(config) if TARGET in g)
    for staying in shards_without_target(config["clients"], config["shards"], config["seed"]):
        training = {key: config[key] for key in TRAINING_KEYS}
        training |= {"exclude": [i for i in range(config["clients"]) if i not in staying], "history": 0}
        record = store.run(train, training, data_hash=p.data_hash)
        models.append(store.tensors(record.key, ["w"])["w"].to(device()))
        if set(staying) < set(with_target):
            spent = {name: record.metrics[name] for name in spent}
    return models, spent


def _groups(config: Mapping[str, Any]) -> list[list[int]]:
    return shard_clients(config["clients"], config["shards"], seed=config["seed"])


def _history(config: Mapping[str, Any], p: Problem, store: RecordStore) -> UpdateHistory:
    """What FedEraser's server has stored while the original model was trained."""
    history = UpdateHistory(initial_model(config, p), config["history"])
    history.restore(store.tensors(training_record(config, store).key))
    return history


def _replayed(config: Mapping[str, Any], p: Problem, history: UpdateHistory, meter: Meter) -> Tensor:
    """FedEraser as in its own paper: half of the local training, length per tensor."""
    return fed_eraser(
        p.model,
        history,
        p.clients,
        [TARGET],
        local=client_opt(config),
        seed=config["seed"],
        calibration=config["calibration"],
        norm_scope="layer",
        meter=meter,
    )


# --- noise floor, residuals, speed -----------------------------------------------------------------------------------


@run_function("hf_kcu.noise_floor")
def noise_floor(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Two retrainings that differ in nothing but the seed, `config["pair"]`: how far apart are they?"""
    p = problem(config)
    first, second = (model_of({**config, "seed": seed}, context.store, [TARGET]) for seed in config["pair"])
    a, b = (p.model.predict(w, p.test[0]) for w in (first, second))
    return {
        "kl": (logits_kl(a, b) + logits_kl(b, a)) / 2,
        "logit_mse": logit_mse(a, b),
        "logit_mse_centred": logit_mse(a, b, centred=True),
        "agreement": 100 * prediction_agreement(a, b),
        "gap": parameter_gap(first, second),
        "test": abs(outputs_accuracy(p.model.task, a, p.test[1]) - outputs_accuracy(p.model.task, b, p.test[1])),
    }, None


@run_function("hf_kcu.residuals")
def residuals(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """CG on a trained net's own damped Hessians, those of clients 1 and 2: relative residual per step."""
    p = problem(config)
    w = model_of(config, context.store)
    curves = {}
    for matrix in ("hessian", "ggn"):
        for i in RESIDUAL_CLIENTS:
            product = curvature_product(p.model, w, [(1.0, p.clients[i])], matrix=matrix)
            g = p.model.grad(w, *p.clients[i])
            found = solve(product, g, iters=RESIDUAL_ITERS, damping=config["damping"], tol=0.0, negative="continue")
            norms = [norm / found.residual_norms[0] for norm in found.residual_norms]
            curves[f"{matrix}/{i}"] = {"residuals": norms, "negative": found.negative_steps}
    return {"curves": curves}, None


@run_function("hf_kcu.speed")
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds of retraining and of every method, one after the other in this process.

    `timed_rounds` rounds of retraining are run and timed; where these are fewer than `schedule_rounds` of
    `schedule_epochs` epochs, "retrain" is projected from them. Methods: each variant of `config["variants"]`
    (fields of HFKCU by name) and the baselines in `config["baselines"]`, median of a few runs.
    """
    p, seed, local = problem(config), config["seed"], client_opt(config)
    clients = p.clients
    w = model_of(config, context.store)
    laps: list[float] = []
    clock = perf_counter()

    def after_round(*_: object) -> None:
        nonlocal clock
        now = perf_counter()
        laps.append(now - clock)
        context.log(round=len(laps), seconds=laps[-1])
        clock = perf_counter()

    fedavg(
        p.model,
        initial_model(config, p),
        clients,
        rounds=config["timed_rounds"],
        local=local,
        seed=seed,
        exclude=[TARGET],
        after_round=after_round,
    )
    per_round = sum(laps) / len(laps) * config["schedule_epochs"] / local.epochs
    seconds: dict[str, Any] = {"retrain": per_round * config["schedule_rounds"]}
    meters = {name: Meter() for name in config["variants"]}
    taken: dict[str, list[float]] = {name: [] for name in meters}
    for _ in range(REPEATS):  # all in turn, so that a busy moment of the machine does not hit one alone
        for name, variant in config["variants"].items():
            if sum(taken[name]) < LONG_ENOUGH:
                start = perf_counter()
                hf_kcu_step(p.model, w, clients, TARGET, HFKCU(**variant), seed=seed, meter=meters[name])
                taken[name].append(perf_counter() - start)
    seconds |= {name: median(laps) for name, laps in taken.items()}
    passes = {name: meter.gradient_passes / len(taken[name]) for name, meter in meters.items()}
    history = _history(config, p, context.store) if "FedEraser" in config["baselines"] else UpdateHistory(w)
    baselines: dict[str, Callable[[Meter], object]] = {
        "NaiveGA": lambda meter: naive_ga(
            p.model,
            w,
            clients[TARGET],
            epochs=config["ga_epochs"],
            lr=local.lr,
            batch_size=local.batch_size,
            seed=seed,
            until_explosion=True,
            meter=meter,
        ),
        "FedEraser": lambda meter: _replayed(config, p, history, meter),
        "SISA": lambda meter: _retrain_shard(config, p, meter),
    }
    for name in config["baselines"]:
        meter = Meter()
        start = perf_counter()
        baselines[name](meter)
        seconds[name], passes[name] = perf_counter() - start, meter.gradient_passes
    n_retained = sum(len(y) for i, (_, y) in enumerate(clients) if i != TARGET)
    passes["retrain"] = config["schedule_rounds"] * config["schedule_epochs"] * n_retained
    return {"seconds": seconds, "passes": passes, "timed_rounds": config["timed_rounds"]}, None


def _retrain_shard(config: Mapping[str, Any], p: Problem, meter: Meter) -> Tensor:
    """What SISA does when client 0 leaves: train its shard again."""
    group = next(group for group in _groups(config) if TARGET in group)
    staying = [i for i in group if i != TARGET]
    return fedavg(
        p.model,
        initial_model(config, p),
        p.clients,
        rounds=config["schedule_rounds"],
        local=client_opt(config),
        seed=config["seed"],
        exclude=[i for i in range(config["clients"]) if i not in staying],
        meter=meter,
    )


TRAINING_KEYS = tuple(Experiment("", ["digits/iid/mlp"], [], [0], [0]).training("digits/iid/mlp", 0))


# --- everything ------------------------------------------------------------------------------------------------------


def run_descriptions(e: Experiment, store: RecordStore) -> dict[str, Record]:
    """The description of every setting and net, by its text."""
    configs = {s: e.training(s, 0) for s in e.settings} | {s: e.for_nets().training(s, 0) for s in e.nets}
    chosen = [{key: config[key] for key in PROBLEM_KEYS} for config in configs.values()]
    return dict(zip(configs, _map(describe, chosen, store, 1, "settings"), strict=True))


def run_training(e: Experiment, store: RecordStore, jobs: int | None = None) -> list[Record]:
    """All trainings that the tables need, the longest part of a reproduction."""
    return _map(train, e.trainings(), store, jobs, "training")


def run_shadows(e: Experiment, store: RecordStore, jobs: int | None = None) -> list[Record]:
    """The attacker's federations for the main setting."""
    training = e.training(e.main, 0) | {"history": 0}
    return _map(shadow_federation, [{**training, "seed": s} for s in range(e.shadows)], store, jobs, "shadow models")


def run_unlearning(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """Every method, variant and sweep, evaluated."""
    cells = e.cells()
    return dict(zip(cells, _map(unlearn, list(cells.values()), store, jobs, "unlearning"), strict=True))


def run_noise_floor(e: Experiment, store: RecordStore, jobs: int | None = None) -> list[Record]:
    """Every pair of retrainings of the main setting."""
    training = e.training(e.main, 0)
    configs = [{**training, "pair": list(pair)} for pair in itertools.combinations(e.seeds, 2)]
    return _map(noise_floor, configs, store, jobs, "noise floor")


def run_residuals(e: Experiment, store: RecordStore, jobs: int | None = None) -> list[Record]:
    """CG curves on the trained nets of the main setting, one record per seed."""
    configs = [{**e.training(e.main, seed), "damping": float(e.damping)} for seed in e.sweep_seeds]
    return _map(residuals, configs, store, jobs, "CG residuals")


def run_speed(e: Experiment, store: RecordStore) -> dict[str, Record]:
    """All timings, one process at a time, so that they do not disturb each other."""
    configs = e.speeds()
    return dict(zip(configs, _map(speed, list(configs.values()), store, 1, "timing"), strict=True))


def _map(fn: Any, configs: list[dict[str, Any]], store: RecordStore, jobs: int | None, label: str) -> list[Record]:
    return map_runs(fn, configs, store=store, jobs=jobs, label=label, data_hash=lambda c: problem(c).data_hash)
