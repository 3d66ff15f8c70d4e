"""What measuring takes, and that it sees what it measures."""

import threading
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
        time.sleep(0.2)
        return 7 * MIB

    monkeypatch.setattr(provenance, "_resident", slow)
    with PeakMemory(children):
        time.sleep(1.6)  # a second sample is due after 0.2 s / SAMPLING_SHARE = 10 s
    assert looked == [children] * 3  # as it opens, once inside, as it closes


@pytest.mark.parametrize("children", [False, True])
def test_a_peak_that_only_a_sample_inside_the_block_sees_is_kept(children, monkeypatch):
    held, seen = [100 * MIB], threading.Event()

    def resident(children):
        if held[-1] == 300 * MIB:
            seen.set()
        return held[-1]

    monkeypatch.setattr(provenance, "_resident", resident)
    monkeypatch.setattr(provenance, "_high_water", lambda: 0)  # samples alone
    with PeakMemory(children) as peak:
        held.append(300 * MIB)
        assert seen.wait(timeout=60)
        held.append(100 * MIB)
    assert peak.mib == 300


def test_memory_that_is_given_back_inside_the_block_is_seen(monkeypatch):
    monkeypatch.setattr(provenance, "_high_water", lambda: 0)  # samples alone, and many
    monkeypatch.setattr(provenance, "SAMPLING_SHARE", 1.0)
    with PeakMemory() as before:
        pass
    with PeakMemory() as peak:
        held = np.ones(200 * MIB // 8)
        time.sleep(1.0)
        del held
    assert 190 < peak.mib - before.mib < 400
