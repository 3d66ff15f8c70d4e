"""The verdicts on all papers' claims: what was met, and the list of it all in `figures/<profile>/claims.csv`."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from fu_core.errors import ConfigError, CorruptData, check_choice, nearest
from fu_papers.lab.files import one_at_a_time, written_atomically
from fu_papers.lab.record import Record
from fu_papers.look import csv_text, one_line

VERDICTS = ("holds", "holds in part", "does not hold", "undetermined", "not run")
NO_OTHER = "–"  # the second reading of a claim about which the paper prints one form only
CLAIM_COLUMNS = ("id", "paper", "claim", "paper_value", "ours", "spread", "verdict", "corrected", "records", "reason")
Theory = Mapping[str, Sequence[Record]]  # of `Study.theory`: the numerical checks by kind
NOT_RUN = "no verdict in this profile yet"


@dataclass(frozen=True)
class ClaimResult:
    """What our records say about one claim of a paper.

    verdict: on the claim as the paper prints it; corrected: on the same claim with the formula that can be right, where
    the paper prints one that cannot (else `NO_OTHER`). The second never lifts the first. spread: effects with their
    intervals and numbers of targets and seeds, or what else there is of the kind; records: the keys of those that the
    verdict was computed from.
    """

    id: str
    verdict: str
    ours: str = ""
    spread: str = ""
    records: Sequence[str] = ()
    reason: str = ""
    corrected: str = NO_OTHER

    def __post_init__(self) -> None:
        check_choice(f"verdict of {self.id}", self.verdict, VERDICTS)
        check_choice(f"corrected verdict of {self.id}", self.corrected, (*VERDICTS, NO_OTHER))
        if self.verdict == "undetermined" and not self.reason:
            raise ValueError(f"claim {self.id} is undetermined; say what would tell in `reason`")
        if self.verdict == "not run" and not self.reason:
            raise ValueError(f"claim {self.id} is not run; say why in `reason`")
        if self.verdict != "not run" and not self.records:
            raise ValueError(f"the verdict on claim {self.id} needs the keys of the records it was computed from")


def verdict_of(met: Sequence[bool]) -> str:
    """A claim holds if every condition of `met` is; in part if not all but at least half of them are.

    One condition met out of six is not a half-truth. Raises `ConfigError` if there are no conditions at all, or one is
    neither true nor false: NaN would count as met.
    """
    if len(other := [given for given in met if given not in (True, False)]):
        raise ConfigError(f"met must be true or false for every condition, got {other[0]!r}")
    if not met:
        raise ConfigError("met must have at least one condition of the claim, got none")
    return "holds" if all(met) else "holds in part" if 2 * sum(met) >= len(met) else "does not hold"


def judge(
    id: str,
    met: Sequence[bool],
    ours: str,
    spread: str,
    keys: Sequence[str],
    reason: str,
    corrected: Sequence[bool] | None = None,
) -> ClaimResult:
    """The result of a claim that consists of conditions, counted in its reason where some hold and others do not.

    met: of the claim as printed; corrected: of the corrected form, where there are two; keys: of the records behind it.
    """
    verdict = verdict_of(met)
    if verdict == "holds in part":
        reason = f"{sum(met)} of {len(met)} parts hold; {reason}"
    other = NO_OTHER if corrected is None else verdict_of(corrected)
    return ClaimResult(id, verdict, ours, spread, list(dict.fromkeys(keys)), reason, other)


def lowered(met: Sequence[bool], nothing: bool) -> list[bool]:
    """What doing nothing achieves as well says nothing about a method: none of its conditions counts."""
    return [False] * len(met) if nothing else list(met)


def claims() -> pd.DataFrame:
    """All claims of the four papers: id, paper, where, claim, paper_value, measured_as, holds_if. All text."""
    file = resources.files("fu_papers") / "claims.csv"
    return _read_text_csv(io.StringIO(file.read_text(encoding="utf-8")))


def claims_table(results: Iterable[ClaimResult]) -> pd.DataFrame:
    """`results` beside the claims and the papers' values; one row each, columns as in claims.csv."""
    known = {row["id"]: row for row in claims().to_dict("records")}
    rows = []
    for result in results:
        if result.id not in known:
            raise ValueError(f"unknown claim {result.id!r}{nearest(result.id, known)}")
        rows.append(
            {
                "id": result.id,
                **{column: known[result.id][column] for column in ("paper", "claim", "paper_value")},
                "ours": result.ours,
                "spread": result.spread,
                "verdict": result.verdict,
                "corrected": result.corrected,
                "records": " ".join(result.records),
                "reason": one_line(result.reason),
            }
        )
    return pd.DataFrame(rows, columns=list(CLAIM_COLUMNS))


