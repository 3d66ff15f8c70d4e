"""A small reproduction of PUF that can be made to fail at any of its file operations, in a process of its own.

`reproduce` does what notebook 01_puf does: it loads a data set, which caches it, maps runs that train and unlearn,
draws figures and tables, judges claims, and exports the records. `perform` lets it run in a forked process, whose
operations on files are counted as they are about to happen: at a chosen one the process is killed, or from there on
the disk is full.
"""

import ctypes
import dataclasses
import errno
import importlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import matplotlib.pyplot as plt
import psutil
import torch

from fu_core.data.bundled import digits
from fu_core.data.catalogue import CACHED, Entry
from fu_core.data.datasets import data_dir
from fu_papers import problem_figures, problems
from fu_papers.lab.committed import CLOCK as CLOCK_FILE
from fu_papers.lab.context import RunContext
from fu_papers.lab.paths import figures_dir, runs_dir
from fu_papers.lab.record import Record
from fu_papers.lab.store import RecordStore, open_store
from fu_papers.look import save_figure, save_table, style
from fu_papers.puf import claims as puf_claims
from fu_papers.puf import figures as puf_figures
from fu_papers.puf import results as puf_results
from fu_papers.puf import tables as puf_tables
from fu_papers.study import Study, wide
from fu_papers.verdicts import write_claims
from tests import toy_runs
from tests.notebook_lab import Lab, results
from tests.puf_lab import experiment

# What loads when it is first used takes longer than a reproduction, so it is there before processes are forked.
for late in ("matplotlib.backends.backend_agg", "sklearn.datasets", "sklearn.linear_model", "torch._dynamo"):
    importlib.import_module(late)

SETTING = "mnist/iid/softmax_regression"  # `mnist` has a cache; what is in it is ours
TINY = experiment(
    [SETTING], profile="quick", clients=3, n_train=90, n_val=30, n_test=60, rounds=2, batch_size=20,
    recovery_cap=2, mode_rounds_d=1, mode_rounds_m=1, fed_au_epochs=1,
)  # fmt: skip
ASKED = ("settings", "training", "unlearning and recovery", "printed costs", "Regular against Special")
DISKS = (100, 170, 260, 330, 4000)  # kB; a reproduction needs about 500
HANGS = 300  # seconds after which a reproduction of about one second is given up: others may have the processor


# --- the reproduction ------------------------------------------------------------------------------------------------


def compute():
    """The records behind everything shown, by stage, and their study; what is there is read, the rest computed."""
    problems._problem.cache_clear()  # a notebook has a kernel of its own
    study = Study(TINY, jobs=1)
    return {stage: study.run(stage) for stage in ASKED}, study


def write_tables(found, out):
    """Tables and claims from records, in the folder `out`."""
    descriptions, trainings, unlearnings, costs, equivalence = (found[stage] for stage in ASKED)
    runs = wide(puf_results.of_runs(unlearnings, trainings))
    source = problem_figures.source(descriptions)
    save_table(puf_tables.settings_table(TINY, descriptions), out / "table_ii.csv", source)
    save_table(puf_results.saved(runs), out / "runs.csv", source)
    shown = (unlearnings, equivalence, descriptions, costs["costs"])
    verdicts = puf_claims.verdicts(TINY, runs, runs.iloc[:0], *shown)
    write_claims(verdicts, "puf", out.parent)


def draw(found, out):
    """One figure from records, in the folder `out`."""
    with style():
        fig = puf_figures.training_curves(TINY, found["training"])
        save_figure(fig, out / "training.png", problem_figures.source(found["settings"]))
    plt.close(fig)


def reproduce():
    """Everything, as a notebook does it."""
    found, study = compute()
    write_tables(found, study.out)
    draw(found, study.out)
    study.export()


def walk():
    """A single run, with tensors and checkpoints."""
    open_store(figures_dir("quick", "puf")).run(toy_runs.walk, {"rounds": 3, "seed": 1})


