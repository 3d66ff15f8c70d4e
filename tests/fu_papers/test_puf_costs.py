"""PUF's printed costs against its printed formulas: what errata P1 and P4 list is what the arithmetic finds."""

import re
from importlib import resources

import pandas as pd
import pytest

from fu_core.models.resnet import ResNet18
from fu_papers import look as report
from fu_papers.puf import costs as puf_costs

IID, SKEWED, LONG = (
    f"CIFAR-100, {kind}, ResNet-18, E={E}" for kind, E in (("IID", 1), ("Non-IID", 1), ("Non-IID", 10))
)
CIFAR10, MIT = "CIFAR-10, Non-IID, ResNet-18, E=1", "CIFAR-100, Non-IID, MiT-B0, E=1"
TWO, TWO_MIT, PROSTATE = f"Multiple Unlearning, {SKEWED}", f"Multiple Unlearning, {MIT}", "ProstateMRI, U-NET"
BYTES, FLOPS, STORAGE = puf_costs.COLUMNS
PUFS = ("PUF-Special", "PUF-Regular")


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return puf_costs.cost_cells()


@pytest.fixture(scope="module")
def rounds() -> pd.DataFrame:
    return puf_costs.implied_rounds().set_index(["table", "setting", "method"])


def only(cells, table, setting, method, column):
    at = (cells.table == table) & (cells.setting == setting) & (cells.method == method) & (cells.column == column)
    (row,) = cells[at].to_dict("records")
    return row


def test_31_of_171_cells_do_not_follow(cells):
    """Errata P1, the left column of its list."""
    expected = {("III", setting, "PGA", STORAGE) for setting in (IID, SKEWED, LONG, CIFAR10, MIT)}
    expected |= {("III", LONG, "PGA", BYTES), ("III", LONG, "PGA", FLOPS)}
    expected |= {("III", s, method, c) for s in (SKEWED, LONG, CIFAR10) for method in PUFS for c in (BYTES, FLOPS)}
    expected |= {("III", MIT, "PUF-Special", BYTES)}
    expected |= {("IV", s, method, BYTES) for s in (IID, SKEWED) for method in ("FedAU", "NoT", *PUFS)}
    expected |= {("IV", IID, "PUF-Special", FLOPS)}
    expected |= {("V", s, "PUF-Regular", BYTES) for s in (TWO, TWO_MIT)}
    wrong = cells[~cells.follows]
    assert set(zip(wrong.table, wrong.setting, wrong.method, wrong.column, strict=True)) == expected
    assert (len(wrong), len(cells)) == (31, 171)


def test_every_printed_cost_is_a_cell_and_has_three_digits(cells):
    """Bytes, FLOPs and storage of the 37, 10 and 10 rows that have them; half a unit of the third digit is the rule."""
    assert cells.groupby("table", sort=False).size().to_dict() == {"III": 111, "IV": 30, "V": 30}
    folder = resources.files("fu_papers.puf") / "published"
    for table, shown in cells.groupby("table"):
        raw = pd.read_csv(folder / f"table_{table.lower()}.csv", dtype=str)[list(puf_costs.COLUMNS)].dropna()
        printed = [cell for row in raw.to_numpy() for cell in row]
        assert all(re.fullmatch(r"[1-9]\.\d\de\d\d", cell) for cell in printed)
        assert shown.printed.tolist() == [float(cell) for cell in printed]


def test_recomputed_cells_by_hand(cells):
    """2 P B = 89761056 for ResNet-18 and 26555136 for MiT-B0; F N = 7.5e11 and 8.5e12."""
    mode = only(cells, "III", MIT, "MoDe", BYTES)  # (C_r R_d + C R_m + C_r R) at R = 6.1
    assert mode["recomputed"] == pytest.approx(26_555_136 * (9 * 6 + 10 * 10 + 9 * 6.1))
    eraser = only(cells, "III", SKEWED, "FedEraser", FLOPS)  # E_cal C_r R_ret, no recovery
    assert eraser["recomputed"] == pytest.approx(7.5e11 * 0.5 * 9 * 200)
    fed_au = only(cells, "V", TWO, "FedAU", BYTES)  # 2 P_c B + 2 P B C_r R at R = 11
    assert fed_au["recomputed"] == pytest.approx(2 * 51_300 * 4 + 89_761_056 * 8 * 11)
    special = only(cells, "IV", SKEWED, "PUF-Special", FLOPS)  # half a client, then 9.5 of them for R = 1
    assert special["recomputed"] == pytest.approx(7.5e11 * (0.5 + 9.5))
    regular = only(cells, "IV", SKEWED, "PUF-Regular", FLOPS)  # all samples of ten clients, then 9.5
    assert regular["recomputed"] == pytest.approx(7.5e11 * (10 + 9.5))
    retrain = only(cells, "IV", IID, "Retrain", BYTES)  # the target stays
    assert retrain["recomputed"] == pytest.approx(89_761_056 * 10 * 200)
    long = only(cells, "III", LONG, "PUF-Regular", FLOPS)  # E_u = E = 10
    assert long["recomputed"] == pytest.approx(7.5e12 * (10 + 9 * 5.5))
    assert (cells.ratio == cells.printed / cells.recomputed).all()


