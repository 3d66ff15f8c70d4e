"""FedORA's control: when steps shrink, what the stop rule compares with, how runs end, and what they cost."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fu_core.data import load
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import Boundary, deal, epoch_batches, forward, outputs, train
from fu_core.unlearning import fedora as fedora_module
from fu_core.unlearning.fedora import (
    PART_OF_A_PASS,
    PRINTED,
    AtLeast,
    Ending,
    FedORA,
    adjustment,
    fedora,
    primal_dual,
    uncertainty_loss,
)
from fu_core.unlearning.method import Trained, method, unlearn
from tests.fu_core.unlearning.test_fedora import FORGET, RETAIN, Loss, N, served
from tests.verticals import CLASSES, federated, forgetting, same, tables

LOG_10 = math.log(10)
STEPPING = FedORA(tau=1.0, sigma=0.1, mu=0.0, iterations=8, patience=False)


def scripted(s, changes, losses, *, scores=None, epsilon=0.0, uniform=LOG_10, reference=0.0):
    """One party and one parameter, gradients and retained losses as listed; its log and how it ended.

    reference: L_r(theta^0), which is asked for before anything else.
    """
    log, ends, start = [], [], [torch.zeros(1)]
    asked = iter([Loss(reference, None)] if s.needs_reference else [])

    def retained(theta, t, j):
        return next(asked, None) or Loss(losses[t], [torch.tensor([changes[t]])])

    found = iter(scores or [9.0] * 99)
    theta = primal_dual(
        start, AtLeast(lambda _: Loss(next(found), [torch.zeros(1)]), epsilon), retained, s, substeps=1,
        uniform=uniform, on_iteration=log.append, on_end=ends.append,
    )  # fmt: skip
    return log, ends[0], theta


# --- step sizes ------------------------------------------------------------------------------------------------------

LARGER = [2.0**t for t in range(8)]  # each step twice as long as the one before
FALLING, RISING = [2.0 - 0.2 * t for t in range(8)], [1.0 + 0.1 * t for t in range(8)]


def test_steps_do_not_shrink_while_the_retained_loss_falls():
    """Whatever the parameters' changes: with a price that rises, those grow by themselves."""
    log, _, _ = scripted(STEPPING, LARGER, FALLING)
    assert [i.tau[0] for i in log] == [1.0] * 9
    assert [i.sigma for i in log] == [0.1] * 9


def test_steps_do_not_shrink_while_the_retained_loss_is_within_its_limit():
    """1 % and 0.05 log 10 above L_r(theta^0) = 0: 0.115."""
    log, _, _ = scripted(STEPPING, LARGER, [0.01 * (t + 1) for t in range(8)])
    assert min(i.tau[0] for i in log) == 1.0


def test_steps_shrink_where_larger_changes_come_with_a_retained_loss_that_rises_above_its_limit():
    log, _, _ = scripted(STEPPING, [0.5 * 2.0**t for t in range(8)], RISING)
    assert [i.tau[0] for i in log] == pytest.approx([1.0, 1.0, *(0.7**k for k in range(1, 8))])


def test_smaller_changes_with_a_retained_loss_that_rises_are_no_reason_for_larger_steps():
    smaller = [0.5**t for t in range(8)]
    up, down = (scripted(STEPPING, smaller, losses)[0] for losses in (RISING, FALLING))
    assert max(i.tau[0] for i in up) == 1.0
    assert down[-1].tau[0] > 1.3


@pytest.mark.parametrize("losses", [FALLING, RISING])
def test_as_printed_steps_go_by_the_changes_alone(losses):
    log, _, _ = scripted(replace(STEPPING, steps="printed"), [1.0, 2.0, 4.0, 8.0] * 2, losses)
    assert [i.tau[0] for i in log[:4]] == pytest.approx([1.0, 1.0, 0.7, 0.49])


