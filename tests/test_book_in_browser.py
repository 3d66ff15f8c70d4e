"""The book as a reader has it: every page in Chromium, driven over its own debugging protocol.

Needs Chromium and what `make book` installs; skipped where either is missing, unless FU_BROWSER is set.
"""

import functools
import http.server
import subprocess
import threading
import time
import urllib.request

import nbformat
import pytest

from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.lab.paths import ROOT
from tests.browser import CHROMIUM, REQUIRED, browser

PACKAGES = ROOT / "docs" / ".packages" / ".ready"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM and not REQUIRED, reason="Chromium is not installed"),
    pytest.mark.skipif(not PACKAGES.exists() and not REQUIRED, reason="`make book` has not been called here"),
]


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the book, built and served."""
    subprocess.run(["make", "book"], cwd=ROOT, check=True, capture_output=True)
    folder = ROOT / "build" / "book" / "site"
    handler = functools.partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def test_every_page_opens_without_a_complaint_and_asks_nobody_else(site, tab):
    address, folder = site
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    pages = [page for page in found if not page.startswith("_static/")]  # parts that the theme puts together
    assert len(pages) > 15
    told = {}
    for page in pages:
        tab.open(f"{address}/{page}")
        assert tab.value("document.querySelector('h1') !== null || location.pathname.includes('genindex')"), page
        if tab.errors:
            told[page] = list(tab.errors)
    assert told == {}


def test_the_listener_hears_a_script_that_fails_and_a_file_that_is_missing(site, tab):
    address, _ = site
    tab.open(f"{address}/no_such_page.html")
    assert any("404" in error for error in tab.errors)
    tab.open(f"{address}/index.html")
    tab.value("setTimeout(() => { throw new Error('planted') }, 0)")
    tab.wait_for("1")
    time.sleep(0.3)
    tab.value("1")
    assert any("Uncaught" in error for error in tab.errors)


def test_links_lead_to_pages(site, tab):
    address, _ = site
    tab.open(f"{address}/index.html")
    links = tab.value("[...document.querySelectorAll('a.internal, article a')].map(a => a.href).filter(h => h)")
    inside = {link.partition("#")[0] for link in links if link.startswith(address)}
    assert len(inside) > 15
    for link in sorted(inside):
        with urllib.request.urlopen(link) as answer:
            assert answer.status == 200


def test_search_finds_the_sign(site, tab):
    address, _ = site
    tab.open(f"{address}/search.html?q=sign")
    found = tab.wait_for("[...document.querySelectorAll('#search-results li a')].map(a => a.textContent)")
    assert any("HF-KCU" in title for title in found)


def test_a_folded_solution_opens(site, tab):
    address, _ = site
    tab.open(f"{address}/exercises.html")
    solution = "[...document.querySelectorAll('details')].find(d => d.innerText.startsWith('Solution'))"
    assert tab.value(f"{solution}.open") is False
    tab.value(f"{solution}.querySelector('summary').click()")
    assert tab.wait_for(f"{solution}.open && {solution}.querySelector('pre').offsetHeight > 0")


def test_formulas_are_typeset(site, tab):
    """MathJax lies beside the pages."""
    address, _ = site
    tab.open(f"{address}/exercises.html")
    assert tab.wait_for("document.querySelectorAll('mjx-container').length > 5")


def test_dark_mode_is_dark(site, tab):
    address, _ = site
    tab.open(f"{address}/index.html")
    tab.value("document.documentElement.dataset.theme = 'dark'")
    red = tab.wait_for("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) + 1") - 1
    assert red < 60


def test_parameters_and_imports_are_folded_and_open(site, tab):
    """What notebooks mark as `hide-input`; its output stands, and all other code."""
    address, _ = site
    for path in (guides() | notebooks()).values():
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        hidden = ["hide-input" in cell.metadata.get("tags", []) for cell in cells]
        tab.open(f"{address}/notebooks/{path.stem}.html")
        folds = "[...document.querySelectorAll('.cell')].map(c => c.querySelector('details.hide.above-input') !== null)"
        assert tab.value(folds) == hidden, path.name
        assert sum(hidden) >= 2
        first = "document.querySelector('.cell details')"
        assert tab.value(f"{first}.querySelector('pre').checkVisibility()") is False
        tab.value(f"{first}.querySelector('summary').click()")
        assert tab.wait_for(f"{first}.querySelector('pre').checkVisibility()")


def test_no_page_and_no_slide_is_wider_than_a_telephone(site, tab):
    """Long names break; tables, formulas and code scroll by themselves."""
    address, folder = site
    tab.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    wide = {}
    for path in folder.rglob("*.html"):
        page = path.relative_to(folder).as_posix()
        if not page.startswith("_static/"):
            tab.open(f"{address}/{page}")
            wide[page] = tab.value("document.documentElement.scrollWidth")
    tab.call("Emulation.clearDeviceMetricsOverride")
    assert len(wide) > 25
    assert {page: width for page, width in wide.items() if width > 391} == {}
