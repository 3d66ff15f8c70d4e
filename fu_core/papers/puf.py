"""PUF's experiments as runs: from the parameters of a notebook or profile to run records.

Two kinds of runs matter. `train` is the original training, or with `exclude` a retraining. `unlearn`
starts from the original model, lets one method forget one target, and recovers. Everything shown in
tables and figures (puf_figures, puf_claims) is read from their records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from fu_core import partition
from fu_core.compute import device, map_runs
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.equivalence import logits_kl, parameter_gap, relative_step_difference
from fu_core.evaluation.membership import confidences, song, yeom
from fu_core.federation.horizontal import recovery_path
from fu_core.federation.meter import Meter
from fu_core.papers.problems import PROBLEM_KEYS, Problem, client_opt, problem, train_resumably
from fu_core.papers.puf_experiment import METHODS, REFERENCES, TRAINING_KEYS, Experiment
from fu_core.records import Record, RecordStore, RunContext
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.weight_negation import negate_weights
from fu_core.unlearning.puf import PUF, puf_round

STOP_RULES = ("validation", "test")  # ours, and the paper's, which looks at the test set


def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a setting consists of: who holds which classes, where the data comes from, how large the net is."""
    p = problem(config)
    counts = partition.label_counts(p.parts, p.dataset.y_train, p.dataset.classes)
    return {"label_counts": counts.tolist(), "source": p.dataset.source, "parameters": p.model.d}, None


def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One training from scratch without the clients in `exclude`; keeps the final model as "w".

    Resumes after the last finished round. Original and Retrain of one seed start from the same weights.
    """
    p = problem(config)

    def scores(w: Tensor) -> dict[str, float]:
        return {"test": accuracy(p.model, w, *p.test), "validation": accuracy(p.model, w, *p.validation)}

    w, meter = train_resumably(config, context, p, scores)
    last = context.rounds[-1]
    counted = {"bytes": meter.bytes, "images": meter.images}
    return {"test": last["test"], "validation": last["validation"], **counted}, {"w": w}


def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method forgets one target; then recovery until both stop rules are met or `cap` rounds are over.

    Metrics: "unlearned" (right after the unlearning step) and, per stop rule, the state in which recovery
    stopped: rounds, reached, test and forget accuracy, both attacks, distances to the retrained model,
    and the costs counted up to there. "Original" and "Retrain" are evaluated as they are.
    """
    p, target, method = problem(config), config["target"], config["method"]
    original, retrained = reference_models(config, context.store)
    if method in REFERENCES:
        w = original if method == "Original" else retrained
        return {"final": evaluate(p, w, target, config["seed"], retrained)}, None

    reference = {rule: accuracy(p.model, retrained, *getattr(p, rule)) for rule in STOP_RULES}
    if (saved := context.resume()) is None:
        with context.phase("unlearn"):
            state = _Recovering.begin(config, p, original)
    else:
        state = _Recovering(saved[0]["w"].to(device()), **{**saved[1], "recovery": Meter(**saved[1]["recovery"])})
    with context.phase("recover"):
        for k, w_k in state.path(config, p):
            if k == len(context.rounds):  # else it was evaluated before the interruption
                scores = {rule: accuracy(p.model, w_k, *getattr(p, rule)) for rule in STOP_RULES}
                context.log(round=k, **scores, forget=accuracy(p.model, w_k, *p.clients[target]))
                for rule in STOP_RULES:
                    reached = scores[rule] >= reference[rule]
                    if rule not in state.metrics and (reached or k == config["cap"]):
                        final = evaluate(p, w_k, target, config["seed"], retrained)
                        state.metrics[rule] = {"rounds": k, "reached": reached, **final, **state.costs()}
                context.checkpoint({"w": w_k}, state.meta(k))
            if all(rule in state.metrics for rule in STOP_RULES):
                break
    return state.metrics, None


