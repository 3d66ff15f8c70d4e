"""The book's pages: complete, made of what is committed, and nothing in them comes from elsewhere."""

import csv
import importlib.util
import os
import re
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
import torch

import fu_core
from fu_core.errors import ConfigError
from fu_papers.exercises import exercises
from fu_papers.lab.notebooks import guides, notebooks, plan
from fu_papers.lab.paths import ROOT
from fu_papers.lab.shown import pictures_in, pictures_of
from fu_papers.places import places

PACKAGES = ROOT / "docs" / ".packages"
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([\w-]+))?\)")


def make_book():
    """docs/make_book.py as a module."""
    spec = importlib.util.spec_from_file_location("make_book", ROOT / "docs" / "make_book.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of all pages, laid out as for `make book`."""
    folder = tmp_path_factory.mktemp("book")
    make_book().lay_out(folder)
    return folder


def text(page):
    if page.suffix != ".ipynb":
        return page.read_text(encoding="utf-8")
    return "\n\n".join(c.source for c in nbformat.read(page, as_version=4).cells if c.cell_type == "markdown")


def test_every_notebook_is_a_page_cell_by_cell_with_what_it_shows_and_no_state_of_sliders(pages):
    """Tests of fu_papers.lab.shown say which run it is of; the committed one is compared with its outputs."""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        page = nbformat.read(pages / "notebooks" / path.name, as_version=4)
        committed = nbformat.read(path, as_version=4)
        assert "widgets" not in page.metadata
        assert [cell.id for cell in page.cells] == [cell.id for cell in committed.cells]
        if "committed run" in page.cells[0].source:
            for here, there in zip(page.cells, committed.cells, strict=True):
                assert len(here.get("outputs", [])) == len(there.get("outputs", []))


def test_every_page_of_a_notebook_says_which_run_it_shows_and_shows_that_runs_figures(pages):
    """An executed copy must agree with the figures that were drawn with it; the committed one is compared as committed
    (tests/notebooks/test_as_committed.py), since `make reproduce` may draw anew."""
    for paper, path in (guides() | notebooks()).items():
        page = nbformat.read(pages / "notebooks" / path.name, as_version=4)
        (said,) = re.findall(r"^\*What you see is (?:a run by|the committed run).*\.\*$", page.cells[0].source, re.M)
        if folder := re.search(r"figures of `(figures/\w+/\w+)`", said):
            assert folder[1].endswith(f"/{paper}")
            assert pictures_of(ROOT / folder[1]) <= pictures_in(page), f"{path.name} and {folder[1]} disagree"


def test_a_profile_that_nobody_has_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"PROFILE must be one of .*'laptpo'; did you mean 'laptop'"):
        make_book().lay_out(tmp_path, "laptpo")


def test_an_option_that_there_is_not_makes_no_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="takes a folder, or one of --claims, --places, --speed, got --help"):
        make_book().main("--help")
    assert not list(tmp_path.iterdir())


def test_a_copy_that_disagrees_with_the_figures_is_on_no_page(tmp_path, monkeypatch):
    """One pixel of one figure: `shown` refuses, and the page falls back to the committed run."""
    paper, path = "hf_kcu", notebooks()["hf_kcu"]
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["papermill"] = {"exception": None, "parameters": {"profile": "quick"}}
    executed = plan(paper, "quick", {}).executed
    executed.parent.mkdir(parents=True)
    nbformat.write(notebook, executed)
    folder = tmp_path / "figures" / "quick" / paper
    folder.mkdir(parents=True)
    figure = folder / "any.png"
    figure.write_bytes(next(iter(pictures_in(notebook))))

    def first_cell():
        make_book().lay_out(tmp_path / "pages")
        return nbformat.read(tmp_path / "pages" / "notebooks" / path.name, as_version=4).cells[0].source

    assert "a run by `make reproduce` at the size `quick`" in first_cell()
    figure.write_bytes(figure.read_bytes()[:-1] + b"?")
    assert "the committed run at the size `quick`" in first_cell()


def test_every_page_is_in_the_table_of_contents(pages):
    index = (pages / "index.md").read_text(encoding="utf-8")
    names = [
        str(path.relative_to(pages).with_suffix("").as_posix())
        for path in pages.rglob("*.*")
        if path.suffix in (".md", ".ipynb")
    ]
    assert [name for name in names if name != "index" and not re.search(rf"^{name}$", index, re.MULTILINE)] == []


def test_links_between_pages_lead_to_pages_and_to_anchors(pages):
    """What is no page may be a file of the repository, which the notebooks name beside."""
    seen = 0
    for page in (*pages.rglob("*.md"), *pages.rglob("*.ipynb")):
        for file, anchor in LINK.findall(text(page)):
            if "://" in file:
                continue
            seen += 1
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), (page.name, file)
            assert not anchor or f"({anchor})=" in text(target), (page.name, file, anchor)
    assert seen > 500


