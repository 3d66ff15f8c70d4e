"""What takes long to import waits until somebody needs it: every process of a reproduction begins with imports."""

import subprocess
import sys

import pytest

import fu_core
from fu_core import federation

PAPERS = ("certified_dfl", "fedora", "hf_kcu", "puf")
EXPERIMENTS = f"import sys, {', '.join(f'fu_papers.{paper}.runs' for paper in PAPERS)}"
LATER = ("torchvision", "sklearn", "matplotlib", "seaborn")


def test_workers_do_not_import_what_only_some_runs_or_figures_need():
    script = f"{EXPERIMENTS}; print(*(name for name in {LATER} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_parts_are_found_when_they_are_first_used():
    assert fu_core.unlearning.baselines.retrain.__name__ == "fu_core.unlearning.baselines.retrain"
    assert fu_core.evaluation.membership.__name__ == "fu_core.evaluation.membership"
    assert fu_core.FlatModel.__module__ == "fu_core.models.flat"
    assert [name for name in fu_core.__all__ if not hasattr(fu_core, name)] == []
    assert {"Peers", "dpsgd"} <= set(fu_core.__all__)  # whoever learns without a server needs both


def test_what_is_not_there_is_an_attribute_error_with_its_name():
    with pytest.raises(AttributeError, match=r"module 'fu_core\.federation' has no attribute 'diagonal'"):
        _ = federation.diagonal
    assert not hasattr(fu_core, "horizontal")
