"""Figures and tables: same bytes, source always readable, and no claim without a verdict from records."""

import io
import itertools
import re
from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fu_core.errors import ConfigError, CorruptData
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import methods
from fu_papers import eyes, links, verdicts
from fu_papers import look as report
from fu_papers.arena.grid import of_servers
from fu_papers.certified_dfl import grid as certified
from fu_papers.fedora import grid as fedora
from fu_papers.hf_kcu import grid as hf_kcu
from fu_papers.pictures import described
from fu_papers.puf import grid as puf
from fu_papers.verdicts import ClaimResult
from tests import pictures
from tests.notebook_lab import without_tags

SOURCE = "MNIST: 60,000 + 10,000 images, downloaded; a very long remark that has to be wrapped several times. " * 3


def figure(width=6.0):
    with report.style():
        fig = Figure(figsize=(width, 3))
        ax = fig.subplots()
        report.seed_band(ax, [0, 1, 2], [[0.1, 0.5, 0.9], [0.2, 0.6, 0.7]], "PUF-Special")
        ax.set(xlabel="round", ylabel="accuracy (%)")
        ax.legend()
    return fig


# --- figures ---


def test_same_figure_same_bytes_without_date_or_version(tmp_path):
    first = report.save_figure(figure(), tmp_path / "a" / "one.png", "digits")
    fig = figure()
    report.save_figure(fig, tmp_path / "two.png", "something else")
    second = report.save_figure(fig, tmp_path / "two.png", "digits")  # saving leaves the figure as it was
    assert first.read_bytes() == second.read_bytes()
    info = Image.open(first).info
    assert set(info) <= {"dpi", "Description"}
    assert info["Description"] == "Data: digits"
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["one.png", "two.png"]


@pytest.mark.parametrize(("width", "whole"), [(3.0, False), (9.0, False), (9.0, True)])
def test_one_line_below_the_drawing_says_what_a_dot_is_and_the_data_as_far_as_there_is_room(width, whole):
    fig = figure(width)
    fig.draw_without_rendering()
    drawn = fig.get_tightbbox()
    report.say_below(fig, "Band: 2 seeds")
    note = report._line_below(fig, drawn, "MNIST: downloaded" if whole else SOURCE)
    box = note.get_window_extent().transformed(fig.dpi_scale_trans.inverted())
    assert box.y1 <= drawn.y0
    assert box.width <= drawn.width
    assert "\n" not in note.get_text()
    assert note.get_text() == f"Band: 2 seeds. Data: MNIST{': downloaded' if whole else ' …'}"


def test_the_whole_source_is_in_the_alt_text_and_in_the_file(tmp_path):
    fig = figure(3.0)
    report.say_below(fig, "Band: 2 seeds")
    shown = report.show_figure(fig, tmp_path / "one.png", SOURCE)
    assert shown.image.alt == f"{described(fig) or 'one'}. Band: 2 seeds. Data: {SOURCE}"
    assert Image.open(tmp_path / "one.png").info["Description"] == f"Data: {report.one_line(SOURCE)}"


def test_the_alt_text_says_what_there_is_to_see(tmp_path):
    """Panels, axes and names once each, whatever a panel has of its own; a few of many names."""
    fig, (left, right) = plt.subplots(1, 2)
    for ax, title in ((left, "IID"), (right, "Dirichlet\n0.3")):
        ax.plot([0, 1], label="PUF")
        ax.set(title=title, xlabel="rounds", ylabel="accuracy, %")
        ax.legend()
    seen = "Panels: IID; Dirichlet 0.3. Axes: accuracy, % against rounds. Shown: PUF"
    assert described(fig) == seen
    assert report.show_figure(fig, tmp_path / "two.png", "MNIST").image.alt == f"{seen}. Data: MNIST"
    many, ax = plt.subplots()
    many.suptitle("All of them")
    for k in range(20):
        ax.plot([k], label=f"m{k}")
    many.legend()
    names = "; ".join(f"m{k}" for k in range(12))
    assert described(many) == f"All of them. Shown: {names} and 8 more"
    assert described(plt.figure()) == ""


@pytest.mark.parametrize(("width", "cut"), [(3.0, True), (20.0, False)])
def test_a_source_that_the_picture_has_no_room_for_stands_below_it(width, cut, tmp_path, monkeypatch):
    """As an output of its own: the first is an ordinary picture."""
    outputs = []
    monkeypatch.setattr("fu_papers.pictures.display", outputs.append)
    report.show_figure(figure(width), tmp_path / "one.png", f"{SOURCE} & more")._ipython_display_()
    picture, *below = outputs
    assert picture.data == (tmp_path / "one.png").read_bytes()
    assert [without_tags(one.data) for one in below] == [f"Data: {SOURCE.strip()} & more"] * cut


