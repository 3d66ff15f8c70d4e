"""How Sphinx builds the book from the pages that make_book.py has laid out. Nothing is loaded from elsewhere."""

project = "fu_core: federated unlearning"
author = "the authors of fu_core"
extensions = ["myst_nb", "sphinx-mathjax-offline"]
root_doc = "index"
exclude_patterns: list[str] = []

nb_execution_mode = "off"  # the pages show the notebooks as make_book.py found them run
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # sliders need a kernel; their scripts would come from elsewhere
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
# Notebooks and docstrings are written for JupyterLab and GitHub, which mind neither of these.
suppress_warnings = ["myst.header", "misc.highlighting_failure", "mystnb.unknown_mime_type"]

html_theme = "sphinx_book_theme"
html_title = "Federated unlearning, from scratch and from four papers"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],
}  # one field to search in is enough
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_favicon = "favicon.svg"
html_static_path = ["book.css"]
html_css_files = ["book.css"]
html_show_sourcelink = False
html_copy_source = False
