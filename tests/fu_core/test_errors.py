"""Checks that must not fail themselves, whatever they are given."""

import numpy as np
import pytest

from fu_core.errors import check_not_negative, check_positive, check_same_shape, check_share, listed


@pytest.mark.parametrize("given", ["half", None, [0.5], float("nan"), -0.1, np.float64(1.1)])
def test_a_share_that_is_none_is_named(given):
    with pytest.raises(ValueError, match="c must be between 0 and 1, got"):
        check_share("c", given)


def test_clients_of_any_kind_can_be_listed():
    assert (listed([2, 0, 1]), listed([3, np.int64(1)]), listed([])) == ("0 to 2", "1, 3", "none")
    assert (listed(["b", "a"]), listed([0, "1"])) == ("'b', 'a'", "0, '1'")


@pytest.mark.parametrize("check", [check_positive, check_not_negative])
def test_a_number_that_no_float_can_hold_is_not_finite(check):
    check("c", 10**300)
    with pytest.raises(ValueError, match=r"c must be a finite number >=? 0, got 1000"):
        check("c", 10**400)


def test_both_of_two_shapes_are_named():
    check_same_shape("a", np.zeros((2, 1)), "b", np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"a and b must have one shape, got \(2, 1\) and \(1,\)"):
        check_same_shape("a", np.zeros((2, 1)), "b", np.zeros(1))
