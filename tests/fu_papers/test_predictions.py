"""Answers to what the notebooks ask before their figures: right for the records they are given, and folded."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fu_core.errors import InvalidRequest
from fu_papers.arena import predictions as arena
from fu_papers.arena import results as arena_results
from fu_papers.certified_dfl import predictions as certified_dfl
from fu_papers.certified_dfl.grid import Place
from fu_papers.fedora import grid as fedora_grid
from fu_papers.fedora import predictions as fedora
from fu_papers.hf_kcu import predictions as hf_kcu
from fu_papers.lab.notebooks import notebooks
from fu_papers.lab.paths import ROOT
from fu_papers.lab.store import CommittedStore
from fu_papers.predict import all_of, letter, reveal
from fu_papers.puf import predictions as puf
from tests.fedora_lab import experiment
from tests.notebook_lab import code

PAPERS = ("puf", "hf_kcu", "fedora", "certified_dfl", "arena")


def right(answer):
    """The choice that an answer calls right."""
    return re.search(r"<p><b>(.+?)\.</b>", answer.data)[1]


def test_a_value_is_in_the_choice_whose_range_holds_it():
    assert [letter(value, (5, 25)) for value in (-1, 5, 5.1, 25, 26)] == ["a", "a", "b", "b", "c"]
    with pytest.raises(InvalidRequest, match="ascend"):
        letter(1, (2, 1))
    with pytest.raises(InvalidRequest, match="nan"):
        letter(float("nan"), (1, 2))
    with pytest.raises(InvalidRequest, match="ascend"):
        letter(1, (1, float("nan")))
    with pytest.raises(InvalidRequest, match="bounds must be at most 7, got 9"):
        letter(9, range(9))


def test_an_answer_is_folded_and_safe():
    shown = reveal("b", "because 1 < 2, *really*").data
    assert shown.startswith("<details><summary>")
    assert "open" not in shown[: shown.index(">") + 1]
    assert "1 &lt; 2, <em>really</em>" in shown
    assert all_of(["c", "b", "c"]) == "b and c"
    assert "<em>" not in reveal("b", "2 * 3 = 6, not 5 * 1").data


# --- each of them, on numbers with a known answer ---


def frame(**columns):
    return pd.DataFrame({"group": "clients", "stop": "test", "setting": "digits/iid/mlp", **columns})


@pytest.mark.parametrize(("gap", "choice"), [(3.0, "a"), (12.0, "b"), (40.0, "c")])
def test_how_much_there_is_to_forget(gap, choice):
    runs = frame(method=["Original", "Retrain"], forget=[90.0, 90.0 - gap], delta_forget=[gap, 0.0])
    assert right(puf.something_to_forget(runs)) == choice


@pytest.mark.parametrize(
    ("gaps", "reached", "choice"),
    [((3, 4), True, "a"), ((3, 1), True, "b"), ((1, 1), True, "c"), ((3, 1), [True, False], "a"), ((1, 1), False, "a")],
)
def test_how_many_end_within_the_noise_floor(gaps, reached, choice):
    """Who gave up is not counted; the floor is 2 points."""

    class Two:
        settings = ("digits/iid/mlp",)
        methods = ("NoT", "PGA")

    reached = [reached, reached] if isinstance(reached, bool) else reached
    methods = ["NoT", "PGA", "Original", "Retrain again"]
    runs = frame(method=methods, label="", delta_forget=[*gaps, 9.0, 2.0], reached=[*reached, True, True])
    answer = puf.inside_the_floor(Two(), runs)
    assert right(answer) == choice
    assert ("(half of the runs or more gave up: PGA)" in answer.data) == (reached == [True, False])


def test_a_mean_over_those_that_came_back_says_of_how_many():
    class One:
        settings, methods = ("digits/iid/mlp",), ("NoT",)

    methods = ["NoT", "NoT", "NoT", "Original", "Retrain again"]
    reached, gaps = [True, False, True, True, True], [3, 50, 4, 9, 2]
    answer = puf.inside_the_floor(One(), frame(method=methods, label="", delta_forget=gaps, reached=reached))
    assert "NoT 3.5 (2 of 3 runs)" in answer.data
    reached[2] = False
    alone = puf.inside_the_floor(One(), frame(method=methods, label="", delta_forget=gaps, reached=reached))
    assert "nobody came back in more than half of the runs" in alone.data


@pytest.mark.parametrize(("gaps", "choice"), [((9, 5, 2), "a"), ((9, 2, 5), "b"), ((2, 5, 9), "c")])
def test_pushing_harder(gaps, choice):
    class One:
        sweep_seeds = (0,)

        def swept_settings(self, scenario):
            return ["digits/iid/mlp"]

    class Swept(One):
        def swept_settings(self, scenario):
            return [*super().swept_settings(scenario), "digits/dirichlet-0.3/mlp"]

    again = frame(method="Retrain again", label="", seed=[0, 1], delta_forget=[3.5, 99.0])
    runs = pd.concat([again, again.assign(setting="digits/dirichlet-0.3/mlp")])
    sweep = frame(method="PUF-Special", epochs_u=1.0, eta_u=[1.0, 2.0, 4.0], delta_forget=gaps, reached=True)
    other = sweep.assign(setting="digits/dirichlet-0.3/mlp", delta_forget=[1.0, 1.0, 9.0])
    answer = puf.pushing_harder(Swept(), pd.concat([sweep, other]), runs)
    assert right(answer) == choice  # of the first setting
    beyond = sum(abs(step) > 3.5 for step in np.diff(gaps))
    are = "is" if beyond == 1 else "are"
    assert f"{beyond} of all steps {are} larger than what tells two retrainings apart (3.5)" in answer.data
    assert "Digits, Dirichlet 0.3: 1: 1.0, 2: 1.0, 4: 9.0; it shrinks at 0 of 2 steps; 1 of all steps is" in answer.data
    thirds = sweep.assign(delta_forget=[3.5 / 3 * 4, 3.5 / 3, 1.0])  # by a floor, up to the last digit
    assert "; 0 of all steps are larger" in puf.pushing_harder(One(), thirds, again).data
    patience = frame(method="PUF-Special", epochs_u=1.0, eta_u=[2.0, 8.0], delta_forget=[99.0, 0.0], reached=False)
    more = pd.concat([sweep, other, patience])
    assert right(puf.pushing_harder(Swept(), more, runs)) == choice  # who gave up has no say
    half = sweep.assign(eta_u=8.0, delta_forget=[0.0, 99.0, 99.0], reached=[True, False, False])
    assert right(puf.pushing_harder(Swept(), pd.concat([more, half]), runs)) == choice  # nor who is left of half
    assert "half of the runs or more gave up at 8" in puf.pushing_harder(Swept(), pd.concat([more, half]), runs).data


@pytest.mark.parametrize(("gaps", "choice"), [((9, 5, 2), "a"), ((9, 2, 5), "b"), ((9, 2, 3.4), "a"), ((2, 5, 9), "c")])
def test_what_happens_to_the_gap_while_a_model_recovers(monkeypatch, gaps, choice):
    monkeypatch.setattr(puf, "mean_way", lambda *of: np.array([[0.0, gap] for gap in gaps]))

    class Recovering:
        settings = ("digits/iid/mlp",)

    runs = frame(method=["Retrain again"], label="", delta_forget=[1.5])
    assert right(puf.while_recovering(Recovering(), {}, runs)) == choice  # within the floor it has not turned
    of = {"digits/iid/mlp": gaps, "digits/dirichlet-0.3/mlp": (9.0, 0.0, 9.0)}
    monkeypatch.setattr(puf, "mean_way", lambda _, group, s, name: np.array([[0.0, gap] for gap in of[s]]))
    Recovering.settings = tuple(of)
    both = pd.concat([runs, runs.assign(setting="digits/dirichlet-0.3/mlp")])
    assert right(puf.while_recovering(Recovering(), {}, both)) == " and ".join(sorted({choice, "b"}))
    monkeypatch.setattr(puf, "mean_way", lambda *of: None)
    with pytest.raises(InvalidRequest, match="must hold runs of PUF-Special"):
        puf.while_recovering(Recovering(), {}, runs)


@pytest.mark.parametrize(
    ("original", "apart", "choice"), [(10.0, 1.0, "a"), (60.0, 1.0, "b"), (99.0, 1.0, "c"), (69.9, 1.0, "c")]
)
def test_who_is_no_better_than_nobody(monkeypatch, original, apart, choice):
    """By the interval over seeds: a mean that is a tenth of a point higher tells nothing."""
    tests = {"Original": (original, original), "NaiveGA": (50.0, 50.0 + apart), "HF-KCU": (70.0, 70.0 + apart)}

    def runs_of(e, runs, method):
        return pd.DataFrame({"seed": [0, 1], "test": tests[method]})

    monkeypatch.setattr(hf_kcu, "main_runs", runs_of)

    timed = SimpleNamespace(metrics={"seconds": {"retrain": 9.0, "NaiveGA": 1.0, "HF-KCU": 2.0}})
    assert right(hf_kcu.who_is_beaten(None, pd.DataFrame(), {"main": timed})) == choice


HF_KCU = {"HF-KCU": 0.0, "HF-KCU printed": 50.0, "Retrain": 1.0, "Destroyed": 8.0}  # left of an attack success of 50 %


@pytest.mark.parametrize(("left", "choice"), [((45.0, 40.0), "a"), ((30.0, 20.0), "b"), ((5.0, 0.0), "c")])
def test_how_much_of_a_backdoor_is_taken_away(left, choice):
    after = {**HF_KCU, "HF-KCU": left}
    rows = [pd.DataFrame({"method": name, "seed": [0, 1], "asr": asr}) for name, asr in after.items()]
    runs = pd.concat(rows).assign(group="backdoor", asr_original=50.0, test=90.0, test_original=92.0, label="")
    answer = hf_kcu.loses_its_backdoor(runs)
    assert right(answer) == choice
    assert f"50 % before, {np.mean(left):.0f} % after" in answer.data
    assert "changes by -2.0 points" in answer.data
    assert "random weights have an attack success of 8 %" in answer.data


@pytest.mark.parametrize(("choice", "moved"), [("a", "iters"), ("b", "damping"), ("c", "beta")])
def test_which_of_three_numbers_moves_the_step_most(choice, moved):
    """Of the means over seeds, which move by 30 points there and by 4 elsewhere."""
    rows = []
    for group in ("iters", "damping", "beta"):
        for label, up in (("0.1", 30.0 if group == moved else 4.0), ("1", 0.0)):
            rows += [(group, label, "HF-KCU", seed, 50 + up + spread) for seed, spread in ((0, -20.0), (1, 20.0))]
            rows.append((group, label, "HF-KCU printed", 0, 60.0 + up / 10))
    runs = pd.DataFrame(rows, columns=["group", "label", "method", "seed", "forget"])
    answer = hf_kcu.turned(runs.assign(travelled=runs.label.map({"0.1": 2.0, "1": 0.5}), kl_forget=0.125))
    assert right(answer) == choice
    assert "the printed form&#x27;s at most 3.0." in answer.data
    assert "2 times as far as Retrain is away at λ = 0.1 " in answer.data
    assert "0.5 times as far as Retrain is away at λ = 1 " in answer.data


@pytest.mark.parametrize(("solved", "choice"), [(3.0, "a"), (0.1, "b"), (1e-6, "c")])
def test_what_a_bound_on_the_solver_leaves_out(solved, choice):
    """Of the client that has most; the sign, turned first, is 2 (clip + what is left of it)."""
    terms = {"damping bias": 0.3, "CG error (k = 10)": solved, "clip (beta = 0.01)": 0.5, "sign": 0.2}
    few, many = (
        SimpleNamespace(config={"clients": n}, metrics={"share": share, "terms": {**terms, **change}})
        for n, share, change in ((10, 0.1, {}), (100, 0.01, {"CG error (k = 10)": 2.0}))
    )
    answer = hf_kcu.behind_the_bound([many, few])
    assert right(answer) == choice
    assert "where 10 % of the data leave" in answer.data
    assert "sign 1.2, clip (beta = 0.01) 0.5, damping bias 0.3" in answer.data


@pytest.mark.parametrize("profile", ["quick", "laptop"])
def test_hf_kcus_answers_are_there_at_every_committed_profile(profile):
    folder = ROOT / "figures" / profile / "hf_kcu"
    runs = pd.read_csv(folder / "runs.csv", comment="#")
    terms = [record for record in CommittedStore(folder).everything() if record.function == "hf_kcu.error_terms"]
    answers = hf_kcu.loses_its_backdoor(runs), hf_kcu.turned(runs), hf_kcu.behind_the_bound(terms)
    assert [re.fullmatch("[abc]", right(answer)) is None for answer in answers] == [False] * 3
    assert not any("nan" in answer.data for answer in answers)


def test_where_the_price_ends():
    assert right(fedora.price_ends([0.0, 1.0, 2.0], [0.1, 0.2, 0.3], 0.5)) == "a"
    assert right(fedora.price_ends([0.0, 2.0, 1.0], [0.1, 0.2, 0.6], 0.5)) == "b"
    assert right(fedora.price_ends([0.0, 2.0, 0.0], [0.1, 0.2, 0.9], 0.5)) == "c"


FEDORA = experiment(
    datasets=["digits/mlp"], classes=[[1, 2, 5]], percents=[[50, 50, 50]], seeds=[0], n_train=[200], n_val=[100],
    n_test=[100], epochs=[2], lr=[0.2], batch_size=[16],
)  # fmt: skip
SAMPLES, CLASSES = (FEDORA.tasks(labels=labels) for labels in (False, True))


def unlearned(tasks, **by_method):
    """A row of each method on each task; a value that is a list has one per task."""
    rows = []
    for method, values in by_method.items():
        for k, task in enumerate(tasks):
            here = {name: value[k] if isinstance(value, list) else value for name, value in values.items()}
            fine = {"asr": 1.0, "poisoned_test": 80.0, "poisoned_test_retrain": 80.0, "poisoned_diverged": False}
            place = task.cell("main", 0, method)._asdict()
            rows.append({**place, "diverged": False, "forget": 50.0, "mia": 0.5, **fine, **here})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("forget", "choice"), [([50, 60, 49], "a"), ([60, 10, 10], "b"), ([10, 10, 49], "c"), ([50.0, 50.0, 50.0], "a")]
)
def test_below_retrain(forget, choice):
    answer = fedora.below_retrain(FEDORA, unlearned(SAMPLES, Retrain={"forget": 50.0}, FedORA={"forget": forget}))
    assert right(answer) == choice
    assert f"{forget[0]:.0f} %, Retrain 50 %" in answer.data


def test_below_retrain_leaves_out_settings_whose_runs_all_diverged():
    gone = unlearned(SAMPLES, Retrain={}, FedORA={"forget": [10.0, 60.0, math.nan], "diverged": [False, False, True]})
    assert right(fedora.below_retrain(FEDORA, gone)) == "b"  # 1 of 2
    assert right(fedora.below_retrain(FEDORA, unlearned(SAMPLES, Retrain={}, FedORA={"diverged": True}))) == "a"


@pytest.mark.parametrize(("known", "choice"), [(0.0, "a"), (10.0, "b"), (40.0, "c")])
def test_a_class_that_was_never_named(known, choice):
    answer = fedora.never_named(FEDORA, unlearned(CLASSES, Retrain={"forget": known}, Original={"forget": 90.0}))
    assert right(answer) == choice
    assert f"{known:.1f} %, doing nothing 90 %" in answer.data


@pytest.mark.parametrize(("mia", "choice"), [(0.52, "a"), (0.6, "b"), (0.9, "c"), ([0.5, 0.5, 0.8], "b")])
def test_the_attack_before_anything_is_forgotten(mia, choice):
    assert right(fedora.attack_before(FEDORA, unlearned(SAMPLES, Original={"mia": mia}))) == choice


@pytest.mark.parametrize(
    ("change", "choice", "counts"),
    [
        ({"asr": [1.0, 9.9, 90.0]}, "a", "2 without its backdoor, 1 with more of it left, 0 are gone"),
        ({"asr": [1.0, 10.0, 90.0]}, "b", "1 without its backdoor, 2 with more of it left, 0 are gone"),
        ({"poisoned_test": [80.0, 63.9, 10.0]}, "c", "2 are gone (0 diverged, 2 ruined)"),
        ({"poisoned_diverged": [True, True, False], "asr": [math.nan, math.nan, 1.0]}, "c", "(2 diverged, 0 ruined)"),
        ({"asr": [1.0, 90.0, 1.0], "poisoned_test": [80.0, 80.0, 10.0]}, "a and b and c", "Of 3 models"),
    ],
)
def test_what_becomes_of_a_backdoor(change, choice, counts):
    answer = fedora.backdoor_after(FEDORA, unlearned(CLASSES, FedORA=change))
    assert right(answer) == choice
    assert counts in answer.data


@pytest.mark.parametrize("profile", ["quick", "laptop", "workstation"])
def test_fedoras_answers_are_there_at_every_committed_profile(profile):
    runs = pd.read_csv(ROOT / "figures" / profile / "fedora" / "runs.csv", comment="#")
    runs = runs.assign(setting=runs.dataset, condition="", label=runs.label.where(runs.label != runs.method, ""))
    e = fedora_grid.Experiment.of(profile)
    for answer in (fedora.below_retrain, fedora.never_named, fedora.attack_before, fedora.backdoor_after):
        assert re.fullmatch("[abc]( and [abc])*", right(answer(e, runs)))


def test_the_printed_step_on_the_ring():
    for printed, choice in ((0.2, "a"), (0.8, "b"), (1.5, "c")):
        distances = {"do nothing": 2.0, "printed": 2 * printed, "corrected": 1e-9}
        assert right(certified_dfl.printed_step(distances)) == choice


def test_steps_to_mix_are_those_of_the_eigenvalue():
    """On a ring of N the second eigenvalue of Q is (1 + 2 cos(2 pi / N)) / 3."""
    eigenvalue = (1 + 2 * np.cos(2 * np.pi / 10)) / 3
    steps = int(np.ceil(np.log(0.01) / np.log(eigenvalue)))
    answer = certified_dfl.steps_to_mix()
    assert right(answer) == letter(steps, (10, 30))
    assert f"{steps} steps on a ring of 10; 1 where all are linked" in answer.data


def audited(mechanism, refuted, reference="same training", planted=False):
    row = {"mechanism": mechanism, "refuted": refuted, "broken": False, "reference": reference}
    return row | {"planted": planted, "distinct": True, "counted": True}


class Audit:
    def __init__(self, *rows):
        self.metrics = {"rows": rows}


def test_what_is_planted_or_about_something_else_is_no_promise():
    rows = [audited("printed, a", True), audited("printed, b", False), audited("corrected, c", False, "x'")]
    assert right(certified_dfl.refuted([Audit(*rows)])) == "b"
    assert right(certified_dfl.refuted([Audit(audited("printed, a", True))])) == "c"
    ours = audited("printed, ΔF as measured", True)  # whose calibration is nobody's promise
    assert right(certified_dfl.refuted([Audit(ours, audited("printed, a", False))])) == "a"
    noise = [audited("corrected, c", True), audited("printed, planted", True, planted=True)]
    answer = certified_dfl.refuted([Audit(*noise, audited("printed, b", False))])
    assert right(answer) == "a"
    assert "0 of 0 of corrected" in answer.data


@pytest.mark.parametrize("choice", arena.FAMILIES)
def test_which_family_ends_nearest(choice):
    """Who refused places does not count, and the nearest member of a family speaks for it."""
    members = [name for _, names in arena.FAMILIES.values() for name in names]
    ranked = pd.DataFrame({"method": members, "left": 90.0, "price": 0.05, "places": 4, "of": 4})
    nearest = arena.FAMILIES[choice][1][-1]
    ranked.loc[ranked.method == nearest, "left"] = 45.0
    answer = arena.nearest_family(ranked)
    assert right(answer) == choice
    assert f"{nearest} (45 % left, 5 % of the passes)" in answer.data
    assert (f"of these {len(members)}, the nearest of them {nearest}" in answer.data) == (choice == "d")
    dear = arena.nearest_family(ranked.assign(price=0.5)).data
    assert (f"take 0 of these {len(members)}. " in dear) == (choice == "d")
    ranked.loc[ranked.method == nearest, "places"] = 3
    assert f"{nearest} (" not in arena.nearest_family(ranked).data
    assert right(arena.nearest_family(ranked.assign(places=0))) == "none"


@pytest.mark.parametrize(("forget", "choice"), [((3, 2, 1, 0), "a"), ((1, 0, 2, 3), "b"), ((0.5, 1, 2, 3), "c")])
def test_how_accuracy_judges(forget, choice):
    """Against KLoM's order 0.1, 1, 2, 3: -1, 0.8 and 1."""
    runs = pd.DataFrame({"method": ["Natural", "NoT", "PGA", "SISA"], "forget": forget, "forget_retrain": 0.0})
    runs = runs.assign(klom_forget=[0.1, 1, 2, 3], floor=0.05, auc=0.6, rmia=0.6, epsilon=1.0)
    answer = arena.accuracy_as_judge(runs)
    assert right(answer) == choice
    assert "within one point of Retrain" in answer.data


