"""Makes slides of the notebooks: `python docs/make_slides.py FOLDER [PROFILE]`, part of `make book`.

One page per notebook. A cell with the tag `slide` begins one, `slide-more` goes on with it. Of code cells only what
they show is on it, but for those with `slide-code`.

The pages are plain: their style and a few lines of script are here, formulas are set by the MathJax that lies beside
the book, and nothing is loaded from elsewhere. Down and up go from slide to slide.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.filters.markdown import markdown2html

from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.lab.shown import shown

BEGIN, MORE, WITH_CODE = "slide", "slide-more", "slide-code"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: slides</title>
<link rel="icon" href="../_static/favicon.svg">
<style>
html {{ scroll-snap-type: y proximity; font: 1.15rem/1.45 sans-serif; color: #222; background: #fff; }}
body {{ margin: 0; }}
section {{ min-height: 100vh; box-sizing: border-box; padding: 3vh 6vw; scroll-snap-align: start;
  border-bottom: 1px solid #ddd; }}
section > * {{ max-width: 62rem; margin-left: auto; margin-right: auto; }}
img {{ max-width: 100%; max-height: 72vh; }}
pre {{ background: #f5f5f5; padding: 0.6em; overflow-x: auto; font-size: 0.85rem; }}
table {{ border-collapse: collapse; font-size: 0.8rem; }}
td, th {{ padding: 0.2em 0.6em; border-bottom: 1px solid #ddd; }}
div.shown {{ overflow-x: auto; }}
.anchor-link {{ display: none; }}
@media (max-width: 700px) {{ section > * {{ overflow-x: auto; overflow-wrap: anywhere; }} table {{ display: block; }} }}
footer {{ position: fixed; right: 1em; bottom: 0.4em; font-size: 0.75rem; }}
</style>
<script>
addEventListener("keydown", event => {{
  const step = {{ArrowDown: 1, PageDown: 1, ArrowRight: 1, ArrowUp: -1, PageUp: -1, ArrowLeft: -1}}[event.key];
  if (!step) return;
  event.preventDefault();
  const slides = [...document.querySelectorAll("section")];
  const here = slides.findLastIndex(slide => slide.getBoundingClientRect().top < innerHeight / 2);
  slides[Math.max(0, Math.min(slides.length - 1, here + step))].scrollIntoView();
}});
</script>
<script>window.MathJax = {{tex: {{inlineMath: [["$", "$"]]}}}}</script>
<script defer src="../_static/mathjax/tex-chtml.js"></script>
</head>
<body>
{slides}
<footer><a href="../notebooks/{name}.html">the whole notebook</a></footer>
</body>
</html>
"""


def page(path: Path, notebook: Any = None) -> str:
    """The slides of one notebook: as it is committed, or of another run of it."""
    notebook = notebook or nbformat.read(path, as_version=4)
    slides: list[list[str]] = []
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if BEGIN in tags:
            slides.append([])
        if BEGIN in tags or MORE in tags:
            slides[-1].append(_shown(cell, path.stem, code=WITH_CODE in tags))
    sections = "\n".join(f"<section>\n{''.join(parts)}\n</section>" for parts in slides)
    [title] = re.findall(r"^# (.+)$", notebook.cells[0].source, re.MULTILINE)
    return PAGE.format(title=html.escape(title), slides=sections, name=path.stem)


def _shown(cell: Any, notebook: str, *, code: bool) -> str:
    if cell.cell_type == "markdown":
        here = re.sub(r"\]\(#", f"]({notebook}.ipynb#", cell.source)  # what a notebook links to in itself
        return linked(markdown2html(here))
    source = f"<pre>{html.escape(cell.source)}</pre>" if code else ""
    return source + "".join(map(_output, cell.outputs))


def _output(output: Any) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        alt = html.escape(data.get("text/plain", ""), quote=True)
        return f'<p><img alt="{alt}" src="data:image/png;base64,{data["image/png"].strip()}"></p>'
    if "text/html" in data:
        return f'<div class="shown">{linked(data["text/html"])}</div>'
    return f"<pre>{html.escape(data.get('text/plain', output.get('text', '')))}</pre>"


def linked(text: str) -> str:
    """Links between notebooks, documents and the pages beside them, as they lie in the site; others lose their link."""
    text = re.sub(r'href="(\d\d_\w+)\.ipynb(#[\w-]+)?"', r'href="../notebooks/\1.html\2"', text)
    text = re.sub(r'href="\.\./fu_papers/claims\.csv"', 'href="../fu_papers/claims.html"', text)
    text = re.sub(r'href="\.\./((?:docs|fu_papers)/\w+)\.md(#[\w-]+)?"', r'href="../\1.html\2"', text)
    return re.sub(r'<a href="(?!https?:|#|\.\./(?:notebooks|docs|fu_papers)/\w+\.html)[^"]*">(.*?)</a>', r"\1", text)


def main(folder: Path, profile: str = "quick") -> None:
    """All notebooks, from the same runs as the book's pages."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = guides() | notebooks()
    for paper, path in paths.items():
        notebook, _ = shown(paper, path, profile)
        (folder / f"{path.stem}.html").write_text(page(path, notebook), encoding="utf-8")
    print(f"{len(paths)} pages of slides")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
