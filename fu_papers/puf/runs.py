"""PUF's experiments as runs: from the parameters of a notebook or profile to run records.

Two kinds of runs matter. `train` is the original training, or the retraining that a request asks for.
`unlearn` starts from the original model, lets one method serve one request, and recovers. Everything
shown in tables and figures (puf_figures, puf_claims) is read from their records.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fu_core import partition
from fu_core.data.datasets import data_dir
from fu_core.errors import MissingHistory, NumericalFailure, UnsupportedTask, check_choice
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.costs import measured_flops
from fu_core.evaluation.equivalence import logits_kl, parameter_gap, relative_step_difference
from fu_core.evaluation.membership import confidences, song, yeom
from fu_core.federation.horizontal import aggregate, recovery_path, sizes_of
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.models.mit import load_pretrained
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines.fed_au import FedAU, fed_au
from fu_core.unlearning.baselines.fed_eraser import UpdateHistory, fed_eraser
from fu_core.unlearning.baselines.mode import MoDe, mode
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.pga import PGA, pga
from fu_core.unlearning.baselines.weight_negation import negate_weights
from fu_core.unlearning.deletion import Deletion
from fu_core.unlearning.puf import PUF, puf_round
from fu_papers.lab.context import RunContext
from fu_papers.lab.pool import device, map_runs
from fu_papers.lab.record import Record, run_function
from fu_papers.lab.store import RecordStore
from fu_papers.problems import PROBLEM_KEYS, Problem, client_opt, initial_model, problem, train_resumably
from fu_papers.puf.costs import cost_cells
from fu_papers.puf.grid import REFERENCES, TRAINING_KEYS, Cell, Experiment

STOP_RULES = ("validation", "test")  # ours, and the paper's, which looks at the test set


class Sides:
    """A request resolved: what is forgotten, what everybody keeps, and who leaves.

    request: "none", "client-0", "client-0-1" (both leave) or "sample-0-0.5" (client 0 forgets half of its
    samples; which half does not depend on the training seed).
    """

    def __init__(self, p: Problem, request: str) -> None:
        kind, *values = request.split("-", 2) if request.startswith("sample") else request.split("-")
        check_choice("request", kind, ("none", "client", "sample"))
        self.targets = [int(v) for v in (values if kind == "client" else values[:1])]
        self.deletion = None
        kept = dict(enumerate(p.clients))
        if kind == "client":
            self.deletion = Deletion.of(p.clients, self.targets)
        elif kind == "sample":
            wanted = partition.forget_samples(p.parts, self.targets, fraction=float(values[1]), seed=0)
            self.deletion = Deletion.of(p.clients, partition.positions(p.parts, wanted.forget))
        if self.deletion is not None:
            kept = dict(self.deletion.kept)
        self.leaving = [i for i in self.targets if i not in kept]
        self.clients = [kept.get(i, client) for i, client in enumerate(p.clients)]  # who leaves trains no more
        self.of_samples = self.deletion.forgotten if self.deletion is not None and not self.leaving else None

    @property
    def forget(self) -> Client:
        """All samples to be forgotten."""
        assert self.deletion is not None
        return _joined(self.deletion.forgotten)

    @property
    def retain(self) -> Client:
        """All samples that stay, in client order."""
        assert self.deletion is not None
        return _joined(self.deletion.kept)


def _joined(parts: Mapping[int, Client]) -> Client:
    x, y = zip(*(parts[i] for i in sorted(parts)), strict=True)
    return torch.cat(x), torch.cat(y)


@run_function("puf.describe")
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a setting consists of: who holds what, where the data comes from, how large and how costly the net is."""
    p = problem(config)
    if p.dataset.task == "segmentation":
        counts = [[len(part)] for part in p.parts]  # slices: a hospital holds no classes
    else:
        counts = partition.label_counts(p.parts, p.dataset.y_train, p.dataset.classes).tolist()
    flops = measured_flops(p.model, p.dataset.x_train[:1])
    return {"label_counts": counts, "source": p.dataset.source, "parameters": p.model.d, "flops": flops}, None


# --- training --------------------------------------------------------------------------------------------------------


