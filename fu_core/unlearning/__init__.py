"""Methods that make a model forget: the papers' own in modules of their names, the others in `baselines`.

Each is registered beside its function; `method.unlearn` serves a request with any of them.
"""

from __future__ import annotations

from fu_core import lazy

__getattr__ = lazy.submodules(__name__, __path__)
