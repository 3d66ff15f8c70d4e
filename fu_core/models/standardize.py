"""The first layer of every net: raw pixels or columns in, standardised ones out."""

from __future__ import annotations

from typing import cast

from torch import Tensor, fx, nn


@fx.wrap  # a call of its own to whoever traces the net: what shapes decide has no place in a graph
def _check_width(x: Tensor, width: int) -> None:
    """Else one channel would be made into several."""
    if x.dim() > 1 and width not in (1, x.shape[1]):
        raise ValueError(f"x must have {width} channels or features, got shape {tuple(x.shape)}")


class Standardize(nn.Module):
    """`(x / scale - mean) / std` per channel or feature, so that every model takes raw pixels.

    Keeping it inside the model means that attacks, triggers and evaluations all see the same input:
    raw values. `mean`, `std`: (channels,) for images (n, C, H, W), (features,) for tables (n, p); one
    number in them is for all.
    """

    def __init__(self, mean: Tensor, std: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        if not (isinstance(mean, Tensor) and isinstance(std, Tensor) and mean.dim() == 1 and mean.shape == std.shape):
            given = " and ".join(
                f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__ for t in (mean, std)
            )
            raise ValueError(f"mean and std must be tensors of one shape, (channels,) or (features,), got {given}")
        if not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
            raise ValueError(f"mean must be finite, and std finite and > 0, got {mean.tolist()} and {std.tolist()}")
        self.register_buffer("shift", mean * scale, persistent=False)
        self.register_buffer("gain", 1.0 / (std * scale), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Raw `x` in, standardised `x` of the same shape out."""
        shift, gain = cast(Tensor, self.shift), cast(Tensor, self.gain)
        _check_width(x, len(shift))
        per_channel = (-1,) + (1,) * (x.dim() - 2)  # broadcasts over height and width
        return (x.to(gain.dtype) - shift.view(per_channel)) * gain.view(per_channel)
