"""PUF's trainings: by everybody, by those who stay, and with FedAU's auxiliary heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from fu_core.data.datasets import data_dir
from fu_core.evaluation.accuracy import accuracy
from fu_core.evaluation.backdoor import Trigger, poison
from fu_core.federation import Federation
from fu_core.models.mit import load_pretrained
from fu_core.request import Request
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines.fed_au_official import fed_au_train
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import EVALUATE_EVERY, Problem, data_hash, initial_model, problem, train_resumably
from fu_papers.puf.grid import TRAINING_KEYS

TRIGGER = Trigger(size=3, target=7)  # of a backdoor: an automobile with the patch is a horse


@run_function("puf.train", data=data_hash)
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One training from scratch on what the config's request leaves; keeps the final model as "w".

    The original training (request "none") also keeps what FedEraser and PGA need. Resumes after the last
    finished round. Trainings of one seed start from the same weights.
    """
    p = problem(config)
    f, w_0, memory = federation(config, p), initial_weights(config, p), None
    if config["request"] == "none":
        memory = memory_of(config, w_0)
    else:
        f = f.after(Request.parse(config["request"]).resolve(f.clients))

    def scores(w: Tensor) -> dict[str, float]:
        return {"test": accuracy(p.model, w, *p.test), "validation": accuracy(p.model, w, *p.validation)}

    w = train_resumably(f, w_0, config["rounds"], context, scores, memory)
    last = context.rounds[-1]
    counted = {"bytes": f.meter.bytes, "images": f.meter.images}
    kept = memory.tensors() if memory is not None else {}
    return {"test": last["test"], "validation": last["validation"], **counted}, {"w": w, **kept}


@run_function("puf.train_official", data=data_hash)
def train_official(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Training as FedAU's authors have it: who will leave trains an auxiliary head in every round, kept as "h_A".

    Resumes after the last finished round.
    """
    p = problem(config)
    f, w, h_A, done = federation(config, p), initial_weights(config, p), None, 0
    deletion = Request.parse(config["request"]).resolve(f.clients)
    if (saved := context.resume()) is not None:
        tensors, meta = saved
        w, h_A, done = tensors["w"].to(device()), tensors["h_A"].to(device()), meta["round"]
        f.meter.restore(meta["meter"])

    def after_round(t: int, w_t: Tensor, heads: Tensor) -> None:
        if t % EVALUATE_EVERY == 0 or t in (1, config["rounds"]):
            context.log(round=t, test=accuracy(p.model, w_t, *p.test))
        context.checkpoint({"w": w_t, "h_A": heads}, {"round": t, "meter": asdict(f.meter)})

    rounds = config["rounds"] - done
    w, h_A = fed_au_train(f, w, deletion, rounds, first_round=done + 1, h_A=h_A, after_round=after_round)
    last = {"test": accuracy(p.model, w, *p.test), "validation": accuracy(p.model, w, *p.validation)}
    return {**last, "bytes": f.meter.bytes, "images": f.meter.images}, {"w": w, "h_A": h_A}


def federation(config: Mapping[str, Any], p: Problem) -> Federation:
    """Everybody, with the data as they are trained on: those of client `poisoned`, if >= 0, carry a backdoor."""
    f, target = p.federation(config), config["poisoned"]
    if target < 0:
        return f
    carrying = poison(f.clients[target], TRIGGER, fraction=0.5, seed=config["seed"], client_id=target)
    return f.having(clients={**f.clients, target: carrying})


def initial_weights(config: Mapping[str, Any], p: Problem) -> Tensor:
    """Where training starts: the net's own initialisation, or pre-trained weights with a new head."""
    if not config["weights"]:
        return initial_model(config, p.model)
    seed = stream_seed(config["seed"], "init")  # of the new head
    return load_pretrained(p.model, data_dir() / config["weights"], seed).to(device())


def memory_of(config: Mapping[str, Any], w_0: Tensor) -> Memory:
    """What is kept of the original training: every so-many-th round's updates, and the last round's."""
    history = UpdateHistory(w_0, config["history"]) if config["history"] else None
    return Memory(history, last_round=config["rounds"])


def references(config: Mapping[str, Any]) -> Needs:
    """The trainings that an unlearning run starts from and is compared with. Who leaves takes its backdoor with it."""
    training = {key: config[key] for key in TRAINING_KEYS}
    clean = {"history": 0, "poisoned": -1}
    return {"original": (train, {**training, "request": "none"}), "retrained": (train, {**training, **clean})}
