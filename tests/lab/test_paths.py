"""Folders from the environment are the same ones everywhere, and two who change a file take turns."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fu_core.data.datasets import data_dir
from fu_core.errors import ConfigError
from fu_papers import verdicts
from fu_papers.lab import paths
from fu_papers.verdicts import ClaimResult, claims, read_claims, write_claims

SETTINGS = {"FU_RUNS": paths.runs_dir, "FU_FIGURES": lambda: paths.figures_dir("."), "FU_DATA": data_dir}


@pytest.mark.parametrize("name", SETTINGS)
def test_folders_are_absolute_and_of_the_user_and_empty_is_unset(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(name, raising=False)
    usual = SETTINGS[name]()
    for given, folder in (("", usual), ("here/there", tmp_path / "here/there"), ("~/x", tmp_path / "home" / "x")):
        monkeypatch.setenv(name, given)
        assert SETTINGS[name]() == folder
        assert paths.settled().get(name) == (str(folder) if given else None)
    monkeypatch.setenv(name, "~nobody-of-that-name/x")
    with pytest.raises(ConfigError, match=f"{name} must be a folder, got '~nobody-of-that-name/x', a home"):
        SETTINGS[name]()


def test_the_checkout_may_be_named_relatively(tmp_path):
    code = "from fu_papers.lab import paths; print(paths.ROOT)"
    environment = os.environ | {"FU_HOME": "there", "PYTHONPATH": str(paths.ROOT)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout.strip() == str(tmp_path / "there")


@pytest.mark.parametrize(("given", "folder"), [
    ("", None), ("some where/data", "{here}/some where/data"), ("/abs #1", "/abs #1"), ("~/da ta", "{home}/da ta"),
])  # fmt: skip
def test_make_gives_absolute_folders_on(given, folder, tmp_path):
    """JupyterLab's kernels and nbconvert's work in notebooks/."""
    makefile, home = (paths.ROOT / "Makefile").read_text(encoding="utf-8"), tmp_path / "ho me"
    (tmp_path / "Makefile").write_text(makefile + "\ntold:\n\t@$(SETTINGS) env | grep ^FU_ || true\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FU_", "MAKE"))}
    expected = folder and folder.format(here=tmp_path.resolve(), home=home)
    for name, words in (("FU_DATA", [f"DATA={given}"]), ("FU_DATA", []), ("FU_RUNS", []), ("FU_FIGURES", [])):
        environment = kept | {"HOME": str(home)} | ({} if words else {name: given})
        told = subprocess.run(
            ["make", "told", *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        given_on = dict(line.split("=", 1) for line in told.stdout.splitlines())
        assert given_on.get(name, "") == (expected or "")


def test_two_notebooks_keep_each_others_verdicts(tmp_path, monkeypatch):
    """The second read the list before the first had written it."""
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    read = verdicts.read_claims

    def slowly(folder):
        found = read(folder)
        time.sleep(0.3)
        return found

    monkeypatch.setattr(verdicts, "read_claims", slowly)
    ids = {paper: [c for c, p in claims()[["id", "paper"]].to_numpy() if p == paper] for paper in ("puf", "hf_kcu")}

    def write(paper):
        results = [ClaimResult(name, "holds", records=["a"]) for name in ids[paper]]
        return write_claims(results, paper, tmp_path / "figures" / "quick")

    with ThreadPoolExecutor(2) as both:
        list(both.map(write, ids))
    found = read_claims(tmp_path / "figures" / "quick")
    assert {name for name, verdict in found.items() if verdict.verdict == "holds"} == {*ids["puf"], *ids["hf_kcu"]}
    assert [path.name for path in (tmp_path / "figures" / "quick").iterdir()] == ["claims.csv"]


def test_commands_of_the_documents_are_those_of_the_environment_that_setup_makes():
    """Nothing is activated: bare `dask`, `python` and `pip` are another Python's, or nobody's."""
    for name in ("cluster.md", "scale.md"):
        text = (paths.ROOT / "docs" / name).read_text(encoding="utf-8")
        blocks = re.findall(r"```(?:bash|console)\n(.*?)```", text, re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+ [^`\n]+)`", text)
        bare = [
            line for line in lines if re.match(r"(\$ )?([A-Z_]+=\S* )*(dask (scheduler|worker)|python3?|pip) ", line)
        ]
        assert set(bare) <= {'pip install "fu_core[papers,cluster]"', 'pip install "fu_core[flower]"'}, name