@pytest.mark.parametrize("profile", ["quick", "laptop"])
def test_the_arena_s_answers_are_there_at_every_committed_profile(profile):
    runs = pd.read_csv(ROOT / "figures" / profile / "arena" / "runs.csv", comment="#")
    frame = arena_results.with_a_server(runs.assign(group="", label="", condition="", seed=0))
    answers = arena.nearest_family(arena_results.ranking(frame)), arena.accuracy_as_judge(frame)
    assert [re.fullmatch("[abcd]", right(answer)) is None for answer in answers] == [False, False]


# --- in the notebooks ---


@pytest.mark.parametrize("paper", PAPERS)
def test_every_notebook_asks_before_its_figures_and_answers_from_records(paper):
    """A question with choices stands right before the cell that answers it, once for each answer."""
    import nbformat

    notebook = nbformat.read(notebooks()[paper], as_version=4)
    asked = [k for k, cell in enumerate(notebook.cells) if cell.id.startswith("predict-")]
    assert len(asked) >= 2
    for k in asked:
        question, answer = notebook.cells[k], notebook.cells[k + 1]
        assert question.source.startswith("**Predict.** ")
        assert len(re.findall(r"^- \*\*[a-d]\.\*\* ", question.source, re.MULTILINE)) >= 3
        assert len(re.findall(r"predictions\.\w+\(", answer.source)) == 1
        assert "keep_figure" in answer.source or "show." in answer.source
    answers = sum("predictions." in cell.source for cell in code(notebook))
    assert answers == len(asked)