def test_every_claim_has_its_anchor_and_its_rule(pages):
    """And the committed page, which notebooks and README link to, is made of claims.csv as it stands."""
    committed = (ROOT / "fu_papers" / "claims.md").read_text(encoding="utf-8")
    assert committed == make_book().claims_page(), "python docs/make_book.py --claims"
    page = (pages / "fu_papers" / "claims.md").read_text(encoding="utf-8")
    without_links = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    with (ROOT / "fu_papers" / "claims.csv").open(encoding="utf-8", newline="") as file:
        claims = list(csv.DictReader(file))
    assert len(claims) == 55
    for claim in claims:
        assert f"(claim-{claim['id'].lower()})=" in page
        assert claim["holds_if"] in without_links
    assert "- Holds if: as [P1](#claim-p1), of PUF-Regular" in page


def test_every_place_has_its_anchor_and_leads_to_the_notebook_that_marks_it(pages):
    """And the committed page is made of places.csv and of the notebooks as they stand."""
    committed = (ROOT / "fu_papers" / "places.md").read_text(encoding="utf-8")
    assert committed == make_book().places_page(), "python docs/make_book.py --places"
    page = (pages / "fu_papers" / "places.md").read_text(encoding="utf-8")
    for place in places().values():
        assert f"({place.on_the_page})=" in page
    marked = [mark for path in notebooks().values() for mark in re.findall(r'<a id=\\"([\w-]+)\\">', path.read_text())]
    assert len(marked) > 80
    assert [mark for mark in marked if f"#{mark})" not in page and "-ours-" not in mark] == []
    assert "(../reference/unlearning.md#fu-core-unlearning-puf-pseudo-gradient)" in page


