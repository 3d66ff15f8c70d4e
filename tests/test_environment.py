"""pyproject.toml, requirements.lock and environment.yml name the same packages in the same versions."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAMES = {"pytorch": "torch"}
ONLY_CONDA = {"python", "pip", "make"}  # what pip users bring along
BOOK = "book"  # the extra that has a lock file of its own: no other command waits for it


def canonical(name):
    """The name under which package indexes know a project (PEP 503), without its extras."""
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def requirements():
    """`{"": the library's requirements, "papers": those of the extra, ...}` from pyproject.toml, all but the book's."""
    lists = _lists()
    return {extra: [Requirement(line) for line in lines] for extra, lines in lists.items() if extra != BOOK}


def _lists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def direct():
    """The names of all direct dependencies, extras included."""
    return {canonical(requirement.name) for lines in requirements().values() for requirement in lines}


def lock_entries(file="requirements.lock"):
    """`(name, version, lines)` of every package in a lock file."""
    text = (ROOT / file).read_text()
    parts = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    heads = [re.match(r"([\w.-]+)==([^\s;\\]+)", part) for part in parts]
    assert all(heads), "every entry must be pinned as name==version"
    return [(canonical(head[1]), head[2], part) for head, part in zip(heads, parts, strict=True)]


def conda_versions():
    """`{name: version}` of environment.yml, under the names that pip uses."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    [by_pip] = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    pairs = [entry.partition("=") for entry in listed if isinstance(entry, str)]
    pairs += [entry.partition("==") for entry in by_pip if not entry.startswith("--")]
    names = [canonical(CONDA_NAMES.get(name, name)) for name, _, _ in pairs]
    assert len(set(names)) == len(names), "a package is listed twice"
    return dict(zip(names, (version for _, _, version in pairs), strict=True))


def test_every_direct_dependency_is_locked_once():
    locked = Counter(name for name, _, _ in lock_entries())
    assert {name: locked[name] for name in direct()} == dict.fromkeys(direct(), 1)


@pytest.mark.parametrize("extra", requirements())
def test_no_list_names_a_package_twice_and_the_locked_versions_are_in_its_ranges(extra):
    locked = {name: version for name, version, _ in lock_entries()}
    wanted = [(canonical(requirement.name), requirement.specifier) for requirement in requirements()[extra]]
    assert len({name for name, _ in wanted}) == len(wanted)
    assert [name for name, allowed in wanted if locked[name] not in allowed] == []


def test_only_the_companion_pins_and_bounds_from_above():
    """The library is imported beside what people have; the figures are those of one torch."""
    operators = {
        extra: {canonical(line.name): {part.operator for part in line.specifier} for line in lines}
        for extra, lines in requirements().items()
    }
    assert set().union(*operators[""].values()) == {">="}
    assert [name for name, used in operators["papers"].items() if "==" in used] == ["torch", "torchvision"]


def test_the_book_is_locked_by_itself_and_contradicts_nothing():
    locked = {name: version for name, version, _ in lock_entries("requirements-book.lock")}
    assert [
        line for line in map(Requirement, _lists()[BOOK]) if locked[canonical(line.name)] not in line.specifier
    ] == []
    ours = {name: version for name, version, _ in lock_entries()}
    assert {name: version for name, version in locked.items() if ours.get(name, version) != version} == {}


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-book.lock"])
def test_every_locked_package_has_hashes_and_names_no_host(file):
    for name, _, lines in lock_entries(file):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", lines), name
    text = (ROOT / file).read_text()
    assert not re.search(r"://|^\s*-(i|f|-index|-extra-index|-find-links|-trusted-host)", text, flags=re.MULTILINE)


def test_environment_lists_the_direct_dependencies_in_their_locked_versions():
    locked = {name: version for name, version, _ in lock_entries()}
    conda = conda_versions()
    assert {name: version for name, version in conda.items() if name not in ONLY_CONDA} == {
        name: locked[name] for name in direct()
    }


def test_environment_python_is_one_that_we_support():
    major, minor = conda_versions()["python"].split(".")
    assert (3, 11) <= (int(major), int(minor)) < (3, 14)


@pytest.mark.parametrize("name", ["setuptools", "ipykernel", "packaging", "threadpoolctl"])
def test_what_we_use_without_naming_it_is_locked(name):
    """setuptools builds the package, ipykernel comes with jupyterlab, packaging with pytest, threadpoolctl with
    scikit-learn."""
    assert name in {locked for locked, _, _ in lock_entries()}
