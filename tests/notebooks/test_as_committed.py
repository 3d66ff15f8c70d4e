"""Every notebook as committed: complete, tidy, and with the output of a run from top to bottom."""

import ast
import base64
import hashlib
import inspect
import itertools
import re

import nbformat
import pytest

from fu_papers import look as report
from fu_papers.exercises.__main__ import TAG as EXERCISE
from fu_papers.lab.notebooks import OTHERS, declared, notebooks, schema_of
from fu_papers.lab.paths import ROOT
from fu_papers.links import HTML_LINK
from fu_papers.places import linked, marks
from tests.notebook_lab import ABSOLUTE_PATH, code, git, outputs, unlinked

TITLES = {"puf": "# PUF: ", "hf_kcu": "# HF-KCU: ", "certified_dfl": "# Certified DFL: ", "fedora": "# FedORA: "}
TITLES["arena"] = "# The arena: "
# how every notebook ends
HOUSE = ("Try it", "Claims", "Closing checks", "In five sentences", "Exercises", "Where things are")
WITH_MARGINS = ("puf", "hf_kcu", "fedora", "certified_dfl")
SECTIONS = {
    "puf": ("Parameters", "Setting", "Training", "request", "PUF", "Recovery", "Table III", "Two readings", *HOUSE),
    "hf_kcu": (
        "Parameters",
        "Setting",
        "equation, and its sign",
        "Conjugate gradients",
        "anything to forget",
        "Table 1, Fig. 1",
        "Table 2",
        "Table 3",
        "Tables 4, 5",
        "Tables 6, 7, 8",
        "Table 9",
        "Theory",
        *HOUSE,
    ),
    "certified_dfl": (
        "Parameters",
        "Setting",
        "Lemma 1",
        "correction, printed and corrected",
        "Lemmas 2 and 3",
        "Tables I to IV",
        "Fig. 1",
        "Fig. 2",
        "certificate, and an audit",
        "Theorem 2",
        *HOUSE,
    ),
    "fedora": (
        "Parameters",
        "Setting",
        "how sure we are",
        "saddle point",
        "Theorem 1",
        "Tables IV and V",
        "Figures 6 and 7",
        "Tables VI to IX",
        *HOUSE,
    ),
    "arena": (
        "Parameters",
        "Setting",
        "What is judged",
        "judges",
        "Who takes part",
        "controls",
        "map",
        "ranking",
        "Request by request",
        "agree",
        "binned",
        "paragraph",
        "Try it",
        "federation of your own",
        *HOUSE[2:],  # there is no paper, and so no claim
    ),
}


@pytest.fixture(scope="module", params=sorted(notebooks()))
def paper(request):
    return request.param


@pytest.fixture(scope="module")
def notebook(paper):
    return nbformat.read(notebooks()[paper], as_version=4)


def calls(cells, *names):
    """All calls of these functions in code cells, whether written `f(...)` or `module.f(...)`."""
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    found = [node for node in nodes if isinstance(node, ast.Call)]
    return [node for node in found if ast.unparse(node.func).rpartition(".")[2] in names]


def test_it_is_a_valid_notebook(notebook):
    nbformat.validate(notebook)


def test_it_has_one_parameters_cell_of_typed_and_commented_literals(paper, notebook):
    (cell,) = code(notebook, "parameters")
    names = declared(notebooks()[paper])  # refuses anything but typed literals
    lines = cell.source.splitlines()
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert re.fullmatch(rf"{name}: .+ = .+  # .+", line)


def test_the_experiment_gets_every_parameter_of_the_cell_under_its_own_name(paper, notebook):
    """Two swapped numbers would pass every check of range and type."""
    (call,) = (call for call in calls(code(notebook), "of") if ast.unparse(call.func) == "Experiment.of")
    assert list(map(ast.unparse, call.args)) == ["profile"]
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert given.pop(None) == OTHERS
    assert given == {name: name for name in given}
    names = declared(notebooks()[paper])
    assert set(names) == {"profile", OTHERS, "interactive", *given}
    assert set(given) <= set(schema_of(paper).model_fields)
    assert len(given) <= 15  # what a reader changes; the others have no line


