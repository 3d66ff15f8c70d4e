"""Which notebooks there are, and with which parameters one is to be run: everything checked before anything runs.

A paper's notebook has runs, profiles and a schema of parameters. A guide, numbered 00, has none of them: it computes
what it shows while it is read, and is the same in every profile.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from fu_core.errors import ConfigError, check_choice
from fu_papers.lab import paths
from fu_papers.parameters import Parameters, load_profile, profiles

INTERACTIVE = "interactive"  # the notebook's parameter that shows its sliders, or not
OTHERS = "others"  # the notebook's parameter that takes what has no line of its own in its cell


@dataclass(frozen=True)
class Plan:
    """A notebook and what to run it with, both checked.

    changes: what differs from the profile, by name; figures: where figures, tables and records go.
    """

    paper: str
    notebook: Path
    profile: str
    changes: dict[str, Any]
    figures: Path

    @property
    def parameters(self) -> dict[str, Any]:
        """What papermill is to put in place of the notebook's own values."""
        if self.paper in guides():
            return dict(self.changes)
        lines = declared(self.notebook)
        own = {name: value for name, value in self.changes.items() if name in lines}
        others = {name: value for name, value in self.changes.items() if name not in lines}
        return {"profile": self.profile, **own, **({OTHERS: others} if others else {})}

    @property
    def executed(self) -> Path:
        """Where the executed copy goes, the log of the run."""
        return paths.runs_dir() / "executed" / self.profile / self.notebook.name


def notebooks() -> dict[str, Path]:
    """The notebook of every paper, in order: `{"puf": .../01_puf.ipynb, ...}`. Raises ConfigError without any."""
    found = _by_name("0[1-9]_*.ipynb")
    if not found:
        raise ConfigError(f"there are no notebooks in {paths.NOTEBOOKS}; run from a checkout, or set FU_HOME to one")
    return found


def guides() -> dict[str, Path]:
    """The notebooks that belong to no paper: `{"start_here": .../00_start_here.ipynb}`; {} if there are none."""
    return _by_name("00_*.ipynb")


def _by_name(pattern: str) -> dict[str, Path]:
    return {path.stem.partition("_")[2]: path for path in sorted(paths.NOTEBOOKS.glob(pattern))}


def schema_of(paper: str) -> type[Parameters]:
    """The schema of a paper's parameters, without the grid, which would bring torch along."""
    schema: type[Parameters] = importlib.import_module(f"fu_papers.{paper}.parameters").SCHEMA
    return schema


def plan(paper: str, profile: str, changes: Mapping[str, Any]) -> Plan:
    """Check everything that can be checked before running. Raises ConfigError naming what is wrong."""
    known = guides() | notebooks()
    check_choice("paper", paper, known, ConfigError)
    _check_interactive(changes)
    if paper in guides():
        check_choice("profile", profile, sorted({name for each in notebooks() for name in profiles(each)}), ConfigError)
        for name in changes:
            check_choice(f"-p: parameter of {paper}", name, _in_cell(known[paper]), ConfigError)
        return Plan(paper, known[paper], profile, dict(changes), paths.figures_dir(profile, paper))
    schema, lines = schema_of(paper), declared(known[paper])
    schema.check_names(load_profile(paper, profile), f"{paper}/{profile}.yaml")
    _experiment(paper, profile, {})
    if OTHERS in changes:
        raise ConfigError(f"-p: {OTHERS} is not set here; set each parameter by its own name, `-p lr 0.2` say")
    of_notebook = [name for name in lines if name not in (*schema.model_fields, OTHERS)]
    schema.check_names({name: value for name, value in changes.items() if name not in of_notebook}, "-p")
    _experiment(paper, profile, changes)
    used = {name: value for name, value in changes.items() if value is not None}  # as in Parameters.of
    figures = paths.figures_of(_experiment(paper, profile, used))
    return Plan(paper, known[paper], profile, dict(changes), figures)


def _experiment(paper: str, profile: str, changes: Mapping[str, Any]) -> Parameters:
    """The parameters of a paper's notebook, of the profile and `changes`, some of which may be the notebook's alone."""
    schema = schema_of(paper)
    ours = {name: value for name, value in changes.items() if name in schema.model_fields}
    return schema(**{**load_profile(paper, profile), **ours, "profile": profile})


def _check_interactive(changes: Mapping[str, Any]) -> None:
    if not isinstance(changes.get(INTERACTIVE), bool | None):
        raise ConfigError(f"-p: {INTERACTIVE} must be true, false or null, got {changes[INTERACTIVE]!r}")


def declared(notebook: Path) -> list[str]:
    """The names in the `parameters` cell of a paper's notebook.

    Raises ConfigError unless there is exactly one such cell, each of its lines is `name: type = literal`, and `profile`
    and `others` are among them.
    """
    names = _in_cell(notebook)
    for needed, line in (("profile", 'profile: str = "quick"'), (OTHERS, f"{OTHERS}: dict = {{}}")):
        if needed not in names:
            raise ConfigError(f"{notebook.name}: the `parameters` cell needs a line `{line}`")
    return names


def _in_cell(notebook: Path) -> list[str]:
    cells = nbformat.read(notebook, as_version=4).cells
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ConfigError(f"{notebook.name} must have exactly one cell tagged `parameters`, got {len(tagged)}")
    try:
        statements = ast.parse(tagged[0].source).body
    except SyntaxError as error:
        raise ConfigError(f"{notebook.name}: the `parameters` cell is not Python: {error}") from error
    return [_name(statement, notebook.name) for statement in statements]


def _name(statement: ast.stmt, notebook: str) -> str:
    line = ast.unparse(statement)
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            try:
                ast.literal_eval(value)
            except ValueError as error:
                raise ConfigError(f"{notebook}: the default of a parameter must be a literal, got `{line}`") from error
            return name
    raise ConfigError(f"{notebook}: a parameter must be written `name: type = literal`, got `{line}`")
