"""The registry, and what it promises of every method in it: a method that joins is tested here without another line.

Each is asked to serve every kind of request in every kind of federation that it says it works in, with its defaults.
"""

import importlib
import json
import math
import pkgutil
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace

import pytest
import torch
from torch import Tensor

from fu_core import unlearning
from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask
from fu_core.federation.vertical import Parties
from fu_core.request import Deletion, Request
from fu_core.unlearning import baselines, method
from fu_core.unlearning.method import EXCHANGES, KINDS, Trained, kind_of, register, resolved, unlearn
from fu_core.unlearning.ranges import Choice, Range
from fu_core.unlearning.tuning import trials
from tests import federations

# --- every method that there is ---

FEDERATIONS = {
    "server": federations.with_server,
    "peers": federations.among_peers,
    "vertical": federations.vertical,
}
REQUESTS = {  # by exchange and kind; neighbours leave a ring in one piece; vertical parties are one client, which stays
    "server": {"client": "client-1", "clients": "client-0-3", "samples": "sample-1-0.3", "classes": "class-2"},
    "peers": {"client": "client-1", "clients": "client-0-1", "samples": "sample-1-0.3", "classes": "class-2"},
    "vertical": {"samples": "samples-9", "classes": "class-2"},
}
NEEDED = {  # parameters that have no sensible default
    "HF-KCU held-out": {"held_out": federations.classified(40, seed=1)},
    "SCRUB+R": {"held_out": federations.classified(40, seed=1)},
    "Stored vectors": {"vectors": {i: torch.full((57,), 0.01 * i) for i in range(5)}},
    "FedORA calibrated": {"unseen": list(federations.classified(12, seed=1)[0].split([3, 2], dim=1))},
}
FREE = ("Original", "Natural", "NoT", "Destroyed")  # nobody trains, nothing is sent


def importable() -> dict[str, Exception]:
    """Imports all modules in which methods may be; what went wrong, by module."""
    failed: dict[str, Exception] = {}
    for package in (unlearning, baselines):
        for found in pkgutil.iter_modules(package.__path__):
            name = f"{package.__name__}.{found.name}"
            try:
                importlib.import_module(name)
            except ImportError as error:
                failed[name] = error
    return failed


FAILED = importable()
METHODS = dict(method._REGISTERED)
ANY = [pytest.param(name, exchange, id=f"{name}-{exchange}") for name, m in METHODS.items() for exchange in m.exchanges]


def cases(*, refused: bool):
    """(method, exchange, kind) of all requests that methods refuse, or serve."""
    return [
        pytest.param(name, exchange, kind, id=f"{name}-{exchange}-{kind}")
        for name, m in METHODS.items()
        for exchange in EXCHANGES
        if exchange in m.exchanges
        for kind in REQUESTS[exchange]
        if (kind in m.refuses) == refused
    ]


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of steps that are long on such small problems


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(method, "_REGISTERED", dict(METHODS))
    if FAILED:  # tested below
        monkeypatch.setattr(method, "_import_all", lambda: None)


def served(name, trained, request):
    return unlearn(name, trained, request, **NEEDED.get(name, {}))


