"""The rules of certified DFL's claims on planted numbers: each verdict on both sides of its rule.

The two seeds agree to the last digit, unless a test plants a pair of values.
"""

import itertools
import re

import pandas as pd
import pytest

from fu_papers.certified_dfl import claims
from fu_papers.certified_dfl.grid import DU_FORMS, PER_DATASET, Place, granularity
from fu_papers.certified_dfl.theory_audit import OURS
from fu_papers.certified_dfl.theory_releases import MESSAGES
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.lab.record import Record
from fu_papers.verdicts import NO_OTHER, claims_table
from fu_papers.verdicts import claims as rules
from tests.certified_dfl_lab import experiment

MNIST, CIFAR = "mnist/unit_softmax", "cifar10/tiny_cnn"
E = experiment(datasets=[MNIST, CIFAR], seeds=[0, 1], pdudt_rounds=[5, 5])
NOTHING, PRINTED, CORRECTED, PDUDT, TUNED = "Original", "DU printed", "DU", "PDUDT", "Fine-tune"
HOLDS, PART, NOT, OPEN = "holds", "holds in part", "does not hold", "undetermined"
JUDGED = (NOTHING, PRINTED, CORRECTED)
HERE = Place(MNIST, "dirichlet-0.3", "ring")  # the cell that an exception is planted in
ALONE = experiment(seeds=[0, 1], datasets=[MNIST], **{name: getattr(E, name)[:1] for name in PER_DATASET})
SIZES = {place.setting: 100 if place.dataset == MNIST else 7 for place in E.places()}  # parameters
# Every test below is about these rules; whoever changes one has to change the code and the test.
RULES = {
    "D1": (
        "95% interval over seeds within 1 point (MNIST, F-MNIST), 5 points (CIFAR-10) in every cell, after "
        "one round; a cell that doing nothing, that round alone or random weights meet as well does not hold,"
        " one that a second retraining fails is undetermined"
    ),
    "D2": (
        "95% intervals over seeds: remaining within 1 point AND removed class within 5 points of retrain's in"
        " every cell, after one round; a cell that doing nothing, that round alone or random weights meet as "
        "well does not hold, one that a second retraining fails is undetermined"
    ),
    "D3": (
        "95% interval over seeds: |AUC - 0.5| no larger than retrain's + 0.02 in every cell, of a model "
        "within 1 point of its accuracy (CIFAR-10: 5; class-wise: of the remaining classes); undetermined "
        "where doing nothing, that round alone or random weights meet it, too, or a second retraining is not "
        "known to"
    ),
    "D4": (">= 97% of 100 rounds; undetermined where that takes more and 200 are enough, as the paper names no K"),
    "D5": (
        "95% interval over seeds on every data set: at most 1 point for DU, where doing nothing's is not, and"
        " more than 1 for PDUDT"
    ),
    "D6": (
        "95% interval over seeds within 1 point of RT, after one round; a cell that doing nothing, that round"
        " alone or random weights meet as well does not hold, one that a second retraining fails is "
        "undetermined"
    ),
    "D7": ("95% interval over seeds at most 1 point each time, on every data set, where doing nothing's is not"),
    "D8": "never violated",
    "D9": "each lemma never violated; Lemma 3 as printed and with the corrected step",
    "D10": (
        "audited lower bound and exact epsilon <= the claimed epsilon in every case, for each of the three "
        "outputs of a single release, against outsiders; for two requests in turn; for the messages after a "
        "noisy start, against one client; as printed with the paper's own calibration, against the same "
        "training without the data; corrected against exact retraining, which its certificate is about "
        "(errata D6)"
    ),
    "D11": "never, as printed with the paper's L, corrected with the other",
    "D12": "at most d numbers: as printed for the full Fisher, corrected for its diagonal",
    "D13": (
        "cosine >= 0.9 and an error of at most half of doing nothing's (0.5) for the full Fisher at the "
        "optimum of each problem, in the worst of ten draws"
    ),
}
FINE = {
    "delta_test": 0.0, "delta_remaining": 0.0, "delta_removed": 0.0, "auc_off": 0.1, "auc_off_retrain": 0.1,
    "mia": 50.0, "kept": 0.0, "published": float("nan"), "curvature": None, "images": 100, "products": 0,
}  # fmt: skip
FAR = {"delta_test": 50, "delta_remaining": 50, "delta_removed": 50, "auc_off": 0.5}
CONTROLS = {TUNED: FAR, DESTROYED: FAR, AGAIN: {}}  # as they must be; a round is of 100 images


def record(metrics=None, name="r", config=None, rounds=()):
    return Record("f", name, config or {}, "", "0", metrics or {}, list(rounds), None, {})


def places(request):
    return [E.main(dataset) for dataset in E.datasets] if request == "client" else E.places()


def frame(request, planted, where=None, group="tables"):
    """Both seeds of every place of a request: `planted` is {method: {column: value}}, `where` the same at HERE.

    A value that is a pair has one per seed.
    """
    rows = []
    for place in places(request):
        for method, values in planted.items():
            values = {**FINE, **values, **((where or {}).get(method, {}) if place == HERE else {})}
            for seed in (0, 1):
                of_seed = {k: value[seed] if isinstance(value, tuple) else value for k, value in values.items()}
                key = f"{request} {'/'.join(place)} {method} {seed}"
                where_it_is = {"setting": place.setting, "condition": place.topology, "seed": seed}
                about = {"group": group, "request": E.requests()[request], "method": method, **where_it_is}
                rows.append({**about, **of_seed, "record": key})
    return pd.DataFrame(rows)


def of_dataset(runs, dataset):
    return runs.setting.isin([place.setting for place in E.places() if place.dataset == dataset])


def by_dataset(request, planted):
    """As `frame`, with different numbers on CIFAR-10: {method: (on MNIST, on CIFAR-10)} of delta_test."""
    both = [frame(request, {m: {"delta_test": v[i]} for m, v in planted.items()}) for i in (0, 1)]
    kept = [part[of_dataset(part, dataset)] for part, dataset in zip(both, E.datasets, strict=True)]
    return pd.concat(kept, ignore_index=True)


def keys_of(runs, methods=(*JUDGED, *CONTROLS), requests=("sample", "class", "client")):
    return set(runs[runs.method.isin(methods) & runs.request.map(granularity).isin(requests)].record)


