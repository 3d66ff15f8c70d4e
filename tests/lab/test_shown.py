"""Which run of a notebook the book shows: an executed copy only while it is what the notebook and the figures say."""

import base64

import nbformat
import pytest

from fu_papers.lab.notebooks import guides, notebooks, plan
from fu_papers.lab.shown import INJECTED, pictures_in, shown

PAPER, DRAWN = "hf_kcu", b"a picture"
PATH = notebooks()[PAPER]


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    """Working state and figures of its own, with one figure of PAPER."""
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    folder = tmp_path / "figures" / "quick" / PAPER
    folder.mkdir(parents=True)
    (folder / "drawn.png").write_bytes(DRAWN)
    return tmp_path


def copy(paper=PAPER, path=PATH, exception=None, **parameters):
    """What the runner leaves: papermill's remarks and cell, bars of progress, and the figure among the outputs."""
    notebook = nbformat.read(path, as_version=4)
    chosen = plan(paper, "quick", {})
    notebook.metadata["papermill"] = {"exception": exception, "parameters": chosen.parameters | parameters}
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    picture = base64.b64encode(DRAWN).decode()
    first.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="100%"),
        nbformat.v4.new_output("display_data", data={"image/png": picture}),
    ]
    first.metadata = {"papermill": {"duration": 1.0}, "tags": ["of before"]}
    injected = nbformat.v4.new_code_cell("profile = 'quick'", metadata={"tags": [INJECTED]})
    notebook.cells.insert(notebook.cells.index(first) + 1, injected)
    chosen.executed.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, chosen.executed)
    return notebook, chosen.executed


def test_without_a_copy_it_is_the_committed_notebook():
    notebook, said = shown(PAPER, PATH, "quick")
    assert notebook == nbformat.read(PATH, as_version=4)
    assert said == "What you see is the committed run at the size `quick`."


def test_a_copy_is_shown_as_the_notebook_it_is_of_without_what_running_left_in_it():
    copy()
    notebook, said = shown(PAPER, PATH, "quick")
    committed = nbformat.read(PATH, as_version=4)
    assert (
        said
        == "What you see is a run by `make reproduce` at the size `quick`, with the figures of `figures/quick/hf_kcu`."
    )
    assert [(cell.id, cell.source) for cell in notebook.cells] == [(cell.id, cell.source) for cell in committed.cells]
    assert DRAWN in pictures_in(notebook)
    assert notebook.metadata == committed.metadata
    assert [cell.metadata for cell in notebook.cells] == [cell.metadata for cell in committed.cells]
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))
    assert not [output for cell in codes for output in cell.outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("spoiled", ["the notebook", "the figures", "no figures", "the run", "the parameters"])
def test_a_copy_of_something_else_is_not_shown(spoiled, lab):
    drawn = lab / "figures" / "quick" / PAPER / "drawn.png"
    parameters = {"iters": 5} if spoiled == "the parameters" else {}
    notebook, path = copy(exception=True if spoiled == "the run" else None, **parameters)
    if spoiled == "the notebook":
        notebook.cells[0].source += " And more."
        nbformat.write(notebook, path)
    if spoiled == "the figures":
        drawn.write_bytes(b"another")
    if spoiled == "no figures":
        drawn.unlink()
    shown_instead, said = shown(PAPER, PATH, "quick")
    assert shown_instead == nbformat.read(PATH, as_version=4)
    assert "committed run" in said


def test_other_profiles_have_copies_of_their_own():
    copy()
    assert shown(PAPER, PATH, "laptop")[1] == "What you see is the committed run at the size `quick`."
    assert "make reproduce" in shown(PAPER, PATH, "quick")[1]


def test_of_a_guide_the_committed_run_is_shown():
    """A copy of it says nothing about itself: its figures are nowhere else."""
    path = guides()["start_here"]
    copy("start_here", path)
    assert shown("start_here", path, "quick")[1] == "What you see is the committed run."
