"""FedAU as its authors have it: both heads are trained during federated training (Gu et al., IJCAI 2024).

Targets train h_L and an auxiliary head h_A^u with the sum of their cross-entropies, so that phi learns from both:

    forget clients, samples    random labels for h_A^u, drawn once     h = (1 - alpha) h_L + alpha 1/|U| sum_u h_A^u
    forget one class           h_A^u is taught that class alone        h = h_L - 1/|U| sum_u h_A^u

Not registered as a method: whoever will leave must be known when training begins, while a registered method meets a
model that has been trained already, without auxiliary heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, UnsupportedTask, check_count, check_share
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.federation.server import ServerState, aggregate, server_step
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.baselines.fed_au import (
    Head,
    combine_heads,
    fresh_head,
    head_on,
    mean_head,
    relabelled,
    samples_of,
)
from fu_core.unlearning.method import kind_of


class TwoHeaded(FlatModel):
    """`model` with an auxiliary head beside its own, on the same features; the loss is the sum of both.

    Logits (n, 2 C), those of the model's own head first; labels (n, 2). In the flat vector (d + P_c,) the
    auxiliary head follows the other.
    """

    def __init__(self, model: FlatModel, head: Head) -> None:
        module, twins = copy.deepcopy(model.module), _Twins(head.layer)
        owner, _, last = head.name.rpartition(".")
        if last:
            setattr(module.get_submodule(owner), last, twins)
        super().__init__(module if last else twins, model.task, model.l2)
        self._cuts = [head.place.stop, head.d, model.d - head.place.stop]

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Sum of the two cross-entropies of each sample (n,)."""
        z_L, z_A = outputs.chunk(2, dim=-1)
        return F.cross_entropy(z_L, y[:, 0], reduction="none") + F.cross_entropy(z_A, y[:, 1], reduction="none")

    def join(self, w: Tensor, h_A: Tensor) -> Tensor:
        """(K, d + P_c) from one model `w` (d,) and K auxiliary heads (K, P_c)."""
        before, after = w.expand(len(h_A), -1).split([self._cuts[0], self._cuts[2]], dim=1)
        return torch.cat([before, h_A, after], dim=1)

    def part(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse: models (K, d) and auxiliary heads (K, P_c) from (K, d + P_c)."""
        before, h_A, after = rows.split(self._cuts, dim=1)
        return torch.cat([before, after], dim=1), h_A


class _Twins(nn.Module):
    """Two linear layers side by side: (n, F) to (n, 2 C)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.learning, self.auxiliary = copy.deepcopy(layer), copy.deepcopy(layer)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([self.learning(z), self.auxiliary(z)], dim=-1)


def fed_au_train(
    f: Federation,
    w: Tensor,
    deletion: Deletion,
    rounds: int,
    *,
    first_round: int = 1,
    h_A: Tensor | None = None,
    after_round: Callable[[int, Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """FedAvg from `w` in which the targets train an auxiliary head as well: w (d,) and h_A (|U|, P_c).

    The heads stay with their clients from round to round, in the order of `deletion.targets`; models are
    averaged, by all clients' samples: everybody trains on all it has. h_A: where the heads start, fresh by default, so
    that a training can go on; `after_round(t, w, h_A)` is called after each round.

    Random: heads and labels, the latter once, and the batches of `fedavg`, round by round. Raises as
    `find_head`, `NumericalFailure` on divergence, and `UnsupportedTask` unless everybody takes part in every round.
    """
    check_count("rounds", rounds, least=0)
    if f.participation != 1:
        raise UnsupportedTask(f"participation must be 1, since heads are trained round by round, got {f.participation}")
    samples = samples_of(deletion)
    head = head_on(f.model, w, samples)
    forgotten_class = _one_class(deletion)
    taught: dict[int, Client] = {}  # labels (n, 2), for h_L and h_A
    for u, (x, y, kept) in samples.items():
        y_A = relabelled(y, kept, head, seed=f.seed, client_id=u, epoch=0)
        if forgotten_class is not None:
            x, y = f.clients[u]
            y_A = torch.full_like(y, forgotten_class)
        taught[u] = x, torch.stack([y, y_A], dim=1)
    two = TwoHeaded(f.model, head)
    targets, others = f.having(model=two, clients=taught), [i for i in f.ids if i not in taught]
    n = f.sizes()

    if h_A is None:
        h_A = torch.stack([fresh_head(head, w, seed=f.seed, client_id=u) for u in taught])
    w, state = w.clone(), ServerState()
    for t in range(first_round, first_round + rounds):
        moved, step_A = two.part(train_round(targets, two.join(w, h_A), t))
        h_A = h_A + step_A
        updates = dict(zip(taught, moved, strict=True))
        if others:  # a start each, so that the round is counted once, below
            updates |= zip(others, train_round(f, w.expand(len(others), -1), t, others), strict=True)
        deltas = torch.stack([updates[i] for i in f.ids])
        f.meter.exchange(w, deltas)
        w, state = server_step(w, aggregate(deltas, n / n.sum()), f.server, state)  # sum_i n_i / n * Delta_i
        if not bool(w.isfinite().all()):
            raise NumericalFailure(f"round {t}: the global model is not finite")
        if after_round is not None:
            after_round(t, w, h_A)
    return w, h_A


def fed_au_unlearn(f: Federation, w: Tensor, h_A: Tensor, deletion: Deletion, *, alpha: float = 0.9) -> Tensor:
    """`w` (d,) with its head and the targets' `h_A` (|U|, P_c) of `fed_au_train` combined.

    `(1 - alpha) h_L + alpha mean h_A`, or `h_L - mean h_A` for a class. Deterministic; raises as `find_head`. The
    meter: the head goes to each target and back.
    """
    check_share("alpha", alpha)
    head = head_on(f.model, w, samples_of(deletion))
    h_L = w[head.place]
    f.meter.exchange(h_L, h_A)
    f.meter.keep("global model", w)
    if _one_class(deletion) is not None:
        return head.put(w, subtract_heads(h_L, h_A))
    return head.put(w, combine_heads(h_L, h_A, c=1 - alpha))


def subtract_heads(h_L: Tensor, h_A: Tensor) -> Tensor:
    """`h_L - 1/|U| sum_u h_A^u` (P_c,), for heads that were taught one class."""
    return h_L - mean_head(h_A)


def _one_class(deletion: Deletion) -> int | None:
    """The class that is to be forgotten, if it is one and nothing else."""
    if kind_of(deletion) != "classes":
        return None
    labels = deletion.forget[1].unique()
    return int(labels) if len(labels) == 1 else None
