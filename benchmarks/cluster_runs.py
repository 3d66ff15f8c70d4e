"""What the workers of bench_cluster.py compute. A module of its own, because runs must be importable."""

from __future__ import annotations

import time
from typing import Any

from fu_papers.lab.record import run_function


@run_function("bench.nap")
def nap(config: dict[str, Any], context: Any) -> tuple[dict[str, Any], None]:
    """Sleeps for `milliseconds`; its `number` as the only metric."""
    time.sleep(config["milliseconds"] / 1000)
    return {"number": config["number"]}, None
