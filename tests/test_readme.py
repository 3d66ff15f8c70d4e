"""The README and the pages it leads to say what the repository holds."""

import os
import re
import subprocess
import sys

import pandas as pd
import pytest
import yaml

from fu_papers.lab.committed import CLOCK, RECORDS
from fu_papers.lab.paths import NOTEBOOKS, ROOT
from fu_papers.lab.store import CommittedStore
from fu_papers.parameters import SIZES
from fu_papers.verdicts import largest_verdicts, tally_markdown
from tests.readme import README, library_example

PROFILES = [folder for folder in (ROOT / "figures" / name for name in SIZES) if folder.exists()]


def test_the_tally_is_that_of_the_claims_files():
    """On failure, paste the expected text between the two comments.

    Without `quick`: `make reproduce` may change its verdicts on another processor, and this test must still pass.
    """
    shown = re.search(r"<!-- tally:[^>]*-->\n(.*?)\n<!-- /tally -->", README, re.DOTALL)
    assert shown, "the README has no tally between its two comments"
    assert shown[1].strip() == tally_markdown(folder for folder in PROFILES if folder.name != "quick")


def test_the_speed_table_is_that_of_the_benchmark():
    """Per framework and precision: its best setting on one core, in brackets on two."""
    measured = pd.read_csv(ROOT / "benchmarks" / "rounds.csv", comment="#")
    speed = (ROOT / "docs" / "speed.md").read_text("utf-8")

    def cell(workload, framework, precision="float32"):
        of = (measured.workload == workload) & (measured.framework == framework) & (measured.precision == precision)
        one, two = (measured.loc[of & (measured.cores == n), "seconds per round"].min() for n in (1, 2))
        bold = "**" if (framework, precision) == ("fu_core", "float32") else ""
        return " ".join(
            shown for shown, there in ((f"{bold}{one:.3g}{bold}", one), (f"({two:.3g})", two)) if pd.notna(there)
        )

    for workload in measured.workload.unique():
        [row] = re.findall(rf"^\| {workload}:[^|]*\|(.*)\|$", speed, re.MULTILINE)
        columns = [("fu_core",), ("plain",), ("flower",), ("pfl",), ("fu_core", "bf16"), ("plain", "bf16")]
        assert [text.strip() for text in row.split("|")] == [cell(workload, *column) for column in columns]


def test_every_file_and_folder_it_links_to_exists():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")) if "://" not in link]
        assert [link for link in links if not _leads_somewhere(page, link)] == [], page.name


def test_names_of_claims_and_numbers_of_papers_are_links():
    """No H12 and no Theorem 1 without one, in the README and the documents beside it."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        plain = re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`", "", page.read_text("utf-8"))
        numbers = r"\b(?:Eqs?|Figs?|Tables?|Algorithm|Theorems?|Lemmas?)\.? \(?(?:\d+|[IVX]+\b)"
        assert re.findall(rf"(?<![\w/#-])[PHFD]\d{{1,2}}\b|{numbers}", plain) == [], page.name


def _leads_somewhere(page, link):
    """Is there such a file or folder, and in it, after a #, such a heading or anchor?"""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not anchor or not target.exists():
        return target.exists()
    text = target.read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    as_anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    return f'<a id="{anchor}"></a>' in text or anchor in as_anchors


def test_it_is_read_in_five_minutes():
    assert len(README.split()) <= 900


def test_it_counts_the_undetermined_claims():
    """As printed, of each paper's largest profile: those of the tally above, which a test keeps in step."""
    rows = [[cell.strip() for cell in line.split("|")] for line in README.splitlines()]
    column = next(row for row in rows if "form" in row).index("undetermined")
    counted = [[int(cell) for cell in row[4:9]] for row in rows if "as printed" in row]
    [(open_, all_)] = re.findall(r"(\d+) of (\d+) are undetermined", README)
    assert (int(open_), int(all_)) == (sum(row[column - 4] for row in counted), sum(map(sum, counted)))


def test_its_five_findings_are_one_line_each_with_a_link():
    findings = re.search(r"## Five findings\n\n((?:- .*\n)+)", README)
    assert findings
    lines = findings[1].splitlines()
    assert len(lines) == 5
    for line in lines:
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.removeprefix("- ")).replace("*", "")
        assert len(shown) <= 120, shown
        assert "](" in line


def test_every_word_of_the_glossary_can_be_linked_to():
    """In the order of the alphabet, so that they are found without links, too."""
    entries = re.findall(r"^- (.*)$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    found = [re.match(r'<a id="([a-z-]+)"></a>\*\*(.+?)\*\*', entry) for entry in entries]
    assert all(found)
    assert len(found) >= 30
    words = [match[2].lower() for match in found if match]
    assert words == sorted(words)


def test_findings_name_all_undetermined_claims_with_refuted_parts():
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    named = re.search(r"may have refuted parts: (.*) as printed, (.*) in their corrected forms", text)
    assert named
    found = largest_verdicts(folder for folder in PROFILES if folder.name != "quick")
    for ids, form, head in zip(named.groups(), ("verdict", "corrected"), ("as printed: ", "corrected: "), strict=True):
        refuted = [
            id
            for id, (result, *_) in found.items()
            if getattr(result, form) == "undetermined" and re.search("do(es)? not hold", _of_form(result.reason, head))
        ]
        assert len(refuted) >= 2
        assert sorted(re.findall(r"\[claim ([A-Z]+\d+)\]", ids)) == sorted(refuted)


def _of_form(reason: str, head: str) -> str:
    """What a claim's reason says of one form: of both, where it does not tell them apart."""
    pieces = re.split("(as printed: |corrected: )", reason)
    told = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return told.get(head, "") if told else reason


def test_every_notebook_is_in_its_table():
    assert [path.name for path in NOTEBOOKS.glob("*.ipynb") if f"(notebooks/{path.name})" not in README] == []


def test_its_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


def test_its_library_example_runs(capsys):
    """The code block under "As a library", as printed there, with fewer rounds."""
    exec(compile(library_example().replace("rounds=20", "rounds=2"), "README.md", "exec"), {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(k) for k, _ in rows] == list(range(6))
    assert all(0 <= float(accuracy) <= 100 for _, accuracy in rows)


@pytest.mark.slow
def test_its_library_example_passes_a_users_type_checker(tmp_path):
    """Clients as a list, too. mypy keeps what it has found out about torch: files that change are looked at again."""
    (tmp_path / "example.py").write_text(library_example(), encoding="utf-8")
    kept = ROOT / ".mypy_cache" / "of_users"
    settings = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", "--cache-dir", str(kept)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    command = [sys.executable, "-m", "mypy", "--config-file", "", *settings, str(tmp_path / "example.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_citation_file_names_the_four_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert [reference["notes"] for reference in citation["references"]] == ["PUF", "HF-KCU", "FedORA", "Certified DFL"]


@pytest.mark.parametrize("profile", [folder.name for folder in PROFILES])
def test_committed_figures_have_their_records(profile):
    for paper in (folder for folder in (ROOT / "figures" / profile).iterdir() if folder.is_dir()):
        begun = {path.name for path in paper.iterdir()} == {RECORDS, CLOCK}  # to be gone on with, and drawn then
        assert not begun or profile == "workstation"
        assert begun or list(paper.glob("*.png"))
        assert begun or list(paper.glob("*.csv"))
        records = list(CommittedStore(paper).everything())
        assert records
        assert [record.key for record in records if not record.provenance] == []  # each has its line in clock.jsonl
        assert [record.key for record in records] == sorted(record.key for record in records)
