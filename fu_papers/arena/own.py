"""The arena for a federation of one's own: which method, at what price, and how to show that it worked?

    frame = compare(federation, ["client-7"], rounds=20)
    results.ranking(frame)                            nearest to Retrain first

Any `fu_core.Federation` with a server will do, with its own data and net. What it cannot afford is told: a method whose
needs it does not meet is a row with the reason, and where retraining is too dear a reference judge takes the place of
the comparison with retrained models (`judges=WITHOUT_RETRAINING`).
"""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, MissingHistory, NumericalFailure, UnsupportedTask, check_choice, check_count
from fu_core.evaluation.lira import member_auc
from fu_core.evaluation.margins import LEAST_MODELS
from fu_core.federation import Federation, Meter
from fu_core.request import Deletion, Request
from fu_core.streams import stream
from fu_core.version import __version__
from fu_papers.arena import results
from fu_papers.arena.grid import CONTROLS, OF_ITS_KIND, YARDSTICK, controls_of, of_servers
from fu_papers.arena.judging import judged
from fu_papers.arena.pools import (
    CONSTANT,
    ENSEMBLES,
    LONGER,
    MUCH_LONGER,
    NOISY,
    ORDINARY,
    Pool,
    Recovery,
    Served,
    accuracies,
    control,
    distances,
    ensembles,
    evaluated,
    outputs_of,
    per_model,
    serve,
    trained_on,
)
from fu_papers.controls import AGAIN
from fu_papers.study import Cell, wide

Client = tuple[Tensor, Tensor]
JUDGES = {  # name -> its columns
    "klom": (
        "klom_forget",
        "klom_forget_p95",
        "klom_retain",
        "klom_test",
        "floor",
        "low",
        "high",
        "left",
        "left_draws",
    ),
    "u_lira": ("auc", "auc_low", "auc_high", "tpr_1", "tpr_01"),
    "rmia": ("rmia",),
    "epsilon": ("epsilon", "epsilon_null", "excess"),
    "exposure": ("exposure", "exposure_low", "exposure_high"),
}
NOISE = 1.0  # of the control Original with noise, in standard deviations of a model's parameters
DELTA = 1e-5
REFERENCE_JUDGE = "membership"
WITHOUT_RETRAINING = (REFERENCE_JUDGE,)  # the judges where nobody is retrained


@dataclass(frozen=True)
class Sizes:
    """How much is trained and looked at. models: N, trainings of each kind; examples: of each kind, for the judges;
    resamples: for intervals; recovery_cap, natural_rounds: rounds of FedAvg afterwards."""

    rounds: int
    models: int
    examples: int = 100
    resamples: int = 100
    recovery_cap: int = 10
    natural_rounds: int = 2

    @property
    def longer_rounds(self) -> int:
        """Of ordinary rounds, about what the dearest steps cost."""
        return max(1, round(0.4 * self.rounds))