@pytest.mark.parametrize(
    ("change", "calm", "factor"),
    [(2.0, None, 0.7), (2.0, False, 0.7), (2.0, True, 1.0), (0.5, None, 1.4), (0.5, True, 1.4), (0.5, False, 1.0),
     (1.0, False, 1.0)],
)  # fmt: skip
def test_what_calm_changes(change, calm, factor):
    assert adjustment(change, 1.0, FedORA(), calm=calm) == factor


def test_guarded_steps_cost_a_number_per_party_and_iteration():
    """Whether the retained loss rises is the active party's to know; two passive parties, three iterations."""
    costs = {}
    for steps in ("guarded", "printed"):
        boundary = Boundary()
        how = {"ratio": 1.0, "batch_size": len(RETAIN), "iterations": 3, "patience": False, "steps": steps}
        served(tables(n=N), boundary=boundary, **how)
        costs[steps] = boundary.meter
    assert costs["guarded"].bytes_down - costs["printed"].bytes_down == 3 * 2 * 4
    assert costs["guarded"].bytes_up - costs["printed"].bytes_up == len(RETAIN) * 8 * 4  # embeddings for L_r(theta^0)


# --- the stop rule's reference ---------------------------------------------------------------------------------------

STOPPING = FedORA(tau=0.1, mu=0.0, adaptive=False, iterations=6, slack=0.01, room=0.0)


def test_the_reference_is_the_retained_loss_before_any_step():
    """Pressure drives L_r from 0.0007 to 2.153 in the first iteration already: that is no loss to be content with."""
    log, end, _ = scripted(
        STOPPING, [0.0] * 6, [2.153, 2.1, 1.0, 0.5, 0.1, 0.1], scores=[0.0] + [1.0] * 9, epsilon=0.5, reference=0.0007
    )
    assert [i.t for i in log] == [0, 1, 2, 3, 4, 5, 6]
    assert (end.outcome, end.first, end.limit) == ("costly", 0.0007, pytest.approx(0.000707))


def test_it_is_measured_on_the_first_iterations_batches_and_paid_for():
    parties, notes = tables(torch.float64, N), {}
    f, exchange = federated(parties), federated(parties)
    fedora(f, forgetting(f, FORGET), FedORA(threshold=0.95, ratio=0.5, batch_size=8, iterations=1), notes=notes)
    fedora(exchange, forgetting(exchange, FORGET), FedORA(ratio=0.5, batch_size=8, iterations=1, patience=False,
                                                          adaptive=False))  # fmt: skip
    assert f.meter.images - exchange.meter.images == 3 * 8
    first = torch.cat(epoch_batches(RETAIN, 8, seed=0, epoch=-1)[:3])
    expected = F.cross_entropy(outputs(parties, first), parties.active.y[first])
    assert notes["first"] == pytest.approx(float(expected))
    assert notes["retained"] != notes["first"]


# --- when it stops, and how it ends ----------------------------------------------------------------------------------


def test_it_stops_before_a_step_that_nothing_asks_for():
    """Met at the start: nothing happens. Met later: the score that was measured is that of what is returned."""
    log, end, theta = scripted(STOPPING, [1.0] * 6, [0.0] * 6, scores=[1.0], epsilon=0.5)
    assert theta[0].tolist() == [0.0]
    assert (end.outcome, end.iterations, end.score) == ("met", 0, 1.0)
    assert [i.t for i in log] == [0]
    log, end, theta = scripted(STOPPING, [1.0] * 6, [0.0] * 6, scores=[0.0, 0.2, 0.7], epsilon=0.5)
    assert theta[0].tolist() == pytest.approx([-0.2])
    assert (end.outcome, end.iterations, end.score) == ("met", 2, 0.7)
    assert [i.t for i in log] == [0, 1, 2]


