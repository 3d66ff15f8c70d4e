"""The verdicts on PUF's claims, computed from records by the rules of claims.csv (`holds_if`).

Where the claim speaks of the end of recovery, the paper's own stop rule applies (test accuracy reaches
Retrain's). It looks at the test set; the tables of the notebook also show our rule, on validation data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product

import pandas as pd

from fu_core.papers.puf_experiment import METHODS, Experiment
from fu_core.papers.puf_figures import Unlearnings, title
from fu_core.records import Record
from fu_core.report import ClaimResult, mean_spread

PAPER_STOP = "test"
PAPER_ROUNDS = 200
NOT_YET = {
    "P1": "needs FedEraser, PGA, MoDe and FedAU beside PUF and NoT",
    "P2": "needs FedEraser, PGA, MoDe and FedAU beside PUF and NoT",
    "P7": "needs the sweep over eta_u (Fig. 5)",
    "P8": "needs the sweep over eta_u (Fig. 5) and PGA",
    "P9": "needs two clients leaving at once (Table V)",
    "P10": "needs sample unlearning runs (Table IV)",
    "P11": "needs segmentation (Table VI)",
    "P12": "needs FedEraser",
    "P13": "needs all cost cells of Tables III-V",
}


def verdicts(
    e: Experiment,
    runs: pd.DataFrame,
    unlearnings: Unlearnings,
    equivalence: Mapping[tuple[str, int, int], Record],
    parameters: Mapping[str, int],
) -> list[ClaimResult]:
    """One result per claim P1-P14. `parameters`: setting -> P, the parameters of its net."""
    judged = [
        _cheaper(e, runs),
        _not_is_blind(e, unlearnings),
        _storage(runs, parameters),
        _natural_remembers(e, runs),
        _modes_agree(equivalence),
    ]
    waiting = [ClaimResult(name, "not run", reason=reason) for name, reason in NOT_YET.items()]
    return sorted([*judged, *waiting], key=lambda result: int(result.id.removeprefix("P")))


def _cheaper(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """P3: at least 25x less communication than retraining. With fewer than the paper's 200 rounds of training
    the rule is the equivalent one: recovery takes at most a 25th of them."""
    r = runs[runs.method.str.startswith("PUF") & (runs.stop == PAPER_STOP)]
    short = e.rounds < PAPER_ROUNDS
    fits, shown = [], []
    for setting, method in product(e.settings, ("PUF-Special", "PUF-Regular")):
        cell = r[(r.setting == setting) & (r.method == method)]
        gain = 1 / (1 / cell.bytes_gain).mean()  # the gain of the mean cost, not the mean of the gains
        rounds = cell.rounds.mean()
        fits.append(rounds <= e.rounds / 25 if short else gain >= 25)
        shown.append(f"{method}, {title(setting)}: {gain:.1f}x, {rounds:.1f} recovery rounds")
    rule = f"recovery rounds <= {e.rounds}/25" if short else "bytes ratio >= 25"
    reason = f"{rule}: {sum(fits)} of {len(fits)} rows"
    return _result("P3", all(fits), any(fits), "; ".join(shown), f"rounds {mean_spread(r.rounds)}", r, reason)


def _not_is_blind(e: Experiment, unlearnings: Unlearnings) -> ClaimResult:
    """P4: NoT's output is the same bits whoever leaves."""
    models: dict[tuple[str, int], set[str]] = defaultdict(set)
    keys = []
    for (setting, seed, _, method), record in unlearnings.items():
        if method == "NoT":
            models[setting, seed].add(record.metrics["unlearned"]["sha256"])
            keys.append(record.key)
    if len(e.targets) < 2:
        return ClaimResult("P4", "not run", reason="needs at least two targets")
    identical = [len(outputs) == 1 for outputs in models.values()]
    ours = f"{sum(identical)} of {len(identical)} models identical for all targets"
    verdict = "holds" if all(identical) else "does not hold"
    return ClaimResult("P4", verdict, ours, "exact", keys, "sha256 of the models compared")


def _storage(runs: pd.DataFrame, parameters: Mapping[str, int]) -> ClaimResult:
    """P5: PUF keeps one model, 4 P bytes."""
    r = runs[runs.method.str.startswith("PUF") & (runs.stop == PAPER_STOP)]
    ratio = r.storage / (4 * r.setting.map(dict(parameters)))
    exact = bool((ratio == 1).all())
    reason = "bytes kept, counted from live tensors"
    return _result("P5", exact, False, f"{ratio.mean():.3f} x 4P bytes", f"sd {ratio.std():.1g}", r, reason)


def _natural_remembers(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """P6: Natural's mean forget gap exceeds both PUF variants' when test accuracy first reaches Retrain's."""
    r = runs[(runs.stop == PAPER_STOP) & runs.method.isin(METHODS)]
    beats, shown = [], []
    for setting in e.settings:
        gap = {m: r[(r.setting == setting) & (r.method == m)].delta_forget.mean() for m in METHODS}
        beats.append(gap["Natural"] > max(gap["PUF-Special"], gap["PUF-Regular"]))
        listed = ", ".join(f"{m} {gap[m]:.1f}" for m in ("Natural", "PUF-Special", "PUF-Regular"))
        shown.append(f"{title(setting)}: {listed}")
    used = r[r.method != "NoT"]
    reason = f"{sum(beats)} of {len(beats)} settings"
    return _result("P6", all(beats), any(beats), "; ".join(shown), f"{mean_spread(used.delta_forget)}", used, reason)


def _modes_agree(equivalence: Mapping[tuple[str, int, int], Record]) -> ClaimResult:
    """P14: Regular(eta_r, eta_u) and Special((eta_r + eta_u) p_u) differ by less than 5% of the step, after training.
    The closed form on quadratics is a test (tests/unlearning/test_puf.py, case a)."""
    differences = pd.Series({key: record.metrics["relative_difference"] for key, record in equivalence.items()})
    close = differences < 0.05
    verdict = "holds" if close.all() else "holds in part"  # the closed form on quadratics always does
    keys = [record.key for record in equivalence.values()]
    reason = (
        f"exact on quadratics (tested); after training {int(close.sum())} of {len(close)} nets below 5% of the step"
    )
    ours = f"mean difference {100 * differences.mean():.1f}% of the step"
    return ClaimResult("P14", verdict, ours, mean_spread(100 * differences), keys, reason)


def _result(id: str, all_of: bool, some: bool, ours: str, spread: str, runs: pd.DataFrame, reason: str) -> ClaimResult:
    verdict = "holds" if all_of else "holds in part" if some else "does not hold"
    return ClaimResult(id, verdict, ours, spread, list(dict.fromkeys(runs.record)), reason)
