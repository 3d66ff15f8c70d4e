"""What measuring takes, and that it sees what it measures."""

import time

import numpy as np
import pytest

from fu_papers.lab import provenance
from fu_papers.lab.provenance import MIB, PeakMemory


@pytest.mark.parametrize("children", [False, True])
def test_samples_that_are_slow_are_rare(children, monkeypatch):
    """Looking at a process tree of gigabytes every half second took a seventh of a core from the runs."""
    looked = []

    def slow(children):
        looked.append(children)
        time.sleep(0.04)
        return 7 * MIB

    monkeypatch.setattr(provenance, "_resident", slow)
    with PeakMemory(children):
        time.sleep(1.6)  # a second sample is due after 40 ms / SAMPLING_SHARE = 2 s
    assert looked == [children] * 3  # as it opens, once inside, as it closes


@pytest.mark.parametrize("children", [False, True])
def test_memory_that_is_given_back_inside_the_block_is_seen(children, monkeypatch):
    monkeypatch.setattr(provenance, "_high_water", lambda: 0)  # samples alone, and many
    monkeypatch.setattr(provenance, "SAMPLING_SHARE", 1.0)
    with PeakMemory(children) as before:
        pass
    with PeakMemory(children) as peak:
        held = np.ones(200 * MIB // 8)
        time.sleep(1.0)
        del held
    assert 190 < peak.mib - before.mib < 400
