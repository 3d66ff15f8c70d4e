"""pyproject.toml, requirements.lock and environment.yml name the same packages in the same versions."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAMES = {"pytorch": "torch"}
ONLY_CONDA = {"python", "pip", "make"}  # what pip users bring along


def canonical(name):
    """The name under which package indexes know a project (PEP 503), without its extras."""
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def direct():
    """The names of all direct dependencies, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [canonical(re.match(r"[\w.-]+", line).group()) for line in lines]


def lock_entries():
    """`(name, version, lines)` of every package in the lock file."""
    text = (ROOT / "requirements.lock").read_text()
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
    assert len(set(direct())) == len(direct())
    assert {name: locked[name] for name in direct()} == dict.fromkeys(direct(), 1)


def test_every_locked_package_has_hashes_and_names_no_host():
    for name, _, lines in lock_entries():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", lines), name
    text = (ROOT / "requirements.lock").read_text()
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


@pytest.mark.parametrize("name", ["setuptools", "ipykernel", "threadpoolctl"])
def test_what_we_use_without_naming_it_is_locked(name):
    """setuptools builds the package, ipykernel comes with jupyterlab, threadpoolctl with scikit-learn."""
    assert name in {locked for locked, _, _ in lock_entries()}
