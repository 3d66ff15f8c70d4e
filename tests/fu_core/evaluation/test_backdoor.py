"""Triggers, poisoning, and how attack success is counted."""

import math

import pytest
import torch

from fu_core.errors import InvalidRequest
from fu_core.evaluation.backdoor import CORNERS, Trigger, attack_success, poison


@pytest.fixture
def images():
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (40, 3, 8, 8), generator=g, dtype=torch.uint8), torch.arange(40) % 10


@pytest.mark.parametrize("corner", CORNERS)
def test_stamping_writes_the_patch_and_nothing_else_and_twice_is_once(images, corner):
    x, _ = images
    trigger = Trigger(size=2, corner=corner)
    stamped = trigger.stamp(x)
    rows = slice(6, 8) if "bottom" in corner else slice(0, 2)
    columns = slice(6, 8) if "right" in corner else slice(0, 2)
    assert (stamped[:, :, rows, columns] == 255).all()
    untouched = torch.ones(8, 8, dtype=torch.bool)
    untouched[rows, columns] = False
    assert torch.equal(stamped[:, :, untouched], x[:, :, untouched])
    assert torch.equal(trigger.stamp(stamped), stamped)
    assert stamped.dtype == x.dtype
    assert not (x[:, :, rows, columns] == 255).all()  # a copy


def test_a_patch_larger_than_the_image_is_refused(images):
    with pytest.raises(InvalidRequest, match=r"size must fit into the images: got 9 for shape \(40, 3, 8, 8\)"):
        Trigger(size=9).stamp(images[0])


@pytest.mark.parametrize("value", [255, 51, 0])
def test_on_images_of_0_to_1_the_patch_is_as_bright_as_on_whole_pixels(images, value):
    x, _ = images
    trigger = Trigger(size=2, value=value)
    assert torch.allclose(trigger.stamp(x / 255), trigger.stamp(x) / 255)


@pytest.mark.parametrize("wrong", [lambda x: x.float(), lambda x: x / 127.5 - 1, lambda x: x / 255 + math.nan])
def test_images_that_were_normalised_before_are_refused(images, wrong):
    with pytest.raises(InvalidRequest, match=r"x must be raw pixels: torch\.uint8, or floating point from 0 to 1, got"):
        Trigger().stamp(wrong(images[0]))


NO_PIXELS = (300, -1, 12.7, "x", True, None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"size": 0}, "size"),
        ({"corner": "middle"}, "corner"),
        *(({"value": value}, "value must be a raw pixel, a whole number from 0 to 255, got") for value in NO_PIXELS),
    ],
)
def test_a_trigger_that_cannot_be_is_refused(change, named):
    with pytest.raises(ValueError, match=named):
        Trigger(**change)


def test_poison_stamps_and_relabels_exactly_its_share_and_leaves_the_rest(images):
    x, y = images
    trigger = Trigger(size=2, target=7)
    px, py = poison((x, y), trigger, fraction=0.25, seed=1, client_id=3)
    hit = (px != x).flatten(1).any(dim=1)
    assert int(hit.sum()) == 10
    assert (py[hit] == 7).all()
    assert torch.equal(px[hit], trigger.stamp(x[hit]))
    assert torch.equal(px[~hit], x[~hit])
    assert torch.equal(py[~hit], y[~hit])


def test_poison_is_the_clients_own_draw_and_repeats(images):
    trigger = Trigger(size=2)
    once, again = (poison(images, trigger, seed=1, client_id=0) for _ in range(2))
    other = poison(images, trigger, seed=1, client_id=1)
    assert torch.equal(once[0], again[0])
    assert not torch.equal(once[0], other[0])
    for fraction in (0.0, 1.1, math.nan, "a"):
        with pytest.raises(ValueError, match=r"fraction must lie in \(0, 1\], got"):
            poison(images, trigger, fraction=fraction, seed=1, client_id=0)
    nothing = images[0][:0], images[1][:0]
    with pytest.raises(InvalidRequest, match="images of client 4 must be a whole number >= 1, got 0"):
        poison(nothing, trigger, seed=1, client_id=4)


def looks_at_the_patch(x):
    """Class 7 where the last pixel is white, else class 0."""
    return torch.nn.functional.one_hot(torch.where((x[:, :, -1, -1] == 255).all(dim=1), 7, 0), 10).float()


def test_a_planted_backdoor_succeeds_always_and_a_blind_model_as_often_as_it_says_so_anyway(images):
    x, y = images
    assert attack_success(looks_at_the_patch, x, y, Trigger()) == 100
    assert attack_success(lambda x: torch.zeros(len(x), 10), x, y, Trigger()) == 0  # argmax: class 0
    thirds = torch.tensor([7, 1, 2]).repeat(20)

    def blind(x):
        return torch.nn.functional.one_hot(thirds[: len(x)], 10).float()

    assert attack_success(blind, x, y, Trigger()) == pytest.approx(100 * 12 / 36)  # 36 images are not of class 7


def test_counting_the_target_class_adds_its_own_images():
    """A perfect clean model: 0 % of others, but the 4 sevens of 40 are 'successes' too: 10 %."""
    y = torch.arange(40) % 10
    x = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    x[:, 0, 0, 0] = y.to(torch.uint8)  # the label can be read off the picture, away from the patch

    def perfect(x):
        return torch.nn.functional.one_hot(x[:, 0, 0, 0].long(), 10).float()

    assert attack_success(perfect, x, y, Trigger()) == 0
    assert attack_success(perfect, x, y, Trigger(), include_target_class=True) == 10
    with pytest.raises(
        InvalidRequest, match="at least one test image of another class than 7, got 4, all of that class"
    ):
        attack_success(perfect, x[y == 7], y[y == 7], Trigger())
    for counted in (True, False):
        with pytest.raises(InvalidRequest, match=r"x must hold at least one test image.*, got none"):
            attack_success(perfect, x[:0], y[:0], Trigger(), include_target_class=counted)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_model_that_has_left_the_numbers_calls_up_no_target(images, lost):
    x, y = images
    for target in range(3):
        assert attack_success(lambda x: torch.full((len(x), 3), lost), x, y, Trigger(target=target)) == 0
    half = torch.where(torch.arange(36) < 18, lost, 0.0)[:, None] + torch.tensor([0.0, 1.0])
    assert attack_success(lambda x: half, x, y, Trigger(target=1)) == 50  # 36 images are not of class 1


def test_labels_that_are_not_those_of_the_images_are_refused(images):
    x, y = images
    for few in (y[:3], y[:, None]):
        for counted in (True, False):
            with pytest.raises(ValueError, match=r"y must have shape \(40,\), one label per image of x, got"):
                attack_success(looks_at_the_patch, x, few, Trigger(), include_target_class=counted)


def test_a_target_that_no_output_stands_for_is_no_perfect_defence(images):
    x, y = images
    with pytest.raises(ValueError, match="target of the trigger must be one of 10 classes, got 12"):
        attack_success(lambda x: torch.zeros(len(x), 10), x, y, Trigger(target=12))