def test_a_tie_follows_whichever_way_it_was_rounded(cells):
    """1.425e15 is printed as 1.42e15, and 2.175e13 as 2.18e13."""
    for method, printed, recomputed in (("Retrain", 1.42e15, 1.425e15), ("PUF-Regular", 2.18e13, 2.175e13)):
        cell = only(cells, "IV", IID, method, FLOPS)
        assert (cell["printed"], cell["recomputed"]) == (printed, pytest.approx(recomputed))
        assert cell["follows"]


# Errata P1, its second table, but for Table IV with ten clients in the bytes, as the formulas have it.
IMPLIED = f"""
III; {IID}; PGA 12.09 12.10; MoDe 4.55 4.52; FedAU 3.30 3.30; NoT 6.50 6.50; FedEraser 0.53 0
III; {IID}; PUF-Special 4.10 4.10; PUF-Regular 5.20 5.20
III; {SKEWED}; PGA 6.99 7; MoDe 10.0 10.0; FedAU 15.97 16.0; NoT 12.75 12.80; FedEraser 0.53 0
III; {SKEWED}; PUF-Special 4.85 5.16; PUF-Regular 6.86 7.17
III; {LONG}; PGA nan 4.40; MoDe 8.88 8.96; FedAU 13.99 14.0; NoT 7.70 7.70
III; {LONG}; PUF-Special 3.48 3.84; PUF-Regular 4.89 5.47
III; {CIFAR10}; PGA 11.5 11.5; MoDe 12.60 12.67; FedAU 6.40 6.40; NoT 16.96 16.89
III; {CIFAR10}; PUF-Special 3.97 4.02; PUF-Regular 5.46 5.54
III; {MIT}; PGA 6.92 6.90; MoDe 6.11 6.16; FedAU 14.81 14.77; NoT 15.48 15.56
III; {MIT}; PUF-Special 10.98 10.90; PUF-Regular 15.29 15.36
IV; {IID}; FedAU 0.90 1.00; NoT 6.29 7.00; PUF-Special 1.49 1.66; PUF-Regular 1.80 2.01
IV; {SKEWED}; FedAU 0.90 1.00; NoT 7.20 8.00; PUF-Special 0.90 1.00; PUF-Regular 0.91 1.00
V; {TWO}; FedAU 11.0 11.0; NoT 6.60 6.60; PUF-Special 3.20 3.20; PUF-Regular 9.25 8.00
V; {TWO_MIT}; FedAU 15.02 15.00; NoT 3.20 3.21; PUF-Special 5.02 5.00; PUF-Regular 17.25 15.96
VI; {PROSTATE}; PGA 48.89 48.54; NoT 47.99 48.00; PUF-Special 41.77 41.88
"""


def test_implied_rounds_are_the_erratas(rounds):
    expected = {}
    for line in IMPLIED.strip().splitlines():
        table, setting, *rows = line.split("; ")
        for method, *values in map(str.split, rows):
            expected[table, setting, method] = [float(value) for value in values]
    assert set(rounds.index) == set(expected)
    for row, values in expected.items():
        assert rounds.loc[row, ["from_bytes", "from_flops"]].tolist() == pytest.approx(values, abs=6e-3, nan_ok=True)


def test_rounds_are_means_of_ten_or_five_whole_numbers(rounds):
    for (table, _, _), mean in rounds.rounds.items():
        total = mean * {"III": 10, "IV": 10, "V": 5, "VI": 6}[table]
        assert total == pytest.approx(round(total), abs=1e-9)


def test_both_columns_follow_only_where_one_r_explains_them(cells, rounds):
    both = cells[cells.column != STORAGE].groupby(["table", "setting", "method"]).follows.all()
    explained = rounds.loc[["III", "IV", "V"]].agree
    assert (both[explained.index] == explained).all()


