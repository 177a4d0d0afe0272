"""Random views for training. Prototypes, drift and prediction use one deterministic view: the plain image, or its
center where the network was made with `crop` (`networks.Embedder`).

All views are batched over images in memory: a few tensor operations for the whole batch, no loop over images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from ..common.config import Config, flag, one_of, whole
from ..errors import InputError
from .arrays import InputSpec


@dataclass(frozen=True)
class Augmentation(Config):
    """A random view of each image of a batch, drawn from a generator.

    One of your own overrides `draw` and `apply`, so that ranks can each view their share of a batch; or `__call__`
    alone, and then every rank views the whole batch.
    """

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return random views of (N, C, H, W) images, same dtype."""
        count, _, height, width = images.shape
        return self.apply(images, self.draw(count, height, width, generator))

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[Any, ...]:
        """Draw the views of `count` images of height x width: tensors with one row per image."""
        raise NotImplementedError

    def apply(self, images: torch.Tensor, drawn: Any) -> torch.Tensor:
        """Return the views of (N, C, H, W) images that were drawn."""
        raise NotImplementedError

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the views of images of height x width."""
        return height, width

    @property
    def can_be_shared(self) -> bool:
        """Whether some images of a batch can be viewed without the others."""
        return type(self).__call__ is Augmentation.__call__


def share_of(drawn: Any, own: slice) -> Any:
    """Return what was drawn for some of the images: tensors, or tuples of what was drawn."""
    return tuple(share_of(part, own) if isinstance(part, tuple) else part[own] for part in drawn)


def _augmentations(value: Any) -> str | None:
    good = isinstance(value, tuple) and value and all(isinstance(part, Augmentation) for part in value)
    return None if good else "must be some augmentations, such as (CropFlip(), TrivialAugment())"


@dataclass(frozen=True)
class Composed(Augmentation):
    """One augmentation after the other.

    Args:
        parts: the augmentations, in order.
    """

    parts: tuple[Augmentation, ...]
    rules: ClassVar = {"parts": _augmentations}

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return random views of (N, C, H, W) images, same dtype."""
        for part in self.parts:
            images = part(images, generator)
        return images

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[Any, ...]:
        """Draw what each part draws, in order."""
        drawn = []
        for part in self.parts:
            drawn.append(part.draw(count, height, width, generator))
            height, width = part.size_of(height, width)
        return tuple(drawn)

    def apply(self, images: torch.Tensor, drawn: tuple[Any, ...]) -> torch.Tensor:
        """Return the views."""
        for part, own in zip(self.parts, drawn, strict=True):
            images = part.apply(images, own)
        return images

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after the last part."""
        for part in self.parts:
            height, width = part.size_of(height, width)
        return height, width

    @property
    def can_be_shared(self) -> bool:
        """Whether all parts can."""
        return all(part.can_be_shared for part in self.parts)


@dataclass(frozen=True)
class CropFlip(Augmentation):
    """Pad, crop back to size at a random place, and mirror half of the images: the usual view for CIFAR.

    Args:
        pad: pixels of padding on each side (4 for 32 x 32, as is usual for CIFAR).
        flip: mirror left-right with probability 1/2. Wrong for digits and text.
        mode: what the padding holds: "reflect" (the image, mirrored) or "zeros" (black, as most released code has it).
    """

    pad: int = 4
    flip: bool = True
    mode: Literal["reflect", "zeros"] = "reflect"
    rules: ClassVar = {"pad": whole(0), "flip": flag, "mode": one_of("reflect", "zeros")}

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw top, left, and whether to mirror, (N,) each."""
        top, left = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator)
        return top, left, _mirror(count, self.flip, generator)

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the views, same shape and dtype."""
        top, left, mirror = drawn
        height, width = images.shape[2:]
        return _windows(self._padded(images), top, left, (height, width), mirror)

    def _padded(self, images: torch.Tensor) -> torch.Tensor:
        pad = (self.pad,) * 4
        if self.pad == 0:
            return images
        if self.mode == "zeros":
            return F.pad(images, pad)
        # Reflection needs pad < side; tiny images are padded with their edge instead.
        mode = "reflect" if self.pad < min(images.shape[2:]) else "replicate"
        return F.pad(images.float(), pad, mode=mode).to(images.dtype)


@dataclass(frozen=True)
class RandomCropFlip(Augmentation):
    """Crop a square out of a larger image at a random place, and mirror half of them.

    The paper's view for CUB, Flowers and ImageNet-Subset: images of 256 x 256, crops of 224 (Sec. 5).

    Args:
        size: side of the crop; images must have at least this size.
        flip: mirror left-right with probability 1/2.
    """

    size: int = 224
    flip: bool = True
    rules: ClassVar = {"size": whole(1), "flip": flag}

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw top, left, and whether to mirror, (N,) each."""
        if min(height, width) < self.size:
            raise InputError(
                f"RandomCropFlip: cannot crop {self.size} x {self.size} out of images of {height} x {width}. Store "
                "larger images, or make size smaller."
            )
        top = torch.randint(0, height - self.size + 1, (count,), generator=generator)
        left = torch.randint(0, width - self.size + 1, (count,), generator=generator)
        return top, left, _mirror(count, self.flip, generator)

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the (N, C, size, size) views, same dtype."""
        top, left, mirror = drawn
        return _windows(images, top, left, (self.size, self.size), mirror)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the crop."""
        return self.size, self.size


