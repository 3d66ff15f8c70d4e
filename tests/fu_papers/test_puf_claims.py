"""PUF's verdicts on constructed runs: every rule from all its sides, on numbers whose truth is known.

Two targets, two seeds; what a test plants for a (scenario, setting, request, seed, method) overrides the defaults, with
which every claim holds. Where all cells say the same, an interval is a point.
"""

from itertools import product

import pandas as pd
import pytest

from fu_papers.lab.record import Record
from fu_papers.puf import claims as puf_claims
from fu_papers.puf.grid import AGAIN, CONTROLS, DESTROYED, METHODS, PUBLISHED, PUFS, RIVALS
from fu_papers.study import Cell
from fu_papers.verdicts import claims, claims_table, write_claims
from tests.puf_lab import experiment

SKEWED, EVEN, SITES = "cifar10/dirichlet-0.3/tiny_cnn", "cifar10/iid/tiny_cnn", "prostate_mri/site/res_unet"
PHANTOM, MORE = "phantom/site/small_res_unet", "mnist/dirichlet-0.3/tiny_cnn"
PLAIN = experiment([SKEWED, EVEN], targets=[0, 1], seeds=[0, 1], few_seeds=[0, 1], rounds=200)
E = PLAIN.changed(
    sample_settings=[SKEWED, EVEN], pair_settings=[SKEWED], pairs=[[0, 1], [2, 3]], sweep_settings=[SKEWED],
    segmentation_settings=[SITES], segmentation_targets=[0, 3],
)  # fmt: skip
ALONE = {  # what a claim rests on, and little else: a verdict on all of E takes a second
    "P1": PLAIN.changed(settings=[SKEWED]),
    "P2": PLAIN.changed(settings=[EVEN]),
    "P7": PLAIN.changed(settings=[SKEWED], sweep_settings=[SKEWED]),
    "P8": PLAIN.changed(settings=[SKEWED], sweep_settings=[SKEWED]),
    "P9": PLAIN.changed(settings=[SKEWED], pair_settings=[SKEWED], pairs=[[0, 1], [2, 3]]),
    "P10": PLAIN.changed(settings=[SKEWED], sample_settings=[SKEWED]),
    "P11": PLAIN.changed(settings=[SKEWED], segmentation_settings=[SITES], segmentation_targets=[0, 3]),
    "P12": PLAIN.changed(settings=[EVEN]),
}
P = {SKEWED: 1000, EVEN: 1200, MORE: 700, SITES: 500, PHANTOM: 500}  # parameters of the net
FLOOR = 1.0
GAP = {"Original": 30.0, "Retrain": 0.0, AGAIN: FLOOR, DESTROYED: 60.0, "Natural": 20.0, "Fine-tune": 18.0,
       "Random labels": 16.0, "FedEraser": 0.5, "PGA": 12.0, "MoDe": 14.0, "FedAU": 8.0, "NoT": 10.0,
       "PUF-Special": 4.0, "PUF-Regular": 2.0}  # fmt: skip
CANNOT = {"samples": ("FedEraser", "PGA", "MoDe"), "pairs": ("PGA", "MoDe"),
          "segmentation": ("MoDe", "FedAU", "Random labels")}  # fmt: skip
FORGETS_BETTER = {  # claim -> where, and whose gap must be smaller than that of those in the paper's table
    "P1": ("clients", SKEWED, [*PUFS], [*RIVALS]),
    "P2": ("clients", EVEN, [*PUFS], [*RIVALS]),
    "P9": ("pairs", SKEWED, ["PUF-Regular"], ["PUF-Special", "FedAU", "NoT"]),
    "P10": ("samples", SKEWED, [*PUFS], ["FedAU", "NoT"]),
    "P11": ("segmentation", SITES, [*PUFS], ["NoT", "PGA"]),
}


def record(key, metrics, rounds=()):
    return Record("f", key, {}, "", "0", metrics, list(rounds), None, {})


def cells_of(e):
    """Of `e.runs()`, without making its configs."""
    return [
        Cell(s.name, *place) for s in e.scenarios() for place in product(s.settings, s.seeds, s.requests, s.methods)
    ]


def row(cell, e, **values):
    one = 4 * P[cell.setting]
    kept = one * (e.clients * e.rounds if cell.method == "FedEraser" else 1)
    found = {"delta_forget": GAP[cell.method], "bytes_gain": 100.0, "rounds": 3, "unlearning_rounds": 1,
             "storage": kept, "handed": one, "reached": True, "shortfall": 0.0, "delta_test": 0.5}  # fmt: skip
    return {**cell._asdict(), **found, "record": str(tuple(cell)), **values}


