"""The unlearning loss of FedORA: its terms as gradients of a trained vertical model (errata F2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fu_core.data import load
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import Boundary, Parties, Vectors, VerticalFederation, deal, forward, train
from fu_core.streams import stream
from fu_core.unlearning.fedora import entropies, uncertainty_loss
from fu_papers.fedora.theory_small import data_hash
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function


def entropy(logits: Tensor) -> Tensor:
    """H(p), mean over `logits` (n, C)."""
    return entropies(logits.log_softmax(dim=1)).mean()


def kl_to_uniform(logits: Tensor) -> Tensor:
    """KL(p || U), the sum over classes of p log(p / (1/C)); mean over `logits` (n, C)."""
    log_p = logits.log_softmax(dim=1)
    return (log_p.exp() * (log_p + math.log(logits.shape[1]))).sum(dim=1).mean()


def kl_from_uniform(logits: Tensor) -> Tensor:
    """KL(U || p), the mean over classes of log((1/C) / p); mean over `logits` (n, C)."""
    return (-math.log(logits.shape[1]) - logits.log_softmax(dim=1)).mean()


def digits_parties(epochs: int) -> Parties:
    """Two parties with half an image each, trained on all digits, then in float64. Random: from the streams of 0."""
    parties, _ = deal(load("digits"), bottom="mlp", seed=0)
    f = VerticalFederation(parties, ClientOpt(lr=0.05, momentum=0.9))
    trained = train(f, torch.arange(len(parties.active.y)), f.optimisers(), epochs)
    return trained.having([w_k.double() for w_k in trained.w])


@run_function("fedora.one_force", data=data_hash("digits"))
def one_force(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F2 and claim F12: the terms of the unlearning loss as gradients of a trained vertical model, digits.

    cosine, ratio: of the gradients over all parties' parameters, entropy H against -KL(p||U) and -KL(U||p); per_party:
    the cosines by party. weights: |grad of (28)| / |grad H| and its cosine with grad H, per forgetting weight.
    identity: largest |H - log C + KL(p||U)|. confident: |grad_z| of both per largest probability, the others equal.
    entries: some of the parameters' gradients; largest_probability: median over the samples.
    """
    parties = digits_parties(config["epochs"])
    rows = torch.arange(config["samples"])

    def gradient(score: Callable[[Tensor], Tensor]) -> Vectors:
        exchange = forward(parties, parties.w, rows, Boundary())
        return exchange.backward(score(exchange.logits))

    logits = forward(parties, parties.w, rows, Boundary()).logits.detach()
    classes = logits.shape[1]
    h = gradient(entropy)
    others = {"-KL(p||U)": gradient(lambda z: -kl_to_uniform(z)), "-KL(U||p)": gradient(lambda z: -kl_from_uniform(z))}
    flat, per_party = torch.cat(h), {}
    found: dict[str, dict[str, float]] = {"cosine": {}, "ratio": {}}
    for name, g in others.items():
        found["cosine"][name] = _cosine(flat, torch.cat(g))
        found["ratio"][name] = float(torch.cat(g).norm() / flat.norm())
        per_party[name] = [_cosine(h_k, g_k) for h_k, g_k in zip(h, g, strict=True)]
    weights = []
    for weight in config["weights"]:
        g_u = torch.cat(gradient(partial(uncertainty_loss, weight=weight)))
        weights.append({"weight": weight, "ratio": float(g_u.norm() / flat.norm()), "cosine": _cosine(flat, g_u)})
    some = torch.randperm(len(flat), generator=stream(0, "one force"))[: config["entries"]]
    return {
        **found,
        "per_party": per_party,
        "weights": weights,
        "identity": max(abs(float(entropy(z[None]) - math.log(classes) + kl_to_uniform(z[None]))) for z in logits),
        "confident": [_at_confidence(p, classes) for p in config["confidences"]],
        "entries": {"H": flat[some].tolist()} | {name: torch.cat(g)[some].tolist() for name, g in others.items()},
        "largest_probability": float(logits.softmax(dim=1).max(dim=1).values.median()),
    }, None


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def _at_confidence(largest: float, classes: int) -> dict[str, float]:
    p = torch.full((1, classes), (1 - largest) / (classes - 1), dtype=torch.float64)
    p[0, 0] = largest
    norms = []
    for score in (entropy, kl_from_uniform):
        z = p.log().requires_grad_()
        (g,) = torch.autograd.grad(score(z), z)
        norms.append(float(g.norm()))
    return {"largest": largest, "H": norms[0], "KL(U||p)": norms[1]}
