"""In which world a place lies: with a server, with a backdoor, among peers, or in vertical parties.

A place of the arena is `data set/split/net`, with a server, or has a fourth part:

    .../backdoor-3      with a server; half of what client 3 holds carries a trigger and calls up another class
    .../ring            the same clients as peers on a ring, without a server
    .../complete        everybody linked to everybody, which is a server's average without one
    .../vertical        two parties with half of the features each; a request names the very samples that it names
                        among clients

A `World` is what such a place consists of: federation, nets, the request's samples, and the pool that trains N models.
Peers are judged by the average of their models, as the paper's final model is; vertical parties by their nets together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from fu_core.errors import ConfigError, check_choice
from fu_core.evaluation.backdoor import Trigger, attack_success, poison
from fu_core.federation import Federation, Meter
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.graphs import Peers, topology
from fu_core.federation.vertical import Boundary, Parties, VerticalFederation, deal, predict, split_features, train
from fu_core.models import FlatModel, build
from fu_core.models.bottoms import BOTTOMS
from fu_core.request import Deletion, Request
from fu_core.streams import stream_seed
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.method import Trained
from fu_papers.arena.pools import Pool, Recovery, Sides, accuracies, outputs_of
from fu_papers.fedora.problem import column_blocks
from fu_papers.lab.device import device
from fu_papers.problems import Problem, Setting, client_opt, problem
from fu_papers.puf.trainings import TRIGGER

SERVER = "server"
GRAPHS = ("ring", "complete")
BACKDOOR, VERTICAL = "backdoor", "vertical"
WORLDS = (BACKDOOR, *GRAPHS, VERTICAL)  # the fourth part of a place
NAMES = {SERVER: "a server", BACKDOOR: "a backdoor", "ring": "peers on a ring",
         "complete": "peers, all linked", VERTICAL: "vertical parties"}  # fmt: skip


@dataclass(frozen=True)
class Where:
    """A place's text, read. world: one of WORLDS, or SERVER; poisoned: the client that carries a backdoor, or -1."""

    setting: Setting
    world: str = SERVER
    poisoned: int = -1

    @classmethod
    def parse(cls, text: str) -> Where:
        """Read `data set/split/net` or `data set/split/net/world`; raises ConfigError naming what is wrong."""
        *three, last = text.split("/")
        if len(three) != 3:
            return cls(Setting.parse(text))
        setting = Setting.parse("/".join(three))
        world, _, client = last.partition("-")
        check_choice(f"world of {text!r}", world, WORLDS, ConfigError)
        if (world == BACKDOOR) != client.isdecimal():
            raise ConfigError(f"world of {text!r} must be one of {', '.join(GRAPHS)}, vertical or backdoor-<client>")
        if world == VERTICAL:
            check_choice(f"net of {text!r}", setting.model, BOTTOMS, ConfigError)
        return cls(setting, world, int(client) if client else -1)

    @property
    def exchange(self) -> str:
        """Which methods work here, see `Method.exchanges`."""
        return "peers" if self.world in GRAPHS else VERTICAL if self.world == VERTICAL else "server"

    def fields(self) -> dict[str, Any]:
        """Of a run's config. Those of a server's place say nothing of worlds."""
        beyond: dict[str, Any] = {} if self.world == SERVER else {"world": self.world}
        if self.world == BACKDOOR:
            beyond["poisoned"] = self.poisoned
        return {**asdict(self.setting), **beyond}


def world_of(text: str) -> str:
    """The world of a place's text."""
    return Where.parse(text).world


# --- peers -----------------------------------------------------------------------------------------------------------


