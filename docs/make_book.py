"""Lays out the pages of the book: `python docs/make_book.py FOLDER`, then Sphinx makes a site of them (`make book`).

The pages are the notebooks, as `make reproduce` has executed them here or else as committed (`fu_papers.lab.shown`);
the documents beside this file, errata, claims and places; and two kinds that are made here: the exercises with folded
solutions, and the library's reference from its docstrings. `python docs/make_book.py FOLDER laptop` takes the copies
that were executed at another profile than `quick`.

Pages that are committed, too, since notebooks, README and documents link to them, are written by
`python docs/make_book.py --claims` (fu_papers/claims.md from claims.csv), `--places` (fu_papers/places.md from
places.csv) and `--speed` (the tables of docs/speed.md from benchmarks/*.csv).
"""

from __future__ import annotations

import ast
import csv
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import nbformat

import fu_core
from fu_core.errors import ConfigError, check_choice
from fu_papers.exercises import exercises
from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.lab.shown import shown
from fu_papers.links import CLAIM_NAME
from fu_papers.markdown import filled, markdown_table
from fu_papers.parameters import profiles
from fu_papers.places import anchor, linked, marks, places

ROOT = Path(__file__).resolve().parent.parent
PAPERS = {"puf": "PUF", "hf_kcu": "HF-KCU", "fedora": "FedORA", "certified_dfl": "Certified DFL"}
PARTS = {  # pages of the reference, each with the parts of fu_core that it describes
    "requests": ("Requests and partitions", ("request", "partition")),
    "data": ("Data", ("data",)),
    "models": ("Models", ("models",)),
    "federation": ("Federations", ("federation",)),
    "unlearning": ("Unlearning", ("unlearning",)),
    "evaluation": ("Evaluation", ("evaluation",)),
    "flower": ("In Flower", ("flower",)),
    "foundations": ("Errors, randomness, precision", ("errors", "streams", "precision")),
}
PAGE_OF = {part: page for page, (_, parts) in PARTS.items() for part in parts}
DOCUMENTS = (
    "first_hour",
    "findings",
    "reading_groups",
    "glossary",
    "notation",
    "architecture",
    "arena",
    "data",
    "scale",
    "cluster",
)
DOCUMENTS += ("speed", "strangers", "online", "own")
INDEX = """
# Federated unlearning, from scratch and from four papers

A model that many parties have trained is to forget one of them. What does that mean, how is it measured, and do the
methods of four papers do it? The pages of this book are notebooks that have been run, with every number from a record;
each says at its top how large a run it shows.

- **New to all this?** [Start here](notebooks/00_start_here.ipynb): half an hour, everything by hand. Or have
  [your first hour](docs/first_hour.md) laid out, minute by minute, to an exercise solved.
- **In a reading group?** [Ninety minutes with a paper](docs/reading_groups.md). Each paper's notebook has the equation
  beside its code, ends in five sentences, has questions to discuss, and [exercises](exercises.md) that answer.
- **Looking something up?** [Words](docs/glossary.md), [letters](docs/notation.md),
  [what is wrong in the papers](fu_papers/errata.md), [what they claim](fu_papers/claims.md),
  [an equation's code, a figure of theirs beside ours](fu_papers/places.md), [the library](reference/fu_core.md).
- **With data of your own?** [Your data, model, method and judge](docs/own.md).
- **In front of a group?** Slides of each notebook: {slides}.
- **Nothing installed?** [Colab and Binder](docs/online.md).

```{{toctree}}
:hidden:
:caption: Notebooks

{notebooks}
```

```{{toctree}}
:hidden:
:caption: To work with

docs/first_hour
docs/findings
docs/reading_groups
docs/online
exercises
docs/glossary
docs/notation
fu_papers/errata
fu_papers/claims
fu_papers/places
```

```{{toctree}}
:hidden:
:caption: The library

docs/own
docs/arena
docs/architecture
docs/data
docs/scale
docs/cluster
docs/speed
docs/strangers
```

```{{toctree}}
:hidden:
:caption: Reference

{reference}
```
"""


