"""A Slurm cluster of two nodes on this machine: `python -m tests.slurm.cluster COMMAND ...` runs COMMAND on it.

slurmctld, a slurmd per node and munge run in namespaces of their own, with their own network (in which `ib0` is), host
name, processes and mounts, and keep everything in a folder that is deleted at the end. So nothing that runs here
already is touched, no port is taken, and with the last process of the namespace, however it ends, all are gone.
The command sees the cluster through $SLURM_CONF; its exit code is ours.

Needs Linux, root, and Slurm with munge: on Debian `apt-get install slurm-wlm munge`. Root, because slurmctld and
slurmd drop their supplementary groups when they start, which a namespace of an ordinary user does not allow.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAMS = ("unshare", "ip", "munged", "slurmctld", "slurmd", "sinfo", "squeue", "sbatch", "scancel")
NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
ON_CLUSTER = "ON_SLURM_CLUSTER_OF_THE_TESTS"  # set for the command
NODES = ("node1", "node2")
CPUS = 2  # per node: jobs at a time
START_SECONDS = 120
FIRST_PORT = 7001

# Two slurmd on one host are told apart by their ports. Memory is given as a node of a cluster has it, for the recipe's
# jobs to fit, and is not what this machine has (config_overrides). Nothing needs cgroups or a database.
SETTINGS = """\
ClusterName=test
SlurmctldHost=login(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
PartitionName=cpu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


def main(command: Sequence[str]) -> int:
    """Run `command` on a new cluster; returns its exit code, 2 if there can be no cluster here."""
    if problem := unavailable():
        print(f"no Slurm cluster can be set up here: {problem}", file=sys.stderr)
        return 2
    if not command:
        print("say what to run on the cluster: python -m tests.slurm.cluster COMMAND ...", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the folder would stay
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        again = [sys.executable, "-m", "tests.slurm.cluster", "--inside", folder, *command]
        return subprocess.run(["unshare", *NAMESPACES, *again]).returncode


def unavailable() -> str:
    """What is missing for a cluster on this machine, or an empty text."""
    if sys.platform != "linux":
        return "it needs Linux"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found; on Debian: apt-get install slurm-wlm munge util-linux iproute2"
    if os.geteuid() != 0:
        return "slurmctld and slurmd must start as root; call it as root, best in a container or a virtual machine"
    if subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True).returncode:
        return "this root may not make namespaces (unshare failed); in a container it needs CAP_SYS_ADMIN"
    return ""


def inside(folder: Path, command: Sequence[str]) -> int:
    """Start the cluster in the namespaces of this process, which nobody shares, and run `command`."""
    os.umask(0o022)
    folder.chmod(0o755)  # munge's socket must be reachable for everybody
    _make_network()
    settings = _write_settings(folder)
    _start_munge(folder / "munge")
    os.environ |= {"SLURM_CONF": str(settings), ON_CLUSTER: "1"}
    _start("slurmctld", "-D", log=folder / "slurmctld.out")
    for node in NODES:
        _start("slurmd", "-D", "-N", node, log=folder / f"{node}.out")
    _wait_until(_all_idle, "the nodes are not idle", folder)
    return subprocess.run(command).returncode


def _make_network() -> None:
    """A network of two ends in here: `ib0`, as the recipe calls it, and its peer."""
    for line in (
        "hostname login",
        "ip link set lo up",
        "ip link add ib0 type veth peer name ib0-peer",
        "ip address add 10.0.0.1/24 dev ib0",
        "ip link set ib0 up",
        "ip link set ib0-peer up",
    ):
        subprocess.run(line.split(), check=True)


def _write_settings(folder: Path) -> Path:
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    node = "NodeName={} NodeHostname=login NodeAddr=127.0.0.1 Port={} CPUs={} RealMemory=64000\n"
    nodes = [node.format(name, port, CPUS) for port, name in enumerate(NODES, FIRST_PORT)]
    [first, partition] = SETTINGS.split("PartitionName")
    path = folder / "slurm.conf"
    text = first + "".join(nodes) + "PartitionName" + partition
    path.write_text(text.format(folder=folder, nodes=",".join(NODES)), encoding="utf-8")
    return path


def _start_munge(folder: Path) -> None:
    key, socket = folder / "key", folder / "socket"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    files = {"key-file": key, "socket": socket, "pid-file": folder / "pid", "seed-file": folder / "seed"}
    options = [f"--{name}={path}" for name, path in files.items()]
    _start("munged", "--foreground", *options, f"--log-file={folder / 'log'}", log=folder / "out")
    _wait_until(socket.exists, "munged has opened no socket", folder)


def _start(*command: str, log: Path) -> None:
    """A process that lives as long as the namespace."""
    with log.open("w") as file:
        subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def _all_idle() -> bool:
    shown = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], capture_output=True, text=True)
    return shown.stdout.split() == ["idle"] * len(NODES)


def _wait_until(condition: Callable[[], bool], problem: str, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            said = [
                f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(folder.glob("*.out"))
            ]
            sys.exit("\n".join([f"after {START_SECONDS} s {problem}", *said]))
        time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
