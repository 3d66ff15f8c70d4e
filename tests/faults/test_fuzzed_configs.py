"""Hundreds of drawn configurations through the runner: each runs, or ends in one clear error of ours.

`-p name value` as a user types it, then the notebook's Experiment, then some of its stages' runs. Drawn are values of
the right type and of wrong ones, in range and far out of it, misspelt names, and text that is no YAML. The same draws
every time.
"""

import json
import re
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, get_args, get_origin

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fu_core.errors import ConfigError
from fu_papers.lab import reproduce
from fu_papers.lab.notebooks import notebooks, schema_of
from fu_papers.lab.notebooks import plan as made_plan
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import run_key
from fu_papers.lab.store import RecordStore
from fu_papers.parameters import load_profile
from fu_papers.study import experiment_of, stages_of

PLANNED, PERFORMED = 60, 25  # configurations per paper
LONGEST = 20  # seconds for any of them
EASY = "digits/iid/softmax_regression"


# --- what a notebook does with its parameters ---


@dataclass(frozen=True)
class Notebook:
    """Parameters with which a notebook's runs take milliseconds."""

    tiny: dict
    untried: tuple = ()  # run functions that are not performed


def configs_of(paper, e):
    """The notebook's runs on data: [(run function, config)], the descriptions first."""
    pairs = [(stage.fn, dict(config)) for stage in stages_of(paper) for config in stage.cells(e).values()]
    tried = [(fn, config) for fn, config in pairs if "n_train" in config]
    return [(fn, config) for fn, config in tried if fn.__name__ not in NOTEBOOKS[paper].untried]


NOTEBOOKS = {
    "puf": Notebook(
        {
            "settings": [EASY], "targets": [0], "seeds": [0], "clients": 3, "n_train": 90, "n_val": 30, "n_test": 60,
            "rounds": 2, "epochs": 1.0, "batch_size": 20, "recovery_cap": 2, "mode_rounds_d": 1, "mode_rounds_m": 1,
            "fed_au_epochs": 1, "few_seeds": [0], "sweep_seeds": [0], "long_settings": [], "sample_settings": [EASY],
            "pair_settings": [], "segmentation_settings": [], "sweep_settings": [], "partial_settings": [],
            "backdoor_settings": [EASY], "official_settings": [EASY], "natural_rounds": [1],
            "relearn_cap": 1, "tuning_trials": 2, "tuning_targets": [1], "tuning_cap": 1,
        },
    ),
    "hf_kcu": Notebook(
        {
            "settings": [EASY], "nets": [], "seeds": [0], "sweep_seeds": [0], "clients": 3, "n_train": 60,
            "n_test": 60, "n_attacker": 60, "rounds": 2, "epochs": 1.0, "batch_size": 20, "iters": 2,
            "curvature_samples": 10, "iters_sweep": [1], "dampings": [0.1], "betas": [0.01], "alphas": [1.0],
            "client_counts": [3], "shadows": 2, "shards": 2, "history_interval": 1, "ga_epochs": 1,
            "nets_n_train": 40, "nets_n_test": 40, "nets_rounds": 1, "nets_epochs": 1.0, "held_out": 20,
            "tuning_trials": 2, "natural_rounds": [1], "longest_sequence": 1,
        },
        untried=("speed",),
    ),
    "fedora": Notebook(
        {
            "datasets": ["digits/mlp"], "seeds": [0], "classes": [[2]], "percents": [[50]], "n_train": [150],
            "n_val": [40], "n_test": [60], "epochs": [2], "lr": [0.1], "batch_size": [20], "iterations": 2,
            "ga_epochs": 1, "cvfu_epochs": 1, "repeats": 1, "few": [5], "few_ratios": [0.1], "weights": [1.0],
            "ratios": [0.1], "embedding_noise": [1.0], "tuning_trials": 2, "tuning_requests": [["classes-1-50-from-6"]],
            "ga_lrs": [0.01], "ico_scales": [1.0], "cvfu_rounds": [1], "few_shot_lrs": [0.01],
            "thresholds": [0.5], "splits": ["4"],
        },
    ),
    "certified_dfl": Notebook(
        {
            "datasets": ["digits/unit_softmax"], "splits": ["iid"], "topologies": ["ring"], "seeds": [0],
            "n_train": [120], "n_test": [60], "rounds": [3], "lr": [1.0], "lr_decay": [0.9], "momentum": [0.0],
            "batch_size": [20], "epochs": [1.0], "l2": [0.01], "curvature": ["hessian"],
            "printed_curvature": ["hessian"], "damping": [0.0], "curvature_samples": [0], "printed_samples": [0],
            "clients": 4,
            "pdudt_rounds": [1], "timed_rounds": 1, "epsilons": [1.0], "sequence": 2, "budget": 1.0,
            "head_rounds": 1, "scale_clients": [3], "scale_rounds": 1,
            "peer_l2": [0.01], "peer_fractions": [0.1], "peer_seeds": [0],
        },
    ),
    "arena": Notebook(
        {
            "settings": ["digits/iid/softmax_regression"], "requests": ["client-1"], "skewed_requests": [],
            "methods": ["PUF-Special", "Natural"], "slow_methods": [], "slow_models": 4, "models": 4, "few_models": 4,
            "memory_models": 4, "chunk": 4, "clients": 3, "n_train": 60, "n_val": 30, "n_test": 40, "rounds": 2,
            "epochs": 1.0, "recovery_cap": 1, "natural_rounds": 1, "examples": 10, "resamples": 10,
            "further_places": [], "further_models": 4, "relearn_requests": ["client-1"], "relearn_models": 1,
            "relearn_cap": 1,
        },
        untried=("judge",),
    ),
}  # fmt: skip
WORK = ("rounds", "epochs", "iters", "iterations", "cap", "shadows", "repeats", "samples", "sequence", "shards")