def lay_out(folder: Path, profile: str = "quick") -> list[Path]:
    """Write all pages into `folder`; returns their paths. profile: whose executed copies of the notebooks to take."""
    check_choice("PROFILE", profile, {name for paper in notebooks() for name in profiles(paper)}, ConfigError)
    pages = dict(_notebooks(profile)) | dict(_documents()) | dict(_reference())
    pages["exercises.md"] = _exercises()
    names = {kind: [name for name in pages if name.startswith(kind)] for kind in ("notebooks", "reference")}
    toc = {kind: "\n".join(name.rpartition(".")[0] for name in listed) for kind, listed in names.items()}
    stems = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    slides = ", ".join(f'<a href="slides/{stem}.html">{stem[:2]}</a>' for stem in stems)  # pages of make_slides.py
    pages["index.md"] = INDEX.format(**toc, slides=slides).lstrip()
    pages["docs/cg.svg"] = (ROOT / "docs" / "cg.svg").read_text(encoding="utf-8")  # what notebooks show of docs/
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def _notebooks(profile: str) -> Iterator[tuple[str, str]]:
    """Each says below its title which run it is; without sliders' state, whose scripts would come from elsewhere."""
    for paper, path in (guides() | notebooks()).items():
        notebook, what = shown(paper, path, profile)
        notebook.metadata.pop("widgets", None)
        title = notebook.cells[0]
        title.source = re.sub(r"^# .*$", rf"\g<0>\n\n*{what}*", title.source, count=1, flags=re.M)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _with_targets(cell.source.replace("fu_papers/claims.csv", "fu_papers/claims.md"))
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                data.pop("application/vnd.jupyter.widget-view+json", None)
                for kind in {"text/html", "text/markdown"} & set(data):  # links that Sphinx leaves as they are
                    data[kind] = re.sub(r"(fu_papers/\w+)\.md#", r"\1.html#", data[kind])
        yield f"notebooks/{path.name}", nbformat.writes(notebook)


