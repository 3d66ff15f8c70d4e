"""What is committed for every profile is what its records give today: the same files, the same tables, good pictures.

Notebooks are run here cell by cell from the committed records, into a folder of their own, computing no runs. The
profile quick is also run in a kernel (tests/drawn_from_records.py) and shown in the notebooks; the larger ones are not.
"""

import math
import shutil

import nbformat
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageChops

from fu_papers import look
from fu_papers.exercises.__main__ import TAG as EXERCISE
from fu_papers.lab import paths
from fu_papers.lab.committed import RECORDS
from fu_papers.lab.notebooks import notebooks, plan
from fu_papers.look import read_table
from fu_papers.parameters import SIZES
from tests.pictures import faults

COMMITTED = paths.ROOT / "figures"
DRAWN = (path.parent for path in COMMITTED.glob(f"*/*/{RECORDS}") if list(path.parent.glob("*.png")))  # others grow
PLACES = sorted((SIZES.index(folder.parent.name), folder.name) for folder in DRAWN)
FAINT, MOVED = 32, 1e-4  # of 255; share of the pixels: some dot's edge, and no dot
ON_PURPOSE = {  # what leaves a frame because the frame was chosen so
    "mixing.png": "leave the frame",  # errors go on falling, below what is of interest
    "saddle.png": "leave the frame",  # bowls and spirals are drawn beyond the part that matters
    "duality_gap.png": "leave the frame",  # and so are functions
    "theorem_1.png": "leave the frame",  # from zero, on a logarithmic axis
    "fig1_curves.png": "leave the frame",  # Retrain's first rounds, of which the axis says where they begin
}


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: f"{SIZES[place[0]]}-{place[1]}")
def drawn(request, tmp_path_factory):
    """Profile, paper, the folder with everything drawn, and what is wrong with each picture."""
    profile, paper = SIZES[request.param[0]], request.param[1]
    home, wrong = tmp_path_factory.mktemp(f"{profile}-{paper}"), {}
    for each in (path for path in COMMITTED.glob(f"*/{paper}") if path.parent.name != profile):
        shutil.copytree(each, home / "figures" / each.parent.name / paper)  # larger twins are shown beside
    ours = home / "figures" / profile / paper
    ours.mkdir(parents=True)
    for each in (COMMITTED / profile / paper).glob("*.jsonl"):
        shutil.copyfile(each, ours / each.name)
    write = look._write

    def looked_at(fig, path, source):
        said = write(fig, path, source)  # first: who looks at a figure takes its layout engine
        wrong[path.name] = [fault for fault in faults(fig, saved=True) if ON_PURPOSE.get(path.name, "\n") not in fault]
        return said

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FU_FIGURES_ONLY", "1")
        for name in ("figures", "runs", "data"):
            patched.setenv(f"FU_{name.upper()}", str(home / name))
        patched.setattr(look, "_write", looked_at)
        _run(paper, profile)
    return profile, paper, ours, wrong


def _run(paper, profile):
    names = {"__name__": "__main__"}
    for cell in nbformat.read(notebooks()[paper], as_version=4).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and EXERCISE not in tags:
            exec(compile(cell.source, f"{paper}, cell {cell.id}", "exec"), names)
        if "parameters" in tags:
            names.update(plan(paper, profile, {}).parameters)


@pytest.mark.slow
def test_every_picture_is_a_good_one(drawn):
    *_, wrong = drawn
    assert len(wrong) >= 5
    assert {name: faults for name, faults in wrong.items() if faults} == {}


@pytest.mark.slow
def test_the_same_files_are_committed_and_no_others(drawn):
    profile, paper, ours, _ = drawn
    assert {path.name for path in ours.iterdir()} == {path.name for path in (COMMITTED / profile / paper).iterdir()}


@pytest.mark.slow
def test_every_committed_picture_is_what_the_records_give(drawn):
    """Pixel by pixel, but for what another processor's last digits may move."""
    profile, paper, ours, _ = drawn
    differ = {}
    for path in sorted(ours.glob("*.png")):
        new, old = (Image.open(each).convert("RGB") for each in (path, COMMITTED / profile / paper / path.name))
        if new.size != old.size:
            differ[path.name] = f"{new.size}, committed {old.size}"
            continue
        apart = np.asarray(ImageChops.difference(new, old)).max(axis=2)
        if (changed := float((apart > FAINT).mean())) > MOVED:
            differ[path.name] = f"{changed:.2%} of the pixels"
    assert differ == {}


def _numbers_and_words(column):
    """One word among numbers makes them all text, whose last digits another processor moves.

    `pandas.to_numeric` would crash on a record's name such as 1e3754819397bf.
    """
    numbers = column.map(_number).astype(float)
    return numbers, column.where(numbers.isna(), "").astype(str)


def _number(value):
    try:
        return float(value)
    except ValueError:
        return math.nan


def test_a_records_name_is_a_word():
    numbers, words = _numbers_and_words(pd.Series(["1e3754819397bf625a5d", "2.5"]))
    assert numbers.isna().tolist() == [True, False]
    assert words.tolist() == ["1e3754819397bf625a5d", ""]


def test_last_digits_of_numbers_beside_a_word_are_no_difference():
    one, other = (_numbers_and_words(pd.Series([last, "refuses", ""])) for last in ("-0.15621786886590522", "-0.15621"))
    pd.testing.assert_series_equal(one[0], other[0], rtol=1e-3)
    assert one[1].tolist() == other[1].tolist() == ["", "refuses", ""]


@pytest.mark.slow
def test_every_committed_table_says_what_the_records_say(drawn):
    profile, paper, ours, _ = drawn
    for path in sorted(ours.glob("*.csv")):
        committed = COMMITTED / profile / paper / path.name
        new, old = (read_table(each)[0] for each in (path, committed))
        assert list(new) == list(old), path.name
        for column in new:
            (numbers, words), (old_numbers, old_words) = (
                _numbers_and_words(new[column]),
                _numbers_and_words(old[column]),
            )
            pd.testing.assert_series_equal(numbers, old_numbers, rtol=1e-3, atol=1e-9, check_dtype=False)
            pd.testing.assert_series_equal(words, old_words, check_dtype=False)
        assert _above(path) == _above(committed), path.name


def _above(table):
    """Its source, and its caption."""
    return [line for line in table.read_text(encoding="utf-8").splitlines()[:2] if line.startswith("#")]
