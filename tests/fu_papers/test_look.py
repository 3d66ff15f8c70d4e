"""Figures and tables: same bytes, source always readable, and no claim without a verdict from records."""

import io
import itertools
import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from matplotlib.figure import Figure
from PIL import Image

from fu_core.unlearning.method import method as registered
from fu_papers import look as report
from fu_papers import verdicts
from fu_papers.puf import grid as puf
from fu_papers.verdicts import ClaimResult

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
    assert set(Image.open(first).info) <= {"dpi"}
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["one.png", "two.png"]


@pytest.mark.parametrize("width", [3.0, 9.0])
def test_source_line_is_wrapped_below_the_drawing(width):
    fig = figure(width)
    fig.draw_without_rendering()
    drawn = fig.get_tightbbox()
    note = report._source_note(fig, SOURCE)
    box = note.get_window_extent().transformed(fig.dpi_scale_trans.inverted())
    assert box.y1 <= drawn.y0
    assert box.width <= 1.05 * drawn.width
    assert note.get_text().count("\n") >= 1


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


def oklab(colour, deuteranope):
    """OKLab coordinates of a colour, as seen by a deuteranope if asked (Viénot, Brettel & Mollon 1999)."""
    srgb = np.array(colors.to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    if deuteranope:
        linear = np.array([[0.293, 0.707, 0], [0.293, 0.707, 0], [-0.022, 0.022, 1]]) @ linear
    to_lms = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    to_lab = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return to_lab @ np.cbrt(np.clip(to_lms @ linear, 0, None))


@pytest.mark.parametrize(
    "together",
    [
        [*puf.REFERENCES, *puf.METHODS],
        ["Original", "Retrain", "HF-KCU", "HF-KCU printed", "FedEraser", "NaiveGA", "SISA"],
        ["Original", "Retrain", "FedORA", "GA", "ICO", "CVFU"],
        ["Original", "Retrain", "PDUDT", "DU", "DU printed", "Fine-tune"],
    ],
    ids=["puf", "hf_kcu", "fedora", "certified_dfl"],
)
@pytest.mark.parametrize("deuteranope", [False, True])
def test_methods_of_one_paper_can_be_told_apart(together, deuteranope):
    for one, other in itertools.combinations(together, 2):
        distance = np.linalg.norm(oklab(report.colour(one), deuteranope) - oklab(report.colour(other), deuteranope))
        assert distance > 0.07, (one, other, distance)


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


def test_plain_table_is_plain_and_keeps_a_named_index(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 1 / 3]}, index=pd.Index(["a", "b"], name="who"))
    path = report.save_table(frame, tmp_path / "t.csv", "s")
    assert path.read_text() == "# source: s\nwho,x\na,1\nb,0.333333\n"


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
    assert verdicts.claims_tally(tmp_path)["not run"].sum() == 55
    verdicts.write_claims([ClaimResult("P1", "holds in part", records=["a"])], "puf", tmp_path)
    tally = verdicts.claims_tally(tmp_path)
    assert list(tally.columns) == list(verdicts.VERDICTS)
    assert tally.loc["puf"].tolist() == [0, 1, 0, 0, 13]
    assert tally.to_numpy().sum() == 55


def test_the_two_readings_are_counted_apart(tmp_path):
    """A corrected form that holds does not lift the verdict on what is printed, nor its count."""
    results = [
        ClaimResult("H1", "does not hold", records=["a"], corrected="holds"),
        ClaimResult("H2", "undetermined", records=["a"], reason="more seeds", corrected="undetermined"),
        ClaimResult("H6", "holds", records=["a"]),
    ]
    verdicts.write_claims(results, "hf_kcu", tmp_path / "laptop")
    assert verdicts.read_claims(tmp_path / "laptop")["H1"] == results[0]
    assert verdicts.claims_tally(tmp_path / "laptop").loc["hf_kcu"].tolist() == [1, 0, 1, 1, 12]
    assert verdicts.claims_tally(tmp_path / "laptop", "corrected").loc["hf_kcu"].tolist() == [1, 0, 0, 1, 0]
    lines = verdicts.tally_markdown([tmp_path / "laptop"]).splitlines()
    assert "| hf_kcu | as printed | laptop | 1 | 0 | 1 | 1 | 12 |" in lines
    assert "| hf_kcu | corrected | laptop | 1 | 0 | 0 | 1 | 0 |" in lines
    assert not [line for line in lines if line.startswith("| puf | corrected")]


def test_one_met_condition_of_six_is_not_in_part_and_what_doing_nothing_meets_does_not_hold():
    found = {k: verdicts.judge("P4", [n < k for n in range(6)], "", "", ["a"], "rule") for k in (1, 2, 3, 6)}
    assert [result.verdict for result in found.values()] == ["does not hold", "does not hold", "holds in part", "holds"]
    assert found[3].reason == "3 of 6 parts hold; rule"
    assert verdicts.judge("P4", verdicts.lowered([True, True], True), "", "", ["a"], "").verdict == "does not hold"
    assert verdicts.judge("P4", [False], "", "", ["a"], "", corrected=[True]).verdict == "does not hold"


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
