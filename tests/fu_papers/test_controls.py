"""The shared check of the controls: what must fail fails, what must pass passes, else the caption says so."""

import pandas as pd
import pytest

from fu_core.errors import ConfigError
from fu_papers.controls import AGAIN, CONTROLS, DESTROYED, Standing, other_seed, warned, warning, wrong_controls

AS_THEY_MUST = {
    "Original": Standing(30.0, 1.0, -1.0),
    "Retrain": Standing(0.0, 0.0, 0.0),
    AGAIN: Standing(3.5, 2.0, 0.5),
    DESTROYED: Standing(50.0, 70.0, 70.0),
}


def wrong(changes=None, **how):
    return wrong_controls({**AS_THEY_MUST, **(changes or {})}, **how)


def test_controls_that_come_out_as_they_must_are_not_mentioned():
    assert wrong() == []
    assert warned("Table 1", {"": wrong()}) == "Table 1"


def test_a_second_retraining_must_be_nearer_than_doing_nothing():
    (told,) = wrong({AGAIN: Standing(30.0, 2.0, 0.5)}, what="gap in attack success")
    assert told == (
        "Retrain again's gap in attack success (30.0) is not smaller than Original's gap in attack success (30.0)"
    )
    (told,) = wrong({AGAIN: Standing(3.5, 30.0, 0.5)})
    assert told == "Retrain again's test accuracy is 30.0 points off, no less than Original's forget gap (30.0)"


def test_random_weights_must_be_of_less_use_than_every_row_they_are_held_against():
    (told,) = wrong({DESTROYED: Standing(0.0, 0.4, 0.4)})
    assert told == "Destroyed has no larger shortfall (0.4) than Retrain again (noise floor)"
    (told,) = wrong({"NoT": Standing(1.0, 70.0, 70.0)})
    assert told == "Destroyed has no larger shortfall (70.0) than NoT"
    assert wrong({"NoT": Standing(1.0, float("nan"), float("nan"))}) == []  # who has no result is no row


def test_random_weights_must_be_of_less_use_than_two_retrainings_tell_apart():
    (told,) = wrong({DESTROYED: Standing(50.0, 3.0, 3.0)})  # the floor 2 and a point
    assert told == "Destroyed's shortfall (3.0) is at most 1 point more than two retrainings differ by (2.0)"
    assert wrong({DESTROYED: Standing(50.0, 3.1, 3.1)}) == []


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_that_has_not_been_run_is_missing_and_not_wrong(name):
    told = wrong({name: Standing.of(pd.DataFrame(columns=["delta_forget", "delta_test", "test", "test_retrain"]))})
    assert told == [f"{name} has not been run here"]
    assert warning({"MNIST": told, "Digits": told}) == f"Not all controls are there: {name} has not been run here."
    assert warning({"MNIST": told, "Digits": ["A is wrong"]}) == (
        "THE CONTROLS ARE WRONG in 1 of 2 blocks, where this table cannot tell who forgets: Digits: A is wrong. "
        f"Not all controls are there: {name} has not been run here."
    )


@pytest.mark.parametrize("number", ["gap", "test", "shortfall"])
def test_a_control_without_one_of_its_numbers_is_missing_and_not_wrong(number):
    assert wrong({AGAIN: AS_THEY_MUST[AGAIN]._replace(**{number: float("nan")})}) == [f"{AGAIN} has not been run here"]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_without_a_row_is_missing_as_well(name):
    assert wrong_controls({other: row for other, row in AS_THEY_MUST.items() if other != name}) == [
        f"{name} has not been run here"
    ]


def test_a_row_stands_where_its_runs_do_on_average():
    r = pd.DataFrame({"delta_forget": [1.0, 3.0], "delta_asr": [8.0, 4.0], "delta_test": [2.0, 4.0]})
    r = r.assign(test=[70.0, 80.0], test_retrain=[72.0, 76.0])
    assert Standing.of(r) == Standing(2.0, 3.0, -1.0)
    assert Standing.of(r, "asr").gap == 6.0


def test_a_table_of_several_blocks_says_which():
    notes = ["A is wrong", "B is wrong"]
    assert warning({"": notes}) == (
        "THE CONTROLS ARE WRONG, this table cannot tell who forgets: A is wrong; B is wrong."
    )
    found = warned("Table 2", {"MNIST": [], "Digits": notes, "CIFAR-10": ["C"]})
    assert found == (
        "Table 2. THE CONTROLS ARE WRONG in 2 of 3 blocks, where this table cannot tell who forgets: "
        "Digits: A is wrong; B is wrong. CIFAR-10: C."
    )
    assert warning({"MNIST": [], "Digits": []}) == ""


def test_the_other_seed_is_the_next_where_there_are_several_else_one_more():
    assert [other_seed(seed, [3, 1, 2]) for seed in (3, 1, 2)] == [1, 2, 3]
    assert other_seed(1, [1], [0, 1, 2]) == 2
    assert other_seed(4, [4], [4]) == 5
    assert [other_seed(1, [1, 1]), other_seed(1, [1, 1, 3])] == [2, 3]  # no seed is its own other
    with pytest.raises(ConfigError, match="seed must be one of 0, 1, got 5"):
        other_seed(5, [0, 1])
