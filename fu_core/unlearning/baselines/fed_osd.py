"""FedOSD: descend what is to be forgotten, orthogonally to those who stay, and never go back (Pan et al., AAAI 2025).

Unlearning, r = 1, ..., R_u: clients u that leave descend a loss of their own, "unlearning cross-entropy", with p_y the
probability of the true label, which is at most log 2, while those who stay, i in S, train as ever:

    UCE = mean -ln(1 - p_y / 2)
    Delta_u = mean_u Delta_u(w; UCE),  Delta_i = Delta_i(w)
    D = Delta_u - G' (G G')^+ G Delta_u,   rows of G: Delta_i            to first order no loss of those who stay moves
    w <- w + |Delta_u| / |D| D

Post-training, r = R_u + 1, ..., R_u + R_p, by those who stay alone, from w_o, the model before all this:

    g_a = w - w_o
    Delta_i' = Delta_i - (Delta_i . g_a) / |g_a|^2 g_a,  made as long as Delta_i
    w <- w + mean_{i in S} Delta_i'

Updates Delta are -lr times the printed gradients, so that lr cancels; in both stages it is lr_r = lr 0.999^(r - 1).
The authors' code takes means that count clients alike, and leaves singular values below 1e-6 as they are in its
pseudo-inverse, where ours leaves directions out whose singular value is below 1e-10 of the largest.
It also runs the first round of post-training at the unlearning rate, which is set one round too long; ours does not.
UCE falls along D to first order. Where p_y of a client's samples differs, their cross-entropy need not rise: sample by
sample, grad UCE = -p_y / (2 - p_y) grad CE, so that what is known well weighs more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, UnsupportedTask, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.another_loss import with_loss
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.puf import participants
from fu_core.unlearning.ranges import Range

REFUSES = dict.fromkeys(
    ("samples", "classes"), "forget: FedOSD keeps the steps of those who leave off those who stay, so whole clients go"
)
RANGES = {
    "lr": Range(1e-4, 1.0, "log"),  # the code tunes it per data set, 4e-4 where clients have trained at 0.05
    "lr_post": Range(1e-6, 1e-1, "log"),  # from the code's 1e-6 upwards: where few rounds follow, that moves nothing
    "rounds": Range(1, 40, "whole"),  # the code's 100 is half of its budget
}
CUT_OFF = 1e-10  # of the largest singular value: directions below belong to nobody
SHORTEST = 1e-12  # of Delta_u: less than that is left of it by rounding alone


@dataclass(frozen=True)
class FedOSD:
    """Hyper-parameters; decay, batches and passes are the authors' code's. With no rounds at all, nothing happens.

    Rates and rounds are ours, for clients that train at 0.1: the code has 4e-4, then 1e-6, for 100 rounds each.
    """

    rounds: int = 10  # R_u
    post_rounds: int = 10  # R_p
    lr: float | None = None  # of unlearning; None: the clients' first rate
    lr_post: float = 0.01  # of post-training
    lr_decay: float = 0.999  # per round, of both
    epochs: float = 1.0
    batch_size: int = 200

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, least=0)
        check_count("post_rounds", self.post_rounds, least=0)
        check_positive("lr_post", self.lr_post)
        check_positive("lr_decay", self.lr_decay)
        if self.lr is not None:
            check_positive("lr", self.lr)
        _ = self.local(ClientOpt(), 1)  # checks the rest

    def local(self, clients: ClientOpt, r: int) -> ClientOpt:
        """The training of round `r` (from 1), where the clients have trained with `clients`."""
        lr = self.lr_post if r > self.rounds else clients.lr if self.lr is None else self.lr
        lr_r = lr * self.lr_decay ** (r - 1)
        return replace(clients, lr=lr_r, lr_decay=1.0, epochs=self.epochs, batch_size=self.batch_size)


class UnlearningLoss(FlatModel):
    """`model` with UCE in place of cross-entropy: in [0, log 2], 0 where the true label has no probability."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model.module, model.task, model.l2)

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """-ln(1 - p_y / 2) of each sample (n,)."""
        p_y = (-F.cross_entropy(outputs, y, reduction="none")).exp()
        return -torch.log1p(-p_y / 2)


