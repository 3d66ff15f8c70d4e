"""Alignment: the same samples in the same order for everybody, whatever order they were held in."""

from dataclasses import replace

import pytest
import torch

from fu_core.errors import InvalidRequest
from fu_core.federation.alignment import align
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import Parties, train
from tests.verticals import federated, same, tables

N = 24


def test_shuffled_parties_train_the_same_bits_once_aligned():
    """Everybody holds the 24 samples in an order of their own, and some that others lack."""
    parties, trained = tables(), []
    for shuffle in (1, 2):
        g = torch.Generator().manual_seed(shuffle)
        ids, held = [], []
        for k, column in enumerate([*(party.x for party in parties.passive), parties.active.y]):
            strangers = column[torch.randint(0, N, (k + shuffle,), generator=g)]
            order = torch.randperm(N + len(strangers), generator=g)
            names = [f"sample {i}" for i in range(N)] + [f"party {k}'s {i}" for i in range(len(strangers))]
            ids.append([names[i] for i in order.tolist()])
            held.append(torch.cat([column, strangers])[order])
        *x, y = (column[rows] for column, rows in zip(held, align(ids), strict=True))
        assert len(y) == N
        passive = tuple(replace(party, x=x_k) for party, x_k in zip(parties.passive, x, strict=True))
        aligned = Parties(passive, replace(parties.active, y=y))
        f = federated(aligned, local=ClientOpt(lr=0.05, momentum=0.9, batch_size=7))
        trained.append(train(f, torch.arange(N), f.optimisers(), 2))
    assert same(*trained)


def test_aligned_rows_name_the_same_samples_in_the_same_order():
    ids = [[5, 3, "a", 8, (1, 2)], ["a", (1, 2), 7, 5], [(1, 2), 5, 3, 9, "a", 6]]
    rows = align(ids)
    named = [[own[i] for i in own_rows.tolist()] for own, own_rows in zip(ids, rows, strict=True)]
    assert named[0] == named[1] == named[2]
    assert set(named[0]) == {5, "a", (1, 2)}
    assert all(own_rows.dtype == torch.int64 for own_rows in rows)


def test_the_common_order_depends_on_salt_and_ids_alone():
    ids = list(range(40))
    backwards = ids[::-1]
    order, reverse = align([ids, backwards])
    assert (39 - reverse).tolist() == order.tolist() == align([ids])[0].tolist()
    salted = align([ids], salt="pepper")[0]
    assert sorted(salted.tolist()) == sorted(order.tolist()) == ids
    assert salted.tolist() != order.tolist() != ids


def test_alignment_refuses_what_it_cannot_align():
    with pytest.raises(InvalidRequest, match="ids of party 1 must name each sample once, got 2 twice"):
        align([["a", "b"], ["b", "a", "b", "a"]])
    with pytest.raises(InvalidRequest, match=r"nothing in common: 3 parties of \[2, 1, 1\] samples"):
        align([["a", "b"], ["a"], ["b"]])
    with pytest.raises(InvalidRequest, match="party 1 lacks 2 of the 3 samples that were said to be common"):
        align([["a", "b", "c"], ["a", "d"]], intersect=lambda digests: digests[0])


def test_a_protocol_of_ones_own_sees_digests_and_decides():
    seen = []

    def protocol(digests):
        seen.extend(digests)
        return set(sorted(digests[0] & digests[1])[:1])

    first, second = align([["a", "b"], ["b", "a"]], intersect=protocol)
    assert len(first) == len(second) == 1
    assert ["a", "b"][int(first)] == ["b", "a"][int(second)]
    assert all(isinstance(digest, bytes) and len(digest) == 32 for digests in seen for digest in digests)
