"""The notebook runner: what is wrong is named before anything runs, and a failing cell is one clear line."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from typing import ClassVar

import nbformat
import psutil
import pytest
from papermill import engines

from fu_papers import parameters
from fu_papers.lab import execute, lanes, notebooks, paths, reproduce
from fu_papers.parameters import Count, Natural, Parameters, Positive, Several, parameter

PARAMETERS = """\
profile: str = "quick"  # how large
rounds: int | None = None  # before the request
alpha: float | None = None  # Dirichlet
others: dict = {}  # any other
interactive: bool | None = None  # sliders
"""
PROFILE = {
    "rounds": "2", "alpha": "0.5", "mode": "special", "augment": "false", "etas": "[0.1, 1]", "target": "null",
}  # fmt: skip


class Toy(Parameters):
    """What the toy notebooks can be told."""

    paper: ClassVar[str] = "toy"

    rounds: Count = parameter("before the request")
    alpha: Positive = parameter("Dirichlet")
    mode: str = parameter("how")
    augment: bool = parameter("flips")
    etas: Several[Positive] = parameter("to be tried")
    target: Natural | None = parameter("who leaves")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A repository of its own: `lab(cells, rounds="4")` puts one notebook and its quick profile into it."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "schema_of", lambda paper: Toy)
    monkeypatch.setattr(parameters.resources, "files", lambda package: tmp_path)
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setenv("FU_JOBS", "1")  # or several notebooks would run at a time
    (tmp_path / "notebooks").mkdir()

    def add(*cells, paper="toy", number=1, cell=PARAMETERS, tags=1, profile=None, **values):
        tagged = [nbformat.v4.new_code_cell(cell, metadata={"tags": ["parameters"]}) for _ in range(tags)]
        prose = nbformat.v4.new_markdown_cell("# A paper")
        notebook = nbformat.v4.new_notebook(cells=[prose, *tagged, *map(nbformat.v4.new_code_cell, cells)])
        nbformat.write(notebook, tmp_path / "notebooks" / f"{number:02}_{paper}.ipynb")
        folder = tmp_path / paper / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}: {value}" for name, value in {**PROFILE, **values}.items() if value]
        (folder / "quick.yaml").write_text(profile or "\n".join(lines))
        return tmp_path

    return add


def wrong(capsys, *arguments):
    """The error message of a call that must stop before running anything."""
    assert reproduce.main(arguments) == 2
    assert not (paths.runs_dir() / "executed").exists()
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    return message


# --- checks before anything runs ---


@pytest.mark.parametrize("tags", [0, 2])
def test_exactly_one_parameters_cell(lab, capsys, tags):
    lab(tags=tags)
    assert f"01_toy.ipynb must have exactly one cell tagged `parameters`, got {tags}" in wrong(capsys)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("rounds = 3", "must be written `name: type = literal`, got `rounds = 3`"),
        ("rounds: int", "must be written `name: type = literal`"),
        ("print(1)", "must be written `name: type = literal`"),
        ("rounds: int = 2 + n", "must be a literal"),
        ("rounds: int = ", "is not Python"),
    ],
)
def test_every_parameter_is_a_typed_literal(lab, capsys, line, says):
    lab(cell=f'profile: str = "quick"\nothers: dict = {{}}\n{line}')
    message = wrong(capsys)
    assert "01_toy.ipynb" in message
    assert says in message


def test_the_notebook_must_take_the_profile_and_what_has_no_line_of_its_own(lab, capsys):
    lab(cell="rounds: int = 3\nothers: dict = {}")
    assert 'needs a line `profile: str = "quick"`' in wrong(capsys)
    lab(cell='profile: str = "quick"')
    assert "needs a line `others: dict = {}`" in wrong(capsys)


def test_misspelt_names_are_errors_that_name_the_nearest(lab, capsys):
    lab(ronds="2")
    assert "toy/quick.yaml: toy has no parameter 'ronds'; did you mean 'rounds'" in wrong(capsys)
    lab()
    assert "-p: toy has no parameter 'aplha'; did you mean 'alpha'" in wrong(capsys, "-p", "aplha", "0.5")
    assert "with --profile" in wrong(capsys, "-p", "profile", "paper")
    assert "others is not set here; set each parameter by its own name" in wrong(capsys, "-p", "others", "{rounds: 2}")
    assert "interactive must be true, false or null, got 3" in wrong(capsys, "-p", "interactive", "3")
    assert "did you mean 'toy'" in wrong(capsys, "--paper", "toi")
    assert "paper must be one of 'all', 'toy', got 'toi'; did you mean 'toy'?" in wrong(capsys, "--paper", "all", "toi")
    assert "toy has no profile 'quik'; did you mean 'quick'?; there are: quick" in wrong(capsys, "--profile", "quik")


def test_what_a_profile_does_not_give_is_named(lab, capsys):
    lab(alpha="")
    assert "alpha is missing: the profile of toy must give it" in wrong(capsys)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rounds", "1e-3", "rounds must be a valid integer, got 0.001"),
        ("rounds", "true", "rounds must be a valid integer, got True"),
        ("rounds", "'3'", "rounds must be a valid integer, got '3'"),
        ("rounds", "0", "rounds must be greater than or equal to 1, got 0"),
        ("alpha", "high", "alpha must be a valid number, got 'high'"),
        ("alpha", "true", "alpha must be a valid number, got True"),
        ("alpha", "-1", "alpha must be greater than 0, got -1"),
        ("mode", "3", "mode must be a valid string, got 3"),
        ("augment", "1", "augment must be a valid boolean, got 1"),
        ("etas", "[1, x]", "etas must be a valid number, got 'x'"),
        ("etas", "1", "etas must be a valid list, got 1"),
        ("target", "0.5", "target must be a valid integer, got 0.5"),
    ],
)
def test_values_of_the_wrong_type_or_out_of_range_are_errors(lab, capsys, name, value, expected):
    lab()
    assert expected in wrong(capsys, "-p", name, value)


def test_a_profile_is_checked_like_a_readers_values(lab, capsys):
    lab(rounds="0")
    assert "rounds must be greater than or equal to 1, got 0" in wrong(capsys)


@pytest.mark.parametrize("text", ["- 1", "rounds: [", "3"])
def test_a_profile_is_flat_yaml(lab, capsys, text):
    lab(profile=text)
    assert "toy/quick.yaml" in wrong(capsys)
    lab()
    assert "-p rounds is not YAML" in wrong(capsys, "-p", "rounds", "[1")


def test_the_notebook_gets_what_differs_from_the_profile_in_its_cell_or_among_the_others(lab):
    lab()
    made = notebooks.plan("toy", "quick", {"rounds": 7, "target": 3, "interactive": False})
    assert made.parameters == {"profile": "quick", "rounds": 7, "interactive": False, "others": {"target": 3}}
    assert notebooks.plan("toy", "quick", {}).parameters == {"profile": "quick"}
    assert made.changes == {"rounds": 7, "target": 3, "interactive": False}


def test_where_figures_go_depends_on_whether_the_profile_is_changed(lab):
    root = lab() / "figures"
    own, changed = root / "quick" / "toy", root / "changed" / "quick" / "toy"
    for changes in ({}, {"rounds": 2}, {"interactive": True}, {"target": None}):
        assert notebooks.plan("toy", "quick", changes).figures == own, changes
    for changes in ({"rounds": 3}, {"target": 3}, {"etas": [1.0, 0.1]}):
        assert notebooks.plan("toy", "quick", changes).figures == changed, changes


def test_a_paper_without_profiles_is_an_error(lab, capsys):
    root = lab()
    (root / "toy" / "profiles" / "quick.yaml").unlink()
    assert "there are: none yet" in wrong(capsys)
    (root / "toy" / "profiles").rmdir()
    assert "there are: none yet" in wrong(capsys)


def test_papers_without_the_profile_are_left_out_where_all_are_asked_for(lab, capsys, monkeypatch):
    root = lab(paper="later", number=2)
    (root / "later" / "profiles" / "quick.yaml").rename(root / "later" / "profiles" / "large.yaml")
    lab(paper="first", number=1)
    ran = []
    monkeypatch.setattr(reproduce, "execute", lambda plan: ran.append(plan.paper) or Done())
    assert reproduce.main([]) == 0
    assert ran == ["first"]
    assert capsys.readouterr().out.splitlines() == ["no profile 'quick' yet: later", "done"]
    assert "later has no profile 'quick'" in wrong(capsys, "--paper", "first", "later")  # asked for by its name
    assert "has no profile 'nowhere'" in wrong(capsys, "--profile", "nowhere")  # nobody has it
    assert ran == ["first"]


class Done:
    """The outcome of a notebook that did not run."""

    failure = ""

    def line(self):
        return "done"


def test_no_notebooks_is_an_error(lab, capsys):
    assert "there are no notebooks" in wrong(capsys)


def test_list_shows_papers_and_profiles(lab, capsys):
    lab(paper="later", number=2)
    lab(paper="first", number=1)
    assert reproduce.main(["--list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["first", "quick"], ["later", "quick"]]


@pytest.mark.parametrize(
    "options", [["--dry-run"], ["--stage", "training"], ["--part", "1/2"], ["--export"], ["--merge", "."]]
)
def test_ctrl_c_is_one_line_whatever_is_done(lab, capsys, monkeypatch, options):
    def interrupted(*_):
        raise KeyboardInterrupt

    lab()
    monkeypatch.setattr(reproduce, "_stages", lambda each, options: [])
    for name in ("_show_plan", "_run_part", "_export", "_merge"):
        monkeypatch.setattr(reproduce, name, interrupted)
    assert reproduce.main(options) == 130
    assert capsys.readouterr().err == "interrupted; finished runs are kept, call again to continue\n"


def test_a_wrong_switch_is_named_before_anything_runs(lab, capsys, monkeypatch):
    lab()
    monkeypatch.setenv("FU_FIGURES_ONLY", "yes")
    assert "FU_FIGURES_ONLY must be 1 (yes), or 0 or empty (no), got 'yes'" in wrong(capsys)


# --- guides: notebooks of no paper ---


@pytest.fixture
def guided(lab):
    """The repository of `lab` with a paper and a guide: `guided()` gives its folder."""

    def add(cell="interactive: bool | None = None  # sliders"):
        root = lab()
        tagged = nbformat.v4.new_code_cell(cell, metadata={"tags": ["parameters"]})
        shown = nbformat.v4.new_code_cell("print(interactive)")
        nbformat.write(nbformat.v4.new_notebook(cells=[tagged, shown]), root / "notebooks" / "00_first.ipynb")
        return root

    return add


def ran(monkeypatch):
    plans = []
    monkeypatch.setattr(reproduce, "execute", lambda plan: plans.append((plan.paper, plan.parameters)) or Done())
    return plans


def test_a_guide_is_no_paper_and_runs_before_them_in_every_profile(guided, monkeypatch, capsys):
    guided()
    assert set(notebooks.notebooks()) == {"toy"}
    plans = ran(monkeypatch)
    assert reproduce.main(["-p", "rounds", "3"]) == 0  # a guide has no rounds
    assert reproduce.main(["--paper", "first", "-p", "interactive", "true"]) == 0
    assert plans == [("first", {}), ("toy", {"profile": "quick", "rounds": 3}), ("first", {"interactive": True})]
    capsys.readouterr()
    assert reproduce.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["first", "the", "same", "in", "all"]


def test_what_a_guide_cannot_take_is_named(guided, capsys):
    guided()
    assert "-p: parameter of first must be one of 'interactive', got 'rounds'" in wrong(
        capsys, "--paper", "first", "-p", "rounds", "3"
    )
    assert "profile must be one of 'quick', got 'quik'" in wrong(capsys, "--paper", "first", "--profile", "quik")
    assert "first has no runs" in wrong(capsys, "--paper", "first", "--export")
    guided("interactive = 3")
    assert "must be written `name: type = literal`" in wrong(capsys, "--paper", "first", "-p", "interactive", "true")


# --- with a kernel ---


def test_parameters_settings_and_interpreter_reach_the_kernel(lab, capsys, monkeypatch, tmp_path):
    elsewhere = tmp_path / "jupyter" / "kernels" / "python3"
    elsewhere.mkdir(parents=True)
    (elsewhere / "kernel.json").write_text('{"argv": ["/bin/false"], "display_name": "no", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    root = lab(
        "import os, pathlib, sys\n"
        f"assert sys.executable == {sys.executable!r}\n"
        "assert (rounds, alpha, profile, others) == (None, 0.001, 'quick', {'mode': 'regular'})\n"
        "assert (os.environ['FU_JOBS'], os.environ['FU_FIGURES_ONLY']) == ('1', '1')",
        "folder = pathlib.Path('figures/changed/quick/toy'); folder.mkdir(parents=True)\n"
        "folder.joinpath('table.csv').write_text('a')",
    )
    assert reproduce.main(["--jobs", "1", "--figures-only", "-p", "alpha", "1e-3", "-p", "mode", "regular"]) == 0
    summary = capsys.readouterr().out
    assert "01_toy.ipynb" in summary
    assert "1 files in figures/changed/quick/toy, executed copy runs/executed/quick/01_toy.ipynb" in summary
    assert (root / "figures/changed/quick/toy/table.csv").exists()
    assert "FU_FIGURES_ONLY" not in os.environ


def test_folders_are_those_of_whoever_calls_wherever_the_notebook_works(lab, monkeypatch, tmp_path, capsys):
    folder = tmp_path / "else where {x}"  # papermill would fill in the braces
    (folder / "here").mkdir(parents=True)
    monkeypatch.chdir(folder / "here")
    names = ["FU_RUNS", "FU_FIGURES", "FU_DATA"]
    root = lab(f"import os; print([os.path.realpath(os.environ[name]) for name in {names}], os.getcwd())")
    for name in names:  # the fixture has set some
        monkeypatch.setenv(name, f"../{name}")
    assert reproduce.main([]) == 0, capsys.readouterr().err
    [copy] = (folder / "FU_RUNS").rglob("*.ipynb")
    shown = nbformat.read(copy, as_version=4).cells[-1].outputs[0].text
    assert shown.strip() == f"{[str(folder / name) for name in names]} {root}"
    assert os.environ["FU_RUNS"] == "../FU_RUNS"


@pytest.mark.parametrize(("given", "threads"), [("", "1"), ("3", "3")])
def test_what_a_notebook_computes_itself_has_one_thread_unless_told_otherwise(lab, monkeypatch, given, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    counted = f"assert (os.environ['OMP_NUM_THREADS'], torch.get_num_threads() <= {threads}) == ({threads!r}, True)"
    lab(f"import os, torch\n{counted}")
    assert reproduce.main([]) == 0


def test_a_failing_cell_is_named_its_output_kept_and_the_others_run(lab, capsys):
    lab("first = 1\nprint('before')", "\nvalues = [1]\nvalues[first]", "print('after')", paper="broken", number=1)
    root = lab("print('I ran')", paper="sound", number=2)
    assert reproduce.main([]) == 1
    shown = capsys.readouterr()
    assert "error: 01_broken.ipynb, cell 4 (`values = [1]`): IndexError: list index out of range" in shown.err
    assert "Traceback" not in shown.err
    assert [line.split()[:2] for line in shown.out.splitlines()] == [
        ["01_broken.ipynb", "FAILED"],
        ["02_sound.ipynb", "ok"],
    ]
    partial = nbformat.read(root / "runs/executed/quick/01_broken.ipynb", as_version=4)
    outputs = [output for cell in partial.cells for output in cell.get("outputs", [])]
    assert "before\n" in [output.get("text") for output in outputs]
    assert "after\n" not in [output.get("text") for output in outputs]
    assert (root / "runs/executed/quick/02_sound.ipynb").exists()


# --- several at a time ---


@pytest.fixture
def two(lab, monkeypatch):
    """The repository of `lab` with two notebooks that run at the same time."""
    meet = (
        "import os, pathlib, time\n"
        "pathlib.Path({mine!r}).touch()\n"
        "until = time.monotonic() + 120\n"
        "while not pathlib.Path({other!r}).exists():\n"
        "    assert time.monotonic() < until, 'the other never ran beside me'\n"
        "    time.sleep(0.05)\n"
        "assert os.environ['FU_JOBS'] == '1'\n"
    )
    lab(meet.format(mine="a", other="b"), "print('not an outcome')", paper="one", number=1)
    root = lab(
        meet.format(mine="b", other="a"),
        "import sys; sys.stderr.write('half\\rwhole\\n'); 1 / 0",
        paper="two",
        number=2,
    )
    monkeypatch.setenv("FU_JOBS", "2")
    return root


def test_short_notebooks_run_two_at_a_time_and_are_told_in_their_order(two, capsys):
    assert reproduce.main([]) == 1
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()] == [["01_one.ipynb", "ok"], ["02_two.ipynb", "FAILED"]]
    assert "error: 02_two.ipynb, cell 4 (`import sys; sys.stderr.write" in shown.err
    assert "ZeroDivisionError" in shown.err
    assert "02_two: whole" in shown.err.splitlines()
    assert "02_two: half" not in shown.err.splitlines()
    assert (two / "runs/executed/quick/01_one.ipynb").exists()


def test_lines_are_kept_and_what_is_written_over_is_not():
    said = [
        "bar: 1\rbar",
        ": 2\x1b[A\rbar: 3[IPKernelApp] ERROR | KeyboardInterrupt caught in kernel.\n",
        "\nwarning\nbar",
    ]
    pieces = list(lanes._pieces(said))
    assert [text for text, stays in pieces if stays] == ["bar: 3", "warning"]
    assert [text for text, stays in pieces if not stays] == ["bar: 1", "bar", "bar: 2", "bar: 3", "bar"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_lane_has_one_row_of_a_terminal_and_a_log_what_stays(terminal, monkeypatch):
    shown = io.StringIO()
    shown.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "20")
    screen = lanes._Screen(0)
    screen.show("01_toy", "a bar that is wider than twenty", stays=False)
    screen.show("01_toy", "the end", stays=True)
    screen.close()
    rows = [row.strip() for row in re.split(r"[\r\n]", shown.getvalue())]
    assert ("01_toy: a bar that" in rows) is terminal
    assert "01_toy: the end" in rows
    assert max(map(len, rows)) < 20


def test_what_took_longest_begins_first_and_a_dead_child_fails_its_notebook_alone(two, capsys, monkeypatch):
    clock = two / "figures" / "quick" / "two" / "clock.jsonl"
    clock.parent.mkdir(parents=True)
    damaged = ['{"provenance": {', "[1]", "", '{"provenance": {"phases": {"total": {"seconds": "x"}}}}', "{}"]
    whole = '{"provenance": {"phases": {"total": {"seconds": 9.0}}}}'
    clock.write_text("\n".join([*damaged, whole, '{"provenance": {}}', "\udcff"]), errors="surrogateescape")
    plans, began, start = [notebooks.plan(name, "quick", {}) for name in ("one", "two")], [], lanes.subprocess.Popen

    def dying(command, **options):
        began.append(len(began))
        return start([sys.executable, "-c", "import sys; sys.exit(7)"] if began == [0] else command, **options)

    monkeypatch.setattr(lanes.subprocess, "Popen", dying)
    monkeypatch.setenv("FU_JOBS", "1")
    (two / "b").touch()  # whom the other waits for
    one, other = lanes.execute_together(plans, 1)
    assert (one.plan.paper, other.plan.paper) == ("one", "two")
    assert "ended with status 7" in other.failure
    assert not one.failure


def test_lanes_are_for_short_profiles_and_several_notebooks_with_a_core_each(lab, monkeypatch):
    lab(paper="one", number=1)
    lab(paper="two", number=2)
    plans = [notebooks.plan(name, "quick", {}) for name in ("one", "two")]

    def lanes_of(plans, *arguments, jobs=2):
        return reproduce._lanes(plans, reproduce._parser().parse_args(arguments), jobs)

    assert lanes_of(plans) == 2
    assert lanes_of(plans[:1]) == lanes_of(plans, jobs=1) == lanes_of(plans, "--profile", "laptop") == 1
    assert lanes_of(plans, "--profile", "laptop", "--figures-only") == 2
    monkeypatch.setenv("FU_BACKEND", "dask")
    assert lanes_of(plans) == 1


def test_jobs_that_are_no_number_are_named_before_anything_runs(lab, capsys, monkeypatch):
    lab()
    monkeypatch.setenv("FU_JOBS", "many")
    assert "FU_JOBS must be a whole number >= 1, got 'many'" in wrong(capsys)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_runner_ends_its_lanes(tmp_path, ending):
    """As Ctrl-C does, which background processes may ignore; and where it cannot tell them, since it is dead."""
    settings = {"FU_RUNS": str(tmp_path / "runs"), "FU_FIGURES": str(tmp_path / "figures"), "FU_JOBS": "2"}
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fu_papers.lab.reproduce import main; sys.exit(main(['--paper', 'start_here', 'hf_kcu']))"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | settings, stderr=subprocess.PIPE, text=True
    )
    kernels = wait_for(lambda: len(found := kernels_of(runner.pid)) == 2 and found)
    time.sleep(3)  # they are at work
    runner.send_signal(ending)
    assert runner.wait(60) == (130 if ending == signal.SIGINT else -signal.SIGKILL)
    assert ("finished runs are kept" in runner.stderr.read()) == (ending == signal.SIGINT)
    wait_for(lambda: not any(process.is_running() for process in kernels))


def kernels_of(pid):
    return [p for p in psutil.Process(pid).children(recursive=True) if "ipykernel_launcher" in " ".join(p.cmdline())]


def wait_for(condition):
    until = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def test_the_executed_copy_is_written_at_the_end_and_not_at_every_cell(lab, monkeypatch):
    root, written, write = lab(*["x = 1"] * 20), [], engines.write_ipynb
    monkeypatch.setattr(engines, "write_ipynb", lambda nb, path: (written.append(path), write(nb, path)))
    monkeypatch.setattr(execute, "SAVED_EVERY", 1000.0)
    assert reproduce.main([]) == 0
    assert len(written) <= 3  # papermill alone: 45 times
    copy = nbformat.read(root / "runs/executed/quick/01_toy.ipynb", as_version=4)
    assert [cell.metadata.papermill["status"] for cell in copy.cells] == ["completed"] * len(copy.cells)
    assert copy.cells[-1].execution_count == 22


def test_the_runner_does_not_hold_torch_while_it_waits_for_notebooks():
    code = "import sys, fu_papers.lab.reproduce; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