def tensors(value) -> Iterator[Tensor]:
    """All tensors in records, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from tensors(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from tensors(part)


def parameters(model) -> list[Tensor]:
    """An unlearned model, of whatever form, as vectors."""
    return model.w if isinstance(model, Parties) else list(tensors(model))


def storages(vectors) -> set[int]:
    return {v.untyped_storage().data_ptr() for v in vectors}


def test_every_file_of_methods_can_be_imported():
    assert FAILED == {}


def test_the_requests_are_of_the_kinds_they_stand_for():
    for exchange, requests in REQUESTS.items():
        trained = FEDERATIONS[exchange]()
        assert trained.exchange == exchange
        assert {kind: kind_of(resolved(trained, text)) for kind, text in requests.items()} == {k: k for k in requests}


@pytest.mark.parametrize(("name", "exchange", "kind"), cases(refused=False))
def test_it_serves_what_it_says_and_leaves_what_it_was_given(name, exchange, kind):
    """A finite model of the right form, on storage of its own; the federation, its memory and counters as before."""
    trained = FEDERATIONS[exchange]()
    before = [t.clone() for t in tensors(trained)]
    spent = (trained.federation.meter.bytes, trained.federation.meter.images)
    deletion = resolved(trained, REQUESTS[exchange][kind])
    model, cost, _ = served(name, trained, deletion)

    assert all(torch.equal(a, b) for a, b in zip(before, tensors(trained), strict=True))
    assert (trained.federation.meter.bytes, trained.federation.meter.images) == spent
    assert cost is not trained.federation.meter
    ours = parameters(model)
    assert all(bool(v.isfinite().all()) for v in ours)
    given = trained.vertical.parties.w if exchange == "vertical" else [trained.model, trained.w_0]
    assert not storages(ours) & storages(given)
    if exchange == "vertical":
        assert [v.shape for v in ours] == [v.shape for v in given]
    elif exchange == "peers":
        assert model.shape == (len(deletion.kept), trained.horizontal.model.d)
    else:
        assert all(v.shape == (trained.horizontal.model.d,) for v in ours)


@pytest.mark.parametrize(("name", "exchange"), ANY)
def test_same_seed_same_bits_and_what_it_costs_is_counted(name, exchange):
    kind = next(kind for kind in REQUESTS[exchange] if kind not in METHODS[name].refuses)
    first, second = (served(name, FEDERATIONS[exchange](), REQUESTS[exchange][kind]) for _ in range(2))
    ours, again = parameters(first.model), parameters(second.model)
    assert ours
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    assert first.cost == second.cost
    work = first.cost.bytes + first.cost.images + first.cost.products
    assert (work == 0) == (name in FREE)


@pytest.mark.parametrize(("name", "exchange"), [case for case in ANY if case.values[1] != "vertical"])
def test_it_takes_a_modules_own_parameters_and_labels_of_any_type(name, exchange):
    """Vectors that require a gradient, int16 labels, also in a request made of them: the same model, free of both."""
    kind = next(kind for kind in REQUESTS[exchange] if kind not in METHODS[name].refuses)
    trained = FEDERATIONS[exchange]()
    plain = parameters(served(name, trained, REQUESTS[exchange][kind]).model)
    short = {i: (x, y.short()) for i, (x, y) in trained.horizontal.clients.items()}
    w, w_0 = (v.clone().requires_grad_() * 1 for v in (trained.w, trained.w_0))
    given = replace(trained, w=w, w_0=w_0, federation=trained.horizontal.having(clients=short))
    ours = parameters(served(name, given, Request.parse(REQUESTS[exchange][kind]).resolve(short)).model)
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))
    assert not any(v.requires_grad for v in (*ours, given.model, given.w_0))


@pytest.mark.parametrize(("name", "exchange"), ANY)
def test_no_gradient_goes_uncounted(name, exchange, monkeypatch):
    """Whoever calls autograd has trained on something. All clients one after the other, as the plain way is."""
    kind = next(kind for kind in REQUESTS[exchange] if kind not in METHODS[name].refuses)
    trained = FEDERATIONS[exchange]() if exchange == "vertical" else FEDERATIONS[exchange](how="loop")
    calls, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **how: (calls.append(1), grad(*args, **how))[1])
    cost = served(name, trained, REQUESTS[exchange][kind]).cost
    if calls:
        assert cost.images + cost.products > 0
    if name in FREE:
        assert not calls


@pytest.mark.parametrize(("name", "exchange"), ANY)
def test_it_draws_from_streams_of_its_own_alone(name, exchange):
    """Whoever draws from the global generator beside it gets the same numbers."""
    kind = next(kind for kind in REQUESTS[exchange] if kind not in METHODS[name].refuses)
    trained = FEDERATIONS[exchange]()
    before = torch.random.get_rng_state()
    served(name, trained, REQUESTS[exchange][kind])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("name", "exchange"), [case for case in ANY if case.values[1] != "vertical"])
def test_it_serves_those_who_trained_as_dense_layers(name, exchange):
    """Also where it teaches another loss, which that way does not know; to rounding, which some steps magnify."""
    kind = next(kind for kind in REQUESTS[exchange] if kind not in METHODS[name].refuses)
    dense, loop = (
        parameters(served(name, FEDERATIONS[exchange](how=how), REQUESTS[exchange][kind]).model)
        for how in ("dense", "loop")
    )
    for ours, plain in zip(dense, loop, strict=True):
        assert float((ours - plain).norm()) < 1e-3 * float(plain.norm())


@pytest.mark.parametrize(("name", "exchange", "kind"), cases(refused=True))
def test_it_refuses_in_its_own_words(name, exchange, kind):
    """By `unlearn`, and where its function is called directly."""
    trained, m = FEDERATIONS[exchange](), METHODS[name]
    deletion = resolved(trained, REQUESTS[exchange][kind])
    sentence = re.escape(m.refuses[kind].format(targets=deletion.targets))
    assert sentence
    with pytest.raises(UnsupportedTask, match=f"^{sentence}$"):
        served(name, trained, deletion)
    with pytest.raises(UnsupportedTask, match=f"^{sentence}$"):
        m.serve(trained, deletion, m.configured(**NEEDED.get(name, {})))


@pytest.mark.parametrize("name", METHODS)
def test_it_works_in_no_other_federation(name):
    for exchange in set(EXCHANGES) - set(METHODS[name].exchanges):
        trained = FEDERATIONS[exchange]()
        with pytest.raises(
            UnsupportedTask, match=rf"^{re.escape(name)} works in a federation of kind .*, but this one is {exchange}$"
        ):
            served(name, trained, "samples-9")


@pytest.mark.parametrize(("name", "exchange"), ANY)
def test_wrong_parameters_and_requests_are_named(name, exchange):
    trained, request = FEDERATIONS[exchange](), REQUESTS[exchange]["samples"]
    with pytest.raises(InvalidRequest, match=f"^{re.escape(name)} has no such parameter: .*'etta_u'"):
        unlearn(name, trained, request, etta_u=2.0)
    for wrong, message in (
        ("clint-1", "request must begin with one of"),
        ("client-77", "client 77, but clients are"),
        (f"client-{'-'.join(map(str, trained.federation.clients))}", "somebody must stay"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            served(name, trained, wrong)


def test_a_parameter_that_there_is_not_comes_with_those_that_there_are():
    says = r"^NoT has no such parameter: got 'layer', there are layers; did you mean 'layers'\?$"
    with pytest.raises(InvalidRequest, match=says):
        METHODS["NoT"].configured(layer="fc1")
    with pytest.raises(InvalidRequest, match=r"^Natural has no such parameter: got 'lr', there are none$"):
        METHODS["Natural"].configured(lr=1.0)


def refusal(name, **options) -> str:
    """What is said of such options; nothing if they are taken."""
    try:
        METHODS[name].configured(**options)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", METHODS)
def test_a_parameter_of_another_type_is_named_where_it_is_refused(name):
    """Whether it is checked, or its type is what comparing it stumbles over."""
    said = {one.name: refusal(name, **{one.name: "text"}) for one in fields(METHODS[name].parameters)}
    assert all(parameter in says for parameter, says in said.items() if says)
    assert not any("no such parameter" in says for says in said.values())


@dataclass(frozen=True)
class Picky:
    """How to be picky: `much` has no default."""

    much: float
    often: int | None = 1
    mode: str = "weak"
    whom: tuple = ("all",)

    def __post_init__(self):
        if self.mode == "strong" and len(self.whom) < 2:
            raise ValueError("whom must be at least 2")
        if self.much < 0:
            raise ValueError("much must be >= 0")


def test_errors_of_types_name_the_option_and_what_it_should_be():
    register("Picky", paper="nobody's", colour="#123456", parameters=Picky)(shrink)
    picky = method.method("Picky")
    for wrong, says in (
        ({"much": "x"}, "^much of Picky must be float, got 'x'$"),
        ({"much": 1.0, "often": "x"}, r"^often of Picky must be int \| None, got 'x'$"),
        ({"much": True}, "^much of Picky must be float, got True$"),  # which nothing stumbles over
        ({"much": 1.0, "mode": "strong", "whom": None}, "^parameters of Picky: .*NoneType"),  # not by itself
        ({"often": 2}, "^parameters of Picky: .*missing .*'much'"),
        ({"much": 1.0, "mode": "strong"}, "^whom must be at least 2$"),
    ):
        with pytest.raises(ValueError, match=says):
            picky.configured(**wrong)
    assert picky.configured(much=1.0, often=None) == Picky(1.0, None)


def relabelled(trained, request, *, forgotten) -> Trained:
    """The same, but what the request takes, or all that it leaves, has other labels."""
    f = trained.horizontal
    rows = Request.parse(request).rows({i: y for i, (_, y) in f.clients.items()})
    clients = {}
    for i, (x, y) in f.clients.items():
        gone = torch.zeros(len(y), dtype=torch.bool)
        gone[rows.get(i, [])] = True
        clients[i] = x, torch.where(gone if forgotten else ~gone, (y + 1) % 3, y)
    return replace(trained, federation=f.having(clients=clients))


def exact_cases():
    """A class whose samples have other labels would be another request, and parties keep theirs elsewhere."""
    return [
        case
        for case in cases(refused=False)
        if METHODS[case.values[0]].guarantee == "exact" and case.values[1] != "vertical" and case.values[2] != "classes"
    ]


@pytest.mark.parametrize(("name", "exchange", "kind"), exact_cases())
def test_an_exact_method_never_sees_what_it_forgets(name, exchange, kind):
    """Other labels of what is forgotten: the same bits. Other labels of what stays: not."""
    trained, request = FEDERATIONS[exchange](), REQUESTS[exchange][kind]
    ours, same, other = (
        parameters(served(name, one, request).model)
        for one in (
            trained,
            relabelled(trained, request, forgotten=True),
            relabelled(trained, request, forgotten=False),
        )
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ours, other, strict=True))


def without_model(trained) -> Trained:
    """The same, but whatever came out of training is NaN: the model, the parties', what was sent meanwhile."""
    if trained.exchange == "vertical":
        parties = trained.vertical.parties
        lost = parties.having([torch.full_like(w_k, math.nan) for w_k in parties.w])
        return replace(trained, federation=trained.vertical.having(parties=lost))
    memory = deepcopy(trained.memory)
    for kept in tensors(memory):
        if kept.is_floating_point():
            kept.fill_(math.nan)
    return replace(trained, w=torch.full_like(trained.model, math.nan), memory=memory)


