"""Partitions cover the data exactly."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fu_core.partition import (
    check_partition,
    dirichlet,
    feature_blocks,
    iid,
    label_counts,
    natural,
    partition_hash,
    read,
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


PUBLISHED = [2968, 2238, 4541, 2278, 7305, 13500, 4951, 4453, 2715, 5048]  # PUF's split of CIFAR-10 with alpha 0.3

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


def test_dirichlet_without_sizes_is_what_it_was():
    """Records name partitions by these bits."""
    labels = torch.arange(1000) % 10
    parts = dirichlet(labels, 4, alpha=0.3, seed=0, min_size=5)
    assert partition_hash(parts)[:16] == "e56b1eea4df11deb"
    assert partition_hash(dirichlet(labels, 4, alpha=0.3, seed=0, min_size=5, sizes=None)) == partition_hash(parts)


# Partitions of given sizes


def test_clients_have_the_sizes_that_a_paper_publishes():
    """Three of 50,000 samples are nobody's. The same every time; another seed shares out others."""
    labels = torch.arange(50_000) % 10
    parts = dirichlet(labels, 10, alpha=0.3, seed=0, sizes=PUBLISHED)
    assert [len(part) for part in parts] == PUBLISHED
    assert sum(PUBLISHED) == 49_997
    check_partition(parts, 50_000, whole=False)
    assert all(torch.equal(part, part.sort().values) for part in parts)
    assert partition_hash(dirichlet(labels, 10, alpha=0.3, seed=0, sizes=PUBLISHED)) == partition_hash(parts)
    assert partition_hash(dirichlet(labels, 10, alpha=0.3, seed=1, sizes=PUBLISHED)) != partition_hash(parts)
    with pytest.raises(ValueError, match="3 are lost, 0 are repeated"):
        check_partition(parts, 50_000)


@quick
@given(
    labels=st.lists(st.integers(0, 4), min_size=20, max_size=80),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    alpha=st.floats(1e-3, 1e4),
    seed=seeds,
)
def test_any_sizes_are_met_exactly_whatever_the_skew(labels, sizes, alpha, seed):
    y = torch.tensor(labels)
    while sum(sizes) > len(labels):
        sizes = sizes[:-1]
    sizes = [*sizes, len(labels) - sum(sizes)] if seed % 2 and sum(sizes) < len(labels) else sizes
    parts = dirichlet(y, len(sizes), alpha=alpha, seed=seed, sizes=sizes)
    assert [len(part) for part in parts] == sizes
    assert all(part.dtype == torch.int64 for part in parts)
    check_partition(parts, len(y), whole=sum(sizes) == len(y))


def test_sizes_that_leave_most_samples_show_the_skew_that_alpha_means():
    """q ~ Dir(alpha C prior): E q = prior, Var q_c = prior_c (1 - prior_c) / (alpha C + 1), and a multinomial's part.

    300 clients of 100 samples out of 3,000,000, classes of 1/6, 1/3 and 1/2: with alpha C = 1.5, the variance of a
    count is 100 p (1 - p) + 100 * 99 p (1 - p) / 2.5. Its standard error over 300 is below 10 %; the band is 30 %.
    """
    labels = torch.tensor([0, 1, 1, 2, 2, 2]).repeat(50_000)
    prior = torch.tensor([1 / 6, 1 / 3, 1 / 2], dtype=torch.float64)
    counts = label_counts(dirichlet(labels, 300, alpha=0.5, seed=0, sizes=[100] * 300), labels, 3).double()
    assert (counts.mean(dim=0) / 100 - prior).abs().max() < 4 * 0.32 / 300**0.5
    expected = 100 * prior * (1 - prior) * (1 + 99 / 2.5)
    assert ((counts.var(dim=0) / expected) - 1).abs().max() < 0.3
    even = label_counts(dirichlet(labels, 300, alpha=1e6, seed=0, sizes=[100] * 300), labels, 3).double()
    assert ((even.var(dim=0) / (100 * prior * (1 - prior))) - 1).abs().max() < 0.3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([5, 5], "sizes must be one per client, 3, got 2"),
        ([5, 5, 0], "size of client 2 must be a whole number >= 1, got 0"),
        ([5, 5, 2.0], "size of client 2 must be a whole number >= 1, got 2.0"),
        ([5, 5, 11], "sizes must not add up to more than there is: 21 of 20 samples"),
    ],
)
def test_sizes_that_cannot_be_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        dirichlet(torch.arange(20) % 2, 3, alpha=1.0, seed=0, sizes=sizes)