def judged(id, runs=None, **planted):
    """One claim's verdict on what is planted, and for all that is not, on inputs on which every claim holds."""
    return claims.judges(*planted_inputs(runs, **planted))[id]()


def both(result):
    return result.verdict, result.corrected


def verdicts(**planted):
    """All of them, on what is planted."""
    return claims.verdicts(*planted_inputs(**planted))


def planted_inputs(runs=None, kept=None, speeds=None, curves=None, theory=None, e=E):
    """What claims are judged by. `runs`: in place of the tables' runs of the same requests; `kept`: in place of what
    tells of storage; `curves`: in place of one figure's; `theory`: in place of the same kinds of checks.

    On what is not planted every claim holds, and doing nothing meets no rule.
    """
    fine = {kind: frame(kind, {NOTHING: FAR, PRINTED: {}, CORRECTED: {}}) for kind in E.requests()}
    planted = set() if runs is None else set(runs.request.map(granularity))
    tables = [part for kind, part in fine.items() if kind not in planted]
    tables += [frame(kind, CONTROLS) for kind in E.requests() if runs is None or not set(runs.method) & set(CONTROLS)]
    kept = storage(1.0, 1.0).assign(group="choices") if kept is None else kept
    all_runs = pd.concat([*([] if runs is None else [runs]), *tables, kept], ignore_index=True)
    reached = {PRINTED: [20, 89.0], CORRECTED: [20, 89.0], PDUDT: [20, 20, 89.0]}
    every_curve = one_request(reached) | sequence(NEAR)
    every_theory = {
        "mixing": mixing(ring=0, erdos_renyi=0),
        "bounds": bounds(0, 0, 0),
        "audit": [record({"rows": CLEAN}, config={"draws": 9})],
        "whole": [],
        "canaries": [],
        "risk": [
            record(
                {
                    "share": [0.1],
                    "slopes": {"noise_free": 1.0, "noise": 2.0},
                    "violations": {"paper": 0, "reach": 0},
                }
            )
        ],
        "fisher": fisher(well_specified=[1.0]),
    }
    descriptions = {place: record({"parameters": SIZES[place.setting]}) for place in E.places()}
    return e, descriptions, all_runs, every_curve | (curves or {}), speeds or timed(), every_theory | (theory or {})


def test_the_rules_are_those_of_claims_csv():
    written = rules()
    written = written[written.paper == "certified_dfl"]
    assert dict(zip(written["id"], written.holds_if, strict=True)) == RULES


# --- Tables I to IV --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdicts"),
    [
        ((3, 6), (1.0, 5.0), (1.0, 5.0), (HOLDS, HOLDS)),
        ((3, 6), (1.01, 5.0), (1.0, 5.0), (PART, HOLDS)),  # half of the cells
        ((3, 6), (1.0, 5.0), (1.0, 5.01), (HOLDS, PART)),
        ((3, 5.0), (1.0, 5.0), (1.0, 5.0), (PART, PART)),  # doing nothing is as near on CIFAR-10
        ((1.0, 5.0), (1.0, 5.0), (1.0, 5.0), (NOT, NOT)),  # ... and everywhere
        ((3, 6), (1.01, 5.01), (1.0, 5.0), (NOT, HOLDS)),  # the corrected form does not lift the printed one
        ((1.0, 5.0), (1.01, 5.01), (1.01, 5.01), (NOT, NOT)),
    ],
)
def test_d1_asks_for_one_point_and_for_five_on_cifar10(nothing, printed, corrected, verdicts):
    result = judged("D1", by_dataset("sample", {NOTHING: nothing, PRINTED: printed, CORRECTED: corrected}))
    assert both(result) == verdicts
    if nothing == (1.0, 5.0) and printed == (1.0, 5.0):
        assert "doing nothing meets it, too, in 8 of 8 parts" in result.reason


@pytest.mark.parametrize("method", DU_FORMS)
def test_d1_asks_it_of_every_cell(method):
    near = {NOTHING: {"delta_test": 6}, PRINTED: {}, CORRECTED: {}}
    assert both(judged("D1", frame("sample", near))) == (HOLDS, HOLDS)
    result = judged("D1", frame("sample", near, {method: {"delta_test": 1.01}}))
    assert both(result) == ((PART, HOLDS) if method == PRINTED else (HOLDS, PART))
    assert "in 7 of 8 cells" in result.ours
    assert "1 of 8 do not hold (MNIST softmax regression dirichlet-0.3 ring)" in result.reason
    # a single cell where doing nothing fails, too, is not enough for the claim to say something
    nothing = frame("sample", {m: {} for m in JUDGED}, {NOTHING: {"delta_test": 1.01}})
    assert both(judged("D1", nothing)) == (NOT, NOT)


def test_one_seed_and_two_that_differ_are_undetermined():
    far = {"delta_test": 50, "delta_remaining": 50, "delta_removed": 50, "auc_off": 0.5}
    wide = {"delta_test": (0.2, 0.6), "delta_remaining": (0.2, 0.6), "auc_off": (0.05, 0.12)}
    for id, request in (("D1", "sample"), ("D2", "class"), ("D3", "sample"), ("D6", "client")):
        runs = frame(request, {NOTHING: far, PRINTED: {}, CORRECTED: wide})
        result = judged(id, runs)
        assert (result.corrected, result.verdict) == (OPEN, HOLDS), id
        assert re.search(r"corrected: .*about \d+ seeds would tell \(2 now\)", result.reason)
        alone = runs[runs.seed == 0]
        assert both(judged(id, alone)) == (OPEN, OPEN), id
        assert "several seeds would tell (1 now)" in judged(id, alone).reason


@pytest.mark.parametrize(
    ("id", "kind", "column"),
    [("D1", "sample", "delta_test"), ("D2", "class", "delta_removed"), ("D2", "class", "delta_remaining")],
)
def test_the_worst_cell_of_each_form_is_named_with_its_interval(id, kind, column):
    runs = frame(kind, {NOTHING: FAR, PRINTED: {column: 9}, CORRECTED: {}}, {CORRECTED: {column: (2.0, 3.0)}})
    spread = judged(id, runs).spread
    what, limit = ("worst", ", limit 1") if id == "D1" else ("up to", "")  # D1's limits differ
    place = "MNIST, softmax regression dirichlet-0.3 ring"
    assert f"DU, corrected {what} 2.50 [0.00, 8.85] (2 seeds; {place}{limit})" in spread
    assert f"DU, as printed {what} 9.00 [9.00, 9.00] (2 seeds; " in spread