class Memory:
    """What must be kept during training for some method: every `interval`-th round's updates on FedEraser's
    server, and of PGA's clients the last update each."""

    def __init__(self, w_0: Tensor, interval: int, last_round: int) -> None:
        self.history = UpdateHistory(w_0, interval) if interval else None
        self.last_round = last_round
        self.last: dict[int, Tensor] = {}

    def record(self, round: int, ids: Sequence[int], deltas: Tensor) -> None:
        """See `fedavg`'s `on_updates`."""
        if self.history is not None:
            self.history.record(round, ids, deltas)
        if round == self.last_round:
            self.last = {k: delta.detach().clone() for k, delta in zip(ids, deltas, strict=True)}

    def tensors(self) -> dict[str, Tensor]:
        """Everything kept, by name, for a file."""
        last = {f"last/{k}": update for k, update in self.last.items()}
        return {**last, **(self.history.tensors() if self.history is not None else {})}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        if self.history is not None:
            self.history.restore(tensors)
        names = [name for name in tensors if name.startswith("last/")]
        self.last = {int(name.removeprefix("last/")): tensors[name].to(device()) for name in names}

    def local_model(self, w: Tensor, sizes: Tensor, client: int) -> Tensor:
        """The client's own model (d,) of the last round, before `w` (d,) was averaged from all of them."""
        deltas = torch.stack([self.last[k] for k in sorted(self.last)])
        before = w - aggregate(deltas, sizes / sizes.sum())  # w_{T-1} = w_T - sum_k n_k / n Delta_k
        return before + self.last[client]


@run_function("puf.train")
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One training from scratch on what the config's request leaves; keeps the final model as "w".

    The original training (request "none") also keeps what FedEraser and PGA need. Resumes after the last
    finished round. Trainings of one seed start from the same weights.
    """
    p = problem(config)
    sides = Sides(p, config["request"])
    memory = Memory(_initial(config, p), config["history"], config["rounds"]) if config["request"] == "none" else None

    def scores(w: Tensor) -> dict[str, float]:
        return {"test": accuracy(p.model, w, *p.test), "validation": accuracy(p.model, w, *p.validation)}

    w, meter = train_resumably(
        {**config, "exclude": sides.leaving},
        context,
        p,
        scores,
        clients=sides.clients,
        history=memory,
        w_0=_initial(config, p),
    )
    last = context.rounds[-1]
    counted = {"bytes": meter.bytes, "images": meter.images}
    kept = memory.tensors() if memory is not None else {}
    return {"test": last["test"], "validation": last["validation"], **counted}, {"w": w, **kept}


def _initial(config: Mapping[str, Any], p: Problem) -> Tensor:
    """Where training starts: the net's own initialisation, or pre-trained weights with a new head."""
    if not config["weights"]:
        return initial_model(config, p)
    seed = stream_seed(config["seed"], "init")  # of the new head
    return load_pretrained(p.model, data_dir() / config["weights"], seed).to(device())


def training_record(config: Mapping[str, Any], store: RecordStore, request: str) -> Record:
    """The training that an `unlearn` config belongs to, on what `request` leaves; run if need be."""
    training = {key: config[key] for key in TRAINING_KEYS} | {"request": request}
    if request != "none":
        training["history"] = 0
    return store.run(train, training, data_hash=problem(config).data_hash)


def reference_models(config: Mapping[str, Any], store: RecordStore) -> tuple[Tensor, Tensor]:
    """The original model (d,) and the retrained one (d,) of the config's request, from their records."""
    original, retrained = (training_record(config, store, request) for request in ("none", config["request"]))
    return store.tensors(original.key, ["w"])["w"].to(device()), store.tensors(retrained.key, ["w"])["w"].to(device())


# --- unlearning and recovery -----------------------------------------------------------------------------------------


