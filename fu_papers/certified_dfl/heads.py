"""Certified heads of nets: what a certificate can say where the loss of the whole net is not convex.

A net is a body, everything up to its last layer, and a head, that layer. On what a fixed body makes of the samples,
scaled to length 1, the head is softmax regression, which l2 > 0 makes strongly convex:

    z = body(w, x)                              features (n, p) of the average model w, fixed
    f_i(v) = mean cross-entropy of V z / |z| + l2 / 2 |v|^2             the head V (classes, p), v (d,)

The peers train the head by D-PSGD as they trained the net; DU serves the request and certifies it. The certificate
compares two worlds with *the same body*. It therefore covers the released model, body and head, only if the body owes
nothing to what is forgotten. Two bodies of which that is true:

    "public half"         trained on half of everybody's samples, which are public; the other half trains the head,
                          and requests are about that half. What is public cannot be forgotten.
    "those who stay"      trained by all but the client that leaves, which came later and gave to the head alone.

A body that has seen what is forgotten keeps it, whatever is certified of its head.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from fu_core.errors import CertificateViolation, ConfigError, UnsupportedModel, check_choice
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.linear import unit_softmax
from fu_core.request import Request
from fu_core.streams import stream_seed
from fu_core.unlearning.certificate import Privacy, residual_radius
from fu_core.unlearning.du import DU, du_release
from fu_core.unlearning.noise import Noise, rehearsal
from fu_papers.certified_dfl.certify import drawn_again
from fu_papers.certified_dfl.exact import retrained_minimiser
from fu_papers.certified_dfl.grid import CONVEX, DRAWS, Experiment, Place
from fu_papers.certified_dfl.runs import TRAINING_KEYS, federation, removed_class, train
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import data_hash, plain_fields, problem
from fu_papers.study import Cell

PUBLIC_HALF, STAYING = "public half", "those who stay"
BODIES = (PUBLIC_HALF, STAYING)
PUBLIC = "sample-0.5"  # as a request: what it takes is private, what it leaves is public
COVERED = {
    PUBLIC_HALF: "body and head, for what is forgotten of the private half",
    STAYING: "body and head, for a client that came after the body was trained",
}
NOT_COVERED = {
    PUBLIC_HALF: "the public half, which shaped the body",
    STAYING: "a client whose samples shaped the body",
}
ORDER = "atc"  # at a step this long models that take it before mixing drift apart


# --- which runs ------------------------------------------------------------------------------------------------------


def nets(e: Experiment) -> list[str]:
    """The data sets whose net is not convex."""
    return [dataset for dataset in e.datasets if dataset.split("/")[1] not in CONVEX]


def cells(e: Experiment) -> dict[Cell, dict[str, Any]]:
    """Every `certify_head` run with the place of its result: each net, split and kind of request, the last graph."""
    runs: dict[Cell, dict[str, Any]] = {}
    places = e.on_last_graph(*nets(e))
    for place, seed, (kind, request) in itertools.product(places, e.seeds, e.requests().items()):
        cell = Cell("heads", place.setting, seed, request, "DU", condition=place.topology)
        runs[cell] = head_config(e, place, seed, request, STAYING if kind == "client" else PUBLIC_HALF)
    return runs


def head_config(e: Experiment, place: Place, seed: int, request: str, body: str) -> dict[str, Any]:
    """The config of one `certify_head` run. A head is trained as the convex data set is, which has the same loss."""
    check_choice("body", body, BODIES, ConfigError)
    convex = e.datasets[0]
    return {
        **e.training(place, seed, request),
        "body": body,
        "head": {**plain_fields(e.local(convex)), "rounds": e.head_rounds, "l2": float(e.of_dataset("l2", convex))},
        "du": plain_fields(newton(e.close_budget)),
        "epsilons": [float(epsilon) for epsilon in e.epsilons],
        "delta": float(e.delta),
        "budget": float(e.close_budget),
        "draws": DRAWS,
    }


def newton(until: float) -> DU:
    """Newton's steps until a model is so close, each solved to a tenth: fewest products, hence sums, in all."""
    return DU(objective="samples", until=float(until), tol=0.1, dense_up_to=0)


def needs(config: Mapping[str, Any]) -> Needs:
    """The training of the body, and that of the whole net on what is retained."""
    training = {key: config[key] for key in TRAINING_KEYS}
    of_body = config["request"] if config["body"] == STAYING else PUBLIC
    return {"body": (train, {**training, "request": of_body}), "retrained": (train, training)}


# --- the head --------------------------------------------------------------------------------------------------------


def body_of(model: FlatModel) -> FlatModel:
    """The net without its last linear layer: the same parameters in the same order, up to those of that layer.

    Raises UnsupportedModel if the net's last parameters are not a linear layer's.
    """
    before = copy.deepcopy(model.module)
    linear = [name for name, part in before.named_modules() if name and isinstance(part, nn.Linear)]
    if linear:
        before.set_submodule(linear[-1], nn.Identity())
        body = FlatModel(before)
        if body.names and body.names == model.names[: len(body.names)]:
            return body
    raise UnsupportedModel(f"{type(model.module).__name__} is no body with a linear layer as its head")


def features(model: FlatModel, w: Tensor, x: Tensor) -> Tensor:
    """What the last layer of the net w (d,) sees of the samples x (n, ...): (n, p), float64.

    In float64, because the gradient of a head that is close enough is beyond float32.
    """
    body = body_of(model)
    return body.predict(w[: body.d], x).double()