def test_the_worst_cell_is_the_one_that_goes_farthest_beyond_its_own_limit():
    """Of CIFAR-10 five points are asked, of MNIST one: a cell at 3 meets the rule there, and one at 2 does not here."""
    runs = by_dataset("sample", {NOTHING: (6, 6), PRINTED: (2.0, 3.0), CORRECTED: (0.0, 3.0)})
    printed, corrected = judged("D1", runs).spread.split("; DU, ")[1:]
    assert printed.startswith("as printed worst 2.00 [2.00, 2.00] (2 seeds; MNIST")
    assert corrected.startswith("corrected worst 0.00 [0.00, 0.00] (2 seeds; MNIST")  # 1 from its limit, the other 2


def test_d3_and_d6_name_their_worst_cells_too():
    attacked = frame("sample", {NOTHING: FAR, PRINTED: {}, CORRECTED: {}}, {CORRECTED: {"auc_off": 0.35}})
    others = frame("class", {NOTHING: FAR, PRINTED: {}, CORRECTED: {}})
    spread = judged("D3", pd.concat([attacked, others], ignore_index=True)).spread
    assert "sample-wise DU, as printed up to 0.0000 [0.0000, 0.0000]" in spread
    assert (
        "DU, corrected up to 0.2500 [0.2500, 0.2500] (2 seeds; MNIST, softmax regression dirichlet-0.3 ring)" in spread
    )
    left = frame("client", {NOTHING: FAR, PRINTED: {}, CORRECTED: {"delta_test": (0.2, 0.6)}})
    assert "DU, corrected up to 0.40 [0.00, 2.94] (2 seeds; " in judged("D6", left).spread


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdicts"),
    [
        ((0, 90), (1.0, 5.0), (1.0, 5.0), (HOLDS, HOLDS)),
        ((0, 90), (1.01, 5.0), (1.0, 5.0), (NOT, HOLDS)),  # one of the two conditions is not enough
        ((0, 90), (1.0, 5.0), (1.0, 5.01), (HOLDS, NOT)),
        ((1.0, 5.0), (1.0, 5.0), (1.0, 5.0), (NOT, NOT)),
        ((1.0, 5.01), (1.0, 5.0), (1.0, 5.0), (HOLDS, HOLDS)),
        ((1.01, 5.0), (1.0, 5.0), (1.0, 5.0), (HOLDS, HOLDS)),
    ],
)
def test_d2_asks_for_one_point_on_remaining_classes_and_five_on_the_removed_one(nothing, printed, corrected, verdicts):
    planted = dict(zip(JUDGED, (nothing, printed, corrected), strict=True))
    runs = frame("class", {m: {"delta_remaining": a, "delta_removed": b} for m, (a, b) in planted.items()})
    assert both(judged("D2", runs)) == verdicts


@pytest.mark.parametrize("column", ["delta_remaining", "delta_removed"])
def test_d2_asks_it_of_every_cell_and_has_no_exception_for_cifar10(column):
    planted = {NOTHING: {"delta_removed": 90}, PRINTED: {}, CORRECTED: {}}
    assert both(judged("D2", frame("class", planted, {CORRECTED: {column: 6}}))) == (HOLDS, PART)
    runs = frame("class", planted)
    runs.loc[(of_dataset(runs, CIFAR)) & (runs.method == PRINTED), "delta_remaining"] = 1.01
    assert both(judged("D2", runs)) == (PART, HOLDS)


def both_requests(planted, where=None):
    """Sample- and class-wise; `where` holds in one class-wise cell."""
    return pd.concat([frame("sample", planted), frame("class", planted, where)], ignore_index=True)


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdicts"),
    [
        (0.15, 0.119, 0.119, (HOLDS, HOLDS)),
        (0.15, 0.121, 0.119, (NOT, HOLDS)),
        (0.15, 0.119, 0.121, (HOLDS, NOT)),
        (0.119, 0.119, 0.119, (OPEN, OPEN)),  # it finds no more where nothing was done
        (0.119, 0.121, 0.119, (NOT, OPEN)),  # ... but something where the model is worse
        (0.15, 0.0, 0.0, (HOLDS, HOLDS)),  # less exposed than Retrain is no offence
    ],
)
def test_d3_asks_for_an_auc_at_most_0_02_farther_from_guessing_than_retrains(nothing, printed, corrected, verdicts):
    planted = dict(zip(JUDGED, (nothing, printed, corrected), strict=True))  # Retrain's: 0.1
    runs = both_requests({method: {"auc_off": value} for method, value in planted.items()})
    assert both(judged("D3", runs)) == verdicts


@pytest.mark.parametrize("request_kind", ["sample", "class"])
def test_d3_finds_no_forgetting_in_a_model_of_no_use(request_kind):
    """Random weights hide everything: their AUC is 0.5."""
    column = "delta_test" if request_kind == "sample" else "delta_remaining"
    hidden = {NOTHING: {"auc_off": 0.15}, PRINTED: {"auc_off": 0.0, column: 50}, CORRECTED: {"auc_off": 0.0}}
    other = "class" if request_kind == "sample" else "sample"
    fine = {NOTHING: {"auc_off": 0.15}, PRINTED: {}, CORRECTED: {}}
    runs = pd.concat([frame(request_kind, hidden), frame(other, fine)], ignore_index=True)
    assert both(judged("D3", runs)) == (PART, HOLDS)


def test_d1_d2_d3_and_d6_hold_nowhere_where_a_control_is_not_as_it_must_be():
    for id, requests in FORGETS.items():
        for control, values, verdict, said in (
            (TUNED, {}, OPEN if id == "D3" else NOT, "the round of training that follows DU, alone, meets it, too"),
            (DESTROYED, {}, OPEN if id == "D3" else NOT, "a model of random weights meets it, too"),
            (AGAIN, FAR, OPEN, "a second retraining fails the rule, too"),
        ):
            planted = {NOTHING: FAR, PRINTED: {}, CORRECTED: {}} | CONTROLS | {control: values}
            result = judged(id, pd.concat([frame(kind, planted) for kind in requests], ignore_index=True))
            assert (both(result), said in result.reason) == ((verdict, verdict), True), (id, control)