def planted(changes, cell):
    """What `changes` say of a cell: {(scenario, setting, request, seed, method): values}, None: any."""
    values = {}
    where = (cell.group, cell.setting, cell.request, cell.seed, cell.method)
    for place, change in (changes or {}).items():
        if all(a in (None, b) for a, b in zip(place, where, strict=True)):
            values |= change
    return values


def runs_of(e=E, changes=None):
    """As `puf.results` makes them. They count under the paper's stop rule and tuned; else PUF looks hopeless."""
    rows = []
    hopeless = {"delta_forget": 99.0, "bytes_gain": 0.1, "handed": 0, "storage": 0}
    for cell in cells_of(e):
        if cell.method not in CANNOT.get(cell.group, ()):
            rows.append(row(cell, e, stop="test", **planted(changes, cell)))
            other = hopeless if cell.method in PUFS else {}
            rows.append(row(cell, e, stop="validation", **other))
            if cell.group == "clients" and cell.method in PUFS:
                rows.append(row(cell._replace(label=PUBLISHED), e, stop="test", **other))
    return pd.DataFrame(rows)


def sweep_of(e=ALONE["P7"], gap=lambda eta_u: 6 / eta_u, rounds=lambda eta_u: 2 * eta_u):
    """Gap and recovery rounds as functions of eta_u, in units of the smallest of its method."""
    rows = []
    for cell, config in e.sweep():
        eta_u, epochs_u = (config["options"][name] for name in ("eta_u", "epochs_u"))
        unit = eta_u / min(e.sweep_special if cell.method == "PUF-Special" else e.sweep_regular)
        values = {"delta_forget": gap(unit), "rounds": rounds(unit), "eta_u": eta_u, "epochs_u": epochs_u}
        rows.append(row(cell, e, stop="test", **values))
        rows.append(row(cell, e, stop="validation", **{**values, "delta_forget": 99.0}))
    columns = [*Cell._fields, "stop", "delta_forget", "rounds", "reached", "eta_u", "epochs_u", "record"]
    return pd.DataFrame(rows, columns=columns)


def unlearnings_of(e=E, sha=None, natural=lambda round, cell: 20.0):
    """Records of NoT, Natural and Retrain. sha: {(setting, request): hash}; natural: its gap after so many rounds."""
    found = {}
    for cell in cells_of(e):
        key = str(tuple(cell))
        if cell.method == "NoT":
            model = (sha or {}).get((cell.setting, cell.request), "same")
            found[cell] = record(key, {"unlearned": {"sha256": model}})
        elif cell.method == "Retrain":
            found[cell] = record(key, {"final": {"forget": 50.0}})
        elif cell.method == "Natural":
            rounds = [{"round": k, "test": 80.0, "forget": 50.0 + natural(k, cell)} for k in range(9)]
            found[cell] = record(key, {}, rounds)
    return found


def equivalence_of(differences, e=E):
    """differences: a number for all, or one per (setting, seed, request)."""
    cells = [cell for cell in cells_of(e) if (cell.group, cell.method) == ("clients", "PUF-Regular")]
    values = [differences] * len(cells) if isinstance(differences, float) else differences
    return {
        cell: record(f"equivalence {cell}", {"relative_difference": d, "p_u": 0.1})
        for cell, d in zip(cells, values, strict=True)
    }


def judge(e=E, changes=None, *, sweep=None, sha=None, natural=None, differences=0.01, cells=((9, 9), (5, 5))):
    """All results by claim. cells: (size, how many follow) of Tables III and IV."""
    results = puf_claims.verdicts(
        e,
        runs_of(e, changes),
        sweep_of(e) if sweep is None else sweep,
        unlearnings_of(e, sha, **({"natural": natural} if natural else {})),
        equivalence_of(differences, e),
        {setting: record(setting, {"parameters": parameters}) for setting, parameters in P.items()},
        record("costs", {name: {"cells": n, "follow": k} for name, (n, k) in zip(("III", "IV"), cells, strict=True)}),
    )
    assert len({one.id for one in results}) == len(results)
    return {one.id: one for one in results}


def result(id, changes=None, e=None, **planting):
    return judge(e or ALONE.get(id, PLAIN), changes, **planting)[id]


def verdict(id, changes=None, e=None, **planting):
    return result(id, changes, e, **planting).verdict