# Partitions that others have published


def test_a_published_partition_is_read(tmp_path):
    """Clients and indices in any order; sample 3 is nobody's."""
    path = tmp_path / "0.3_clients3.txt"
    path.write_text('{"1": [4, 0], "0": [5], "2": [2, 1, 6]}')
    assert as_lists(read(path, 7)) == [[5], [0, 4], [1, 2, 6]]
    assert all(part.dtype == torch.int64 for part in read(str(path), 7))


def test_what_is_written_is_read_again(tmp_path):
    parts, path = iid(30, 4, seed=0), tmp_path / "parts.json"
    path.write_text(json.dumps({str(client): part.tolist() for client, part in enumerate(parts)}))
    assert partition_hash(read(path, 30)) == partition_hash(parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "path must name a JSON file with a partition, got .*parts.json"),
        ("[[0, 1]]", "must hold lists of indices by client, .*, got list"),
        ("{}", "must hold lists of indices by client"),
        ('{"0": [1], "2": [0]}', "must name its 2 clients \"0\" to \"1\", got '0', '2'"),
        ('{"0": [1], "1": [true]}', r"client 1 must have a list of whole numbers, one at least, got \[True\]"),
        ('{"0": [1], "1": []}', "client 1 must have a list of whole numbers, one at least"),
        ('{"0": [1], "1": 2}', "client 1 must have a list of whole numbers, one at least, got 2"),
        ('{"0": [1], "1": [5]}', r"client 1 must have indices 0\.\.4, got 5"),
        ('{"0": [1], "1": [-1]}', r"client 1 must have indices 0\.\.4, got -1"),
        ('{"0": [1, 1], "1": [2]}', "client 0 must have every index once, got 1 again"),
        ('{"0": [1, 3], "1": [2, 3]}', "clients 0 and 1 both have index 3"),
    ],
)
def test_a_file_that_is_no_partition_is_named(tmp_path, text, message):
    path = tmp_path / "parts.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read(path, 5)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"path must name a JSON file with a partition, got .*none\.json"):
        read(tmp_path / "none.json", 5)


def test_seeds_differ():
    labels = torch.arange(100) % 5
    assert partition_hash(iid(100, 4, seed=0)) != partition_hash(iid(100, 4, seed=1))
    one, two = (partition_hash(dirichlet(labels, 4, alpha=1.0, seed=seed)) for seed in (0, 1))
    assert one != two


def test_no_global_random_state_is_touched():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    dirichlet(torch.arange(50) % 5, 4, alpha=1.0, seed=0)
    iid(50, 4, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf"), "big", pytest.param(10**400, id="10^400")])
def test_alpha_must_be_positive_and_finite(alpha):
    with pytest.raises(ValueError, match="alpha must be a finite number > 0, got"):
        dirichlet(torch.arange(10), 2, alpha=alpha, seed=0)


def test_more_clients_than_samples_is_refused():
    with pytest.raises(ValueError, match="clients must not ask for more than there is: 11 clients of 10 samples"):
        iid(10, 11, seed=0)
    with pytest.raises(ValueError, match="3 samples for each of 4 clients of 10 samples"):
        dirichlet(torch.zeros(10).long(), 4, alpha=1.0, seed=0, min_size=3)
    with pytest.raises(ValueError, match="clients must be a whole number >= 1, got 0"):
        iid(10, 0, seed=0)


def test_numbers_and_arrays_may_be_numpys():
    labels = torch.arange(60) % 5
    numpy, how = labels.numpy(), {"alpha": 0.5, "seed": 0}
    assert as_lists(iid(np.int64(10), np.int64(3), seed=0)) == as_lists(iid(10, 3, seed=0))
    expected = as_lists(dirichlet(labels, 4, **how))
    for form in (numpy, labels.tolist()):
        assert as_lists(dirichlet(form, np.int64(4), alpha=np.float64(0.5), seed=0)) == expected
    sized = as_lists(dirichlet(labels, 2, sizes=[20, 30], **how))
    assert as_lists(dirichlet(numpy, 2, sizes=np.array([20, 30]), **how)) == sized
    assert as_lists(vertical(np.int64(8), np.int64(3))) == as_lists(vertical(8, 3))
    assert as_lists(vertical(np.array([3, 4, 6]), 2)) == as_lists(vertical((3, 4, 6), 2))
    assert as_lists(natural(numpy)) == as_lists(natural(labels))
    parts = iid(60, 3, seed=0)
    assert torch.equal(label_counts(parts, numpy, np.int64(5)), label_counts(parts, labels, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(10.0, 2, seed=0), "n must be a whole number >= 0, got 10.0"),
        (lambda: iid(-1, 2, seed=0), "n must be a whole number >= 0, got -1"),
        (lambda: dirichlet("cat", 2, alpha=1.0, seed=0), "labels must be numbers, as an array or tensor, got 'cat'"),
        (lambda: dirichlet(None, 2, alpha=1.0, seed=0), "labels must be numbers, as an array or tensor, got None"),
        (lambda: natural(["a", "b"]), r"site must be numbers, as an array or tensor, got \['a', 'b'\]"),
    ],
)
def test_what_is_no_number_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
    with pytest.raises(ValueError, match="labels must be 0 to 2, got -1"):
        label_counts(indices([0]), torch.tensor([-1, 0, 2]), 3)
    for labels in (torch.zeros(2, 2).long(), torch.zeros(2)):
        with pytest.raises(ValueError, match=r"labels must be whole numbers \(n,\), got torch"):
            label_counts(indices([0]), labels, 3)
    assert label_counts([], torch.tensor([0, 1]), 3).shape == (0, 3)


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


