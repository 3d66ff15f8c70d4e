"""`python -m fu_papers.arena my_module:federation --request client-7`: who can serve it, at what price, as a report."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from fu_core.errors import ConfigError
from fu_core.federation import Federation
from fu_papers.arena.own import JUDGES, WITHOUT_RETRAINING, compare
from fu_papers.arena.report import verdict, write_report
from fu_papers.arena.results import ControlsFailed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 0 if all went well, 1 if something failed, 2 if it was called wrongly."""
    options = _parser().parse_args(arguments)
    try:
        federation = loaded(options.federation)
        frame = compare(
            federation if options.seed is None else federation.having(seed=options.seed),
            options.request,
            options.method or None,
            WITHOUT_RETRAINING if options.no_retrain else tuple(JUDGES),
            rounds=options.rounds,
            models=options.models,
            watch=lambda text: print(text, file=sys.stderr, flush=True),
        )
        for request in options.request if not options.no_retrain else ():
            try:
                print(f"{request}: {verdict(frame, request)}")
            except ControlsFailed as failed:
                print(f"{request}: {failed}")
        print(write_report(frame, options.out, f"{options.federation}: {', '.join(options.request)}"))
    except (ValueError, RuntimeError) as error:  # the library's own, which name what is wrong
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def loaded(place: str) -> Federation:
    """The federation of `module:name`, a `Federation` or a function without arguments that makes one.

    Modules are looked for where Python is called, too. Raises ConfigError for what is not there or no federation.
    """
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"federation must look like my_module:federation, got {place!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"federation must name something to be imported, got {place!r}: {error}") from error
    finally:
        sys.path.pop(0)
    found = found() if callable(found) else found
    if not isinstance(found, Federation):
        raise ConfigError(f"federation must be a fu_core.Federation, but {place} is {type(found).__name__}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fu_papers.arena", description="Which method, at what price?")
    parser.add_argument("federation", help="my_module:federation, a fu_core.Federation or a function that makes one")
    parser.add_argument(
        "--request", action="append", required=True, help="client-7, sample-7-0.5, class-0, ...; again for more"
    )
    parser.add_argument("--method", action="append", default=[], help="only this one; again for more (default: all)")
    parser.add_argument("--rounds", type=int, default=20, help="of training (20)")
    parser.add_argument("--models", type=int, default=16, help="trainings of each kind, a seed each (16)")
    parser.add_argument("--seed", type=int, help="the first training seed (the federation's)")
    parser.add_argument(
        "--no-retrain", action="store_true", help="retraining cannot be afforded: a reference judge instead"
    )
    parser.add_argument("--out", type=Path, default=Path("arena.html"), help="the report (arena.html)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
