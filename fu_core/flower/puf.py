"""PUF alone, for models of any kind, in a federation whose clients know nothing of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedModel
from fu_core.flower.messages import ROUND, like, the_only, to_vector
from fu_core.flower.strategies import Departure
from fu_core.unlearning.puf import PUF, pseudo_gradient, warn_if_far


class PufStrategy(Departure):
    """FedAvg that forgets: `unlearning_round` is a round of PUF, from then on the targets are left out.

    nodes: the Flower node of every client, in client order (`client_nodes`, or from the operator's records);
    targets: the clients that leave, as indices of `nodes`; nobody makes it plain FedAvg. unlearning_round: a
    server round, from 1. mode: in a "special" round only the targets train, in a "regular" one all who would
    otherwise, and the targets in any case. eta_u, eta_r: as in `PUF`, whose eta_u fits "special" (the paper
    has 20 for "regular"). fedavg: FedAvg's own parameters; its `weighted_by_key` counts samples here, too.

    Clients get nothing but the usual message, so E_u and augmentation are what their ClientApp does in any round:
    the model is that of `puf_round` with `PUF(epochs_u=local.epochs, augment=True)`, and so is the warning if the
    step is longer than the model itself. Random: as in FedAvg, who is sampled if `fraction_train` < 1.

    Raises `InvalidRequest` for wrong targets or rounds, if Flower would wait forever for more clients than stay, or
    if a target does not answer; `UnsupportedModel` for arrays of integers, which come with running statistics;
    `NumericalFailure` if the unlearned model is not finite.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        targets: Sequence[int],
        unlearning_round: int,
        *,
        mode: str = "special",
        eta_u: float = PUF.eta_u,
        eta_r: float = PUF.eta_r,
        **fedavg: Any,
    ) -> None:
        super().__init__(nodes, targets, unlearning_round, **fedavg)
        self.config = PUF(mode=mode, eta_u=eta_u, eta_r=eta_r)
        self._sent = ArrayRecord()  # w_t of the unlearning round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's messages: FedAvg's, in the unlearning round to S- and S+, afterwards to those who stay."""
        if self.leaving:
            _check_only_parameters(arrays)
        staying = self._staying(grid, server_round)
        if not self._unlearns_in(server_round):
            return super().configure_train(server_round, arrays, config, staying)
        self._sent = arrays
        config[ROUND] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        messages = [Message(content, node, MessageType.TRAIN) for node in self.leaving]
        if self.config.mode == "regular":
            messages += super().configure_train(server_round, arrays, config, staying)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedAvg's mean, but in the unlearning round the targets' updates negated and scaled (Eqs. 5-9)."""
        if not self._unlearns_in(server_round):
            return super().aggregate_train(server_round, replies)
        valid, failed = self._check_and_log_replies(replies, is_train=True)
        self._check_all_targets_replied(valid, failed)
        names = list(self._sent)
        w = to_vector(self._sent, names)
        contents = [reply.content for reply in valid]
        deltas = torch.stack([to_vector(the_only(c.array_records), names) - w for c in contents])  # Delta_i = w_i - w
        sizes = torch.tensor([the_only(c.metric_records)[self.weighted_by_key] for c in contents], dtype=torch.float64)
        leaves = torch.tensor([reply.metadata.src_node_id in self.leaving for reply in valid])
        how = self.config
        unlearned = w + pseudo_gradient(deltas, sizes, leaves, mode=how.mode, eta_u=how.eta_u, eta_r=how.eta_r)
        if not bool(unlearned.isfinite().all()):
            raise NumericalFailure(f"round {server_round}: the unlearned model is not finite")
        warn_if_far(w, unlearned)
        return like(self._sent, unlearned, names), self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _check_all_targets_replied(self, valid: list[Message], failed: list[Message]) -> None:
        answered = {reply.metadata.src_node_id for reply in valid}
        reasons = {reply.metadata.src_node_id: reply.error.reason for reply in failed}
        for node, j in self.leaving.items():
            if node not in answered:
                raise InvalidRequest(
                    f"target {j} (node {node}) sent no update in the unlearning round {self.unlearning_round}, so that "
                    f"nothing can be negated: {reasons.get(node, 'no reply')}"
                )


def _check_only_parameters(arrays: ArrayRecord) -> None:
    """Only parameters can be extrapolated; running statistics are given away by their counters."""
    for name, array in arrays.items():
        if np.dtype(array.dtype).kind != "f":
            raise UnsupportedModel(
                f"array {name!r} is {array.dtype}: PUF negates updates, which only parameters have; "
                "use GroupNorm or LayerNorm instead of running statistics"
            )