FORGETS = {"D1": ("sample",), "D2": ("class",), "D3": ("sample", "class"), "D6": ("client",)}


def in_the_place_of_du(id, values, nothing=FAR):
    """One claim's verdicts where both forms leave another model behind. nothing: what doing nothing leaves."""
    planted = {NOTHING: nothing, PRINTED: values, CORRECTED: values} | CONTROLS
    return both(judged(id, pd.concat([frame(kind, planted) for kind in FORGETS[id]], ignore_index=True)))


@pytest.mark.parametrize("id", FORGETS)
@pytest.mark.parametrize("removed", [0.0, 50.0])  # a constant output can be right about a class that left
def test_a_useless_model_forgets_nothing(id, removed):
    """Destroyed, or with a constant output: no attack finds anything in it."""
    useless = {"delta_test": 50, "delta_remaining": 50, "delta_removed": removed, "auc_off": 0.0}
    assert in_the_place_of_du(id, useless) == (NOT, NOT)


@pytest.mark.parametrize("id", FORGETS)
def test_a_copy_of_original_forgets_nothing(id):
    assert in_the_place_of_du(id, FAR) == (NOT, NOT)


@pytest.mark.parametrize("id", FORGETS)
def test_a_copy_of_original_forgets_nothing_where_that_is_as_near_to_retrain_as_is_asked(id):
    near = {"delta_test": 0.3, "delta_remaining": 0.3, "delta_removed": 3.0, "auc_off": 0.11}
    verdict = OPEN if id == "D3" else NOT  # an attack that finds nothing in Original tells nothing
    assert in_the_place_of_du(id, near, nothing=near) == (verdict, verdict)
    assert in_the_place_of_du(id, near) == (HOLDS, HOLDS)  # it is not the rule that fails it


@pytest.mark.parametrize("id", FORGETS)
def test_a_second_retraining_in_the_place_of_du_forgets(id):
    assert in_the_place_of_du(id, {"delta_test": 0.4, "delta_remaining": 0.4, "delta_removed": 2.0}) == (HOLDS, HOLDS)


def test_d3_is_about_samples_and_classes_and_not_about_clients():
    planted = {NOTHING: {"auc_off": 0.15}, PRINTED: {}, CORRECTED: {}}
    exposed = frame("client", {m: {"auc_off": 0.5} for m in JUDGED})
    runs = pd.concat([both_requests(planted | CONTROLS), exposed], ignore_index=True)
    result = judged("D3", runs)
    assert both(result) == (HOLDS, HOLDS)
    assert set(result.records) == keys_of(runs, requests=("sample", "class"))
    assert both(judged("D3", both_requests(planted, {PRINTED: {"auc_off": 0.13}}))) == (PART, HOLDS)
    assert both(judged("D3", both_requests(planted, {CORRECTED: {"auc_off": 0.13}}))) == (HOLDS, PART)
    # one of sixteen cells in which doing nothing fails tells nothing of the others
    few = judged("D3", both_requests({m: {} for m in JUDGED}, {NOTHING: {"auc_off": 0.13}}))
    assert both(few) == (OPEN, OPEN)
    assert "an attack that doing nothing fails would tell" in few.reason
    assert "doing nothing meets it, too, in 15 of 16 parts" in few.reason
    assert "1 of 16 hold" in few.reason


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdicts"),
    [
        (2, 1.0, 1.0, (HOLDS, HOLDS)),
        (2, 1.0, 1.01, (HOLDS, NOT)),
        (2, 1.01, 1.0, (NOT, HOLDS)),
        (1.0, 1.0, 1.0, (NOT, NOT)),
    ],
)
def test_d6_asks_for_one_point_after_a_client_has_left(nothing, printed, corrected, verdicts):
    planted = dict(zip(JUDGED, (nothing, printed, corrected), strict=True))
    runs = frame("client", {m: {"delta_test": value} for m, value in planted.items()})
    assert both(judged("D6", runs)) == verdicts


@pytest.mark.parametrize(("cifar", "verdict"), [(1.0, HOLDS), (1.01, PART)])
def test_d6_has_no_exception_for_cifar10(cifar, verdict):
    runs = by_dataset("client", {NOTHING: (2, 2), PRINTED: (1.0, 1.0), CORRECTED: (1.0, cifar)})
    assert both(judged("D6", runs)) == (HOLDS, verdict)


@pytest.mark.parametrize(
    ("id", "request_kind"),
    [("D1", "sample"), ("D2", "class"), ("D6", "client")],
)
def test_d1_d2_and_d6_look_at_the_runs_of_their_own_request_only(id, request_kind):
    far = {"delta_test": 50, "delta_remaining": 50, "delta_removed": 50}
    others = {NOTHING: far, PDUDT: far} | CONTROLS
    parts = [
        frame(r, dict.fromkeys(DU_FORMS, {} if r == request_kind else far) | others)
        for r in ("sample", "class", "client")
    ]
    choices = frame("sample", {CORRECTED: far}, group="choices").assign(record="of the ablation")
    runs = pd.concat([*parts, choices], ignore_index=True)
    result = judged(id, runs)
    assert result.verdict == HOLDS
    assert len(result.records) == len(set(result.records))
    assert set(result.records) == keys_of(runs, requests=(request_kind,)) - {"of the ablation"}


# --- Figures 1 and 2 -------------------------------------------------------------------------------------------------


def timed(saved=50.0):
    """Retraining takes 100 s, both forms save so many percent of it."""
    cases = [(dataset, request) for dataset in E.datasets for request in E.requests()]
    seconds = {"Retrain": 100.0, "round": 1.0} | dict.fromkeys(DU_FORMS, 100.0 - saved)
    return {case: record({"seconds": seconds}, " ".join(case)) for case in cases}


def passed(printed, corrected):
    """Gradient passes per request, (images, products); a round has 100, and K such rounds are retraining."""
    far = {"delta_test": 50, "delta_remaining": 50, "delta_removed": 50, "auc_off": 0.5}
    costs = {
        m: dict(zip(("images", "products"), cost, strict=True))
        for m, cost in zip(DU_FORMS, (printed, corrected), strict=True)
    }
    return pd.concat([frame(kind, {NOTHING: far, **costs}) for kind in E.requests()], ignore_index=True)


