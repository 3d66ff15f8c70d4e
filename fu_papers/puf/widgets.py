"""What notebook 01 lets one move: how far PUF goes against an update, on two bowls and on a small federation.

Both are made when first asked for, in well under a second, and need nothing of the notebook.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Image
from matplotlib.axes import Axes
from torch import Tensor

from fu_core import ClientOpt, Federation, Request, build, fedavg, load, partition
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.together import train_round
from fu_core.unlearning.puf import puf
from fu_papers.explorable import Choice, Drawn, Slider
from fu_papers.look import LINE, colour, style

MODES = {"the leaving client alone (Special)": "special", "everybody (Regular)": "regular"}
SOURCE = "generated: three bowls; Digits (scikit-learn): 400 images at five clients, Dirichlet 0.3, softmax regression"
ETAS = np.linspace(0.0, 10.0, 81)
ROUNDS, LEAVING = 15, 3
PLANE = (-4.5, 2.7)  # what is shown of the plane, in both directions


class Bowls(NamedTuple):
    """Three equal clients whose losses are |w - a_i|^2 / 2; client 0 leaves. Everything is (2,), `deltas` (3, 2)."""

    minima: Tensor
    original: Tensor  # where all three rest: the mean of the minima
    retrained: Tensor  # the mean of the other two
    deltas: Tensor  # of one more round of one step


class Curves(NamedTuple):
    """Of the small federation: percent right after unlearning with each of ETAS, by mode, and of the references."""

    forgotten: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    references: dict[str, tuple[float, float]]  # Original, Retrain: forgotten, test


def bowls(rate: float = 0.2) -> Bowls:
    """The bowls, everybody at rest. One step of `rate` is Delta_i = rate (a_i - w), so eta_u = 2.5 alone is Retrain."""
    minima = torch.tensor([[2.0, 1.6], [-1.6, 0.4], [-0.4, -2.0]], dtype=torch.float64)
    original = minima.mean(dim=0)
    return Bowls(minima, original, minima[1:].mean(dim=0), rate * (minima - original))


def landing(eta_u: float, mode: str) -> Tensor:
    """Where PUF lands on the bowls, (2,), by Eqs. (7) to (9)."""
    found = bowls()
    leaves = torch.tensor([True, False, False])
    if eta_u == 0 and mode == "special":
        return found.original  # the library refuses a step of nothing
    eta = max(eta_u, 1e-12)
    return puf(found.original, found.deltas, torch.ones(3, dtype=torch.float64), leaves, mode=mode, eta_u=eta)


@lru_cache(maxsize=1)
def curves() -> Curves:
    """Train, retrain, and unlearn with every eta_u. Random: everything from streams of seed 0."""
    digits = load("digits").subset(n_train=400, seed=0)
    model = build("softmax_regression", digits)
    held = partition.dirichlet(digits.y_train, 5, alpha=0.3, seed=0)
    clients = [(digits.x_train[rows], digits.y_train[rows]) for rows in held]
    f = Federation(model, clients, ClientOpt(lr=0.1, epochs=1, batch_size=10), seed=0)
    deletion = Request.parse(f"client-{LEAVING}").resolve(f.clients)
    original = fedavg(f, model.init(0), ROUNDS)
    retrained = fedavg(f.after(deletion), model.init(0), ROUNDS)
    deltas = train_round(f, original, ROUNDS + 1)
    leaves = torch.tensor([i == LEAVING for i in f.ids])
    sides = {"forgotten": deletion.forget, "test": (digits.x_test, digits.y_test)}

    def right(w: Tensor, side: str) -> float:
        return accuracy(model, w, *sides[side])

    found: dict[str, dict[str, np.ndarray]] = {side: {} for side in sides}
    for mode in MODES.values():
        models = [puf(original, deltas, f.sizes(), leaves, mode=mode, eta_u=max(eta, 1e-12)) for eta in ETAS]
        for side in sides:
            found[side][mode] = np.array([right(w, side) for w in models])
    references = {
        name: (right(w, "forgotten"), right(w, "test")) for name, w in (("Original", original), ("Retrain", retrained))
    }
    return Curves(found["forgotten"], found["test"], references)


class Push:
    """Left, two parameters: where PUF lands. Right, digits: what that does to accuracy, before any recovery."""

    def __init__(self) -> None:
        self.controls = {
            "eta_u": Slider("unlearning rate eta_u", 2.0, 0.0, 10.0, 0.25),
            "who": Choice("who takes part", tuple(MODES)),
        }
        with style():
            figure, (plane, accuracy) = plt.subplots(1, 2, figsize=(10.4, 3.9), width_ratios=(1, 1.35))
            self.point = _plane(plane)
            self.lines, self.marks, self.cursor = _accuracy(accuracy)
        self.drawn = Drawn(figure)

    def show(self, **values: Any) -> Image:
        """The picture for an eta_u and for who takes part."""
        eta_u, mode = float(values["eta_u"]), MODES[values["who"]]
        found = bowls()
        end = landing(eta_u, mode)
        left = float((end - found.retrained).norm() / (found.original - found.retrained).norm())
        self.point.set_data([found.original[0], end[0]], [found.original[1], end[1]])
        said = f"{left:.2f} of the way to Retrain is left" if left > 0.005 else "this is retraining, exactly"
        plane, accuracy = self.drawn.figure.axes
        plane.set_title(said, fontsize=10.5)
        numbers = []
        for side, values_of in (("forgotten", curves().forgotten), ("test", curves().test)):
            self.lines[side].set_ydata(values_of[mode])
            at = float(np.interp(eta_u, ETAS, values_of[mode]))
            self.marks[side].set_data([eta_u], [at])
            numbers.append(f"{at:.0f} % of {'the forgotten' if side == 'forgotten' else 'test images'}")
        self.cursor.set_xdata([eta_u, eta_u])
        accuracy.set_title(f"right: {', '.join(numbers)}", fontsize=10.5)
        return self.drawn.picture(f"PUF with eta_u {eta_u:g}, {mode}: {said}; right: {', '.join(numbers)}")


def _plane(ax: Axes) -> Any:
    found = bowls()
    ax.plot(*found.minima[1:].T, "s", color=LINE, markersize=7, label="optima of those who stay")
    ax.plot(*found.minima[0], "s", color=LINE, markerfacecolor="white", markersize=8, label="of the leaving client")
    ax.plot(*found.original, "o", color=colour("Original"), markersize=11, label="original")
    ax.plot(*found.retrained, "X", color=colour("Retrain"), markersize=12, label="retrained")
    (point,) = ax.plot([], [], "-D", color=colour("PUF-Special"), markevery=[1], markersize=8, label="PUF")
    ax.set(xlim=PLANE, ylim=PLANE, aspect="equal", xlabel="first parameter", ylabel="second parameter")
    ax.legend(loc="upper left", fontsize=8)
    return point


def _accuracy(ax: Axes) -> tuple[dict[str, Any], dict[str, Any], Any]:
    lines, marks = {}, {}
    for k, (side, label, dash) in enumerate((("forgotten", "forgotten images", "-"), ("test", "test images", ":"))):
        (lines[side],) = ax.plot(ETAS, np.full(len(ETAS), np.nan), dash, color=colour("PUF-Special"), label=label)
        (marks[side],) = ax.plot([], [], "D", color=colour("PUF-Special"), markersize=8)
        goal = curves().references["Retrain"][k]
        ax.axhline(goal, color=colour("Retrain"), linewidth=1.2, linestyle=dash)
        ax.annotate(f"Retrain, {side}", (ETAS[-1], goal), xytext=(0, 3), textcoords="offset points", ha="right",
                    fontsize=9)  # fmt: skip
    cursor = ax.axvline(0.0, color=LINE, linewidth=1)
    ax.set(xlim=(0, ETAS[-1]), ylim=(-3, 103), xlabel="unlearning rate eta_u", ylabel="accuracy (%)")
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 0.72), fontsize=9)
    return lines, marks, cursor
