"""EfficientNet-Lite0 to Lite4 (Google, 2020): the backbone whose ImageNet weights pip can bring.

EfficientNet's inverted residual blocks without squeeze-and-excitation, ReLU6 for swish, and a stem and a head that do
not grow with the variant. Padding is TensorFlow's "same", which follows the size of the image, so that every resolution
works and the published weights mean at their own resolution what they meant in training.
"""

from __future__ import annotations

import math
import re
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

FEATURES = 1280

RESOLUTIONS = (224, 240, 260, 280, 300)
"""Side of the images that each variant was trained for."""

_VARIANTS = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2), (1.2, 1.4), (1.4, 1.8))  # times the width, times the depth
_STAGES = (  # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ceil(side / stride) pixels: zeros are added as TensorFlow's "same" adds them.

    Where their number is odd, the one more goes to the right and to the bottom.
    """

    weight_as_it_is = True  # for `folding`

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (N, outputs, ceil(H / stride), ceil(W / stride))."""
        (top, bottom), (left, right) = (
            _same(side, kernel, stride)
            for side, kernel, stride in zip(input.shape[-2:], self.kernel_size, self.stride, strict=True)
        )
        padding = (top, left)
        if top != bottom or left != right:  # else the convolution can do it by itself, without a copy
            input, padding = F.pad(input, (left, right, top, bottom)), (0, 0)
        if self.groups > 1 and input.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # One channel at a time, bfloat16 is slower than float32 on a CPU, most of all backwards.
            with torch.autocast("cpu", enabled=False):
                return F.conv2d(input.float(), self.weight, self.bias, self.stride, padding, 1, self.groups)
        return F.conv2d(input, self.weight, self.bias, self.stride, padding, 1, self.groups)


def _same(side: int, kernel: int, stride: int) -> tuple[int, int]:
    missing = max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)
    return missing // 2, missing - missing // 2


def _unit(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, relu: bool = True) -> nn.Module:
    """Convolution, batch norm (TensorFlow's constants), ReLU6."""
    layers: list[nn.Module] = [
        SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([nn.ReLU6(inplace=True)] if relu else []))


class InvertedResidual(nn.Module):
    """Widen (1x1), filter each channel by itself, narrow (1x1, no ReLU); a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = nn.Identity() if expansion == 1 else _unit(inputs, wide)
        self.depthwise = _unit(wide, wide, kernel, stride, groups=wide)
        self.project = _unit(wide, outputs, relu=False)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + residual(x), or residual(x) where the shape changes."""
        out: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return x + out if self.shortcut else out


class EfficientNetLite(nn.Module):
    """Stem, inverted residual blocks, head, global average pooling.

    The stochastic depth and dropout of its ImageNet training are left out: z must be the same in every pass.

    Args:
        variant: 0 to 4.
        channels: input channels.
    """

    runs_in_order: ClassVar = True

    def __init__(self, variant: int, channels: int = 3) -> None:
        super().__init__()
        width, depth = _VARIANTS[variant]
        inputs = 32
        self.stem = _unit(channels, inputs, kernel=3, stride=2)
        self.blocks = nn.ModuleList()
        self.repeats: list[int] = []  # blocks in each stage
        for i, (count, kernel, stride, expansion, outputs) in enumerate(_STAGES):
            fixed = i in (0, len(_STAGES) - 1)  # the first and the last stage keep their depth
            self.repeats.append(count if fixed else math.ceil(count * depth))
            for block in range(self.repeats[-1]):
                wide = _round_to_8(outputs * width)
                self.blocks.append(InvertedResidual(inputs, wide, kernel, 1 if block else stride, expansion))
                inputs = wide
        self.head = _unit(inputs, FEATURES)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))

    def feature_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's maps, (N, 1280, ceil(H / 32), ceil(W / 32))."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out

    def from_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the features of feature maps."""
        out: torch.Tensor = self.avgpool(maps).flatten(1)
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return pooled features, (N, 1280)."""
        return self.from_maps(self.feature_maps(x))

    def translate(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a state dict under this network's names, without ImageNet's classifier.

        Understood are the names of the PyPI packages (`_blocks.3._depthwise_conv.weight`) and timm's
        (`blocks.2.1.conv_dw.weight`); other names stay as they are.
        """
        if "_conv_stem.weight" in state:
            return {_from_pypi(name): value for name, value in state.items() if not name.startswith("_fc.")}
        if "conv_stem.weight" in state:
            names = ((name, value) for name, value in state.items() if not name.startswith("classifier."))
            return {self._from_timm(name): value for name, value in names}
        return state

    def _from_timm(self, name: str) -> str:
        name = re.sub(r"^conv_stem\.", "stem.0.", re.sub(r"^bn1\.", "stem.1.", name))
        name = re.sub(r"^conv_head\.", "head.0.", re.sub(r"^bn2\.", "head.1.", name))
        found = re.fullmatch(r"blocks\.(\d+)\.(\d+)\.(\w+)\.(\w+)", name)
        if found is None or int(found[1]) >= len(self.repeats):
            return name
        stage, block, layer, tensor = int(found[1]), int(found[2]), found[3], found[4]
        # The first stage does not expand: its layers are numbered from the depthwise one.
        wide = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
        layers = wide if _STAGES[stage][3] > 1 else ("", "", "conv_dw", "bn1", "conv_pw", "bn2")
        if layer not in layers:
            return name
        part = ("expand.0", "expand.1", "depthwise.0", "depthwise.1", "project.0", "project.1")[layers.index(layer)]
        return f"blocks.{sum(self.repeats[:stage]) + block}.{part}.{tensor}"


_PYPI = (
    (r"^_conv_stem\.", "stem.0."),
    (r"^_bn0\.", "stem.1."),
    (r"^_conv_head\.", "head.0."),
    (r"^_bn1\.", "head.1."),
    (r"^_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.0."),
    (r"^_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.1."),
    (r"^_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.depthwise.0."),
    (r"^_blocks\.(\d+)\._bn1\.", r"blocks.\1.depthwise.1."),
    (r"^_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.0."),
    (r"^_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.1."),
)


def _from_pypi(name: str) -> str:
    for pattern, ours in _PYPI:
        name, count = re.subn(pattern, ours, name)
        if count:
            break
    return name


def _round_to_8(channels: float) -> int:
    """Round to a multiple of 8, never down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def efficientnet_lite(variant: int, channels: int) -> tuple[nn.Module, int]:
    """EfficientNet-Lite `variant`: 1280 features."""
    return EfficientNetLite(variant, channels), FEATURES