def test_the_sign_is_wrong_in_what_is_committed():
    """Of exact problems, which no profile changes."""
    records = CommittedStore(ROOT / "figures" / "quick" / "hf_kcu").everything()
    exactness = [record for record in records if record.function == "hf_kcu.exactness"]
    assert exactness
    assert right(hf_kcu.where_it_lands(exactness)) == "c"


@pytest.mark.parametrize(("limits", "choice"), [((5.0, 900.0), "a"), ((50.0, 900.0), "b"), ((500.0, 900.0), "c")])
def test_how_far_the_bound_is_where_it_is_tightest(limits, choice):
    """Runs without batches are not asked: their step is beyond the theorem's."""

    def one(limit, threshold, batch):
        """The bound after the last step, tighter from one start."""
        starts = {str(k): {"rms": [9.0, 1.0], "bounds": {"printed": [1.0, (1 + k) * limit]}} for k in (0, 1)}
        return SimpleNamespace(config={"batch": batch, "threshold": threshold}, metrics={"starts": starts})

    records = [one(limits[0], None, 8), one(limits[1], 0.65, 8), one(0.0, None, 0)]
    answer = fedora.bound_over_measured(records)
    assert right(answer) == choice
    assert f"{limits[0]:.0f} to 1800 times, in 2 settings from two starts" in answer.data


