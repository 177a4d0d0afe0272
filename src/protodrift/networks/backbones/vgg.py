"""VGG16 with torchvision's state-dict names (the paper's appendix, Fig. 10)."""

from __future__ import annotations

import torch
from torch import nn

_PLAN = (64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool", 512, 512, 512, "pool")


class VGG16(nn.Module):
    """Thirteen convolutions and the first two fully connected layers; the last one was ImageNet's classes.

    Args:
        channels: input channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for item in _PLAN:
            if isinstance(item, int):
                layers += [nn.Conv2d(inputs, item, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = item
            else:
                layers.append(nn.MaxPool2d(2, 2, ceil_mode=True))  # ceil: images below 32 px keep one pixel
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        # Indices as in torchvision, whose entries 2 and 5 are dropout.
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def feature_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last convolution's maps, (N, 512, h, w)."""
        out: torch.Tensor = self.features(x)
        return out

    def from_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the features of feature maps."""
        out: torch.Tensor = self.classifier(self.avgpool(maps).flatten(1))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, (N, 4096)."""
        return self.from_maps(self.feature_maps(x))


def vgg16(channels: int) -> tuple[nn.Module, int]:
    """VGG16: 4096 features."""
    return VGG16(channels), 4096