def test_if_r_may_be_any_number_23_cells_still_do_not_follow(cells, rounds):
    """One cell of each row whose columns disagree, 18 of them, and the five storages of PGA."""
    assert (~rounds.loc[["III", "IV", "V"]].agree).sum() + (~cells[cells.column == STORAGE].follows).sum() == 18 + 5


@pytest.mark.parametrize(
    ("start", "count"),
    [
        ("(C + 1) P B", 5),  # PGA's storage
        ("these are the FLOPs, R = 4.40", 1),  # PGA, E = 10: bytes
        ("E = 1 instead of 10, R = 4.40", 1),  # and FLOPs
        ("9 clients send in recovery, 9.5 compute", 8),  # all bytes of Table IV
        ("unlearning round counted C_u times", 2),  # PUF-Regular in Table V
        ("needs R = ", 14),
    ],
)
def test_the_erratas_readings_print_the_cells(cells, start, count):
    """Each reading is arithmetic of its own that gives the printed digits; nothing else gets a note."""
    assert cells.note.str.startswith(start).sum() == count
    assert ((cells.note == "") == cells.follows).all()


def test_mismatches_are_the_cells_that_do_not_follow(cells):
    wrong = puf_costs.mismatches()
    assert wrong.index.tolist() == list(range(len(wrong)))
    pd.testing.assert_frame_equal(wrong, cells[~cells.follows].drop(columns="follows").reset_index(drop=True))


@pytest.mark.parametrize(("runs", "count"), [(3, 30), (5, 31), (20, 31)])
def test_the_runs_of_table_iv_matter_for_one_cell(monkeypatch, runs, count):
    """PUF-Special's 1.22e13 FLOPs are R = 1.66, no mean of ten runs; three could give 5/3."""
    monkeypatch.setitem(puf_costs.RUNS, "IV", runs)
    wrong = puf_costs.mismatches()
    assert len(wrong) == count
    assert (runs == 3) == wrong[(wrong.table == "IV") & (wrong.column == FLOPS)].empty


def test_p_and_p_c_are_our_resnet18s():
    net = ResNet18(3, 100)
    assert sum(p.numel() for p in net.parameters()) == puf_costs.PARAMETERS["ResNet-18"]
    assert sum(p.numel() for p in net.fc.parameters()) == puf_costs.CLASSIFIERS["ResNet-18"]


@pytest.mark.parametrize(
    ("P", "count"),
    [(11_218_749, 39), (11_218_750, 31), (11_220_427, 31), (11_220_428, 32), (11_227_812, 34)],
)
def test_only_p_near_our_resnet18s_gives_the_bytes(monkeypatch, P, count):
    """Errata P4: the 7x7 stem has 11,227,812. Table IV's Retrain, 1.80e11, needs 8 P 10 200 >= 1.795e11; PGA's 9.86e9
    at R = 12.1 needs 8 P (1 + 9 * 12.1) <= 9.865e9: P is from 11,218,750 to 11,220,427."""
    monkeypatch.setitem(puf_costs.PARAMETERS, "ResNet-18", P)
    assert len(puf_costs.mismatches()) == count


@pytest.mark.parametrize(
    ("method", "column", "change", "reading"),
    [
        ("NoT", BYTES, 1.02, "needs R = 6.63, the row's FLOPs R = 6.50"),
        ("NoT", FLOPS, 1.02, "needs R = 6.63, the row's bytes R = 6.50"),
        ("MoDe", STORAGE, 0.5, ""),
        ("Retrain", BYTES, 1.02, ""),
    ],
)
def test_a_wrong_cell_is_found_and_blamed(monkeypatch, method, column, change, reading):
    """A planted mistake is the 32nd cell. The FLOPs decide on R, but not against a row that fits otherwise."""
    published = report.published

    def misprinted(paper, name):
        table = published(paper, name)
        at = (table.setting == IID) & (table.method == method) & (name == "table_iii")
        table.loc[at, column] *= change
        return table

    before = puf_costs.mismatches()
    monkeypatch.setattr(report, "published", misprinted)
    after = puf_costs.mismatches()
    key = ["table", "setting", "method", "column"]
    new = after.merge(before[key], how="left", on=key, indicator=True).query("_merge == 'left_only'")
    assert len(after) == len(before) + 1
    assert new[[*key, "note"]].to_numpy().tolist() == [["III", IID, method, column, reading]]
