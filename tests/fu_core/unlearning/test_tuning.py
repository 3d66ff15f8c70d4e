"""Ranges and trials: the same number for every method, inside their ranges, the same for everybody."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass

import pytest

from fu_core.errors import InvalidRequest
from fu_core.unlearning import method
from fu_core.unlearning.method import methods, register
from fu_core.unlearning.ranges import Choice, Range
from fu_core.unlearning.tuning import trials


@dataclass(frozen=True)
class Dials:
    """Hyper-parameters of a method of our own."""

    rate: float = 0.1
    steps: int = 3
    kind: str = "b"
    share: float = 0.5


@pytest.fixture
def declare(monkeypatch):
    """A method with such ranges, gone after the test."""
    monkeypatch.setattr(method, "_REGISTERED", dict(methods()))

    def declared(**ranges):
        register("Dials", paper="nobody's", colour="#123456", parameters=Dials, ranges=ranges)(lambda *_: None)
        return lambda n, seed=0, **fixed: trials("Dials", n, seed=seed, fixed=fixed)

    return declared


def test_a_range_on_paper():
    """Half the way from 1 to 100: 50.5, or a factor of ten; whole numbers have a share each."""
    assert [Range(1, 100).at(u) for u in (0, 0.5)] == [1.0, 50.5]
    assert [Range(1, 100, "log").at(u) for u in (0, 0.5)] == [1.0, 10.0]
    assert [Range(2, 4, "whole").at(u) for u in (0, 0.3, 0.34, 0.66, 0.67, 0.999)] == [2, 2, 3, 3, 4, 4]
    assert [Choice(("a", "b")).at(u) for u in (0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]
    assert Range(0.0, 1.0).at(1 / 3) == 0.3333


def test_rounding_does_not_leave_the_range():
    narrow = Range(0.123456, 0.123457)
    assert narrow.low <= narrow.at(0.0) <= narrow.high


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Range(2, 1), "low and high must be finite numbers, low < high, got 2 and 1"),
        (lambda: Range(0, math.inf), "low and high must be finite numbers"),
        (lambda: Range(0, 1, "log"), "low must be a finite number > 0, got 0"),
        (lambda: Range(1, 2.5, "whole"), "low and high must be whole numbers, got 1 and 2.5"),
        (lambda: Range(1, 2, "logs"), "scale must be one of .*; did you mean 'log'"),
        (lambda: Choice((1, 1)), r"values must be two or more different ones, got \(1, 1\)"),
        (lambda: Choice((1,)), "values must be two or more"),
    ],
)
def test_wrong_ranges_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_the_first_trial_is_the_method_as_it_is(declare):
    first, *others = declare(rate=Range(0.01, 1, "log"), steps=Range(1, 9, "whole"))(12)
    assert first == {"rate": 0.1, "steps": 3}
    assert len(others) == 11
    assert all(0.01 <= o["rate"] <= 1 and 1 <= o["steps"] <= 9 for o in others)


@pytest.mark.parametrize("values", [Range(0.0, 1.0), Range(1.0, math.e, "log")])
def test_trials_fill_the_range(declare, values):
    """Of 2^k points of a scrambled base-2 sequence, one lies in each of 2^k equal cells."""
    shares = [o["share"] for o in declare(share=values)(17)[1:]]
    if values.scale == "log":
        shares = [math.log(s) for s in shares]
    assert sorted(math.floor(16 * s) for s in shares) == list(range(16))


def test_two_parameters_are_filled_together(declare):
    """Of 2 x 3 points in bases 2 and 3, one lies in each of 2 x 3 cells."""
    points = declare(rate=Range(0.0, 1.0), share=Range(0.0, 1.0))(7)[1:]
    assert {(math.floor(2 * o["rate"]), math.floor(3 * o["share"])) for o in points} == {
        (i, j) for i in range(2) for j in range(3)
    }


def test_more_trials_begin_with_the_fewer(declare):
    ask = declare(rate=Range(0.01, 1, "log"), kind=Choice(("a", "b")))
    assert ask(20)[:12] == ask(12)
    assert ask(12, seed=1)[1:] != ask(12)[1:]
    assert ask(12, seed=1)[0] == ask(12)[0]
    assert ask(1) == [{"rate": 0.1, "kind": "b"}]


def test_a_small_grid_is_tried_as_a_whole_and_once(declare):
    """Two kinds and two numbers of steps, neither of them the method's own three: four points and itself."""
    ask = declare(kind=Choice(("a", "b")), steps=Range(4, 5, "whole"))
    found = ask(100)
    assert found[0] == {"kind": "b", "steps": 3}
    assert sorted((o["kind"], o["steps"]) for o in found[1:]) == [("a", 4), ("a", 5), ("b", 4), ("b", 5)]
    assert len({json.dumps(o) for o in ask(3)}) == 3
    assert declare(kind=Choice(("a", "b")))(5) == [{"kind": "b"}, {"kind": "a"}]