@pytest.mark.parametrize(
    ("name", "exchange", "kind"), [c for c in cases(refused=False) if METHODS[c.values[0]].guarantee == "exact"]
)
def test_an_exact_method_never_reads_what_training_gave(name, exchange, kind):
    """To the bit what it is with the model at hand; but it reads where training began."""
    trained, request = FEDERATIONS[exchange](), REQUESTS[exchange][kind]
    ours = parameters(served(name, trained, request).model)
    blind = parameters(served(name, without_model(FEDERATIONS[exchange]()), request).model)
    elsewhere = parameters(served(name, replace(trained, w_0=trained.w_0 + 0.1), request).model)
    assert all(torch.equal(a, b) for a, b in zip(ours, blind, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ours, elsewhere, strict=True))


def test_a_refusal_begins_with_what_is_wrong_about_the_request():
    """The name of a part of the request, that is, and then says of whom it speaks."""
    for name, m in METHODS.items():
        for kind, sentence in m.refuses.items():
            assert re.match(r"(forget|targets|leaving|samples|classes)\b.* ", sentence), (name, kind, sentence)


def test_what_it_tells_of_itself_can_be_shown():
    for name, m in METHODS.items():
        assert m.name == name
        assert re.fullmatch("#[0-9a-f]{6}", m.colour)
        assert m.dash in ("-", "--", "-.", ":")
        assert m.paper
        assert m.exchanges
        assert [kind for kind in KINDS if kind in m.serves or kind in m.refuses] == list(KINDS)
        assert m.configured() == m.configured(**m.preset)