def every(place, values):
    """`values` for a (scenario, setting, method), in all its cells."""
    scenario, setting, method = place
    return {(scenario, setting, None, None, method): values}


def by_cell(place, values, column="delta_forget"):
    """One value per cell of the main block: ((client 0, seeds 0 and 1), (client 1, seeds 0 and 1))."""
    scenario, setting, method = place
    return {
        (scenario, setting, f"client-{t}", seed, method): {column: value}
        for t, of_target in enumerate(values)
        for seed, value in enumerate(of_target)
    }


def instead(id, values):
    """PUF's runs of a claim as if they were those of something else."""
    scenario, setting, ours, _ = FORGETS_BETTER[id]
    return {key: v for method in ours for key, v in every((scenario, setting, method), values).items()}


# --- every claim ---


def test_every_claim_of_the_paper_gets_exactly_one_result():
    table = claims()
    assert list(judge()) == list(table[table.paper == "puf"].id) == [f"P{i}" for i in range(1, 15)]


def test_with_these_numbers_every_claim_holds_and_names_its_records():
    assert cells_of(E) == [cell for cell, _ in E.runs()]
    results = judge()
    known = {*runs_of().record, *sweep_of(E).record, "costs", *(r.key for r in equivalence_of(0.0).values())}
    assert {name: one.verdict for name, one in results.items()} == dict.fromkeys(results, "holds")
    for one in results.values():
        assert one.ours
        assert one.spread
        assert one.reason
        assert set(one.records) <= known
        assert len(set(one.records)) == len(one.records) > 0


def test_what_is_not_run_says_what_it_would_need():
    results = judge(PLAIN.changed(settings=[EVEN], targets=[0], history_interval=0))
    not_run = {name: one.reason for name, one in results.items() if one.verdict == "not run"}
    assert not_run == {
        "P1": "needs a setting for the scenario 'clients', not IID",
        "P4": "needs NoT and at least two targets",
        "P7": "needs sweep_settings and at least three values of eta_u",
        "P8": "needs sweep_settings",
        "P9": "needs a setting for the scenario 'pairs'",
        "P10": "needs a setting for the scenario 'samples', not IID",
        "P11": "needs a setting for the scenario 'segmentation'",
        "P12": "needs an IID setting and history_interval of at least 1",
    }
    for name in not_run:
        assert (results[name].ours, list(results[name].records)) == ("", [])
    results = judge(PLAIN.changed(settings=[SKEWED], sample_settings=[EVEN]))
    assert results["P2"].reason == "needs a setting for the scenario 'clients', IID"
    assert {name for name in ("P2", "P10", "P12") if results[name].verdict == "not run"} == {"P2", "P10", "P12"}


def test_verdicts_fit_into_the_table_of_all_55_claims(tmp_path):
    results = judge()
    assert list(claims_table(results.values()).verdict) == [one.verdict for one in results.values()]
    written = pd.read_csv(write_claims(results.values(), "puf", tmp_path))
    assert len(written) == 55
    assert (written[written.paper != "puf"].verdict == "not run").all()


def test_one_seed_leaves_every_comparison_undetermined():
    e = E.changed(seeds=[0], few_seeds=[0])
    results = judge(e)
    counted = {"P4": "holds", "P5": "holds", "P13": "holds"}  # exact, or arithmetic
    assert {name: one.verdict for name, one in results.items()} == dict.fromkeys(results, "undetermined") | counted
    assert "from 2 targets x 2 seeds on" in results["P1"].reason


# --- P1, P2, P9 to P11: the smallest forget gap ---


@pytest.mark.parametrize("id", FORGETS_BETTER)
def test_the_smallest_gap_must_be_smaller_than_every_rivals_beyond_the_floor(id):
    scenario, setting, ours, rivals = FORGETS_BETTER[id]
    nearest = min(GAP[method] for method in rivals)
    for method in ours:
        place = (scenario, setting, method)
        assert verdict(id, every(place, {"delta_forget": nearest - 1.5})) == "holds"
        assert verdict(id, every(place, {"delta_forget": nearest - 0.9})) == "undetermined"  # within the floor
        beaten = result(id, every(place, {"delta_forget": nearest + 1.5}))  # by one rival
        assert beaten.verdict == "holds in part"
        assert "does not hold: " in beaten.reason
    assert verdict(id, instead(id, {"delta_forget": 40.0})) == "does not hold"


