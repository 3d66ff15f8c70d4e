"""What the first notebook, 00_start_here, draws: memory over rounds, what an attacker sees, a backdoor, yardsticks.

The notebook itself computes everything with a dozen lines of torch each; here are the pictures only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Image
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from fu_papers.explorable import Choice, Drawn, Slider
from fu_papers.look import LINE, SOURCE_SIZE, colour, linestyle, say_below, style

SOURCE = "Digits (scikit-learn): 300 images at three clients; three in ten of client 2's labels are wrong on purpose"
PATCHED = "Digits (scikit-learn): 300 images at three clients; half of client 2's carry a patch and the label 7"
SIDES = {"members": "#d55e00", "unseen": "#0072b2"}
LOSSES = np.logspace(-4, 2, 37)  # edges of the histograms' bins, in nats; what is smaller or larger goes to the ends


# --- memory ----------------------------------------------------------------------------------------------------------


def memory_figure(accuracies: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Accuracy after 1, 2, ... rounds, a panel for each data set: `{data: {model: percent per round}}`."""
    fig, axes = plt.subplots(1, len(accuracies), figsize=(4.2 * len(accuracies), 3.4), sharey=True)
    for ax, (data, models) in zip(axes, accuracies.items(), strict=True):
        for (model, values), method in zip(models.items(), ("Original", "Retrain"), strict=True):
            look = {"color": colour(method), "linestyle": linestyle(method), "linewidth": 2.4, "label": model}
            ax.plot(range(1, len(values) + 1), values, **look)
        ax.set(title=data, xlabel="round", ylim=(-3, 103))
    axes[0].set_ylabel("accuracy (%)")
    axes[-1].legend(loc="center right")
    say_below(fig, "A line: one model as it trains, n = 1 seed, so no band")
    return fig


# --- what an attacker sees -------------------------------------------------------------------------------------------


class AttackersView:
    """Histograms of the losses of members and of unseen samples under one of several models, and a threshold.

    losses: `{model: (losses (n,) of the data to be forgotten, losses (m,) of unseen data of the same kind)}`; left out,
    those of the notebook's two models, which are stored beside this file, so that nothing has to be trained before. All
    is counted once; `show` moves bars, a line and a text of one figure, which takes a fraction of a second.
    """

    def __init__(self, losses: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> None:
        losses = stored_losses() if losses is None else losses
        self.losses = {model: tuple(map(np.asarray, sides)) for model, sides in losses.items()}
        self.shares = {model: tuple(map(_shares, sides)) for model, sides in self.losses.items()}
        self.highest = 1.1 * max(float(share.max()) for sides in self.shares.values() for share in sides)
        self.controls = {
            "model": Choice("the model that is attacked", tuple(self.losses)),
            "threshold": Slider("called members: a loss up to", 1.0, -4, 2, 0.1, powers=True),
        }
        with style():
            figure, ax = plt.subplots(figsize=(7.2, 3.6))
            self.bars = _bars(ax, next(iter(self.shares.values())))
            self.line = ax.axvline(1.0, color=LINE)
            _dress(ax, self.highest)
            ax.legend(loc="upper left")
            figure.supxlabel(
                _counted(next(iter(self.losses.values()))), x=0.01, ha="left", size=SOURCE_SIZE, color=LINE
            )
        self.drawn = Drawn(figure)

    def caught(self, model: str, threshold: float) -> tuple[float, float]:
        """Percent of the members, and percent of the unseen, whose loss is at most `threshold`: called members."""
        members, unseen = self.losses[model]
        return 100 * float((members <= threshold).mean()), 100 * float((unseen <= threshold).mean())

    def show(self, **values: Any) -> Image:
        """The picture for one `model` and one `threshold` (in nats)."""
        model, threshold = str(values["model"]), float(values["threshold"])
        for bars, share in zip(self.bars, self.shares[model], strict=True):
            for bar, height in zip(bars, share, strict=True):
                bar.set_height(height)
        self.line.set_xdata([threshold, threshold])
        found, wrongly = self.caught(model, threshold)
        said = f"{model}: {found:.0f} % of the members are called members, and {wrongly:.0f} % of the unseen"
        self.drawn.figure.axes[0].set_title(said, fontsize=10)
        return self.drawn.picture(said)


def stored_losses() -> dict[str, tuple[Tensor, Tensor]]:
    """`{model: (losses of the members, losses of the unseen)}` as the notebook computes them, to four digits."""
    with (resources.files("fu_papers") / "start_here_losses.csv").open(encoding="utf-8") as file:
        frame = pd.read_csv(file, comment="#")
    return {
        str(model): tuple(torch.tensor(rows.loss[rows.side == side].to_numpy()) for side in SIDES)  # type: ignore[misc]
        for model, rows in frame.groupby("model", sort=False)
    }


def stores(losses: Mapping[str, tuple[Tensor, Tensor]]) -> bool:
    """Whether `stored_losses` are these, to the digits that are kept. If not, `save_table(table_of(losses), ...)`."""
    kept = stored_losses()
    return list(kept) == list(losses) and all(
        torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6)
        for model in losses
        for ours, theirs in zip(kept[model], losses[model], strict=True)
    )