@pytest.mark.parametrize(("cycle", "choice"), [((3.0, 3.001), "a"), ((4.0, 4.0), "b"), ((1.7, 4.0), "c")])
def test_where_an_iteration_without_a_saddle_point_ends(cycle, choice):
    metrics = {"cycle": {"theta": cycle}, "price": 14.5, "before": 3.9, "after": 1.8, "dual": 1.962, "primal": 2.0}
    answer = fedora.where_it_ends([SimpleNamespace(config={"edge": 3.0, "iterations": 20_000}, metrics=metrics)])
    assert right(answer) == choice
    assert f"of 20,000 iterations θ is between {cycle[0]:.2f} and {cycle[1]:.2f}; the optimum is 3." in answer.data


@pytest.mark.parametrize(
    ("ends", "choice"), [((50, 53), "a"), ((50, 40), "b"), ((50, 10), "c"), ((50, None), "none of them")]
)
def test_what_forty_times_the_weight_does(ends, choice):
    class Weighed:
        weights = (0.5, 20.0)
        main = fedora_grid.Task("digits/cnn", "classes-1-50-from-2")

    here = {
        "group": "weights",
        "condition": Weighed.main.condition,
        "setting": Weighed.main.dataset,
        "request": Weighed.main.request,
        "method": "FedORA",
    }
    runs = pd.DataFrame(
        [
            {
                **here,
                "condition": Weighed.main.condition,
                "label": f"{weight:g}",
                "forget": forget,
                "diverged": forget is None,
            }
            for weight, forget in zip(Weighed.weights, ends, strict=True)
        ]
    )
    assert right(fedora.heavier(Weighed(), runs)) == choice