def reproduce_on_a_growing_disk():
    """The errors of a reproduction on a disk of some kilobytes that is enlarged until it succeeds, and what it shows.

    None where a process may not mount a file system that only it sees (Linux with user namespaces may).
    """
    root, errors = runs_dir().parent, []
    if not _mount(root, DISKS[0]):
        return None
    for kilobytes in DISKS:
        assert _mount(root, kilobytes, again=True)
        try:
            reproduce()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors, Lab(root, data_dir()).shown(), [str(path) for path in half_written(root)]


def _mount(folder, kilobytes, again=False):
    """Mount or enlarge a disk in memory; False where that is not allowed."""
    libc, private, enlarge = ctypes.CDLL(None), 0x44000, 0x20  # MS_REC | MS_PRIVATE, MS_REMOUNT
    if not again:
        user, group = os.getuid(), os.getgid()
        if sys.platform != "linux" or libc.unshare(0x10020000):  # CLONE_NEWUSER | CLONE_NEWNS
            return False
        try:
            for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
                Path("/proc/self", file).write_text(text)
        except OSError:
            return False
        if libc.mount(b"none", b"/", None, private, None):
            return False
    size = f"size={kilobytes}k".encode()
    return not libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", enlarge if again else 0, size)


@contextmanager
def inside(lab, **settings):
    """Work in the folders of `lab`; `mnist` is made from the digits that come with scikit-learn."""
    entry = {"mnist": Entry(lambda raw: digits())}
    settings = lab.environment() | {"FU_CHECKPOINT_SECONDS": "0"} | settings  # a checkpoint after every round
    with mock.patch.dict(os.environ, settings, clear=True), mock.patch.dict(CACHED, entry):
        yield


def new_lab(root):
    """A folder for one reproduction and all its repetitions."""
    root.mkdir(parents=True)
    return Lab(root, root / "data")


# --- what it does to files, and what can happen to it ----------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """An operation on a file that is about to happen: the `number`-th of its process."""

    number: int
    kind: str  # of file
    operation: str  # "create", "flush" (opened again to be flushed to the disk), "rename", "remove", "mkdir"
    path: str


@dataclass(frozen=True)
class Kill:
    """SIGKILL instead of operation `at`. What is being written is cut to a `share` of what it has so far."""

    at: int
    share: float = 1.0


@dataclass(frozen=True)
class Full:
    """From operation `at` on, no file can be made or written and no folder made."""

    at: int


@dataclass(frozen=True)
class Limit:
    """No file can become longer than so many bytes: the operating system stops the write itself."""

    bytes: int


@dataclass
class Ending:
    """How a reproduction ended: by itself (0), by an error, or by a signal (-9)."""

    exitcode: int = 0
    events: list[Event] = dataclasses.field(default_factory=list)  # all, or the one at which it was killed
    error: str = ""  # "StorageError: cannot write ..."
    result: Any = None  # what the work returned


def kind_of(path):
    """Which kind of file that is; `path` is relative to the lab."""
    parts, name = path.parts, path.name
    if parts[0] == "data":
        return "data cache"
    if "locks" in parts:
        return "lock"
    if "checkpoints" in parts:
        return "checkpoint"
    if parts[0] == "runs":
        return "tensors" if ".safetensors" in name else "record"
    if ".jsonl" in name:
        return "export"
    return "figure" if ".png" in name else "table"


OPERATIONS = {"os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir"}  # names of audit events


