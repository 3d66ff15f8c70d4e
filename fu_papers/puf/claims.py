"""The verdicts on PUF's claims, computed from records by the rules of claims.csv (`holds_if`).

Where the claim speaks of the end of recovery, the paper's own stop rule applies (test accuracy reaches
Retrain's). It looks at the test set; the tables of the notebook also show our rule, on validation data.

Whoever can be tuned has been, by the same number of trials, but where price alone is judged (P3). Differences are
paired over targets and seeds, with the distance between two retrainings as their floor (fu_papers.evidence). A run that
gave up is no result, and doing nothing must do worse than what a claim praises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from scipy.stats import spearmanr

from fu_papers.evidence import (
    as_one_claim,
    completed,
    crossed,
    decide,
    family,
    for_means,
    in_part,
    paired,
    what_would_tell,
)
from fu_papers.intervals import Estimate, of_each
from fu_papers.lab.record import Record
from fu_papers.over_seeds_discrete import orders_below, rank_correlation
from fu_papers.problem_figures import title
from fu_papers.puf.claims_forgetting import (
    GAP,
    beats_nothing,
    called,
    fed_eraser,
    forgets_better,
    is_useful,
    keys_of,
    models_kept,
    natural_remembers,
    noise_floor,
    not_of_alike_clients_alone,
    on_patients,
    part,
)
from fu_papers.puf.grid import AGAIN, FIG_5, NOTHING, PUFS, RIVALS, SWEPT_AGAINST, Experiment
from fu_papers.puf.results import Unlearnings, at_printed_rates
from fu_papers.verdicts import ClaimResult, judge

PAPER_STOP = "test"
PAPER_ROUNDS = 200
CHEAPER = 25  # P3
CLOSE = 0.05  # P14, of the step


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
    runs, swept = runs[runs.stop == PAPER_STOP], sweep[sweep.stop == PAPER_STOP]
    ended = runs[runs.label == ""]
    return [
        forgets_better("P1", ended, "clients", PUFS, RIVALS, skewed=True),
        forgets_better("P2", ended, "clients", PUFS, RIVALS, skewed=False),
        _cheaper(e, ended, at_printed_rates(e, runs, swept)),
        _not_is_blind(e, unlearnings),
        _storage(ended, descriptions),
        natural_remembers(ended, unlearnings),
        _rate_matters(swept),
        _insensitive(e, ended, swept),
        forgets_better("P9", ended, "pairs", ["PUF-Regular"], ["FedAU", "NoT", "PUF-Special"]),
        forgets_better("P10", ended, "samples", PUFS, ["FedAU", "NoT"], skewed=True),
        on_patients(e, forgets_better("P11", ended, "segmentation", ["PUF-Special"], ["PGA", "NoT"])),
        fed_eraser(e, ended, descriptions),
        _cost_cells(costs),
        _modes_agree(equivalence),
    ]


# --- costs -----------------------------------------------------------------------------------------------------------


def _cheaper(e: Experiment, ended: pd.DataFrame, own: pd.DataFrame) -> ClaimResult:
    """P3: at least 25 times less communication than retraining, at the paper's 200 rounds.

    own: PUF with the paper's eta_u and E_u. Trials choose by what is forgotten and take no notice of rounds: what they
    chose costs, stands beside it.

    By the mean share of retraining's bytes. With other rounds of training it is projected: retraining would send
    200 / rounds as much, unlearning and recovery what they have sent here. A run that gave up has sent less than it
    would have to: its share is a lower bound, which can refute the claim and not support it. Doing nothing sends
    nothing: what is no nearer to Retrain is not cheap but idle.
    """
    main = ended[ended.group == "clients"]
    r = own[own.method.isin(PUFS)]
    if r.empty or {NOTHING, AGAIN} - set(main.method):
        return ClaimResult("P3", "not run", reason=f"needs PUF, {NOTHING} and {AGAIN} in the main block")
    longer, margin = PAPER_ROUNDS / e.rounds, -1 / CHEAPER
    cells = {part(str(m), title(str(s)), r): one for (s, m), one in r.groupby(["setting", "method"], sort=False)}
    gave_up = {name: completed(one)[1] for name, one in cells.items()}  # or diverged
    sent = {name: one.assign(value=1 / (one.bytes_gain * longer)) for name, one in cells.items()}
    sent = {name: one for name, one in sent.items() if one.value.notna().any()}  # else all diverged
    nearer = {n: beats_nothing(completed(one)[0], main[main.setting.isin(one.setting)]) for n, one in sent.items()}

    def judged(shares: Mapping[str, Estimate]) -> dict[str, str]:
        verdicts = dict.fromkeys(cells, "does not hold")
        for name, found in shares.items():
            cheap = decide(found, claim="less", margin=margin)
            verdicts[name] = cheap if cheap != "holds" else "undetermined" if gave_up[name] else nearer[name][0]
        return verdicts

    shares, parts = as_one_claim({name: crossed(one) for name, one in sent.items()}, judged, step_down=False)
    shown, open_ = [], []
    for name, cell in cells.items():
        if name not in shares:
            shown.append(f"{name}: {gave_up[name]}")
            continue
        found = shares[name]
        low, high = (f"{1 / end:.1f}" if end > 0 else "∞" for end in (found.high, found.low))
        ratio, as_run = 1 / found.effect, 1 / found.effect / longer
        if gave_up[name]:  # nobody knows what it would have sent
            shown.append(f"{name}: at most {ratio:.1f}, {as_run:.1f} as run, {gave_up[name]}")
        else:
            rounds = f"{cell.rounds.mean():.1f} recovery rounds"
            shown.append(f"{name}: {ratio:.1f} [{low}, {high}], {as_run:.1f} as run, {rounds}")
        tuned = main[(main.setting == cell.setting.iloc[0]) & (main.method == cell.method.iloc[0])]
        if not tuned.bytes_gain.isna().all() and set(tuned.record) != set(cell.record):
            most = "at most " if completed(tuned)[1] else ""
            shown[-1] += f" (as tuned {most}{1 / (1 / tuned.bytes_gain).mean():.1f} as run)"
        cheap = decide(found, claim="less", margin=margin)
        if cheap == "undetermined":
            open_.append(f"{name}: {what_would_tell(found, claim='less', margin=margin)}")
        elif cheap == "holds" and gave_up[name]:
            open_.append(f"{name}: {gave_up[name]}; a larger cap would tell")
        elif cheap == "holds" != parts[name]:
            open_.append(f"{name}: nearer to Retrain than doing nothing {': '.join(nearer[name])}")
    verdict, counted = in_part(parts)
    how = "as run" if longer == 1 else f"projected from {e.rounds} rounds of training, which may err to either side"
    reason = "; ".join([f"bytes of retraining over 200 rounds / mean bytes sent, {how}: {counted}", *open_])
    level = max([found.level for found in shares.values()], default=0.95)
    intervals = f"ratio with {100 * level:.4g} % interval, {of_each(r.request.nunique(), r.seed.nunique())}"
    keys = keys_of(pd.concat([r, main[main.method.isin([*PUFS, NOTHING, AGAIN])]]))
    result = ClaimResult("P3", verdict, "; ".join(shown), intervals, keys, reason)
    return not_of_alike_clients_alone(result, r.setting.unique())


def _not_is_blind(e: Experiment, unlearnings: Unlearnings) -> ClaimResult:
    """P4: NoT's output is the same bits whoever leaves."""
    models: dict[tuple[str, int], list[str]] = defaultdict(list)
    keys = []
    for cell, record in unlearnings.items():
        if (cell.group, cell.method, cell.label) == ("clients", "NoT", "") and "unlearned" in record.metrics:
            models[cell.setting, cell.seed].append(record.metrics["unlearned"]["sha256"])
            keys.append(record.key)
    identical = [len(set(outputs)) == 1 for outputs in models.values() if len(outputs) > 1]
    if not identical:
        return ClaimResult("P4", "not run", reason="needs NoT and at least two targets")
    ours = f"{sum(identical)} of {len(identical)} models identical for all targets"
    verdict = "holds" if all(identical) else "does not hold"
    return ClaimResult("P4", verdict, ours, "exact", keys, "by construction; sha256 of the models compared")


