"""Every paper's profiles, and the parameters that its notebook begins with."""

import ast

import nbformat
import pytest

from fu_papers.lab.notebooks import OTHERS, declared, notebooks, schema_of
from fu_papers.parameters import profiles
from tests.notebook_lab import code

PAPERS = ("puf", "hf_kcu", "fedora", "certified_dfl", "arena")


@pytest.mark.parametrize("paper", PAPERS)
def test_the_profiles_go_from_a_demonstration_to_the_papers_size(paper):
    assert set(profiles(paper)) - {"workstation"} == {"laptop", "paper", "quick"}


@pytest.mark.parametrize("paper", PAPERS)
def test_opening_the_notebook_is_making_the_quick_profile(paper):
    """Its cell of parameters changes nothing; only the sliders and `others` are no parameters of the schema."""
    (cell,) = code(nbformat.read(notebooks()[paper], as_version=4), "parameters")
    defaults = {line.target.id: ast.literal_eval(line.value) for line in ast.parse(cell.source).body}
    assert set(defaults) == set(declared(notebooks()[paper]))
    assert set(defaults) - set(schema_of(paper).model_fields) == {"interactive", OTHERS}
    assert (defaults.pop("profile"), defaults.pop(OTHERS)) == ("quick", {})
    assert set(defaults.values()) == {None}