def test_a_partition_of_some_samples_may_lose_but_not_repeat():
    check_partition(indices([0], [2]), 3, whole=False)
    with pytest.raises(ValueError, match="parts must hold none of 3 samples twice: 1 are repeated"):
        check_partition(indices([0], [0]), 3, whole=False)
    with pytest.raises(ValueError, match=r"indices 0\.\.2, found 0\.\.3"):
        check_partition(indices([0], [3]), 3, whole=False)


def test_the_hash_sees_who_holds_what():
    hashes = [
        partition_hash(parts)
        for parts in (indices([0, 1], [2]), indices([0], [1, 2]), indices([2], [0, 1]), indices([0, 1, 2]))
    ]
    assert len(set(hashes)) == 4
    assert partition_hash(indices([0, 1], [2])) == hashes[0]


# What would lose samples, or count somebody else's


def test_samples_whose_label_is_nan_are_not_lost():
    """NaN equals no class: of 40 samples 10 were nobody's, and a hospital had no images."""
    labels = torch.tensor([0.0, 1.0, torch.nan, 2.0] * 10)
    for call in (
        lambda: dirichlet(labels, 4, alpha=1.0, seed=0),
        lambda: dirichlet(labels, 4, alpha=1.0, seed=0, sizes=[10] * 4),
    ):
        with pytest.raises(ValueError, match="labels must be numbers, as an array or tensor, got 10 that are NaN"):
            call()
    with pytest.raises(ValueError, match=r"site must be numbers, .* got 1 that are NaN"):
        natural(torch.tensor([0.0, torch.nan, 1.0]))


def test_sizes_of_a_narrow_type_do_not_overflow():
    """100 + 100 + 100 + 100 are 144 as uint8, and -112 as int8, which passed for few enough."""
    for dtype in (np.int8, np.uint8):
        with pytest.raises(ValueError, match="sizes must not add up to more than there is: 400 of 100 samples"):
            dirichlet(torch.arange(100) % 4, 4, alpha=1.0, seed=0, sizes=np.full(4, 100, dtype))
        parts = dirichlet(torch.arange(400) % 4, 4, alpha=1.0, seed=0, sizes=np.full(4, 100, dtype))
        assert [len(part) for part in parts] == [100] * 4
    for sizes in (10, {10}, iter([10] * 4)):
        with pytest.raises(ValueError, match="sizes must be one per client, 4, got"):
            dirichlet(torch.arange(100) % 4, 4, alpha=1.0, seed=0, sizes=sizes)