@pytest.mark.parametrize("rounds", [[5, 5], [100, 100], [400, 400]])  # of the profile, which have no say
@pytest.mark.parametrize(
    ("printed", "corrected", "verdicts"),
    [
        ((300, 0), (100, 100), (HOLDS, HOLDS)),  # of 10,000; a product is two passes
        ((301, 0), (100, 100), (OPEN, HOLDS)),
        ((300, 0), (400, 100), (HOLDS, OPEN)),  # 3 % of 20,000
        ((601, 0), (401, 100), (NOT, NOT)),
    ],
)
def test_d4_asks_for_97_percent_of_100_rounds_passes_and_is_open_up_to_200(printed, corrected, verdicts, rounds):
    e = E.changed(rounds=rounds)
    for seconds in (10.0, 99.9):
        result = judged("D4", passed(printed, corrected), speeds=timed(seconds), e=e)
        assert both(result) == verdicts
    assert {" ".join(case) for case in timed()} <= set(result.records)


def test_d4_tells_what_a_request_is_worth_in_rounds_and_how_many_it_is_3_percent_of():
    result = judged("D4", passed((112, 0), (340, 20)))
    assert "DU, as printed passes what 1.12 to 1.12 rounds do, 97 % less than 37 to 37 of them" in result.ours
    assert "DU, corrected passes what 3.8 to 3.8 rounds do, 97 % less than 127 to 127 of them" in result.ours
    seconds = next(iter(timed(50.0).values())).metrics["seconds"]
    told = f"(in seconds {seconds['DU'] / seconds['round']:.3g} to"
    assert told in judged("D4", passed((112, 0), (340, 20)), speeds=timed(50.0)).ours


def test_d4_is_about_every_case():
    runs = passed((300, 0), (300, 0))
    once = (runs.method == PRINTED) & of_dataset(runs, CIFAR) & (runs.request == E.requests()["class"])
    runs.loc[once, "images"] = 601
    result = judged("D4", runs)
    assert both(result) == (PART, HOLDS)
    assert "1 of 6 do not hold (class-wise CIFAR-10 tiny CNN)" in result.reason


def curve(name, *phases):
    """A curve's record: one list of accuracies per phase, training first, from round 0 on."""
    rounds = [{"phase": p, "round": t, "test": test} for p, path in enumerate(phases) for t, test in enumerate(path)]
    return record(name=name, rounds=rounds)


LOWER = {0: 0.0, 1: 20.0}  # all accuracies of a seed: whoever compares two seeds is twenty points off


def lowered(path, seed):
    return [accuracy - LOWER[seed] for accuracy in path]


def one_request(reached, *, trained=(80.0, 80.0), seeds=(0, 1)):
    """Fig. 1, client-wise. Retrain ends at 90; `reached` {method: accuracy after 0, 1, ... rounds}, of every seed.

    trained: where training ends, per data set. A list of such lists has one per seed.
    """
    curves = {}
    for dataset, end in zip(E.datasets, trained, strict=True):
        here = {"Retrain": [10, 50, 90], "Fine-tune": [end, 88.9]} | reached
        for (method, path), seed in itertools.product(here.items(), seeds):
            of_seed = path[seed] if isinstance(path[0], list) else path
            name = f"{dataset} client {method} {seed}"
            phases = [lowered([10, end], seed), lowered(of_seed, seed)]
            curves[dataset, "client", method, seed] = curve(name, *phases)
    return curves


AT_ONCE = {PRINTED: [20, 89.0], CORRECTED: [20, 89.0], PDUDT: [20, 88.9, 89.0]}
NEVER = "not within 1, not within 1"


@pytest.mark.parametrize(
    ("changed", "trained", "found", "shown"),
    [
        ({}, (80, 80), (HOLDS, HOLDS), ("1, 1", "1, 1", "2, 2")),
        ({PRINTED: [90, 88.9]}, (80, 80), (NOT, HOLDS), ("0, 0", "1, 1", "2, 2")),  # the round itself lost it
        ({CORRECTED: [20, 20]}, (80, 80), (HOLDS, NOT), ("1, 1", NEVER, "2, 2")),
        ({PDUDT: [20, 89.0]}, (80, 80), (NOT, NOT), ("1, 1", "1, 1", "1, 1")),  # which needs no more
        ({}, (89, 80), (PART, PART), ("1, 1", "1, 1", "2, 2")),  # on MNIST nothing had to be won back
        ({}, (91, 90), (NOT, NOT), ("1, 1", "1, 1", "2, 2")),
        ({"Fine-tune": [80, 89.1]}, (80, 80), (NOT, NOT), ("1, 1", "1, 1", "2, 2")),  # nor DU
    ],
)
def test_d5_asks_for_one_round_of_du_and_more_of_pdudt(changed, trained, found, shown):
    curves = one_request(AT_ONCE | changed, trained=trained)
    result = judged("D5", curves=curves)
    assert both(result) == found
    told = [part.rpartition(") " if "(" in part else "ed ")[2] for part in result.ours.split("; ")[:3]]
    assert told == list(shown)
    assert f"doing nothing is at most 1 point short on {sum(end >= 89 for end in trained)} of 2" in result.ours
    assert re.search(r"; PDUDT \(reconstruction\) -?[0-9.]+ \[.* \(2 seeds\) on MNIST.*, .* on CIFAR-10", result.spread)
    assert re.search(r"points short after one round: DU, as printed up to .*\(2 seeds; ", result.spread)
    assert ("doing nothing meets it, too" in result.reason) == (trained[0] > 88)
    assert ("the round of training that follows DU, alone, meets it" in result.reason) == ("Fine-tune" in changed)
    assert result.records == [found.key for found in curves.values()]


def test_d5_counts_the_rounds_of_every_seed():
    reached = {PRINTED: [[20, 89.0], [89.5, 89.0]], CORRECTED: [[20, 20], [20, 89]], PDUDT: [20, 20, 20]}
    result = judged("D5", curves=one_request(AT_ONCE | reached))
    assert result.ours.split("; ")[:3] == [
        "DU, as printed 0 to 1, 0 to 1",
        "DU, corrected not within 1 (1 of 2), not within 1 (1 of 2)",
        "PDUDT (reconstruction) not within 2, not within 2",
    ]
    assert both(result) == (HOLDS, OPEN)  # two seeds that are 69 points apart tell nothing


