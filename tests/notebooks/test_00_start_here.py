"""The first notebook: no paper's, complete as committed, and run headless in a minute of computing."""

import ast
import os
import re
import resource
import subprocess
import sys
import time

import nbformat
import pytest
import torch

from fu_papers import start_here
from fu_papers.exercises.__main__ import TAG as EXERCISE
from fu_papers.lab import paths
from fu_papers.lab.notebooks import guides, notebooks
from tests.notebook_lab import ABSOLUTE_PATH, closing_cell, code, outputs

SECONDS = 60  # of computing, in the kernel
LINKED = ("start_here", "puf", "hf_kcu", "fedora", "certified_dfl")
ANSWERS = 0.5  # seconds until the picture has followed the slider


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(guides()["start_here"], as_version=4)


# --- as committed ---


def test_it_is_the_only_guide_and_no_paper():
    assert list(guides()) == ["start_here"]
    assert "start_here" not in notebooks()


def test_it_is_valid_tidy_and_run_from_top_to_bottom(notebook):
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert not [o for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"]
    assert max(sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in code(notebook)) <= 26
    before = [a.cell_type for a, b in zip(notebook.cells, notebook.cells[1:], strict=False) if b.cell_type == "code"]
    assert before.count("markdown") >= 0.8 * len(before)
    texts = [cell.source for cell in notebook.cells] + [output.get("text", "") for output in outputs(notebook)]
    texts += [str(text) for o in outputs(notebook) for kind, text in o.get("data", {}).items() if kind != "image/png"]
    assert [text for text in texts if ABSOLUTE_PATH.search(text)] == []


def test_every_figure_says_below_what_it_counts_and_why_it_has_no_band(notebook):
    alts = {o.metadata["image/png"]["alt"] for o in outputs(notebook) if "image/png" in o.get("data", {})}
    assert len(alts) == 6
    sliders = {alt for alt in alts if "Data: " not in alt}
    assert len(sliders) == 2
    for alt in alts - sliders:
        assert re.search(r"n = 1 (model|seed).*, so no band", alt), alt
    below = start_here.AttackersView().drawn.figure.get_supxlabel()
    assert below == "100 members, 360 unseen; n = 1 model each, so no band"


def test_its_sections_are_numbered_and_its_checks_come_before_its_exercises(notebook):
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^## (\d+)\. (.+)$", prose, flags=re.MULTILINE)
    assert [int(number) for number, _ in headings] == list(range(1, len(headings) + 1))
    assert [title for _, title in headings][-3:] == ["Closing checks", "Exercises", "Where things are"]
    (closing,) = code(notebook, "nbval-check-output")
    assert closing is [cell for cell in code(notebook) if EXERCISE not in cell.metadata.get("tags", [])][-1]


def test_it_takes_thirty_minutes_to_read(notebook):
    """Words of prose at 150 a minute, and a minute for each picture and exercise; code at twenty lines a minute."""
    prose = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    lines = sum(len(cell.source.splitlines()) for cell in code(notebook))
    pictures = sum("image/png" in output.get("data", {}) for output in outputs(notebook))
    assert pictures >= 4
    assert 20 <= prose / 150 + lines / 20 + pictures <= 40


@pytest.mark.parametrize("name", ["start_here", *notebooks()])
def test_every_link_leads_somewhere(name):
    """Relative links only, to files of the repository and anchors in them, or to a mark of the notebook itself."""
    path = (guides() | notebooks())[name]
    prose = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    links = [link for text in prose for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert links or name not in LINKED
    for link in links:
        file, _, anchor = link.partition("#")
        target = path.parent / file
        assert target.exists(), link
        text = target.read_text(encoding="utf-8") if file else "\n".join(prose)
        assert not anchor or f'<a id="{anchor}"></a>' in text, link


# --- headless ---


@pytest.fixture(scope="module")
def headless(tmp_path_factory):
    """The folder of a run, and the seconds that it computed."""
    folder = tmp_path_factory.mktemp("guide")
    settings = {"FU_RUNS": str(folder / "runs"), "FU_FIGURES": str(folder / "figures"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "fu_papers", "--paper", "start_here"],
        env={name: value for name, value in os.environ.items() if not name.startswith("FU_")} | settings,
        cwd=paths.ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return folder, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_it_runs_headless_and_all_by_hand_is_what_the_package_does(headless):
    """And what it closes with is what was committed: it has no records, so `make test` does not draw it once more."""
    folder, _ = headless
    shown = closing_cell(folder / "runs" / "executed" / "quick" / "00_start_here.ipynb")
    assert shown == closing_cell(guides()["start_here"])
    closing = ast.literal_eval(shown)
    assert len(closing["by hand, and the same as the package"]) == 11
    assert all(value for value in closing.values())


def test_it_leaves_no_figures_and_computes_for_less_than_a_minute(headless):
    folder, seconds = headless
    assert not (folder / "figures").exists()
    assert seconds < SECONDS


# --- what an attacker sees ---


@pytest.fixture(scope="module")
def view():
    return start_here.AttackersView(
        {
            "remembers": (torch.full((50,), 0.01), torch.cat([torch.full((30,), 0.01), torch.full((20,), 8.0)])),
            "does not": (torch.linspace(0.1, 5, 50), torch.linspace(0.1, 5, 50)),
        }
    )


def test_members_are_left_of_the_threshold(view):
    assert view.caught("remembers", 1.0) == (100.0, 60.0)
    assert view.caught("remembers", 0.001) == (0.0, 0.0)
    assert len(set(view.caught("does not", 2.0))) == 1


def test_every_sample_is_in_the_histogram(view):
    """Also those beyond its ends."""
    far = start_here.AttackersView({"far": (torch.tensor([1e-9, 1e6]), torch.tensor([1.0]))})
    assert [share.sum() for share in far.shares["far"]] == pytest.approx([100, 100])


def test_the_picture_follows_the_slider_within_half_a_second(view):
    """Processor time, since others may have the processor: the least of three."""
    pictures, seconds = [], []
    for threshold in (0.1, 1.0, 3.0):
        began = time.process_time()
        pictures.append(view.show(model="does not", threshold=threshold).data)
        seconds.append(time.process_time() - began)
    assert len(set(pictures)) == 3
    assert view.show(model="remembers", threshold=3.0).data not in pictures
    assert min(seconds) < ANSWERS