@pytest.mark.parametrize("name", METHODS)
def test_what_it_lets_others_tune_are_parameters_that_it_takes(name):
    """Twelve trials, all different, plain, and each one a configuration; what it is by itself lies in its ranges."""
    m = METHODS[name]
    fixed = {key: value for key, value in NEEDED.get(name, {}).items() if key not in m.ranges}
    found = trials(name, 12, seed=0, fixed=fixed)
    assert found == trials(name, 12, seed=0, fixed=fixed)
    assert len(found) == 1 if not m.ranges else len(found) > 1
    for options in found:
        config = m.configured(**options)
        assert set(options) == {*m.ranges, *fixed}
        assert all(getattr(config, key) == options[key] for key in m.ranges)
        assert json.loads(json.dumps({key: options[key] for key in m.ranges})) == {k: options[k] for k in m.ranges}
        for key, values in m.ranges.items():
            if isinstance(values, Choice) and (options[key] is not None or None in values.values):
                assert options[key] in values.values
            elif options[key] is None:  # as the clients have it
                assert options is found[0]
            else:
                assert values.low <= options[key] <= values.high
    assert len({json.dumps({key: options[key] for key in m.ranges}) for options in found}) == len(found)


# --- a method of somebody's own ---


@dataclass(frozen=True)
class Shrink:
    """factor: what is left of the model."""

    factor: float = 0.5