TRAINED_ON = {"Fine-tune": [5, 5, 5]}  # who only trains on
NEAR = {PRINTED: [0, 0, 0], CORRECTED: [0, 0, 0]}


def sequence(short, *, trained=80.0, seeds=(0, 1)):
    """Fig. 1, sample-wise. Retrain ends at 90 each time; `short` {form: by how much it is short after each request and
    a round}."""
    curves, short = {}, TRAINED_ON | short
    for dataset, seed in itertools.product(E.datasets, seeds):
        after = {"Retrain": [[10, 90]] * 3}  # right after the step, one round, more rounds
        after |= {method: [[90 - 40, 90 - gap, 90] for gap in found] for method, found in short.items()}
        for method, requests in after.items():
            phases = [lowered(path, seed) for path in ([10, trained], *requests)]
            curves[dataset, "sample", method, seed] = curve(f"{dataset} {method} {seed}", *phases)
    return curves


@pytest.mark.parametrize(
    ("printed", "corrected", "trained", "found"),
    [
        ([1.0, 0, -1.0], [0, 1.0, 0], 80.0, (HOLDS, HOLDS)),
        ([1.0, 0, -9.0], [0, 1.01, 0], 80.0, (HOLDS, NOT)),  # above it by training on; short after one of three
        ([0, 0, 0], [0, 0, 0], 89.0, (NOT, NOT)),  # doing nothing is as stable
        ([2, 2, 2], [0, 0, 0], 89.0, (NOT, NOT)),
    ],
)
def test_d7_asks_for_one_point_after_every_request(printed, corrected, trained, found):
    curves = sequence({PRINTED: printed, CORRECTED: corrected}, trained=trained)
    result = judged("D7", curves=curves)
    assert both(result) == found
    for short in ([90 - trained], printed, corrected):
        assert f"at most {max(short):.1f} points short" in result.ours
        assert f"up to {max(short):.1f} [" in result.spread
    assert result.records == [found.key for found in curves.values()]


def test_d7_asks_that_training_on_alone_is_not_as_stable():
    result = judged("D7", curves=sequence(NEAR | {"Fine-tune": [0.9, 0.5, -3]}))
    assert both(result) == (NOT, NOT)
    assert "the round of training that follows DU, alone, meets it" in result.reason
    assert both(judged("D7", curves=sequence(NEAR | {"Fine-tune": [0.9, 0.5, 1.1]}))) == (HOLDS, HOLDS)


def test_one_curve_decides_nothing():
    for id, curves in (("D5", one_request(AT_ONCE, seeds=(0,))), ("D7", sequence(NEAR, seeds=(0,)))):
        inputs = list(planted_inputs())
        inputs[3] = {key: found for key, found in inputs[3].items() if key[3] == 0} | curves
        result = claims.judges(*inputs)[id]()
        assert both(result) == (OPEN, OPEN), id
        assert "several seeds would tell (1 now)" in result.reason


# --- lemmas, theorems, certificates ----------------------------------------------------------------------------------


def mixing(**violations):
    return [record({"violations": v, "rho": 0.5}, name, {"topology": name}) for name, v in violations.items()]


@pytest.mark.parametrize(
    ("ring", "erdos_renyi", "verdict"),
    [(0, 0, HOLDS), (1, 0, PART), (0, 1, PART), (1, 100, NOT)],
)
def test_d8_asks_for_no_violation_on_the_papers_two_graphs(ring, erdos_renyi, verdict):
    result = judged("D8", theory={"mixing": mixing(ring=ring, star=0, erdos_renyi=erdos_renyi, torus=7)})
    assert result.verdict == verdict
    assert result.records == ["ring", "erdos_renyi"]


NEAR_AND_FAR = [{"shift": 1.0, "lemma_3": 1.0}, {"shift": 1.0, "lemma_3": 0.9}]  # doing nothing, and Lemma 3's bound


def bounds(*counts):
    names = ("Lemma 2", "Lemma 3, printed", "Lemma 3, corrected")
    planted = {**dict(zip(names, counts, strict=True)), "residual radius": 9}
    clean = dict.fromkeys(planted, 0)
    return [
        record({"violations": v, "rows": NEAR_AND_FAR * 2}, name)
        for name, v in (("clean", clean), ("planted", planted))
    ]


@pytest.mark.parametrize(
    ("counts", "verdicts"),
    [
        ((0, 0, 0), (HOLDS, HOLDS)),
        ((1, 0, 0), (PART, PART)),
        ((0, 1, 0), (PART, HOLDS)),
        ((0, 0, 1), (HOLDS, PART)),
        ((1, 1, 0), (NOT, PART)),
    ],
)
def test_d9_asks_for_no_violation_of_either_lemma_reading_by_reading(counts, verdicts):
    result = judged("D9", theory={"bounds": bounds(*counts)})
    assert both(result) == verdicts
    assert result.records == ["clean", "planted"]
    assert f"Lemma 3, printed violated in {counts[1]} of 8" in result.ours
    assert "doing nothing is within Lemma 3's bound, too, in 4" in result.ours
    assert ("1 of 2 hold (Lemma 2); 1 of 2 do not hold (Lemma 3)" in result.reason) == (counts[0] == 0 != sum(counts))


MEAN, ALL = "mean model", "all models"


def audited(form, reference, epsilon, output=MEAN, broken=False, counted=True, distinct=True, planted=False, claimed=1):
    """A row of an audit that claims epsilon = 1."""
    about = {"mechanism": f"{form}, anyhow", "reference": reference, "output": output, "counted": counted}
    about |= {"distinct": distinct, "planted": planted, "claimed": claimed}
    return {
        **about,
        "expected": 1.0,
        "by": output,
        "audited": epsilon,
        "refuted": epsilon > 1,
        "broken": epsilon > 1 or broken,
    }


SAME, EXACT = "same training", "x'"
CLEAN = [
    audited(form, reference, 0.3, output)
    for form, reference in (("printed", SAME), ("corrected", EXACT))
    for output in (MEAN, ALL)
]