@run_function("puf.unlearn")
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; then recovery until both stop rules are met or `cap` rounds are over.

    Metrics: "unlearned" (right after the unlearning step) and, per stop rule, the state in which recovery
    stopped: rounds, reached, test and forget accuracy, both attacks, distances to the retrained model,
    and the costs counted up to there. "Original" and "Retrain" are evaluated as they are. A method that
    cannot serve such a request, or not on such a task, leaves its own reason as "unsupported"; one after which
    training leaves the numbers, as too large a step does, leaves "diverged".
    """
    try:
        return _unlearn(config, context), None
    except UnsupportedTask as reason:
        return {"unsupported": str(reason)}, None
    except NumericalFailure as reason:
        return {"diverged": str(reason)}, None


def _unlearn(config: Mapping[str, Any], context: RunContext) -> dict[str, Any]:
    p, method = problem(config), config["method"]
    sides = Sides(p, config["request"])
    original, retrained = reference_models(config, context.store)
    if method in REFERENCES:
        w = original if method == "Original" else retrained
        return {"final": evaluate(p, w, sides, config["seed"], retrained)}

    reference = {rule: accuracy(p.model, retrained, *getattr(p, rule)) for rule in STOP_RULES}
    if (saved := context.resume()) is None:
        with context.phase("unlearn"):
            state = _Recovering.begin(config, p, sides, original, context.store)
    else:
        state = _Recovering(saved[0]["w"].to(device()), **{**saved[1], "recovery": Meter(**saved[1]["recovery"])})
    with context.phase("recover"):
        for k, w_k in state.path(config, p, sides):
            if k == len(context.rounds):  # else it was evaluated before the interruption
                scores = {rule: accuracy(p.model, w_k, *getattr(p, rule)) for rule in STOP_RULES}
                context.log(round=k, **scores, forget=accuracy(p.model, w_k, *sides.forget))
                for rule in STOP_RULES:
                    reached = scores[rule] >= reference[rule]
                    if rule not in state.metrics and (reached or k == config["cap"]):
                        final = evaluate(p, w_k, sides, config["seed"], retrained)
                        state.metrics[rule] = {"rounds": k, "reached": reached, **final, **state.costs()}
                context.checkpoint({"w": w_k}, state.meta(k))
            if all(rule in state.metrics for rule in STOP_RULES):
                break
    return state.metrics


@dataclass
class _Recovering:
    """What an interrupted recovery needs in order to go on: the model, its round, and what was found so far."""

    w: Tensor
    round: int
    metrics: dict[str, Any]
    spent: dict[str, int]  # by the unlearning step: bytes, images, storage, rounds
    recovery: Meter

    @classmethod
    def begin(
        cls, config: Mapping[str, Any], p: Problem, sides: Sides, original: Tensor, store: RecordStore
    ) -> _Recovering:
        """Apply the method to the original model."""
        meter = Meter()
        w = apply_method(config, p, sides, original, store, meter)
        unlearned = {
            "test": accuracy(p.model, w, *p.test),
            "forget": accuracy(p.model, w, *sides.forget),
            "step": parameter_gap(w, original),
            "sha256": hashlib.sha256(w.cpu().numpy().tobytes()).hexdigest(),
        }
        spent = {name: getattr(meter, name) for name in ("bytes", "images", "storage", "rounds")}
        return cls(w, 0, {"unlearned": unlearned}, spent, Meter())

    def path(self, config: Mapping[str, Any], p: Problem, sides: Sides) -> Iterator[tuple[int, Tensor]]:
        """The recovery rounds still to come, the present state first. They continue the training's count."""
        return recovery_path(
            p.model,
            self.w,
            sides.clients,
            local=client_opt(config),
            seed=config["seed"],
            first_round=config["rounds"] + 1 + self.spent["rounds"],
            exclude=sides.leaving,
            cap=config["cap"],
            start=self.round,
            meter=self.recovery,
        )

    def costs(self) -> dict[str, int]:
        """Counted so far: both phases together, the unlearning step alone, and what the method must keep."""
        return {
            "bytes": self.spent["bytes"] + self.recovery.bytes,
            "images": self.spent["images"] + self.recovery.images,
            "unlearning_bytes": self.spent["bytes"],
            "unlearning_images": self.spent["images"],
            "unlearning_rounds": self.spent["rounds"],
            "storage": self.spent["storage"],
        }

    def meta(self, k: int) -> dict[str, Any]:
        """For the checkpoint after round k."""
        return {"round": k, "metrics": self.metrics, "spent": self.spent, "recovery": asdict(self.recovery)}


