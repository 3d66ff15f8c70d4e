"""Slides of the notebooks: some for each, with what they show, and nothing in them comes from elsewhere."""

import importlib.util
import re
import subprocess

import nbformat
import pytest

from fu_papers.lab.paths import NOTEBOOKS, ROOT

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
BINDER = ROOT / ".binder"


@pytest.fixture(scope="module")
def make_slides():
    spec = importlib.util.spec_from_file_location("make_slides", ROOT / "docs" / "make_slides.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=PATHS, ids=lambda path: path.stem)
def slides(request, make_slides):
    return request.param, make_slides.page(request.param)


def test_every_notebook_has_slides_that_begin_with_its_title_and_show_pictures(slides):
    path, page = slides
    parts = re.findall(r"<section>(.*?)</section>", page, re.DOTALL)
    assert 6 <= len(parts) <= 15
    assert re.search(r"<h1[ >]", parts[0])
    assert not re.search(r"<h1[ >]", "".join(parts[1:]))
    assert page.count("data:image/png;base64,") >= 2, path.stem


def test_every_tagged_cell_is_on_a_slide_and_the_first_of_them_begins_one(slides):
    path, page = slides
    cells = nbformat.read(path, as_version=4).cells
    tagged = [cell for cell in cells if {"slide", "slide-more"} & set(cell.metadata.get("tags", []))]
    assert "slide" in tagged[0].metadata.tags
    begins = sum("slide" in cell.metadata.tags for cell in tagged)
    assert page.count("<section>") == begins
    for cell in tagged:
        assert not {"slide", "slide-more"} <= set(cell.metadata.tags)
        if "slide-code" in cell.metadata.tags:
            assert cell.cell_type == "code"
    pictures = [
        output for cell in tagged for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert page.count('src="data:image/png') == len(pictures)


def test_nothing_is_loaded_from_elsewhere(slides):
    _, page = slides
    loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]* (?:src|href)=\"([^\"]+)\"", page)
    assert loaded
    assert [source[:60] for source in loaded if source.startswith(("http", "//"))] == []


def test_links_lead_to_pages_of_the_book(slides):
    _, page = slides
    for link in re.findall(r'<a href="([^"]+)"', page):
        assert re.match(r"#|\.\./(notebooks|docs|fu_papers)/\w+\.html(#[\w-]+)?$", link), link
        source = link.partition("#")[0].removeprefix("../")
        assert not source or any((ROOT / source).with_suffix(kind).exists() for kind in (".md", ".ipynb")), link


def test_a_link_to_no_page_keeps_its_words_only(make_slides):
    linked = make_slides.linked
    assert linked('<a href="../tests/test_x.py">a test</a>') == "a test"
    assert linked('<a href="00_start_here.ipynb">00</a>') == '<a href="../notebooks/00_start_here.html">00</a>'
    assert linked('<a href="../fu_papers/errata.md#h1">x</a>') == '<a href="../fu_papers/errata.html#h1">x</a>'


# --- without installing anything ---


def test_every_notebook_has_its_links_and_the_address_stands_in_one_place():
    page = (ROOT / "docs" / "online.md").read_text(encoding="utf-8")
    owner = re.search(r"`(\S+/fu_core)` stands for", page)[1]
    for path in PATHS:
        assert f"https://colab.research.google.com/github/{owner}/blob/main/notebooks/{path.name}" in page
        assert f"https://mybinder.org/v2/gh/{owner}/main?urlpath=lab/tree/notebooks/{path.name}" in page
    others = [*(ROOT / "docs").glob("*"), ROOT / "README.md", *PATHS]
    assert [p.name for p in others if p.name != "online.md" and p.is_file() and owner in p.read_text("utf-8")] == []


def test_the_slim_environment_has_the_torch_of_the_lock_without_cuda():
    wanted = (BINDER / "postBuild").read_text(encoding="utf-8")
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for name in ("torch", "torchvision"):
        version = re.search(rf"^{name}==([\d.]+)", locked, re.MULTILINE)[1]
        assert f" {name}=={version}+cpu " in wanted
    assert "nvidia" not in wanted
    assert [path.name for path in sorted(BINDER.iterdir()) if path.stat().st_mode & 0o111] == [
        "postBuild",
        "slim",
        "start",
    ]


def test_what_no_notebook_reads_is_taken_out_of_the_slim_environment_and_nothing_else(tmp_path):
    gone = ["scipy/tests/test_a.py", "torch/test/t.py", "torch/include/a.h", "numpy/__pycache__/core.pyc"]
    gone += ["torch/bin/HashStoreTest", "torch/bin/protoc-3.1", "jupyterlab/galata/index.html"]
    kept = ["scipy/stats.py", "torch/testing/a.py", "torch/bin/torch_shm_manager", "numpy/latest.py", "torch/lib/a.so"]
    for name in (*gone, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    subprocess.run([BINDER / "slim", tmp_path], check=True)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)
    assert (tmp_path / "scipy/stats.py").read_text() == "scipy/stats.py"
    refused = subprocess.run([BINDER / "slim"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "the folder of the packages" in refused.stderr