def _storage(ended: pd.DataFrame, descriptions: Mapping[str, Record]) -> ClaimResult:
    """P5: of all that a server could have kept, PUF is handed one model, 4 P bytes, in every scenario.

    What it is handed is measured; with less than it needs it would have failed by name.
    """
    r = ended[ended.method.isin(PUFS) & ended.storage.notna()]
    if r.empty:
        return ClaimResult("P5", "not run", reason="needs runs of PUF that did not diverge")
    kept, handed = (models_kept(r, descriptions, column) for column in ("storage", "handed"))
    ratio, one = pd.concat([kept, handed]), int(((kept == 1) & (handed == 1)).sum())
    reason = f"bytes handed to the method, and bytes it declares as kept: both 4 P in {one} of {len(r)} runs"
    ours = f"{ratio.min():g} to {ratio.max():g} models of 4 P bytes"
    verdict = "holds" if bool((ratio == 1).all()) else "does not hold"
    return ClaimResult("P5", verdict, ours, "exact", keys_of(r), reason)


def _cost_cells(costs: Record) -> ClaimResult:
    """P13: every printed cost cell of Tables III to V recomputed from Tables VII and VIII."""
    tables = costs.metrics
    follow = sum(table["follow"] for table in tables.values())
    cells = sum(table["cells"] for table in tables.values())
    met = [k < table["follow"] for table in tables.values() for k in range(table["cells"])]  # one part per cell
    listed = ", ".join(f"{name} {table['follow']} of {table['cells']}" for name, table in tables.items())
    reason = f"cells that follow, by table: {listed}; arithmetic on the printed numbers"
    return judge("P13", met, f"{follow} of {cells} cells follow", "exact", [costs.key], reason)