def shrink(trained, deletion, config):
    """A toy: the model, shorter. It tells who forgets, and lets everybody who stays send a model."""
    trained.notes["who"] = deletion.targets
    trained.horizontal.meter.send(trained.model, up=len(deletion.kept))
    return config.factor * trained.model


def test_a_method_of_ones_own_is_served_as_soon_as_its_decorator_has_run():
    trained, sentence = federations.with_server(), "targets names {targets}: one at a time"
    declare = register("Shrink", paper="nobody's", colour="#123456", parameters=Shrink, refuses={"clients": sentence})
    assert declare(shrink) is shrink
    model, cost, notes = unlearn("Shrink", trained, "client-3", factor=0.25)
    assert torch.equal(model, 0.25 * trained.model)
    assert (cost.bytes, notes) == (4 * len(model) * 4, {"who": [3]})
    assert trained.notes == {}
    assert torch.equal(unlearn("Shrink", trained, Request.parse("class-1")).model, 0.5 * trained.model)
    assert torch.equal(
        unlearn("Shrink", trained, Deletion.of(trained.horizontal.clients, 0)).model, 0.5 * trained.model
    )
    with pytest.raises(UnsupportedTask, match=r"^targets names \[1, 2\]: one at a time$"):
        unlearn("Shrink", trained, "client-1-2")
    assert method.methods()["Shrink"].serves == ["client", "samples", "classes"]
    assert list(method.methods()) == sorted({*METHODS, "Shrink"})  # whatever was imported first


SCRATCH = '''
"""What somebody has in a file of their own."""

from dataclasses import dataclass

import fu_core
from fu_core.unlearning.ranges import Range


@dataclass(frozen=True)
class Halfway:
    share: float = 0.5


@fu_core.register(
    "Halfway back", paper="nobody's", colour="#abcdef", parameters=Halfway, recovers=False,
    refuses={"classes": "forget: Halfway back does not know what a class is"}, ranges={"share": Range(0.1, 0.9)},
)
def serve(trained, deletion, config):
    trained.notes["share"] = config.share
    trained.horizontal.meter.send(trained.model, up=len(deletion.targets))
    return trained.w_0 + config.share * (trained.model - trained.w_0)
'''


def test_a_scratch_file_joins_by_one_decorated_function(tmp_path):
    """Once it has run it is a method like any other: served, counted, tuned, refused and told apart."""
    scratch = tmp_path / "scratch.py"
    scratch.write_text(SCRATCH)
    assert "Halfway back" not in method.methods()
    runpy.run_path(str(scratch), run_name="scratch")
    joined = method.methods()["Halfway back"]
    assert set(method.methods()) == {*METHODS, "Halfway back"}
    assert (joined.serves, joined.exchanges) == (["client", "clients", "samples"], ("server",))

    trained = federations.with_server()
    before = [t.clone() for t in tensors(trained)]
    for kind in joined.serves:
        model, cost, notes = unlearn("Halfway back", trained, REQUESTS["server"][kind], share=0.25)
        assert torch.equal(model, trained.w_0 + 0.25 * (trained.model - trained.w_0))
        forget = resolved(trained, REQUESTS["server"][kind]).targets
        assert (cost.bytes_up, cost.bytes_down, notes) == (len(forget) * 4 * len(model), 0, {"share": 0.25})
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(trained), strict=True))

    found = trials("Halfway back", 4, seed=0)
    assert found[0] == {"share": 0.5}
    assert len({options["share"] for options in found}) == 4
    with pytest.raises(UnsupportedTask, match=r"^forget: Halfway back does not know what a class is$"):
        unlearn("Halfway back", trained, "class-1")
    with pytest.raises(UnsupportedTask, match=r"^Halfway back works in a federation of kind server"):
        unlearn("Halfway back", federations.vertical(), "samples-9")
    with pytest.raises(ValueError, match="did you mean 'Halfway back'"):
        unlearn("Halfway bakc", trained, "client-1")