@pytest.mark.parametrize("text", ["", "two\nlines"])
def test_what_stands_below_is_one_line(text):
    with pytest.raises(ValueError, match="text must be one line"):
        report.say_below(figure(), text)


def test_a_source_in_short_is_its_data_sets():
    long = (
        "CIFAR-10 (Krizhevsky, 2009), recompressed; net: a | MNIST handwritten digits (LeCun); net: b | CIFAR-10, as is"
    )
    assert report.in_short(long) == "CIFAR-10, MNIST handwritten digits"


def test_figure_path_must_be_png(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        report.save_figure(figure(), tmp_path / "a.pdf", "digits")


def test_style_ends_with_its_block():
    before = dict(mpl.rcParams)
    with report.style():
        assert mpl.rcParams["axes.labelsize"] == 11
    assert dict(mpl.rcParams) == before


def test_seed_band_draws_mean_and_sample_deviation():
    ax = Figure().subplots()
    report.seed_band(ax, [0, 1], [[1.0, 2.0], [3.0, 2.0]], "Retrain")
    (line,) = ax.lines
    assert line.get_ydata().tolist() == [2, 2]
    assert line.get_linestyle() == "--"
    assert line.get_color() == "#000000"
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(2 + np.sqrt(2))
    with pytest.raises(ValueError, match=r"shape \(seeds, 3\)"):
        report.seed_band(ax, [0, 1, 2], [[1.0, 2.0]], "Retrain")


def test_unknown_method_names_the_nearest():
    assert report.colour("PUF-Special") == registered("PUF-Special").colour == "#d55e00"
    assert (report.linestyle("Retrain"), report.linestyle("PUF-Special")) == ("--", "-")
    with pytest.raises(ValueError, match="did you mean 'PUF-Special'"):
        report.colour("PUF-Specal")


def test_two_colours_are_as_far_apart_as_they_are_for_a_deuteranope():
    assert eyes.distance("#000000", "#ffffff") == pytest.approx(1.0, abs=1e-3)
    assert eyes.distance("#808080", "#808080") == 0
    red, green = "#d00000", "#4d7000"
    seen = np.linalg.norm(eyes.oklab(red) - eyes.oklab(green))
    assert eyes.distance(red, green) == eyes.distance(green, red) < 0.5 * seen
    assert eyes.oklab("#808080", True) == pytest.approx(eyes.oklab("#808080"), abs=5e-3)  # grey stays grey


DOTS = {  # who meets in one figure, as dots
    "puf": [*puf.REFERENCES, *puf.METHODS, "NaiveGA"],
    "hf_kcu": [*puf.REFERENCES, *hf_kcu.METHODS],
    "fedora": [*puf.REFERENCES, *fedora.METHODS, *fedora.PEERS],
    "certified_dfl": [*puf.REFERENCES, *certified.METHODS, "PDUDT", "Noisy fine-tuning", "Model clipping"],
    "arena": list(of_servers()),
    "all": list(methods()),
}
LINES = {  # ... and as lines without dots
    "puf": [*puf.REFERENCES, *puf.METHODS],
    "hf_kcu": [*puf.REFERENCES, *hf_kcu.FORMS],
    "fedora": [*puf.REFERENCES, *fedora.METHODS],
    "certified_dfl": [*puf.REFERENCES, *certified.METHODS],
}


@pytest.mark.parametrize("together", DOTS.values(), ids=DOTS)
def test_dots_that_meet_can_be_told_apart_by_colour_or_marker(together):
    for one, other in itertools.combinations(together, 2):
        apart = eyes.distance(report.colour(one), report.colour(other))
        assert apart > eyes.APART or report.marker(one) != report.marker(other), (one, other, apart)


@pytest.mark.parametrize("together", LINES.values(), ids=LINES)
def test_lines_that_meet_can_be_told_apart_by_colour_or_dashes(together):
    for one, other in itertools.combinations(together, 2):
        apart = eyes.distance(report.colour(one), report.colour(other))
        assert apart > eyes.APART or report.linestyle(one) != report.linestyle(other), (one, other, apart)


def test_only_retrain_has_its_marker_and_further_methods_change_nobodys(monkeypatch):
    before = {name: report.marker(name) for name in methods()}
    assert [name for name, mark in before.items() if mark == report.RETRAIN] == ["Retrain"]
    assert len(set(before.values())) == len(report.MARKERS) + 1
    mine = replace(registered("NoT"), name="A first", serve=lambda *of: None)
    further = {"A first": mine, **dict(reversed(methods().items()))}  # which depends on what is imported first
    monkeypatch.setattr(report, "methods", lambda: further)
    assert {name: report.marker(name) for name in before} == before
    with pytest.raises(ValueError, match="did you mean 'PUF-Special'"):
        report.marker("PUF-Specal")


def test_names_of_dots_lie_on_no_dot_and_on_no_name():
    places = [(0.5 + 0.01 * k, 0.5 + 0.02 * (k % 3)) for k in range(12)]
    found = []
    for label in (report.label_dots, plain):
        with report.style():
            fig = Figure(figsize=(5, 4))
            ax = fig.subplots()
            ax.scatter(*zip(*places, strict=True))
            ax.set(xlim=(0, 1), ylim=(0, 1))
            label(ax, [(x, y, f"name {k}", "#333333") for k, (x, y) in enumerate(places)])
            fig.draw_without_rendering()
            found.append(pictures.overprinted(fig))
    ours, beside = found
    assert ours == []
    assert len(beside) > 10


def test_names_of_dots_that_lines_join_lie_on_no_line_if_that_is_asked_for():
    ways = [
        [(0.0, 2.9), (1.3, 2.2), (2.7, 1.3), (4.7, 1.2), (15.0, 1.8)],
        [(1.0, 1.8), (2.3, 0.9), (4.3, 0.9), (10, 3)],
    ]
    ways += [[(1.3, 2.2), (1.7, 1.7), (3.0, 1.3), (5.5, 0.4), (12.0, 2.5)], [(1.3, 1.3), (2.0, 0.8), (5.5, 0.4)]]
    found = []
    for off_lines in (True, False):
        with report.style():
            fig = Figure(figsize=(7, 4.2))
            ax = fig.subplots()
            for way in ways:
                ax.plot(*zip(*way, strict=True))
                ax.scatter(*zip(*way, strict=True))
            ax.set(xlim=(-1, 16), ylim=(0, 3.3))
            dots = [dot for way in ways for dot in way]
            report.label_dots(ax, [(*dot, str(k), "#333333") for k, dot in enumerate(dots)], off_lines=off_lines)
            fig.draw_without_rendering()
            assert pictures.overprinted(fig) == []
            found.append(pictures.crossed(fig))
    ours, beside = found
    assert ours == []
    assert len(beside) > 2


def plain(ax, labels):
    for x, y, text, ink in labels:
        ax.annotate(text, (x, y), xytext=(5, 4), textcoords="offset points", color=ink)


# --- tables ---


def test_table_reads_back_and_says_its_source(tmp_path):
    frame = pd.DataFrame({"method": ["PUF # special", "ÄÖ, NoT"], "acc": [0.123456789, None], "n": [1, 2]})
    path = report.save_table(frame, tmp_path / "deep" / "t.csv", "digits\n(bundled)")
    raw = path.read_bytes()
    assert raw.startswith(b"# source: digits (bundled)\n")
    assert b"\r" not in raw
    back = pd.read_csv(path, comment="#")
    assert back["method"].tolist() == frame["method"].tolist()
    assert back["acc"][0] == 0.123457
    assert back["n"].tolist() == [1, 2]
    assert back["acc"].isna().tolist() == [False, True]


def test_a_records_name_that_looks_like_a_huge_number_is_read(tmp_path):
    """pandas' default parser ends the whole process on such a column, if it is the first value."""
    path = report.save_table(pd.DataFrame({"record": ["1e3754819397bf625a5d"], "x": [0.1]}), tmp_path / "t.csv", "s")
    frame, *_ = report.read_table(path)
    assert frame["record"].tolist() == ["1e3754819397bf625a5d"]
    assert frame["x"].tolist() == [0.1]


def test_plain_table_is_plain_and_keeps_a_named_index(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 1 / 3]}, index=pd.Index(["a", "b"], name="who"))
    path = report.save_table(frame, tmp_path / "t.csv", "s")
    assert path.read_text() == "# source: s\nwho,x\na,1\nb,0.333333\n"


