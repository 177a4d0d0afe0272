"""Small networks: for 8 x 8 to 28 x 28 gray images, and for feature vectors."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn


class ConvNet(nn.Module):
    """Three 3x3 convolutions (32, 64, 128 channels) with batch norm, pooled to 2 x 2.

    Pooling to a 2 x 2 grid instead of one cell keeps where a stroke is, which is most of what a digit is.
    """

    runs_in_order: ClassVar = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        inputs = channels
        for i, width in enumerate((32, 64, 128)):
            if i:
                self.layers.append(nn.MaxPool2d(2, ceil_mode=True))
            self.layers.extend(
                [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            )
            inputs = width
        self.pool = nn.AdaptiveAvgPool2d(2)

    def feature_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's maps, (N, 128, h, w)."""
        out: torch.Tensor = self.layers(x)
        return out

    def from_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the features of feature maps."""
        out: torch.Tensor = self.pool(maps).flatten(1)
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, (N, 512)."""
        return self.from_maps(self.feature_maps(x))


def convnet(channels: int) -> tuple[nn.Module, int]:
    """A small convolutional network: 512 features."""
    return ConvNet(channels), 512


def mlp(inputs: int, width: int = 256) -> tuple[nn.Module, int]:
    """Two hidden layers for feature vectors: 256 features."""
    layers = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return layers, width
