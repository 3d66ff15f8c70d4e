"""Where an equation, a theorem, a figure or a table of a paper stands here: links for texts that name one.

`places.csv` lists them by the paper's own numbers, with what each says and where its code is; `places.md` is the page
made of it. A notebook that shows an equation or a figure marks the place, `<a id="puf-eq-5"></a>`, and texts lead to
that mark, or else to the page. A figure or a table that is ours alone is marked by its file, `fedora-ours-curves`.

`python -m fu_papers.places` makes links of all numbers that the notebooks' texts name; what is one stays as it is.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fu_papers import links

KINDS = {"Eq": "eq", "Fig": "fig", "Table": "table", "Algorithm": "algorithm", "Theorem": "theorem", "Thm": "theorem"}
KINDS |= {"Alg": "algorithm", "Lemma": "lemma", "Corollary": "corollary", "Proposition": "proposition"}
KINDS |= {"Assumption": "assumption", "Line": "algorithm-1-line", "line": "algorithm-1-line"}
NUMBER = r"(?:\(\d+\)|\d+[a-f]?|[IVX]+)(?!\w)"  # 8a is a panel of figure 8
LIST = rf"{NUMBER}(?:(?:, and |, | and | to |–|-){NUMBER})*"
KIND = rf"(?P<kind>{'|'.join(KINDS)})(?P<ending>(?:uation|ure)?s?\.?)"
NAMED = re.compile(rf"\b{KIND}\s(?P<numbers>{LIST})")
BARE = re.compile(r"(?<![\w)])\(\d+\)(?:(?:, | and | to |–)\(\d+\))*(?!\w)")  # as FedORA's equations are called
WITH_BARE_NUMBERS = ("fedora",)
NO_PROSE = re.compile(  # code, formulas, links, tags and headings, in which nothing is linked
    r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$|\[[^\]]*\]\([^)]*\)|<a .*?</a>|<[^>\n]*>|^#.*?$",
    re.DOTALL | re.MULTILINE,
)
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


@dataclass(frozen=True)
class Place:
    """One line of places.csv.

    name: as in "Eq. (5)" or "Algorithm 1, line 17"; code: `file: function`, several with semicolons, or none; files: of
    figures/<profile>/<paper>, as a pattern, if there are any.
    """

    paper: str
    name: str
    says: str
    code: str
    files: str

    @property
    def anchor(self) -> str:
        """What its mark in a notebook is called: "hf-kcu-algorithm-1-line-17"."""
        return anchor(self.paper, self.name)

    @property
    def on_the_page(self) -> str:
        """What its mark in places.md is called."""
        return f"place-{self.anchor}"


def anchor(paper: str, name: str) -> str:
    """The mark of a name in a paper: letters and digits, small, with dashes between."""
    return "-".join(re.findall(r"[a-z0-9]+", f"{paper} {name}".lower()))


@cache
def places() -> dict[str, Place]:
    """All of them by their anchor, in the papers' order."""
    text = (resources.files("fu_papers") / "places.csv").read_text(encoding="utf-8")
    listed = [Place(**row) for row in csv.DictReader(io.StringIO(text))]
    return {place.anchor: place for place in listed}


def marks(text: str) -> list[str]:
    """The anchors that a text cell sets."""
    return ANCHOR.findall(text)


def linked(text: str, paper: str, here: Collection[str] = (), up: str = "../", form: str = links.MARKDOWN_LINK) -> str:
    """Markdown in which every number of a paper's equation, theorem, figure or table is a link.

    here: anchors in the same notebook, which are preferred to the page; up: from the text's folder to the repository's.
    form: `links.HTML_LINK` for text that is HTML, in which a bare number can be anything and stays one.
    Stays as it is: what has a link, headings (the place itself, as a rule), code, formulas, and what is not listed.
    """

    def link(shown: str, kind: str, number: str) -> str:
        name = f"{paper.replace('_', '-')}-{kind}-{number.strip('()abcdef').lower()}"
        if name in here:
            return form.format(shown=shown, to=f"#{name}")
        if name not in places():
            return shown
        return form.format(shown=shown, to=f"{up}fu_papers/places.md#{places()[name].on_the_page}")

    def named(found: re.Match[str]) -> str:
        kind = KINDS[found["kind"]]
        if re.fullmatch(NUMBER, found["numbers"]):  # one alone is linked with its word
            return link(found[0], kind, found["numbers"])
        word = found[0].removesuffix(found["numbers"])
        return word + re.sub(NUMBER, lambda each: link(each[0], kind, each[0]), found["numbers"])

    def bare(found: re.Match[str]) -> str:
        return re.sub(NUMBER, lambda each: link(each[0], "eq", each[0]), found[0])

    text = _in_prose(text, lambda prose: NAMED.sub(named, prose))
    if paper not in WITH_BARE_NUMBERS or form != links.MARKDOWN_LINK:
        return text
    return _in_prose(text, lambda prose: BARE.sub(bare, prose))


def linked_html(text: str, paper: str) -> str:
    """`text` as HTML for a notebook, in which names of claims, of errata and of what is in `paper` are links."""
    return links.linked(linked(html.escape(text), paper, form=links.HTML_LINK))


def _in_prose(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for kept in NO_PROSE.finditer(text):
        parts += [change(text[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*parts, change(text[end:])])


def main() -> None:
    """Links for all text cells of the papers' notebooks; in the cell that sets a mark they lead to the page."""
    import nbformat  # a second to load, which whoever only links a table does not wait for

    from fu_papers.lab.notebooks import notebooks

    for paper, path in notebooks().items():
        notebook = nbformat.read(path, as_version=4)
        texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        here = {name for cell in texts for name in marks(cell.source)}
        for cell in texts:
            cell.source = linked(cell.source, paper, here - set(marks(cell.source)))
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