@pytest.mark.parametrize("how", [{"min_size": 0}, {"sizes": [10] * 4}])
def test_an_alpha_that_overflows_does_not_give_everything_to_one_client(how):
    labels = torch.arange(40) % 4
    with pytest.raises(ValueError, match=r"alpha must be at most 1e\+300, got 1e\+308"):
        dirichlet(labels, 4, alpha=1e308, seed=0, **how)
    assert min(len(part) for part in dirichlet(labels, 4, alpha=1e300, seed=0, **how)) > 0


def test_a_client_that_a_file_names_twice_does_not_lose_what_it_had_first(tmp_path):
    path = tmp_path / "parts.json"
    path.write_text('{"0": [1], "1": [2], "0": [0]}')
    with pytest.raises(ValueError, match=r"path must name a JSON file .* client '0' is there twice"):
        read(path, 3)
    with pytest.raises(ValueError, match="path must name a JSON file with a partition, got 'None'"):
        read(None, 3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, -1]], r"parts must hold indices 0\.\.3, found -1\.\.0"),  # of the last sample
        ([[0, 4]], r"parts must hold indices 0\.\.3, found 0\.\.4"),
        ([[0.0, 1.0]], r"parts\[0\] must be whole numbers \(n,\), got torch.float32 of shape \(2,\)"),
        ([[0], [True, False]], r"parts\[1\] must be whole numbers \(n,\), got torch.bool"),  # not a mask
        ([torch.tensor([[0, 1]])], r"parts\[0\] must be whole numbers \(n,\), got torch.int64 of shape \(1, 2\)"),
        ([torch.tensor(0)], r"parts\[0\] must be whole numbers"),
        ({0: [0]}, "parts must be the indices of each client, in a list, got dict"),
        (None, "parts must be the indices of each client, in a list, got NoneType"),
    ],
)
def test_parts_that_are_no_indices_are_named(parts, message):
    calls = [lambda: label_counts(parts, torch.tensor([0, 1, 0, 1]), 2), lambda: check_partition(parts, 4)]
    for call in calls if "found" in message else [*calls, lambda: partition_hash(parts)]:
        with pytest.raises(ValueError, match=message):
            call()


def test_parts_may_be_lists_or_numpys():
    expected = indices([0, 2], [1, 3])
    for parts in ([[0, 2], [1, 3]], [np.array([0, 2]), np.array([1, 3], np.int32)], torch.tensor([[0, 2], [1, 3]])):
        check_partition(parts, 4)
        assert partition_hash(parts) == partition_hash(expected)
        assert label_counts(parts, [0, 1, 1, 1], 2).tolist() == [[1, 1], [0, 2]]
    with pytest.raises(ValueError, match=r"labels must be whole numbers \(n,\), got torch.bool"):
        label_counts(expected, [True] * 4, 2)
    with pytest.raises(ValueError, match="n must be a whole number >= 0, got -1"):
        check_partition([], -1)


@pytest.mark.parametrize("shape", ["abc", None, 8.0, (3, 8.0), (), (3, -4), torch.tensor([3.0, 8.0])])
def test_a_shape_that_is_none_is_named(shape):
    """Of (3, 8.0) came columns of type float32, which select nothing."""
    for call in (lambda: vertical(shape, 2), lambda: feature_blocks(shape, blocks=[[0], [1]])):
        with pytest.raises(ValueError, match="shape must be"):
            call()


def test_columns_of_a_width_that_is_numpys_are_cut():
    for width in (np.int64(4), [np.int64(4)], torch.tensor([4])):
        assert as_lists(feature_blocks(width, blocks=[[0, 1], [2]])) == [[0, 1], [2]]
        assert as_lists(feature_blocks(width, 2)) == [[0, 1], [2, 3]]
    for axis in (None, "last", 0.5):
        with pytest.raises(ValueError, match="axis counts from the end"):
            vertical(8, 2, axis=axis)
    with pytest.raises(ValueError, match="blocks must be the columns of each party, in a list, got 5"):
        feature_blocks(4, blocks=5)


def test_a_partition_of_many_clients_is_read_in_a_moment(tmp_path):
    """Every name was counted among all: 40,000 clients took half a minute."""
    path, n = tmp_path / "parts.json", 40_000
    path.write_text(json.dumps({str(i): [i] for i in range(n)}))
    begin = time.process_time()
    assert as_lists(read(path, n)) == [[i] for i in range(n)]
    assert time.process_time() - begin < 10
