"""Partitions cover the data exactly; requests divide them exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fu_core.errors import InvalidRequest
from fu_core.partition import (
    Request,
    check_partition,
    dirichlet,
    forget_class,
    forget_clients,
    forget_samples,
    iid,
    label_counts,
    natural,
    partition_hash,
    vertical,
)

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**31)


def indices(*groups: list[int]) -> list[Tensor]:
    return [torch.tensor(group, dtype=torch.int64) for group in groups]


def as_lists(parts: list[Tensor] | tuple[Tensor, ...]) -> list[list[int]]:
    return [part.tolist() for part in parts]


def assert_exact_cover(parts: list[Tensor], n: int) -> None:
    assert sorted(index for part in as_lists(parts) for index in part) == list(range(n))
    assert all(part == sorted(part) for part in as_lists(parts))
    assert all(part.dtype == torch.int64 for part in parts)


# Partitions


@quick
@given(clients=st.integers(1, 12), extra=st.integers(0, 60), seed=seeds)
def test_iid_covers_exactly_in_equal_shares(clients, extra, seed):
    n = clients + extra
    parts = iid(n, clients, seed=seed)
    assert_exact_cover(parts, n)
    sizes = [len(part) for part in parts]
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1
    assert as_lists(iid(n, clients, seed=seed)) == as_lists(parts)


@quick
@given(
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=120),
    clients=st.integers(1, 6),
    alpha=st.floats(0.05, 1e4),
    seed=seeds,
)
def test_dirichlet_covers_exactly_and_leaves_nobody_empty(labels, clients, alpha, seed):
    y = torch.tensor(labels)
    parts = dirichlet(y, clients, alpha=alpha, seed=seed, max_tries=10_000)
    assert_exact_cover(parts, len(y))
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert as_lists(dirichlet(y, clients, alpha=alpha, seed=seed, max_tries=10_000)) == as_lists(parts)


def test_dirichlet_respects_the_minimum_size():
    labels = torch.arange(1000) % 10
    for seed in range(20):
        parts = dirichlet(labels, 10, alpha=0.3, seed=seed, min_size=30)
        assert min(len(part) for part in parts) >= 30


def test_dirichlet_gives_up_after_the_promised_number_of_draws():
    """Ten clients cannot share two classes at alpha 0.001 so that each gets a fair share."""
    with pytest.raises(ValueError, match=r"no Dirichlet split in 7 draws gave each of 10 clients 9 of 100 samples"):
        dirichlet(torch.arange(100) % 2, 10, alpha=0.001, seed=0, min_size=9, max_tries=7)


def test_dirichlet_with_large_alpha_is_nearly_uniform_and_with_small_alpha_is_not():
    """10 classes x 1,000 samples, 10 clients: uniform means 100 of each class for each client."""
    labels = torch.arange(10_000) % 10
    even = label_counts(dirichlet(labels, 10, alpha=1e4, seed=0), labels, 10)
    skewed = label_counts(dirichlet(labels, 10, alpha=0.1, seed=0), labels, 10)
    assert (even - 100).abs().max() <= 10
    assert skewed.max() > 500


def test_dirichlet_shares_have_the_right_moments():
    """A client's share of a class is Beta(a, (N-1) a): mean 1/N, variance (N-1) / (N² (N a + 1)).

    For N = 5 and a = 0.5 that is 0.2 and 4 / (25 · 3.5) = 0.0457. Over 2,000 classes x 5 clients the standard error of
    the variance is below 0.001; the band is 4 of them.
    """
    labels = torch.arange(2000 * 200) % 2000
    share = label_counts(dirichlet(labels, 5, alpha=0.5, seed=1), labels, 2000).double() / 200
    assert share.mean().item() == pytest.approx(0.2)
    assert share.var(correction=0).item() == pytest.approx(4 / (25 * 3.5), abs=0.004)


def test_seeds_differ():
    labels = torch.arange(100) % 5
    assert partition_hash(iid(100, 4, seed=0)) != partition_hash(iid(100, 4, seed=1))
    one, two = (partition_hash(dirichlet(labels, 4, alpha=1.0, seed=seed)) for seed in (0, 1))
    assert one != two


def test_no_global_random_state_is_touched():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    dirichlet(torch.arange(50) % 5, 4, alpha=1.0, seed=0)
    forget_samples(iid(50, 4, seed=0), [1, 2], fraction=0.5, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf"), "big"])
def test_alpha_must_be_positive_and_finite(alpha):
    with pytest.raises(ValueError, match="alpha must be > 0, got"):
        dirichlet(torch.arange(10), 2, alpha=alpha, seed=0)


def test_more_clients_than_samples_is_refused():
    with pytest.raises(ValueError, match="clients must not ask for more than there is: 11 clients of 10 samples"):
        iid(10, 11, seed=0)
    with pytest.raises(ValueError, match="3 samples for each of 4 clients of 10 samples"):
        dirichlet(torch.zeros(10).long(), 4, alpha=1.0, seed=0, min_size=3)
    with pytest.raises(ValueError, match="clients must be a whole number >= 1, got 0"):
        iid(10, 0, seed=0)


def test_natural_gives_each_hospital_its_own_images():
    assert as_lists(natural(torch.tensor([5, 2, 5, 9, 2]))) == [[1, 4], [0, 2], [3]]
    with pytest.raises(ValueError, match="site must have shape"):
        natural(torch.zeros(2, 2))


def test_vertical_gives_two_parties_the_left_and_the_right_half():
    """An image (3, 4, 6) is cut along its width into columns 0-2 and 3-5."""
    left, right = vertical((3, 4, 6), 2)
    assert as_lists([left, right]) == [[0, 1, 2], [3, 4, 5]]
    image = torch.arange(3 * 4 * 6).reshape(1, 3, 4, 6)
    assert torch.equal(image.index_select(-1, right), image[..., 3:])


def test_vertical_divides_columns_of_a_table_or_rows_of_an_image():
    assert as_lists(vertical(7, 3)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert as_lists(vertical(torch.zeros(10, 4).shape[1:], 2)) == [[0, 1], [2, 3]]
    assert as_lists(vertical((3, 4, 6), 2, axis=-2)) == [[0, 1], [2, 3]]


@quick
@given(width=st.integers(1, 40), data=st.data())
def test_vertical_covers_all_features(width, data):
    parties = data.draw(st.integers(1, width))
    blocks = vertical(width, parties)
    assert_exact_cover(blocks, width)
    assert len(blocks) == parties


@pytest.mark.parametrize(("shape", "parties", "axis"), [(3, 4, -1), (3, 0, -1), ((3, 4), 2, 0), ((3, 4), 2, -3)])
def test_vertical_refuses_what_cannot_be_cut(shape, parties, axis):
    with pytest.raises(ValueError, match=r"parties must|axis counts"):
        vertical(shape, parties, axis=axis)


def test_label_counts_by_hand():
    counts = label_counts(indices([0, 2], [1, 3, 4], []), torch.tensor([0, 1, 0, 2, 1]), 3)
    assert counts.tolist() == [[2, 0, 0], [0, 2, 1], [0, 0, 0]]
    with pytest.raises(ValueError, match="classes must exceed every label, got 2"):
        label_counts(indices([0]), torch.tensor([2]), 2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (indices([0, 1], [1, 2]), "0 are lost, 1 are repeated"),
        (indices([0], [2]), "1 are lost, 0 are repeated"),
        (indices([0, 1, 2, 3], []), "indices 0..2, found 0..3"),
        (indices([-1, 0, 1, 2]), "found -1..2"),
        ([], "3 are lost"),
    ],
)
def test_a_partition_that_loses_or_repeats_is_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        check_partition(parts, 3)


@quick
@given(n=st.integers(4, 60), seed=seeds, data=st.data())
def test_removing_any_sample_from_a_partition_is_noticed(n, seed, data):
    parts = iid(n, 4, seed=seed)
    check_partition(parts, n)
    client = data.draw(st.integers(0, 3))
    parts[client] = parts[client][1:]
    with pytest.raises(ValueError, match="1 are lost"):
        check_partition(parts, n)


def test_the_hash_sees_who_holds_what():
    hashes = [
        partition_hash(parts)
        for parts in (indices([0, 1], [2]), indices([0], [1, 2]), indices([2], [0, 1]), indices([0, 1, 2]))
    ]
    assert len(set(hashes)) == 4
    assert partition_hash(indices([0, 1], [2])) == hashes[0]


# Requests

PARTS = indices([0, 3, 6, 9], [1, 4, 7], [2, 5, 8])


def assert_divides(request: Request, parts: list[Tensor]) -> None:
    """Forget and retain are disjoint, sorted, and together each client's part."""
    for forget, retain, part in zip(request.forget, request.retain, parts, strict=True):
        assert sorted(forget.tolist() + retain.tolist()) == part.tolist()
        assert forget.tolist() == sorted(forget.tolist())
        assert retain.tolist() == sorted(retain.tolist())
    for forget, target in zip(request.forget, request.targets.tolist(), strict=True):
        assert target or len(forget) == 0


