"""Streams are named by whole numbers, whoever's they are, and by nothing that only looks like one."""

import hashlib

import numpy as np
import pytest
import torch

from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.partition import iid, partition_hash
from fu_core.streams import numpy_stream, stream, stream_seed

SEVENS = [7, np.int64(7), np.uint8(7), np.array(7), torch.tensor(7), torch.tensor(7, dtype=torch.int32)]
NOT_KEYS = [7.0, np.float64(7), True, None, b"7", (7,), torch.tensor(7.0)]
NOT_WHOLE = [7.0, np.float64(7), True, None, "7", [7], torch.tensor(7.0), torch.tensor([7, 7])]


@pytest.mark.parametrize("seed", SEVENS, ids=repr)
def test_a_seed_of_every_integer_type_names_the_same_stream(seed):
    model = FlatModel(mlp(4, 3))
    digest = hashlib.sha256(b"7/batch/1").digest()  # which records of every figure depend on
    assert stream_seed(seed, "batch", 1) == int.from_bytes(digest[:8], "big") >> 1
    assert partition_hash(iid(20, 3, seed=seed)) == partition_hash(iid(20, 3, seed=7))
    assert torch.equal(model.init(seed), model.init(7))


@pytest.mark.parametrize("seed", NOT_WHOLE, ids=repr)
def test_what_is_no_whole_number_is_no_seed(seed):
    """Each of them named a stream of its own, and a model's parameters were drawn from its whole part."""
    for call in (lambda: stream_seed(seed, "batch"), lambda: FlatModel(mlp(4, 3)).init(seed)):
        with pytest.raises(ValueError, match="seed must be a whole number, got"):
            call()


@pytest.mark.parametrize("key", SEVENS, ids=repr)
def test_a_key_of_every_integer_type_names_the_same_stream(key):
    assert stream_seed(0, "batch", "a", key) == stream_seed(0, "batch", "a", 7) == stream_seed(0, "batch", "a", "7")


@pytest.mark.parametrize("key", NOT_KEYS, ids=repr)
def test_what_is_neither_text_nor_a_whole_number_is_no_key(key):
    """Each named a stream of its own, tensor(7) another one than 7."""
    for draws in (stream_seed, stream, numpy_stream):
        with pytest.raises(ValueError, match="purpose and keys must be texts or whole numbers, got"):
            draws(0, "batch", 1, key)
        with pytest.raises(ValueError, match="purpose and keys must be texts or whole numbers, got"):
            draws(0, key)


def test_torch_keeps_the_lowest_32_bits_of_a_name():
    """Rounds and clients whose names differ above them only, found by trying 98,158."""
    one, other = (0, "batch", 311, 11, 0), (0, "batch", 982, 58, 0)
    assert stream_seed(*one) != stream_seed(*other)
    assert torch.equal(*(torch.randperm(500, generator=stream(*name)) for name in (one, other)))
    assert not np.array_equal(*(numpy_stream(*name).permutation(500) for name in (one, other)))