@dataclass
class _Recovering:
    """What an interrupted recovery needs in order to go on: the model, its round, and what was found so far."""

    w: Tensor
    round: int
    metrics: dict[str, Any]
    spent: dict[str, int]  # by the unlearning step: bytes, images, storage, rounds
    recovery: Meter

    @classmethod
    def begin(cls, config: Mapping[str, Any], p: Problem, original: Tensor) -> _Recovering:
        """Apply the method to the original model."""
        meter = Meter()
        w = apply_method(config, p, original, meter)
        unlearned = {
            "test": accuracy(p.model, w, *p.test),
            "forget": accuracy(p.model, w, *p.clients[config["target"]]),
            "step": parameter_gap(w, original),
            "sha256": hashlib.sha256(w.cpu().numpy().tobytes()).hexdigest(),
        }
        spent = {name: getattr(meter, name) for name in ("bytes", "images", "storage", "rounds")}
        return cls(w, 0, {"unlearned": unlearned}, spent, Meter())

    def path(self, config: Mapping[str, Any], p: Problem) -> Iterator[tuple[int, Tensor]]:
        """The recovery rounds still to come, the present state first. They continue the training's count."""
        return recovery_path(
            p.model,
            self.w,
            p.clients,
            local=client_opt(config),
            seed=config["seed"],
            first_round=config["rounds"] + 1 + self.spent["rounds"],
            exclude=[config["target"]],
            cap=config["cap"],
            start=self.round,
            meter=self.recovery,
        )

    def costs(self) -> dict[str, int]:
        """Counted so far, both phases together; storage is what the method must keep."""
        return {
            "bytes": self.spent["bytes"] + self.recovery.bytes,
            "images": self.spent["images"] + self.recovery.images,
            "storage": self.spent["storage"],
        }

    def meta(self, k: int) -> dict[str, Any]:
        """For the checkpoint after round k."""
        return {"round": k, "metrics": self.metrics, "spent": self.spent, "recovery": asdict(self.recovery)}


