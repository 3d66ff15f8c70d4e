"""Requests: how they are written, which samples they come to, and what a deletion is made of."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fu_core.errors import InvalidRequest
from fu_core.request import Deletion, Request
from fu_core.streams import stream

quick = settings(max_examples=50, deadline=None)
sizes_of_clients = st.lists(st.integers(2, 20), min_size=1, max_size=6)
shares = st.floats(0, 1, exclude_min=True, exclude_max=True)


def clients_of(*labels):
    """Clients with these labels, whose inputs are (n, 1): 100 for each client before, 1 for each sample before."""
    return {i: (100 * i + torch.arange(len(y))[:, None], torch.as_tensor(y)) for i, y in enumerate(labels)}


def unlabelled(*sizes):
    return {i: torch.zeros(n, dtype=torch.int64) for i, n in enumerate(sizes)}


def as_lists(rows):
    return {i: indices.tolist() for i, indices in rows.items()}


def drawn(n, count, purpose, *keys):
    """The first `count` of n in the order of a named stream, as a set."""
    return set(torch.randperm(n, generator=stream(0, purpose, *keys))[:count].tolist())


# The grammar


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("none", {}),
        ("client-3", {"clients": (3,)}),
        ("client-7-0-12", {"clients": (7, 0, 12)}),
        ("sample-0.1", {"share": 0.1}),
        ("sample-.5", {"share": 0.5}),
        ("sample-1e-05", {"share": 1e-5}),
        ("sample-0-0.5", {"clients": (0,), "share": 0.5}),
        ("sample-4-2-2.5e-3", {"clients": (4, 2), "share": 0.0025}),
        ("samples-50", {"count": 50}),
        ("class-0", {"label": 0}),
        ("classes-2-50", {"count": 2, "percent": 50}),
        ("classes-2-50-from-6", {"count": 2, "percent": 50, "first": 6}),
        ("sequence-2-3-0.2", {"count": 2, "of": 3, "share": 0.2}),
        ("sequence-3-3-1e-05", {"count": 3, "of": 3, "share": 1e-5}),
    ],
)
def test_every_kind_is_read_and_keeps_its_text(text, fields):
    request = Request.parse(text)
    assert request == Request(text, text.partition("-")[0], **fields)
    assert Request.parse(request.text) == request


@quick
@given(clients=st.lists(st.integers(0, 1000), max_size=4, unique=True), share=shares)
def test_whatever_the_grids_write_is_read(clients, share):
    """They print shares as `{:g}`, which writes small ones as 1e-05."""
    text = "-".join(["sample", *map(str, clients), f"{share:g}"])
    if 0 < float(f"{share:g}") < 1:
        request = Request.parse(text)
        assert (request.clients, request.share) == (tuple(clients), float(f"{share:g}"))


@pytest.mark.parametrize("kind", ["", "clients-3", "Client-3", "3", "3-client", " client-3", "half-0.5"])
def test_an_unknown_kind_is_told_the_known_ones(kind):
    with pytest.raises(InvalidRequest, match=f"must begin with one of none, client, sample, .* got '{kind}'"):
        Request.parse(kind)


def test_the_nearest_kind_is_named():
    with pytest.raises(InvalidRequest, match=r"got 'clint-3'; did you mean 'client'\?"):
        Request.parse("clint-3")


@pytest.mark.parametrize(
    ("example", "texts"),
    [
        ("none", ["none-", "none-1"]),
        (
            "client-3",
            ["client", "client-", "client--3", "client-3-", "client-3.0", "client-a", "client-3\n", "client-٣"],
        ),
        (
            "sample-0-0.5",
            ["sample", "sample-", "sample-half", "sample--0.5", "sample-0.5-0", "sample-nan", "sample-1e_5"],
        ),
        ("samples-50", ["samples", "samples-0.5", "samples-5-5", "samples-1e2", "samples- 5", "samples-1_0"]),
        ("class-0", ["class", "class--1", "class-1-2", "class-cat"]),
        ("classes-2-50", ["classes-2", "classes-2-0.5", "classes-2-50-1", "classes--1-50", "classes-2-50-from-"]),
        ("sequence-2-3-0.2", ["sequence-2-3", "sequence-0.2", "sequence-2-0.5-0.2", "sequence-1-2-3-0.2"]),
    ],
)
def test_what_does_not_look_like_its_kind_is_shown_an_example(example, texts):
    for text in texts:
        with pytest.raises(InvalidRequest) as refused:
            Request.parse(text)
        assert str(refused.value) == f"request must look like {example!r}, got {text!r}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample-0", "a share between 0 and 1 of the samples, got 'sample-0'"),
        ("sample-3-1", "a share between 0 and 1"),
        ("sample-1.5", "a share between 0 and 1"),
        ("sample-1e-999", "a share between 0 and 1"),
        ("sequence-1-3-1.0", "a share between 0 and 1"),
        ("sequence-0-3-0.2", "count from 1 to the sequence's 3 requests, got 'sequence-0-3-0.2'"),
        ("sequence-4-3-0.2", "count from 1 to the sequence's 3 requests"),
        ("classes-2-0", "1 to 100 percent .* got 'classes-2-0'"),
        ("classes-2-101", "1 to 100 percent"),
        ("client-3-5-3", "names a client twice: 'client-3-5-3'"),
        ("sample-1-1-0.5", "names a client twice"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(text, message):
    with pytest.raises(InvalidRequest, match=message):
        Request.parse(text)


# Which samples: clients and shares of their samples


def test_clients_lose_all_that_they_hold():
    assert as_lists(Request.parse("client-2-0").rows(unlabelled(2, 5, 3))) == {0: [0, 1], 2: [0, 1, 2]}
    assert Request.parse("none").rows(unlabelled(2, 5)) == {}


@quick
@given(sizes=sizes_of_clients, share=shares)
def test_a_share_is_rounded_but_never_none_or_all_and_drawn_from_the_clients_own_stream(sizes, share):
    rows = Request("", "sample", share=share).rows(unlabelled(*sizes))
    assert list(rows) == list(range(len(sizes)))
    for i, n in enumerate(sizes):
        count = min(max(round(share * n), 1), n - 1)
        assert rows[i].tolist() == sorted(drawn(n, count, "forget samples", i))
        assert len(rows[i]) == count


@pytest.mark.parametrize("text", ["sample-0.5", "sequence-1-2-0.9"])
def test_where_everybody_forgets_a_client_without_samples_forgets_none(text):
    """As `dirichlet(min_size=0)` deals them; the others forget what they would forget without it."""
    rows = Request.parse(text).rows(unlabelled(0, 10, 0, 8))
    assert list(rows) == [1, 3]
    alone = Request.parse(text).rows({1: unlabelled(10)[0], 3: unlabelled(8)[0]})
    assert as_lists(rows) == as_lists(alone)
    deletion = Request.parse(text).resolve(clients_of([], [0] * 10, [], [1] * 8))
    assert (deletion.targets, list(deletion.kept)) == ([1, 3], [1, 3])


def test_draws_depend_on_what_the_modules_first_page_says():
    """`classes`: on the class and how many a client holds of it; `samples`: on how many each client holds."""
    half = Request.parse("classes-1-50").rows({0: torch.ones(8).long(), 1: torch.ones(8).long()})
    assert half[0].tolist() == half[1].tolist()
    few, more = (Request.parse("samples-4").rows(unlabelled(10, n)) for n in (10, 11))
    assert as_lists(few) != as_lists(more)


def test_what_a_client_forgets_does_not_depend_on_the_others():
    alone = Request.parse("sample-2-0.5").rows(unlabelled(30, 40, 50))
    with_others = Request.parse("sample-2-0-0.5").rows(unlabelled(30, 40, 50))
    everybody = Request.parse("sample-0.5").rows({i: y for i, y in unlabelled(30, 40, 50, 9).items() if i != 1})
    assert (list(alone), list(with_others), list(everybody)) == ([2], [0, 2], [0, 2, 3])
    assert alone[2].tolist() == with_others[2].tolist() == everybody[2].tolist()
    assert with_others[0].tolist() == everybody[0].tolist()


def test_forgotten_samples_are_uniform():
    """Each of 10 samples goes with probability 0.3: with 2,000 clients 600 times, standard deviation 20.5."""
    rows = Request.parse("sample-0.3").rows(unlabelled(*[10] * 2000))
    times = torch.cat(list(rows.values())).bincount(minlength=10)
    assert times.sum() == 2000 * 3
    assert (times - 600).abs().max() < 4 * 20.5


@quick
@given(sizes=sizes_of_clients, of=st.integers(1, 5), share=shares)
def test_requests_of_a_sequence_are_nested_and_end_at_the_share(sizes, of, share):
    forgotten = [
        Request("", "sequence", count=j, of=of, share=share).rows(unlabelled(*sizes)) for j in range(1, of + 1)
    ]
    for i, n in enumerate(sizes):
        for j, rows in enumerate(forgotten, start=1):
            count = min(max(1, round(j * share * n / of)), n - 1)
            assert rows[i].tolist() == sorted(drawn(n, count, "sequence", i))
        for before, after in pairwise(forgotten):
            assert set(before[i].tolist()) <= set(after[i].tolist())


def test_the_thirds_of_a_sequence_by_hand():
    """A fifth of 30 samples in three requests: 2, 4 and 6 samples."""
    sizes = [len(Request.parse(f"sequence-{j}-3-0.2").rows(unlabelled(30))[0]) for j in (1, 2, 3)]
    assert sizes == [2, 4, 6]


# Which samples: of all, and of classes


@quick
@given(sizes=sizes_of_clients, data=st.data())
def test_samples_of_all_are_drawn_as_if_they_lay_in_one_row(sizes, data):
    count = data.draw(st.integers(1, sum(sizes) - 1))
    rows = Request("", "samples", count=count).rows(unlabelled(*sizes))
    before = [sum(sizes[:i]) for i in range(len(sizes))]
    assert {before[i] + k for i, own in rows.items() for k in own.tolist()} == drawn(
        sum(sizes), count, "vertical request", "any"
    )
    assert all(len(own) and own.tolist() == sorted(own.tolist()) for own in rows.values())


def test_more_samples_of_all_contain_fewer():
    few, more = (set(Request.parse(f"samples-{n}").rows(unlabelled(200))[0].tolist()) for n in (10, 50))
    assert len(few) == 10
    assert few < more


def test_a_class_goes_wherever_it_is_held():
    """Class 1 is held by clients 0 and 2, class 2 by client 0 alone."""
    labels = {0: torch.tensor([0, 1, 2, 1]), 1: torch.tensor([0, 0]), 2: torch.tensor([1])}
    assert as_lists(Request.parse("class-1").rows(labels)) == {0: [1, 3], 2: [0]}
    assert as_lists(Request.parse("class-2").rows(labels)) == {0: [2]}
    with pytest.raises(InvalidRequest, match=r"'class-5' must name a class that some client holds, one of \[0, 1, 2\]"):
        Request.parse("class-5").rows(labels)


def test_which_classes_a_request_is_about():
    assert Request.parse("classes-2-50").labels(10) == (1, 2)
    assert Request.parse("classes-3-50").labels(3) == (1, 2, 0)  # class 0 comes last
    assert Request.parse("classes-2-50-from-6").labels(10) == (6, 7)
    assert Request.parse("classes-1-50-from-2").labels(2) == (0,)
    assert Request.parse("class-7").labels(10) == (7,)
    assert Request.parse("client-7").labels(10) == ()


def test_classes_that_begin_beyond_the_last_are_refused():
    """They wrapped around, and class 0 was forgotten for class 60."""
    y = torch.arange(30) % 10
    with pytest.raises(InvalidRequest, match="request must begin from class 0 to 9, got 'classes-1-100-from-60'"):
        Request.parse("classes-1-100-from-60").rows({0: y})


@quick
@given(
    labels=st.lists(st.integers(0, 3), min_size=20, max_size=200),
    count=st.integers(1, 4),
    percent=st.integers(11, 100),
)
def test_of_several_classes_a_share_of_each_goes(labels, count, percent):
    y = torch.tensor([0, 1, 2, 3] * 5 + labels)
    [gone] = Request("", "classes", count=count, percent=percent).rows({0: y}).values()
    expected = set()
    for label in [1, 2, 3, 0][:count]:
        held = [k for k, own in enumerate(y.tolist()) if own == label]
        taken = drawn(len(held), round(percent * len(held) / 100), "vertical request", label)
        expected |= {held[k] for k in taken}
    assert gone.tolist() == sorted(expected)


def test_percents_are_whole_numbers_until_the_last():
    """7 % of 150 samples are 10.5, rounded to the even 10; 0.07 * 150 is a little more and would be 11."""
    y = torch.tensor([0] * 20 + [1] * 150)
    assert len(Request.parse("classes-1-7").rows({0: y})[0]) == 10


def test_how_many_classes_there_are_can_be_said():
    """Of three classes the third is 0; where the last is not held, only somebody else knows that there are four."""
    y = torch.tensor([0, 1, 2])
    assert as_lists(Request.parse("classes-3-100").rows({0: y})) == {0: [0, 1, 2]}
    assert as_lists(Request.parse("classes-3-100").rows({0: y}, classes=4)) == {0: [1, 2]}
    deletion = Request.parse("classes-3-100").resolve({0: (y, y), 1: (y[:1], y[:1])}, classes=4)
    assert deletion.forget[1].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("client-4", [[0], [1]], "'client-4' names client 4, but clients are 0 to 1"),
        ("sample-0-4-0.5", [[0], [1]], "names client 4, but clients are 0 to 1"),
        ("client-0-1", [[0], [1]], "leaves no data at all"),
        ("client-1", [[0, 0], []], "client 1, which holds no data"),
        ("none", [[0], [1]], "names nobody"),
        ("sample-0.5", [[0, 0], [1]], "client 1 holds 1 samples, too few to forget some and retain some"),
        ("sample-1-0.5", [[0, 0], []], "client 1 holds 0 samples, too few"),
        ("sample-0.5", [[], []], "names nobody"),
        ("sequence-1-2-0.5", [[0, 0], [1]], "client 1 holds 1 samples, too few"),
        ("samples-0", [[0, 0], [1]], "must leave some of 3 samples and take one, got 'samples-0'"),
        ("samples-3", [[0, 0], [1]], "must leave some of 3 samples"),
        ("class-0", [[0, 0], [0]], "leaves no data at all"),
        ("class-2", [[0, 0], [1]], r"a class that some client holds, one of \[0, 1\]"),
        ("classes-0-50", [[0, 0], [1]], "must name 1 to 2 classes, got 'classes-0-50'"),
        ("classes-3-50", [[0, 0], [1]], "must name 1 to 2 classes"),
        ("classes-1-50", [[0, 0], [1]], r"'classes-1-50' takes no sample: there are too few of classes \(1,\)"),
        ("class-1", [[0.0, 1.0]], "asks for classes, but these labels are not one class per sample"),
        ("classes-1-50", [[[0, 1], [1, 1]]], "asks for classes"),
    ],
)
def test_what_these_clients_cannot_do_is_refused(text, labels, message):
    with pytest.raises(InvalidRequest, match=message):
        Request.parse(text).resolve(clients_of(*labels))


def test_only_requests_for_classes_look_at_the_labels():
    """Labels may be whole masks, or numbers that are not even finite."""
    masks = {0: (torch.zeros(4, 2), torch.zeros(4, 3, 3)), 1: (torch.ones(2, 2), torch.full((2, 3, 3), torch.nan))}
    for text, m in [("client-1", 2), ("sample-0.5", 3), ("samples-5", 5), ("sequence-1-1-0.5", 3)]:
        assert Request.parse(text).resolve(masks).m == m


def test_a_request_touches_no_global_random_state():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for text in ("sample-0.5", "samples-7", "classes-2-50", "sequence-1-2-0.5"):
        Request.parse(text).resolve(clients_of([0, 1, 1, 2] * 5, [1, 2, 2, 1]))
    assert torch.equal(torch.get_rng_state(), before)


def test_clients_may_be_a_list():
    clients = clients_of([0, 1], [1, 1], [2])
    listed, mapped = (Request.parse("client-1").resolve(c) for c in (list(clients.values()), clients))
    assert listed.targets == mapped.targets == [1]
    assert list(listed.clients) == list(mapped.clients) == [0, 1, 2]


def test_requests_can_follow_each_other():
    """The second starts from what the first left: 100 -> 90 -> 81, and nothing is forgotten twice."""
    first = Request.parse("sample-0.1").resolve(clients_of([0] * 100))
    second = Request.parse("sequence-1-1-0.1").resolve(first.kept)
    assert (first.retain[1].numel(), second.retain[1].numel()) == (90, 81)
    whole = torch.cat([first.forget[0], second.forget[0], second.retain[0]]).flatten()
    assert sorted(whole.tolist()) == list(range(100))


@pytest.mark.parametrize("text", [None, 3, b"client-3", ["client-3"], Request("client-3", "client", (3,))])
def test_a_request_is_a_text(text):
    with pytest.raises(InvalidRequest, match="request must be a text such as 'client-3', got "):
        Request.parse(text)


def test_numbers_longer_than_python_reads_are_refused_and_many_clients_are_not():
    for text in ("client-" + "1" * 5000, "samples-" + "9" * 5000):
        with pytest.raises(InvalidRequest, match="request must look like"):
            Request.parse(text)
    assert len(Request.parse("-".join(["client", *map(str, range(2000))])).clients) == 2000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Request("", "sample", share=5.0), "a share between 0 and 1"),  # was all but one sample
        (lambda: Request("", "foo"), "kind must be one of none, client, .* got 'foo'"),
        (lambda: Request("", "client", (1, 1)), "names a client twice"),
    ],
)
def test_a_request_that_is_made_is_checked_like_one_that_is_read(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


@pytest.mark.parametrize("classes", [0, -1, 2.0, "3", True])
def test_a_number_of_classes_that_is_none_is_named(classes):
    for text in ("classes-1-100", "class-1"):
        with pytest.raises(InvalidRequest, match=f"classes must be a whole number >= 1, got {classes!r}"):
            Request.parse(text).resolve(clients_of([0, 1, 1], [1]), classes)


def test_fewer_classes_than_there_are_would_be_other_classes():
    """Of 2 classes the first is 1 and the second 0, so nobody of class 2 would ever be asked."""
    with pytest.raises(InvalidRequest, match="classes must be a whole number >= 3, got 2"):
        Request.parse("classes-2-100").resolve(clients_of([0, 1, 2], [1]), classes=2)


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("client-1", [torch.zeros(2), torch.zeros(2)], r"labels must be \(n_i, ...\) by client, got list"),
        ("class-0", None, "labels must be .* got NoneType"),
        ("class-0", {}, r"a class that some client holds, one of \[\]"),
        ("class-0", {0: [0, 1]}, "these labels are not one class per sample"),
        ("class-0", {0: torch.tensor([1 + 0j])}, "these labels are not one class per sample"),
    ],
)
def test_labels_that_are_none_are_named(text, labels, message):
    with pytest.raises(InvalidRequest, match=message):
        Request.parse(text).rows(labels)


# What a deletion is made of


def test_a_deletion_by_hand():
    """Client 3 leaves, client 1 forgets its last and first of three, client 2 never held anything, 0 is not asked."""
    clients = clients_of([5, 6], [1, 2, 3], torch.zeros(0, dtype=torch.int64), [7])
    deletion = Deletion.of(clients, {3: torch.tensor([0]), 1: torch.tensor([2, 0])})
    assert {i: y.tolist() for i, (_, y) in deletion.forgotten.items()} == {1: [1, 3], 3: [7]}
    assert {i: y.tolist() for i, (_, y) in deletion.kept.items()} == {0: [5, 6], 1: [2]}
    assert {i: x.tolist() for i, (x, _) in deletion.forgotten.items()} == {1: [[100], [102]], 3: [[300]]}
    assert list(deletion.clients) == [0, 1, 2, 3]
    assert list(deletion.holders) == [0, 1, 3]
    assert (deletion.targets, deletion.leaving, deletion.of_clients) == ([1, 3], [3], False)
    assert (deletion.n, deletion.m) == (6, 3)
    assert [part.flatten().tolist() for part in deletion.forget] == [[100, 102, 300], [1, 3, 7]]
    assert [part.flatten().tolist() for part in deletion.retain] == [[0, 1, 101], [5, 6, 2]]


@pytest.mark.parametrize(
    "forget", [[2, 0], (0, 2), torch.tensor([2, 0]), np.array([0, 2]), range(0, 3, 2), {0: torch.arange(2), 2: None}]
)
def test_clients_that_leave_are_named_in_many_ways(forget):
    deletion = Deletion.of(clients_of([0, 1], [0, 1], [1]), forget)
    assert (deletion.targets, deletion.leaving, deletion.of_clients) == ([0, 2], [0, 2], True)
    assert list(deletion.kept) == [1]


@pytest.mark.parametrize("one", [1, np.int64(1), torch.tensor(1), [1], np.array([1])])
def test_one_client_may_be_named_without_a_list(one):
    assert Deletion.of(clients_of([0], [1]), one).targets == [1]


def test_ids_need_not_be_consecutive():
    clients = {7: clients_of([0, 1])[0], 3: clients_of([1])[0]}
    deletion = Request.parse("client-7").resolve(clients)
    assert (deletion.targets, list(deletion.kept)) == ([7], [3])
    with pytest.raises(InvalidRequest, match="forget names client 0, but clients are 3, 7"):
        Deletion.of(clients, 0)


def test_a_deletion_shares_no_memory_with_whom_it_takes_from():
    clients = clients_of([0, 1], [1, 1])
    deletion = Deletion.of(clients, {0: torch.tensor([0])})
    for x, y in (deletion.forgotten[0], deletion.kept[0]):
        x.zero_(), y.zero_()
    assert [part.flatten().tolist() for part in clients[0]] == [[0, 1], [0, 1]]


@quick
@given(sizes=sizes_of_clients, data=st.data())
def test_forgotten_and_kept_are_all_and_nothing_twice(sizes, data):
    clients = clients_of(*[[0] * n for n in sizes])
    chosen = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    forget = {i: torch.tensor(sorted(data.draw(st.sets(st.integers(0, sizes[i] - 1), min_size=1)))) for i in chosen}
    if sum(map(len, forget.values())) == sum(sizes):
        with pytest.raises(InvalidRequest, match="leaves no data at all"):
            Deletion.of(clients, forget)
        return
    deletion = Deletion.of(clients, forget)
    whole = torch.cat([deletion.forget[0], deletion.retain[0]]).flatten().tolist()
    assert sorted(whole) == sorted(torch.cat([x for x, _ in clients.values()]).flatten().tolist())
    assert deletion.n == sum(sizes)
    assert deletion.m == sum(map(len, forget.values())) == len(deletion.forget[1])
    assert deletion.targets == sorted(chosen)
    assert deletion.leaving == [i for i in sorted(chosen) if len(forget[i]) == sizes[i]]


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        ([], "names nobody"),
        ({}, "names nobody"),
        (3, "forget names client 3, but clients are 0 to 2"),
        (-1, "forget names client -1, but clients are 0 to 2"),
        ({9: torch.tensor([0])}, "forget names client 9"),
        ([0, 0], r"names a client twice: \[0, 0\]"),
        ([0, 1], "leaves no data at all: somebody must stay"),  # client 2 holds none
        (2, "client 2, which holds no data"),
        ("client-1", "must name clients by their numbers, got 'client-1'"),
        (["a"], "must name clients by their numbers"),
        ([0.0], "must name clients by their numbers"),
        (0.5, "must name clients by their numbers"),
        ({0, 1}, "must name clients by their numbers"),
        (True, "must name clients by their numbers"),
        ([True, False, True], "must name clients by their numbers"),
        (torch.tensor([True, False, True]), "must name clients by their numbers"),
        (np.array([True, False, True]), "must name clients by their numbers"),
        ({0: torch.tensor([], dtype=torch.int64)}, "names client 0 but none of its samples"),
        ({0: []}, "names client 0 but none of its samples"),
        ({0: torch.tensor([3])}, r"indices 0..2 of client 0 \(int64\), got \[3\]"),
        ({0: torch.tensor([-1])}, r"indices 0..2 of client 0 \(int64\), got \[-1\]"),
        ({0: torch.tensor([0.0])}, r"indices 0..2 of client 0 \(int64\), got \[0.0\]"),
        ({0: torch.tensor([True, False, True])}, r"\(int64\), got \[True, False, True\]"),
        ({0: torch.tensor([[0, 1]])}, r"\(int64\), got \[0, 1\]"),
        ({0: torch.tensor([1, 1])}, "names a sample of client 0 twice"),
    ],
)
def test_a_deletion_that_makes_no_sense_is_refused(forget, message):
    with pytest.raises(InvalidRequest, match=message):
        Deletion.of(clients_of([0, 1, 2], [1], torch.zeros(0, dtype=torch.int64)), forget)


def test_nobody_can_be_asked_where_there_is_nobody():
    with pytest.raises(InvalidRequest, match="forget names client 0, but clients are none"):
        Deletion.of([], 0)
