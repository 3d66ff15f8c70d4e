"""A folder of its own for a small run of a notebook, and what the tests of tests/notebooks look at and compare."""

import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from fu_papers.lab import paths
from fu_papers.lab.committed import CLOCK as CLOCK_FILE
from fu_papers.lab.committed import RECORDS as RECORDS_FILE
from fu_papers.lab.store import CommittedStore

DIGITS, PATTERNS = "digits/iid/softmax_regression", "mnist/dirichlet-1/softmax_regression"
PARAMETERS = {
    "settings": [DIGITS, PATTERNS],
    "targets": [1],
    "seeds": [0],
    "few_seeds": [0],
    "clients": 4,
    "n_train": 200,
    "n_val": 100,
    "n_test": 100,
    "rounds": 2,
    "epochs": 1.0,
    "recovery_cap": 2,
    "natural_rounds": [1, 2],
    "relearn_cap": 1,
    "tuning_trials": 1,
    "official_settings": [],
    "long_settings": [],
    "sample_settings": [],
    "pair_settings": [],
    "partial_settings": [],
    "backdoor_settings": [],
    "segmentation_settings": [],
    "sweep_settings": [],
    "flower": False,  # ray takes longer to start than all the rest
}
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(home|root|work|tmp|Users)\b")
# per setting: description, the trainings of two seeds, fourteen methods, one equivalence; twice the printed form, once
# the printed costs
RECORDS = 2 * (1 + 4 + 14 + 1) + 2 + 1


class Lab:
    """`root` with the working state and the figures of its own runs of a paper's notebook, of changed parameters."""

    def __init__(self, root, data, paper="puf", parameters=PARAMETERS):
        self.root, self.data, self.paper, self.parameters = Path(root), Path(data), paper, parameters
        self.runs, self.figures = self.root / "runs", self.root / "figures"
        self.out = self.figures / "changed" / "quick" / paper

    def command(self, *options):
        overrides = [word for name, value in self.parameters.items() for word in ("-p", name, json.dumps(value))]
        return [
            sys.executable,
            "-m",
            "fu_papers",
            "--profile",
            "quick",
            "--paper",
            self.paper,
            *overrides,
            *options,
        ]

    def environment(self):
        """Everything in this folder; one thread each, as the tests do."""
        ours = {"FU_RUNS": self.runs, "FU_FIGURES": self.figures, "FU_DATA": self.data, "OMP_NUM_THREADS": 1}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FU_")}
        return kept | {name: str(value) for name, value in ours.items()}

    def reproduce(self, *options):
        return subprocess.run(
            self.command(*options),
            env=self.environment(), cwd=paths.ROOT, capture_output=True, text=True, timeout=900,
        )  # fmt: skip

    def shown(self):
        """sha256 of every PNG and CSV by its name."""
        files = [path for path in sorted(self.figures.rglob("*")) if path.suffix in (".png", ".csv")]
        return {str(path.relative_to(self.figures)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def records(self):
        """The exported records by key."""
        return {record.key: vars(record) for record in CommittedStore(self.out).everything()}

    def determined(self):
        """The bytes of records.jsonl: what no clock and no interruption may change."""
        return (self.out / RECORDS_FILE).read_bytes()

    def give_records(self, other):
        """Hand the exported records over to `other`."""
        other.out.mkdir(parents=True)
        for name in (RECORDS_FILE, CLOCK_FILE):
            shutil.copyfile(self.out / name, other.out / name)


def results(records):
    """What must be the same bits whatever happened on the way."""
    return {key: (record["metrics"], record["rounds"], record["tensors"]) for key, record in records.items()}


def code(notebook, tag=""):
    """The code cells, or only those with a tag."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if not tag or tag in cell.metadata.get("tags", [])]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell.outputs]


def unlinked(text, paper):
    """What a text (Markdown) names without a link: claims and errata, and numbers of a paper's equations and the like.

    Numbers not in headings, code and formulas. One in brackets alone is an equation, but after code, whose shape it is.
    """
    named = re.sub(r"\[[^\]]*\]\([^)]*\)(: [A-Z]\d+ to [A-Z]\d+)?", "", text)  # a range beside a link to its list
    shown = re.sub(r"```.*?```|\$\$.*?\$\$|^#.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    shown = re.sub(r"\$[^$\n]*\$", "", re.sub(r"`[^`]*`", "CODE", shown))
    plain = re.sub(r"\[[^\]]*\]\([^)]*\)", "LINK", shown)
    kinds = r"(?:Eqs?|Figs?|Figures?|Tables?|Algorithms?|Theorems?|Lemmas?|Corollary|[Ll]ines?)\.?"
    numbers = r"\(?(?:\d+|[IVX]+)\)?(?!\w)"
    bare = r"(?<![\w)])(?<!CODE )\(\d{1,2}(?:, \d{1,2})*\)"
    return [
        *re.findall(r"(?<![\w/#-])[PHFD]\d{1,2}(?![\w-])", named),
        *(re.findall(rf"\b{kinds}\s{numbers}|LINK(?:,| and| to|–) ?{numbers}|{bare}", plain) if paper else []),
    ]


def check_no_paths(lab, *claims):
    """Nothing that is shown or recorded has a path of this machine. claims: a file that papers have."""
    written = [path for path in lab.figures.rglob("*") if path.suffix in (".csv", ".jsonl")]
    assert {"records.jsonl", "clock.jsonl", *claims} <= {path.name for path in written}
    assert [path.name for path in written if ABSOLUTE_PATH.search(path.read_text(encoding="utf-8"))] == []


def check_drawn_again(lab, folder):
    """From its records alone, in an empty `folder`, a lab's notebook draws the same bytes: no data, no training."""
    empty = folder / "data"
    empty.mkdir()
    again = Lab(folder, empty, lab.paper, lab.parameters)
    lab.give_records(again)
    done = again.reproduce("--figures-only")
    assert done.returncode == 0, done.stderr
    assert again.shown() == lab.shown()
    assert again.records() == lab.records()
    assert again.determined() == lab.determined()
    assert list(empty.iterdir()) == []
    kept = {path.name for path in again.runs.iterdir() if path.suffix != ".png"}  # but for the pictures of toys
    assert kept - {"locks"} == {"executed"}


def closing_cell(executed):
    """The text that the last cell of an executed notebook shows; every cell of it ran once, in order, without error."""
    notebook = nbformat.read(executed, as_version=4)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    (closing,) = code(notebook, "nbval-check-output")
    return closing.outputs[0].data["text/plain"]


def git(*words):
    """What a command of git says of this repository, in bytes; without one the test is skipped."""
    if not (paths.ROOT / ".git").exists():
        pytest.skip("what is committed cannot be told without git")
    return subprocess.run(["git", "-C", paths.ROOT, *words], capture_output=True, check=True).stdout


def without_tags(page):
    """What a reader sees of a piece of HTML: a name may be a link, and a caption is still one sentence."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))
