"""JupyterLab as a reader has it: notebook 00 runs to its end, and a slider of every notebook moves its picture.

Needs Chromium and JupyterLab; skipped where either is missing, unless FU_BROWSER is set.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.lab.paths import NOTEBOOKS, ROOT
from tests.browser import CHROMIUM, REQUIRED, browser

PATIENCE = 600  # seconds for a notebook, on a machine that is busy
SLIDERS = [  # notebooks, and their cells that have one
    ("start_here", "start-widget"),
    ("start_here", "start-widget-promise"),
    ("puf", "widget-push"),
    ("hf_kcu", "widget-step"),
    ("fedora", "widget-dual"),
    ("certified_dfl", "widget-hops"),
    ("certified_dfl", "widget-attacker"),
    ("certified_dfl", "widget-noise"),
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM and not REQUIRED, reason="Chromium is not installed"),
    pytest.mark.skipif(
        not importlib.util.find_spec("jupyterlab") and not REQUIRED, reason="JupyterLab is not installed"
    ),
]
NOTEBOOK = "jupyterapp.shell.currentWidget"
CELLS = f"[...{NOTEBOOK}.content.model.cells]"
PICTURE = "document.querySelector('.widget-interact img')"
HANDLE = "document.querySelector('.widget-interact .noUi-handle')"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab as `make lab` starts it, over a copy of the notebooks and of the pages that they
    link to, with working state of its own."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, folder / "notebooks")
    (folder / "fu_papers").mkdir()
    runs = Path("figures", "quick", "arena", "runs.csv")  # which the arena's questions are answered from
    (folder / runs).parent.mkdir(parents=True)
    shutil.copy(ROOT / runs, folder / runs)
    for page in (ROOT / "fu_papers").glob("*.md"):
        shutil.copy(page, folder / "fu_papers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [f"--port={port}", "--no-browser", "--allow-root", "--IdentityProvider.token=", "--ip=127.0.0.1"]
    settings += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    ours = {"FU_RUNS": folder / "runs", "FU_FIGURES": folder / "figures", "OMP_NUM_THREADS": 1}
    ours |= {"JUPYTER_CONFIG_DIR": folder / "config", "JUPYTER_DATA_DIR": folder / "data"}
    ours |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment = os.environ | {name: str(value) for name, value in ours.items()}
    log = (folder / "log").open("w")
    server = subprocess.Popen([sys.executable, "-m", "jupyterlab", *settings], env=environment, stdout=log, stderr=log)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    try:
        while not answers(f"{address}/api"):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, "JupyterLab has not started"
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def answers(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile"), PATIENCE) as tab:
        yield tab


def opened(tab, lab, name):
    """Open a notebook by its file's name, wait for its kernel, and give it the focus, as a click would."""
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    tab.open(f"{lab}/doc/tree/notebooks/{name}?reset")
    document = "[...(window.jupyterapp?.shell.widgets('main') ?? [])][0]"
    tab.wait_for(f"{document}?.sessionContext?.session?.kernel?.status === 'idle'", PATIENCE)
    tab.value(f"(() => {{ {document}.content.activate(); {document}.content.node.focus(); }})()")
    tab.wait_for(f"{NOTEBOOK} != null", PATIENCE)


def run_cell(tab, place):
    """Run the cell at a place, to its end."""
    run(tab, "run-cell", f"const book = {NOTEBOOK}.content; book.deselectAll(); book.activeCellIndex = {place};")


def run(tab, command, first=""):
    """A command of the notebook, to its end.

    Asked for again and again: a browser may collect a promise that only its debugger awaits, and then has no answer.
    """
    done = f"jupyterapp.commands.execute('notebook:{command}').finally(() => {{ window.ran = true; }})"
    tab.value(f"(() => {{ {first} window.ran = false; window.running = {done}; }})()")
    tab.wait_for("window.ran === true", PATIENCE)


def test_the_first_notebook_runs_to_its_end(lab, tab):
    opened(tab, lab, guides()["start_here"].name)
    run(tab, "clear-all-cell-outputs")
    codes = f"{CELLS}.filter(cell => cell.type === 'code')"
    assert tab.value(f"{codes}.every(cell => !cell.executionCount)")
    run(tab, "run-all-cells")
    idle = f"{NOTEBOOK}.sessionContext.session.kernel.status === 'idle'"
    tab.wait_for(f"{codes}.every(cell => cell.executionCount) && {idle}", PATIENCE)
    shown = tab.value(f"JSON.stringify({codes}.flatMap(cell => cell.outputs.toJSON()))")
    assert "by hand, and the same as the package" in shown
    assert '"output_type":"error"' not in shown


def test_parameters_and_imports_are_folded(lab, tab):
    """As the notebooks' metadata ask for: a reader begins with the text. All other code stands open."""
    for path in (guides() | notebooks()).values():
        opened(tab, lab, path.name)
        cells = nbformat.read(path, as_version=4).cells
        folded = [cell.metadata.get("jupyter", {}).get("source_hidden", False) for cell in cells]
        assert sum(folded) >= 2
        assert tab.value(f"{NOTEBOOK}.content.widgets.map(cell => cell.inputHidden)") == folded, path.name
        run(tab, "shutdown-kernel")


