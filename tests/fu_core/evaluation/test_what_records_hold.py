"""Attacks on fixed models of real size tell what they told when records were made.

Where one of these numbers is meant to change, the records that hold it have been made by another attack: the revision
of the runs that use it (`run_function`) is to be raised with it, or they would stand beside newer ones in one table.
"""

import pytest
import torch

from fu_core.evaluation.membership import confidences, fit_attack, shadow, song, threshold_attack, yeom

SIZES = {"retain": 18_000, "forget": 2_000, "test": 10_000}
REMEMBERED = 0.3  # of a logit, of what was trained on


def sides():
    """Logits and labels of a good classifier of ten classes, who knows what it has trained on a little better."""
    found = {}
    for k, (side, n) in enumerate(SIZES.items()):
        g = torch.Generator().manual_seed(k)
        y = torch.randint(10, (n,), generator=g)
        logits = 1.5 * torch.randn(n, 10, generator=g)
        logits[torch.arange(n), y] += 4 + REMEMBERED * (side != "test")
        found[side] = logits, y
    return found


@pytest.fixture(scope="module")
def told():
    models = sides()
    c = {side: confidences(*given) for side, given in models.items()}
    losses = {side: -each.log() for side, each in c.items()}
    half = len(losses["test"]) // 2
    by_loss = threshold_attack(-losses["retain"], -losses["test"][:half], -losses["forget"], -losses["test"][half:])
    attack = fit_attack([models["retain"]], [models["test"]], seed=0, largest=2_000)
    return {
        "song": song(c["forget"], c["retain"], c["test"], seed=0),
        "yeom": yeom(losses["forget"], losses["retain"]),
        "threshold, accuracy": by_loss.accuracy,
        "threshold, auc": 100 * by_loss.auc,
        "threshold, tpr": by_loss.tpr_at_1_fpr,
        "shadow, auc": 100 * shadow(attack, models["forget"], models["test"]).auc,
    }


@pytest.mark.parametrize(
    ("attack", "before", "within"),
    [
        ("song", 65.6, 0.4),
        ("yeom", 68.95, 0.01),
        ("threshold, accuracy", 55.13, 0.02),
        ("threshold, auc", 56.59, 0.01),
        ("threshold, tpr", 2.6, 0.11),
        ("shadow, auc", 55.8, 0.6),  # a net's training, whose last digits are the processor's
    ],
)
def test_an_attack_tells_what_it_told_the_records(told, attack, before, within):
    assert told[attack] == pytest.approx(before, abs=within)
