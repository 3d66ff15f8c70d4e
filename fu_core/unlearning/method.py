"""Every method registers beside its function: its name, what it needs, what it can serve, what it guarantees.

    @register("NoT", paper="Khalil et al., CVPR 2025", colour="#d98cc0", needs=Needs(blind=True))
    def serve(trained: Trained, deletion: Deletion, config: NoT) -> Tensor: ...

    trained = Trained(federation, w, rounds=20)
    model, cost, notes = unlearn("NoT", trained, "client-3")

A file in `unlearning` or `unlearning.baselines` is enough: all are imported when somebody first asks for a method.
One that is defined elsewhere, in a notebook say, is there as soon as its decorator has run.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask, check_choice, check_count, nearest
from fu_core.federation.federation import Federation
from fu_core.federation.local import is_pair
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.request import Deletion, Request
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Choice, Range

if TYPE_CHECKING:
    from fu_core.federation.vertical import VerticalFederation

KINDS = ("client", "clients", "samples", "classes")  # of requests: one or several leave, or some of their samples go
REFERENCE = "reference"  # as `paper`: what others are compared with, Original and Retrain
EXCHANGES = ("server", "peers", "vertical")
GUARANTEES = ("none", "exact", "certified")  # exact: the very model that never saw the data


@dataclass(frozen=True, eq=False)
class Trained:
    """A federation after training, as a request meets it.

    w: the model (d,), or everybody's (N, d) where clients are peers; None in a vertical federation, whose parties
    carry theirs. rounds: trained so far, which the count of rounds and the learning-rate schedule continue. w_0 (d,):
    where training began; of vertical parties, everybody's parameters in party order. memory: what was kept meanwhile.
    watch: hears of a method's own progress, step by step. notes: where a method writes what it tells beside the model;
    `unlearn` hands it empty ones and returns them.
    """

    federation: Federation | VerticalFederation
    w: Tensor | None = None
    rounds: int = 0
    w_0: Tensor | None = None
    memory: Memory | PeerHistory = field(default_factory=Memory)
    watch: Callable[[Any], None] | None = None
    notes: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, least=0)
        if self.w_0 is not None and self.w_0.requires_grad:
            object.__setattr__(self, "w_0", self.w_0.detach())  # it is frozen otherwise

    @property
    def model(self) -> Tensor:
        """`w`, where there is one, without the graph that a module's own parameters bring along."""
        if self.exchange == "vertical":
            raise UnsupportedTask("w: this method needs one model as a vector, but vertical parties hold parts of one")
        if self.w is None:
            raise InvalidRequest("w must be the trained model (d,), or (N, d) of peers, got None")
        return self.w.detach()

    @property
    def horizontal(self) -> Federation:
        """The federation, where its clients hold whole samples."""
        if not isinstance(self.federation, Federation):
            raise UnsupportedTask("federation: this method needs clients with whole samples, not vertical parties")
        return self.federation

    @property
    def vertical(self) -> VerticalFederation:
        """The federation, where parties hold different features of the same samples."""
        if isinstance(self.federation, Federation):
            raise UnsupportedTask(
                "federation: this method needs vertical parties, but these clients hold whole samples"
            )
        return self.federation

    def staying(self, deletion: Deletion) -> Tensor:
        """A copy of the model (d,), or of the models (K, d) of those peers who stay, in the order of their ids."""
        if self.exchange != "peers":
            return self.model.clone()
        return self.model[[row for row, i in enumerate(self.horizontal.ids) if i in deletion.kept]]

    def copied(self, federation: Federation | VerticalFederation) -> Trained:
        """The same with models of its own, which a method may change in place, and `federation` in place of its own."""
        w, w_0 = (None if vector is None else vector.detach().clone() for vector in (self.w, self.w_0))
        return replace(self, federation=federation, w=w, w_0=w_0)

    @property
    def began(self) -> tuple[Tensor, int]:
        """Where training began, `w_0`, and its rounds, for who trains anew; raises `MissingHistory` without either."""
        if self.w_0 is None or not self.rounds:
            lacks = (
                "w_0: nobody kept where training began" if self.w_0 is None else "rounds: training is said to have 0"
            )
            raise MissingHistory(f"{lacks}, so that it cannot begin there again; give Trained(..., rounds=, w_0=)")
        return self.w_0, self.rounds

    @property
    def server_memory(self) -> Memory:
        """What the server has kept; raises `MissingHistory` where peers kept a history of their own."""
        if not isinstance(self.memory, Memory):
            raise MissingHistory("memory: this method needs what a server keeps, but these clients kept it as peers")
        return self.memory

    @property
    def next_round(self) -> int:
        """The number of the round that comes."""
        return self.rounds + 1

    @property
    def exchange(self) -> str:
        """Which of EXCHANGES the federation has."""
        if not isinstance(self.federation, Federation):
            return "vertical"
        return "server" if isinstance(self.federation.exchange, FedOpt) else "peers"


