"""Parts of a package that are imported when they are first used: graphs and statistics take as long as torch itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, str] = MappingProxyType({})


def function(module: str, name: str) -> Callable[..., Any]:
    """`name` of `module`, which is imported when it is called."""
    return lambda *args: getattr(importlib.import_module(module), name)(*args)


def parts(package: str, modules: Collection[str], objects: Mapping[str, str] = NOTHING) -> Callable[[str], Any]:
    """The `__getattr__` of `package` with these `modules`, and `objects` by name, each with the module it lives in."""

    def get(name: str) -> Any:
        if name in objects:
            return getattr(importlib.import_module(objects[name]), name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def submodules(package: str, path: Iterable[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package all of whose modules are parts of it; `path`: the package's `__path__`."""
    return parts(package, [found.name for found in pkgutil.iter_modules(path)])
