"""The verdicts on PUF's claims, computed from records by the rules of claims.csv (`holds_if`).

Where the claim speaks of the end of recovery, the paper's own stop rule applies (test accuracy reaches
Retrain's). It looks at the test set; the tables of the notebook also show our rule, on validation data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, spearmanr

from fu_papers.lab.record import Record
from fu_papers.look import mean_spread
from fu_papers.problem_figures import title
from fu_papers.problems import Setting
from fu_papers.puf.grid import METHODS, PUFS, Experiment
from fu_papers.puf.results import Unlearnings
from fu_papers.verdicts import ClaimResult, judge

PAPER_STOP = "test"
PAPER_ROUNDS = 200
OTHERS = ("PGA", "MoDe", "FedAU", "NoT")  # whom P1 and P2 name
SIGNIFICANT = 0.05


def verdicts(
    e: Experiment,
    runs: pd.DataFrame,
    sweep: pd.DataFrame,
    unlearnings: Unlearnings,
    equivalence: Unlearnings,
    descriptions: Mapping[str, Record],
    costs: Record,
) -> list[ClaimResult]:
    """One result per claim P1-P14. runs, sweep: `puf.results` of the tables' and of the sweep's runs;
    costs: the record of `puf.printed_costs`."""
    ended = runs[(runs.stop == PAPER_STOP) & (runs.label == "")]
    swept = sweep[sweep.stop == PAPER_STOP]
    return [
        _forgets_better("P1", e, ended, "dirichlet"),
        _forgets_better("P2", e, ended, "iid"),
        _cheaper(e, ended),
        _not_is_blind(e, unlearnings),
        _storage(ended, descriptions),
        _natural_remembers(e, ended),
        _rate_matters(swept),
        _insensitive(e, ended, swept),
        _smallest_gap("P9", ended, "pairs", ["PUF-Regular"]),
        _smallest_gap("P10", ended, "samples", list(PUFS), split="dirichlet"),
        _smallest_gap("P11", ended, "segmentation", list(PUFS)),
        _fed_eraser(e, ended, descriptions),
        _cost_cells(costs),
        _modes_agree(equivalence),
    ]


def _forgets_better(id: str, e: Experiment, ended: pd.DataFrame, split: str) -> ClaimResult:
    """P1, P2: PUF-Regular's 95 % interval lies below the means of PGA, MoDe, FedAU and NoT; in part: lowest mean."""
    settings = [s for s in e.settings if Setting.parse(s).split == split]
    if not settings:
        return ClaimResult(id, "not run", reason=f"needs a setting with the split {split!r}")
    clearly, lowest, shown = [], [], []
    r = ended[(ended.group == "clients") & ended.setting.isin(settings)]
    for setting in settings:
        here = r[r.setting == setting]
        ours = here[here.method == "PUF-Regular"].delta_forget
        rivals = {m: here[here.method == m].delta_forget.mean() for m in OTHERS}
        clearly.append(_upper(ours) < min(rivals.values()))
        lowest.append(ours.mean() < min(rivals.values()))
        listed = ", ".join(f"{m} {gap:.1f}" for m, gap in rivals.items())
        shown.append(f"{title(setting)}: PUF-Regular {ours.mean():.1f} (95% up to {_upper(ours):.1f}), {listed}")
    used = r[r.method.isin([*OTHERS, "PUF-Regular"])]
    verdict = "holds" if all(clearly) else "holds in part" if all(lowest) or any(clearly) else "does not hold"
    spread = mean_spread(r[r.method == "PUF-Regular"].delta_forget)
    reason = f"interval below all in {sum(clearly)}, lowest mean in {sum(lowest)} of {len(settings)} settings"
    return ClaimResult(id, verdict, "; ".join(shown), spread, _keys(used), reason)


def _upper(values: pd.Series) -> float:
    """Upper end of the 95 % bootstrap interval of the mean, over seeds and targets."""
    if len(values) < 2:
        return float("inf")
    if values.nunique() == 1:  # the bootstrap's percentiles of a constant are the constant
        return float(values.iloc[0])
    found = bootstrap((values.to_numpy(),), np.mean, rng=0, method="percentile")
    return float(found.confidence_interval.high)


def _cheaper(e: Experiment, ended: pd.DataFrame) -> ClaimResult:
    """P3: at least 25x less communication than retraining. With fewer than the paper's 200 rounds of training
    the rule is the equivalent one: recovery takes at most a 25th of them."""
    r = ended[(ended.group == "clients") & ended.method.isin(PUFS)]
    short = e.rounds < PAPER_ROUNDS
    fits, shown = [], []
    for setting, method in product(e.settings, PUFS):
        cell = r[(r.setting == setting) & (r.method == method)]
        gain = 1 / (1 / cell.bytes_gain).mean()  # the gain of the mean cost, not the mean of the gains
        rounds = cell.rounds.mean()
        fits.append(rounds <= e.rounds / 25 if short else gain >= 25)
        shown.append(f"{method}, {title(setting)}: {gain:.1f}x, {rounds:.1f} recovery rounds")
    rule = f"recovery rounds <= {e.rounds}/25" if short else "bytes ratio >= 25"
    reason = f"{rule}: {sum(fits)} of {len(fits)} rows"
    return judge("P3", fits, "; ".join(shown), f"rounds {mean_spread(r.rounds)}", _keys(r), reason)