# --- the rate --------------------------------------------------------------------------------------------------------


def _rate_matters(swept: pd.DataFrame) -> ClaimResult:
    """P7: with eta_u the forget gap falls and the recovery rounds rise: the rank correlation of each request and seed,
    and its mean over them, with an interval on the claim's side.

    A test of the orders has to say so, too, at the same level: a few correlations that are all 1 have an interval
    without width.
    """
    r = swept[swept.group.isin(list(FIG_5))]
    if r.groupby("method").eta_u.nunique().min() < 3 if len(r) else True:
        return ClaimResult("P7", "not run", reason="needs sweep_settings and at least three values of eta_u")
    if r[GAP].isna().all():
        return ClaimResult("P7", "undetermined", records=keys_of(r), reason=f"all {len(r)} runs diverged")
    there = r[GAP].notna()  # else it diverged
    lost, gave_up = int((~there).sum()), int((there & ~r.reached.astype(bool)).sum())
    trends: dict[str, tuple[Estimate | None, Callable[[float], str], str]] = {}  # by part: mean, orders' verdict, claim
    for (setting, method), cell in r.groupby(["setting", "method"], sort=False):
        for name, claim in ((GAP, "less"), ("rounds", "more")):
            # the cap of a run that gave up is a tie for the longest recovery, its state is no forget gap
            kept = cell[cell[GAP].notna() & (cell.reached.astype(bool) if name == GAP else True)]
            where = part(f"{method}, {'forget gap' if name == GAP else 'recovery rounds'}", title(str(setting)), r)
            trends[where] = _mean_correlation(kept, name), partial(_by_orders, kept, name, claim), claim

    def judged(found: Mapping[str, Estimate]) -> dict[str, str]:
        parts = {}
        for where, (_, by_orders, claim) in trends.items():
            by_interval = decide(found[where], claim=claim) if where in found else "undetermined"
            agree = by_interval != "undetermined" and by_interval == by_orders(found[where].level)
            parts[where] = by_interval if agree else "undetermined"
        return parts

    means, parts = as_one_claim({where: one for where, (one, *_) in trends.items() if one is not None}, judged)
    means = {where: replace(one, low=max(one.low, -1.0), high=min(one.high, 1.0)) for where, one in means.items()}
    open_ = []
    for where, (_, _, claim) in trends.items():
        if where not in means:
            open_.append(f"{where}: three values of eta_u that came back would tell")
        elif decide(means[where], claim=claim) == "undetermined":
            open_.append(f"{where}: {what_would_tell(means[where], claim=claim)}")
        elif parts[where] == "undetermined":
            open_.append(f"{where}: orders as good come by chance; more requests, seeds or rates would tell")
    shown = [f"{where}: {found.text(2)}" for where, found in means.items()]
    verdict, counted = in_part(parts)
    gone = [f"{lost} runs diverged and are left out"] if lost else []
    gone += [f"{gave_up} gave up: no forget gap, and the cap for rounds"] if gave_up else []
    reason = "; ".join([counted, *gone, *open_[:3]])
    return ClaimResult("P7", verdict, "; ".join(shown), f"Spearman, {len(r)} runs", keys_of(r), reason)