def mode_equivalence(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim P14 on the trained net: Regular(eta_r, eta_u) against Special((eta_r + eta_u) p_u), same updates."""
    p, target = problem(config), config["target"]
    original, _ = reference_models(config, context.store)
    sizes = [len(y) for _, y in p.clients]
    p_u = sizes[target] / sum(sizes)
    regular = PUF(**config["puf"])
    special = PUF("special", eta_u=(regular.eta_r + regular.eta_u) * p_u, epochs_u=regular.epochs_u)
    w_regular, w_special = (_puf(config, p, original, mode) for mode in (regular, special))
    return {"relative_difference": relative_step_difference(original, w_special, w_regular), "p_u": p_u}, None


def apply_method(config: Mapping[str, Any], p: Problem, w: Tensor, meter: Meter) -> Tensor:
    """The unlearning step alone: the original model `w` (d,) to the unlearned one."""
    method = config["method"]
    if method == "Natural":
        return natural(w, meter=meter)
    if method == "NoT":
        return negate_weights(p.model, w, example=p.dataset.x_test[:1], meter=meter)
    return _puf(config, p, w, PUF(**config["puf"]), meter)


def _puf(config: Mapping[str, Any], p: Problem, w: Tensor, puf: PUF, meter: Meter | None = None) -> Tensor:
    t = config["rounds"] + 1  # the unlearning round continues the count, and so the learning-rate schedule
    kwargs = {"local": client_opt(config), "seed": config["seed"], "round": t, "meter": meter}
    return puf_round(p.model, w, p.clients, [config["target"]], puf, **kwargs)


def reference_models(config: Mapping[str, Any], store: RecordStore) -> tuple[Tensor, Tensor]:
    """The original model and the one retrained without the config's target, from their records."""
    training = {key: config[key] for key in TRAINING_KEYS}
    data_hash = problem(config).data_hash
    models = []
    for exclude in ([], [config["target"]]):
        record = store.run(train, {**training, "exclude": exclude}, data_hash=data_hash)
        models.append(store.tensors(record.key)["w"].to(device()))
    return models[0], models[1]


def evaluate(p: Problem, w: Tensor, target: int, seed: int, retrained: Tensor) -> dict[str, float]:
    """Utility, forgetting, both attacks, and the distance to the retrained model."""
    sides = {"forget": p.clients[target], "retain": p.retained(target), "test": p.test}
    logits = {side: p.model.predict(w, x) for side, (x, _) in sides.items()}
    conf = {side: confidences(logits[side], y) for side, (_, y) in sides.items()}
    losses = {side: p.model.sample_losses(logits[side], sides[side][1]) for side in ("forget", "retain")}
    return {
        "test": outputs_accuracy(p.model.task, logits["test"], sides["test"][1]),
        "forget": outputs_accuracy(p.model.task, logits["forget"], sides["forget"][1]),
        "song": song(conf["forget"], conf["retain"], conf["test"], seed=seed),
        "yeom": yeom(losses["forget"], losses["retain"]),
        "kl": logits_kl(logits["test"], p.model.predict(retrained, p.test[0])),
        "gap": parameter_gap(w, retrained),
    }


# --- everything ------------------------------------------------------------------------------------------------------


def run_descriptions(e: Experiment, store: RecordStore) -> dict[str, Record]:
    """The description of every setting, by its text."""
    configs = [{key: e.training(s, 0)[key] for key in PROBLEM_KEYS} for s in e.settings]
    return dict(zip(e.settings, _map(describe, configs, store, 1, "settings"), strict=True))


def run_training(
    e: Experiment, store: RecordStore, jobs: int | None = None
) -> dict[tuple[str, int, int | None], Record]:
    """All trainings, by (setting, seed, left-out client); None is the original model."""
    keys: list[tuple[str, int, int | None]] = [
        (s, seed, left_out) for s in e.settings for seed in e.seeds for left_out in (None, *e.targets)
    ]
    configs = [e.training(s, seed, [] if out is None else [out]) for s, seed, out in keys]
    return dict(zip(keys, _map(train, configs, store, jobs, "training"), strict=True))


def run_unlearning(
    e: Experiment, store: RecordStore, jobs: int | None = None, methods: Sequence[str] = (*REFERENCES, *METHODS)
) -> dict[tuple[str, int, int, str], Record]:
    """Every method on every (setting, seed, target). Missing trainings are made on the way."""
    keys = [(*cell, method) for cell in e.cells() for method in methods]
    configs = [e.unlearning(*key) for key in keys]
    return dict(zip(keys, _map(unlearn, configs, store, jobs, "unlearning and recovery"), strict=True))


def run_printed(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[tuple[str, int, int, str], Record]:
    """PUF-Special and Regular as Algorithm 1 prints them, without sample counts, on the first setting."""
    keys = [(*cell, m) for cell in e.cells() if cell[0] == e.settings[0] for m in ("PUF-Special", "PUF-Regular")]
    configs = [e.unlearning(*key, form="printed") for key in keys]
    return dict(zip(keys, _map(unlearn, configs, store, jobs, "formula as printed"), strict=True))


def run_equivalence(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[tuple[str, int, int], Record]:
    """Claim P14, measured after training, on every cell. The updates cancel only if all train E epochs: E_u = E."""
    keys = list(e.cells())
    configs = [e.unlearning(*key, "PUF-Regular", epochs_u=e.epochs) for key in keys]
    return dict(zip(keys, _map(mode_equivalence, configs, store, jobs, "Regular against Special"), strict=True))


def _map(fn: Any, configs: list[dict[str, Any]], store: RecordStore, jobs: int | None, label: str) -> list[Record]:
    return map_runs(fn, configs, store=store, jobs=jobs, label=label, data_hash=lambda c: problem(c).data_hash)


def live_recovery(
    e: Experiment, store: RecordStore, setting: str, seed: int, target: int, mode: str, eta_u: float, rounds: int = 8
) -> list[dict[str, float]]:
    """PUF and `rounds` recovery rounds right now, without a record: for the notebook's sliders."""
    config = e.unlearning(setting, seed, target, f"PUF-{mode.capitalize()}", eta_u=eta_u)
    p = problem(config)
    original, _ = reference_models(config, store)
    w = _puf(config, p, original, PUF(**config["puf"]))
    path = recovery_path(
        p.model,
        w,
        p.clients,
        local=client_opt(config),
        seed=seed,
        first_round=e.rounds + 2,
        exclude=[target],
        cap=rounds,
    )
    return [
        {"round": k, "test": accuracy(p.model, v, *p.test), "forget": accuracy(p.model, v, *p.clients[target])}
        for k, v in path
    ]