def test_names_of_claims_and_errata_are_links_on_their_own_pages_too(pages):
    """But where an item says its own: `**H1.` and `**Claim H1.`."""
    for name in ("errata", "claims"):
        page = (pages / "fu_papers" / f"{name}.md").read_text(encoding="utf-8")
        others = re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`|^\*\*(Claim )?[HPFD]\d+\.", "", page, flags=re.MULTILINE)
        assert re.findall(r"(?<![\w/#-])[HPFD]\d{1,2}\b", others) == []


def test_equations_in_errata_lead_to_their_code(pages):
    page = (pages / "fu_papers" / "errata.md").read_text(encoding="utf-8")
    section = page.partition("## 1. HF-KCU")[2].partition("## 2.")[0]
    assert "[Eq. (3)](../fu_papers/places.md#place-hf-kcu-eq-3)" in section
    assert not re.search(r"(?<!\[)Eq\. \(3\)", section)
    assert "[3](../fu_papers/places.md#place-hf-kcu-eq-3)" in page.partition("## 1.")[0]  # a line of the list


def test_every_exercise_is_there_with_its_solution_folded(pages):
    page = (pages / "exercises.md").read_text(encoding="utf-8")
    for each in exercises().values():
        assert f"### {each.id} " in page
        before, _, after = page.partition(each.solved)
        assert after, each.id
        assert before.endswith("<details><summary>Solution</summary>\n\n")
        assert after.lstrip().startswith("</details>")
        assert not each.then or f"```python\n{each.further[1]}\n```" in after  # what a right answer is good for


def test_the_reference_names_what_people_call(pages):
    page = "\n".join(path.read_text(encoding="utf-8") for path in (pages / "reference").glob("*.md"))
    for name in ("def unlearn(", "def register(", "class Federation:", "def fedavg(", "def load(", "class FlatModel:"):
        assert name in page
    for name in ("class Request:", "class Deletion:", "def dirichlet(", "class InvalidRequest(", "def stream("):
        assert name in page
    assert "class UnlearningStrategy(" in page
    assert not re.search(r"^### _", page, re.MULTILINE)


def test_every_module_of_the_library_is_in_the_reference_and_every_name_of_its_top_level_leads_there(pages):
    """But what imports itself late, and the version."""
    reference = {path.stem: path.read_text(encoding="utf-8") for path in (pages / "reference").glob("*.md")}
    described = set(re.findall(r"^## (fu_core[\w.]*)$", "\n".join(reference.values()), re.MULTILINE))
    files = [path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "fu_core").rglob("*.py")]
    modules = {".".join(parts).removesuffix(".__init__") for parts in files}
    assert modules - described == {"fu_core", "fu_core.lazy", "fu_core.version"}
    lines = re.findall(r"^\| \[`(\w+)`\]\([^)]+\) \| (\S.*) \|$", reference["fu_core"], re.MULTILINE)
    assert {name for name, _ in lines} == set(fu_core.__all__) - {"__version__"}


def test_the_picture_of_conjugate_gradients_is_what_they_do(pages):
    spec = importlib.util.spec_from_file_location("draw_cg", ROOT / "docs" / "draw_cg.py")
    draw_cg = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw_cg)
    assert (ROOT / "docs" / "cg.svg").read_text(encoding="utf-8") == draw_cg.picture(), "python docs/draw_cg.py"
    assert (pages / "docs" / "cg.svg").exists()
    start, once, twice = draw_cg.conjugate()
    assert not start.any()
    assert torch.allclose(draw_cg.H @ twice, draw_cg.G)
    assert abs(once @ draw_cg.H @ (twice - once)) < 1e-12
    left = [float((twice - v).norm()) for v in draw_cg.downhill()]
    assert left == sorted(left, reverse=True)
    assert left[-1] > 0.1  # it goes to and fro, and has not arrived


def test_the_tables_of_benchmarks_are_made_of_their_files():
    """And what the text beside them says holds of the numbers."""
    committed = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert committed == make_book().speed_page(), "python docs/make_book.py --speed"
    assert all(f"| {title} |" in committed for title in ("damping λ", "saved, a client (%)"))
    solved = pd.read_csv(ROOT / "benchmarks" / "preconditioners.csv", comment="#", keep_default_na=False)
    passes = solved.set_index(["preconditioner", "damping"])[["passes to 0.1", "passes to 0.01"]]
    shares = {name: passes.loc[name] / passes.loc["none"] for name in ("jacobi", "kfac")}
    assert (shares["kfac"].loc[0.1] > 1).all()  # a preconditioner costs more than it saves
    assert (shares["jacobi"].loc[0.1] > 1).all()
    assert (shares["kfac"].loc[0.001] < shares["kfac"].loc[0.01]).all()  # the more the smaller it is
    assert (shares["kfac"].loc[0.01] < 1).all()
    assert shares["jacobi"].loc[0.001, "passes to 0.01"] > 1
    timed = pd.read_csv(ROOT / "benchmarks" / "certified.csv", comment="#", na_values="–")
    saved = timed.set_index(["method", "data set, net"])[[name for name in timed if name.startswith("saved")]]
    printed, corrected = saved.loc["DU, as printed"], saved.loc["DU, corrected"]
    of_paper = timed["paper: saved %"].dropna().unique()
    assert (printed >= of_paper.max()).all(axis=None)
    is_linear = corrected.index == "MNIST, softmax regression"
    assert (corrected[is_linear] >= of_paper.max()).all(axis=None)
    for net, low in (("Fashion-MNIST, LeNet", 96.9), ("CIFAR-10, tiny CNN", 95.7)):
        taken = timed[timed["data set, net"] == net].set_index("method")[
            [name for name in timed if name.endswith(", s")]
        ]
        share = 100 * (1 - taken.loc["DU, corrected"] / taken.loc["Retrain"])
        assert share.between(low, of_paper.max(), inclusive="left").all()
    assert (saved.loc["do nothing, 1 round more"] >= printed).all(axis=None)
    assert (printed[~is_linear] > corrected[~is_linear]).all(axis=None)  # no gradient of all samples, no products
    assert (abs(printed[is_linear] - corrected[is_linear]) < 1).all(axis=None)


@pytest.mark.slow
@pytest.mark.skipif(not (PACKAGES / ".ready").exists(), reason="`make book` has not been called here")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(pages, tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(ROOT / "docs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, str(pages), str(tmp_path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    sites = list(tmp_path.rglob("*.html"))
    assert len(sites) > 15
    for page in sites:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"([^\"]+)\"", html)
        loaded += re.findall(r"<link[^>]* rel=\"(?:stylesheet|preload|icon)\"[^>]* href=\"([^\"]+)\"", html)
        assert [source for source in loaded if source.startswith(("http", "//"))] == [], page.name
    assert dead_links(sites) == {}


def dead_links(sites):
    """By page, the links within the site that lead to no page, or to nothing in it; those of outputs, too."""
    ids = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8"))) for page in sites}
    dead = {}
    for page in sites:
        for link in re.findall(r'<a\b[^>]*\bhref="([^"]+)"', page.read_text(encoding="utf-8")):
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            no_page = "://" in link or file.startswith("slides/") or "/slides/" in file  # those of make_slides.py
            if not no_page and (not target.exists() or (anchor and anchor not in ids.get(target, ()))):
                dead.setdefault(page.name, []).append(link)
    return dead