class Watch:
    """An audit hook that counts operations on files below `root` and lets `fault` strike.

    safetensors writes from Rust, unseen; its file is seen when it is flushed.
    """

    def __init__(self, root, fault, send):
        self.root, self.fault, self.send = Path(root), fault, send
        self.events = []

    def __call__(self, name, arguments):
        if name not in ("open", *OPERATIONS) or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = Path(arguments[0])
        if not path.is_relative_to(self.root) or path.parent == self.root:
            return
        operation = OPERATIONS.get(name)
        if name == "open":
            if not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
            operation = "flush" if arguments[1] == "r+" else "create"
        inside = path.relative_to(self.root)
        event = Event(len(self.events), kind_of(inside), operation, str(inside))
        self.events.append(event)
        if isinstance(self.fault, Kill) and event.number == self.fault.at:
            self._kill(event)
        if isinstance(self.fault, Full) and event.number >= self.fault.at and operation in ("create", "flush", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _kill(self, event):
        for unfinished in half_written(self.root):
            os.truncate(unfinished, int(unfinished.stat().st_size * self.fault.share))
        self.send(event)
        os.kill(os.getpid(), signal.SIGKILL)


def half_written(root):
    """Files that have not got their names yet."""
    return [path for ending in ("*.part", "*.tmp") for path in Path(root).rglob(ending)]


# --- in a process of its own -----------------------------------------------------------------------------------------


def perform(lab, fault=None, work=reproduce):
    """`work()` in the folders of `lab` and in a process of its own, with `fault` on the way: its Ending.

    The process is forked from one that has imported everything, and has one thread only.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.harness"])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(lab, fault, work, send))
    process.start()
    send.close()
    ending = Ending()
    try:
        while receive.poll(HANGS):
            news = receive.recv()
            if isinstance(news, Event):
                ending.events.append(news)
            else:
                ending.events, ending.error, ending.result = news
        raise AssertionError(f"no end after {HANGS} s: {(lab.root / 'log').read_text()}")
    except EOFError:  # the process has ended, whichever way
        process.join(HANGS)
    finally:
        process.kill()
    ending.exitcode = process.exitcode
    return ending


def _child(lab, fault, work, channel):
    # a limit is on every file, and what is said on the way (progress, on a slow machine) would end the log's write
    log = os.open(os.devnull if isinstance(fault, Limit) else lab.root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    matplotlib.use("Agg")
    assert psutil.Process().num_threads() == 1
    if isinstance(fault, Limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.bytes, fault.bytes))
    watch = Watch(lab.root, fault, channel.send)
    error, result = "", None
    with inside(lab):
        sys.addaudithook(watch)
        try:
            result = work()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    channel.send((watch.events, error, result))


# --- what must hold afterwards ---------------------------------------------------------------------------------------


def check_all_is_whole(lab, clean):
    """Every file that has its name is the one of the undisturbed reproduction, but for times and checkpoints."""
    files = {path for path in lab.root.rglob("*") if path.is_file()} - set(half_written(lab.root))
    for path in sorted(files):
        inside = path.relative_to(lab.root)
        kind = kind_of(inside)
        twin = clean.root / inside
        if kind == "record":
            ours, theirs = (Record.from_json(file.read_text(encoding="utf-8"), file.stem) for file in (path, twin))
            assert (ours.metrics, ours.rounds, ours.tensors) == (theirs.metrics, theirs.rounds, theirs.tensors)
        elif kind == "export" and path.name == CLOCK_FILE:
            lines = [[json.loads(line)["key"] for line in file.read_text().splitlines()] for file in (path, twin)]
            assert lines[0] == lines[1]
        elif kind == "checkpoint":
            check_checkpoint(lab, path.stem)
        elif kind != "lock" and path.suffix != ".lock" and path.name != "log":
            assert path.read_bytes() == twin.read_bytes(), f"{inside} is not whole"


def check_checkpoint(lab, key):
    """One can go on from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged one is moved aside with a warning
        assert RunContext(RecordStore(lab.runs / "records"), key).resume() is not None


def check_same_as_clean(lab, clean):
    """The same figures, tables and numbers as undisturbed, and nothing left over."""
    assert lab.shown() == clean.shown()
    assert results(lab.records()) == results(clean.records())
    assert lab.determined() == clean.determined()
    assert half_written(lab.root) == []
    assert list((lab.runs / "records" / "checkpoints").iterdir()) == []
    assert not list(lab.root.rglob("*.corrupt-*"))
