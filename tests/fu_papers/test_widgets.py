"""What sliders move: each control changes the picture in the direction that its equation says, in half a second."""

import io
import time

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch

from fu_core.unlearning.gaussian_mechanism import gaussian_delta
from fu_papers import explorable, start_here
from fu_papers.certified_dfl import travel
from fu_papers.certified_dfl import widgets as certified_dfl
from fu_papers.explorable import Choice, Slider, beginning, offer
from fu_papers.fedora import widgets as fedora
from fu_papers.hf_kcu import widgets as hf_kcu
from fu_papers.hf_kcu.plane import two_parameters
from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.puf import widgets as puf

ANSWERS = 0.5  # seconds of processor time, as promised; on a machine that needs half of it to draw anything at all:
PLAIN = 2.0  # times a picture of two plain panels
ALL = {
    "attacker": start_here.AttackersView,
    "push": puf.Push,
    "step": lambda: hf_kcu.Step(everything=True),
    "dual": lambda: fedora.Dual(everything=True),
    "hops": certified_dfl.Hops,
    "noise": certified_dfl.NoiseAgainstEpsilon,
}
WITH = {"what": {"step": "as printed"}}  # what shows a control's effect: corrected, both requests end at Retrain
CELLS = {
    "start_here": ("start-widget",),
    "puf": ("widget-push",),
    "hf_kcu": ("widget-step",),
    "fedora": ("widget-dual",),
    "certified_dfl": ("widget-hops", "widget-noise"),
}


@pytest.fixture(scope="module", params=sorted(ALL))
def view(request):
    made = ALL[request.param]()
    made.show(**beginning(made))  # whatever is computed once has been
    return made


def moved(view, **values):
    return view.show(**{**beginning(view), **values})


# --- all of them ---


def seconds_of_a_plain_picture():
    began = time.process_time()
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.5))
    for ax in axes:
        ax.plot(range(50))
        ax.set(xlabel="x", ylabel="y", title="title")
    fig.savefig(io.BytesIO(), format="png", dpi=100, bbox_inches="tight")
    plt.close(fig)
    return time.process_time() - began


def test_every_end_of_every_control_is_another_picture_in_half_a_second(view):
    for name, control in view.controls.items():
        pictures, seconds = [], []
        for end in control.ends():
            taken = []
            for _ in range(3):  # the fastest counts: on a busy machine the processor's time stretches, too
                began = time.process_time()
                picture = moved(view, **WITH.get(name, {}), **{name: end}).data
                taken.append(time.process_time() - began)
                if taken[-1] < ANSWERS:
                    break
            pictures.append(picture)
            seconds.append(min(taken))
        assert pictures[0] != pictures[1], name
        if max(seconds) >= ANSWERS:  # a slow machine, or a busy one?
            assert max(seconds) < PLAIN * seconds_of_a_plain_picture(), name


def test_a_picture_depends_on_where_the_controls_are_and_not_on_where_they_were(view):
    first = moved(view)
    for name, control in view.controls.items():
        moved(view, **{name: control.ends()[1]})
    assert moved(view).data == first.data


def test_labels_are_words_and_ranges_hold_where_they_begin(view):
    for control in view.controls.values():
        assert len(control.label.split()) >= 2 or control.label == "clients"
        assert "_" not in control.label.replace("eta_u", "")
        low, high = control.ends()
        assert isinstance(control, Choice) or low <= control.begin <= high


def test_a_picture_is_described_for_who_cannot_see_it(view):
    assert len(moved(view).alt.split()) > 4