def test_forgetting_clients_by_hand():
    request = forget_clients(PARTS, [2, 0])
    assert request.granularity == "client"
    assert request.targets.tolist() == [True, False, True]
    assert as_lists(request.forget) == [[0, 3, 6, 9], [], [2, 5, 8]]
    assert as_lists(request.retain) == [[], [1, 4, 7], []]
    assert request.forget_all.tolist() == [0, 2, 3, 5, 6, 8, 9]
    assert request.retain_all.tolist() == [1, 4, 7]


def test_one_client_may_be_named_without_a_list():
    assert forget_clients(PARTS, 1).targets.tolist() == [False, True, False]
    assert forget_clients(PARTS, torch.tensor([1])).targets.tolist() == [False, True, False]
    assert forget_clients(PARTS, np.array([1])).targets.tolist() == [False, True, False]


def test_a_request_shares_no_memory_with_the_partition():
    parts = [part.clone() for part in PARTS]
    request = forget_clients(parts, 0)
    request.forget[0].zero_()
    request.retain[1].zero_()
    assert as_lists(parts) == as_lists(PARTS)


@quick
@given(
    sizes=st.lists(st.integers(2, 20), min_size=1, max_size=6),
    fraction=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=seeds,
)
def test_forgetting_samples_takes_the_fraction_but_never_none_or_all(sizes, fraction, seed):
    parts = list(torch.arange(sum(sizes)).split(sizes))
    request = forget_samples(parts, range(len(sizes)), fraction=fraction, seed=seed)
    assert_divides(request, parts)
    for n, forget in zip(sizes, request.forget, strict=True):
        assert len(forget) == min(max(round(fraction * n), 1), n - 1)
    again = forget_samples(parts, range(len(sizes)), fraction=fraction, seed=seed)
    assert as_lists(again.forget) == as_lists(request.forget)