def planned(paper, *words):
    """What the runner makes of the words after `--paper`."""
    [plan] = reproduce._plans(reproduce._parser().parse_args(["--paper", paper, *words]))
    return plan


def experiment(plan):
    """The notebook's second cell."""
    schema = experiment_of(plan.paper)
    return schema.of(plan.profile, **{n: v for n, v in plan.changes.items() if n in schema.model_fields})


@contextmanager
def at_most(seconds):
    """An error that no run function can catch, for work that takes longer: processor time, others may be at work."""

    def too_long(*_):
        raise BaseException(f"not done after {seconds} s")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# --- what is drawn ---

INTEGERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 10, 5000])
NUMBERS = st.sampled_from([-1.0, -0.0, 1e-3, 0.3, 0.5, 1.0, 2.0, 1e9, float("nan"), float("inf"), float("-inf")])
TEXTS = st.sampled_from([
    "", "digits", "digits/iid", EASY, "digits/iid/mlp", "digits/dirichlet-0.5/mlp", "digits/dirichlet-0/mlp",
    "digits/dirichlet-x/mlp", "digits/dirichlet-1e400/mlp", "digits/iid/nonet", "digits/site/mlp", "no/iid/mlp",
    "phantom/site/small_res_unet", "breast_cancer/iid/mlp", "digits/mlp", "digits/unit_softmax", "a/b/c/d", "sgd",
    "adam", "none", "flip_crop", "ggn", "hessian", "fisher", "ring", "star", "iid", "dirichlet-0.3", "dirichlet--1",
    "site", "cta", "atc", "é", "/absolute",
])  # fmt: skip
BAD_YAML = st.sampled_from(
    ["[1, 2", "2001-13-45", "0x_", "9" * 5000, "[" * 500, "!!bool maybe", "a: b: c", "\x00", "*a"]
)


def values(declared, usual):
    """Values of a declared type, about half of them harmless; lists are mostly as long as the `usual` one."""
    if declared is float:
        return st.sampled_from([0.3, 0.5, 1.0]) | NUMBERS | INTEGERS
    if declared is int:
        return st.integers(1, 4) | INTEGERS
    if declared is str:
        return (st.just(usual) | TEXTS) if isinstance(usual, str) else TEXTS
    if declared is bool:
        return st.booleans()
    origin, inner = get_origin(declared), get_args(declared)
    if origin is Annotated:  # with its range
        return values(inner[0], usual)
    if origin is list:
        each = [values(inner[0], value) for value in usual or []]  # one per data set, say
        return st.tuples(*each).map(list) | st.lists(values(inner[0], None), max_size=3)
    if origin is UnionType:
        return st.one_of(values(kind, usual) for kind in inner)
    return st.none()


ANYTHING = NUMBERS | INTEGERS | TEXTS | st.none() | st.booleans() | st.lists(NUMBERS | TEXTS, max_size=2)


def as_yaml(value):
    text = json.dumps(value).replace("NaN", ".nan").replace("Infinity", ".inf")
    return f" {text}"  # or `-.inf` would be taken for an option