class PeerPool(Pool):
    """N trainings by D-PSGD, one after another. w (N, K, d): everybody's models; judged is their average (N, d)."""

    @classmethod
    def trained(cls, f: Federation, seeds: Sequence[int], rounds: int, deletion: Deletion | None = None) -> Self:
        w_0 = cls.starts(f, seeds)
        left = f if deletion is None else f.after(deletion)
        w = [dpsgd(left.having(seed=seed), start, rounds) for seed, start in zip(seeds, w_0, strict=True)]
        return cls(f, list(seeds), rounds, w_0, torch.stack(w))

    def memories(self, history: bool) -> list[Memory | PeerHistory]:
        kept: list[Memory | PeerHistory] = []
        for seed, w_0 in zip(self.seeds, self.w_0, strict=True):
            f = self.f.having(seed=seed, meter=Meter())
            own = PeerHistory(gamma=f.local.lr, decay=f.local.lr_decay)
            dpsgd(f, w_0, self.rounds, on_updates=own.record)
            kept.append(own)
        return kept

    def recover(
        self, models: list[Any], deletion: Deletion, first_round: int, rule: Recovery, fixed: int | None
    ) -> tuple[list[Any], list[int], list[bool], Meter]:
        stays, after, done = self.f.after(deletion).having(meter=Meter()), [], []
        for seed, W in zip(self.seeds, models, strict=True):
            rounds = 0
            while rounds < (rule.cap if fixed is None else fixed):
                if fixed is None and self._good_enough(W, rule):
                    break
                W = dpsgd(stays.having(seed=seed), W, 1, first_round=first_round + rounds)
                rounds += 1
            after.append(W)
            done.append(rounds)
        return after, done, [fixed is not None or self._good_enough(W, rule) for W in after], stays.meter

    def _good_enough(self, W: Tensor, rule: Recovery) -> bool:
        x, y = rule.held_out
        return accuracies(outputs_of(self.f.model, W.mean(dim=0, keepdim=True), x), y)[0] >= rule.goal

    @staticmethod
    def to_judge(models: Sequence[Any]) -> Tensor:
        """The average of each training's peers."""
        return torch.stack([W.mean(dim=0) for W in models])


# --- vertical parties ------------------------------------------------------------------------------------------------


class VerticalPool(Pool):
    """N joint trainings of vertical parties, one after another. w (N, d): all nets' parameters in party order.

    `rounds` counts epochs. No vertical method recovers; who is trained on does so by ordinary epochs.
    """

    @classmethod
    def trained(
        cls, f: VerticalFederation, seeds: Sequence[int], rounds: int, deletion: Deletion | None = None
    ) -> Self:
        w_0 = cls.starts(f, seeds)
        rows = torch.arange(len(f.parties.active.y), device=device()) if deletion is None else deletion.retain[0]
        fresh = cls(f, list(seeds), rounds, w_0, w_0)
        return replace(fresh, w=torch.stack([fresh._trained(k, w_0[k], rows, rounds)[0] for k in range(len(seeds))]))

    @staticmethod
    def starts(f: VerticalFederation, seeds: Sequence[int]) -> Tensor:
        """As `deal` draws them: each party's parameters from the stream of (seed, "init", party)."""
        nets: list[tuple[int | str, FlatModel]] = [*enumerate(party.model for party in f.parties.passive)]
        nets.append(("active", f.parties.active.model))
        fresh = [torch.cat([net.init(stream_seed(seed, "init", party)) for party, net in nets]) for seed in seeds]
        return torch.stack(fresh).to(device())

    def _trained(self, k: int, w: Tensor, rows: Tensor, epochs: int, first: int = 1) -> tuple[Tensor, Meter]:
        """The k-th training's parameters (d,) after so many epochs from `w`, and the federation's meter."""
        f = self.f.having(parties=having(self.f.parties, w), seed=self.seeds[k])
        return torch.cat(train(f, rows, f.optimisers(), epochs, first_epoch=first).w), f.meter

    def one(self, k: int, memory: Memory | PeerHistory) -> Trained:
        f = self.f.having(parties=having(self.f.parties, self.w[k]), seed=self.seeds[k])
        return Trained(f, None, self.rounds, self.w_0[k], memory)

    def recover(
        self, models: list[Any], deletion: Deletion, first_round: int, rule: Recovery, fixed: int | None
    ) -> tuple[list[Any], list[int], list[bool], Meter]:
        epochs, counted = fixed or 0, replace(self, f=self.f.having(meter=Meter()))
        after = [
            counted._trained(k, w, deletion.retain[0], epochs, first_round)[0] for k, w in enumerate(self.flat(models))
        ]
        return after, [epochs] * len(after), [True] * len(after), counted.f.meter

    def unseen(self, held_out: tuple[Tensor, Tensor], deletion: Deletion) -> list[Tensor]:
        x, _ = super().unseen(held_out, deletion)
        return list(x.split([party.x.shape[-1] for party in self.f.parties.passive], dim=-1))

    @staticmethod
    def flat(models: Sequence[Any]) -> list[Tensor]:
        """Vectors (d,), also of parties."""
        return [torch.cat(model.w) if isinstance(model, Parties) else model for model in models]

    @staticmethod
    def to_judge(models: Sequence[Any]) -> Tensor:
        """All nets' parameters."""
        return torch.stack(VerticalPool.flat(models))