def orthogonal_part(delta_u: Tensor, G: Tensor) -> Tensor:
    """`Delta_u - G' (G G')^+ G Delta_u` (d,) in float64: `delta_u` (d,) without the span of the rows of `G` (K, d).

    By the singular value decomposition G = U diag(s) V', whose rows of V' with s > 1e-10 s_1 span them. Deterministic.
    """
    _, s, V = torch.linalg.svd(G.double(), full_matrices=False)
    V = V[s > CUT_OFF * s[:1]]
    wide = delta_u.double()
    for _ in range(2):  # what rounding has left of the span in the first
        wide = wide - V.T @ (V @ wide)
    return wide


def orthogonal_step(delta_u: Tensor, G: Tensor) -> Tensor | None:
    """`|Delta_u| / |D| D` (d,), as long as `delta_u` (d,) and orthogonal to each row of `G` (K, d).

    None where all of `delta_u` lies in the span of these rows, which is as good as zero.
    """
    D = orthogonal_part(delta_u, G)
    whole, left = float(delta_u.double().norm()), float(D.norm())
    if left <= SHORTEST * whole:
        return None
    return (whole / left * D).to(delta_u.dtype)


def kept_off(deltas: Tensor, g_a: Tensor) -> Tensor:
    """`Delta_i'` (K, d) in float64: rows of `deltas` (K, d) without their part along `g_a` (d,), as long as before.

    A row that is nothing but that part becomes zero. With g_a = 0 all stay as they are.
    """
    wide, along = deltas.double(), g_a.double()
    if not float(along.norm()):
        return wide
    along = along / along.norm()
    across = wide - (wide @ along)[:, None] * along
    across = across - (across @ along)[:, None] * along  # once more, for the last digits
    before, after = wide.norm(dim=1, keepdim=True), across.norm(dim=1, keepdim=True)
    return torch.where(after > SHORTEST * before, before / after, 0.0) * across


def fed_osd(f: Federation, w: Tensor, deletion: Deletion, config: FedOSD, round: int) -> tuple[Tensor, int]:
    """The model (d,) after unlearning and post-training, and in how many rounds nothing was left of Delta_u.

    `w` (d,), which is w_o, is left untouched. Optimiser and augmentation are `f.local`'s; the server's optimiser takes
    no part. Where only a share of the clients takes part in a round, those who leave are there in every round of
    unlearning. Random: batches and augmentation, from the streams of rounds `round`, `round` + 1, ...

    Raises `UnsupportedTask` for other tasks than classification, or unless whole clients leave, `NumericalFailure` on
    divergence.
    """
    if f.model.task != "classification":
        raise UnsupportedTask(f"FedOSD needs the probability of a label, and so classification, got {f.model.task!r}")
    refuse(deletion, REFUSES)
    forgetting = UnlearningLoss(f.model)
    f.meter.keep("global model", w)
    here, skipped = w.clone(), 0
    for r in range(1, config.rounds + config.post_rounds + 1):
        t = round + r - 1
        everybody, leaving, staying = participants(f, deletion, "regular", t)
        now = f.having(clients=everybody, local=config.local(f.local, r))
        rounds_before = f.meter.rounds
        G = train_round(now, here, t, staying)
        if r <= config.rounds:
            delta_u = train_round(with_loss(now, forgetting), here, t, leaving).double().mean(dim=0)
            step = orthogonal_step(delta_u, G)
            skipped += step is None
            if step is not None:
                here = here + step.to(w.dtype)  # w <- w + |Delta_u| / |D| D
        else:
            here = here + kept_off(G, here - w).mean(dim=0).to(w.dtype)  # w <- w + mean Delta_i'
        f.meter.rounds = rounds_before + 1  # both groups train in the same round
        if not bool(here.isfinite().all()):
            raise NumericalFailure(f"round {t}: the model of FedOSD is not finite; lower lr ({now.local.lr})")
    return here, skipped


@register(
    "FedOSD",
    paper="Pan et al., AAAI 2025",
    colour="#5f9e6e",
    dash="--",
    parameters=FedOSD,
    needs=Needs(task=True, several_rounds=True),
    refuses=REFUSES,
    recovers=False,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: FedOSD) -> Tensor:
    """The rounds that follow training; post-training is the method's own recovery. Notes: "rounds without a step"."""
    f, w = trained.horizontal, trained.model
    model, trained.notes["rounds without a step"] = fed_osd(f, w, deletion, config, trained.next_round)
    return model
