"""Flower's own simulation, in which ray trains one client after the other."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fu_core.errors import ConfigError, SimulationUnavailable, check_count
from fu_core.flower.clients import client_nodes
from fu_core.flower.extra import EXTRA

ONE_CLIENT: dict[str, dict[str, Any]] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # at a time
RAY: dict[str, Any] = {
    "address": "local",  # a ray of its own, although a cluster may be running
    "num_cpus": 1,
    "object_store_memory": 10**8,
    "include_dashboard": False,
    "logging_level": "ERROR",
    "log_to_driver": False,
}
ATTEMPTS = 5  # to start ray, which gives each up by itself: after half a minute at the earliest, two at the latest
T = TypeVar("T")


def simulate(app: ClientApp, clients: int, serve: Callable[[Grid, list[int]], T], *, attempts: int = ATTEMPTS) -> T:
    """Run Flower's own simulation of `clients` nodes with `app`; returns what the server `serve(grid, nodes)` does.

    nodes: as from `client_nodes`. ray trains the clients one after the other in a process of its own, which takes
    seconds to start, or minutes on a busy machine; of each of the `attempts` that fails before another a warning tells.
    Of Flower's log only errors are shown. Raises what `serve` raises, `ImportError` without ray, and only if ray does
    not start `SimulationUnavailable`.
    """
    check_count("attempts", attempts, error=ConfigError)
    if find_spec("ray") is None:  # Flower would end the process
        raise ImportError(EXTRA)
    returned: list[T] = []
    server, log = ServerApp(), logging.getLogger("flwr")

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        returned.append(serve(grid, client_nodes(grid, clients)))

    _start_ray(attempts)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        run_simulation(server, app, clients, backend_config=ONE_CLIENT)
    finally:
        log.setLevel(level)
    return returned[0]


def _start_ray(attempts: int = ATTEMPTS) -> None:
    """Start ray, unless it runs; Flower ends it. Raises `SimulationUnavailable`, whatever ray raised.

    Its processes wait for each other for half a minute, which no setting changes. On a busy machine that is too short
    for the first ones, who read their files from the disk, and long enough for those that follow. Flower would not try
    again, and its server would wait for ever.
    """
    import ray  # takes seconds

    if ray.is_initialized():
        return
    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # who trains imports what can be imported here
    for attempt in range(1, attempts + 1):
        try:
            ray.init(runtime_env=paths, **RAY)
            return
        except Exception as error:  # of several kinds, the plain one among them
            ray.shutdown()
            said = f"{error}" or type(error).__name__
            if attempt == attempts:
                raise SimulationUnavailable(f"ray did not start in {attempts} attempts: {said}") from error
            first = said.splitlines()[0]
            warnings.warn(
                f"ray did not start in attempt {attempt} of {attempts} and is tried again: {first}", stacklevel=3
            )
