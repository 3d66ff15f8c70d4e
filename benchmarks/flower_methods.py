"""Every method that Flower can serve, in Flower and in `unlearn`: the largest difference of a parameter.

    python benchmarks/flower_methods.py                  # Flower's simulation, four clients
    python benchmarks/flower_methods.py --deployment     # a SuperLink and two SuperNodes, processes on loopback

Digits, softmax regression: two rounds of training by Flower's FedAvg, the method in the third, a round of recovery.
A deployment starts a process for every message, so that it tries three of the methods. Written for Flower 1.41, whose
processes talk over HTTP on a port of their own each; there is no TLS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ |= dict.fromkeys(
    ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"), "0"
)  # before flwr reads it

import flwr
from flwr.serverapp import Grid

from fu_core import partition
from fu_core.data import load
from fu_core.federation import ClientOpt, Federation, fedavg
from fu_core.federation.elsewhere import as_server
from fu_core.flower import UnlearningStrategy, client_app, simulate, to_arrays, to_vector
from fu_core.models import build
from fu_core.request import Request
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, methods, unlearn

ROUNDS, REQUEST = 2, "client-1"
FEW: dict[str, dict[str, Any]] = {"NoT": {}, "PUF-Special": {}, "FedOSD": {"rounds": 1, "post_rounds": 1}}
PORT, NODE_PORTS = 8010, (8011, 8012)
HERE = Path(__file__).resolve().parent
PROJECT = """[project]
name = "fu-methods"
version = "1.0.0"
description = "Methods of fu_core through Flower"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fu-core"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
"""
APP = """import json
import os
from pathlib import Path
from flwr.serverapp import ServerApp
from fu_core.flower import client_app, client_nodes
from flower_methods import FEW, compared, federation
client = client_app(federation(2))
server = ServerApp()
@server.main()
def main(grid, context):
    rows = compared(grid, client_nodes(grid, 2), 2, FEW)
    out = Path(os.environ["FU_FLOWER_OUT"])
    out.with_suffix(".part").write_text(json.dumps(rows))
    out.with_suffix(".part").rename(out)
"""


def federation(clients: int) -> Federation:
    """Digits, dealt out unevenly: the same on every machine."""
    data = load("digits")
    parts = partition.dirichlet(data.y_train, clients, alpha=1.0, seed=0)
    dealt = [(data.x_train[p], data.y_train[p]) for p in parts]
    return Federation(build("softmax_regression", data), dealt, ClientOpt(lr=0.05, batch_size=50))


def compared(
    grid: Grid, nodes: list[int], clients: int, which: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A row per method of `which`, with its parameters: refused, or how far its models are from ours."""
    f = federation(clients)
    w_0 = f.model.init(0)
    memory = Memory(UpdateHistory(w_0), last_round=ROUNDS)
    trained = Trained(f, fedavg(f, w_0, ROUNDS, on_updates=memory.record), ROUNDS, w_0, memory)
    rest = f.after(Request.parse(REQUEST).resolve(f.clients))
    least = dict.fromkeys(("min_train_nodes", "min_available_nodes"), len(rest.clients))
    rows = []
    for name, parameters in which.items():
        try:
            how = UnlearningStrategy(
                name, nodes, REQUEST, ROUNDS + 1, as_server(f), parameters=parameters, fraction_evaluate=0.0, **least
            )
        except ValueError as error:
            rows.append({"method": name, "refused": str(error)})
            continue
        ours = unlearn(name, trained, REQUEST, **parameters)
        models, start = {}, time.perf_counter()
        how.start(
            grid,
            to_arrays(f.model, w_0),
            num_rounds=ROUNDS + 2,
            evaluate_fn=lambda t, arrays, models=models: models.update({t: to_vector(arrays, f.model.names)}),
        )
        after = fedavg(rest, ours.model, 1, first_round=ROUNDS + 2)
        rows.append(
            {
                "method": name,
                "moved": float((ours.model - trained.model).abs().max()),
                "unlearned": float((models[ROUNDS + 1] - ours.model).abs().max()),
                "recovered": float((models[ROUNDS + 2] - after).abs().max()),
                "rounds": ROUNDS + ours.cost.rounds + 1,
                "seconds": time.perf_counter() - start,
            }
        )
    return rows


def deployed(folder: Path, seconds: float = 1800.0) -> list[dict[str, Any]]:
    """The same where a SuperLink and two SuperNodes are processes of their own; every client computes in yet another.

    Raises RuntimeError with the end of Flower's log if no result has come after `seconds`.
    """
    out, bin_ = folder / "result.json", Path(sys.executable).parent
    app, home = folder / "app", folder / "home"
    app.mkdir()
    home.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "app.py").write_text(APP)
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{PORT}"\ninsecure = true\n')
    env = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FU_FLOWER_OUT": str(out),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        "PATH": os.pathsep.join([str(bin_), os.environ["PATH"]]),
    }
    log = folder / "log.txt"
    with ExitStack() as running, log.open("w") as lines:

        def start(*command: str) -> None:
            process = subprocess.Popen([bin_ / command[0], *command[1:]], env=env, stdout=lines, stderr=lines)
            running.callback(lambda: (process.terminate(), process.wait()))

        start("flower-superlink", "--insecure", "--port", str(PORT), "--disable-runtime-dependency-installation")
        for i, port in enumerate(NODE_PORTS):
            start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{PORT}", "--port", str(port),
                  "--node-config", f"partition-id={i} num-partitions={len(NODE_PORTS)}")  # fmt: skip
        deadline = time.monotonic() + seconds
        asked = False
        while not out.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"no result after {seconds:g} seconds; Flower's log ends in\n{log.read_text()[-4000:]}"
                )
            if not asked:  # as soon as the SuperLink listens
                run = [bin_ / "flwr", "run", str(app), "here"]
                asked = subprocess.run(run, env=env, stdout=lines, stderr=lines, check=False).returncode == 0
            time.sleep(1.0)
    return json.loads(out.read_text())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--deployment", action="store_true", help="processes on loopback instead of a simulation")
    if parser.parse_args().deployment:
        with TemporaryDirectory() as folder:
            rows = deployed(Path(folder))
    else:
        rows = simulate(
            client_app(federation(4)), 4, lambda grid, nodes: compared(grid, nodes, 4, {name: {} for name in methods()})
        )
    print(f"Flower {flwr.__version__}: the largest difference of a parameter, and how far the method moves one")
    for row in rows:
        if "refused" not in row:
            differences = f"after unlearning {row['unlearned']:.1e}, after recovery {row['recovered']:.1e}"
            cost = f"{row['rounds']} rounds, {row['seconds']:.1f} s"
            print(f"{row['method']:18} {differences}; moved {row['moved']:.2g}; {cost}")
    print(f"refused: {', '.join(row['method'] for row in rows if 'refused' in row)}")


if __name__ == "__main__":
    main()