def test_who_has_nothing_to_choose_has_one_trial():
    assert trials("Natural", 12, seed=0) == [{}]


def test_what_is_fixed_is_in_every_trial_and_not_tuned(declare):
    ask = declare(rate=Range(0.01, 1, "log"), kind=Choice(("a", "b")))
    found = ask(6, kind="a", steps=7)
    assert [(o["kind"], o["steps"]) for o in found] == [("a", 7)] * 6
    assert len({o["rate"] for o in found}) == 6
    with pytest.raises(InvalidRequest, match=r"fixed: Dials has no such parameter: .*'stepps'"):
        ask(3, stepps=1)
    with pytest.raises(ValueError, match="n must be a whole number >= 1, got 0"):
        ask(0)
    with pytest.raises(ValueError, match=r"method must be one of .*did you mean 'MoDe'"):
        trials("Mode", 3, seed=0)


def test_a_name_is_a_preset_and_stays():
    """PUF-Regular's own eta_u is its preset; its mode cannot be fixed to another."""
    assert trials("PUF-Regular", 1, seed=0) == [{"eta_u": 20.0}]
    with pytest.raises(InvalidRequest, match="fixed: mode of PUF-Regular must be 'regular', got 'special'"):
        trials("PUF-Regular", 3, seed=0, fixed={"mode": "special"})


def test_every_process_tries_the_same():
    """Known numbers: whoever changes them changes what records of a comparison say."""
    script = "from fu_core.unlearning.tuning import trials; print(trials('PGA', 3, seed=0)[1:])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(trials("PGA", 3, seed=0)[1:])
    assert trials("PGA", 3, seed=0)[1:] == [
        {"lr": 0.03891, "epochs": 7, "batch_size": 32, "stop_distance": 4.4},
        {"lr": 0.003891, "epochs": 4, "batch_size": 512, "stop_distance": 12.62},
    ]


FOUND = [  # what forgets on MNIST and CIFAR-10, where the methods' own values hardly do
    ("GA", {"lr": 0.003}),
    ("GA", {"lr": 0.2}),
    ("ICO", {"scale": 4.0}),
    ("ICO", {"scale": 1000.0}),
    ("FedORA", {"threshold": 0.2, "score": "reverse", "adaptive": False}),
    ("FedORA", {"threshold": 0.95, "iterations": 40, "tau": 0.02, "sigma": 0.1}),
]


@pytest.mark.parametrize(("name", "values"), FOUND)
def test_vertical_methods_can_be_tuned_to_what_is_known_to_forget(name, values):
    for parameter, value in values.items():
        allowed = method.method(name).ranges[parameter]
        inside = value in allowed.values if isinstance(allowed, Choice) else allowed.low <= value <= allowed.high
        assert inside, parameter


def test_all_vertical_methods_have_equally_many_trials():
    names = ("GA", "ICO", "CVFU", "FedORA", "FedORA reverse", "FedORA vector", "FedORA calibrated", "Few-shot")
    assert {len(trials(name, 12, seed=0)) for name in names} == {12}