@pytest.mark.parametrize(("printed", "choice"), [(0.05, "a"), (0.5, "b"), (2.7, "c")])
def test_where_the_printed_step_ends_on_ridge(printed, choice):
    def one(heterogeneity, error):
        errors = {"all clients delete, printed": [error], "all clients delete, corrected (one Hessian)": [1e-14]}
        return SimpleNamespace(config={"heterogeneity": heterogeneity}, metrics={"errors": errors})

    assert right(certified_dfl.on_ridge([one(0.7, printed), one(0.0, 0.01)])) == choice


@pytest.mark.parametrize(("known", "choice"), [(2.0, "a"), (50.0, "b"), (99.0, "c")])
def test_what_one_round_leaves_of_a_class(known, choice):
    """Of the last data set, over all its places; other groups of runs are not asked."""

    class Two:
        datasets = ("digits/unit_softmax", "digits/mlp")

        def places(self):
            return [Place(dataset, split, "ring") for dataset in self.datasets for split in ("iid", "dirichlet-0.3")]

    def run(place, method, removed, group="tables"):
        where = {"setting": place.setting, "condition": place.topology, "group": group, "request": "class-0"}
        return {**where, "method": method, "removed": removed}

    others = {"Original": 100.0, "Retrain": 0.0, "DU": 0.0, "DU printed": 0.0}
    rows = [run(place, *other) for place in Two().places() for other in others.items()]
    nets, convex = Two().places()[2:], Two().places()[:2]
    rows += [run(nets[0], "Fine-tune", known - 1), run(nets[1], "Fine-tune", known + 1)]
    rows += [run(place, "Fine-tune", 77.7) for place in convex]
    rows += [run(nets[0], "Fine-tune", 77.7, "choices")]
    answer = certified_dfl.one_round_without(Two(), pd.DataFrame(rows))
    assert right(answer) == choice
    assert f"{known:.1f} % on" in answer.data


