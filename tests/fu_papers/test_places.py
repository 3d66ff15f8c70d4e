"""Every number of a paper that is listed leads to code and files that exist, and texts lead to what is listed."""

import ast

import nbformat
import pytest

from fu_papers.lab.notebooks import notebooks
from fu_papers.lab.paths import ROOT
from fu_papers.places import KINDS, anchor, linked, linked_html, marks, places

PAPERS = ("puf", "hf_kcu", "fedora", "certified_dfl")
PAGE = "../fu_papers/places.md#place-"


def defined(file):
    """All classes and functions of a file that are not within others."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def test_every_place_is_listed_once_under_a_name_that_texts_use():
    found = list(places().values())
    lines = (ROOT / "fu_papers" / "places.csv").read_text(encoding="utf-8").splitlines()
    assert len(found) == len(lines) - 1  # no anchor twice
    assert {place.paper for place in found} == set(PAPERS)
    for place in found:
        kind = place.name.split(" ")[0].strip(".")
        assert kind in KINDS, place
        assert place.says, place


@pytest.mark.parametrize("place", places().values(), ids=places())
def test_its_code_is_there(place):
    assert place.code or "nothing of ours" in place.says
    for reference in filter(None, place.code.split("; ")):
        file, _, name = reference.partition(": ")
        assert name in defined(file), reference


def test_figures_and_tables_name_files_that_every_profile_has():
    profiles = {path.parent for path in (ROOT / "figures").glob("*/*/*.png")}
    growing = ROOT / "figures" / "workstation" / "puf"  # by a setting at a time: its sweeps are to come
    assert profiles
    for place in places().values():
        for folder in (folder for folder in profiles if folder.name == place.paper):
            to_come = folder == growing and "_sweep" in place.files
            assert not place.files or to_come or list(folder.glob(place.files)), (folder, place)
        drawn = place.name.startswith(("Fig", "Table"))
        assert bool(place.files) == drawn or place.name in ("Table VII",), place  # PUF's list of letters


def test_the_marks_in_a_notebook_are_listed_or_files_of_ours_and_set_once():
    for paper, path in notebooks().items():
        cells = nbformat.read(path, as_version=4).cells
        found = [mark for cell in cells if cell.cell_type == "markdown" for mark in marks(cell.source)]
        assert len(set(found)) == len(found)
        ours = {f"{anchor(paper, 'ours')}-{file.stem}" for file in (ROOT / "figures").glob(f"*/{paper}/*.*")}
        listed = ours | {place.anchor for place in places().values() if place.paper == paper}
        assert set(found) <= listed
        assert (len(found) > 10) == (paper in PAPERS)


def test_one_number_is_linked_with_its_word_and_several_each_by_itself():
    assert anchor("hf_kcu", "Algorithm 1, line 17") == "hf-kcu-algorithm-1-line-17"
    assert linked("By Eq. (5),", "puf") == f"By [Eq. (5)]({PAGE}puf-eq-5),"
    assert linked("Lemma 3's", "certified_dfl") == f"[Lemma 3]({PAGE}certified-dfl-lemma-3)'s"
    assert linked("Fig. 8a", "fedora") == f"[Fig. 8a]({PAGE}fedora-fig-8)"
    two = f"Eqs. [(5)]({PAGE}puf-eq-5) and [(6)]({PAGE}puf-eq-6)"
    assert linked("Eqs. (5) and (6)", "puf") == two
    assert linked("line 15", "puf") == f"[line 15]({PAGE}puf-algorithm-1-line-15)"
    assert linked("Figures 4 to 8", "fedora") == f"Figures [4]({PAGE}fedora-fig-4) to [8]({PAGE}fedora-fig-8)"


def test_bare_numbers_are_equations_in_fedora_only():
    both = f"[(18)]({PAGE}fedora-eq-18)–[(21)]({PAGE}fedora-eq-21)"
    assert linked("(18)–(21)", "fedora") == both
    assert linked("(18)–(21)", "hf_kcu") == "(18)–(21)"
    assert linked("phi(2) and Gu et al. (2024)", "fedora") == "phi(2) and Gu et al. (2024)"


def test_html_is_escaped_and_linked_once_and_bare_numbers_stay():
    said = linked_html("Lemma 3 < claim D9 (2), Table 77", "certified_dfl")
    lemma = f'<a href="{PAGE}certified-dfl-lemma-3">Lemma 3</a>'
    assert said == f'{lemma} &lt; <a href="../fu_papers/claims.md#claim-d9">claim D9</a> (2), Table 77'
    assert linked_html("Eq. (18): (18)", "fedora") == f'<a href="{PAGE}fedora-eq-18">Eq. (18)</a>: (18)'
    assert linked(said, "certified_dfl") == said
    assert linked_html("Lemma 3", "") == "Lemma 3"


def test_the_same_notebook_is_preferred_to_the_page_and_the_page_found_from_other_folders():
    assert linked("Table III", "puf", here=["puf-table-iii"]) == "[Table III](#puf-table-iii)"
    assert linked("Table III", "puf", up="") == "[Table III](fu_papers/places.md#place-puf-table-iii)"


@pytest.mark.parametrize(
    "text",
    [
        "## 6. Recovery (Fig. 4)",
        "`Eq. (5)` and $Eq. (5)$",
        "```python\n# Eq. (5)\n```",
        "$$x \\quad\\text{Eq. (5)}$$",
        f"[Eq. (5)]({PAGE}puf-eq-5)",
        "Eq. (77), Table 3.5, the Table, Figure it out",
    ],
)
def test_headings_code_formulas_links_and_what_is_not_listed_stay(text):
    assert linked(text, "puf") == text
