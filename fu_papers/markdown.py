"""Tables on pages of text, each between two comments that carry its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

BETWEEN = re.compile(r"(<!-- (\w+): [^>]*-->\n).*?(<!-- /\2 -->)", re.DOTALL)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, a line per row."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def filled(text: str, table_of: Callable[[str], str]) -> str:
    """`text` with what stands between `<!-- name: ... -->` and `<!-- /name -->` anew: `table_of(name)`."""
    return BETWEEN.sub(lambda found: f"{found[1]}{table_of(found[2])}\n{found[3]}", text)