@pytest.mark.parametrize(("seconds", "choice"), [(30.0, "a"), (10.0, "b"), (1.0, "c")])
def test_how_much_time_is_saved(seconds, choice):
    class One:
        datasets = ("digits/mlp",)

        def of_dataset(self, name, dataset):
            return {"rounds": 50}[name]

    taken = {"Retrain": 100.0, "DU": seconds, "DU printed": 1.0}
    speeds = {
        ("digits/mlp", kind): SimpleNamespace(metrics={"seconds": taken}) for kind in ("sample", "class", "client")
    }
    answer = certified_dfl.time_saved(One(), speeds)
    assert right(answer) == choice
    assert f"{100 - seconds:.1f} % on average" in answer.data
    assert "the round alone costs 2.0 %" in answer.data


@pytest.mark.parametrize(("many", "choice"), [(100, "a"), (500, "b"), (5000, "c")])
def test_how_steps_grow_with_the_condition_number(many, choice):
    steps = {100.0: 50, 1000.0: 7, 10000.0: many}
    counts = [
        SimpleNamespace(config={"kappa": kappa}, metrics={"plain": n, "badly scaled": 2 * n, "preconditioned": 8})
        for kappa, n in steps.items()
    ]
    answer = hf_kcu.steps_of_a_hundredfold(counts)
    assert right(answer) == choice
    assert f"50 steps at kappa = 100 and {many} at 10000" in answer.data