def test_a_name_belongs_to_one_function():
    register("Shrink", paper="nobody's", colour="#123456")(shrink)
    register("Shrink", paper="nobody's", colour="#654321")(shrink)  # its cell has run again
    assert method.method("Shrink").colour == "#654321"

    def other(trained, deletion, config):
        return trained.model

    with pytest.raises(ValueError, match=r"method 'Shrink' is registered already, by .*test_method"):
        register("Shrink", paper="nobody's", colour="#123456")(other)
    with pytest.raises(ValueError, match="method 'Retrain' is registered already, by fu_core"):
        register("Retrain", paper="nobody's", colour="#123456")(shrink)
    assert method.method("Shrink").serve is shrink


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"refuses": {"sample": "no"}}, "refuses of Shrink must be one of .*did you mean 'samples'"),
        ({"exchanges": ("servers",)}, "exchanges of Shrink must be one of .*did you mean 'server'"),
        ({"guarantee": "exactly"}, "guarantee of Shrink must be one of .*did you mean 'exact'"),
        ({"exchanges": "peers"}, r"exchanges of Shrink must be a collection, \('peers',\) say, got text"),
        ({"refuses": ["samples"]}, "refuses of Shrink must map a kind of request to a sentence"),
        ({"color": "red"}, "keyword of Shrink must be one of .*, got 'color'; did you mean 'colour'"),
        ({"paper": None}, "paper of Shrink must be text, got None"),
        ({"parameters": Shrink, "ranges": {"fator": Range(0, 1)}}, "ranges of Shrink must be .*mean 'factor'"),
        ({"parameters": Shrink, "ranges": {"factor": (0, 1)}}, "must hold a Range or Choice for factor, got"),
        ({"parameters": Shrink, "ranges": ["factor"]}, "ranges of Shrink must map a parameter to its values"),
    ],
)
def test_wrong_declarations_are_named_at_once(about, message):
    with pytest.raises(ValueError, match=message):
        register("Shrink", **{"paper": "nobody's", "colour": "#123456", **about})(shrink)
    assert "Shrink" not in method.methods()


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(
        ValueError, match=r'name must be text, as in @register\("Name", paper=..., colour=...\), got <fu'
    ):
        register(shrink)