def table_of(losses: Mapping[str, tuple[Tensor, Tensor]]) -> pd.DataFrame:
    """A row per model, side and sample, as start_here_losses.csv has them: four digits of the loss."""
    rows = [
        {"model": model, "side": side, "loss": float(f"{loss:.4g}")}
        for model, sides in losses.items()
        for side, values in zip(SIDES, sides, strict=True)
        for loss in values.tolist()
    ]
    return pd.DataFrame(rows)


def losses_figure(losses: Mapping[str, tuple[Tensor, Tensor]], threshold: float) -> Figure:
    """The same without sliders, a panel per model, for one threshold."""
    view = AttackersView(losses)
    fig, axes = plt.subplots(1, len(losses), figsize=(5 * len(losses), 3.5), sharey=True)
    for ax, (model, shares) in zip(axes, view.shares.items(), strict=True):
        _bars(ax, shares)
        ax.axvline(threshold, color=LINE)
        _dress(ax, view.highest)
        found, wrongly = view.caught(model, threshold)
        ax.set_title(f"{model}: called members, left of the line:\n{found:.0f} % of members, {wrongly:.0f} % of unseen")
    axes[0].legend(loc="upper left")
    say_below(fig, _counted(next(iter(view.losses.values()))))
    return fig


def _counted(sides: tuple[np.ndarray, ...]) -> str:
    return f"{len(sides[0])} members, {len(sides[1])} unseen; n = 1 model each, so no band"


def _shares(losses: np.ndarray) -> np.ndarray:
    """Percent of the samples in each bin of LOSSES."""
    counts, _ = np.histogram(losses.clip(LOSSES[0], LOSSES[-1]), LOSSES)
    return 100 * counts / len(losses)


def _bars(ax: Axes, shares: tuple[np.ndarray, ...]) -> list[BarContainer]:
    sides = zip(SIDES.items(), shares, strict=True)
    return [
        ax.bar(LOSSES[:-1], share, np.diff(LOSSES), color=hue, alpha=0.55, align="edge", label=side)
        for (side, hue), share in sides
    ]


def _dress(ax: Axes, highest: float) -> None:
    ax.set(xscale="log", xlim=(LOSSES[0], LOSSES[-1]), ylim=(0, highest), xlabel="loss of a sample")
    ax.set_ylabel("share of samples (%)")


# --- a backdoor ------------------------------------------------------------------------------------------------------


def backdoor_figure(clean: Tensor, stamped: Tensor, success: Mapping[str, float]) -> Figure:
    """A few images (k, 1, 8, 8) as they are and with the patch, and how often the patch works, by model (percent)."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 2.7), width_ratios=(1.3, 1))
    framed = [F.pad(images[:, 0], (1, 1, 1, 1), value=float("nan")) for images in (clean, stamped)]  # white gaps
    left.imshow(torch.cat([torch.cat(list(row), dim=1) for row in framed]), cmap="gray_r", vmin=-0.25, vmax=1)
    left.set(title="test images; below, with the patch", xticks=[], yticks=[])
    left.grid(visible=False)
    left.spines[:].set_visible(False)
    names = list(success)
    right.plot(list(success.values()), range(len(names)), "o", color=SIDES["members"], markersize=9)
    right.set(xlim=(-4, 104), ylim=(len(names) - 0.5, -0.5), xlabel="patched images taken for a 7 (%)")
    right.set_yticks(range(len(names)), names)
    say_below(fig, "A dot: n = 1 model, so no band")
    return fig


# --- the yardstick ---------------------------------------------------------------------------------------------------


def yardstick_figure(gaps: Mapping[str, Sequence[float]], rounds: Sequence[int]) -> Figure:
    """How far each of `gaps` is above Retrain on the forgotten data (points), by rounds of training; all but the last
    are methods, the last is a second retraining.
    """
    fig, ax = plt.subplots(figsize=(7.2, 3.6))
    looks = (("o", "Original"), ("s", "Fine-tune"), ("x", "Retrain"))
    for (name, values), (marker, method) in zip(gaps.items(), looks, strict=True):
        ax.plot(rounds, values, marker=marker, color=colour(method), linestyle=linestyle(method), label=name)
    ax.axhline(0, color="black", linewidth=1.0)
    ax.set(xlabel="rounds of training before the request")
    ax.set_ylabel("accuracy on the forgotten data,\nabove Retrain's (points)")
    ax.legend(loc="upper left")
    say_below(fig, "A mark: n = 1 model, 100 images, so no band; what chance does: Retrain again")
    return fig
