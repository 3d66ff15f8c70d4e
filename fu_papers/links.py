"""Names of claims and errata as links to their pages, as seen from a notebook; `places` does it for papers' numbers."""

from __future__ import annotations

import html
import re
from typing import Any

CLAIM_NAME = re.compile(r"\b([HPFD])(\d+)\b")
HTML_LINK, MARKDOWN_LINK = '<a href="{to}">{shown}</a>', "[{shown}]({to})"


def linked(text: str, link: str = HTML_LINK) -> str:
    """HTML in which every "erratum H1" and "claim H12" leads to errata.md or claims.md, as seen from a notebook.

    link: HTML_LINK, or MARKDOWN_LINK for text that is Markdown.
    """
    text = re.sub(r"\b(?:erratum|errata) ([HPFD])(\d+)\b", lambda found: _to_erratum(found, link), text)
    return re.sub(rf"\bclaim {CLAIM_NAME.pattern}", lambda found: _to_claim(found, link), text)


def linked_claim(name: Any) -> str:
    """The name of a claim as HTML, each id in it a link."""
    return CLAIM_NAME.sub(_to_claim, html.escape(str(name)))


def _to_erratum(found: re.Match[str], link: str = HTML_LINK) -> str:
    return link.format(shown=found[0], to=f"../fu_papers/errata.md#{found[1].lower()}{found[2]}")


def _to_claim(found: re.Match[str], link: str = HTML_LINK) -> str:
    return link.format(shown=found[0], to=f"../fu_papers/claims.md#claim-{found[1].lower()}{found[2]}")
