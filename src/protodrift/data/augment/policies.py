"""Policies: which operation with which strength an image gets, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from ...common.config import number, whole
from ...errors import InputError
from ..views import Augmentation
from .operations import OPERATIONS

_NAMES = list(OPERATIONS)
_SIGNED = _NAMES[1:10]  # shears, shifts, rotation, enhancements: they go either way


def applied(images: torch.Tensor, which: torch.Tensor, strength: torch.Tensor, fill: int) -> torch.Tensor:
    """Return images after one operation each; those with the same one are computed together.

    Args:
        images: (N, C, H, W) uint8, gray or in color.
        which: (N,) positions in `OPERATIONS`.
        strength: (N,) float64.
        fill: the gray level of pixels from outside an image.
    """
    _check(images)
    images = images.contiguous()
    views = images.clone()
    together = which.argsort(stable=True).split(which.bincount(minlength=len(_NAMES)).tolist())
    for position, rows in enumerate(together):
        if not len(rows) or position == 0:
            continue
        views[rows] = OPERATIONS[_NAMES[position]](images[rows], strength[rows], fill)
    return views


def _check(images: torch.Tensor) -> None:
    if images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
        raise InputError(
            "this augmentation is defined for images of whole gray levels 0..255 (uint8) in one or three channels; got "
            f"{str(images.dtype).removeprefix('torch.')} in {images.shape[1]}. Store such images, or use CropFlip()."
        )


@dataclass(frozen=True)
class TrivialAugment(Augmentation):
    """TrivialAugmentWide (Mueller and Hutter, ICCV 2021): one operation per image, each as likely, at any strength.

    Fourteen operations, the strength one of `bins` equal steps from none to wide; shears, shifts, rotations and
    enhancements go either way.

    Args:
        bins: number of strengths.
        fill: the gray level of pixels from outside an image.
    """

    bins: int = 31
    fill: int = 0
    rules: ClassVar = {"bins": whole(2), "fill": whole(0, 255)}

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw the operation and the strength of each image, (N,) each."""
        table, signed = _wide(self.bins)
        which = torch.randint(len(table), (count,), generator=generator)
        at = torch.randint(self.bins, (count,), generator=generator)
        sign = 1 - 2 * torch.randint(2, (count,), generator=generator)
        strength = table[which, at]
        return which, torch.where(signed[which], sign * strength, strength)

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the views, same shape and type."""
        which, strength = drawn
        return applied(images, which, strength, self.fill)


@cache
def _wide(bins: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the strengths of TrivialAugment's operations, (14, bins), and which of them have a sign, (14,)."""
    share = torch.linspace(0, 1, bins, dtype=torch.float64)
    most = {"Shear": 0.99, "Translate": 32.0, "Rotate": 135.0}
    names = _NAMES[:14]  # all but Invert
    rows = {name: share * most.get(name.rstrip("XY"), 0.99) for name in names}
    rows |= {"Posterize": 8 - (6 * share).round(), "Solarize": 255 * (1 - share)}
    return torch.stack([rows[name] for name in names]), torch.tensor([name in _SIGNED for name in names])


CIFAR10_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)
"""AutoAugment's 25 pairs for CIFAR-10: (operation, probability, strength in 0..9) each."""


