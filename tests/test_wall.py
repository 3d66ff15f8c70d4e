"""The wall between the houses: fu_core knows nothing of the companion, by its source and by what it loads.

And what keeps both of them readable: no long modules, no functions with many parameters.
"""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fu_papers
from tests.readme import library_example

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOUSES = {"fu_core", "fu_papers"}
COMPANION = {
    "fu_papers", "pandas", "matplotlib", "seaborn", "papermill", "nbclient", "nbformat", "joblib", "IPython",
    "ipywidgets", "safetensors", "psutil", "pydantic",
}  # fmt: skip
# Modules, with all that is in them, on a package that the library can do without: fu_core.lazy reaches them, or whoever
# has that package does.
LATE = {
    "fu_core.flower": "flwr",
    "fu_core.models.res_unet": "torchvision",
    "fu_core.models.residual_bottoms": "torchvision",
    "fu_core.models.resnet": "torchvision",
}
SLOW = {"sklearn", "torchvision", "transformers", "medmnist", "nibabel", "flwr"}
SECONDS = 0.3  # on top of torch, which takes 1 to 2
LINES = 400  # of a module, with its docstrings and comments
PARAMETERS = 8  # of a function; a constructor's are fields, which have names and defaults of their own


def imported(source):
    """The packages that `source` imports, be it at once, inside a function, for type checkers or by name."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(str(name)), *_]):
                found |= {name} if called in ("import_module", "__import__", "function") else set()
    return {name.partition(".")[0] for name in found}


def modules(house="fu_core"):
    """`{name: source}` of every module of a house."""
    files = {file.relative_to(ROOT).with_suffix(""): file for file in (ROOT / house).rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): file.read_text("utf-8") for path, file in files.items()}


def declared(*extras):
    """The distributions that the library requires by itself and with these extras, and what it asks of them by name.

    `flwr[simulation]` asks for ray, in a version that fits Flower's; a range of our own beside it could only disagree.
    """
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    lines = [Requirement(line) for lines in lists for line in lines]
    return {line.name for line in lines}.union(*(brought(line.name, extra) for line in lines for extra in line.extras))


def brought(name, extra):
    """The distributions that the `extra` of the distribution `name` adds to what it requires anyway."""
    lines = [Requirement(line) for line in requires(name) or ()]
    return {line.name for line in lines if applies(line, extra) and not applies(line, "")}


def applies(line, extra):
    return line.marker is None or line.marker.evaluate({"extra": extra})


def used(house):
    """The distributions whose packages a house imports."""
    packages = set().union(*map(imported, modules(house).values())) - sys.stdlib_module_names - HOUSES
    distribution_of = packages_distributions()
    return {distribution_of[package][0] for package in packages}


def loaded_by(*wanted):
    """The packages in memory once a fresh process has imported the `wanted` modules."""
    script = f"import sys, {', '.join(wanted)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# --- by its source ---


def test_imports_are_found_wherever_they_stand():
    source = """
import a.b as alias
if TYPE_CHECKING:
    from c.d import E
def f():
    import g
    from .h import i
    lazy.function("j.k", "l")
    print("m.n")
"""
    assert imported(source) == {"a", "c", "g", "j"}


def test_the_library_imports_nothing_of_the_companion():
    assert {name: found for name, source in modules().items() if (found := imported(source) & COMPANION)} == {}


def test_the_library_imports_what_it_declares_and_declares_what_it_imports():
    """A dependency that nobody imports burdens everybody; one that is not declared is missing somewhere."""
    assert used("fu_core") == declared("vision", "medical", "transformers", "flower")


def test_the_companion_declares_what_it_imports_and_asks_for_what_its_extra_brings():
    assert used("fu_papers") <= declared("papers", "cluster", "flower")
    distribution_of = packages_distributions()
    assert sorted(distribution_of[package][0] for package in fu_papers.NEEDS) == sorted(declared("papers") - declared())


# --- how long, how wide ---


def parameters(function):
    """The names of a function's parameters, but for the object or class that a method belongs to."""
    of = function.args
    names = [arg.arg for arg in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg) if arg is not None]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def too_wide(source):
    """The functions of a module with more than PARAMETERS parameters: `name: how many`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    counts = [(node.name, len(parameters(node))) for node in functions if node.name not in ("__init__", "__new__")]
    return [f"{name}: {count}" for name, count in counts if count > PARAMETERS]


def test_parameters_are_counted_however_they_are_given():
    source = """
class C:
    def __init__(self, a, b, c, d, e, f, g, h, i): ...
    def method(self, a, b, /, c, d, *, e, f, g, h): ...
    def wide(self, a, b, /, c, d, *rest, e, f, g, **more): ...
def outer(a, b, c, d, e, f, g, h):
    def inner(a, b, c, d, e, f, g, h, i=None): ...
"""
    assert too_wide(source) == ["wide: 9", "inner: 9"]


@pytest.mark.parametrize("house", sorted(HOUSES))
def test_no_module_is_longer_than_a_reader_can_hold(house):
    counts = {name: len(source.splitlines()) for name, source in modules(house).items()}
    assert {name: count for name, count in counts.items() if count > LINES} == {}


@pytest.mark.parametrize("house", sorted(HOUSES))
def test_no_function_has_more_parameters_than_a_call_can_show(house):
    assert {name: found for name, source in modules(house).items() if (found := too_wide(source))} == {}


# --- by what it loads ---


def test_importing_its_modules_loads_nothing_slow_and_nothing_of_the_companion():
    found = loaded_by(*(name for name in modules() if not any(f"{name}.".startswith(f"{late}.") for late in LATE)))
    assert {"fu_core", "torch", "networkx"} <= found
    assert found & (COMPANION | SLOW) == set()


def test_modules_on_an_extra_load_nothing_of_the_companion_either():
    found = loaded_by(*LATE)
    assert set(LATE.values()) <= found
    assert found & (COMPANION - {"pydantic"}) == set()  # Flower has a use of its own for pydantic


# --- how long that takes ---


def imports_of(example):
    """What `example` imports, and the parts of fu_core that it names and that are therefore imported while it runs."""
    tree = ast.parse(example)
    statements = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return "\n".join([*statements, *(name for name in named if re.fullmatch(r"fu_core(\.\w+)+", name))])


def test_what_an_example_names_is_imported_too():
    example = 'import torch, fu_core\nfrom a import b\nx = fu_core.c.d(b)\ny = fu_core.load("digits").x_train'
    assert sorted(imports_of(example).splitlines()) == [
        "from a import b", "fu_core.c", "fu_core.c.d", "fu_core.load", "import torch, fu_core",
    ]  # fmt: skip


def test_the_readme_example_starts_hardly_later_than_torch():
    """Processor time between `import torch` and the end of the example's imports: once in three fresh processes.

    Processor time does not count waiting for others, but the first process may meet cold caches.
    """
    script = f"import time, torch\nbegan = time.process_time()\n{imports_of(library_example())}\n"
    script += "print(time.process_time() - began)"
    seconds = []
    while len(seconds) < 3 and not (seconds and seconds[-1] <= SECONDS):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
    assert 0 < min(seconds) <= SECONDS, seconds