def test_a_name_of_ours_is_refused_before_ours_have_been_imported():
    """In a notebook's first cell, say; and the others are there afterwards."""
    script = """
from fu_core import methods, register
try:
    register("NoT", paper="mine", colour="#123456")(lambda trained, deletion, config: trained.model)
except ValueError as error:
    print(error)
print(methods()["NoT"].paper)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    taken, paper = done.stdout.splitlines()
    assert taken.startswith("method 'NoT' is registered already, by fu_core.unlearning.")
    assert paper == METHODS["NoT"].paper


@pytest.mark.parametrize("request_", [3, [3], None])
def test_a_request_that_is_none_says_how_one_looks(request_):
    with pytest.raises(InvalidRequest, match=r"request must be text like 'client-3', .*, got "):
        unlearn("Natural", federations.with_server(), request_)


def test_a_federation_that_was_not_trained_is_named():
    f = federations.with_server().horizontal
    with pytest.raises(InvalidRequest, match=r"w must be the trained model \(d,\), .*, got None"):
        unlearn("Natural", Trained(f), "client-1")
    with pytest.raises(ValueError, match="rounds must be a whole number >= 0, got -1"):
        Trained(f, rounds=-1)


def test_notes_are_a_methods_own_and_trainings_can_be_compared():
    trained = federations.with_server()
    with pytest.raises(TypeError, match="notes"):
        Trained(trained.federation, trained.w, notes={})
    trained.notes["mine"] = 1
    assert replace(trained).notes == {}
    assert trained != replace(trained, w=trained.w.clone())


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(ValueError, match=r"method must be one of .*did you mean 'PUF-Special'"):
        unlearn("PUF-special", federations.with_server(), "client-1")


def test_presets_make_two_methods_of_one():
    special, regular = METHODS["PUF-Special"].configured(), METHODS["PUF-Regular"].configured()
    assert (special.mode, special.eta_u, regular.mode, regular.eta_u) == ("special", 2.0, "regular", 20.0)
    assert METHODS["PUF-Regular"].configured(eta_u=3.0).eta_u == 3.0
    assert METHODS["PUF-Regular"].serve is METHODS["PUF-Special"].serve


def test_a_federation_says_what_it_lacks():
    server, vertical = federations.with_server(), federations.vertical()
    with pytest.raises(UnsupportedTask, match="needs vertical parties"):
        _ = server.vertical
    with pytest.raises(UnsupportedTask, match="needs clients with whole samples"):
        _ = vertical.horizontal
    with pytest.raises(UnsupportedTask, match="needs one model as a vector"):
        _ = vertical.model
    assert (server.next_round, server.rounds) == (4, 3)


# --- what a stranger can do wrong ---


def test_a_method_that_works_in_place_spoils_nobody_elses_model(registry):
    trained = federations.with_server()
    w, w_0 = trained.w.clone(), trained.w_0.clone()

    def spoils(trained, deletion, config):
        trained.w_0.zero_()
        return trained.model.mul_(0.1)

    register("Spoils", paper="nobody's", colour="#123456")(spoils)
    found = unlearn("Spoils", trained, "client-1").model
    assert torch.equal(found, w.mul(0.1))
    assert torch.equal(trained.w, w)
    assert torch.equal(trained.w_0, w_0)
    assert torch.equal(unlearn("Original", trained, "client-1").model, w)


@pytest.mark.parametrize(("given", "told"), [(None, "got None"), (torch.zeros(3), r"got shape \(3,\)")])
def test_a_method_that_returns_no_model_is_named(registry, given, told):
    register("Nothing", paper="nobody's", colour="#123456")(lambda trained, deletion, config: given)
    with pytest.raises(ValueError, match=f"Nothing must return the unlearned model.*{told}"):
        unlearn("Nothing", federations.with_server(), "client-1")


def test_a_deletion_of_other_clients_or_samples_is_refused():
    """Clients poisoned after the request had been resolved came back clean."""
    trained = federations.with_server()
    f = trained.federation
    deletion = resolved(trained, "client-1")
    more = replace(trained, federation=f.having(clients=[*f.clients.values(), f.clients[0]]))
    with pytest.raises(InvalidRequest, match=r"resolved for clients .*, but these are"):
        unlearn("NoT", more, deletion)
    x, y = f.clients[3]
    changed = f.having(clients={**f.clients, 3: (x, (y + 1) % 3)})
    with pytest.raises(InvalidRequest, match="other samples of client 3"):
        changed.after(deletion)
    alike = f.having(clients={i: (x.clone(), y.clone()) for i, (x, y) in f.clients.items()})
    assert alike.after(deletion).ids == [0, 2, 3, 4]


@pytest.mark.parametrize("name", ["Retrain", "SISA"])
@pytest.mark.parametrize("lacks", [{"rounds": 0}, {"w_0": None}])
def test_who_trains_anew_needs_to_know_where_and_how_long(name, lacks):
    """Without rounds the initial model stood in the row of an exact method."""
    trained = replace(federations.with_server(), **lacks)
    with pytest.raises(MissingHistory, match=f"^{next(iter(lacks))}: .*give Trained"):
        unlearn(name, trained, "client-1")


@pytest.mark.parametrize(
    ("name", "options"),
    [("FedORA horizontal", {"unlearn": "no"}), ("PUF-Special", {"augment": "no"}), ("HF-KCU", {"scaling": "no"}),
     ("HF-KCU held-out", {"held_out": -1}), ("SCRUB+R", {"held_out": -1}), ("Stored vectors", {"vectors": -1}),
     ("FedORA horizontal", {"threshold": "no"}), ("PUF-Special", {"eta_u": True}), ("HF-KCU", {"iters": 2.5})],
)  # fmt: skip
def test_a_truth_a_number_and_a_text_are_told_apart(name, options):
    (option,) = options
    with pytest.raises(InvalidRequest, match=f"^{option} of {re.escape(name)} must be"):
        unlearn(name, federations.with_server(), "client-1", **options)
