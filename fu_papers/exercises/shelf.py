"""All exercises by their names, and what a reader calls: check, hint, solution."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from typing import Any

from fu_core.errors import check_choice
from fu_papers.exercises.exercise import Exercise, Page, Verdict


@cache
def exercises() -> dict[str, Exercise]:
    """Every exercise by its id, "puf-2" say, paper by paper and in order."""
    package = "fu_papers.exercises"
    numbered = [
        (found[1], int(found[2]), name)
        for _, name, _ in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if (found := re.fullmatch(r"(.+)_(\d+)", name))
    ]
    loaded = [importlib.import_module(f"{package}.{name}").EXERCISE for _, _, name in sorted(numbered)]
    return {each.id: each for each in loaded}


def exercise(id: str) -> Exercise:
    """The exercise of that id. Raises ValueError naming the nearest."""
    check_choice("exercise", id, exercises())
    return exercises()[id]


def check(id: str, answer: Any) -> Verdict:
    """Whether `answer`, the function that the exercise asks for, is right; if not, what is wrong, with a hint.

    It is called on the exercise's own arguments and compared with the solution. Whatever it does, this raises nothing
    but ValueError, for an exercise that is not there.
    """
    return exercise(id).judge(answer)


def hint(id: str, number: int = 1) -> Page:
    """The hint of that number, from a nudge (1) to nearly all of it; the last one for larger numbers."""
    chosen = exercise(id)
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"number must be a whole number >= 1, got {number!r}")
    shown = min(number, len(chosen.hints))
    return Page(f"Hint {shown} of {len(chosen.hints)}: {chosen.hints[shown - 1]}", chosen.paper)


def solution(id: str) -> Page:
    """A solution, and what there is to learn from it."""
    return Page(exercise(id).solved, exercise(id).paper)