Serve = Callable[[Trained, Deletion, Any], Any]
Ranges = Mapping[str, Range | Choice]  # by parameter


@dataclass(frozen=True)
class NoParameters:
    """Of methods that have nothing to choose."""


@dataclass(frozen=True)
class Method:
    """A registered method. `serve(trained, deletion, parameters)` gives the unlearned model.

    name: unique, as tables show it; paper: whose it is; colour, dash: of its line in every figure; parameters: the
    frozen dataclass of its hyper-parameters; preset: the values of its fields that make it this method ("PUF-Special"
    is PUF with mode="special"); needs: the columns of PUF's Table I; refuses: KINDS of requests that it cannot serve,
    and why, in its own words, in which {targets} stands for those who forget; exchanges: where it works; guarantee: one
    of GUARANTEES; recovers: do rounds of recovery follow, or is the model ready as it comes? ranges: the parameters
    that a fair comparison tunes, and between which values (see `tuning.trials`); none where nothing is to be chosen.
    """

    name: str
    serve: Serve
    paper: str
    colour: str
    dash: str = "-"
    parameters: Callable[..., Any] = NoParameters
    preset: dict[str, Any] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    refuses: Mapping[str, str] = field(default_factory=dict)
    exchanges: Collection[str] = ("server",)
    guarantee: str = "none"
    recovers: bool = True
    ranges: Ranges = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in self.refuses:
            check_choice(f"refuses of {self.name}", kind, KINDS)
        for exchange in self.exchanges:
            check_choice(f"exchanges of {self.name}", exchange, EXCHANGES)
        check_choice(f"guarantee of {self.name}", self.guarantee, GUARANTEES)
        for parameter, values in self.ranges.items():
            if is_dataclass(self.parameters):
                check_choice(f"ranges of {self.name}", parameter, [f.name for f in fields(self.parameters)])
            if not isinstance(values, Range | Choice):
                raise ValueError(f"ranges of {self.name} must hold a Range or Choice for {parameter}, got {values!r}")

    @property
    def serves(self) -> list[str]:
        """The KINDS of requests that it can serve."""
        return [kind for kind in KINDS if kind not in self.refuses]

    def configured(self, **changes: Any) -> Any:
        """The method's hyper-parameters: its defaults, the method's presets, and `changes`.

        A preset that is a word (a mode, a form) is what gives the method its name, and cannot be changed. Raises
        InvalidRequest for that, for a parameter that there is not, and for one of another type than it is declared.
        """
        for name, value in self.preset.items():
            if isinstance(value, str) and changes.get(name, value) != value:
                raise InvalidRequest(f"{name} of {self.name} must be {value!r}, got {changes[name]!r}")
        given = {**self.preset, **changes}
        self._check_names(given)
        self._check_types(given)
        try:
            return self.parameters(**given)
        except TypeError as error:
            raise InvalidRequest(self._of_wrong_type(changes) or f"parameters of {self.name}: {error}") from error

    def _check_names(self, given: Mapping[str, Any]) -> None:
        """Raise InvalidRequest that names the first parameter that there is not."""
        if not is_dataclass(self.parameters):
            return
        known = [f.name for f in fields(self.parameters) if f.init]
        for name in given:
            if name not in known:
                there_are = ", ".join(known) or "none"
                raise InvalidRequest(
                    f"{self.name} has no such parameter: got {name!r}, there are {there_are}{nearest(name, known)}"
                )

    def _check_types(self, given: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a value that is no number, truth or text where its parameter is declared as one."""
        for one in fields(self.parameters) if is_dataclass(self.parameters) else ():
            if one.name in given and not _fits(given[one.name], _declared(one.type)):
                raise InvalidRequest(
                    f"{one.name} of {self.name} must be {_declared(one.type)}, got {given[one.name]!r}"
                )

    def _of_wrong_type(self, changes: Mapping[str, Any]) -> str:
        """What is wrong with the first of the `changes` that even alone is refused for its type; empty if none is."""
        declared = [f for f in fields(self.parameters) if f.init] if is_dataclass(self.parameters) else []
        needed = {f.name for f in declared if f.default is MISSING and f.default_factory is MISSING}
        given = {**self.preset, **changes}
        if not needed <= given.keys():
            return ""
        for one in declared:
            if one.name not in changes:
                continue
            try:
                self.parameters(**{k: v for k, v in given.items() if k in needed or k in self.preset or k == one.name})
            except TypeError:
                return f"{one.name} of {self.name} must be {_declared(one.type)}, got {changes[one.name]!r}"
            except ValueError:  # of the right type, and wrong without the others
                continue
        return ""


def _declared(kind: Any) -> str:
    """A field's type as it is written: text already in a file that postpones annotations, else a class or a union."""
    return kind if isinstance(kind, str) else kind.__name__ if type(kind) is type else str(kind)


def _fits(value: Any, declared: str) -> bool:
    """Whether a value is what "int", "float | None" and their like declare; of other types nothing is asked."""
    plain: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (Integral,), "float": (Real,), "str": (str,)}
    kinds = [kind.strip() for kind in declared.split("|")]
    if any(kind.startswith("Mapping[") for kind in kinds) and value is not None:
        return isinstance(value, Mapping)
    if not set(kinds) <= {*plain, "None"}:
        return True
    if isinstance(value, bool):  # which Python takes for a number
        return "bool" in kinds
    return any(value is None if kind == "None" else isinstance(value, plain[kind]) for kind in kinds)


