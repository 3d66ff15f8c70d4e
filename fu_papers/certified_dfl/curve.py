"""Accuracy over requests (Fig. 1): training, then each request and what follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.decentralised import dpsgd, start
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.request import Deletion, Request, Rows
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.method import Trained
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.certified_dfl import runs
from fu_papers.certified_dfl.runs import federation, recorded_training
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import data_hash, initial_model, problem


def needs(config: Mapping[str, Any]) -> Needs:
    """The original training; a method that replays a history has to see the training itself."""
    replays = registered(config["method"]).needs.history
    return {} if replays else {"original": runs.needs(config)["original"]}


@run_function("certified_dfl.curve", data=data_hash, needs=needs)
def curve(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Test accuracy of the average model round by round: training, then each request and what follows it.

    Retrain starts from scratch for K rounds; DU takes its step (logged as round 0 of its phase) and fine-tunes;
    PDUDT replays its history and trains on; Fine-tune trains on, and nothing else. Requests are served one after the
    other, each on the state the last one left. Logs phase (0: training), round within it, and accuracy, of all test
    images ("test_images" of them, if not 0); within a training that is read, as its record has it, to the last round.
    """
    f, test = federation(config), _looked_at(config)
    method, more = config["method"], config["pdudt_rounds"]
    W, memory = _trained(config, f, context)
    present = f  # who is there when a request comes, with what is left of their data
    for phase, request in enumerate(config["requests"], start=1):
        rest = f.after(Request.parse(request).resolve(f.clients))
        if method == "Retrain":
            W, before, rounds = start(initial_model(config, f.model), len(rest.ids)), 0, config["rounds"]
        else:  # what follows unlearning goes on where the rounds before it ended
            before, rounds = config["rounds"] + (phase - 1) * more, more
            earlier = config["requests"][phase - 2] if phase > 1 else "none"
            deletion = Deletion.of(present.clients, newly_asked(request, earlier, f))
            W = serve_request(method, Trained(present, W, before, memory=memory), deletion, **config["options"]).model

        def follow(t: int, W_t: Tensor, phase: int = phase, before: int = before) -> None:
            context.log(phase=phase, round=t - before, test=accuracy(f.model, W_t.mean(dim=0), *test))

        follow(before, W)
        W = dpsgd(rest, W, rounds, first_round=before + 1, after_round=follow)
        present = rest
    return {"test": accuracy(f.model, W.mean(dim=0), *test)}, None


def newly_asked(request: str, earlier: str, f: Federation) -> Rows:
    """Of what an earlier request ("none": there was none) has left, the rows that a cumulative one takes."""
    labels = {i: y for i, (_, y) in f.clients.items()}
    wanted, gone = (Request.parse(text).rows(labels) for text in (request, earlier))
    new = {}
    for i, rows in wanted.items():
        asked, kept = torch.zeros(len(labels[i]), dtype=torch.bool), torch.ones(len(labels[i]), dtype=torch.bool)
        asked[rows] = True
        kept[gone.get(i, rows[:0])] = False
        if asked[kept].any():  # nothing new is asked of who has left, or holds nothing of a further class
            new[i] = asked[kept].nonzero().flatten()
    return new


def _trained(config: Mapping[str, Any], f: Federation, context: RunContext) -> tuple[Tensor, Memory | PeerHistory]:
    """Everybody's model after training, its accuracies logged; trained again for what needs the history."""
    test = _looked_at(config)

    def follow(t: int, W: Tensor) -> None:
        context.log(phase=0, round=t, test=accuracy(f.model, W.mean(dim=0), *test))

    if registered(config["method"]).needs.history:
        return recorded_training(f, config, config["rounds"], follow)
    *until, last = context.needed_record("original").rounds
    for row in until:
        context.log(phase=0, round=row["round"], test=row["test"])
    W = context.needed("original", ["W"])["W"].to(device())
    follow(last["round"], W)
    return W, Memory()


def _looked_at(config: Mapping[str, Any]) -> Client:
    """The test images behind the accuracies that are followed round by round."""
    x, y = problem(config).test
    n = config["test_images"] or len(y)
    return x[:n], y[:n]