def test_room_lets_a_model_that_fits_its_data_stop():
    """L_r(theta^0) = 0.001: a tenth of log 10 beside is 0.23, 1 % of it nothing that a step could keep."""
    how = {"scores": [0.0] + [1.0] * 9, "epsilon": 0.5, "reference": 0.001}
    for room, outcome, iterations in ((0.0, "costly", 6), (0.1, "met", 1)):
        _, end, _ = scripted(replace(STOPPING, room=room), [0.0] * 6, [0.2] * 6, **how)
        assert (end.outcome, end.iterations) == (outcome, iterations)


@pytest.mark.parametrize(
    ("scores", "losses", "outcome", "why"),
    [
        ([0.0, 1.0], [0.0, 0.0], "met", r"score 1 >= 0\.5, retained loss 0 <= 0\.1152, after 1 of 2 iterations"),
        ([0.0, 0.0, 1.0], [1.0, 1.0], "costly", r"score 1 >= 0\.5, retained loss 1 > 0\.1152, after 2 of 2"),
        ([0.0, 0.0, 0.2], [0.0, 0.0], "unmet", r"score 0\.2 < 0\.5, retained loss 0 <= 0\.1152, after 2 of 2"),
        ([0.0, 0.0, 1.0], [0.0, 69.0], "diverged", r"score 1 >= 0\.5, retained loss 69 > 0\.1152"),
        ([0.0, 0.0, 0.2], [0.0, 2.31], "diverged", r"retained loss 2\.31"),
    ],
)
def test_how_a_run_ends(scores, losses, outcome, why):
    """log 10 = 2.303 is the loss of uniform predictions: beyond it a model is worse than one that knows nothing."""
    s = replace(STOPPING, iterations=2, slack=0.0, room=0.05 + 1e-5)
    _, end, _ = scripted(s, [0.0, 0.0], losses, scores=scores, epsilon=0.5)
    assert end.outcome == outcome
    assert torch.tensor(end.retained).allclose(torch.tensor(losses[end.iterations - 1]))
    assert re.search(why, end.why), end.why


def test_what_was_not_measured_is_no_note():
    _, end, _ = scripted(replace(STOPPING, patience=False), [0.0] * 6, [1.0] * 6, scores=[0.0] * 9, epsilon=0.5)
    assert isinstance(end, Ending)
    assert math.isnan(end.first)
    assert set(end.notes) == {"outcome", "why", "iterations", "score", "epsilon", "retained"}


def test_the_notes_say_how_it_ended():
    f = federated(tables(n=N))
    _, _, notes = unlearn("FedORA", Trained(f), forgetting(f, FORGET), threshold=1.0, batch_size=8, iterations=2)
    assert notes["outcome"] == "unmet"
    assert notes["iterations"] == 2
    assert notes["why"].endswith("after 2 of 2 iterations")
    assert "score_all" not in notes


def test_steps_that_are_far_too_long_are_marked_as_diverged():
    f = federated(tables(n=N))
    how = {"threshold": 1.0, "batch_size": 8, "iterations": 4, "tau": 30.0, "sigma": 10.0, "adaptive": False}
    _, _, notes = unlearn("FedORA", Trained(f), forgetting(f, FORGET), **how)
    assert notes["outcome"] == "diverged"
    assert notes["retained"] > math.log(CLASSES)


# --- the forgetting weight -------------------------------------------------------------------------------------------


def moved(weight, score, **how):
    """How far everybody moves in a step without retained data, from one start: a model that is sure."""
    parties = tables(torch.float64, N)
    parties = parties.having([*parties.w[:-1], 20 * parties.w[-1]])
    done = served(parties, ratio=0.0, iterations=1, tau=0.1, sigma=0.5, weight=weight, score=score, **how)
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(done.w, parties.w, strict=True)))


@pytest.mark.parametrize("score", ["entropy", "scaled", "reverse"])
def test_steps_do_not_grow_with_the_forgetting_weight(score):
    """As printed they grow with its square, as both price and gradient do (errata F2)."""
    usual = moved(1.0, score)
    for weight in (5.0, 10.0, 20.0):
        assert moved(weight, score) < 1.5 * usual
    assert moved(20.0, score, force="printed") > 20 * usual
    assert moved(1.0, score, force="printed") == usual