_REGISTERED: dict[str, Method] = {}


def register(name: str, **about: Any) -> Callable[[Serve], Serve]:
    """Register the decorated function as the method `name`; the keywords are the fields of `Method`.

    Raises ValueError for a keyword that is none of them, for one of them that is missing, and for a name that is taken
    by another function; running a cell again replaces its own.
    """
    if not isinstance(name, str):
        raise ValueError(f'name must be text, as in @register("Name", paper=..., colour=...), got {name!r}')
    _check_about(name, about)

    def declare(serve: Serve) -> Serve:
        if not serve.__module__.startswith("fu_core.unlearning."):
            _import_all()  # so that a name of ours is refused here, not when ours is imported
        known = _REGISTERED.get(name)
        where = (serve.__module__, serve.__qualname__)
        if known is not None and (known.serve.__module__, known.serve.__qualname__) != where:
            raise ValueError(f"method {name!r} is registered already, by {known.serve.__module__}")
        _REGISTERED[name] = Method(name, serve, **about)
        return serve

    return declare


def _check_about(name: str, about: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(Method) if f.name not in ("name", "serve")]
    for given in about:
        check_choice(f"keyword of {name}", given, known)
    for needed in ("paper", "colour"):
        if not isinstance(about.get(needed), str):
            raise ValueError(f"{needed} of {name} must be text, got {about.get(needed)!r}")
    if isinstance(about.get("exchanges"), str):
        raise ValueError(f"exchanges of {name} must be a collection, ({about['exchanges']!r},) say, got text")
    if not isinstance(about.get("needs", Needs()), Needs):
        raise ValueError(f"needs of {name} must be Needs(...), got {about['needs']!r}")
    if not isinstance(about.get("refuses", {}), Mapping):
        raise ValueError(f"refuses of {name} must map a kind of request to a sentence, got {about['refuses']!r}")
    if not isinstance(about.get("ranges", {}), Mapping):
        raise ValueError(f"ranges of {name} must map a parameter to its values, got {about['ranges']!r}")


def methods() -> dict[str, Method]:
    """Every registered method by name, in the order of the alphabet, whatever was imported first."""
    _import_all()
    return dict(sorted(_REGISTERED.items()))