def test_what_a_client_forgets_does_not_depend_on_the_other_targets():
    parts = iid(200, 4, seed=0)
    alone = forget_samples(parts, 2, fraction=0.5, seed=7)
    together = forget_samples(parts, [0, 1, 2], fraction=0.5, seed=7)
    assert torch.equal(alone.forget[2], together.forget[2])


def test_forgotten_samples_are_uniform():
    """Each of 10 samples goes with probability 0.3: in 2,000 requests 600 times, standard deviation 20.5."""
    parts = indices(list(range(10)))
    times = torch.zeros(10)
    for seed in range(2000):
        times[forget_samples(parts, 0, fraction=0.3, seed=seed).forget[0]] += 1
    assert times.sum() == 2000 * 3
    assert (times - 600).abs().max() < 4 * 20.5


def test_requests_can_follow_each_other():
    """The second request starts from what the first retained: 100 -> 90 -> 81, and nothing is forgotten twice."""
    parts = iid(100, 1, seed=0)
    first = forget_samples(parts, 0, fraction=0.1, seed=0)
    second = forget_samples(first.retain, 0, fraction=0.1, seed=1)
    assert (len(first.retain_all), len(second.retain_all)) == (90, 81)
    check_partition([first.forget_all, second.forget_all, second.retain_all], 100)


def test_forgetting_a_class_by_hand():
    """Class 1 is 3, 4 and 5: clients 0, 1 and 2 hold one each. Class 2 is 9, with client 0 only."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 0, 2])
    request = forget_class(PARTS, labels, 1)
    assert_divides(request, PARTS)
    assert (request.granularity, as_lists(request.forget)) == ("class", [[3], [4], [5]])
    assert forget_class(PARTS, labels, 2).targets.tolist() == [True, False, False]


@quick
@given(labels=st.lists(st.integers(0, 3), min_size=20, max_size=50), seed=seeds)
def test_forgetting_a_class_forgets_all_of_it_and_nothing_else(labels, seed):
    y = torch.tensor([0, 1, *labels])
    parts = iid(len(y), 4, seed=seed)
    request = forget_class(parts, y, 0)
    assert_divides(request, parts)
    assert (y[request.forget_all] == 0).all()
    assert (y[request.retain_all] != 0).all()


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (3, "targets must lie in 0..2, got 3"),
        (-1, "targets must lie in 0..2, got -1"),
        ([], "at least one client, got none"),
        ([0, 0], "each client once"),
        (["a"], "must be client numbers"),
        ([0.0], "must be client numbers"),
        ([True, False, True], "must be client numbers"),
        (torch.tensor([True, False, True]), "must be client numbers"),
        (np.array([True, False, True]), "must be client numbers"),
    ],
)
def test_impossible_targets_are_refused(targets, message):
    with pytest.raises(InvalidRequest, match=message):
        forget_clients(PARTS, targets)
    with pytest.raises(InvalidRequest, match=message):
        forget_samples(PARTS, targets, fraction=0.5, seed=0)


def test_somebody_must_stay():
    with pytest.raises(InvalidRequest, match="targets name all 3 clients"):
        forget_clients(PARTS, [0, 1, 2])
    with pytest.raises(InvalidRequest, match="nothing would be left to retain"):
        forget_clients([*indices([0, 1], [])], 0)
    with pytest.raises(InvalidRequest, match="nothing would be left to retain"):
        forget_class(PARTS, torch.zeros(10).long(), 0)


def test_a_client_without_enough_data_cannot_forget():
    with pytest.raises(InvalidRequest, match="client 1 holds no data"):
        forget_clients(indices([0], []), 1)
    with pytest.raises(InvalidRequest, match="client 0 holds 1 samples, too few"):
        forget_samples(indices([0], [1, 2]), 0, fraction=0.5, seed=0)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), "half"])
def test_the_fraction_lies_strictly_between_0_and_1(fraction):
    with pytest.raises(InvalidRequest, match="fraction must lie between 0 and 1"):
        forget_samples(PARTS, 0, fraction=fraction, seed=0)


def test_an_unknown_class_is_refused_with_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"one of \[0, 1\], got 5"):
        forget_class(PARTS, torch.arange(10) % 2, 5)