def _not_is_blind(e: Experiment, unlearnings: Unlearnings) -> ClaimResult:
    """P4: NoT's output is the same bits whoever leaves."""
    models: dict[tuple[str, int], set[str]] = defaultdict(set)
    keys = []
    for cell, record in unlearnings.items():
        if (cell.group, cell.method) == ("clients", "NoT"):
            models[cell.setting, cell.seed].add(record.metrics["unlearned"]["sha256"])
            keys.append(record.key)
    if len(e.targets) < 2:
        return ClaimResult("P4", "not run", reason="needs at least two targets")
    identical = [len(outputs) == 1 for outputs in models.values()]
    ours = f"{sum(identical)} of {len(identical)} models identical for all targets"
    verdict = "holds" if all(identical) else "does not hold"
    return ClaimResult("P4", verdict, ours, "exact", keys, "sha256 of the models compared")


def _storage(ended: pd.DataFrame, descriptions: Mapping[str, Record]) -> ClaimResult:
    """P5: PUF keeps one model, 4 P bytes, in every scenario."""
    r = ended[ended.method.isin(PUFS)]
    ratio = _models_kept(r, descriptions)
    reason = "bytes kept, counted from live tensors"
    return judge("P5", [bool((ratio == 1).all())], f"{ratio.mean():.3f} x 4P bytes", f"sd {ratio.std():.1g}", _keys(r),
                 reason)  # fmt: skip


def _models_kept(r: pd.DataFrame, descriptions: Mapping[str, Record]) -> pd.Series:
    """Storage in units of 4 P bytes."""
    return r.storage / (4 * r.setting.map({text: d.metrics["parameters"] for text, d in descriptions.items()}))


def _natural_remembers(e: Experiment, ended: pd.DataFrame) -> ClaimResult:
    """P6: Natural's mean forget gap exceeds both PUF variants' when test accuracy first reaches Retrain's."""
    r = ended[(ended.group == "clients") & ended.method.isin(["Natural", *PUFS])]
    beats, shown = [], []
    for setting in e.settings:
        gap = r[r.setting == setting].groupby("method").delta_forget.mean()
        beats.append(gap["Natural"] > max(gap[m] for m in PUFS))
        shown.append(f"{title(setting)}: " + ", ".join(f"{m} {gap[m]:.1f}" for m in ("Natural", *PUFS)))
    reason = f"{sum(beats)} of {len(beats)} settings"
    return judge("P6", beats, "; ".join(shown), mean_spread(r.delta_forget), _keys(r), reason)


def _rate_matters(swept: pd.DataFrame) -> ClaimResult:
    """P7: eta_u correlates negatively with the forget gap and positively with the recovery rounds (Spearman, 5 %)."""
    r = swept[swept.group == "clients"]
    if r.groupby("method").eta_u.nunique().min() < 3 if len(r) else True:
        return ClaimResult("P7", "not run", reason="needs sweep_settings and at least three values of eta_u")
    lost, r = int(r.delta_forget.isna().sum()), r[r.delta_forget.notna()]
    met, shown = [], []
    for (setting, method), cell in r.groupby(["setting", "method"], sort=False):
        for name, sign in (("delta_forget", -1), ("rounds", 1)):
            what = "forget gap" if name == "delta_forget" else "recovery rounds"
            where = f"{method}, {title(str(setting))}, {what}"
            if cell[name].nunique() == 1:
                met.append(False)
                shown.append(f"{where}: constant")
                continue
            found = spearmanr(cell.eta_u, cell[name])
            met.append(bool(sign * found.statistic > 0 and found.pvalue < SIGNIFICANT))
            shown.append(f"{where}: {found.statistic:+.2f} (p = {found.pvalue:.2g})")
    reason = f"sign as claimed and p < {SIGNIFICANT} in {sum(met)} of {len(met)} correlations"
    reason += f"; {lost} runs diverged and are left out" if lost else ""
    return judge("P7", met, "; ".join(shown), f"{len(r)} runs", _keys(r), reason)