@pytest.mark.parametrize(("ends", "choice"), [((1e-4, 1e-3), "a"), ((1e-4, 10.0), "b"), ((0.5, 0.5), "c")])
def test_what_is_left_of_a_residual(ends, choice):
    """The geometric mean over clients, of the Hessian's curves."""
    curves = {f"hessian/{k}": {"residuals": [1.0, 0.3, end], "negative": k} for k, end in enumerate(ends)}
    curves |= {"ggn/1": {"residuals": [1.0, 0.1, 0.05], "negative": 0}}
    answer = hf_kcu.left_of_the_residual([SimpleNamespace(metrics={"curves": curves})])
    assert right(answer) == choice
    assert "after 2 steps; in 1 of 4 the curvature" in answer.data


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "choice"), [(80, 80, 89, "a"), (80, 89, 89, "b"), (89, 89, 89, "c")]
)
def test_who_needs_no_round_at_all(nothing, printed, corrected, choice):
    def curve(*phases):
        points = [{"phase": k, "round": t, "test": v} for k, phase in enumerate(phases) for t, v in enumerate(phase)]
        return SimpleNamespace(rounds=points)

    class One:
        datasets = ("digits/unit_softmax",)

    curves = {}
    for seed, off in ((0, 5.0), (1, -5.0)):  # the means over seeds are compared
        curves |= {
            (One.datasets[0], "client", "Retrain", seed): curve([10.0, nothing + off], [10.0, 89.5 + off]),
            (One.datasets[0], "client", "DU printed", seed): curve([10.0, nothing + off], [printed - off]),
            (One.datasets[0], "client", "DU", seed): curve([10.0, nothing + off], [corrected - off]),
        }
    assert right(certified_dfl.no_round_at_all(One(), curves)) == choice
