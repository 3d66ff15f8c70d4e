"""Hessian-free online unlearning (Qiao et al., ICLR 2025), federated: a vector per client, and deletion is a sum.

While training goes on, everybody's absence is carried along to first order: a_u (d,) is what the model would gain if
client u had never been there. Stochastic descent, w <- w - eta g_B(w), is linearised at each of its steps,

    a <- a - eta H_B(w) a                                   every step, and where sample u is in B, + eta grad l_u / |B|

Our clients train between two averages, w_+ = w + sum_k p_k Delta_k(w), and who leaves is one of them, so that the same
rule reads, with p'_k = p_k / (1 - p_u) and J_k v the change of client k's round along v (its steps, one by one),

    a_u <- sum_{k != u} p'_k (J_k a_u + Delta_k) - sum_k p_k Delta_k          for every u, round by round
    w_u  = w + a_u                                                            the deletion itself: no pass, no message

No Hessian is formed; a step along v costs a product of its batch, for every u at once. On quadratics everything is
linear and w_u *is* retraining, whatever the rounds; elsewhere the second order is missing. Several clients' vectors are
added, which leaves out what their absences do to each other. The paper's guarantee, from an estimate of the spectral
radius at one point, bounds nothing, and is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask, check_choice, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import visits
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.needs import Needs

WHOLE_CLIENTS = "forget: a vector is stored for every client, not for its samples or classes"
REFUSES = {"samples": WHOLE_CLIENTS, "classes": WHOLE_CLIENTS}


@dataclass(frozen=True)
class StoredVectors:
    """vectors: a_u (d,) of every client, as `trained_with_vectors` has made them along with the model."""

    vectors: Mapping[int, Tensor] | None = field(default=None, repr=False, compare=False)


def trained_with_vectors(
    f: Federation, w_0: Tensor, rounds: int, *, first_round: int = 1, of: Collection[int] | None = None
) -> tuple[Tensor, dict[int, Tensor]]:
    """FedAvg from `w_0` (d,), to the model w (d,) that it always gives, and a_u (d,) of every client.

    of: the clients whose vectors are carried along; None: everybody, since nobody knows who will leave. N of them take
    N + 1 times the work of training and more: a curvature product of every batch along all N vectors. Random: batches,
    from the streams of training. Raises UnsupportedTask for what is not linear in the gradients or random in another
    way (adaptive optimisers, augmentation, a share of the clients), InvalidRequest for a client alone, and for one of
    `of` that holds nothing.
    """
    check_count("rounds", rounds, least=0)
    _check(f)
    ids = [i for i in f.ids if len(f.clients[i][1])]
    carried = ids if of is None else sorted(of)
    for u in carried:
        check_choice("of", u, ids, InvalidRequest)
    p = f.sizes(ids) / f.sizes(ids).sum()
    a = torch.zeros(len(carried), len(w_0), dtype=torch.float64, device=w_0.device)  # (U, d), U <= N
    itself = torch.tensor([[u == k for k in ids] for u in carried]).double()  # (U, N)
    # p'_k of every u: (U, N), a row for each u, 0 for itself
    w, without = w_0, (1 - itself) * p / (1 - itself @ p)[:, None]
    for t in range(first_round, first_round + rounds):
        moved = torch.zeros_like(a)  # sum_{k != u} p'_k J_k a_u
        updates = []
        for row, k in enumerate(ids):
            delta, along = _linearised(f, w, a.to(w.dtype), k, t)
            updates.append(delta.double())
            moved += without[:, row, None] * along.double()
        deltas = torch.stack(updates)
        a = moved + without @ deltas - p @ deltas
        w = fedavg(f, w, 1, first_round=t)
    vectors = {u: a[row].to(w.dtype) for row, u in enumerate(carried)}
    f.meter.keep("a vector per client", *vectors.values())
    return w, vectors


def _linearised(f: Federation, w: Tensor, directions: Tensor, client: int, round: int) -> tuple[Tensor, Tensor]:
    """A client's update Delta (d,), and J v (U, d) for each of the directions v: the same steps, differentiated."""
    x, y = f.clients[client]
    here, along = w.detach().clone(), directions.clone()
    steps, changes = f.local.fresh(round), f.local.fresh(round)  # linear in (w, g), so that one serves for both
    order, sizes = visits(len(y), f.local, seed=f.seed, round=round, client=client)
    for b in order.to(x.device).split(sizes):
        gradient = grad(lambda point, x_b=x[b], y_b=y[b]: f.model.loss(point, x_b, y_b))
        products = vmap(lambda v, at=here, g=gradient: jvp(g, (at,), (v,))[1])(along)  # H_B v
        g = gradient(here)
        changes.step(along, products)
        steps.step(here, g)
        f.meter.differentiate(len(b) * len(directions))
    return here - w, along


def _check(f: Federation) -> None:
    if not f.server.averages or f.participation < 1:
        raise UnsupportedTask("exchange must be a server that averages everybody, FedOpt(), for stored vectors")
    if f.local.optimiser != "sgd" or f.local.augmentation != "none":
        raise UnsupportedTask("local must be SGD without augmentation for stored vectors")
    if sum(len(y) > 0 for _, y in f.clients.values()) < 2:
        raise InvalidRequest("clients must be at least two with samples: without the only one there is no model")


def delete(w: Tensor, vectors: Mapping[int, Tensor], leaving: list[int]) -> Tensor:
    """w + sum_u a_u (d,): O(d) per client. Raises MissingHistory for a client without a vector."""
    for u in leaving:
        if u not in vectors:
            raise MissingHistory(f"vectors: none was stored for client {u}, only for {sorted(vectors)}")
    return w + torch.stack([vectors[u] for u in leaving]).sum(dim=0)


@register("Stored vectors", paper="Qiao et al., ICLR 2025", colour="#4d7c0f", dash="-.", parameters=StoredVectors,
          needs=Needs(history=True, full_participation=True), refuses=REFUSES, recovers=False)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: StoredVectors) -> Tensor:
    """One sum. Raises MissingHistory where no vectors were stored along with training."""
    refuse(deletion, REFUSES)
    if config.vectors is None:
        raise MissingHistory("vectors: Hessian-free online unlearning needs those of `trained_with_vectors`, got None")
    trained.horizontal.meter.keep("a vector per client", *config.vectors.values())
    trained.horizontal.meter.send(trained.model, down=len(deletion.kept))  # everybody learns the new model
    return delete(trained.model, config.vectors, deletion.leaving)