def method(name: str) -> Method:
    """The method of that name; ValueError names the nearest."""
    known = methods()
    check_choice("method", name, known)
    return known[name]


@cache
def _import_all() -> None:
    for package in ("fu_core.unlearning", "fu_core.unlearning.baselines"):
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if not found.ispkg:
                importlib.import_module(f"{package}.{found.name}")


class Unlearned(NamedTuple):
    """The unlearned model, what it cost, and what the method tells of how it came about."""

    model: Any
    cost: Meter
    notes: dict[str, Any]


def unlearn(name: str, trained: Trained, request: str | Request | Deletion, **parameters: Any) -> Unlearned:
    """Let the method `name` serve a request; `parameters` are fields of its hyper-parameters.

    The given model is left untouched. The model is a vector (d,); everybody's (K, d) where clients are peers; parties
    in a vertical federation; an ensemble for SISA. Raises `UnsupportedTask` in the method's own words where it cannot
    serve such a request, works in another kind of federation, or needs everybody online where only a share of the
    clients takes part; `InvalidRequest` for a request that names nobody, `MissingHistory` where it needs what was not
    kept.
    """
    chosen = method(name)
    if trained.exchange not in chosen.exchanges:
        needed = " or ".join(chosen.exchanges)
        raise UnsupportedTask(f"{name} works in a federation of kind {needed}, but this one is {trained.exchange}")
    _check_participation(chosen, trained)
    config = chosen.configured(**parameters)
    for option in fields(config) if is_dataclass(config) else ():
        _check_samples(f"{option.name} of {name}", option.type, getattr(config, option.name))
    deletion = resolved(trained, request)
    refuse(deletion, chosen.refuses)
    meter = Meter()
    counted = trained.copied(trained.federation.having(meter=meter))
    model = chosen.serve(counted, deletion, config)
    one = isinstance(model, Tensor) and trained.exchange == "server"
    if model is None or (one and model.shape != counted.model.shape):
        given = "None" if model is None else f"shape {tuple(model.shape)}"
        raise ValueError(f"{name} must return the unlearned model, a vector like `trained.model`, got {given}")
    return Unlearned(model, meter, counted.notes)


def _check_samples(what: str, declared: Any, given: Any) -> None:
    """Raise InvalidRequest where samples are declared, which plans may name by their number, and are none."""
    if "Client" in str(declared) and given is not None and not is_pair(given):
        raise InvalidRequest(f"{what} must be samples, a pair of tensors (x, y), or None, got {given!r:.60}")


def _check_participation(chosen: Method, trained: Trained) -> None:
    """A reference trains as the original did, with as many as took part there."""
    if not chosen.needs.full_participation or chosen.paper == REFERENCE or trained.exchange == "vertical":
        return
    if (share := trained.horizontal.participation) < 1:
        raise UnsupportedTask(f"{chosen.name} needs every client in every round, but participation is {share}")


def resolved(trained: Trained, request: str | Request | Deletion) -> Deletion:
    """The request as samples of the federation's clients."""
    if isinstance(request, Deletion):
        request.check_of(trained.federation.clients)
        return request
    read = Request.parse(request) if isinstance(request, str) else request
    if not isinstance(read, Request):
        raise InvalidRequest(f"request must be text like 'client-3', a Request or a Deletion, got {request!r}")
    return read.resolve(trained.federation.clients)


def kind_of(deletion: Deletion) -> str:
    """Which of KINDS a request is of, by what it takes: of clients if all who forget leave, else classes or samples."""
    if deletion.of_clients:
        return "client" if len(deletion.targets) == 1 else "clients"
    gone, kept = deletion.forget[1], deletion.retain[1]
    whole = gone.dim() == 1 and not gone.is_floating_point() and not torch.isin(gone, kept).any()
    return "classes" if whole else "samples"


def refuse(deletion: Deletion, refuses: Mapping[str, str]) -> None:
    """Raise UnsupportedTask, in a method's own words, for a kind of request that it refuses."""
    if (kind := kind_of(deletion)) in refuses:
        raise UnsupportedTask(refuses[kind].format(targets=deletion.targets))