def _mean_correlation(kept: pd.DataFrame, name: str) -> Estimate | None:
    """Of `name` with eta_u, over requests and seeds; None where no run of three rates is left."""
    ranks = [
        {"request": request, "seed": seed, "value": _rank_correlation(one.eta_u, one[name])}
        for (request, seed), one in _with_three_rates(kept)
    ]
    if not ranks:
        return None
    return crossed(pd.DataFrame(ranks).groupby(["request", "seed"])[["value"]].mean().reset_index())


def _with_three_rates(kept: pd.DataFrame) -> Iterator[tuple[tuple[Any, Any], pd.DataFrame]]:
    """The runs of each request, seed and E_u, under request and seed; where eta_u has three values or more."""
    for (request, seed, _), one in kept.groupby(["request", "seed", "epochs_u"], sort=False):
        if one.eta_u.nunique() > 2:
            yield (request, seed), one


def _by_orders(kept: pd.DataFrame, name: str, claim: str, level: float) -> str:
    """What the permutation test for a trend says, a block per request, seed and E_u (`over_seeds.orders_below`).

    It takes blocks for independent, which those of one seed's training are not: it guards the interval, and is no
    verdict by itself.
    """
    blocks = [one for _, one in _with_three_rates(kept)]
    side = 1 if claim == "less" else -1
    ranks = [side * rank_correlation(b.eta_u, b[name]) for b in blocks]
    return orders_below(ranks, [len(b) for b in blocks], 0.0, level)


def _rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Spearman's; 0 where y does not change at all."""
    return float(spearmanr(x, y).statistic) if y.nunique() > 1 else 0.0


