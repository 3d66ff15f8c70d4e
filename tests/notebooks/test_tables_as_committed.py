"""Every table that a committed notebook shows is, number by number, a committed file, its profile's or a larger's.

All as in git: `make reproduce` writes quick's tables anew, and those with seconds in them differ.
"""

import csv
import io
import math
import tarfile
from html.parser import HTMLParser
from itertools import chain
from pathlib import PurePosixPath

import nbformat
import pytest

from fu_papers.lab.notebooks import notebooks
from tests.notebook_lab import git

NOT_SHOWN = {  # all runs and trials, which no page has room for, and PUF's tables, which are shown in parts
    "puf": {"runs", "tuning_trials", "cost_cells", "sweep", "tables_iii_to_vi", "table_iii", "table_iv", "table_v",
            "table_vi"},
    "hf_kcu": {"runs"}, "fedora": {"runs"}, "certified_dfl": {"runs"}, "arena": {"runs"},
}  # fmt: skip
ROUNDING = 6e-4  # four digits on the page, six in the file


class Tables(HTMLParser):
    """`found`: the cells' text of every table of a page, row by row, its header first."""

    def __init__(self):
        super().__init__()
        self.found, self._cell = [], None

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.found.append([])
        elif tag == "tr" and self.found:
            self.found[-1].append([])
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._cell is not None:
            self.found[-1][-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


def shown_in(paper):
    """All tables of a notebook."""
    parser = Tables()
    text = git("show", f"HEAD:notebooks/{notebooks()[paper].name}").decode()
    for cell in nbformat.reads(text, as_version=4).cells:
        for output in cell.get("outputs", []):
            parser.feed(output.get("data", {}).get("text/html", ""))
    return [table for table in parser.found if table]


def files_of(paper, profile="*"):
    """Rows of every table of a paper, its header first, by path."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD", f":(glob)figures/{profile}/{paper}/*.csv"))) as archive:
        for member in archive.getmembers():
            if member.isfile():
                lines = archive.extractfile(member).read().decode().splitlines()
                found[PurePosixPath(member.name)] = list(csv.reader(x for x in lines if not x.startswith("# ")))
    return found


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def same_cell(one, other):
    """A blank is shown as a dash, and numbers in fewer digits."""
    one, other = (" ".join(text.split()) for text in (one, other))
    if one == other or {one, other} == {"", "–"}:
        return True
    a, b = number(one), number(other)
    return a is not None and b is not None and math.isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-12)


def same(one, other):
    return len(one) == len(other) and all(
        len(a) == len(b) and all(map(same_cell, a, b)) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("paper", sorted(notebooks()))
def test_every_table_of_quick_is_shown_as_it_is_committed(paper):
    tables, files = shown_in(paper), files_of(paper, "quick")
    assert len(files) > 15
    missing = [
        path.stem
        for path, rows in files.items()
        if path.stem not in NOT_SHOWN[paper] and not any(same(table, rows) for table in tables)
    ]
    assert missing == []


def columns(rows, names):
    """What stands below these headings."""
    at = [rows[0].index(name) for name in names]
    return [[row[k] for k in at] for row in rows[1:]]


@pytest.mark.parametrize("name", ["table_iii", "table_iv", "table_v", "table_vi"])
def test_every_part_of_pufs_tables_is_shown_as_it_is_committed(name):
    """The files hold all settings one after the other; the notebook shows one table for each."""
    tables = [table for table in shown_in("puf") if "method" in table[0]]
    (rows,) = (rows for path, rows in files_of("puf", "quick").items() if path.stem == name)
    parts = {}
    for row in rows[1:]:
        parts.setdefault(tuple(row[:2]), [rows[0]]).append(row)
    assert rows[0][:2] == ["setting", "paper: setting"]
    assert parts
    missing = [
        part
        for part, its in parts.items()
        if not any(set(t[0]) <= set(rows[0]) and same(t[1:], columns(its, t[0])) for t in tables)
    ]
    assert missing == []


@pytest.mark.parametrize("paper", sorted(notebooks()))
def test_no_table_on_a_page_differs_from_the_file_that_it_has_the_columns_of(paper):
    files = list(files_of(paper).values())
    headers = {tuple(rows[0]) for rows in files if rows}
    strangers = [
        table[0]
        for table in shown_in(paper)
        if tuple(table[0]) in headers and not any(same(table, rows) for rows in files)
    ]
    assert strangers == []


def test_one_changed_number_is_seen():
    paper = "certified_dfl"
    files = files_of(paper, "quick")
    rows = next(rows for path, rows in files.items() if path.stem == "fisher")
    table = next(table for table in shown_in(paper) if same(table, rows))
    numbers = [(i, j) for i, row in enumerate(rows[1:], 1) for j, text in enumerate(row) if number(text)]
    assert len(numbers) > 50
    for i, j in numbers[:: len(numbers) // 10]:
        changed = [list(row) for row in table]
        changed[i][j] = f"{1.01 * number(rows[i][j]):.6g}"
        assert not same(changed, rows)
    assert not same(table[:-1], rows)
    assert not any(same_cell(*pair) for pair in (("–", "0"), ("12", "13"), ("0.1", "0.1001"), ("a", "b")))
    assert all(chain.from_iterable([map(same_cell, row, row) for row in rows]))