def test_of_the_entropy_the_weight_then_moves_the_threshold_alone():
    """Same threshold on the entropy, same steps, to rounding."""
    for weight in (0.5, 20.0):
        at = {"threshold": (1 + weight) * 0.9 - weight}
        assert moved(weight, "entropy", **at) == pytest.approx(moved(1.0, "entropy", threshold=0.8), rel=1e-12)


# --- what it costs ---------------------------------------------------------------------------------------------------

SHARES = [0.01, 0.05, 0.1, 0.25]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [500, 2000, 10_000, 50_000])
@pytest.mark.parametrize("name", ["FedORA", "FedORA reverse"])
def test_the_plan_is_at_least_four_times_cheaper_than_retraining_of_ten_epochs(name, n, share):
    """E |D_r| over what is planned: E sets the ratio, E / passes at least, 12 epochs make it 4.8."""
    forget = round(share * n)
    s = method(name).configured()
    plan = s.planned(forget, n - forget)
    assert plan.samples <= s.passes * (n - forget)
    assert 10 * (n - forget) / plan.samples >= 4
    assert plan.iterations >= 4


@pytest.mark.parametrize(("forget", "retain"), [(100, 20), (50, 50), (1000, 1000), (1, 3)])
def test_even_where_little_stays_it_is_no_more_than_retraining_of_a_few_epochs(forget, retain):
    """All but the reference, one iteration and the last score, where nothing less is possible."""
    s = FedORA()
    plan = s.planned(forget, retain)
    assert plan.iterations == 1 or plan.samples <= s.passes * retain


def test_substeps_are_what_the_ratio_gives_but_not_too_few():
    """The paper's 45,000 retained samples in batches of 32: 71. 1,800 of them: 3, and so the least, or a fifth."""
    assert FedORA(least_substeps=0).planned(5000, 45_000).substeps == 71
    assert FedORA(least_substeps=0).planned(200, 1800).substeps == 3
    assert FedORA(least_substeps=6).planned(200, 1800).substeps == 6
    assert FedORA(least_substeps=6).planned(20, 180).substeps == math.ceil(180 / 32 / PART_OF_A_PASS) == 2
    assert FedORA(least_substeps=6, ratio=0.0).planned(200, 1800).substeps == 0
    assert FedORA(least_substeps=6, ratio=1.0).planned(200, 1800).substeps == 57


@pytest.mark.parametrize(
    "change",
    [
        {}, {"verify": True}, {"patience": False}, {"forget_sample": 0}, {"ratio": 1.0}, {"refresh": True},
        {"refresh": True, "ratio": 0.0}, {"refresh": True, "ratio": 0.3, "forget_sample": 0},
    ],
)  # fmt: skip
def test_what_passes_is_what_was_planned(change):
    """Where it does not stop earlier; batches that end a pass may be smaller."""
    f = federated(tables(n=300))
    s = FedORA(**{"batch_size": 16, "iterations": 50, "forget_sample": 10, "threshold": 1.0, **change})
    fedora(f, forgetting(f, torch.arange(30)), s)
    plan = s.planned(30, 270)
    assert f.meter.images <= plan.samples <= f.meter.images + 16 * plan.iterations


def test_a_score_that_is_asked_for_in_every_substep_counts_as_often():
    """Three substeps, 2.5 passes over 391: two iterations, where counting the score once made five of 1,575 samples."""
    plain, anew = (FedORA(ratio=0.2, iterations=40, refresh=refresh).planned(64, 391) for refresh in (False, True))
    assert plain == (64, 3, 5, 64 + 96 + 5 * (64 + 96))
    assert anew == (64, 3, 2, 64 + 96 + 2 * (3 * 64 + 96))
    assert anew.samples <= 2.5 * 391
    assert FedORA(ratio=0.2, iterations=40, refresh=True, unlearn=False).planned(64, 391) == plain