@st.composite
def typed_changes(draw, paper, usual):
    """Up to two parameters with values of their types; `usual` has values that are right."""
    declared = schema_of(paper).model_fields
    usual = load_profile(paper, "quick") | usual
    known = sorted(set(declared) - {"profile"})
    names = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
    return {name: draw(values(declared[name].annotation, usual[name])) for name in names}


@dataclass(frozen=True)
class Typed:
    """The words of a command line, and the values in them."""

    words: list
    values: list


@st.composite
def typed(draw, paper):
    """Up to three `-p name value`: mostly of the right type, some of another, misspelt, or no YAML."""
    changes = draw(typed_changes(paper, {}))
    spoilt = draw(st.sampled_from(["", "", "", "type", "name", "yaml"]))
    if spoilt == "type":
        changes[draw(st.sampled_from(sorted(changes)))] = draw(ANYTHING)
    if spoilt == "name":
        changes[draw(st.sampled_from(["ronds", "profile", "", "sedes", "é"]))] = draw(ANYTHING)
    texts = {name: as_yaml(value) for name, value in changes.items()}
    if spoilt == "yaml":
        texts[draw(st.sampled_from(sorted(texts)))] = draw(BAD_YAML)
    return Typed([word for name, text in texts.items() for word in ("-p", name, text)], list(changes.values()))


def cheap(name, value):
    """Nobody waits for a million rounds."""
    if isinstance(value, list):
        return [cheap(name, item) for item in value]
    return min(value, 4) if name.split("_")[-1] in (*WORK, "d", "m") and isinstance(value, (int, float)) else value


# --- what is clear ---


def our_errors(*kinds):
    """The names of our exceptions: everything below these classes that fu_core defines."""
    found = set()
    for kind in kinds:
        found |= our_errors(*kind.__subclasses__())
        found |= {kind.__name__} if kind.__module__.startswith("fu_core.") else set()
    return found


def check_clear(kind, message, paper, given):
    """One line, of a kind that is ours or a ValueError, which names a parameter or quotes what was given for it."""
    assert kind in our_errors(ValueError, RuntimeError) | {"ValueError"}, f"{kind}: {message}"
    assert message
    assert "\n" not in message
    if kind == "NumericalFailure":  # says where, and what to lower
        return
    declared = schema_of(paper).model_fields
    said = set(re.findall(r"[a-z0-9_]+", message))
    long = tuple(word for word in said if len(word) >= 5)  # `epochs` for `nets_epochs`, `ratio` for `ratios`
    named = any(name in said or name.startswith(long) or name.endswith(long) for name in declared)
    assert named or quotes(message, given), f"{kind}: {message}"


def quotes(message, given):
    """Does it show one of the values, or a part of a text, or a text with something around it?"""
    if isinstance(given, (list, tuple)):
        return any(quotes(message, value) for value in given)
    if isinstance(given, str):
        return any(quoted and (quoted in given or given in quoted) for quoted in re.findall(r"'([^']*)'", message))
    return repr(given) in re.findall(r"[\w.+-]+", message)


def tried(work, errors, before=None):
    """`(result, None)`, or `(None, error)`. `before`: an error of an earlier attempt, after which this is not made."""
    if before is not None:
        return None, before
    try:
        return work(), None
    except errors as error:
        return None, error


def fuzzed(count, drawn, check):
    """`check` on so many draws; the same ones every time."""

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(drawn)
    def one(example):
        with at_most(LONGEST):
            check(example)

    one()


# --- the tests ---


def test_there_are_at_least_300_configurations():
    assert set(NOTEBOOKS) == set(notebooks())
    assert len(NOTEBOOKS) * PERFORMED >= 60
    assert len(NOTEBOOKS) * (PLANNED + PERFORMED) >= 300


@pytest.mark.parametrize("paper", NOTEBOOKS)
def test_what_a_user_types_makes_configs_or_one_clear_error(paper):
    ends = Counter()

    def check(line):
        plan, error = tried(lambda: planned(paper, *line.words), ConfigError)
        if error:
            ends["refused by the runner"] += 1
            assert "\n" not in str(error)
            assert any(name in str(error) for name in line.words[1::3])
            return
        configs, error = tried(lambda: configs_of(paper, experiment(plan)), ValueError)
        keys, error = tried(lambda: [run_key(fn.__name__, config) for fn, config in configs or ()], ValueError, error)
        if error:
            ends["refused by the experiment"] += 1
            check_clear(type(error).__name__, str(error), paper, line.values)
        else:
            ends["configs"] += 1
            assert len(set(keys)) > 1

    fuzzed(PLANNED, typed(paper), check)
    assert sum(ends.values()) >= PLANNED
    right = ends["configs"]
    assert PLANNED / 10 < right < 0.9 * PLANNED, ends  # what is right is drawn as well as what is wrong
    assert len(ends) == 3, ends  # the schema refuses most, the experiment what two values say about each other


