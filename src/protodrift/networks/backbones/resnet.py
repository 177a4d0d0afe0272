"""ResNets: 32 layers for 32 x 32 images, 18 layers with torchvision's state-dict names."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; a projection where the shape changes."""

    conv_norms: ClassVar = (("conv1", "bn1"), ("conv2", "bn2"))

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(shortcut(x) + residual(x))."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: torch.Tensor = self.relu(out + shortcut)
        return result


class ResNet(nn.Module):
    """A stem, stages of basic blocks, global average pooling.

    Attribute names (`conv1`, `bn1`, `layer1`, ..., `downsample.0`) are torchvision's, so its weight files load.

    Args:
        widths: channels of each stage.
        blocks: blocks in each stage.
        channels: input channels.
        stem: "imagenet" (7x7 stride 2 and max-pooling) or "cifar" (3x3).
    """

    runs_in_order: ClassVar = True
    conv_norms: ClassVar = (("conv1", "bn1"),)

    def __init__(self, widths: tuple[int, ...], blocks: tuple[int, ...], channels: int, stem: str) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, widths[0], 7, 2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, padding=1)
        else:
            self.conv1 = _conv3x3(channels, widths[0])
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        inputs = widths[0]
        self.stages = len(widths)
        for i, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            strides = [1 if i == 0 else 2] + [1] * (count - 1)
            stage = nn.Sequential()
            for stride in strides:
                stage.append(BasicBlock(inputs, width, stride))
                inputs = width
            setattr(self, f"layer{i + 1}", stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def feature_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last stage's maps, (N, width, h, w)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return x

    def from_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the features of feature maps."""
        out: torch.Tensor = self.avgpool(maps).flatten(1)
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return pooled features, (N, width of the last stage)."""
        return self.from_maps(self.feature_maps(x))


def resnet32(channels: int) -> tuple[nn.Module, int]:
    """ResNet-32 for 32 x 32 images (Sec. 5, CIFAR-100): 3 stages of 5 blocks, 64 features."""
    return ResNet((16, 32, 64), (5, 5, 5), channels, "cifar"), 64


def resnet18(channels: int, stem: str = "imagenet") -> tuple[nn.Module, int]:
    """ResNet-18 (Sec. 5: CUB, Flowers, ImageNet-Subset): 512 features. A `cifar` stem keeps small images large."""
    return ResNet((64, 128, 256, 512), (2, 2, 2, 2), channels, stem), 512