@pytest.mark.parametrize(
    ("rows", "verdicts"),
    [
        ([], (HOLDS, HOLDS)),
        ([audited("printed", SAME, 1.0), audited("corrected", EXACT, 1.0)], (HOLDS, HOLDS)),
        ([audited("corrected", SAME, 9.0)], (HOLDS, HOLDS)),  # that is not what the corrected certificate is about
        ([audited("corrected", EXACT, 1.01)], (HOLDS, PART)),  # the mean model's; that of all models stands
        ([audited("printed", SAME, 1.01)], (PART, HOLDS)),
        ([audited("printed", EXACT, 1.01)], (PART, HOLDS)),
        ([audited("printed", SAME, 1.01), audited("printed", SAME, 1.01, ALL)], (NOT, HOLDS)),
        ([audited("corrected", EXACT, 0.3, broken=True)], (HOLDS, PART)),  # no audit saw it, the exact epsilon does
        ([audited("printed", SAME, 9.0, counted=False)], (HOLDS, HOLDS)),  # it claimed so much that it is no promise
    ],
)
def test_d10_judges_the_printed_form_on_all_its_rows_and_the_corrected_one_where_it_certifies(rows, verdicts):
    audits = [record({"rows": part}, name, {"draws": 4000}) for name, part in (("one", CLEAN), ("two", rows))]
    result = judged("D10", theory={"audit": audits})
    assert both(result) == verdicts
    assert result.records == ["one", "two"]


def test_d10_says_how_many_rows_were_refuted_and_how_far():
    rows = [*CLEAN, audited("printed", SAME, 3.0), audited("printed", EXACT, 7.0), audited("corrected", SAME, 9.0)]
    result = judged("D10", theory={"audit": [record({"rows": rows}, config={"draws": 4000})]})
    assert result.ours == (
        "printed: 2 of 4 outputs of 1 releases refuted (up to 7.0), 2 broken; "
        "corrected: 0 of 2 outputs of 1 releases refuted, 0 broken; "
        "against the same training, which no corrected certificate is about: 1 of 1 outputs refuted"
    )
    rows.append(audited("printed", SAME, 8.0) | {"mechanism": OURS})  # a calibration that the paper does not have
    assert judged("D10", theory={"audit": [record({"rows": rows}, config={"draws": 4000})]}).ours == result.ours
    rows.append(audited("printed", SAME, 3.0, counted=False))
    result = judged("D10", theory={"audit": [record({"rows": rows}, config={"draws": 4000})]})
    assert result.ours.startswith("printed: 2 of 4 outputs of 1 releases refuted (up to 7.0), 2 broken; corrected")
    assert result.ours.endswith("; not counted: 1 that claim more than 100")


def test_d10_says_how_many_audits_were_too_coarse():
    """In the median they prove next to nothing of a release that is as bad as its claim: they find only worse ones."""
    rows = [*CLEAN, *(audited("corrected", EXACT, 0.1, claimed=5) | {"expected": told} for told in (0.0, 0.49, 0.5))]
    rows.append(rows[-2] | {"by": "canaries"})  # of which it is not known
    result = judged("D10", theory={"audit": [record({"rows": rows}, config={"draws": 9})]})
    ours = result.ours
    assert "corrected: 0 of 6 outputs of 2 releases refuted, 0 broken, 2 of them audited too coarsely to see" in ours
    assert f"in every case, of {MEAN}" in result.reason
    assert "as a client reads them" not in result.reason  # no messages were audited
    with_messages = [*rows, audited("corrected", EXACT, 0.1, claimed=5) | {"output": MESSAGES}]
    told = judged("D10", theory={"audit": [record({"rows": with_messages}, config={"draws": 9})]}).reason
    assert f"{MESSAGES} (after a noisy start, as a client reads them)" in told
    assert ours.startswith("printed: 0 of 2 outputs of 1 releases refuted, 0 broken; ")


def test_d10_counts_releases_and_outputs_that_differ():
    """One model that all publish is one output, whatever is looked at; whole releases and canaries are counted, too."""
    alike = [audited("corrected", EXACT, 1.5, output, distinct=output == MEAN) for output in (MEAN, ALL)]
    more = [audited("corrected", EXACT, 0.1), audited("corrected", EXACT, 0.1, claimed=5)]
    theory = {
        "audit": [record({"rows": [*CLEAN, *alike]}, "one", {"draws": 9})],
        "whole": [record({"rows": more}, "two", {"draws": 64})],
        "canaries": [record({"rows": more[:1]}, "three")],
    }
    result = judged("D10", theory=theory)
    assert "corrected: 1 of 6 outputs of 4 releases refuted (up to 1.5), 1 broken" in result.ours
    assert both(result) == (HOLDS, NOT)
    assert result.records == ["one", "two", "three"]
    assert result.spread == "9 or 64 releases per world, and one with canaries"


@pytest.mark.parametrize("kind", ["audit", "whole", "canaries"])
def test_what_is_planted_enters_no_count_of_d10(kind):
    """Whatever it is called, whatever is found, and whether or not it says that it counts."""
    wrong = [audited(form, EXACT, 9.0, output, planted=True, counted=counted)
             for form in ("printed", "corrected") for output in (MEAN, ALL) for counted in (True, False)]  # fmt: skip
    clean = {"audit": [record({"rows": CLEAN}, "one", {"draws": 9})], "whole": [], "canaries": []}
    planted = {**clean, kind: [*clean[kind], record({"rows": wrong}, "two", {"draws": 9})]}
    without, beside = (judged("D10", theory=theory) for theory in (clean, planted))
    assert beside.ours == without.ours
    assert both(beside) == both(without) == (HOLDS, HOLDS)
    assert beside.reason == without.reason


def test_d10_does_not_count_a_mechanism_that_never_released_as_certified():
    rows = [audited("printed", SAME, 0.3), audited("corrected", SAME, 0.3)]
    assert both(judged("D10", theory={"audit": [record({"rows": rows}, config={"draws": 9})]})) == (HOLDS, NOT)


