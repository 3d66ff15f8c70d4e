"""Which run of a notebook the book and its slides show: the runner's executed copy of it, or the committed one.

A copy is shown only if it is a run of the notebook as it stands, with the profile's own values, to its end, and if its
pictures are those that lie in `figures/<profile>/<paper>`: a copy from before a change of code or of records is not.
A guide leaves no figures to compare with, and is the same in every profile: of it the committed run is shown.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat

from fu_papers.lab import paths
from fu_papers.lab.notebooks import plan
from fu_papers.parameters import profiles

INJECTED = "injected-parameters"  # papermill's tag of the cell that it puts in


def shown(paper: str, path: Path, profile: str) -> tuple[Any, str]:
    """The notebook to show, cell by cell as in `path`, and one sentence that says which run it is."""
    notebook = nbformat.read(path, as_version=4)
    pictures = pictures_of(paths.figures_dir(profile, paper))
    copy = _executed(paper, notebook, profile) if pictures else None
    if copy is not None and pictures <= pictures_in(copy):
        of = f"at the size `{profile}`, with the figures of `figures/{profile}/{paper}`"
        return copy, f"What you see is a run by `make reproduce` {of}."
    found = re.search(r'^profile: str = "(\w+)"', _parameters(notebook), re.MULTILINE)
    return notebook, f"What you see is the committed run{f' at the size `{found[1]}`' if found else ''}."


def pictures_in(notebook: Any) -> set[bytes]:
    """All PNG files that a notebook shows."""
    found = (output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    return {base64.b64decode(data["image/png"]) for data in found if "image/png" in data}


def pictures_of(folder: Path) -> set[bytes]:
    """All PNG files that a run has left in its folder of figures."""
    return {path.read_bytes() for path in folder.glob("*.png")}


def _executed(paper: str, notebook: Any, profile: str) -> Any:
    """`notebook` with the outputs of the runner's copy of it; None without one, or if it is a copy of another."""
    if profile not in profiles(paper):
        return None
    chosen = plan(paper, profile, {})
    if not chosen.executed.exists():
        return None
    copy = nbformat.read(chosen.executed, as_version=4)
    run = copy.metadata.get("papermill", {})
    cells = [cell for cell in copy.cells if INJECTED not in cell.metadata.get("tags", [])]
    if run.get("exception", True) or run["parameters"] != chosen.parameters:
        return None
    if [(cell.id, cell.source) for cell in cells] != [(cell.id, cell.source) for cell in notebook.cells]:
        return None
    ours = nbformat.from_dict(notebook)  # whose tags say what is folded and what is on a slide
    for here, there in zip(ours.cells, cells, strict=True):
        if here.cell_type == "code":
            here.outputs = [output for output in there.outputs if output.get("name") != "stderr"]  # bars of progress
    return ours


def _parameters(notebook: Any) -> str:
    cells = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    return next((str(cell.source) for cell in cells), "")