def read_claims(profile_dir: Path) -> dict[str, ClaimResult]:
    """The verdict on every claim by id, in the papers' order; "not run" while there is no `profile_dir`/claims.csv.

    Raises CorruptData if there is one that is not the whole list.
    """
    path, names = Path(profile_dir) / "claims.csv", claims()["id"].tolist()
    if not path.exists():
        return {name: ClaimResult(name, "not run", reason=NOT_RUN) for name in names}
    try:
        verdicts = [
            ClaimResult(
                row["id"],
                row["verdict"],
                row["ours"],
                row["spread"],
                row["records"].split(),
                row["reason"],
                row["corrected"],
            )
            for row in _read_text_csv(path).to_dict("records")
        ]
        if [verdict.id for verdict in verdicts] != names:
            raise ValueError("it does not list every claim once, in the papers' order")
    except (ValueError, KeyError) as error:
        raise CorruptData(
            f"{path} is not the list of verdicts: {error}; delete it and run all papers of this profile, with "
            "`make figures` where their records are committed, else with `make reproduce`"
        ) from error
    return dict(zip(names, verdicts, strict=True))


def write_claims(results: Iterable[ClaimResult], paper: str, profile_dir: Path) -> Path:
    """Replace the verdicts on `paper` in `profile_dir`/claims.csv, which lists all claims of all papers in order.

    A claim of `paper` without a result is "not run". Of several notebooks that write at once, each finds what the other
    has written. Raises ValueError for a claim of another paper, or one given twice.
    """
    paper_of: dict[str, str] = dict(claims()[["id", "paper"]].itertuples(index=False))
    check_choice("paper", paper, dict.fromkeys(paper_of.values()))
    given = list(results)
    for name, count in Counter(result.id for result in given).items():
        if paper_of.get(name) != paper or count > 1:
            raise ValueError(f"each result must be for one claim of {paper}, got {count} for {name!r}")
    path = Path(profile_dir) / "claims.csv"
    ours = {name: ClaimResult(name, "not run", reason=NOT_RUN) for name in paper_of if paper_of[name] == paper}
    ours |= {result.id: result for result in given}
    with one_at_a_time(path):
        verdicts = read_claims(profile_dir) | ours
        with written_atomically(path) as part:
            part.write_bytes(csv_text(claims_table(verdicts.values())).encode())
    return path


def largest_verdicts(profile_dirs: Iterable[Path]) -> dict[str, tuple[ClaimResult, str]]:
    """Every claim's verdict in the last of the profiles, given by size, that has judged it, and that profile's name.

    "not run", and no name, where none has.
    """
    found = {name: (ClaimResult(name, "not run", reason=NOT_RUN), "") for name in claims()["id"]}
    for folder in map(Path, profile_dirs):
        for name, result in read_claims(folder).items():
            if result.verdict != "not run":
                found[name] = result, folder.name
    return found


def flips(before: Path, after: Path) -> dict[str, str]:
    """Claims of two profile folders whose verdict, as printed or corrected, became another, and what became what.

    From and to "undetermined" is none: there the one run could tell and the other could not.
    """
    found: dict[str, str] = {}
    was, now = read_claims(before), read_claims(after)
    for name in was:
        for reading in ("verdict", "corrected"):
            old, new = getattr(was[name], reading), getattr(now[name], reading)
            if old != new and "undetermined" not in (old, new):
                form = "as printed" if reading == "verdict" else "corrected"
                found[name] = f"{found[name]}; " if name in found else ""
                found[name] += f"{form}: {old} -> {new}"
    return found


def tally_markdown(profile_dirs: Iterable[Path]) -> str:
    """The README's table: verdicts per paper, each of the largest profile that has judged its claim.

    profile_dirs: by size. A paper some of whose formulas cannot be right as printed has a second line, on their
    corrected form.
    """
    folders = [Path(folder) for folder in profile_dirs]
    largest, order = largest_verdicts(folders), [folder.name for folder in folders]
    lines = [f"| paper | form | profile | {' | '.join(VERDICTS)} |", "|---" * (3 + len(VERDICTS)) + "|"]
    for paper, ids in claims().groupby("paper", sort=False)["id"]:
        judged = [largest[name] for name in ids]
        corrected = [pair for pair in judged if pair[0].corrected != NO_OTHER]
        for form, reading, rows in (("as printed", "verdict", judged), ("corrected", "corrected", corrected)):
            counts = Counter(getattr(result, reading) for result, _ in rows)
            if form == "as printed" or counts.keys() - {"not run"}:
                profiles = sorted({profile for _, profile in rows} - {""}, key=order.index)
                cells = (str(paper), form, ", ".join(profiles) or "–", *(str(counts[v]) for v in VERDICTS))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _read_text_csv(file: Any) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)
