"""What people install: the archives hold both houses with their data, and the library works without the companion."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement

from fu_papers.lab.paths import ROOT
from tests.readme import library_example
from tests.test_environment import canonical, requirements

pytestmark = pytest.mark.slow

HOUSES = ("fu_core", "fu_papers")
TOLD = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md"}  # in the source archive beside the houses
DATA = {"fu_core/py.typed", "fu_papers/claims.csv", "fu_papers/errata.md", "fu_papers/published.md"} | {
    f"fu_papers/{paper}/{file}"
    for paper, table in (("puf", "i"), ("hf_kcu", "1"), ("fedora", "i"), ("certified_dfl", "i"))
    for file in ("profiles/quick.yaml", "profiles/laptop.yaml", "profiles/paper.yaml", f"published/table_{table}.csv")
}
DATA |= {f"fu_papers/arena/profiles/{profile}.yaml" for profile in ("quick", "laptop", "workstation", "paper")}

# Run before a script: packages are only found in PATHS, and those of HIDDEN nowhere.
ALONE = """
import sys
from importlib.machinery import PathFinder

class WithoutTheHidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTheHidden
sys.path += PATHS
"""


def call(*arguments, cwd):
    """Run this Python; returns what it printed. A failure shows all that it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FU_")}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, made from a copy of the checkout, and the wheel, made from the source archive alone."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("archives")
    for name in ("pyproject.toml", "MANIFEST.in", *TOLD):
        shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    shutil.copy(__file__, source / "tests")  # what setuptools takes for a test
    for house in HOUSES:
        shutil.copytree(ROOT / house, source / house, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    call("-c", f"from setuptools.build_meta import build_sdist; build_sdist({str(made)!r})", cwd=source)
    [sdist] = made.glob("*.tar.gz")
    offline = ("--quiet", "--no-deps", "--no-index")
    call("-m", "pip", "wheel", *offline, "--no-build-isolation", "--wheel-dir", made, sdist, cwd=made)
    [wheel] = made.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory):
    """A folder of packages that holds the wheel and nothing else."""
    target = tmp_path_factory.mktemp("packages")
    call("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, archives[1], cwd=target)
    return target


@pytest.fixture
def alone(installed, tmp_path):
    """`alone(hidden, script)` runs a script in a folder of its own, with the wheel, and without the hidden packages."""

    def run(hidden, script):
        sites = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        settings = f"HIDDEN = {set(hidden)!r}\nPATHS = {[str(installed), *sites]!r}\n"
        # Isolated, and without the site module: this checkout is not found, however it is installed here.
        return call("-I", "-S", "-c", settings + ALONE + script, cwd=tmp_path)

    return run


def brought_along(wanted):
    """The names of all distributions that come with the requirements `wanted`, directly or not."""
    known, open_ends = set(), [*wanted]
    while open_ends:
        requirement = open_ends.pop()
        name = canonical(requirement.name)
        if name in known or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        known.add(name)
        open_ends += [Requirement(line) for line in distribution(name).requires or []]
    return known


@pytest.fixture(scope="module")
def others():
    """All packages here that nothing of the library's own requirements brings along."""
    ours = brought_along(requirements()[""])
    sources = {package: {canonical(name) for name in names} for package, names in packages_distributions().items()}
    return {package for package, names in sources.items() if not names & ours} - {*sys.stdlib_module_names, *HOUSES}


# --- the archives ---


def test_both_archives_hold_every_module_and_all_data(archives):
    sdist, wheel = archives
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    sources = {
        str(path.relative_to(ROOT).as_posix())
        for house in HOUSES
        for path in (ROOT / house).rglob("*")
        if path.suffix in (".py", ".typed", ".yaml", ".csv", ".md")
    }
    assert sources >= DATA
    assert sources - in_sdist == set()
    assert sources - in_wheel == set()
    assert {name.partition("/")[0] for name in in_wheel} - set(HOUSES) == {
        re.match(r"fu_core-[^-]+", wheel.name).group() + ".dist-info"
    }


def test_the_source_archive_has_what_tells_about_it_and_no_tests_without_their_helpers(archives):
    with tarfile.open(archives[0]) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    beside = {name for name in files if name.partition("/")[0] not in {*HOUSES, "fu_core.egg-info"}}
    assert beside == TOLD | {"MANIFEST.in", "PKG-INFO", "pyproject.toml", "setup.cfg"}


# --- the library alone ---


def test_the_readme_example_runs_without_the_companion(alone, installed, others, tmp_path):
    companion = {"pandas", "matplotlib", "seaborn", "papermill", "jupyterlab", "IPython", "ipywidgets", "nbformat"}
    assert others >= companion | {"safetensors", "psutil", "torchvision", "transformers", "flwr"}
    report = """
import fu_core.data.datasets
print(fu_core.__file__)
print(fu_core.data.datasets.data_dir())
print("hidden in memory:", *(HIDDEN & {name.partition(".")[0] for name in sys.modules}))
"""
    *shown, library, data, hidden = alone(others | {"fu_papers"}, library_example() + report).splitlines()
    assert shown
    assert library == str(installed / "fu_core" / "__init__.py")
    assert data == str(tmp_path / "data")
    assert hidden.strip() == "hidden in memory:"


def test_what_needs_an_extra_says_which(alone, others):
    script = """
import torch
from pathlib import Path
from fu_core.data.catalogue import CACHED
from fu_core.models import MODELS
from fu_core.models.bottoms import BOTTOMS

def message(call, *arguments):
    try:
        call(*arguments)
    except (RuntimeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")

for name in ("small_resnet", "resnet18", "res_unet", "small_res_unet", "mit_b0"):
    message(MODELS[name], 3, 32, 10)
message(BOTTOMS["resnet18"], (3, 32, 32))
for name in ("mnist", "fashion_mnist", "cifar10", "cifar100", "pathmnist", "tiny_imagenet"):
    message(CACHED[name].build, Path("raw"))
"""
    lines = alone(others, script).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["UnsupportedModel"] * 6 + ["DataUnavailable"] * 6
    extras = [re.search(r'run `pip install "fu_core\[(\w+)\]"`$', line) for line in lines]
    assert [found and found[1] for found in extras] == ["vision"] * 4 + ["transformers"] + ["vision"] * 7


# --- the companion ---


def test_without_its_extra_the_companion_is_one_clear_error(alone, others):
    script = "try:\n    import fu_papers.lab.reproduce\nexcept ImportError as error:\n    print(error)"
    message = alone(others, script)
    assert message.startswith("fu_papers needs IPython, ")
    assert "pandas" in message
    assert message.endswith(': run `pip install "fu_core[papers]"`\n')
    assert alone({"seaborn"}, script) == 'fu_papers needs seaborn: run `pip install "fu_core[papers]"`\n'


def test_the_installed_companion_writes_nothing_beside_itself_and_asks_for_a_checkout(alone, installed, tmp_path):
    script = """
from contextlib import redirect_stderr
from fu_papers.lab import paths, reproduce

print(paths.runs_dir())
with redirect_stderr(sys.stdout):
    print(reproduce.main(["--list"]), reproduce.main(["--paper", "puf"]), reproduce.main([]), sep="\\n")
"""
    refusal = f"error: there are no notebooks in {tmp_path / 'notebooks'}; run from a checkout, or set FU_HOME to one"
    assert alone((), script).splitlines() == [str(tmp_path / "runs"), *[refusal] * 3, "2", "2", "2"]
