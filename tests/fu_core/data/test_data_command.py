"""`python -m fu_core.data`, the command behind `make data`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from fu_core.data.__main__ import main
from fu_core.data.cache import pack, write_cache


def test_without_names_it_lists_every_set_and_its_state(tmp_path, capsys):
    (tmp_path / "mnist.npz").write_bytes(b"")
    assert main(["--data-dir", str(tmp_path)]) == 0
    state = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert state["digits"] == state["phantom"] == "bundled"
    assert state["mnist"] == "cached"
    assert state["cifar10"] == "needs download"
    assert state["prostate_mri"] == "needs files you must request from their authors"


def test_a_failing_set_does_not_stop_the_others(no_network, tmp_path, capsys):
    images = np.zeros((3, 4, 4), np.uint8)
    write_cache(tmp_path / "mnist.npz", pack((images, [0, 1, 2]), (images, [0, 1, 2]), "made by a test"))
    assert main(["cifar10", "cifr100", "mnist", "--data-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "mnist: 3 training, 3 test; made by a test\n"
    assert "cifar10: cannot download" in printed.err
    assert "did you mean 'cifar100'" in printed.err


def test_it_runs_as_a_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fu_core.data", "breast_cancer"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("breast_cancer: 455 training, 114 test; Breast Cancer Wisconsin")