def head_federation(config: Mapping[str, Any], w: Tensor) -> Federation:
    """The same peers, with the features of what trains the head, by the net w (d,) as its body."""
    f = federation(config)
    held = f.clients if config["body"] == STAYING else Request.parse(PUBLIC).resolve(f.clients).forgotten
    seen = {i: (features(f.model, w, x), y) for i, (x, y) in held.items()}
    p, classes = seen[min(seen)][0].shape[1], problem(config).dataset.classes
    head = FlatModel(unit_softmax(p, classes), l2=config["head"]["l2"])
    local = ClientOpt(**{name: value for name, value in config["head"].items() if name not in ("rounds", "l2")})
    return f.having(model=head, clients=seen, local=local, exchange=Peers(f.peers.graph, ORDER), meter=Meter())


def trained_head(f: Federation, config: Mapping[str, Any]) -> Tensor:
    """Everybody's head (K, d) after D-PSGD from scratch."""
    v_0 = f.model.init(stream_seed(config["seed"], "head"), torch.float64).to(device())
    return dpsgd(f, v_0, config["head"]["rounds"])


# --- the run ---------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.certify_head", data=data_hash, needs=needs)
def certify_head(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One request served on the head alone, and released under a certificate per epsilon.

    Accuracies are those of classes that somebody still holds. retrained: the minimiser on retained features, with the
    same noise: world B of the certificate; net: the whole net, retrained on what is retained; body: the whole net
    whose body is used; passes: samples of features times gradients, a product counted as two. Accuracies with noise
    are means over `draws` of it.

    Random: the heads' batches and start, and noise, rehearsed from the run's seed.
    """
    whole, (x_test, y_test) = federation(config), problem(config).test
    w, w_retrained = (context.needed(name, ["W"])["W"].to(device()).mean(dim=0) for name in ("body", "retrained"))
    f = head_federation(config, w)
    deletion = Request.parse(config["request"]).resolve(f.clients)
    original = trained_head(f, config)
    serving, retraining = f.having(meter=Meter()), f.after(deletion).having(meter=Meter())
    plain = du_release(serving, original, deletion, DU(**config["du"]))
    again = trained_head(retraining, config).mean(dim=0)  # Retrain, as far as its rounds go
    v, minimiser = plain.noiseless[0], retrained_minimiser(f.model, plain.noiseless[0], deletion)

    removed = removed_class(deletion)
    known = torch.ones_like(y_test, dtype=torch.bool) if removed is None else y_test != removed
    z_test = features(whole.model, w, x_test)

    def test_accuracy(head: Tensor) -> float:
        return accuracy(f.model, head, z_test[known], y_test[known])

    named = [str(config[key]) for key in ("dataset", "split", "alpha", "model", "topology", "request")]
    noise = Noise(rehearsed=stream_seed(config["seed"], "certified head", *named))
    with rehearsal():
        for epsilon in config["epsilons"]:
            privacy = Privacy(epsilon=epsilon, delta=config["delta"], budget=config["budget"], noise=noise)
            try:
                released = du_release(f, original, deletion, DU(**config["du"]), privacy, plain)
            except CertificateViolation as refused:
                context.log(epsilon=epsilon, released=False, reason=str(refused))
                continue
            every = drawn_again(
                released, config["draws"], privacy,
                lambda same: du_release(f, original, deletion, DU(**config["du"]), same, plain),
            )  # fmt: skip
            public = [one.models[0] for one in every]
            context.log(
                epsilon=epsilon,
                released=True,
                sigma=released.sigma,
                test=fmean(test_accuracy(w) for w in public),
                retrained=fmean(test_accuracy(minimiser + (w - v)) for w in public),  # world B, errata D7
            )

    def radius(head: Tensor) -> float:
        return residual_radius(f.model, head, deletion, objective="samples")

    x_known, y_known = x_test[known], y_test[known]
    metrics: dict[str, Any] = {
        "d": f.model.d,
        "length": float(v.norm()),
        "steps": len(plain.steps),
        "sums": plain.sums,
        "radius": radius(v),
        "radius_original": radius(original.mean(dim=0)),
        "radius_again": radius(again),
        "gap": float((v - minimiser).norm() / (original.mean(dim=0) - minimiser).norm()),
        "test": test_accuracy(v),
        "test_original": test_accuracy(original.mean(dim=0)),
        "test_retrained": test_accuracy(minimiser),
        "test_again": test_accuracy(again),
        "net": accuracy(whole.model, w_retrained, x_known, y_known),
        "body": accuracy(whole.model, w, x_known, y_known),
        "forget": accuracy(f.model, v, *deletion.forget),
        "forget_retrained": accuracy(f.model, minimiser, *deletion.forget),
        "passes": serving.meter.gradient_passes,
        "passes_again": retraining.meter.gradient_passes,
        "vectors": serving.meter.bytes // (v.numel() * v.element_size()),
        "forgotten": deletion.m,
        "covered": COVERED[config["body"]],
        "not_covered": NOT_COVERED[config["body"]],
    }
    return metrics | _of_removed(f.model, {"removed": v, "removed_retrained": minimiser}, z_test, y_test, known), None


def _of_removed(model: FlatModel, heads: Mapping[str, Tensor], z: Tensor, y: Tensor, known: Tensor) -> dict[str, float]:
    """Accuracy of each head on the test features of the class that nobody holds any longer, if there is one."""
    if bool(known.all()):
        return {}
    return {name: accuracy(model, v, z[~known], y[~known]) for name, v in heads.items()}
