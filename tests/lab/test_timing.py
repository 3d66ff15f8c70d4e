"""Laps by name, on a clock that a test moves."""

import pytest

from fu_papers.lab import timing
from fu_papers.lab.timing import LONG_ENOUGH, REPEATS, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """Seconds as a list whose last entry is now."""
    now = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[-1])
    return now


def test_a_lap_is_what_has_passed_since_the_last_one(clock):
    watch = Stopwatch()
    clock.append(3.0)
    assert watch.lap("round") == 3.0
    clock.append(5.0)
    assert watch.lap("round") == 2.0
    clock.append(9.0)
    watch.start()
    clock.append(10.0)
    assert watch.lap("round") == 1.0
    assert watch.laps["round"] == [3.0, 2.0, 1.0]


def test_work_is_timed_alone_and_its_result_given_back(clock):
    watch = Stopwatch()
    clock.append(100.0)

    def work():
        clock.append(104.0)
        return "done"

    assert watch.time("method", work) == "done"
    assert watch.laps["method"] == [4.0]


def test_a_median_is_not_moved_by_one_busy_moment(clock):
    watch = Stopwatch()
    watch.laps |= {"b": [1.0, 90.0, 2.0], "a": [4.0]}
    assert not watch.laps["unseen"]
    assert list(watch.medians().items()) == [("b", 2.0), ("a", 4.0)]


@pytest.mark.parametrize(
    ("laps", "wanted"),
    [([], True), ([0.1] * (REPEATS - 1), True), ([0.1] * REPEATS, False), ([LONG_ENOUGH], False)],
)
def test_a_few_laps_are_enough_and_fewer_if_they_take_long(laps, wanted):
    watch = Stopwatch()
    watch.laps["method"] = laps
    assert watch.wants("method") is wanted
