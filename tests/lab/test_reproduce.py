"""The notebook runner: what is wrong is named before anything runs, and a failing cell is one clear line."""

import os
import subprocess
import sys

import nbformat
import pytest

from fu_papers.lab import paths, reproduce

PARAMETERS = """\
profile: str = "quick"  # how large
rounds: int = 3         # before the request
alpha: float = 0.5      # Dirichlet
mode: str = "special"
augment: bool = False
etas: list[float] = [0.1, 1]
target: int | None = None
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A repository of its own: `lab(cells, profile="rounds: 2")` puts one notebook and its quick profile into it."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(reproduce, "_profile_folder", lambda paper: tmp_path / "profiles" / paper)
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    (tmp_path / "notebooks").mkdir()

    def add(*cells, paper="toy", number=1, parameters=PARAMETERS, tags=1, profile="rounds: 2\n"):
        tagged = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}) for _ in range(tags)]
        prose = nbformat.v4.new_markdown_cell("# A paper")
        notebook = nbformat.v4.new_notebook(cells=[prose, *tagged, *map(nbformat.v4.new_code_cell, cells)])
        nbformat.write(notebook, tmp_path / "notebooks" / f"{number:02}_{paper}.ipynb")
        (tmp_path / "profiles" / paper).mkdir(parents=True, exist_ok=True)
        (tmp_path / "profiles" / paper / "quick.yaml").write_text(profile)
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
        ("rounds: int = 0.5", "rounds must be int, got 0.5 (float)"),
        ("rounds: set[int] = 1", "types: int, float, str"),
        ("rounds: int = ", "is not Python"),
    ],
)
def test_every_parameter_is_a_typed_literal(lab, capsys, line, says):
    lab(parameters=f'profile: str = "quick"\n{line}', profile="")
    message = wrong(capsys)
    assert "01_toy.ipynb" in message
    assert says in message


def test_the_notebook_must_take_the_profile(lab, capsys):
    lab(parameters="rounds: int = 3")
    assert 'needs a line `profile: str = "quick"`' in wrong(capsys)


def test_misspelt_names_are_errors_that_name_the_nearest(lab, capsys):
    lab(profile="ronds: 2")
    message = wrong(capsys)
    assert "toy/quick.yaml: 01_toy.ipynb has no parameter 'ronds'; did you mean 'rounds'" in message
    lab()
    assert "did you mean 'alpha'" in wrong(capsys, "-p", "aplha", "0.5")
    assert "with --profile" in wrong(capsys, "-p", "profile", "paper")
    assert "did you mean 'toy'" in wrong(capsys, "--paper", "toi")
    assert "toy has no profile 'quik'; did you mean 'quick'?; there are: quick" in wrong(capsys, "--profile", "quik")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rounds", "1e-3", "rounds must be int, got 0.001 (float)"),
        ("rounds", "true", "rounds must be int, got True (bool)"),
        ("rounds", "'3'", "rounds must be int, got '3' (str)"),
        ("alpha", "high", "alpha must be float, got 'high' (str)"),
        ("alpha", "true", "alpha must be float, got True (bool)"),
        ("mode", "3", "mode must be str, got 3 (int)"),
        ("augment", "1", "augment must be bool, got 1 (int)"),
        ("etas", "[1, x]", "etas must be list[float], got [1, 'x'] (list)"),
        ("etas", "1", "etas must be list[float], got 1 (int)"),
        ("target", "0.5", "target must be int | None, got 0.5 (float)"),
    ],
)
def test_values_of_the_wrong_type_are_errors(lab, capsys, name, value, expected):
    lab()
    assert expected in wrong(capsys, "-p", name, value)


@pytest.mark.parametrize("text", ["- 1", "rounds: [", "3"])
def test_a_profile_is_flat_yaml(lab, capsys, text):
    lab(profile=text)
    assert "toy/quick.yaml" in wrong(capsys)
    lab()
    assert "-p rounds is not YAML" in wrong(capsys, "-p", "rounds", "[1")


def test_overrides_win_over_the_profile_and_both_over_the_notebook(lab):
    lab(profile="rounds: 2\nalpha: 1e-3\ntarget: null")
    assert reproduce.plan("toy", "quick", {"rounds": 7}).parameters == {
        "rounds": 7,
        "alpha": 0.001,
        "target": None,
        "profile": "quick",
    }


def test_a_paper_without_profiles_is_an_error(lab, capsys):
    root = lab()
    (root / "profiles" / "toy" / "quick.yaml").unlink()
    assert "there are: none yet" in wrong(capsys)
    (root / "profiles" / "toy").rmdir()
    assert "there are: none yet" in wrong(capsys)


def test_no_notebooks_is_an_error(lab, capsys):
    assert "there are no notebooks" in wrong(capsys)


def test_list_shows_papers_and_profiles(lab, capsys):
    lab(paper="later", number=2)
    lab(paper="first", number=1)
    assert reproduce.main(["--list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["first", "quick"], ["later", "quick"]]


# --- with a kernel ---


def test_parameters_settings_and_interpreter_reach_the_kernel(lab, capsys, monkeypatch, tmp_path):
    elsewhere = tmp_path / "jupyter" / "kernels" / "python3"
    elsewhere.mkdir(parents=True)
    (elsewhere / "kernel.json").write_text('{"argv": ["/bin/false"], "display_name": "no", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    root = lab(
        "import os, pathlib, sys\n"
        f"assert sys.executable == {sys.executable!r}\n"
        "assert (rounds, alpha, profile) == (2, 0.001, 'quick')\n"
        "assert (os.environ['FU_JOBS'], os.environ['FU_FIGURES_ONLY']) == ('1', '1')",
        "folder = pathlib.Path('figures/quick/toy'); folder.mkdir(parents=True)\n"
        "folder.joinpath('table.csv').write_text('a')",
    )
    assert reproduce.main(["--jobs", "1", "--figures-only", "-p", "alpha", "1e-3"]) == 0
    summary = capsys.readouterr().out
    assert "01_toy.ipynb" in summary
    assert "1 files in figures/quick/toy, executed copy runs/executed/quick/01_toy.ipynb" in summary
    assert (root / "figures/quick/toy/table.csv").exists()
    assert "FU_FIGURES_ONLY" not in os.environ


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


def test_the_runner_does_not_hold_torch_while_it_waits_for_notebooks():
    code = "import sys, fu_papers.lab.reproduce; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
