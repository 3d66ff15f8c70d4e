"""What the committed runs of a larger profile show, beside those of the notebook at hand."""

from __future__ import annotations

from pathlib import Path

from IPython.display import HTML, Markdown, display

from fu_papers.lab.files import written_atomically
from fu_papers.lab.paths import figures_dir
from fu_papers.look import read_table, show_table
from fu_papers.parameters import SIZES, Parameters
from fu_papers.pictures import Picture, source_in
from fu_papers.verdicts import NO_OTHER, claims_table, read_claims


def show_larger(experiment: Parameters, *names: str) -> None:
    """Show the pictures and tables `names`, and the verdicts if there are any, of the largest profile above its own.

    The largest that has them all: read from where its figures are, with nothing computed. Where there is none, one
    sentence says so.
    """
    if (found := show_beside(experiment, *names)) is None:
        return
    profile, folder = found
    verdicts = claims_table(read_claims(folder.parent).values())
    ours = verdicts[(verdicts.paper == experiment.paper) & (verdicts.verdict != "not run")]
    if ours.empty:  # the arena, which is no paper's
        return
    corrected = ["corrected"] if (ours.corrected != NO_OTHER).any() else []
    columns = ["id", "claim", "paper_value", "ours", "spread", "verdict", *corrected, "reason"]
    source = f"the committed records of {profile}"
    display(show_table(ours[columns].reset_index(drop=True), source, f"Verdicts at {profile}", experiment.paper))


def show_beside(experiment: Parameters, *names: str) -> tuple[str, Path] | None:
    """As `show_larger`, without verdicts: where a figure's larger twin belongs beside it. Its profile and folder."""
    larger = SIZES[SIZES.index(experiment.profile) + 1 :]
    above = [(profile, figures_dir(profile, experiment.paper)) for profile in reversed(larger)]
    whole = (folder.is_dir() and all((folder / name).exists() for name in names) for _, folder in above)
    found = next((place for place, there in zip(above, whole, strict=True) if there), None)
    if found is None:
        display(Markdown(f"*Here are no results of a larger profile than `{experiment.profile}`.*"))
        return None
    profile, folder = found
    for name in names:
        path = folder / name
        if path.suffix == ".png":
            display(Picture(path, f"{path.stem}, at the profile {profile}", f"At {profile}. {source_in(path)}"))
        elif path.suffix == ".md":
            display(Markdown(f"**At {profile}**\n\n{path.read_text(encoding='utf-8')}"))
        else:
            display(_table(path, profile))
    return found


def keep_text(path: Path, text: str) -> Markdown:
    """Save what a notebook says in Markdown, computed from its records, where a smaller profile can show it."""
    with written_atomically(path) as part:
        part.write_text(text.rstrip() + "\n", encoding="utf-8")
    return Markdown(text)


def _table(path: Path, profile: str) -> HTML:
    """A table that `look.save_table` has written, with what stands above it there."""
    frame, source, caption = read_table(path)
    return show_table(frame, source, f"At {profile}: {caption or path.stem}", path.parent.name)
