"""ViT-Lite: a small vision transformer on torch's own encoder layers, the attention net of HF-KCU.

Patches of 4 x 4 become tokens, learned positions are added, `depth` pre-norm encoder layers follow, and
the mean token is classified. With the defaults 3.2 M parameters on 32x32x3; the paper says 3.4 M and
gives no architecture. LayerNorm only, no dropout: a pure function of its parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fu_core.errors import UnsupportedModel, check_count

PATCH = 4


class ViTLite(nn.Module):
    """`side`: height and width of the square input, a multiple of 4."""

    def __init__(
        self,
        channels: int,
        side: int,
        classes: int,
        *,
        width: int = 256,
        depth: int = 6,
        heads: int = 4,
        ratio: int = 2,
    ) -> None:
        super().__init__()
        if width % heads:
            raise UnsupportedModel(f"width must be a multiple of heads, {heads}, got {width}")
        check_count("side of a vision transformer's images", side, least=PATCH, error=UnsupportedModel)
        if side % PATCH:
            raise UnsupportedModel(
                f"a vision transformer with {PATCH}x{PATCH} patches cannot cut images of side {side}"
            )
        tokens = (side // PATCH) ** 2
        self.patches = nn.Conv2d(channels, width, PATCH, stride=PATCH)
        self.positions = Positions(tokens, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, ratio * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)  # (n, T, width)
        # the fused kernels have no second derivative and no forward mode; plain products have both
        with sdpa_kernel(SDPBackend.MATH):
            encoded = self.encoder(self.positions(tokens))
        return self.head(encoded.mean(dim=1))


class Positions(nn.Module):
    """A learned vector for each place in the image, added to its token."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, tokens, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 0.02^2), as in the original vision transformer."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, T, width) to the same."""
        return tokens + self.weight


def vit_tiny(channels: int, side: int, classes: int) -> nn.Module:
    """Two layers of width 32: for tests and 8x8 digits."""
    return ViTLite(channels, side, classes, width=32, depth=2, heads=2)