@pytest.mark.parametrize(
    ("paper", "reach", "verdicts"), [(0, 0, (HOLDS, HOLDS)), (1, 0, (NOT, HOLDS)), (5, 1, (NOT, NOT))]
)
@pytest.mark.parametrize("slope", [1.0, 4.0])
def test_d11_asks_for_the_bound_in_every_case_and_not_that_it_be_tight(paper, reach, verdicts, slope):
    found = [
        record(
            {
                "share": [0.1, 0.2, 0.3],
                "slopes": {"noise_free": a, "noise": 2 * a},
                "violations": {"paper": paper_, "reach": reach_},
            },
            name,
        )
        for name, a, paper_, reach_ in (("fine", 1.0, 0, 0), ("planted", slope, paper, reach))
    ]
    result = judged("D11", theory={"risk": found})
    assert both(result) == verdicts
    assert result.records == ["fine", "planted"]
    assert f"exceeded in {paper} of 6 cases with the paper's L, in {reach} with" in result.ours


def storage(fisher, diagonal, hessian=1e9):
    """`kept` in numbers of four bytes per parameter, on both data sets; PDUDT's is published as 60 d."""
    kept = {"fisher": fisher, "diagonal_fisher": diagonal, "hessian": hessian, None: 1000.0}
    parts = [
        frame("client", {PDUDT if kind is None else CORRECTED: {"kept": value, "curvature": kind}}).assign(
            record=lambda r, kind=kind: r.record + f" {kind}"
        )
        for kind, value in kept.items()
    ]
    runs = pd.concat(parts, ignore_index=True)
    sizes = 4 * runs.setting.map(SIZES)
    runs["kept"] *= sizes
    runs.loc[runs.method == PDUDT, "published"] = 60 * sizes
    return runs


@pytest.mark.parametrize(
    ("fisher", "diagonal", "verdict"),
    [
        (1.0, 1.0, (HOLDS, HOLDS)),
        (1.01, 1.0, (NOT, HOLDS)),  # the paper never names the diagonal, which lifts nothing
        (1.0, 1.01, (HOLDS, NOT)),
        (1.01, 1.01, (NOT, NOT)),
    ],
)
def test_d12_asks_that_a_fisher_matrix_is_kept_in_d_numbers(fisher, diagonal, verdict):
    runs = storage(fisher, diagonal)
    result = judged("D12", kept=runs)
    assert (result.verdict, result.corrected) == verdict
    assert set(result.records) == set(runs[runs.curvature != "hessian"].record)
    assert result.ours.endswith("PDUDT k N_c d = 60 to 60 d, our reconstruction 1000 d")


@pytest.mark.parametrize(("missing", "verdict"), [("fisher", (OPEN, HOLDS)), ("diagonal_fisher", (HOLDS, OPEN))])
def test_d12_is_open_of_a_matrix_that_nobody_has_kept(missing, verdict):
    runs = storage(1.0, 1.0)
    result = judged("D12", kept=runs[runs.curvature != missing])
    assert (result.verdict, result.corrected) == verdict


def test_d12_counts_against_the_net_of_the_run_and_looks_at_every_run():
    runs = storage(1.0, 1.0)
    one_too_many = (runs.curvature == "diagonal_fisher") & (of_dataset(runs, CIFAR)) & (runs.seed == 1)
    runs.loc[one_too_many, "kept"] += 4
    result = judged("D12", kept=runs)
    assert (result.verdict, result.corrected) == (HOLDS, NOT)


def fisher(**cosines):
    name = "full Fisher, Eq. (7) as printed"
    other = {"cosine": [-1.0], "error": [9.0]}
    return [
        record(
            {"steps": {name: {"cosine": found, "error": [0.1] * len(found)}, "diagonal Fisher, as printed": other}},
            problem,
            {"problem": problem.replace("_", " "), "draws": len(found)},
        )
        for problem, found in cosines.items()
    ]


@pytest.mark.parametrize(
    ("well", "mis", "verdict"),
    [
        ([0.9], [0.9, 1.0], HOLDS),
        ([0.9], [0.899, 1.0], PART),  # one draw is enough
        ([0.899], [0.9], PART),
        ([0.899], [1.0, -0.9], NOT),
    ],
)
def test_d13_asks_for_a_cosine_of_0_9_well_and_misspecified(well, mis, verdict):
    result = judged("D13", theory={"fisher": fisher(well_specified=well, breast_cancer=mis)})
    assert result.verdict == verdict
    assert result.records == ["well_specified", "breast_cancer"]
    far = fisher(well_specified=well, breast_cancer=mis)
    for error in (100.0, 0.99, 0.51):  # the right way: a hundred times too far, hardly at all, not half of it
        for planted in far:
            planted.metrics["steps"]["full Fisher, Eq. (7) as printed"]["error"] = [error]
        assert judged("D13", theory={"fisher": far}).verdict == NOT
    lowered = judged("D13", theory={"fisher": fisher(well_specified=well, breast_cancer=mis, least_squares=[0.0])})
    assert lowered.verdict in (PART, NOT)  # least squares counts as everything else


# --- all of them -----------------------------------------------------------------------------------------------------


ONE_FORM = ("D8", "D13")  # no other form is printed or corrected


@pytest.mark.parametrize("id", ["D1", "D2", "D6"])
def test_what_is_about_nets_too_is_not_judged_on_a_convex_model_alone(id):
    """What it says there is told; the verdict of a smaller profile, which has nets, stays the one that counts."""
    assert both(judged(id)) == (HOLDS, HOLDS)
    found = judged(id, e=ALONE)
    assert both(found) == ("not run", "not run")
    assert "of the convex model alone: holds" in found.reason
    assert found.records


def test_theory_is_judged_whatever_the_data_sets():
    assert judged("D8", e=ALONE).verdict == HOLDS


def test_there_is_one_verdict_per_claim_in_the_papers_order():
    results = verdicts()
    assert [result.id for result in results] == list(RULES) == [f"D{i}" for i in range(1, 14)]
    expected = dict.fromkeys(RULES, HOLDS)
    assert {result.id: result.verdict for result in results} == expected
    assert {r.id: r.corrected for r in results} == expected | dict.fromkeys(ONE_FORM, NO_OTHER)
    assert claims_table(results).paper.unique().tolist() == ["certified_dfl"]
    for result in results:
        assert result.records
        assert result.reason
        assert len(set(result.records)) == len(result.records)


def test_a_run_behind_two_rows_is_named_once():
    runs = storage(1.0, 1.0)
    twice = pd.concat([runs, runs.assign(group="tables")], ignore_index=True)
    result = judged("D12", kept=twice)
    assert len(result.records) == len(set(result.records)) == (runs.curvature != "hessian").sum()
