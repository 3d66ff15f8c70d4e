"""What the papers compare with, one file per method. A file more is a method more."""

from __future__ import annotations

from fu_core import lazy

__getattr__ = lazy.submodules(__name__, __path__)
