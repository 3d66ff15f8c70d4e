"""`python -m fu_core.data [name ...]`: make the caches of the named sets, or list all sets and their state."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fu_core.data.catalogue import BUNDLED, CACHED, NAMES
from fu_core.data.datasets import cache_path, load
from fu_core.errors import CorruptData, DataUnavailable


def state(name: str, data_dir: Path | None) -> str:
    """`bundled`, `cached` or what it needs; nothing is opened."""
    if name in BUNDLED:
        return "bundled"
    return "cached" if cache_path(name, data_dir).exists() else f"needs {CACHED[name].needs}"


def report(name: str, data_dir: Path | None) -> bool:
    """Load one set, which makes its cache if need be, and print one line about it; False if that failed."""
    try:
        data = load(name, data_dir)
    except (ValueError, DataUnavailable, CorruptData) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print(f"{name}: {len(data.x_train):,} training, {len(data.x_test):,} test; {data.source}")
    return True


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 if any of the named sets could not be prepared; the others are prepared all the same."""
    parser = argparse.ArgumentParser(prog="python -m fu_core.data", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--data-dir", type=Path, help="default: $FU_DATA, else data/")
    options = parser.parse_args(arguments)
    if not options.names:
        for name in NAMES:
            print(f"{name:18} {state(name, options.data_dir)}")
        return 0
    done = [report(name, options.data_dir) for name in options.names]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