def test_without_a_person_the_picture_stands_as_its_controls_begin(view, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert offer(view).data == moved(view).data
    assert offer(view, interactive=False).data == moved(view).data


def test_with_a_person_every_control_is_a_widget_with_its_limits():
    number = explorable._widget(Slider("a number", 0.01, -4, 1, 0.25, powers=True))
    assert (number.value, number.min, number.max, number.description) == (0.01, -4, 1, "a number")
    whole = explorable._widget(Slider("how many", 2, 0, 12, 1))
    assert isinstance(whole.value, int)
    assert explorable._widget(Choice("one of", ("this", "that"))).value == "this"


@pytest.mark.parametrize("paper", sorted(CELLS))
def test_its_cell_needs_nothing_of_the_notebook_but_the_cells_at_its_top(paper):
    """Parameters and imports; no record is read, nothing is trained that takes long."""
    notebook = nbformat.read((guides() | notebooks())[paper], as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    top = [cell.source for cell in code[:2]]
    names = {}
    exec(compile("\n".join(top), "top", "exec"), names)
    for id in CELLS[paper]:
        (cell,) = (cell for cell in code if cell.id == id)
        began = time.process_time()
        picture = eval(compile(cell.source, id, "eval"), names)
        assert picture.data.startswith(b"\x89PNG")
        assert time.process_time() - began < 10


# --- each of them ---


def test_the_attacker_catches_more_members_where_the_model_remembers():
    view = start_here.AttackersView()
    found, wrongly = view.caught("do nothing", 1.0)
    assert found > wrongly + 20
    found, wrongly = view.caught("Retrain", 1.0)
    assert abs(found - wrongly) < 15
    shares = [view.caught("do nothing", threshold)[0] for threshold in (1e-4, 1e-2, 1.0, 100.0)]
    assert shares == sorted(shares)


def test_puf_lands_on_retrain_at_the_rate_of_its_closed_form_and_goes_on_beyond():
    found = puf.bowls()
    share, m = 1 / 3, 0.2
    exact = share / ((1 - share) * m)
    assert torch.allclose(puf.landing(exact, "special"), found.retrained, atol=1e-12)
    left = [float((puf.landing(eta, "special") - found.retrained).norm()) for eta in (0.0, 1.0, 2.5, 5.0, 10.0)]
    assert left[0] > left[1] > left[2] < left[3] < left[4]
    assert torch.equal(puf.landing(0.0, "special"), found.original)


def test_regular_is_special_at_the_bowls_fixed_point():
    """Regular(1, eta) equals Special((1 + eta) p_u), which the fixed point makes exact."""
    assert torch.allclose(puf.landing(6.5, "regular"), puf.landing(7.5 / 3, "special"), atol=1e-12)


def test_pushing_harder_forgets_more_and_costs_test_accuracy():
    curves = puf.curves()
    for mode in puf.MODES.values():
        assert curves.forgotten[mode][0] > curves.forgotten[mode][-1] + 20
        assert curves.test[mode][0] > curves.test[mode][-1]
    original, retrained = curves.references["Original"], curves.references["Retrain"]
    assert original[0] > retrained[0] + 5  # there is something to forget
    assert curves.forgotten["special"][0] == pytest.approx(original[0])


def ends(view):
    return np.array(view.end.get_data())[:, 0]


def test_the_corrected_sign_leads_to_retrain_and_the_printed_one_away():
    view, plane = hf_kcu.Step(), two_parameters()
    away = {}
    for name, sign in hf_kcu.SIGNS.items():
        moved(view, sign=name, damping=1e-4)
        away[sign] = np.linalg.norm(ends(view) - plane.w_retrained.numpy())
    nothing = float((plane.w - plane.w_retrained).norm())
    assert away[1] < 0.5 * nothing < nothing < away[-1]


def test_damping_shortens_the_step():
    view, plane = hf_kcu.Step(), two_parameters()
    lengths = []
    for damping in (1e-4, 0.1, 10.0):
        moved(view, damping=damping)
        lengths.append(np.linalg.norm(ends(view) - plane.w.numpy()))
    assert lengths[0] > lengths[1] > lengths[2]
    assert lengths[2] < 0.1 * lengths[0]


def test_a_short_clip_holds_the_model_where_it_is():
    view, plane = hf_kcu.Step(everything=True), two_parameters()
    moved(view, beta=1e-3)
    assert np.linalg.norm(ends(view) - plane.w.numpy()) <= 1e-3 * float(plane.w.norm()) * (1 + 1e-9)


def test_asking_for_more_uncertainty_raises_the_price_and_asking_for_none_costs_nothing():
    view = fedora.Dual()
    prices = []
    for threshold in (-2.0, 0.5, 1.5):
        moved(view, threshold=threshold)
        prices.append(float(view.price.get_ydata()[0]))
    assert prices[0] == 0 < prices[1] < prices[2]


def test_a_faster_price_overshoots_farther():
    view = fedora.Dual()
    highest = []
    for dual_step in (0.05, 0.5, 3.0):
        moved(view, dual_step=dual_step)
        highest.append(float(np.max(view.lines["dual"].get_ydata())))
    assert highest == sorted(highest)
    assert highest[-1] > 2 * highest[0]


def test_steps_that_are_too_long_run_away_and_say_so():
    view = fedora.Dual(everything=True)
    picture = moved(view, primal_step=1.0, dual_step=10**0.5, weight=5.0)
    assert "runs away" in picture.alt or "not met" in picture.alt


def test_a_message_travels_and_who_has_heard_is_corrected():
    found = travel.travel("ring", 9, 3)
    heard = [int((certified_dfl.distances(found, hop, 0.0, "DU") < 0.5).sum()) for hop in (0, 1, 4)]
    assert heard == [1, 3, 9]


def test_noise_and_the_printed_step_leave_those_who_have_heard_farther_off():
    found = travel.travel("ring", 9, 3)
    exact = certified_dfl.distances(found, 9, 0.0, "DU").mean()
    little, some, much = (certified_dfl.distances(found, 9, noise, "DU").mean() for noise in (0.2, 0.5, 1.0))
    assert exact < little < some < much
    assert certified_dfl.distances(found, 9, 0.0, "DU printed").mean() > exact + 0.1


def test_a_smaller_epsilon_takes_more_noise_and_an_attacker_sees_less():
    view = certified_dfl.NoiseAgainstEpsilon()
    sigmas = []
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        moved(view, epsilon=epsilon)
        sigmas.append(float(view.mark.get_ydata()[0]))
        assert gaussian_delta(0.01, sigmas[-1], epsilon=epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert sigmas == sorted(sigmas, reverse=True)
    seen = [certified_dfl.attackers_success(0.01, sigma) for sigma in sigmas]
    assert seen == sorted(seen)
    assert seen[0] == pytest.approx(50, abs=1)


def test_noise_is_proportional_to_what_it_hides():
    view = certified_dfl.NoiseAgainstEpsilon()
    moved(view, budget=0.01)
    once = float(view.mark.get_ydata()[0])
    moved(view, budget=0.1)
    assert float(view.mark.get_ydata()[0]) == pytest.approx(10 * once)
