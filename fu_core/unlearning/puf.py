"""PUF: unlearning with negated pseudo-gradients (Mora et al., Sec. IV-B, Algorithm 1).

The leaving clients S- train once more, like everyone else. The server negates and scales their part:

    Delta+ = 1/n sum_{i in S+} n_i Delta_i                                             (5)
    Delta- = 1/n sum_{j in S-} n_j Delta_j                                             (6)
    Delta  = eta_r Delta+ - eta_u Delta-            PUF-Regular, everybody takes part   (7)
    w_u    = w_t + eta_s Delta                      PUF-Special: S+ is empty         (8, 9)

`n` counts only who takes part. A single Special target therefore has weight 1 and a Regular one about
p_u = n_u / n: eta_u = 2 (Special) and eta_u = 20 (Regular) push equally hard when p_u = 0.1. The step
that matters is `effective_step`.

Algorithm 1 prints the sums without n_i (lines 15-16); read to the letter, the step is about |D_i|
times too small (errata P6). `form="printed"` is that reading.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_choice, check_not_negative, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.federation.server import ServerState, aggregate, server_step
from fu_core.federation.together import train_round
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.ranges import Range

MODES = ("special", "regular")
FORMS = ("corrected", "printed")
SPECIAL = {"eta_u": Range(0.25, 8.0, "log")}  # the paper has 2: from an eighth to four times as much
REGULAR = {"eta_u": Range(2.5, 80.0, "log")}  # ten times as much: the same push where one of ten clients leaves


@dataclass(frozen=True)
class PUF:
    """Hyper-parameters of an unlearning round; the defaults are the paper's for PUF-Special."""

    mode: str = "special"
    eta_u: float = 2.0  # the paper: 2 (Special), 20 (Regular)
    eta_r: float = 1.0
    epochs_u: float = 1.0  # E_u
    augment: bool = False  # at the targets: the paper only normalises, its released code augments as in training
    special_sample_norm: str = "forget"  # "full": divide by the target's full size, as the released code does
    form: str = "corrected"
    allow_adaptive_special: bool = False

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        check_choice("form", self.form, FORMS)
        check_choice("special_sample_norm", self.special_sample_norm, ("forget", "full"))
        check_positive("eta_u", self.eta_u, InvalidRequest)
        check_not_negative("eta_r", self.eta_r, InvalidRequest)
        check_positive("epochs_u", self.epochs_u)


def pseudo_gradient(
    deltas: Tensor,
    sizes: Tensor,
    targets: Tensor,
    *,
    mode: str = "special",
    eta_u: float,
    eta_r: float = 1.0,
    form: str = "corrected",
    n: float | None = None,
) -> Tensor:
    """`Delta = eta_r Delta+ - eta_u Delta-` (d,), Eqs. (5)-(7). Arguments as for `puf`.

    Here eta_u = 0 is allowed (nobody is negated). `n`: what Eqs. (5)-(6) divide by; by default the
    samples of all who take part.
    """
    plus, minus = _shares(sizes, targets, mode, form, n)
    delta_plus = aggregate(deltas, plus)  # Delta+ = 1/n sum_{S+} n_i Delta_i
    delta_minus = aggregate(deltas, minus)  # Delta- = 1/n sum_{S-} n_j Delta_j
    return eta_r * delta_plus - eta_u * delta_minus


def puf(
    w: Tensor,
    deltas: Tensor,
    sizes: Tensor,
    targets: Tensor,
    *,
    mode: str = "special",
    eta_u: float,
    eta_r: float = 1.0,
    form: str = "corrected",
) -> Tensor:
    """The unlearned model (d,) from one round of ordinary updates. PUF, Eqs. (4)-(9). Deterministic.

    w (d,): the global model; deltas (N, d): each participant's update, new minus old, *not* negated;
    sizes (N,): samples each trained on; targets (N,) bool: who leaves. Rows of non-targets are ignored
    in mode "special". Raises `InvalidRequest` if nobody is targeted, if a Regular round has nobody
    else, or if eta_u <= 0 or eta_r < 0.
    """
    check_positive("eta_u", eta_u, InvalidRequest)
    check_not_negative("eta_r", eta_r, InvalidRequest)
    step = pseudo_gradient(deltas, sizes, targets, mode=mode, eta_u=eta_u, eta_r=eta_r, form=form)
    return w + step  # w_u = w_t + eta_s Delta, with a server that averages: eta_s = 1


def effective_step(sizes: Tensor, targets: Tensor, *, mode: str, eta_u: float) -> float:
    """`eta_u |D_u| / n`: how many times the targets' mean update is subtracted (errata P7)."""
    _, minus = _shares(sizes, targets, mode, "corrected", None)
    return eta_u * float(minus.sum())