@pytest.mark.parametrize("id", FORGETS_BETTER)
def test_nobody_else_matters_to_the_smallest_gap(id):
    scenario, setting, ours, rivals = FORGETS_BETTER[id]
    for method in {*METHODS} - {*rivals, *ours}:
        assert verdict(id, every((scenario, setting, method), {"delta_forget": 0.0})) == "holds"
    for method in rivals:
        assert verdict(id, every((scenario, setting, method), {"delta_forget": 0.0})) == "holds in part"
    elsewhere = {(other, None, None, None, "NoT"): {"delta_forget": 0.0}
                 for other in ("clients", "samples", "pairs", "segmentation") if other != scenario}  # fmt: skip
    assert verdict(id, elsewhere, E) == "holds"


@pytest.mark.parametrize(("id", "other"), [("P1", EVEN), ("P2", SKEWED), ("P10", EVEN)])
def test_iid_and_skewed_data_are_different_claims(id, other):
    scenario, _, ours, _ = FORGETS_BETTER[id]
    found = judge(E, every((scenario, other, ours[0]), {"delta_forget": 50.0}))[id]
    assert found.verdict == "holds"
    assert ("IID" in found.ours) == (id == "P2")


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        (((2.0, 2.1), (1.9, 2.0)), "holds"),
        (((0.0, 7.0), (0.0, 7.0)), "undetermined"),  # 3.5 on average, but the spread may be chance
        (((0.0, 0.0), (15.0, 15.0)), "undetermined"),
    ],
)
def test_a_mean_is_not_enough(gaps, expected):
    assert verdict("P1", by_cell(("clients", SKEWED, "PUF-Regular"), gaps)) == expected


def test_a_difference_below_the_noise_floor_is_undetermined():
    """However sharp the interval."""
    both = instead("P1", {"delta_forget": 2.0})
    assert verdict("P1", both | every((None, None, AGAIN), {"delta_forget": 5.9})) == "holds"
    louder = result("P1", both | every((None, None, AGAIN), {"delta_forget": 6.0}))  # FedAU: 8 - 2
    assert louder.verdict == "undetermined"
    assert "within the noise floor 6" in louder.reason
    assert "floor 6.0" in louder.ours


def test_two_settings_are_two_parts():
    two = PLAIN.changed(settings=[SKEWED, MORE])
    far = {key: v for m in PUFS for key, v in every(("clients", MORE, m), {"delta_forget": 40.0}).items()}
    everywhere = {key: v for m in PUFS for key, v in every(("clients", None, m), {"delta_forget": 40.0}).items()}
    assert verdict("P1", None, two) == "holds"
    assert verdict("P1", far, two) == "holds in part"
    assert verdict("P1", everywhere, two) == "does not hold"


# --- controls in the place of PUF ---


USELESS = {"shortfall": 70.0, "delta_test": 70.0}


@pytest.mark.parametrize("id", FORGETS_BETTER)
@pytest.mark.parametrize("gap", [60.0, 0.0])  # a constant output can be right about a client of one class
@pytest.mark.parametrize("reached", [False, True])
def test_a_useless_model_forgets_nothing_better(id, gap, reached):
    """Destroyed, or with a constant output: whatever it seems to have forgotten."""
    useless = {"delta_forget": gap, "reached": reached, **USELESS}
    assert verdict(id, instead(id, useless)) == "does not hold"


@pytest.mark.parametrize("id", FORGETS_BETTER)
def test_a_copy_of_original_forgets_nothing_better_even_where_nothing_was_learned_by_heart(id):
    scenario, setting, _, _ = FORGETS_BETTER[id]
    assert verdict(id, instead(id, {"delta_forget": GAP["Original"]})) == "does not hold"
    nothing_there = every((scenario, setting, "Original"), {"delta_forget": 1.5})
    assert verdict(id, nothing_there | instead(id, {"delta_forget": 1.5})) == "undetermined"
    assert verdict(id, nothing_there | instead(id, {"delta_forget": 2.6})) == "does not hold"  # yet below every rival


@pytest.mark.parametrize("id", FORGETS_BETTER)
def test_a_second_retrain_does_hold(id):
    again = {"delta_forget": FLOOR, "shortfall": 0.5, "delta_test": 0.5}
    assert verdict(id, instead(id, again)) == "holds"


def test_useful_is_a_point_beyond_what_two_retrainings_differ_by():
    for shortfall, expected in ((1.5, "holds"), (1.6, "does not hold"), (-9.0, "holds")):
        assert verdict("P1", instead("P1", {"shortfall": shortfall})) == expected
    once = {("clients", SKEWED, "client-1", 1, method): {"shortfall": 9.0} for method in PUFS}
    assert verdict("P1", once) == "does not hold"  # in every run
    louder = every(("clients", SKEWED, AGAIN), {"delta_test": 8.0})
    assert verdict("P1", once | louder) == "holds"