@dataclass(frozen=True)
class AutoAugment(Augmentation):
    """AutoAugment's policy for CIFAR-10 (Cubuk et al., CVPR 2019): one of 25 pairs of operations, in order, per image.

    Each operation of a pair happens with its own probability, at its own strength; shears, shifts, rotations and
    enhancements go either way. Ranges are those of torchvision: shear 0.3, shift 150/331 of the side, rotation 30
    degrees, enhancements 0.9, at least 4 bits, solarize from 255 down.

    Args:
        fill: the gray level of pixels from outside an image; code of the PyCIL family has 128.
    """

    fill: int = 0
    rules: ClassVar = {"fill": whole(0, 255)}

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw both operations and strengths of each image, (N,) each; "Identity" is one that does not happen."""
        pair = torch.randint(len(CIFAR10_POLICY), (count,), generator=generator)
        chance = torch.rand(2, count, generator=generator)
        sign = 1 - 2 * torch.randint(2, (2, count), generator=generator)
        drawn: list[torch.Tensor] = []
        for half, (which, likely, strength, signed) in enumerate(_cifar10(height, width)):
            own = torch.where(signed[pair], sign[half] * strength[pair], strength[pair])
            drawn += [torch.where(chance[half] < likely[pair], which[pair], 0), own]
        return tuple(drawn)

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the views, same shape and type."""
        first, strength, second, strength_2 = drawn
        return applied(applied(images, first, strength, self.fill), second, strength_2, self.fill)


@cache
def _cifar10(height: int, width: int) -> list[tuple[torch.Tensor, ...]]:
    """Return for both halves of the pairs: operations, probabilities, strengths, and which have a sign, (25,) each."""
    halves: list[tuple[torch.Tensor, ...]] = []
    for at in range(2):
        rows = [pair[at] for pair in CIFAR10_POLICY]
        which = torch.tensor([_NAMES.index(name) for name, _, _ in rows])
        likely = torch.tensor([share for _, share, _ in rows])
        strength = [_strength(name, level, height, width) for name, _, level in rows]
        signed = torch.tensor([name in _SIGNED for name, _, _ in rows])
        halves.append((which, likely, torch.tensor(strength, dtype=torch.float64), signed))
    return halves


def _strength(name: str, level: int, height: int, width: int) -> float:
    """Return the strength of an operation at level 0..9 of AutoAugment."""
    share = level / 9
    if name == "Posterize":
        return 8 - round(4 * share)
    if name == "Solarize":
        return 255 * (1 - share)
    side = {"TranslateX": width, "TranslateY": height}.get(name)
    most = 150 / 331 * side if side else {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0}.get(name, 0.9)
    return share * most


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Change brightness, then contrast, then color, each by a factor drawn evenly from 1 - amount to 1 + amount.

    Args:
        brightness, contrast, color: the amounts. Brightness by 63/255 is what the PyCIL family does on CIFAR.
    """

    brightness: float = 63 / 255
    contrast: float = 0.0
    color: float = 0.0
    rules: ClassVar = dict.fromkeys(("brightness", "contrast", "color"), number(0, 1))

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw the three relative strengths of each image, (N,) each."""
        drawn = 2 * torch.rand(3, count, dtype=torch.float64, generator=generator) - 1
        return tuple(drawn * torch.tensor([[self.brightness], [self.contrast], [self.color]], dtype=torch.float64))

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the views, same shape and type."""
        amounts = {"Brightness": self.brightness, "Contrast": self.contrast, "Color": self.color}
        for (name, amount), strength in zip(amounts.items(), drawn, strict=True):
            if amount:
                images = applied(images, torch.full((len(images),), _NAMES.index(name)), strength, 0)
        return images


@dataclass(frozen=True)
class Cutout(Augmentation):
    """Paint a square over each image, its center at a random pixel (DeVries and Taylor, 2017).

    Args:
        size: side of the square; what lies outside the image is lost.
        fill: its gray level. The original sets standardized pixels to zero, which is about this gray.
    """

    size: int = 8
    fill: int = 128
    rules: ClassVar = {"size": whole(1), "fill": whole(0, 255)}

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw the center's row and column, (N,) each."""
        row = torch.randint(height, (count,), generator=generator)
        return row, torch.randint(width, (count,), generator=generator)

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the views, same shape and type."""
        _check(images)
        covered = []
        for center, side in zip(drawn, images.shape[2:], strict=True):
            at = torch.arange(side) - (center[:, None] - self.size // 2)
            covered.append((at >= 0) & (at < self.size))
        rows, columns = covered
        return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], self.fill)