def puf_round(f: Federation, w: Tensor, deletion: Deletion, config: PUF, round: int) -> Tensor:
    """One PUF round on a real federation: train, negate, apply. Returns the unlearned model (d,).

    Without `config.augment` targets train on their images as they are; those who stay augment as in training, though
    the paper's sentence (Sec. V-A) may mean them, too.

    A target that leaves trains on all it has. One that forgets samples trains on those; in a Regular round it takes
    part twice, with what it keeps on the other side. Where only a share of the clients takes part in a round
    (`f.participation`), a Regular round has that share of those who stay, and every target: PUF does not need everybody
    (Table I).

    The server's moments start afresh, since the old ones contain the targets' updates. Adam and Yogi
    normalise the step, so a Special round would hardly depend on eta_u: `InvalidRequest` unless
    `config.allow_adaptive_special`. Warns if the step is longer than the model itself; `NumericalFailure` if it ends in
    NaN or infinity.
    """
    if config.mode == "special" and f.server.kind != "sgd" and not config.allow_adaptive_special:
        raise InvalidRequest(
            f"server optimiser {f.server.kind!r} normalises a Special round, so that eta_u={config.eta_u} would hardly "
            "matter; use mode='regular' or server 'sgd', or set allow_adaptive_special=True"
        )
    everybody, minus_ids, plus_ids = participants(f, deletion, config.mode, round)
    augmentation = f.local.augmentation if config.augment else "none"
    f = f.having(clients=everybody)
    at_targets = f.having(local=replace(f.local, epochs=config.epochs_u, augmentation=augmentation))

    rounds_before = f.meter.rounds
    updates = [train_round(at_targets, w, round, minus_ids)]
    if plus_ids:
        updates += [train_round(f, w, round, plus_ids)]
    f.meter.rounds = rounds_before + 1  # both groups train in the same round
    f.meter.keep("global model", w)

    sizes = f.sizes([*minus_ids, *plus_ids])
    leaving = torch.arange(len(sizes)) < len(minus_ids)
    n = None
    if config.mode == "special" and config.special_sample_norm == "full":
        n = float(sum(len(deletion.clients[j][1]) for j in deletion.targets))
    delta = pseudo_gradient(
        torch.cat(updates),
        sizes,
        leaving,
        mode=config.mode,
        eta_u=config.eta_u,
        eta_r=config.eta_r,
        form=config.form,
        n=n,
    )
    w_unlearned, _ = server_step(w, delta, f.server, ServerState())
    if not bool(w_unlearned.isfinite().all()):
        raise NumericalFailure(
            f"round {round}: the unlearned model is not finite; lower eta_u (now {config.eta_u:g}) or eta_r "
            f"(now {config.eta_r:g})"
        )
    warn_if_far(w, w_unlearned)
    return w_unlearned


@register("PUF-Special", paper="PUF", colour="#d55e00", parameters=PUF, preset={"mode": "special"}, ranges=SPECIAL)
@register(
    "PUF-Regular",
    paper="PUF",
    colour="#e69f00",
    parameters=PUF,
    preset={"mode": "regular", "eta_u": 20.0},
    ranges=REGULAR,
)
def serve(trained: Trained, deletion: Deletion, config: PUF) -> Tensor:
    """The unlearning round that follows training."""
    return puf_round(trained.horizontal, trained.model, deletion, config, trained.next_round)


def _shares(sizes: Tensor, targets: Tensor, mode: str, form: str, n: float | None) -> tuple[Tensor, Tensor]:
    """Weights (N,) of every update in Delta+ and in Delta-."""
    check_choice("mode", mode, MODES)
    check_choice("form", form, FORMS)
    targets = torch.as_tensor(targets, dtype=torch.bool)
    sizes = torch.as_tensor(sizes, dtype=torch.float64)
    if targets.shape != sizes.shape:
        raise InvalidRequest(f"targets must have one entry per participant ({len(sizes)}), got {tuple(targets.shape)}")
    if not targets.any():
        raise InvalidRequest("targets names nobody: at least one participant must leave")
    if mode == "regular" and targets.all():
        raise InvalidRequest("targets names every participant: a Regular round needs somebody who stays")
    takes_part = targets if mode == "special" else torch.ones_like(targets)
    total = float(sizes[takes_part].sum()) if n is None else n
    if total <= 0:
        raise InvalidRequest(f"the participants hold {total:g} samples; at least one is needed")
    per_update = sizes if form == "corrected" else torch.ones_like(sizes)  # lines 15-16 as printed lack n_i
    share = per_update / total
    return torch.where(takes_part & ~targets, share, 0.0), torch.where(targets, share, 0.0)


def participants(
    f: Federation, deletion: Deletion, mode: str, round: int
) -> tuple[dict[int, Client], list[int], list[int]]:
    """The data by id, the ids of S- and the ids of S+: all who forget, and those who stay and take part in `round`.

    The forget part of a target j that stays is a participant of its own, N + j, so that it has its own random stream.
    """
    N = 1 + max(deletion.clients)
    twice = {j: N + j for j in deletion.targets if j in deletion.kept}
    minus = {twice.get(j, j): client for j, client in deletion.forgotten.items()}
    plus_ids = f.having(clients=deletion.kept).taking_part(round) if mode == "regular" else []
    return {**minus, **{i: deletion.kept[i] for i in plus_ids}}, list(minus), plus_ids


def warn_if_far(w: Tensor, w_unlearned: Tensor) -> None:
    """Warn if an unlearning step from `w` (d,) is longer than the model itself: recovery may not come back."""
    moved = float((w_unlearned - w).norm() / w.norm().clamp(min=1e-12))
    if moved > 1:
        warnings.warn(f"the PUF step is {moved:.2f} times as long as the model; eta_u may be too large", stacklevel=3)