# --- who gave up ---


@pytest.mark.parametrize("id", FORGETS_BETTER)
def test_who_gave_up_cannot_win_and_enters_no_mean(id):
    scenario, setting, (ours, *_), _ = FORGETS_BETTER[id]
    request = ALONE[id].scenario(scenario).requests[0]
    lost = {"reached": False, "delta_forget": 0.0}
    once = result(id, {(scenario, setting, request, 0, ours): lost})
    assert once.verdict == "undetermined"
    assert f"{ours} {GAP[ours]:.1f}, gave up (1 of 4)" in once.ours  # not the mean with the zero
    assert "gave up in 1 of 4, so it cannot win" in once.reason
    often = result(id, {(scenario, setting, None, 0, ours): lost})  # in half of the runs, where rivals came back
    assert often.verdict == ("does not hold" if id == "P9" else "holds in part")  # elsewhere the other variant holds
    assert "does not hold: " in often.reason


@pytest.mark.parametrize("id", FORGETS_BETTER)
def test_a_rival_that_never_came_back_is_none(id):
    scenario, setting, _, _ = FORGETS_BETTER[id]
    found = result(id, every((scenario, setting, "NoT"), {"reached": False, "delta_forget": 0.0}))
    assert found.verdict == "holds"
    assert "NoT –, gave up (4 of 4)" in found.ours
    assert "never came back: " in found.reason


def test_a_rival_that_gave_up_cannot_beat_us_either():
    some = {("clients", SKEWED, "client-0", None, "NoT"): {"reached": False}}
    better = every(("clients", SKEWED, "NoT"), {"delta_forget": 0.0})
    assert verdict("P1", better) == "holds in part"
    found = result("P1", better | some)
    assert found.verdict == "undetermined"
    assert "; undetermined: PUF-Special against NoT, PUF-Regular against NoT; " in found.reason


def test_a_generated_phantom_cannot_say_that_p11_holds():
    e = ALONE["P11"].changed(segmentation_settings=[PHANTOM])
    found = judge(e)["P11"]
    assert found.verdict == "undetermined"
    assert found.reason.startswith("on a generated phantom, ProstateMRI would tell")
    worst = {(None, PHANTOM, None, None, method): {"delta_forget": 40.0} for method in PUFS}
    assert judge(e, worst)["P11"].verdict == "does not hold"


# --- P3: at least 25 times less communication than retraining ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "holds"),  # 100x
        (every((None, None, "PUF-Special"), {"bytes_gain": 25.001}), "holds"),
        (every((None, None, "PUF-Special"), {"bytes_gain": 24.9}), "holds in part"),
        (every((None, SKEWED, "PUF-Regular"), {"bytes_gain": 2.0}), "holds in part"),
        (every((None, None, None), {"bytes_gain": 24.9}), "does not hold"),
        (every((None, None, "NoT"), {"bytes_gain": 1.0}), "holds"),  # not PUF
        (every(("pairs", None, None), {"bytes_gain": 1.0}), "holds"),  # Table III
        (by_cell(("clients", SKEWED, "PUF-Special"), ((20, 90), (20, 90)), "bytes_gain"), "undetermined"),
        (every((None, None, "PUF-Special"), {"reached": False}), "undetermined"),  # 100x is what it would at most be
        (every((None, None, "PUF-Special"), {"reached": False, "bytes_gain": 2.0}), "holds in part"),  # 2x refutes
        ({("clients", SKEWED, None, 0, "PUF-Special"): {"reached": False}}, "undetermined"),
    ],
)
def test_p3_needs_a_25th_of_retrainings_bytes_everywhere(changes, expected):
    found = result("P3", changes)
    assert found.verdict == expected
    assert "as run" in found.reason


@pytest.mark.parametrize(
    ("rounds", "gain", "expected"),
    [
        (20, 2.6, "holds"),  # 26 at 200 rounds
        (20, 2.4, "does not hold"),
        (20, 24.0, "holds"),
        (400, 49.0, "does not hold"),
        (400, 51.0, "holds"),
        (200, 25.1, "holds"),
    ],
)
def test_p3_projects_to_the_papers_200_rounds_and_takes_real_ratios_there(rounds, gain, expected):
    e, changes = PLAIN.changed(rounds=rounds, settings=[SKEWED]), every((None, None, None), {"bytes_gain": gain})
    found = judge(e, changes)["P3"]
    assert found.verdict == expected
    assert ("as run" in found.reason) == (rounds == 200)
    assert (f"projected from {rounds} rounds" in found.reason) == (rounds != 200)
    assert f"{gain * 200 / rounds:.1f} [" in found.ours