def perform(paper, changes, choose, folder):
    """Some runs of a tiny experiment with `changes`: None, or the kind and the message of what came instead."""

    def work():
        configs = configs_of(paper, experiment(made_plan(paper, "quick", NOTEBOOKS[paper].tiny | changes)))
        perform_runs([*described(configs), *choose(configs)], RecordStore(folder))

    return failure_of(work)


def described(configs):
    """The descriptions among the runs, which others ask for."""
    return [(fn, config) for fn, config in configs if fn.__name__ == "describe"]


def perform_runs(pairs, store):
    """Each run makes a record that JSON can hold, or raises."""
    for fn, config in pairs:
        [record] = map_runs(fn, [config], store=store, jobs=1)
        json.dumps([record.metrics, record.rounds], allow_nan=False)
        assert record.metrics


def failure_of(work):
    """None, or the kind and the message of what came instead of `work`."""
    _, error = tried(work, (ValueError, RuntimeError))
    if error is None or isinstance(error, ValueError):  # raised before a run: by the experiment, or by the data
        return error and (type(error).__name__, str(error))
    return re.search(r"\}: (\w+): (.*)$", str(error), re.DOTALL).groups()


@pytest.mark.parametrize("paper", NOTEBOOKS)
def test_configurations_run_or_end_in_one_clear_error(paper, tmp_path):
    ends = Counter()

    def check(example):
        changes, picks = example
        changes = {name: cheap(name, value) for name, value in changes.items()}
        folder = tmp_path / str(sum(ends.values()))
        failure = perform(paper, changes, lambda configs: [configs[pick % len(configs)] for pick in picks], folder)
        ends[failure[0] if failure else "ran"] += 1
        if failure:
            check_clear(*failure, paper, list(changes.values()))

    fuzzed(
        PERFORMED,
        st.tuples(typed_changes(paper, NOTEBOOKS[paper].tiny), st.lists(st.integers(0, 999), min_size=2, max_size=2)),
        check,
    )
    assert sum(ends.values()) >= PERFORMED
    assert ends["ran"] > PERFORMED / 10, ends


@pytest.mark.parametrize(("paper", "changes", "function"), [
    ("puf", {"lr": 1e300}, "train"),
    ("puf", {"lr_decay": 1e300}, "train"),
    ("puf", {"batch_size": 2**70}, "train"),
    ("puf", {"seeds": [2**70], "few_seeds": [2**70], "sweep_seeds": [2**70]}, "unlearn"),
    ("puf", {"settings": ["breast_cancer/iid/mlp"], "augmentation": "flip_crop", "augmented": ["breast_cancer"],
             "official_settings": []}, "train"),
    ("hf_kcu", {"trigger_target": 100}, "train"),
    ("fedora", {"ga_lr": 1e300}, "unlearn"),
    ("fedora", {"n_train": [3]}, "unlearn"),  # of a class to be forgotten there is no sample
    ("fedora", {"percents": [[1]]}, "unlearn"),  # or too few for one per cent
    ("fedora", {"momentum": 2.0}, "unlearn"),  # steps that grow without end
    ("certified_dfl", {"fraction": 1e-5}, "unlearn"),
    ("certified_dfl", {"rounds": [0]}, "speed"),
    ("certified_dfl", {"epsilons": [1e-300], "delta": 1e-300}, "certify"),
])  # fmt: skip
def test_values_that_once_ended_in_somebody_elses_error(paper, changes, function, tmp_path):
    made, error = tried(lambda: experiment(made_plan(paper, "quick", NOTEBOOKS[paper].tiny | changes)), ConfigError)
    if error is not None:
        assert min(changes) in str(error)
        return
    configs, store = configs_of(paper, made), RecordStore(tmp_path)
    for pair in [(fn, config) for fn, config in configs if fn.__name__ == function]:
        if failure := failure_of(lambda pair=pair: perform_runs([*described(configs), pair], store)):
            check_clear(*failure, paper, list(changes.values()))
