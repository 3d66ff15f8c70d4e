"""Predict, then reveal: the answer to a question that stands before a figure, folded until the reader opens it.

Questions are prose, and their choices are ranges. Which one is right, and every number in the answer, is computed from
the records that the figure is drawn from, so that neither can be out of date at any profile.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from IPython.display import HTML

from fu_core.errors import InvalidRequest
from fu_papers.places import linked_html

SUMMARY = "Chosen? Then open the answer"
LETTERS = "abcdefgh"


def letter(value: float, bounds: Sequence[float]) -> str:
    """Which choice `value` is: "a" up to the first of the ascending `bounds`, "b" up to the second, and so on.

    On a bound it is the lower choice. Raises ValueError for bounds that do not ascend or that are more than there are
    letters for, or a value that is no number.
    """
    if len(bounds) >= len(LETTERS):
        raise InvalidRequest(f"bounds must be at most {len(LETTERS) - 1}, got {len(bounds)}")
    if any(bound != bound for bound in bounds) or list(bounds) != sorted(set(bounds)):
        raise InvalidRequest(f"bounds must ascend, got {list(bounds)}")
    if value != value:
        raise InvalidRequest("value must be a number, got nan")
    return LETTERS[sum(value > bound for bound in bounds)]


def reveal(right: str, because: str, paper: str = "") -> HTML:
    """The right choice and the reason, folded; `*this*` in the reason is emphasised.

    right: a letter, or several where places differ, as in "b and c". paper: whose equations the reason names.
    """
    said = re.sub(r"\*(?!\s)([^*]+)(?<!\s)\*", r"<em>\1</em>", linked_html(because, paper))
    return HTML(f"<details><summary><b>{SUMMARY}</b></summary><p><b>{html.escape(right)}.</b> {said}</p></details>")


def all_of(letters: Sequence[str]) -> str:
    """Several answers in one: "b" if all agree, "b and c" if not."""
    return " and ".join(sorted(set(letters)))