def test_one_cell_is_checked_by_nbval_and_its_output_is_kept(notebook):
    (cell,) = code(notebook, "nbval-check-output")
    assert "keep_output" in cell.metadata.tags
    assert cell.outputs
    assert cell is [cell for cell in code(notebook) if EXERCISE not in cell.metadata.get("tags", [])][-1]


def test_what_closing_checks_print_was_not_overwritten_on_the_way(notebook):
    """In notebook 03 the result "by hand" was, by a caption's part of the same name, and nobody saw it."""
    cells = [ast.parse(cell.source).body for cell in code(notebook)]
    *_, closing = code(notebook, "nbval-check-output")
    printed = {node.id for node in ast.walk(ast.parse(closing.source)) if isinstance(node, ast.Name)}
    bound = [
        target.id
        for statement in itertools.chain(*cells)
        if isinstance(statement, ast.Assign)  # what is added to by |= has been there
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in printed
    ]
    assert sorted(bound) == sorted({*bound})


def test_no_code_cell_is_long(notebook):
    """The list of parameters, one a line, is as long as there are parameters."""
    (parameters,) = code(notebook, "parameters")
    cells = [cell for cell in code(notebook) if cell is not parameters]
    assert max(sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in cells) <= 25


def test_prose_comes_before_code(notebook):
    """8 of 10 code cells follow a markdown cell."""
    before = [a.cell_type for a, b in zip(notebook.cells, notebook.cells[1:], strict=False) if b.cell_type == "code"]
    assert before.count("markdown") >= 0.8 * len(before)


def test_the_sections_of_the_house_come_in_order_and_are_numbered(paper, notebook):
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert prose.startswith(TITLES[paper])
    headings = re.findall(r"^## (\d+)\. (.+)$", prose, flags=re.MULTILINE)
    assert [int(number) for number, _ in headings] == list(range(1, len(headings) + 1))
    titles = iter(title for _, title in headings)
    for section in SECTIONS[paper]:
        assert any(section in title for title in titles), f"no section {section!r} where it belongs"


def test_every_figure_and_table_names_its_data(notebook):
    names = ("save_figure", "show_figure", "keep_figure", "save_table", "show_table", "keep_table")
    shown = calls(code(notebook), *names)
    assert len(shown) >= 10
    for call in shown:
        function = getattr(report, ast.unparse(call.func).rpartition(".")[2])
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        source = inspect.signature(function).bind(*call.args, **keywords).arguments["source"]
        assert not isinstance(source, ast.Constant) or source.value.strip()
    assert not calls(code(notebook), "savefig", "to_csv", "show")  # no way around it


def test_it_is_committed_stripped_or_run_from_top_to_bottom(notebook):
    counts = [cell.execution_count for cell in code(notebook)]
    if any(counts):
        assert counts == list(range(1, len(counts) + 1))
    else:
        kept = code(notebook, "keep_output")
        assert not [cell for cell in code(notebook) if cell.outputs and cell not in kept]


def test_it_was_committed_without_errors_and_warnings(notebook):
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"]


def test_no_long_table_stands_unfolded(notebook):
    for output in outputs(notebook):
        shown = re.sub(r"<details>.*?</details>", "", output.get("data", {}).get("text/html", ""), flags=re.DOTALL)
        assert shown.count("<tr>") <= 1 + report.ROWS


def test_every_claim_and_erratum_that_the_prose_names_is_a_link(notebook):
    """And says which of the two it is: D9 is both."""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for text, anchor in re.findall(r"\[([^\]]*)\]\(\.\./fu_papers/(?:errata|claims)\.md#([\w-]+)\)", cell.source):
            kind = "claim" if anchor.startswith("claim-") else "erratum"
            assert text == f"{kind} {anchor.removeprefix('claim-').upper()}"
        assert unlinked(cell.source, "") == [], cell.id


