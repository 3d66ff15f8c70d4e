"""Beside a notebook's own results stand the committed ones of the largest profile above its own."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from IPython.display import HTML, Markdown

from fu_papers import larger
from fu_papers.look import save_figure, save_table
from fu_papers.pictures import Picture
from fu_papers.study import experiment_of
from fu_papers.verdicts import ClaimResult, write_claims
from tests.notebook_lab import without_tags

NAMES = ("curves.png", "table_iv.csv")


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """What is displayed in a notebook of that profile; figures are in `tmp_path`."""
    monkeypatch.setenv("FU_FIGURES", str(tmp_path))

    def show(profile, paper="fedora"):
        found = []
        monkeypatch.setattr(larger, "display", found.append)
        larger.show_larger(experiment_of(paper).of(profile), *NAMES)
        return found

    return show


def commit(folder, value, *, table=True):
    folder.mkdir(parents=True)
    fig, _ = plt.subplots()
    save_figure(fig, folder / NAMES[0], "digits")
    plt.close(fig)
    if table:
        frame = pd.DataFrame({"method": ["Retrain # 2", "GA"], "test acc. (%)": [value, None]})
        save_table(frame, folder / NAMES[1], "digits, # from somewhere", "Table IV. Mean of 3 seeds")
    write_claims([ClaimResult("F5", "does not hold", f"{value} times", records=["a"])], "fedora", folder.parent)


def test_the_largest_profile_above_is_shown_with_its_verdicts(shown, tmp_path):
    commit(tmp_path / "laptop" / "fedora", 41.5)
    commit(tmp_path / "workstation" / "fedora", 61.25)
    picture, table, verdicts = shown("quick")
    assert isinstance(picture, Picture)
    assert picture.image.data == (tmp_path / "workstation" / "fedora" / NAMES[0]).read_bytes()
    assert picture.image.alt == "curves, at the profile workstation"
    assert picture.caption == "At workstation. Data: digits"
    assert isinstance(table, HTML)
    assert "At workstation: Table IV. Mean of 3 seeds" in without_tags(table.data)
    assert "places.md#place-fedora-table-iv" in table.data  # of the paper whose folder it is in
    assert "Data: digits, # from somewhere" in table.data
    assert all(text in table.data for text in ("61.25", "Retrain # 2", "–"))
    assert "41.5" not in table.data
    assert all(text in verdicts.data for text in ("Verdicts at workstation", "61.25 times", "does not hold"))
    assert not [word for word in ("not run", "corrected") if word in verdicts.data]
    assert [type(one) for one in shown("laptop")] == [Picture, HTML, HTML]


def test_what_is_not_whole_or_not_larger_is_not_shown(shown, tmp_path):
    commit(tmp_path / "laptop" / "fedora", 41.5)
    commit(tmp_path / "workstation" / "fedora", 61.25, table=False)
    assert "At laptop" in shown("quick")[1].data
    (sentence,) = shown("laptop")
    assert isinstance(sentence, Markdown)
    assert "no results of a larger profile than `laptop`" in sentence.data


def test_without_names_the_verdicts_are_those_of_the_largest_profile_that_is_there(shown, tmp_path, monkeypatch):
    commit(tmp_path / "laptop" / "fedora", 41.5)
    found = []
    monkeypatch.setattr(larger, "display", found.append)
    larger.show_larger(experiment_of("fedora").of("quick"))
    (verdicts,) = found
    assert "Verdicts at laptop" in verdicts.data


def test_the_arena_has_no_claims_to_judge(shown, tmp_path):
    commit(tmp_path / "laptop" / "arena", 41.5)
    picture, table = shown("quick", "arena")
    assert isinstance(picture, Picture)
    assert "At laptop" in table.data


def test_what_a_notebook_says_is_kept_for_smaller_ones(shown, tmp_path, monkeypatch):
    commit(tmp_path / "workstation" / "fedora", 61.25)
    said = larger.keep_text(tmp_path / "workstation" / "fedora" / "page.md", "**Forgetting**: in 3 of 7 settings.\n\n")
    assert said.data == "**Forgetting**: in 3 of 7 settings.\n\n"
    found = []
    monkeypatch.setattr(larger, "display", found.append)
    larger.show_beside(experiment_of("fedora").of("quick"), "page.md")
    (page,) = found
    assert page.data == "**At workstation**\n\n**Forgetting**: in 3 of 7 settings.\n"