def compare(
    federation: Federation,
    requests: Sequence[str],
    methods: Sequence[str] | None = None,
    judges: Sequence[str] = tuple(JUDGES),
    *,
    rounds: int = 20,
    models: int = 16,
    test: Client | None = None,
    watch: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Every method on every request: a row each, with its price, its utility and what the judges say.

    federation: with a server; `models` trainings from its seed on, `rounds` each; as many retrained twins, and as many
    retrained with other seeds, are what everybody is compared with. methods: names; by default all that are registered
    and work with a server. The controls take part in any case. judges: some of JUDGES, or
    WITHOUT_RETRAINING. test: samples nobody trains on; by default a fifth of each client's is put aside, from the
    stream (seed, "put aside", client). watch: hears what is being done.

    WITHOUT_RETRAINING trains the originals only: `membership` is then the AUC of telling forgotten samples from unseen
    ones by the margin of one model, mean over models, 0.5 is chance; columns of JUDGES are not there. Recovery ends at
    the original's accuracy then.

    Columns: setting ("own"), request, method, `reason` where there is no result, accuracies in percent, price (share of
    retraining's passes), bytes, storage, seconds, and those of JUDGES; `left`: percent of doing nothing's distance from
    Retrain.
    `frame.attrs["about"]` has seeds, versions, and the hash of every crowd of models. Raises ValueError for what is out
    of range, `InvalidRequest` for a request that names nobody, `UnsupportedTask` without a server.
    """
    seed, retrain = federation.seed, tuple(judges) != WITHOUT_RETRAINING
    for name in judges if retrain else ():
        check_choice("judges", name, JUDGES)
    check_count("models", models, least=LEAST_MODELS)
    sizes = Sizes(rounds, models)
    check_count("rounds", rounds)
    _ = federation.server
    if isinstance(requests, str) or not requests:
        raise InvalidRequest(f"requests must be a list of at least one request, ['client-3'] say, got {requests!r}")
    known = of_servers()
    chosen = list(known) if methods is None else list(methods)
    for name in chosen:
        check_choice("methods", name, known)
    names = (*controls_of(chosen), *(name for name in chosen if name not in CONTROLS))
    f, unseen = (federation, test) if test is not None else put_aside(federation, seed)
    half = len(unseen[1]) // 2
    held_out, shown = (unseen[0][:half], unseen[1][:half]), (unseen[0][half:], unseen[1][half:])
    told = watch or (lambda text: None)
    told(f"training {models} originals")
    seeds = list(range(seed, seed + models))
    originals = Pool.trained(f, seeds, rounds)
    hashes = {"originals": sha256(originals.w)}
    rows: dict[Cell, dict[str, Any]] = {}
    for request in requests:
        deletion = Request.parse(request).resolve(f.clients)
        place = _Place(f, request, deletion, held_out, shown, sizes, originals, retrain, told)
        for name, row, digest in place.served(names):
            rows[Cell("own", "", seed, request, name)] = row
            hashes |= {f"{request}: {name}": digest} if digest else {}
    frame = results.compared(wide(_tidy(rows)))
    dropped = [column for name, columns in JUDGES.items() if name not in judges for column in columns]
    frame = frame.drop(columns=[*dropped, "group", "label", "condition", "record"], errors="ignore")
    frame.attrs["about"] = {
        "seeds": f"{seeds[0]} to {seeds[-1]}; retrained: from {YARDSTICK + seed}",
        "models": models,
        "rounds": rounds,
        "clients": len(f.clients),
        "samples": int(f.sizes().sum()),
        "parameters": f.model.d,
        "versions": f"fu_core {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "retrained": retrain,
        "hashes": hashes,
    }
    return frame


def put_aside(federation: Federation, seed: int) -> tuple[Federation, Client]:
    """A fifth of each client's samples, at least one, aside: the federation without them, and they. Random: which."""
    kept: dict[int, Client] = {}
    aside: list[Client] = []
    for i, (x, y) in federation.clients.items():
        order = torch.randperm(len(y), generator=stream(seed, "put aside", i)).to(y.device)
        few = max(1, len(y) // 5)
        if len(y) <= few:
            raise InvalidRequest(f"client {i} holds {len(y)} sample; give `test`, or clients with at least two each")
        aside.append((x[order[:few]], y[order[:few]]))
        kept[i] = (x[order[few:]], y[order[few:]])
    x, y = (torch.cat(parts) for parts in zip(*aside, strict=True))
    mixed = torch.randperm(len(y), generator=stream(seed, "put aside")).to(y.device)
    return federation.having(clients=kept), (x[mixed], y[mixed])


@dataclass(frozen=True, eq=False)
class _Place:
    """One request in one federation."""

    f: Federation
    request: str
    deletion: Deletion
    held_out: Client
    shown: Client
    sizes: Sizes
    originals: Pool
    retrain: bool
    told: Callable[[str], None]

    def served(self, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Per method: its name, its row, and the hash of its models."""
        s, after = self.sizes, self.f.after(self.deletion)
        twins = other = None
        if self.retrain:
            self.told(f"{self.request}: retraining {2 * s.models} models")
            twins = self._pool(after, self.originals.seeds)
            other = self._pool(after, [seed + YARDSTICK for seed in self.originals.seeds])
        reference = self.originals if twins is None else twins[0]
        right = accuracies(outputs_of(self.f.model, reference.w, self.held_out[0]), self.held_out[1])
        rule = Recovery(self.held_out, float(np.mean(right)), s.recovery_cap, s.natural_rounds)
        for name in names:
            if name == "Retrain" or (name in (AGAIN, LONGER, MUCH_LONGER) and twins is None):
                continue
            self.told(f"{self.request}: {name}")
            try:
                if name == AGAIN:
                    assert twins is not None
                    served = self._retrained(*twins)
                elif name in (LONGER, MUCH_LONGER):
                    assert twins is not None
                    served = trained_on(replace(twins[0], f=self.f), self.deletion, self._rule(rule, name), twins[1])
                else:
                    served = self._served(name, self.originals, rule)
                yield name, self._row(name, served, twins, other, rule), _hash_of(served.models)
            except (UnsupportedTask, MissingHistory) as reason:
                yield name, {"reason": str(reason), "lost": "unsupported"}, ""
            except NumericalFailure as reason:
                yield name, {"reason": str(reason), "lost": "diverged"}, ""
            except Exception as error:  # of a net or a method of somebody's: the others' rows are not lost with it
                told = f"failed with {type(error).__name__}: {error}"
                warnings.warn(f"{name} {told}", stacklevel=2)
                yield name, {"reason": told, "lost": "unsupported"}, ""

    def _pool(self, after: Federation, seeds: Sequence[int]) -> tuple[Pool, dict[str, float]]:
        counted = after.having(meter=Meter())
        return Pool.trained(counted, seeds, self.sizes.rounds), per_model(counted.meter, len(seeds))

    def _retrained(self, pool: Pool, cost: Mapping[str, float]) -> Served:
        return Served.at_once(pool.w, cost)

    def _served(self, name: str, pool: Pool, rule: Recovery) -> Served:
        if name in (CONSTANT, NOISY):
            return Served.at_once(control(name, pool, NOISE))
        if name == ENSEMBLES:
            return Served.at_once(ensembles(pool))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the PUF step is")
            own = "Natural" if name == ORDINARY else name
            return serve(own, pool, self.deletion, self._rule(rule, name))

    def _rule(self, rule: Recovery, name: str) -> Recovery:
        return replace(rule, natural=self.sizes.longer_rounds) if name in (ORDINARY, MUCH_LONGER) else rule

    def _evaluated(self, served: Served) -> tuple[dict[str, Any], dict[str, Tensor]]:
        sides = {"forget": self.deletion.forget, "retain": self.deletion.retain, "test": self.shown}
        found, kept = evaluated(self.f.model, served, sides, self.sizes.examples)
        return found | {"samples": int(self.f.sizes().sum()), "distance": None}, kept

    def _row(
        self,
        name: str,
        served: Served,
        twins: tuple[Pool, dict[str, float]] | None,
        other: tuple[Pool, dict[str, float]] | None,
        rule: Recovery,
    ) -> dict[str, Any]:
        found, kept = self._evaluated(served)
        if twins is None or other is None:
            return _without_retraining(found, kept)
        again, kept_again = self._evaluated(self._retrained(*twins))
        found["distance"] = distances(
            served.models, other[0].w if name == AGAIN else twins[0].w, (self.originals.w, twins[0].w)
        )
        yardstick = self._retrained(*other)
        if name in OF_ITS_KIND:
            begun = Pool(self.f, other[0].seeds, self.sizes.rounds, other[0].w_0, other[0].w)
            yardstick = self._served(OF_ITS_KIND[name], begun, rule)
        _, kept_other = self._evaluated(yardstick)
        told = judged(kept, kept_other, kept_again, resamples=self.sizes.resamples, delta=DELTA)
        return results.row_of(told, [(found, len(served.recovery))], [(again, len(twins[0].seeds))])


def _without_retraining(found: Mapping[str, Any], kept: Mapping[str, Tensor]) -> dict[str, Any]:
    means = {side: float(np.mean(found[side])) for side in ("test", "forget", "retain", "recovery")}
    auc = member_auc(kept["forget"], kept["test"])
    costs = {name: found[name] for name in ("bytes", "rounds", "storage", "seconds")}
    passes = found["passes"] / found["samples"]
    gave_up = 1 - float(np.mean(found["reached"]))
    told = {"models": len(auc), REFERENCE_JUDGE: float(auc.mean()), "gave_up": gave_up}
    return {**told, **means, **costs, "passes": passes}


def _tidy(rows: Mapping[Cell, Mapping[str, Any]]) -> pd.DataFrame:
    long = [
        {**cell._asdict(), "metric": metric, "value": value, "record": ""}
        for cell, row in rows.items()
        for metric, value in row.items()
    ]
    frame = pd.DataFrame(long)
    return frame.assign(value=pd.Series([row["value"] for row in long], dtype=object))


def _hash_of(models: Tensor | list[Any]) -> str:
    if isinstance(models, Tensor):
        return sha256(models)
    return sha256(torch.cat([w for ensemble in models for w in ensemble.shards.values()]))


def sha256(w: Tensor) -> str:
    """Of the bytes of a crowd's parameters (N, d), 16 hex digits."""
    return hashlib.sha256(w.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
