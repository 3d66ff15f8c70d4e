"""What notebook 02 lets one move: the sign of HF-KCU's step and its damping, on two parameters.

Logistic regression on two features (`plane.two_parameters`), so that the retrained model is known and everything can
be seen. The loss is drawn once; a control moves the path of conjugate gradients.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from IPython.display import Image
from matplotlib.axes import Axes

from fu_papers.convex import pooled, total_loss
from fu_papers.explorable import Choice, Drawn, Slider
from fu_papers.hf_kcu.plane import cg_path, two_parameters
from fu_papers.hf_kcu.theory import LEAVING
from fu_papers.look import colour, style

SIGNS = {"plus: corrected": 1, "minus: as printed": -1}
SOURCE = "generated: two features, five clients"
NO_CLIP = 10.0  # a beta that never shortens a step here
CONTROLS = {
    "sign": Choice("sign of the step", tuple(SIGNS)),
    "damping": Slider("damping lambda", 0.01, -4, 1, 0.25, powers=True),
    "k": Slider("steps of conjugate gradients", 2, 1, 3, 1),
    "beta": Slider("longest step, of the model's length (beta)", 1.0, -3, 1, 0.25, powers=True),
}


class Step:
    """The retained loss over both parameters, its optimum, and the way there: sign and damping, or all of CONTROLS."""

    def __init__(self, everything: bool = False) -> None:
        names = list(CONTROLS) if everything else ["sign", "damping"]
        self.controls = {name: CONTROLS[name] for name in names}
        with style():
            figure, ax = plt.subplots(figsize=(7.6, 4.6))
            self.path, self.end = _surface(ax)
        self.drawn = Drawn(figure)

    def show(self, **values: Any) -> Image:
        """The picture for a sign and a damping, and if offered for a number of steps and a longest step."""
        plane = two_parameters()
        sign = SIGNS[values["sign"]]
        damping, k, beta = values["damping"], values.get("k", 2), values.get("beta", NO_CLIP)
        found = cg_path(plane, k=k, damping=damping, beta=beta, sign=sign)
        self.path.set_data(*found.iterates.T)
        self.end.set_data(*found.final[:, None])
        left = float((found.final - plane.w_retrained).norm() / (plane.w - plane.w_retrained).norm())
        said = f"{left:.2f} times as far from Retrain as doing nothing"
        self.drawn.figure.axes[0].set_title(said, fontsize=10.5)
        return self.drawn.picture(f"HF-KCU, sign {sign:+d}, damping {damping:.3g}, {k} steps: {said}")


def _surface(ax: Axes) -> tuple[Any, Any]:
    """Contours of what retraining minimises, wide enough for a step in either direction."""
    plane = two_parameters()
    loss = total_loss(plane.model, pooled(plane.clients[LEAVING + 1 :]))
    reach = 2.6 * float((plane.w - plane.w_retrained).abs().max())
    a, b = (torch.linspace(float(c) - reach, float(c) + reach, 41, dtype=torch.float64) for c in plane.w)
    heights = torch.func.vmap(loss)(torch.cartesian_prod(b, a).flip(1)).view(41, 41)
    ax.contour(a, b, heights, levels=24, colors="#b8b8b8", linewidths=0.8)
    ax.plot(*plane.w, "o", color=colour("Original"), markersize=11, label="original")
    ax.plot(*plane.w_retrained, "X", color=colour("Retrain"), markersize=12, label="retrained, exact")
    hue = colour("HF-KCU")
    (path,) = ax.plot([], [], "o-", color=hue, markersize=4, label="conjugate gradients")
    (end,) = ax.plot([], [], "D", color=hue, markersize=8, markeredgecolor="white", label="unlearned")
    ax.set(xlim=(float(a[0]), float(a[-1])), ylim=(float(b[0]), float(b[-1])))
    ax.set(xlabel="first parameter", ylabel="second parameter")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return path, end