def test_without_a_limit_all_iterations_take_place():
    notes = {}
    for passes in (0.0, 2.5):
        f = federated(tables(n=300))
        s = FedORA(threshold=1.0, passes=passes, iterations=40, adaptive=False, patience=False)
        fedora(f, forgetting(f, torch.arange(30)), s, notes=notes)
        plan = s.planned(30, 270)
        assert notes["iterations"] == plan.iterations
        assert ("40 without passes" in notes["why"]) == (passes > 0)
        assert (plan.iterations == 40) == (passes == 0)


def test_a_limit_on_passes_holds_whatever_share_is_passed_per_iteration():
    """rho = 1 is a pass by itself, and one more is for L_r(theta^0) (without a limit: "w/o AB" in the ablation)."""
    assert FedORA(ratio=1.0).planned(200, 1800).iterations == 1
    assert FedORA(ratio=1.0, iterations=20, passes=0.0).planned(200, 1800).iterations == 20


@pytest.mark.parametrize("epochs", [5, 6, 10])
def test_a_quarter_of_retrainings_passes_makes_it_four_times_cheaper_for_whatever_trials_may_choose(epochs):
    """Forty iterations of a twentieth are two passes: more than a quarter of five."""
    plan = FedORA(iterations=40, passes=epochs / 4).planned(500, 9500)
    assert epochs * 9500 / plan.samples >= 4
    assert FedORA(iterations=40).planned(500, 9500).samples > 5 / 4 * 9500


def test_as_printed_all_of_what_is_forgotten_passes_in_every_iteration():
    plan = FedORA(**PRINTED, iterations=7).planned(300, 2700)
    assert plan[:3] == (300, math.ceil(0.05 * 2700 / 32), 7)
    assert (FedORA(**PRINTED).force, FedORA(**PRINTED).steps) == ("printed", "printed")


def test_an_iteration_looks_at_a_sample_of_what_is_forgotten(monkeypatch):
    """Drawn anew, without putting back; fewer samples than that are all looked at, in their order."""
    asked = []

    def spied(parties, w, rows, *others):
        asked.append(rows.tolist())
        return forward(parties, w, rows, *others)

    monkeypatch.setattr(fedora_module, "forward", spied)
    forget = torch.arange(20)
    for size, seen in ((8, 8), (20, 20), (64, 20), (0, 20)):
        f = federated(tables(n=60))
        asked.clear()
        s = FedORA(threshold=1.0, forget_sample=size, ratio=0.0, iterations=3, passes=0.0)
        fedora(f, forgetting(f, forget), s)
        assert [len(set(rows)) for rows in asked] == [seen] * 4
        assert all(set(rows) <= set(forget.tolist()) for rows in asked)
        assert (asked[0] != asked[1] != asked[2]) == (seen == 8)
        if seen == 20:
            assert asked[0] == forget.tolist()


def test_verified_all_of_it_is_looked_at_once_more_and_counted():
    costs, notes = {}, {}
    for verify in (False, True):
        f = federated(tables(n=60))
        s = FedORA(threshold=1.0, forget_sample=8, ratio=0.0, iterations=2, passes=0.0, verify=verify)
        done = fedora(f, forgetting(f, torch.arange(20)), s, notes=notes)
        costs[verify] = f.meter.images
    assert costs == {False: 3 * 8, True: 3 * 8 + 20}
    assert notes["score_all"] == pytest.approx(float(uncertainty_loss(outputs(done, torch.arange(20)))), rel=1e-6)


