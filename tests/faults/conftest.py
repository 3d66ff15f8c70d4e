"""One undisturbed reproduction, with which all disturbed ones are compared."""

from types import SimpleNamespace

import pytest

from tests.faults.harness import new_lab, perform


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """The `lab` of a reproduction that nothing happened to, and the `events` of its process."""
    lab = new_lab(tmp_path_factory.mktemp("faults") / "clean")
    ending = perform(lab)
    assert (ending.exitcode, ending.error) == (0, "")
    return SimpleNamespace(lab=lab, events=ending.events)