def having(parties: Parties, w: Tensor) -> Parties:
    """The parties with the parameters w (d,), in party order."""
    return parties.having(list(w.split([len(w_k) for w_k in parties.w])))


@dataclass(frozen=True)
class Joined:
    """The nets of vertical parties as one: whole samples in, logits out."""

    parties: Parties
    blocks: list[Tensor]
    dense_tail: FlatModel | None = None

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        """Logits (n, C) of samples x (n, ...) under all parameters w (d,)."""
        return predict(having(self.parties, w), split_features(x, self.blocks))


# --- worlds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class World:
    """A run's federation, whatever its seed. model: what judged vectors are parameters of; pools: how it trains."""

    p: Problem
    f: Any
    model: Any
    pools: type[Pool] = Pool
    trigger: Trigger | None = None
    rounds_in_epochs: float = 1.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> World:
        """The world of a run's config."""
        p, world = problem(config), config.get("world", SERVER)
        f = p.federation({**config, "seed": 0})
        if world in GRAPHS:
            model = build(config["model"], p.dataset, l2=config["l2"])
            graph = topology(world, config["clients"])
            return cls(p, f.having(model=model, exchange=Peers(graph)), model, PeerPool)
        if world == BACKDOOR:
            i = config["poisoned"]
            carrying = poison(f.clients[i], TRIGGER, fraction=0.5, seed=0, client_id=i)
            return cls(p, f.having(clients={**f.clients, i: carrying}), p.model, trigger=TRIGGER)
        if world == VERTICAL:
            blocks = column_blocks(p.dataset)
            parties, _ = deal(p.dataset, bottom=config["model"], seed=0, blocks=blocks, device=device())
            local = client_opt({**config, "epochs": 1.0})
            joint = VerticalFederation(parties, local, 0, Boundary(name="arena"))
            return cls(p, joint, Joined(parties, blocks), VerticalPool, rounds_in_epochs=config["epochs"])
        return cls(p, f, p.model)

    def starts(self, seeds: Sequence[int]) -> Tensor:
        """Where trainings begin (N, d)."""
        return self.pools.starts(self.f, seeds)

    def vectors(self, w: Tensor) -> Tensor:
        """A pool's models (N, ...) as judges look at them (N, d)."""
        models = self.pools.to_judge(list(w))
        assert isinstance(models, Tensor)  # pools hold no ensembles
        return models

    def rounds(self, rounds: int) -> int:
        """So many of the pool's rounds as `rounds` of the federation's."""
        return max(1, round(rounds * self.rounds_in_epochs))

    def deletion(self, request: str) -> Deletion:
        """What a request takes. Of vertical parties: the samples that it takes of the clients of the same data."""
        if self.pools is not VerticalPool:
            return Request.parse(request).resolve(self.f.clients)
        parts = self.p.parts
        gone = Request.parse(request).rows({i: self.p.dataset.y_train[part] for i, part in enumerate(parts)})
        rows = torch.cat([parts[i][chosen] for i, chosen in gone.items()]).sort().values
        return Deletion.of(self.f.clients, {0: rows})

    def sides(self, deletion: Deletion) -> Sides:
        """The samples (x, y) that judges look at: forgotten, retained, and never seen."""
        sides = {"forget": deletion.forget, "retain": deletion.retain, "test": self.p.test}
        if self.pools is VerticalPool:
            x = self.p.dataset.x_train.to(device())
            sides |= {side: (x[rows], y) for side, (rows, y) in sides.items() if side != "test"}
        return sides

    def trained(self, seeds: Sequence[int], rounds: int, request: str) -> Pool:
        """N trainings on what a request leaves; "none" leaves everything."""
        deletion = None if request == "none" else self.deletion(request)
        return self.pools.trained(self.f, seeds, self.rounds(rounds), deletion)

    def attack_success(self, models: Tensor | list[Any]) -> list[float] | None:
        """How often the trigger calls up its class (percent) under each model; None where nothing carries one."""
        if (trigger := self.trigger) is None:
            return None

        def success(one: Tensor | list[Any]) -> float:
            return attack_success(lambda x: outputs_of(self.model, one, x)[0], *self.p.test, trigger)

        return [success(models[k : k + 1]) for k in range(len(models))]