def test_the_retained_data_are_shuffled_once_per_pass(monkeypatch):
    """Twenty iterations of a twentieth each are one pass: one permutation, where one per iteration was 20."""
    shuffled, randperm = [], torch.randperm

    def counting(n, **how):
        shuffled.append(n)
        return randperm(n, **how)

    monkeypatch.setattr(torch, "randperm", counting)
    f = federated(tables(n=1605))
    s = FedORA(batch_size=16, iterations=20, forget_sample=0, passes=0.0, patience=False)
    fedora(f, forgetting(f, FORGET), s)
    assert shuffled == [1600]


def test_passes_over_the_retained_data_meet_each_sample_once(monkeypatch):
    asked = []

    def spied(parties, w, rows, *others):
        asked.append(rows.tolist())
        return forward(parties, w, rows, *others)

    monkeypatch.setattr(fedora_module, "forward", spied)
    served(tables(n=N), ratio=0.4, batch_size=8, iterations=5, patience=False, adaptive=False)  # two batches of five
    batches = [rows for rows in asked if rows != FORGET.tolist()]
    seen = [row for rows in batches for row in rows]
    assert [len(rows) for rows in batches] == [8] * 10
    assert sorted(seen[:40]) == sorted(seen[40:]) == RETAIN.tolist()
    assert seen[:40] != seen[40:]


# --- in parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, 7, 19, 20, 64])
@pytest.mark.parametrize("score", ["entropy", "reverse"])
def test_a_score_in_parts_is_the_score_of_the_whole(score, part):
    """To float64's rounding, with gradients; what crosses is the same, to the byte."""
    parties, rows = tables(torch.float64, N), torch.arange(20)
    one, other = Boundary(), Boundary()
    whole, parted = forward(parties, parties.w, rows, one), forward(parties, parties.w, rows, other, part)
    losses = [uncertainty_loss(exchange.logits, score=score) for exchange in (whole, parted)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-14)
    for a, b in zip(whole.backward(losses[0]), parted.backward(losses[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
    assert one.meter == other.meter


def test_fedora_in_parts_is_fedora():
    parties = tables(torch.float64, N)
    how = {"ratio": 0.5, "batch_size": 8, "tau": 0.1, "iterations": 4}
    whole, parted = (served(parties, part=part, **how) for part in (512, 2))
    for a, b in zip(whole.w, parted.w, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


def test_in_parts_no_party_holds_more_than_a_part_of_activations():
    """Graphs are of the batch size that a bottom net is called with: never more than 3 rows where gradients are."""
    parties, sizes = tables(n=N), []
    for party in parties.passive:
        party.model.module.register_forward_hook(
            lambda _, given, out: sizes.append(len(out)) if out.requires_grad else None
        )
    exchange = forward(parties, parties.w, torch.arange(20), Boundary(), 3)
    exchange.backward(uncertainty_loss(exchange.logits))
    assert sizes
    assert max(sizes) == 3


# --- on images of digits ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    """A federation trained on 1,000 digits for 12 epochs, and the request to forget all of its threes, a tenth."""
    dataset = load("digits").subset(1000, 300, seed=0)
    parties, _ = deal(dataset, bottom="mlp", seed=0)
    f = federated(parties, local=ClientOpt(lr=0.05, momentum=0.9, batch_size=32))
    f = f.having(parties=train(f, torch.arange(1000), f.optimisers(), 12), boundary=Boundary())
    return f, forgetting(f, (dataset.y_train == 3).nonzero().flatten())


def test_by_default_reverse_forgets_a_class_and_keeps_the_others_for_a_quarter_of_retraining(digits):
    f, request = digits
    (forget, _), (retain, _) = request.forget, request.retain
    done, cost, notes = unlearn("FedORA reverse", Trained(f), request)
    y = f.parties.active.y
    kept = (outputs(done, retain).argmax(dim=1) == y[retain]).float().mean()
    known = (outputs(done, forget).argmax(dim=1) == y[forget]).float().mean()
    assert kept > 0.9
    assert known < 0.3
    assert 12 * len(retain) / cost.images >= 4
    assert notes["score"] >= notes["epsilon"]
    assert not same(done, f.parties)