def _span(low: float, high: float = math.inf) -> Any:
    def rule(value: Any) -> str | None:
        numbers = isinstance(value, tuple) and all(isinstance(v, (int, float)) and math.isfinite(v) for v in value)
        if not numbers or len(value) != 2 or not low < value[0] <= value[1] <= high:
            top = "" if high == math.inf else f" <= {high:g}"
            return f"must be a pair (least, most) with {low:g} < least <= most{top}"
        return None

    return rule


@dataclass(frozen=True)
class ResizedCropFlip(Augmentation):
    """Crop a random part of random area and shape, resize it to a square, and mirror half of them.

    The view of the authors' released code. The part is drawn as is usual for ImageNet: area uniform in `scale` of the
    image's, log(width / height) uniform in log `ratio`, ten tries, and where none fits into the image its largest
    center part within `ratio`. The resize is bilinear with antialiasing, as an image library does it (a triangle filter
    as wide as the reduction), computed in float32; uint8 images are rounded back.

    Args:
        size: side of the result.
        scale: least and most area of the part, as a fraction of the image's.
        ratio: least and most width / height of the part.
        flip: mirror left-right with probability 1/2.
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    rules: ClassVar = {"size": whole(1), "scale": _span(0, 1), "ratio": _span(0), "flip": flag}

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Draw the part of each image (see `parts`), and whether to mirror it."""
        return *self.parts(count, height, width, generator), _mirror(count, self.flip, generator)

    def apply(self, images: torch.Tensor, drawn: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the (N, C, size, size) views, same dtype."""
        top, left, tall, wide, mirror = drawn
        height, width = images.shape[2:]
        rows = _resize_weights(top, tall, height, self.size)
        cols = _resize_weights(left, wide, width, self.size)
        cols = torch.where(mirror[:, None, None], cols.flip(1), cols)
        # Resizing is separable: view = rows @ image @ cols^T, for all images and channels at once.
        views = rows[:, None] @ (images.float() @ cols[:, None].transpose(2, 3))
        return views if images.is_floating_point() else views.round().clamp(0, 255).to(images.dtype)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the result."""
        return self.size, self.size

    def parts(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw a part for each of `count` images of height x width: top, left, height, width, (N,) each."""
        tries = 10
        area = torch.empty(count, tries, dtype=torch.float64).uniform_(*self.scale, generator=generator)
        shape = torch.empty(count, tries, dtype=torch.float64)
        shape = shape.uniform_(math.log(self.ratio[0]), math.log(self.ratio[1]), generator=generator).exp()
        at = torch.rand(2, count, dtype=torch.float64, generator=generator)
        # A part of area a and shape r is sqrt(a r) wide and sqrt(a / r) tall.
        wide = (area * height * width * shape).sqrt().round().long()
        tall = (area * height * width / shape).sqrt().round().long()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        first = fits.long().argmax(dim=1, keepdim=True)
        none = ~fits.any(dim=1)
        # As wide as the image, or as tall, whichever keeps the ratio within bounds.
        most_wide = min(width, max(1, round(height * self.ratio[1])))
        most_tall = min(height, max(1, round(width / self.ratio[0])))
        wide = wide.gather(1, first).squeeze(1).masked_fill(none, most_wide)
        tall = tall.gather(1, first).squeeze(1).masked_fill(none, most_tall)
        top = (at[0] * (height - tall + 1)).long().masked_fill(none, (height - most_tall) // 2)
        left = (at[1] * (width - wide + 1)).long().masked_fill(none, (width - most_wide) // 2)
        return top, left, tall, wide


def _mirror(count: int, flip: bool, generator: torch.Generator) -> torch.Tensor:
    # Drawn even where it is not used: whether images are mirrored does not change where they are cropped next.
    return (torch.rand(count, generator=generator) < 0.5) & flip


def _windows(
    images: torch.Tensor, top: torch.Tensor, left: torch.Tensor, size: tuple[int, int], mirror: torch.Tensor
) -> torch.Tensor:
    """Cut one window of size (height, width) out of each image, mirrored where asked: one gather for the batch."""
    rows = top[:, None] + torch.arange(size[0])
    cols = left[:, None] + torch.arange(size[1])
    cols = torch.where(mirror[:, None], cols.flip(1), cols)
    picked = images[torch.arange(len(images))[:, None, None], :, rows[:, :, None], cols[:, None, :]]  # (N, H, W, C)
    return picked.permute(0, 3, 1, 2)


def _resize_weights(start: torch.Tensor, length: torch.Tensor, side: int, size: int) -> torch.Tensor:
    """Return what each pixel of an axis gives to each pixel of the view, (N, size, side); rows sum to 1.

    Output pixel i looks at (i + 1/2) s in the part, s = length / size, through a triangle of half width max(s, 1). Only
    pixels of the part count: nothing beyond its edge shows.
    """
    step = (length.float() / size)[:, None, None]
    center = (torch.arange(size) + 0.5)[None, :, None] * step
    at = torch.arange(side)[None, None, :] - start[:, None, None]
    weights = (1 - (at + 0.5 - center).abs() / step.clamp(min=1)).clamp(min=0)
    weights = weights * ((at >= 0) & (at < length[:, None, None]))
    return weights / weights.sum(dim=2, keepdim=True)


def default_augmentation(spec: InputSpec) -> Augmentation | None:
    """Choose the random view for inputs of this kind: crop and flip for color photos, none for the rest.

    Small gray images are mostly digits, characters or measurements, where a mirror image is another thing.
    """
    if not spec.is_image or spec.shape[0] == 1 or min(spec.shape[1:]) < 32:
        return None
    return CropFlip(pad=min(spec.shape[1:]) // 8)
