"""The arena's grid: which runs its tables and figures ask for.

An `Experiment` holds all parameters of notebook 05_arena and turns them into the flat configs of the runs in
fu_papers.arena.runs. A place is a setting and a request; a pool is N federations with a training seed each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import model_validator

from fu_core.errors import ConfigError, check_choice, check_count
from fu_core.evaluation.margins import LEAST_MODELS
from fu_core.request import Request
from fu_core.unlearning.method import Method
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import methods as registered_methods
from fu_papers.arena.parameters import ArenaParameters
from fu_papers.arena.pools import BY_HAND, ENSEMBLES, LONGER, MUCH_LONGER, NOISY, ORDINARY
from fu_papers.arena.worlds import SERVER, Where
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES
from fu_papers.problems import Setting, client_opt, plain_fields
from fu_papers.study import Cell

CONTROLS = (*REFERENCES, AGAIN, *BY_HAND, DESTROYED)
YARDSTICK = 1_000_000  # the first seed of the pool that everybody is compared with: no training shares one with it
CONVOLUTIONAL = ("tiny_cnn", "lenet", "simple_cnn", "strided_cnn", "small_resnet", "resnet18")  # trained one by one
OF_ITS_KIND = {"SISA": "SISA", ENSEMBLES: "SISA"}  # whose retraining a method is compared with, if not the plain one
OWN_YARDSTICK = {*OF_ITS_KIND.values()}  # models of another kind: what it gives for other seeds is its own retraining
GROUP = "arena"
REQUESTS = ("requests", "skewed_requests")
FEWER = ("few_models", "memory_models", "slow_models", "further_models")


class Experiment(ArenaParameters):
    """All parameters of notebook 05_arena, and the runs that they ask for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """What one value says about another. Raises ConfigError naming them."""
        check_count("clients", self.clients, least=3, error=ConfigError)  # two leave, and somebody must stay
        for name in ("models", *FEWER, "chunk"):
            check_count(name, getattr(self, name), least=LEAST_MODELS, error=ConfigError)
        # their twins are told apart from those of fewer models by their number
        check_count("large_models", self.large_models, least=self.models + 1, error=ConfigError)
        for setting in self.settings:
            Setting.parse(setting)  # a server's: three parts
        if not list(self.places()):
            raise ConfigError(f"skewed_requests must name a request for settings {self.settings}, got none")
        exchanges = {Where.parse(setting).exchange for setting, _ in self.places()}
        known = {name: about for name, about in registered_methods().items() if name not in CONTROLS}
        at_work = [name for name, about in known.items() if exchanges & {*about.exchanges}]
        for field, allowed in (("methods", at_work), ("slow_methods", known), ("absent", known)):
            for name in getattr(self, field):
                check_choice(field, name, allowed, ConfigError)
        for text in self.large_places:
            check_choice("large_places", text, [" ".join(place) for place in self.places()], ConfigError)
        further = [request for _, request in self.further()]
        for name, texts in {**{name: getattr(self, name) for name in REQUESTS}, "further_places": further}.items():
            for text in texts:
                named = Request.parse(text).clients
                if outside := [i for i in named if i >= self.clients]:
                    raise ConfigError(f"{name} names client {outside[0]}, but clients are 0 to {self.clients - 1}")
        client_opt(dict(self))
        return self

    @property
    def entrants(self) -> tuple[str, ...]:
        """Who takes part where there is a server."""
        return self.entrants_of("server")

    def entrants_of(self, exchange: str) -> tuple[str, ...]:
        """Who works there and takes part, controls first: whoever is registered, a reader's own method, too."""
        able = [name for name, about in registered_methods().items() if exchange in about.exchanges]
        chosen = self.methods or [name for name in able if name not in self.absent]
        taking_part = [name for name in chosen if name in able and name not in CONTROLS]
        return (*controls_of(taking_part, exchange), *taking_part)

    def places(self) -> Iterator[tuple[str, str]]:
        """Every setting with every request that is served there; those beyond a plain server last."""
        for setting in self.settings:
            skewed = Setting.parse(setting).skewed
            yield from ((setting, request) for request in (self.skewed_requests if skewed else self.requests))
        yield from self.further()

    def further(self) -> Iterator[tuple[str, str]]:
        """Single places: of settings that serve one request only, and all in another world than a plain server's."""
        for text in self.further_places:
            setting, request = place_of(text)
            where = Where.parse(setting)
            if where.world == SERVER and setting in self.settings:
                raise ConfigError(f"further_places must not name what settings has for all its requests, got {text!r}")
            if where.poisoned >= 0 and Request.parse(request).clients != (where.poisoned,):
                raise ConfigError(f"further_places must ask the client with the backdoor to leave, got {text!r}")
            yield setting, request

    def _of(self, setting: str) -> tuple[str, ...]:
        return self.entrants_of(Where.parse(setting).exchange)

    def meetings(self) -> Iterator[tuple[str, str, str]]:
        """Every setting and request with every method that works there."""
        for setting, request in self.places():
            for name in self._of(setting):
                yield setting, request, name

    def size(self, setting: str, name: str = "Original") -> int:
        """N, how many models of a method are judged in a setting."""
        where, name = Where.parse(setting), OF_ITS_KIND.get(name, name)
        if where.world != SERVER:
            return min(self.further_models, self.slow_models) if name in self.slow_methods else self.further_models
        N = self.few_models if where.setting.model in CONVOLUTIONAL else self.models
        if name not in (AGAIN, *BY_HAND) and remembers(name):
            N = min(N, self.memory_models)
        return min(N, self.slow_models) if name in self.slow_methods else N

    @property
    def crowd(self) -> str:
        """The label of large crowds."""
        return f"{self.large_models} models"

    # --- configs of runs ---

    def pool(self, setting: str, request: str, first_seed: int, models: int) -> dict[str, Any]:
        """The config of one `train` run: so many trainings of everybody ("none"), or of what `request` leaves."""
        shared = {name: getattr(self, name) for name in ("clients", "n_train", "n_val", "n_test", "rounds")}
        local = plain_fields(client_opt(dict(self)))
        about: dict[str, Any] = {"request": request, "first_seed": first_seed, "models": models}
        where = Where.parse(setting)
        if where.exchange == "peers":
            about["l2"] = float(self.peers_l2)
        return {**where.fields(), **shared, **local, **about}

    def chunks(self, setting: str, request: str, N: int, first_seed: int = 0) -> list[dict[str, Any]]:
        """N trainings, in runs of at most `chunk` models."""
        starts = range(0, N, self.chunk)
        return [self.pool(setting, request, first_seed + k, min(self.chunk, N - k)) for k in starts]

    def pools(self) -> Iterator[tuple[tuple[str, str, int, int], dict[str, Any]]]:
        """Every `train` run by setting, request, first seed and models: originals, their twins, and the yardstick.

        Methods of fewer models have pools of their own where those fill no whole chunks.
        """
        sizes = {place: {self.size(place[0], name) for name in self._of(place[0])} for place in self.places()}
        for setting, request, _ in self.large():
            sizes[setting, request].add(self.large_models)
        for (setting, request), of_methods in sizes.items():
            for N in sorted(of_methods, reverse=True):
                originals, twins = (self.chunks(setting, who, N) for who in ("none", request))
                for chunk in (*originals, *twins, *self.chunks(setting, request, N, YARDSTICK)):
                    yield (setting, chunk["request"], chunk["first_seed"], chunk["models"]), chunk

    def unlearnings(
        self, setting: str, request: str, name: str, first_seed: int = 0, N: int | None = None
    ) -> list[dict[str, Any]]:
        """The configs of the `unlearn` runs of one method, a run per chunk of its N models (default: its `size`)."""
        method = "Retrain" if name == AGAIN else name
        ordinary = {**dict.fromkeys(("Natural", LONGER), self.natural_rounds),
                    **dict.fromkeys((ORDINARY, MUCH_LONGER), self.longer_rounds)}  # fmt: skip
        about = {
            "method": method,
            "plugin": plugin(method),
            "recovery_cap": self.recovery_cap,
            "natural_rounds": ordinary.get(method, 0),
            "noise": float(self.noise) if method == NOISY else 0.0,
            "examples": self.examples,
        }
        chunks = self.chunks(setting, request, N or self.size(setting, name), first_seed)
        return [{**chunk, **about} for chunk in chunks]

    def large(self) -> Iterator[tuple[str, str, str]]:
        """Every method in the places where crowds of `large_models`, of everybody, show whether fewer say the same."""
        for text in self.large_places:
            setting, request = place_of(text)
            for name in self._of(setting):
                yield setting, request, name

    def unlearned(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every `unlearn` run, the yardstick's among them; the cell's seed is the first of its chunk.

        Twins of methods of fewer models are labelled with how many they are.
        """
        for setting, request in self.places():
            sizes = {self.size(setting, name) for name in self._of(setting)}
            for N in sorted(sizes - {self.size(setting)}):
                for config in self.unlearnings(setting, request, AGAIN, N=N):
                    yield Cell(GROUP, setting, config["first_seed"], request, AGAIN, f"{N} models"), config
        crowds = [
            *((place, "", None) for place in self.meetings()),
            *((place, self.crowd, self.large_models) for place in self.large()),
        ]
        for (setting, request, name), label, models in crowds:
            starts = {"Retrain": [YARDSTICK], **{own: [0, YARDSTICK] for own in OWN_YARDSTICK}}.get(name, [0])
            for start in starts:
                for config in self.unlearnings(setting, request, name, start, models):
                    yield Cell(GROUP, setting, config["first_seed"], request, name, label), config

    def relearned(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every `relearn` run: the first models of every method, Retrain's among them, after some of the requests."""
        for setting, request, name in self.meetings():
            if name in (AGAIN, ENSEMBLES) or request not in self.relearn_requests:
                continue
            first = self.unlearnings(setting, request, name)[0]
            about = {"relearned": min(self.relearn_models, first["models"]), "relearn_cap": self.relearn_cap}
            yield Cell(GROUP, setting, 0, request, name), {**first, **about}

    def judged(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every `judge` run: one per setting, request and method, on all models of its pool.

        Retrain is what they are compared with, and so is no row of its own; Retrain again is. A method of fewer models
        has as many twins, in runs of its own where they fill no whole chunks.
        """
        for setting, request, name in self.meetings():
            if name != "Retrain":
                yield Cell(GROUP, setting, 0, request, name), self._judged(setting, request, name)

    def crowds(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """The same of the large crowds."""
        for setting, request, name in self.large():
            if name != "Retrain":
                config = self._judged(setting, request, name, self.large_models)
                yield Cell(GROUP, setting, 0, request, name, self.crowd), config

    def _judged(self, setting: str, request: str, name: str, N: int | None = None) -> dict[str, Any]:
        whose = OF_ITS_KIND.get(name, "Retrain")
        return {
            "unlearned": self.unlearnings(setting, request, name, N=N),
            "retrained": self.unlearnings(setting, request, whose, YARDSTICK, N),
            "twins": self.unlearnings(setting, request, AGAIN, N=N or self.size(setting, name)),
            "resamples": self.resamples,
            "delta": float(self.delta),
        }


def place_of(text: str) -> tuple[str, str]:
    """The setting and the request of a single place's text."""
    setting, _, request = text.partition(" ")
    return setting, request


def controls_of(methods: Sequence[str], exchange: str = "server") -> tuple[str, ...]:
    """The controls beside these methods: some are made of a method that has to be there."""
    there = {ENSEMBLES: "SISA" in methods, ORDINARY: exchange == "server"}
    return tuple(name for name in CONTROLS if there.get(name, True))


def of_servers() -> dict[str, Method]:
    """The registered methods that work in a federation with a server."""
    return {name: about for name, about in registered_methods().items() if "server" in about.exchanges}


def remembers(name: str) -> bool:
    """Does a method need what was kept during training?"""
    needs = registered(name).needs
    return needs.history or needs.stateful_clients


def plugin(name: str) -> str:
    """The module that registers a method from outside of the library, to be imported where a run is computed; or "".

    Raises ConfigError for a method that was registered in a notebook's cell, which other processes cannot import.
    """
    if name in BY_HAND:
        return ""
    module = registered(name).serve.__module__
    if module == "__main__":
        raise ConfigError(
            f"methods: {name} must be registered in a file that can be imported, not in a notebook's cell"
        )
    return "" if module.startswith("fu_core.") else module
