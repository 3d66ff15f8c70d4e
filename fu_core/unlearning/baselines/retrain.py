"""The two references: the model as it is (Original), and the one that never saw the forgotten data (Retrain)."""

from __future__ import annotations

from torch import Tensor

from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.server import FedOpt
from fu_core.federation.vertical import Parties, VerticalFederation, train
from fu_core.request import Deletion
from fu_core.unlearning.method import EXCHANGES, REFERENCE, NoParameters, Trained, register
from fu_core.unlearning.needs import Needs


def ordinary_rounds(f: Federation, w: Tensor, rounds: int, *, first_round: int = 1) -> Tensor:
    """Train on from `w` as such a federation does: w (d,) by a server that keeps it, the models (K, d) among peers."""
    if not isinstance(f.exchange, FedOpt):
        return dpsgd(f, w, rounds, first_round=first_round)
    w = fedavg(f, w, rounds, first_round=first_round)
    f.meter.keep("global model", w)
    return w


def retrain(f: Federation, w_0: Tensor, deletion: Deletion, rounds: int) -> Tensor:
    """The model (d,), or each peer's (K, d), trained from `w_0` (d,) on retained data only. PUF, Sec. V-C.

    Who leaves takes no part, who forgets samples trains on the others. Streams are named by client, so everybody
    else sees the very batches of the original training; if nobody forgets anything, the result equals it bit for bit.
    """
    return ordinary_rounds(f.after(deletion), w_0.clone(), rounds)


@register(
    "Original",
    paper=REFERENCE,
    colour="#6a6a6a",
    dash=":",
    needs=Needs(blind=True),
    exchanges=EXCHANGES,
    recovers=False,
)
def original(trained: Trained, deletion: Deletion, config: NoParameters) -> Tensor | Parties:
    """A copy of the model (d,), of the models (K, d) of the peers who stay, or of the parties: nothing is done."""
    if trained.exchange == "vertical":
        parties = trained.vertical.parties
        return parties.having([w_k.clone() for w_k in parties.w])
    return trained.staying(deletion)


@register(
    "Retrain",
    paper=REFERENCE,
    colour="#000000",
    dash="--",
    needs=Needs(full_participation=True, several_rounds=True),
    exchanges=EXCHANGES,
    guarantee="exact",
    recovers=False,
)
def serve(trained: Trained, deletion: Deletion, config: NoParameters) -> Tensor | Parties:
    """As many rounds (of vertical parties: epochs) as the original training had, from where it began."""
    w_0, rounds = trained.began
    if trained.exchange == "vertical":
        return _retrain_parties(trained.vertical, w_0, deletion, rounds)
    return retrain(trained.horizontal, w_0, deletion, rounds)


def _retrain_parties(f: VerticalFederation, w_0: Tensor, deletion: Deletion, epochs: int) -> Parties:
    """w_0 (d,): everybody's parameters before training, in party order."""
    fresh = list(w_0.split([len(w_k) for w_k in f.parties.w]))
    rows, _ = deletion.retain
    return train(f.having(parties=f.parties.having(fresh)), rows, f.optimisers(), epochs)