# --- P4: NoT's output does not depend on the target ---


def test_p4_holds_for_identical_models_only():
    own = {(SKEWED, "client-0"): "a", (SKEWED, "client-1"): "a", (EVEN, "client-0"): "b", (EVEN, "client-1"): "b"}
    assert verdict("P4", sha=own) == "holds"
    other = result("P4", sha={(EVEN, "client-1"): "other"})
    assert (other.verdict, other.ours) == ("does not hold", "2 of 4 models identical for all targets")
    assert verdict("P4", e=E, sha={(SITES, "client-3"): "other"}) == "holds"  # one training, but another scenario


def test_p4_cannot_be_judged_from_one_target():
    found = judge(PLAIN.changed(targets=[1]))["P4"]
    assert (found.verdict, found.reason) == ("not run", "needs NoT and at least two targets")


# --- P5: no storage beyond one model ---


@pytest.mark.parametrize(
    ("scenario", "setting", "method", "column", "bytes_kept"),
    [
        ("clients", SKEWED, "PUF-Special", "storage", 4 * 1000 + 1),
        ("clients", EVEN, "PUF-Regular", "storage", 4 * 1200 - 4),
        ("samples", SKEWED, "PUF-Regular", "handed", 8 * 1000),
        ("pairs", SKEWED, "PUF-Special", "handed", 4 * 1000 + 1),
        ("segmentation", SITES, "PUF-Regular", "handed", 8 * 500),
        ("segmentation", SITES, "PUF-Special", "storage", 8 * 500),
    ],
)
def test_p5_holds_for_exactly_4_P_bytes_only_in_every_scenario(scenario, setting, method, column, bytes_kept):
    """Declared, and handed: whoever is given a second model has one."""
    once = {(scenario, setting, None, 0, method): {column: bytes_kept}}
    assert verdict("P5", once, E) == "does not hold"


def test_p5_says_nothing_of_the_others():
    assert verdict("P5", every((None, None, "NoT"), {"storage": 8000, "handed": 8000})) == "holds"


# --- P6: Natural remembers more than PUF ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (every(("clients", EVEN, "PUF-Special"), {"delta_forget": 22.0}), "holds in part"),
        (every(("clients", None, "PUF-Regular"), {"delta_forget": 22.0}), "holds in part"),
        (every(("clients", None, None), {"delta_forget": 22.0}) | every((None, None, AGAIN), {"delta_forget": 1.0}),
         "does not hold"),
        (every(("clients", EVEN, "PUF-Special"), {"delta_forget": 19.5}), "undetermined"),  # within the floor
        (by_cell(("clients", EVEN, "PUF-Special"), ((1, 17), (1, 17))), "undetermined"),
        (every(("clients", None, "PUF-Special"), {"reached": False}), "holds in part"),
        ({("clients", EVEN, None, 1, "PUF-Special"): {"reached": False}}, "holds in part"),  # half of its runs
        ({("clients", EVEN, "client-0", 1, "PUF-Special"): {"reached": False}}, "undetermined"),
        (every(("clients", None, "Natural"), {"delta_forget": 0.0}), "holds"),  # read from its rounds instead
        (every(("samples", None, "PUF-Special"), {"delta_forget": 99.0}), "holds"),
    ],
)  # fmt: skip
def test_p6_compares_forget_gaps(changes, expected):
    assert verdict("P6", changes) == expected


@pytest.mark.parametrize(("rounds", "read_at"), [((3, 1), 4), ((0, 1), 1), ((5, 3), 8)])
def test_p6_reads_natural_after_as_many_rounds_as_puf_has_needed_in_all(rounds, read_at):
    changes = every(("clients", None, None), dict(zip(("rounds", "unlearning_rounds"), rounds, strict=True)))
    assert verdict("P6", changes, natural=lambda k, cell: 20.0 if k == read_at else 0.0) == "holds"
    assert verdict("P6", changes, natural=lambda k, cell: 0.0 if k == read_at else 20.0) == "does not hold"


