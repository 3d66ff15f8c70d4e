"""What notebook 03 lets one move: the price of not being uncertain enough, on two parameters.

The iteration of `theory_small.saddle_path`, whose saddle point is known in closed form: the constraint is a half-plane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from IPython.display import Image

from fu_core.errors import NumericalFailure
from fu_papers.explorable import Drawn, Slider
from fu_papers.fedora.theory_figures import GENERATED, REACH, saddle_axes
from fu_papers.fedora.theory_small import DIRECTION, RETRAINED, START, saddle_path
from fu_papers.look import colour, style

SOURCE = GENERATED
ITERATIONS, MU = 120, 0.1
CONTROLS = {
    "threshold": Slider("uncertainty asked for (epsilon)", 0.5, -2.0, 1.5, 0.1),
    "dual_step": Slider("how fast the price rises (sigma)", 0.5, -2, 0.5, 0.25, powers=True),
    "weight": Slider("forgetting weight (beta)", 1.0, 0.0, 5.0, 0.5),
    "primal_step": Slider("step of the model (tau)", 0.1, -2, 0, 0.25, powers=True),
}


class Dual:
    """Left, the way to the saddle point; right, the price and what it is the price of, per iteration."""

    def __init__(self, everything: bool = False) -> None:
        names = list(CONTROLS) if everything else ["threshold", "dual_step"]
        self.controls = {name: CONTROLS[name] for name in names}
        with style():
            figure, axes = saddle_axes()
            self._dress(axes)
        self.drawn = Drawn(figure)

    def show(self, **values: Any) -> Image:
        """The picture for a threshold and a dual step, and if offered for the forgetting weight and the primal step."""
        threshold, sigma = float(values["threshold"]), float(values["dual_step"])
        weight, tau = float(values.get("weight", 1.0)), float(values.get("primal_step", 0.1))
        title = self.drawn.figure
        try:
            path = saddle_path(epsilon=threshold, weight=weight, sigma=sigma, tau=tau, mu=MU, iterations=ITERATIONS)
        except NumericalFailure:
            title.suptitle("these steps are too long: the iteration runs away", fontsize=10.5)
            for line in self.lines.values():
                line.set_data([], [])
            return self.drawn.picture("FedORA's iteration runs away")
        self.lines["path"].set_data(*path.theta.T.numpy())
        self.lines["dual"].set_data(range(len(path.dual)), path.dual.numpy())
        self.lines["residual"].set_data(range(len(path.residual)), path.residual.numpy())
        self.star.set_data([path.optimum[0]], [path.optimum[1]])
        self.border.set_xy(_half_plane(path.level))
        self.price.set_ydata([path.price, path.price])
        for ax, series in ((self.dual_axis, path.dual), (self.residual_axis, path.residual)):
            low, high = min(0.0, float(series.min())), max(path.price, float(series.max()), 0.05)
            ax.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
        met = float(path.residual[-1]) <= 0.01
        said = f"price at rest {path.price:.2f}, highest on the way {float(path.dual.max()):.2f}; after {ITERATIONS} "
        said += f"iterations the constraint is {'met' if met else 'not met'}"
        title.suptitle(said, fontsize=10.5)
        return self.drawn.picture(f"FedORA's dual: {said}")

    def _dress(self, axes: Any) -> None:
        plane, self.dual_axis, self.residual_axis = (axes[name] for name in ("plane", "dual", "residual"))
        a, b = np.meshgrid(*[np.linspace(-REACH, REACH, 61)] * 2)
        height = 0.5 * ((a - float(RETRAINED[0])) ** 2 + (b - float(RETRAINED[1])) ** 2)
        plane.contour(a, b, height, levels=[0.02, 0.1, 0.25, 0.5, 0.9, 1.5, 2.3, 3.3], colors="#b8b8b8", linewidths=0.8)
        (self.border,) = plane.fill(
            *_half_plane(0.0).T, color=colour("FedEraser"), alpha=0.13, label="uncertain enough"
        )
        hue = colour("FedORA")
        self.lines = {
            "path": plane.plot([], [], "-o", color=hue, markersize=2.5, linewidth=1.1, label="FedORA")[0],
            "dual": self.dual_axis.plot([], [], color=hue)[0],
            "residual": self.residual_axis.plot([], [], color=hue)[0],
        }
        plane.plot(*START.numpy(), "o", color=colour("Original"), markersize=10, label="original")
        plane.plot(*RETRAINED.numpy(), "X", color=colour("Retrain"), markersize=11, label="retrained")
        (self.star,) = plane.plot(
            [], [], "*", color="#ffd23f", markeredgecolor="black", markersize=15, linestyle="", label="saddle point"
        )
        plane.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal")
        plane.set(xlabel="party 1's parameter", ylabel="party 2's parameter")
        plane.grid(visible=False)
        plane.legend(loc="lower left", fontsize=8, framealpha=0.9)
        self.price = self.dual_axis.axhline(0.0, color="black", linewidth=1, linestyle="--")
        self.residual_axis.axhline(0.0, color="black", linewidth=1, linestyle="--")
        self.dual_axis.set(xlim=(0, ITERATIONS), ylabel="price (dual variable)")
        self.residual_axis.set(xlim=(0, ITERATIONS), xlabel="iteration", ylabel="uncertainty\nstill lacking")


def _half_plane(level: float) -> np.ndarray:
    """Corners (4, 2) of the half-plane DIRECTION . theta >= level, as far as the picture reaches."""
    c = DIRECTION.numpy()
    across, far = np.array([-c[1], c[0]]), 4 * REACH
    foot = level * c
    return np.array([foot - far * across, foot + far * across, foot + far * (across + c), foot + far * (c - across)])