def _documents() -> Iterator[tuple[str, str]]:
    for name in DOCUMENTS:
        name = f"docs/{name}.md"
        yield name, re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", _named, (ROOT / name).read_text(encoding="utf-8"))
    for name in ("fu_papers/errata.md", "fu_papers/claims.md", "fu_papers/places.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("[claims.csv](claims.csv)", "`fu_papers/claims.csv`")
        text = _errata_linked(text) if name.endswith("errata.md") else text
        text = re.sub(r"\[`(\w+)`\]\(\.\./([\w/]+)\.py\)", _in_the_reference, text)
        yield name, re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", _named, _with_targets(text))


def _with_targets(text: str) -> str:
    """Anchors before a line of text as targets that Sphinx knows."""
    anchors = r'^((?:<a id="[\w-]+"></a>)+)\n'
    return re.sub(anchors, lambda line: "".join(f"({mark})=\n" for mark in marks(line[1])) + "\n", text, flags=re.M)


def _in_the_reference(link: re.Match[str]) -> str:
    """A link to code: to its docstring if it is the library's and public, else what it is called."""
    name, path = link.groups()
    library, part = path.split("/")[:2]
    if library != "fu_core" or part not in PAGE_OF or name.startswith("_"):
        return f"`{name}`"
    return f"[`{name}`](../reference/{PAGE_OF[part]}.md#{_target(path, name)})"


def _errata_linked(text: str) -> str:
    """With links for the equations, figures and tables of the paper that a section, or a line of the list, is about."""
    papers = {title: paper for paper, title in PAPERS.items()} | {"DFL": "certified_dfl"}
    paper, lines = "", []
    for line in text.splitlines(keepends=True):
        named = re.match(r"(?:## \d\. .*?|\| \[[A-Z]\d+\]\(#\w+\) \| )(HF-KCU|PUF|FedORA|DFL)\b", line)
        paper = papers[named[1]] if named else paper
        lines.append(linked(line, paper) if paper else line)
    return "".join(lines)


def _named(link: re.Match[str]) -> str:
    """A link to a file that is no page: what it was called, and where the file lies in the repository."""
    text, path = link.groups()
    if path.partition("#")[0].endswith((".md", ".ipynb")):
        return link[0]
    return f"`{path}`" if text == path else f"{text} (`{path}`)"


def claims_page() -> str:
    """fu_papers/claims.md: every claim with its anchor, claim-p1 say, what it is judged by, and the rule."""
    lines = [
        "# What the papers claim",
        "",
        "Each is judged by a rule written down ([claims.csv](claims.csv)); the notebooks compute it. A claim about "
        "several cells or parts holds if all do, *in part* if some fail and at least half hold, and fails if fewer "
        "than half could hold even if every undetermined one did; else it is undetermined. What a control that must "
        "fail meets as well counts as not held, unless the rule says otherwise.",
    ]
    with (ROOT / "fu_papers" / "claims.csv").open(encoding="utf-8", newline="") as file:
        claims = list(csv.DictReader(file))
    for paper, title in PAPERS.items():
        lines += ["", f"## {title}"]
        for claim in (claim for claim in claims if claim["paper"] == paper):
            id = claim["id"]
            lines += ["", f'<a id="claim-{id.lower()}"></a>']
            lines += [f"**Claim {id}.** " + linked(f"{claim['claim']} ({claim['where']})", paper), ""]
            told = {"The paper": "paper_value", "Measured as": "measured_as", "Holds if": "holds_if"}
            for what, column in told.items():  # "as P1" is about a claim of this page
                by_others = CLAIM_NAME.sub(lambda name: f"[{name[0]}](#claim-{name[0].lower()})", claim[column])
                lines += [f"- {what}: {linked(by_others, paper)}"]
    return "\n".join(lines) + "\n"


def places_page() -> str:
    """fu_papers/places.md: by paper and number, with the place in its notebook, the code, and the files of ours."""
    lines = [
        "# Equations, figures and tables of the papers",
        "",
        "By the papers' own numbers: what each says, where a notebook shows it, and which code it is. Files lie in the",
        "[figures of `laptop`](../figures/laptop), by paper, and in those of every other profile that has been run.",
        "FedORA's formulas are lost in our copy: what is said of them is how we read its prose.",
    ]
    shown = {paper: _marks_in(path) for paper, path in notebooks().items()}
    for paper, title in PAPERS.items():
        lines += ["", f"## {title}"]
        for place in (place for place in places().values() if place.paper == paper):
            lines += ["", f'<a id="{place.on_the_page}"></a>', f"**{place.name}**: {place.says}."]
            found = [f"[In the notebook](../notebooks/{notebooks()[paper].name}#{place.anchor})."]
            found = found if place.anchor in shown[paper] else []
            found += [f"Code: {', '.join(map(_code, place.code.split('; ')))}."] if place.code else []
            found += [f"Files: `{place.files}`."] if place.files else []
            lines[-1] = " ".join([lines[-1], *found])
    return "\n".join(lines) + "\n"


def _marks_in(path: Path) -> set[str]:
    cells = nbformat.read(path, as_version=4).cells
    return {mark for cell in cells if cell.cell_type == "markdown" for mark in marks(cell.source)}


def _code(reference: str) -> str:
    file, _, name = reference.partition(": ")
    return f"`{file}`: [`{name}`](../{file})"


def _exercises() -> str:
    """All of them, with hints and solutions that unfold."""
    lines = ["# Exercises", "", 'They answer where they stand, at the end of each notebook: `check("puf-2", answer)`.']
    lines[-1] += " `make lab` opens the notebooks; run the cell below *Exercises*, then those of one exercise. "
    lines[-1] += "Nothing else has to be run before. Here they can be read, with hints and solutions that unfold."
    titles = {"start_here": "Start here"} | PAPERS | {"arena": "The arena"}
    for paper, title in titles.items():
        lines += ["", f"## {title}"]
        for each in (each for each in exercises().values() if each.paper == paper):
            text = linked(each.text.rpartition("\n\n")[0], paper, up="")
            lines += ["", text, "", f"```python\n{each.code}\n```"]
            for number, hint in enumerate(each.hints, 1):
                lines += ["", *_folded(f"Hint {number}", hint)]
            lines += ["", *_folded("Solution", each.solved)]
            if each.then:
                then_text, then = each.further
                lines += ["", linked(then_text, paper, up=""), "", f"```python\n{then}\n```"]
    return "\n".join(lines) + "\n"


def _folded(summary: str, text: str) -> list[str]:
    return [f"<details><summary>{summary}</summary>", "", text, "", "</details>"]


# --- speed -----------------------------------------------------------------------------------------------------------


SPEEDS = {  # by the name in the comment: the columns of benchmarks/<name>.csv, and what they are called on the page
    "preconditioners": {
        "damping": "damping λ",
        "preconditioner": "preconditioner",
        "products to 0.1": "products, to a residual of 0.1",
        "passes to 0.1": "passes, to 0.1",
        "products to 0.01": "products, to 0.01",
        "passes to 0.01": "passes, to 0.01",
    },
    "crowds": {
        "place": "place",
        "all at once, trainings/s": "all at once (trainings a second)",
        "one at a time, trainings/s": "one at a time",
        "plain, trainings/s": "plain loop",
        "at once / one at a time": "at once / one at a time",
        "at once / plain": "at once / plain",
    },
    "curvature": {
        "data, net": "data, net",
        "matrix": "matrix",
        "plain, products/s": "plain (products a second)",
        "curvlinops, products/s": "curvlinops",
        "curvlinops, 8 at once, products/s": "curvlinops, 8 at once",
        "fu_core, products/s": "fu_core",
        "fu_core, 8 at once, products/s": "fu_core, 8 at once",
        "several / plain": "8 at once / plain",
        "several / curvlinops": "8 at once / curvlinops' best",
    },
    "requests": {
        "data, net": "data, net",
        "residual at most": "residual",
        "products, one by one": "products, one by one",
        "products, together": "together",
        "seconds, one by one": "seconds, one by one",
        "seconds, together": "together",
        "faster, x": "faster, times",
    },
    "certified": {
        "data set, net": "data, net",
        "method": "method",
        "sample-wise, s": "a sample request (s)",
        "class-wise, s": "a class (s)",
        "client-wise, s": "a client (s)",
        "saved, client-wise %": "saved, a client (%)",
        "paper: saved %": "the paper (%)",
    },
}


def speed_page() -> str:
    """docs/speed.md with the tables of SPEEDS as benchmarks/*.csv have them."""
    return filled((ROOT / "docs" / "speed.md").read_text(encoding="utf-8"), _measured)


def _measured(name: str) -> str:
    """A benchmark's table in Markdown, its numbers as the file has them."""
    with (ROOT / "benchmarks" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    columns = SPEEDS[name]
    return markdown_table(list(columns.values()), ([row[column] for column in columns] for row in rows))


# --- reference -------------------------------------------------------------------------------------------------------


def _reference() -> Iterator[tuple[str, str]]:
    """What `fu_core` itself offers; then by its parts every public class and function, with signature and docstring."""
    yield "reference/fu_core.md", "\n".join(_top_level()) + "\n"
    for page, (title, parts) in PARTS.items():
        lines = [f"# {title}"]
        for part in parts:
            module = ROOT / "fu_core" / f"{part}.py"
            for path in [module] if module.exists() else sorted((ROOT / "fu_core" / part).rglob("*.py")):
                lines += _module(path)
        yield f"reference/{page}.md", "\n".join(lines) + "\n"


def _top_level() -> list[str]:
    """A line for every name that `fu_core` exports, which leads to where it is described."""
    lines = ["# fu_core", *_text(inspect.getdoc(fu_core)), "", "| `fu_core.` | what it is |", "|---|---|"]
    for name in (name for name in fu_core.__all__ if name != "__version__"):
        found = getattr(fu_core, name)
        told = re.split(r"(?<=[.?])(?<!al\.)\s|\n\n", found.__doc__ or "")[0].replace("\n", " ").replace("|", "\\|")
        if isinstance(found, ModuleType):
            to = f"{PAGE_OF[name]}.md"
        else:
            to = f"{PAGE_OF[found.__module__.split('.')[1]]}.md#{_target(found.__module__, name)}"
        lines.append(f"| [`{name}`]({to}) | {told} |")
    titles = (f"[{title}]({page}.md)" for page, (title, _) in PARTS.items())
    return [*lines, "", f"All the rest, by parts: {', '.join(titles)}."]


def _module(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    lines = ["", f"## {name}", *_text(ast.get_docstring(tree))]
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            lines += ["", f"({_target(name, node.name)})=", "", f"### {node.name}", "", "```python", _signature(node)]
            lines += ["```", *_text(ast.get_docstring(node))]
    return lines


def _target(module: str, name: str) -> str:
    """What a class or function is called in links; PUF and puf are two."""
    return anchor(module, f"class {name}" if name[0].isupper() else name)


def _signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {node.name}({ast.unparse(node.args)}){returns}"
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    fields = [ast.unparse(line) for line in node.body if isinstance(line, ast.AnnAssign)]
    methods = [
        _method(item)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name == "__init__")
    ]
    return "\n    ".join([f"class {node.name}{bases}:", *(fields + methods or ["..."])])


def _method(node: ast.FunctionDef) -> str:
    """Below the first line of its docstring; a property looks like a field."""
    told = (ast.get_docstring(node) or "").partition("\n")[0]
    above = f"# {told}\n    " if told else ""
    returns = ast.unparse(node.returns) if node.returns else ""
    if {"property", "cached_property"} & {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}:
        return f"{above}{node.name}: {returns}"
    arrow = f" -> {returns}" if returns and node.name != "__init__" else ""
    return f"{above}def {node.name}({ast.unparse(node.args)}){arrow}: ..."


def _text(docstring: str | None) -> list[str]:
    """As it was written: equations and tables in docstrings are laid out by hand."""
    return ["", "```text", docstring, "```"] if docstring else []


def main(argument: str, profile: str = "quick") -> None:
    """Lay out the pages in the folder `argument`; or with --claims, --places or --speed write that committed page."""
    committed: dict[str, tuple[str, Callable[[], str]]] = {
        "--claims": ("fu_papers/claims.md", claims_page),
        "--places": ("fu_papers/places.md", places_page),
        "--speed": ("docs/speed.md", speed_page),
    }
    if argument in committed:
        name, page = committed[argument]
        (ROOT / name).write_text(page(), encoding="utf-8")
    elif argument.startswith("-"):
        raise SystemExit(f"make_book.py takes a folder, or one of {', '.join(committed)}, got {argument}")
    else:
        print(f"{len(lay_out(Path(argument), profile))} pages")


if __name__ == "__main__":
    main(*sys.argv[1:])