def _insensitive(e: Experiment, ended: pd.DataFrame, swept: pd.DataFrame) -> ClaimResult:
    """P8: at least half of the grid of eta_u and E_u has a smaller forget gap than the best baseline of Fig. 5."""
    r = swept[swept.group == "clients"]
    if r.empty:
        return ClaimResult("P8", "not run", reason="needs sweep_settings")
    met, shown, keys = [], [], _keys(r)
    for setting in e.sweep_settings:
        rivals = ended[(ended.group == "clients") & (ended.setting == setting) & ended.seed.isin(list(e.few_seeds))]
        rivals = rivals[rivals.method.isin(set(METHODS) - {"FedEraser", *PUFS})]
        best = rivals.groupby("method").delta_forget.mean().min()
        # a cell of the grid in which a run diverged has no gap, and is not below anything
        grid = r[r.setting == setting].groupby(["method", "label"]).delta_forget.agg(lambda v: v.mean(skipna=False))
        met.append(bool((grid < best).mean() >= 0.5))
        shown.append(f"{title(setting)}: {int((grid < best).sum())} of {len(grid)} below {best:.1f}")
        keys += _keys(rivals)
    return judge(
        "P8", met, "; ".join(shown), mean_spread(r.delta_forget.dropna()), keys, "share of the grid at least one half"
    )


def _smallest_gap(
    id: str, ended: pd.DataFrame, scenario: str, methods: list[str], split: str | None = None
) -> ClaimResult:
    """P9 to P11: one of `methods` has the lowest mean forget gap of all that serve the scenario's requests.

    FedEraser, which the paper does not compare with there, is left out.
    """
    r = ended[(ended.group == scenario) & ended.method.isin(set(METHODS) - {"FedEraser"})]
    if split is not None:
        r = r[[Setting.parse(text).split == split for text in r.setting]]
    if r.empty:
        return ClaimResult(id, "not run", reason=f"needs a setting for the scenario {scenario!r}")
    met, shown = [], []
    for setting, here in r.groupby("setting", sort=False):
        gap = here.groupby("method", sort=False).delta_forget.mean()
        met.append(gap.idxmin() in methods)
        shown.append(f"{title(str(setting))}: " + ", ".join(f"{m} {value:.1f}" for m, value in gap.items()))
    ours = r[r.method.isin(methods)].delta_forget
    reason = f"lowest mean in {sum(met)} of {len(met)} settings"
    return judge(id, met, "; ".join(shown), mean_spread(ours), _keys(r), reason)


def _fed_eraser(e: Experiment, ended: pd.DataFrame, descriptions: Mapping[str, Record]) -> ClaimResult:
    """P12: under IID FedEraser has the lowest mean forget gap, and stores C R_ret models."""
    settings = [s for s in e.settings if Setting.parse(s).split == "iid"]
    r = ended[(ended.group == "clients") & ended.setting.isin(settings) & ended.method.isin(METHODS)]
    eraser = r[r.method == "FedEraser"]
    if eraser.empty:
        return ClaimResult("P12", "not run", reason="needs an IID setting and history_interval of at least 1")
    retained = -(-e.rounds // e.history_interval)
    exact = bool((_models_kept(eraser, descriptions) == e.clients * retained).all())
    met, shown = [exact], []
    for setting in settings:
        gap = r[r.setting == setting].groupby("method").delta_forget.mean()
        met.append(gap.idxmin() == "FedEraser")
        shown.append(
            f"{title(setting)}: FedEraser {gap['FedEraser']:.1f}, best other {gap.drop('FedEraser').min():.1f}"
        )
    stored = f"{eraser.storage.mean():.2e} bytes, {'=' if exact else 'not'} C R_ret P B"
    reason = f"storage {'as' if exact else 'not as'} the formula; lowest mean in {sum(met[1:])} of {len(settings)}"
    return judge("P12", met, f"{stored}; {'; '.join(shown)}", mean_spread(eraser.delta_forget), _keys(r), reason)


def _cost_cells(costs: Record) -> ClaimResult:
    """P13: every printed cost cell of Tables III to V recomputed from Tables VII and VIII."""
    tables = costs.metrics
    follow = sum(table["follow"] for table in tables.values())
    cells = sum(table["cells"] for table in tables.values())
    others = ", ".join(f"{name}: {table['cells'] - table['follow']}" for name, table in tables.items())
    met = [follow == cells, follow > 0]
    reason = f"the others by table: {others}; arithmetic on the printed numbers"
    return judge("P13", met, f"{follow} of {cells} cells follow", "exact", [costs.key], reason)


def _modes_agree(equivalence: Unlearnings) -> ClaimResult:
    """P14: Regular(eta_r, eta_u) and Special((eta_r + eta_u) p_u) differ by less than 5% of the step, after training.
    The closed form on quadratics is a test (tests/fu_core/unlearning/test_puf.py, case a)."""
    differences = pd.Series([record.metrics["relative_difference"] for record in equivalence.values()])
    close = differences < 0.05
    verdict = "holds" if close.all() else "holds in part"  # the closed form on quadratics always does
    keys = [record.key for record in equivalence.values()]
    reason = (
        f"exact on quadratics (tested); after training {int(close.sum())} of {len(close)} nets below 5% of the step"
    )
    ours = f"mean difference {100 * differences.mean():.1f}% of the step"
    return ClaimResult("P14", verdict, ours, mean_spread(100 * differences), keys, reason)


def _keys(runs: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(runs.record))