def apply_method(
    config: Mapping[str, Any], p: Problem, sides: Sides, w: Tensor, store: RecordStore, meter: Meter | None = None
) -> Tensor:
    """The unlearning step alone: the original model `w` (d,) to the unlearned one."""
    method, options, seed = config["method"], config["options"], config["seed"]
    local, t = client_opt(config), config["rounds"] + 1  # the count goes on, and so the learning-rate schedule
    if method == "Natural":
        return natural(w, meter=meter)
    if method == "NoT":
        return negate_weights(p.model, w, example=p.dataset.x_test[:1], meter=meter)
    if method == "FedEraser":
        history = _memory(config, p, store).history
        if history is None:
            raise MissingHistory("history_interval is 0: nothing was stored that FedEraser could replay")
        return fed_eraser(
            p.model, history, p.clients, sides.targets,
            local=local, seed=seed, forget=sides.of_samples, meter=meter, **options,
        )  # fmt: skip
    if method == "PGA":
        memory = _memory(config, p, store, [f"last/{k}" for k in range(len(p.clients))])
        w_u = memory.local_model(w, sizes_of(p.clients), sides.targets[0])
        return pga(
            p.model, w, w_u, p.clients, sides.targets,
            config=PGA(**options), seed=seed, forget=sides.of_samples, meter=meter,
        )  # fmt: skip
    if method == "MoDe":
        return mode(
            p.model, w, sides.clients, sides.targets,
            config=MoDe(**options), local=local, seed=seed, round=t, forget=sides.of_samples, meter=meter,
        )  # fmt: skip
    if method == "FedAU":
        return fed_au(
            p.model, w, sides.clients, sides.targets,
            config=FedAU(**options), local=local, seed=seed, round=t, forget=sides.of_samples, meter=meter,
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the PUF step is")  # sweeps go too far on purpose, and their records show it
        return puf_round(
            p.model, w, sides.clients, sides.targets, PUF(**options),
            local=local, seed=seed, round=t, forget=sides.of_samples, meter=meter,
        )  # fmt: skip


def _memory(config: Mapping[str, Any], p: Problem, store: RecordStore, names: Sequence[str] | None = None) -> Memory:
    """What was kept during the original training; only the tensors `names`, if given."""
    memory = Memory(_initial(config, p), config["history"], config["rounds"])
    memory.restore(store.tensors(training_record(config, store, "none").key, names))
    return memory


def evaluate(p: Problem, w: Tensor, sides: Sides, seed: int, retrained: Tensor) -> dict[str, float]:
    """Utility, forgetting, both attacks, and the distance to the retrained model.

    Segmentation: Dice for accuracy and the mean loss on the forgotten slices for the attacks, as in Table VI.
    """
    data = {"forget": sides.forget, "retain": sides.retain, "test": p.test}
    logits = {side: p.model.predict(w, x) for side, (x, _) in data.items()}
    losses = {side: p.model.sample_losses(logits[side], data[side][1]) for side in ("forget", "retain")}
    task = p.model.task
    found = {side: outputs_accuracy(task, logits[side], data[side][1]) for side in ("test", "forget")}
    found |= {"loss": float(losses["forget"].mean()), "gap": parameter_gap(w, retrained)}
    if task == "segmentation":
        return found
    conf = {side: confidences(logits[side], y) for side, (_, y) in data.items()}
    return found | {
        "song": song(conf["forget"], conf["retain"], conf["test"], seed=seed),
        "yeom": yeom(losses["forget"], losses["retain"]),
        "kl": logits_kl(logits["test"], p.model.predict(retrained, p.test[0])),
    }


@run_function("puf.mode_equivalence")
def mode_equivalence(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim P14 on the trained net: Regular(eta_r, eta_u) against Special((eta_r + eta_u) p_u), same updates."""
    p = problem(config)
    sides = Sides(p, config["request"])
    original, _ = reference_models(config, context.store)
    p_u = len(sides.forget[1]) / sum(len(y) for _, y in p.clients)
    regular = PUF(**config["options"])
    special = PUF("special", eta_u=(regular.eta_r + regular.eta_u) * p_u, epochs_u=regular.epochs_u)
    w_regular, w_special = (
        apply_method({**config, "options": asdict(puf)}, p, sides, original, context.store)
        for puf in (regular, special)
    )
    return {"relative_difference": relative_step_difference(original, w_special, w_regular), "p_u": p_u}, None


@run_function("puf.printed_costs")
def printed_costs(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim P13: how many of the printed cost cells follow from the printed formulas, per table. Arithmetic only."""
    cells = cost_cells()[["table", "follows"]]
    counts = cells.groupby("table", sort=False).follows.agg(["size", "sum"])
    return {str(table): {"cells": int(n), "follow": int(k)} for table, (n, k) in counts.iterrows()}, None


# --- everything ------------------------------------------------------------------------------------------------------


def run_descriptions(e: Experiment, store: RecordStore) -> dict[str, Record]:
    """The description of every setting, by its text."""
    configs = {text: e.training(s, text, 0) for s in e.scenarios() for text in s.settings}
    plans = [{key: config[key] for key in PROBLEM_KEYS} for config in configs.values()]
    return dict(zip(configs, _map(describe, plans, store, 1, "settings"), strict=True))


def run_training(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[tuple[str, str, int, str], Record]:
    """All trainings, by (scenario, setting, seed, request); "none" is the original model's."""
    keys, configs = zip(*e.trainings(), strict=True)
    return dict(zip(keys, _map(train, list(configs), store, jobs, "training"), strict=True))


def run_unlearning(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """Every method on every request of every scenario. Missing trainings are made on the way."""
    return _cells(unlearn, e.runs(), store, jobs, "unlearning and recovery")


def run_costs(store: RecordStore) -> Record:
    """The paper's cost cells against its own formulas."""
    [record] = map_runs(printed_costs, [{"tables": "III to V"}], store=store, jobs=1, label="printed costs")
    return record


def run_sweep(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """PUF with other unlearning rates and epochs (Fig. 5, Fig. 6)."""
    return _cells(unlearn, e.sweep(), store, jobs, "sweep over eta_u and E_u")


def run_norms(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """PUF-Special for samples with the released code's divisor."""
    return _cells(unlearn, e.norms(), store, jobs, "the other divisor")


def run_printed(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """PUF-Special and Regular as Algorithm 1 prints them, without sample counts, on the first setting."""
    return _cells(unlearn, e.printed(), store, jobs, "formula as printed")


def run_equivalence(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """Claim P14, measured after training. The updates cancel only if all train E epochs: E_u = E."""
    main = e.scenarios()[0]
    cells = {}
    for cell, _ in e.runs():
        if cell.scenario == main.name and cell.method == "PUF-Regular":
            cells[cell] = e.unlearning(main, *cell[1:5], epochs_u=float(e.epochs))
    return _cells(mode_equivalence, cells.items(), store, jobs, "Regular against Special")


def _cells(
    fn: Any, runs: Iterable[tuple[Cell, dict[str, Any]]], store: RecordStore, jobs: int | None, label: str
) -> dict[Cell, Record]:
    configs = dict(runs)
    return dict(zip(configs, _map(fn, list(configs.values()), store, jobs, label), strict=True))


def _map(fn: Any, configs: list[dict[str, Any]], store: RecordStore, jobs: int | None, label: str) -> list[Record]:
    return map_runs(fn, configs, store=store, jobs=jobs, label=label, data_hash=lambda c: problem(c).data_hash)


def live_recovery(
    e: Experiment, store: RecordStore, setting: str, seed: int, target: int, mode: str, eta_u: float, rounds: int = 8
) -> list[dict[str, float]]:
    """PUF and `rounds` recovery rounds right now, without a record: for the notebook's sliders."""
    main = e.scenarios()[0]
    config = e.unlearning(main, setting, seed, f"client-{target}", f"PUF-{mode.capitalize()}", eta_u=eta_u)
    p = problem(config)
    sides = Sides(p, config["request"])
    original, _ = reference_models(config, store)
    path = recovery_path(
        p.model,
        apply_method(config, p, sides, original, store),
        p.clients,
        local=client_opt(config),
        seed=seed,
        first_round=e.rounds + 2,
        exclude=[target],
        cap=rounds,
    )
    return [
        {"round": k, "test": accuracy(p.model, v, *p.test), "forget": accuracy(p.model, v, *sides.forget)}
        for k, v in path
    ]
