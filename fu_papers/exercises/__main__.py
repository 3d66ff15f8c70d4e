"""`python -m fu_papers.exercises` puts the exercises into the notebooks, with what the check of each stub prints."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Collection
from typing import Any

import nbformat

from fu_papers.exercises.exercise import Exercise
from fu_papers.exercises.shelf import exercises
from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.places import linked, marks

# All that stubs, hints and solutions use: nothing else of a notebook has to be run for its exercises.
BEGIN = """\
import torch

import fu_core
from fu_papers.exercises import check, hint, solution  # noqa: F401"""
TAG = "exercise"


def cells_of(paper: str, count: int = 0, here: Collection[str] = ()) -> list[Any]:
    """The cells of a paper's exercises as they stand in its notebook, run after `count` other cells.

    here: the places in that notebook that their texts can lead to (`fu_papers.places`).
    """
    numbers = itertools.count(count + 1)
    cells = [_code("exercise-begin", BEGIN, next(numbers))]
    for each in _exercises(paper):
        number, id = next(numbers), f"exercise-{_id(each)}"
        output = nbformat.v4.new_output(
            "execute_result", {"text/plain": str(each.judge(each.defined(each.stub)))}, execution_count=number
        )
        cells += [_text(f"{id}-text", each.text, paper, here), _code(id, each.code, number, [output])]
        if each.then:
            text, code = each.further
            printed = nbformat.v4.new_output("stream", name="stdout", text=_printed(code))
            cells += [_text(f"{id}-then-text", text, paper, here), _code(f"{id}-then", code, next(numbers), [printed])]
    return cells


def put_into(notebook: Any, paper: str) -> None:
    """Replace the exercise cells of a notebook; they follow the cell that begins with `## <number>. Exercises`."""
    others = [cell for cell in notebook.cells if not cell.id.startswith("exercise-")]
    (at,) = (k for k, cell in enumerate(others) if re.match(r"## \d+\. Exercises", cell.source))
    count = sum(cell.cell_type == "code" for cell in others[:at])
    if any(cell.cell_type == "code" for cell in others[at:]):
        raise ValueError("exercises come last: no other code may follow them")
    here = [mark for cell in others for mark in marks(cell.source)]
    notebook.cells = [*others[: at + 1], *cells_of(paper, count, here), *others[at + 1 :]]


def main() -> None:
    """All notebooks that have exercises."""
    for paper, path in (guides() | notebooks()).items():
        if _exercises(paper):
            notebook = nbformat.read(path, as_version=4)
            put_into(notebook, paper)
            nbformat.write(notebook, path)
            print(f"{path.name}: {len(_exercises(paper))} exercises")


def _exercises(paper: str) -> list[Exercise]:
    return [each for each in exercises().values() if each.paper == paper]


def _id(each: Exercise) -> str:
    return each.id.replace("_", "-")


def _text(id: str, source: str, paper: str, here: Collection[str]) -> Any:
    return nbformat.v4.new_markdown_cell(linked(source, paper, here), id=id)


def _printed(code: str) -> str:
    """What a cell prints where nothing but the first of the exercises' cells was run."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(f"{BEGIN}\n{code}", {})
    return told.getvalue()


def _code(id: str, source: str, number: int, outputs: list[Any] | None = None) -> Any:
    return nbformat.v4.new_code_cell(
        source, id=id, execution_count=number, outputs=outputs or [], metadata={"tags": [TAG]}
    )


if __name__ == "__main__":
    main()
