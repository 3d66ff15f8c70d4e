"""Bottom nets on torchvision's blocks, for one party's images. GroupNorm(2), a 3x3 stem, no max-pool, no classifier."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.densenet import DenseNet
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from fu_core.models.group_norm import two_groups
from fu_core.models.resnet import initialise_body


class Headless(nn.Module):
    """A net of torchvision's without its classifier. He-normal convolutions, unit norms."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to embeddings (n, e)."""
        return self.net(x)

    def reset_parameters(self) -> None:
        """Convolutions by He et al., norms at one and zero."""
        initialise_body(self)


def resnet18_bottom(channels: int) -> nn.Module:
    """ResNet-18 with a 3x3 stem; embeddings of 512."""
    return _residual(BasicBlock, [2, 2, 2, 2], channels)


def resnet50_bottom(channels: int) -> nn.Module:
    """ResNet-50 with a 3x3 stem; embeddings of 2048."""
    return _residual(Bottleneck, [3, 4, 6, 3], channels)


def _residual(block: type[BasicBlock | Bottleneck], layers: list[int], channels: int) -> nn.Module:
    net = ResNet(block, layers, norm_layer=two_groups)
    net.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    return Headless(net)


def densenet_bottom(channels: int) -> nn.Module:
    """torchvision's DenseNet-121 with GroupNorm and a 3x3 stem; embeddings of 1024."""
    net = DenseNet(32, (6, 12, 24, 16), 64)
    net.features.conv0 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    net.features.pool0 = nn.Identity()
    net.classifier = nn.Identity()
    for name, part in list(net.named_modules()):
        if isinstance(part, nn.BatchNorm2d):
            owner, _, last = name.rpartition(".")
            setattr(net.get_submodule(owner), last, two_groups(part.num_features))
    return Headless(net)