def _insensitive(e: Experiment, ended: pd.DataFrame, swept: pd.DataFrame) -> ClaimResult:
    """P8: at least half of the grid of eta_u, and of E_u as far as it was swept, is below the best baseline of Fig. 5.

    Best of those that always came back, as it is tuned; Natural after its last reading. Doing nothing is one of them if
    there are others: what is nearer to Retrain than a baseline that went astray need not have forgotten. A point of the
    grid is below if its forget gap is smaller beyond the floor. One of which a run gave up or diverged is not known to
    be; one of which most did is not, nor is one of no use.
    """
    r = swept[swept.group.isin(list(FIG_5))]
    if r.empty:
        return ClaimResult("P8", "not run", reason="needs sweep_settings")
    parts: dict[str, str] = {}
    shown, keys, differences = [], keys_of(r), []
    for scenario, setting in [(name, setting) for name in FIG_5 for setting in e.swept_settings(name)]:
        here = ended[(ended.group == scenario) & (ended.setting == setting)]
        here = here[here.seed.isin(list(e.swept_seeds(scenario)))]
        rivals = [m for m in SWEPT_AGAINST if (one := here[here.method == m]).size and one.reached.all()]
        if not rivals or AGAIN not in set(here.method):
            parts[title(setting)] = "undetermined"
            shown.append(f"{title(setting)}: no baseline that always came back")
            continue
        floor, done = noise_floor(here), here[here.method.isin([*rivals, NOTHING])]
        best = str(done.groupby("method")[GAP].mean().idxmin())
        grid = r[r.setting == setting].groupby(["method", "label"], sort=False)
        points = {str(name): for_means(one) for name, one in grid}
        best_runs = done[done.method == best]
        apart = {name: paired(one, best_runs, value=GAP) for name, (one, _) in points.items() if len(one)}
        apart = family(apart)  # points are counted, so that their number matters
        patchy = sum(bool(gave_up) for _, gave_up in points.values())
        found = []
        for name, (one, gave_up) in points.items():
            useful = len(one) and is_useful(one, here)
            below = decide(apart[name], beyond=floor) if useful else "does not hold"
            found.append("undetermined" if gave_up and below == "holds" else below)
        yes, no, half = found.count("holds"), found.count("does not hold"), max(len(found), 1) / 2
        parts[title(setting)] = "holds" if yes >= half else "does not hold" if no > half else "undetermined"
        told = f"of {len(found)} points {yes} below {called(best)}, the best baseline, {no} not; floor {floor:.1f}"
        shown.append(f"{title(setting)}: {told}" + (f"; in {patchy} a run gave up" if patchy else ""))
        keys += keys_of(here)
        if ends := [pick(apart.values(), key=lambda one: one.effect).text() for pick in (min, max) if apart]:
            differences.append(f"{title(setting)}: {' to '.join(ends)} of {called(best)}'s")
    verdict, counted = in_part(parts)
    epochs = " and ".join(f"{epochs:g}" for epochs in e.sweep_epochs_u)
    reason = (
        f"at least half of the grid below, beyond the floor: {counted}; with E_u of {epochs} alone; more seeds and "
        "targets would tell the rest"
    )
    return ClaimResult(
        "P8", verdict, "; ".join(shown), "; ".join([f"{len(r)} runs", *differences]), list(dict.fromkeys(keys)), reason
    )


def _modes_agree(equivalence: Unlearnings) -> ClaimResult:
    """P14: Regular(eta_r, eta_u) and Special((eta_r + eta_u) p_u) differ by less than 5 % of the step, after training.

    The closed form on quadratics is a test (tests/fu_core/unlearning/test_puf.py, case a).
    """
    rows = [
        {"setting": c.setting, "request": c.request, "seed": c.seed, "value": r.metrics["relative_difference"]}
        for c, r in equivalence.items()
    ]
    parts: dict[str, str] = {}
    shown, open_ = [], []
    for setting, cell in pd.DataFrame(rows).groupby("setting", sort=False):
        found = crossed(cell, log=True)  # clients differ by multiples
        parts[title(str(setting))] = decide(found, claim="less", margin=1 / CLOSE)  # so many times less than the step
        shown.append(f"{title(str(setting))}: {found.text(2)}")
        if parts[title(str(setting))] == "undetermined":
            open_.append(what_would_tell(found, claim="less", margin=1 / CLOSE))
    verdict, counted = in_part(parts)
    close = sum(row["value"] < CLOSE for row in rows)
    reason = "; ".join([counted, f"{close} of {len(rows)} nets below 5 %; exact on quadratics (tested)", *open_])
    keys = [record.key for record in equivalence.values()]
    return ClaimResult("P14", verdict, "; ".join(shown), "share of the step, geometric mean", keys, reason)