def test_p6_is_open_where_natural_has_not_been_watched_for_so_long():
    longer = {("clients", None, "client-1", 1, method): {"rounds": 40} for method in PUFS}
    found = result("P6", longer)
    assert found.verdict == "undetermined"
    assert "Natural has not been watched for as long as all of PUF took" in found.reason
    assert verdict("P6", every(("clients", None, None), {"rounds": 40})) == "undetermined"


def test_p6_reads_each_cell_at_its_own_round():
    own = {("clients", None, "client-1", None, method): {"rounds": 7} for method in PUFS}

    def natural(k, cell):
        return 20.0 if k == (8 if cell.request == "client-1" else 4) else 0.0

    assert verdict("P6", own, natural=natural) == "holds"
    assert verdict("P6", None, natural=natural) != "holds"


# --- P7: a larger eta_u forgets more and needs more recovery ---


def grows(eta_u):
    return 2 * eta_u


def falls(eta_u):
    return 6 / eta_u


def test_p7_needs_both_correlations_with_the_claimed_signs():
    assert verdict("P7", sweep=sweep_of(gap=falls, rounds=grows)) == "holds"
    assert verdict("P7", sweep=sweep_of(gap=grows, rounds=grows)) == "holds in part"
    assert verdict("P7", sweep=sweep_of(gap=falls, rounds=falls)) == "holds in part"
    assert verdict("P7", sweep=sweep_of(gap=grows, rounds=falls)) == "does not hold"
    assert verdict("P7", sweep=sweep_of(gap=lambda eta_u: 3.0, rounds=lambda eta_u: 3)) == "undetermined"


def test_p7_takes_each_target_and_seed_for_one_correlation():
    """Falling for one client, rising for the other: the mean correlation is 0."""
    sweep = sweep_of()
    turned = sweep.request == "client-1"
    sweep.loc[turned, "delta_forget"] = 2 * sweep[turned].eta_u
    found = result("P7", sweep=sweep)
    assert found.verdict == "undetermined"
    assert "forget gap: 0.00 [" in found.ours


def test_p7_needs_three_rates_and_does_not_look_at_segmentation():
    assert verdict("P7", e=ALONE["P7"].changed(sweep_special=[1.0, 2.0])) == "not run"
    hospitals = ALONE["P11"].changed(sweep_settings=[], segmentation_special=[1.0, 2.0, 4.0])
    assert verdict("P7", e=hospitals) == "not run"


def test_runs_that_diverged_are_left_out_of_p7_and_count_against_p8():
    sweep = sweep_of(gap={1: 6.5, 2: 6.0, 4: 15.0}.get)
    assert verdict("P8", sweep=sweep) == "holds"  # 4 of 6 below NoT's 10
    lost = sweep.eta_u.eq(2.0) & sweep.request.eq("client-0") & sweep.seed.eq(0) & sweep.stop.eq("test")
    sweep.loc[lost, ["delta_forget", "rounds"]] = None
    sweep.loc[lost, "reached"] = False
    found = judge(ALONE["P7"], sweep=sweep)
    assert "1 runs diverged and are left out" in found["P7"].reason
    assert "of 6 points 3 below NoT" in found["P8"].ours


# --- P8: at least half of the grid is better than the best baseline ---


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ({1: 1.0, 2: 1.0, 4: 99.0}, "holds"),  # 4 of 6 below NoT's 10
        ({1: 8.9, 2: 8.9, 4: 10.0}, "holds"),
        ({1: 8.9, 2: 9.1, 4: 10.0}, "undetermined"),  # two of each three within the floor
        ({1: 8.9, 2: 11.1, 4: 11.1}, "does not hold"),  # 2 of 6
        ({1: 99.0, 2: 98.0, 4: 97.0}, "does not hold"),
    ],
)
def test_p8_counts_the_grid_below_the_best_baseline(gaps, expected):
    assert verdict("P8", sweep=sweep_of(gap=gaps.get)) == expected


def test_p8_counts_no_point_that_gave_up():
    sweep = sweep_of(gap=lambda eta_u: 1.0)
    assert verdict("P8", sweep=sweep) == "holds"
    sweep.loc[sweep.eta_u.isin([1.0, 2.0, 10.0, 20.0]) & sweep.seed.eq(0), "reached"] = False  # four of six points
    assert verdict("P8", sweep=sweep) == "does not hold"