def test_every_number_of_the_paper_that_the_prose_names_is_a_link(paper, notebook):
    """On failure: `python -m fu_papers.places`; what is not in fu_papers/places.csv belongs there."""
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    here = {mark for cell in prose for mark in marks(cell.source)}
    page = (ROOT / "fu_papers" / "places.md").read_text(encoding="utf-8")
    for cell in prose:
        for text, target in re.findall(r"\[([^\]]*)\]\((?:\.\./fu_papers/places\.md)?#([\w-]+)\)", cell.source):
            assert target in here or f'<a id="{target}"></a>' in page, (cell.id, target)
            number = re.findall(r"\d+|[IVX]+\b", text)[-1:]
            assert "-ours-" in target or target.endswith(f"-{number[0].lower()}"), (cell.id, text, target)
        assert unlinked(cell.source, paper) == [], cell.id


def test_the_claims_in_its_tables_are_links(paper, notebook):
    """A column of names such as H12 leads to the page of claims."""
    tables = [output.get("data", {}).get("text/html", "") for output in outputs(notebook)]
    cells = [cell for table in tables for cell in re.findall(r"<td[^>]*>(.*?)</td>", table, re.DOTALL)]
    assert [cell for cell in cells if re.fullmatch(r"[PHFD]\d{1,2}", cell)] == []
    page = (ROOT / "fu_papers" / "claims.md").read_text(encoding="utf-8")
    named = [anchor for cell in cells for anchor in re.findall(r'^<a href="\.\./fu_papers/claims\.md#([\w-]+)"', cell)]
    assert len(named) >= 10 or paper == "arena"
    assert [anchor for anchor in named if f'<a id="{anchor}"></a>' not in page] == []


def test_the_papers_numbers_in_its_tables_and_answers_are_links(paper, notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = re.sub(r"<style.*?</style>", "", output.get("data", {}).get("text/html", ""), flags=re.DOTALL)
            assert linked(shown, paper, form=HTML_LINK) == shown, cell.id


def test_no_path_of_any_machine_is_in_it(notebook):
    texts = [cell.source for cell in notebook.cells]
    for output in outputs(notebook):
        texts += [output.get("text", "")]
        texts += [str(value) for kind, value in output.get("data", {}).items() if kind != "image/png"]
    assert [text for text in texts if ABSOLUTE_PATH.search(text)] == []


def test_what_stands_in_its_margins_is_true(paper, notebook):
    """The few lines of code in the cells that unfold: each is a check of what the prose beside it says."""
    margins = [cell.source for cell in notebook.cells if cell.id.startswith("margin-")]
    assert margins or paper not in WITH_MARGINS
    for source in margins:
        assert source.startswith("<details><summary>")
        (block,) = re.findall(r"```python\n(.*?)```", source, re.DOTALL)
        assert "assert " in block
        exec(compile(block, "margin", "exec"), {})


@pytest.mark.parametrize("paper", SECTIONS)
def test_every_committed_figure_of_quick_is_the_one_in_its_notebook(paper):
    """Both as committed: `make reproduce` draws figures anew, and those with seconds in them differ.

    Whoever draws them again runs the notebook again (`make notebooks`): readers see the one beside the other.
    """
    committed = dict(
        line.removeprefix("100644 blob ").split("\t")
        for line in git("ls-tree", "HEAD", f"figures/quick/{paper}/").decode().splitlines()
        if line.endswith(".png")
    )
    page = nbformat.reads(git("show", f"HEAD:notebooks/{notebooks()[paper].name}").decode(), as_version=4)
    shown = {
        o["data"]["image/png"]
        for cell in page.cells
        for o in cell.get("outputs", [])
        if "image/png" in o.get("data", {})
    }
    blobs = [base64.b64decode(picture) for picture in shown]
    names = {hashlib.sha1(b"blob %d\0" % len(blob) + blob).hexdigest() for blob in blobs}  # as git names a file
    assert len(committed) >= 5
    assert [path for name, path in committed.items() if name not in names] == []