def test_a_kept_table_takes_its_caption_along_with_the_warning_in_it(tmp_path):
    caption = "Table 2.\nTwo seeds. Do nothing passes: read no row"
    report.keep_table(tmp_path / "t.csv", "s", pd.DataFrame({"x": [1]}), caption)
    text = (tmp_path / "t.csv").read_text()
    assert text == "# source: s\n# Table 2. Two seeds. Do nothing passes: read no row\nx\n1\n"
    frame, *said = report.read_table(tmp_path / "t.csv")
    assert (frame.x.tolist(), said) == ([1], ["s", "Table 2. Two seeds. Do nothing passes: read no row"])


def test_a_table_without_a_caption_is_read_back_with_its_words_as_they_are(tmp_path):
    path = report.save_table(pd.DataFrame({"guarantee": ["None", "# 3"], "acc": [None, 1.5]}), tmp_path / "t.csv", "s")
    frame, *said = report.read_table(path)
    assert said == ["s", ""]
    assert frame.guarantee.tolist() == ["None", "# 3"]
    assert frame.acc.isna().tolist() == [True, False]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "# source: s\n"])
def test_a_file_that_is_no_table_of_ours_is_not_read_as_one(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(CorruptData, match=r"t\.csv must begin with '# source: ' and go on with a table"):
        report.read_table(tmp_path / "t.csv")


def test_shown_table_has_caption_source_and_no_index():
    frame = pd.DataFrame({"method": ["<b>"], "acc": [1 / 3], "none": [float("nan")]})
    shown = report.show_table(frame, "digits & more", "Table <1>").data
    assert "Table &lt;1&gt;" in shown
    assert "Data: digits &amp; more" in shown
    assert "0.3333<" in shown
    assert "&lt;b&gt;" in shown
    assert "–" in shown
    assert "row_heading" not in shown
    assert shown == report.show_table(frame, "digits & more", "Table <1>").data


def test_a_long_table_is_folded_behind_its_caption_and_a_short_one_is_not():
    rows = pd.DataFrame({"round": range(report.ROWS + 1)})
    long = report.show_table(rows, "digits", "All <rounds>").data
    assert long.startswith(f"<details><summary>All &lt;rounds&gt; ({report.ROWS + 1} rows)</summary>")
    assert long.endswith("</details>")
    assert "<caption>" not in long
    assert "Data: digits" in long
    assert "<details>" not in report.show_table(rows.head(report.ROWS), "digits", "All rounds").data


def test_a_claim_and_an_erratum_of_one_name_lead_to_different_places():
    table = report.show_table(pd.DataFrame({"why": ["claim D9, erratum D9", "D9 alone"]}), "digits", "errata H1").data
    assert '<a href="../fu_papers/claims.md#claim-d9">claim D9</a>' in table
    assert '<a href="../fu_papers/errata.md#d9">erratum D9</a>' in table
    assert '<a href="../fu_papers/errata.md#h1">errata H1</a>' in table
    assert table.count("<a ") == 3


def test_links_are_written_for_html_or_for_markdown():
    told = links.linked("FedORA, errata F2; claim D9", links.MARKDOWN_LINK)
    assert told == "FedORA, [errata F2](../fu_papers/errata.md#f2); [claim D9](../fu_papers/claims.md#claim-d9)"


def test_a_column_of_claims_is_a_column_of_links_and_no_other_is():
    frame = pd.DataFrame({"id": ["H12"], "method": ["H12"], "verdict": ["<holds>"]})
    table = report.show_table(frame, "digits").data
    assert '><a href="../fu_papers/claims.md#claim-h12">H12</a></td>' in table
    assert table.count("<a ") == 1
    assert "&lt;holds&gt;" in table


def test_two_tables_of_one_page_do_not_share_their_style():
    """With one id for both, the left-aligned columns of one are left-aligned in the other."""
    ids = [re.search(r'<table id="(\w+)"', report.show_table(pd.DataFrame({"a": [n]}), "s").data)[1] for n in (1, 2)]
    assert ids[0] != ids[1]


def test_mean_spread():
    assert report.mean_spread([1, 2, 3]) == "2.0 ± 1.0 (n=3)"
    assert report.mean_spread([0.5], digits=2) == "0.50 (n=1)"
    for wrong in ([], [float("nan")]):
        with pytest.raises(ValueError, match="finite"):
            report.mean_spread(wrong)


def test_published_numbers():
    assert "method" in report.published("puf", "table_iii")
    with pytest.raises(ValueError, match="puf has no published table 'tabel_iii'; did you mean 'table_iii'"):
        report.published("puf", "tabel_iii")
    with pytest.raises(ValueError, match="pufff has no published table 'table_iii'"):
        report.published("pufff", "table_iii")


def test_a_published_row_comes_under_our_headings_or_not_at_all():
    shown = {"paper: ×": "speedup", "paper: acc. %": "unlearned_acc_pct"}
    table = report.published("hf_kcu", "table_7").set_index("total_clients")
    row = report.published_row("hf_kcu", "table_7", {"total_clients": 100}, shown)
    assert list(row) == list(shown)
    assert row == {"paper: ×": table.speedup[100], "paper: acc. %": table.unlearned_acc_pct[100]}
    assert report.published_row("hf_kcu", "table_7", {"total_clients": 7}, shown) == {}
    both = {"dataset": "MNIST", "model": "no such net"}
    assert report.published_row("hf_kcu", "table_2", both, {"paper: ×": "speedup"}) == {}


# --- claims ---


def read(folder):
    return pd.read_csv(folder / "claims.csv", dtype=str, keep_default_na=False).set_index("id")


def test_claims_file_lists_every_claim_and_merges_paper_by_paper(tmp_path):
    verdicts.write_claims([ClaimResult("P4", "holds", "equal", "", ["abc", "def"])], "puf", tmp_path)
    verdicts.write_claims([ClaimResult("H1", "does not hold", "1.2x", "0.1", ["123"], "too slow")], "hf_kcu", tmp_path)
    table = read(tmp_path)
    assert list(table.reset_index().columns) == list(verdicts.CLAIM_COLUMNS)
    assert table.index.tolist() == verdicts.claims()["id"].tolist()
    assert len(table) == 55
    assert table.loc["P4", ["paper", "verdict", "records"]].tolist() == ["puf", "holds", "abc def"]
    assert table.loc["H1", ["ours", "spread", "reason"]].tolist() == ["1.2x", "0.1", "too slow"]
    assert (table.drop(index=["P4", "H1"])["verdict"] == "not run").all()
    assert (table.drop(index="P4")["reason"] != "").all()

    verdicts.write_claims([], "puf", tmp_path)
    assert read(tmp_path).loc[["P4", "H1"], "verdict"].tolist() == ["not run", "does not hold"]


def test_tally_counts_papers_by_verdict(tmp_path):
    nothing = verdicts.tally_markdown([tmp_path]).splitlines()
    assert nothing[0] == f"| paper | form | profile | {' | '.join(verdicts.VERDICTS)} |"
    assert sum(int(line.split(" | ")[-1].removesuffix(" |")) for line in nothing[2:]) == 55
    verdicts.write_claims([ClaimResult("P1", "holds in part", records=["a"])], "puf", tmp_path)
    assert verdicts.tally_markdown([tmp_path]).splitlines()[2].endswith("| 0 | 1 | 0 | 0 | 13 |")


def test_the_two_readings_are_counted_apart(tmp_path):
    """A corrected form that holds does not lift the verdict on what is printed, nor its count."""
    results = [
        ClaimResult("H1", "does not hold", records=["a"], corrected="holds"),
        ClaimResult("H2", "undetermined", records=["a"], reason="more seeds", corrected="undetermined"),
        ClaimResult("H6", "holds", records=["a"]),
    ]
    verdicts.write_claims(results, "hf_kcu", tmp_path / "laptop")
    assert verdicts.read_claims(tmp_path / "laptop")["H1"] == results[0]
    lines = verdicts.tally_markdown([tmp_path / "laptop"]).splitlines()
    assert "| hf_kcu | as printed | laptop | 1 | 0 | 1 | 1 | 12 |" in lines
    assert "| hf_kcu | corrected | laptop | 1 | 0 | 0 | 1 | 0 |" in lines
    assert not [line for line in lines if line.startswith("| puf | corrected")]


def test_without_a_profile_nothing_has_been_judged():
    lines = verdicts.tally_markdown([]).splitlines()
    assert lines[2].startswith("| puf | as printed | – | 0 | 0 | 0 | 0 |")


def test_a_condition_that_is_no_number_is_not_met():
    with pytest.raises(ConfigError, match="met must be true or false for every condition, got nan"):
        verdicts.verdict_of([True, float("nan")])


def test_the_tally_is_of_the_largest_profile_that_has_judged_a_claim(tmp_path):
    """A larger profile may have judged some claims of a paper only."""
    laptop, workstation = tmp_path / "laptop", tmp_path / "workstation"
    verdicts.write_claims([ClaimResult("P1", "holds", records=["a"])], "puf", laptop)
    verdicts.write_claims([ClaimResult(name, "holds", records=["b"]) for name in ("F5", "F6")], "fedora", laptop)
    verdicts.write_claims([ClaimResult("F5", "does not hold", records=["c"])], "fedora", workstation)
    lines = verdicts.tally_markdown([laptop, workstation]).splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == ["laptop", "–", "laptop, workstation", "–"]
    assert "| fedora | as printed | laptop, workstation | 1 | 0 | 1 | 0 | 11 |" in lines
    largest = verdicts.largest_verdicts([laptop, workstation])
    assert [largest[name][1] for name in ("F5", "F6", "F7")] == ["workstation", "laptop", ""]
    assert largest["F5"][0].records == ["c"]


def test_only_verdicts_that_both_runs_could_tell_flip(tmp_path):
    """Between two processors: undetermined beside anything is no flip; a reading's other verdict is."""
    here, there = tmp_path / "here", tmp_path / "there"
    reads = {
        "H1": (("holds", "holds"), ("undetermined", "holds")),
        "H2": (("does not hold", "undetermined"), ("does not hold", "holds")),
        "H3": (("holds", "holds"), ("does not hold", "holds")),
        "H4": (("holds", "holds"), ("holds", "holds in part")),
    }
    for folder, which in ((here, 0), (there, 1)):
        results = [
            ClaimResult(name, pair[which][0], records=["a"], reason="r", corrected=pair[which][1])
            for name, pair in reads.items()
        ]
        folder.mkdir()
        verdicts.write_claims(results, "hf_kcu", folder)
    found = {"H3": "as printed: holds -> does not hold", "H4": "corrected: holds -> holds in part"}
    assert verdicts.flips(here, there) == found
    assert not verdicts.flips(here, here)
    assert verdicts.flips(here, tmp_path)["H1"] == "as printed: holds -> not run; corrected: holds -> –"


def test_one_met_condition_of_six_is_not_in_part_and_what_doing_nothing_meets_does_not_hold():
    found = {k: verdicts.judge("P4", [n < k for n in range(6)], "", "", ["a"], "rule") for k in (1, 2, 3, 6)}
    assert [result.verdict for result in found.values()] == ["does not hold", "does not hold", "holds in part", "holds"]
    assert found[3].reason == "3 of 6 parts hold; rule"
    assert verdicts.judge("P4", verdicts.lowered([True, True], True), "", "", ["a"], "").verdict == "does not hold"
    assert verdicts.judge("P4", [False], "", "", ["a"], "", corrected=[True]).verdict == "does not hold"


def test_a_claim_without_any_condition_is_refused():
    for met, corrected in (([], None), ([True], [])):
        with pytest.raises(ConfigError, match="met must have at least one condition of the claim, got none"):
            verdicts.judge("P4", met, "", "", ["a"], "", corrected=corrected)


def test_claims_that_cannot_be_right_are_refused(tmp_path):
    with pytest.raises(ValueError, match="verdict of P1"):
        ClaimResult("P1", "maybe")
    with pytest.raises(ValueError, match="records"):
        ClaimResult("P1", "holds")
    with pytest.raises(ValueError, match="say why"):
        ClaimResult("P1", "not run")
    with pytest.raises(ValueError, match="say what would tell"):
        ClaimResult("P1", "undetermined", records=["a"])
    with pytest.raises(ValueError, match="corrected verdict of P1"):
        ClaimResult("P1", "holds", records=["a"], corrected="maybe")
    held = ClaimResult("H1", "holds", records=["a"])
    with pytest.raises(ValueError, match="one claim of puf"):
        verdicts.write_claims([held], "puf", tmp_path)
    with pytest.raises(ValueError, match="got 2 for 'H1'"):
        verdicts.write_claims([held, held], "hf_kcu", tmp_path)
    with pytest.raises(ValueError, match="paper must be one of 'puf'"):
        verdicts.write_claims([], "pfu", tmp_path)
    assert not list(tmp_path.iterdir())


def test_claims_table_shows_claim_beside_result():
    table = verdicts.claims_table([ClaimResult("P4", "holds", records=["a"])])
    assert table["paper_value"].tolist() == ["exact"]
    assert pd.read_csv(io.StringIO(table.to_csv()))["verdict"].tolist() == ["holds"]