def test_p8_half_of_the_grid_is_enough_and_each_setting_counts():
    e = PLAIN.changed(settings=[SKEWED, MORE], sweep_settings=[SKEWED, MORE], sweep_special=[1.0, 2.0],
                sweep_regular=[10.0, 20.0])  # fmt: skip
    half = sweep_of(e, gap={1: 5.0, 2: 12.0}.get)
    assert verdict("P8", e=e, sweep=half) == "holds"
    better = every(("clients", MORE, "NoT"), {"delta_forget": 3.0})
    assert verdict("P8", better, e, sweep=half) == "holds in part"
    assert verdict("P8", every(("clients", None, "Natural"), {"delta_forget": 3.0}), e, sweep=half) == "does not hold"
    for method in ("FedEraser", "FedAU"):  # not in Fig. 5
        assert verdict("P8", every(("clients", None, method), {"delta_forget": 0.0}), e, sweep=half) == "holds"
    lost = {("clients", None, "client-0", 0, "NoT"): {"reached": False}}  # then PGA's 12 is the best
    assert "below PGA, the best baseline" in result("P8", lost, e, sweep=half).ours


# --- P12: FedEraser forgets best under IID and stores every update ---


def test_p12_needs_the_lowest_gap_and_the_formulas_storage():
    eraser = ("clients", EVEN, "FedEraser")
    models = 4 * P[EVEN] * E.clients * E.rounds
    right, wrong = {"storage": models}, {"storage": models - 4}
    better, near, last = ({"delta_forget": gap} for gap in (0.5, 1.5, 50.0))  # PUF-Regular: 2
    assert verdict("P12", every(eraser, better | right)) == "holds"
    assert verdict("P12", every(eraser, near | right)) == "undetermined"
    assert verdict("P12", every(eraser, {"delta_forget": 6.0} | right)) == "holds in part"  # both PUFs below
    assert verdict("P12", every(eraser, better | wrong)) == "holds in part"
    assert verdict("P12", every(eraser, last | wrong)) == "does not hold"
    skewed = ("clients", SKEWED, "FedEraser")
    assert verdict("P12", every(skewed, last | wrong)) == "holds"
    assert verdict("P12", every(("clients", EVEN, "Original"), {"delta_forget": 0.5})) == "undetermined"
    assert verdict("P12", every(eraser, better | right | USELESS)) == "does not hold"  # best by being bad


def test_p12_counts_retained_rounds():
    """Of 200 rounds, an interval of 3 retains 1, 4, ..., 199: 67."""
    sparse = ALONE["P12"].changed(history_interval=3)
    for retained, expected in ((67, "holds"), (66, "holds in part")):
        stored = {"storage": 4 * P[EVEN] * E.clients * retained}
        assert verdict("P12", every(("clients", EVEN, "FedEraser"), stored), sparse) == expected


# --- P13: the printed costs follow from the printed formulas ---


@pytest.mark.parametrize(
    ("cells", "expected", "ours"),
    [
        (((9, 9), (5, 5)), "holds", "14 of 14 cells follow"),
        (((9, 9), (5, 4)), "holds in part", "13 of 14 cells follow"),
        (((9, 7), (5, 0)), "holds in part", "7 of 14 cells follow"),
        (((9, 6), (5, 0)), "does not hold", "6 of 14 cells follow"),  # every cell counts, not every table
        (((9, 0), (5, 5)), "does not hold", "5 of 14 cells follow"),
        (((9, 0), (5, 0)), "does not hold", "0 of 14 cells follow"),
    ],
)
def test_p13_counts_cells(cells, expected, ours):
    found = result("P13", cells=cells)
    assert (found.verdict, found.ours) == (expected, ours)
    assert f"III {cells[0][1]} of 9, IV {cells[1][1]} of 5" in found.reason


# --- P14: Regular acts like Special ---


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        (0.049, "holds"),
        (0.5, "does not hold"),
        ([0.04, 0.04, 0.04, 0.04, 0.5, 0.5, 0.5, 0.5], "holds in part"),  # one setting of two
        ([0.001] * 2 + [0.06] * 2 + [0.001] * 2 + [0.06] * 2, "undetermined"),  # 0.03 on average, but not surely
    ],
)
def test_p14_holds_if_trained_nets_are_surely_within_5_percent_of_the_step(differences, expected):
    found = result("P14", differences=differences)
    assert found.verdict == expected
    values = [differences] * 8 if isinstance(differences, float) else differences
    assert f"{sum(d < 0.05 for d in values)} of 8 nets below 5 %" in found.reason


def test_controls_take_part_in_every_scenario():
    for s in E.scenarios():
        assert set(CONTROLS) <= set(s.methods)