def test_an_exercise_is_solved_with_nothing_run_but_the_imports_above_it(lab, tab):
    """As docs/first_hour.md has it: the stub first, then the wrong sign, then the line that is right."""
    path = notebooks()["puf"]
    opened(tab, lab, path.name)
    places = {cell.id: place for place, cell in enumerate(nbformat.read(path, as_version=4).cells)}
    stub, own = places["exercise-puf-1"], f"{CELLS}[{places['exercise-puf-1']}]"
    run_cell(tab, places["exercise-begin"])
    for line, said in (("...", "not yet"), ("w + eta_u * DELTA", "negates"), ("w - eta_u * DELTA", "puf-1: right")):
        answer = line.replace("DELTA", "(sizes / sizes.sum()) @ deltas")
        source = f"{own}.sharedModel.getSource().replace(/return .*/, {json.dumps('return ' + answer)})"
        tab.value(f"{own}.sharedModel.setSource({source})")
        run_cell(tab, stub)
        tab.wait_for(f"JSON.stringify({own}.outputs.toJSON()).includes({json.dumps(said)})", PATIENCE)
    run(tab, "shutdown-kernel")


@pytest.mark.parametrize(("paper", "slider"), SLIDERS)
def test_a_slider_moves_its_picture_with_nothing_run_but_the_top_and_its_own_cell(paper, slider, lab, tab):
    path = (guides() | notebooks())[paper]
    opened(tab, lab, path.name)
    cells = nbformat.read(path, as_version=4).cells
    code = [k for k, cell in enumerate(cells) if cell.cell_type == "code"]
    (own,) = (k for k, cell in enumerate(cells) if cell.id == slider)
    for place in (*code[:2], own):
        run_cell(tab, place)
    tab.wait_for(f"window.before = {PICTURE}?.src", PATIENCE)
    tab.wait_for(f"{HANDLE} !== null", PATIENCE)
    for _ in range(4):  # as somebody with a keyboard does
        tab.value(f"{HANDLE}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'ArrowRight', bubbles: true}}))")
    assert tab.wait_for(f"{PICTURE} && {PICTURE}.src !== window.before", PATIENCE)
    run(tab, "shutdown-kernel")


def test_the_arenas_questions_are_answered_with_nothing_run_but_the_top_and_their_own_cell(lab, tab):
    """Another answer, another table: who can do without labels, who has a guarantee."""
    path = notebooks()["arena"]
    opened(tab, lab, path.name)
    cells = nbformat.read(path, as_version=4).cells
    code = [k for k, cell in enumerate(cells) if cell.cell_type == "code"]
    (own,) = (k for k, cell in enumerate(cells) if cell.id == "arena-32")
    for place in (*code[:3], own):
        run_cell(tab, place)
    answer = "document.querySelector('.widget-interact .widget-output')"
    tab.wait_for(f"{answer}?.innerText.includes('guarantee: none')", PATIENCE)
    lists = "[...document.querySelectorAll('.widget-interact select')]"
    guarantee = f"{lists}.find(one => one.innerText.includes('exact'))"
    changed = "new Event('change', {bubbles: true})"
    tab.value(f"(() => {{ {guarantee}.value = 'exact'; {guarantee}.dispatchEvent({changed}); }})()")
    tab.wait_for(f"{answer}.innerText.includes('guarantee: exact')", PATIENCE)
    assert tab.value(f"{answer}.innerText.includes('SISA')")
    run(tab, "shutdown-kernel")


def test_a_link_to_a_page_beside_the_notebooks_opens_it(lab, tab):
    """Which nobody serves where JupyterLab's root is the notebooks' folder."""
    opened(tab, lab, notebooks()["puf"].name)
    link = "[...document.querySelectorAll('a')].find(a => (a.dataset.jupyterPath || a.href).includes('errata.md'))"
    tab.wait_for(f"!!{link}", PATIENCE)
    tab.value(f"{link}.click()")
    titles = "[...jupyterapp.shell.widgets('main')].map(widget => widget.title.label)"
    assert tab.wait_for(f"{titles}.some(title => title.includes('errata.md'))", PATIENCE)


def test_make_lab_serves_the_pages_that_notebooks_link_to():
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-m jupyterlab" in line)
    assert "root_dir" not in line
    first = line.partition("default_url=/lab/tree/")[2]
    assert (ROOT / first).is_file()
    assert line.endswith(f"-m jupyterlab --LabApp.default_url=/lab/tree/{first}")  # no folder of its own


def test_a_number_of_the_paper_leads_to_where_the_notebook_shows_it(lab, tab):
    """By a click; the page of places is opened by the same kind of link as claims and errata."""
    opened(tab, lab, notebooks()["puf"].name)
    link = "[...document.querySelectorAll('a')].find(a => a.getAttribute('href') === '#puf-eq-5')"
    mark = "document.querySelector('[data-jupyter-id=\"puf-eq-5\"]')"
    tab.wait_for(f"!!({link} && {mark})", PATIENCE)
    tab.value(f"{link}.scrollIntoView()")
    away = f"(top => top < 0 || top > innerHeight)({mark}.getBoundingClientRect().top)"
    assert tab.wait_for(away, PATIENCE)
    assert tab.wait_for(f"({link}.click(), !{away})", PATIENCE)  # again while cells above still find their height
    run(tab, "shutdown-kernel")
