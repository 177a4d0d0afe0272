"""Random views for training. Prototypes, drift and prediction always use the plain image: one deterministic view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..config import Config, flag, whole
from .arrays import InputSpec


@dataclass(frozen=True)
class CropFlip(Config):
    """Pad with reflection, crop back to size at a random place, and mirror half of the images.

    Batched over images in memory: one gather for the whole batch, no loop over images.

    Args:
        pad: pixels of padding on each side (4 for 32 x 32, as is usual for CIFAR).
        flip: mirror left-right with probability 1/2. Wrong for digits and text.
    """

    pad: int = 4
    flip: bool = True
    rules: ClassVar = {"pad": whole(0), "flip": flag}

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return random views of (N, C, H, W) images, same shape and dtype."""
        count, _, height, width = images.shape
        top, left = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator)
        mirror = torch.rand(count, generator=generator) < 0.5
        rows = top[:, None] + torch.arange(height)
        cols = left[:, None] + torch.arange(width)
        if self.flip:
            cols = torch.where(mirror[:, None], cols.flip(1), cols)
        pad = (self.pad,) * 4
        # Reflection needs pad < side; tiny images are padded with their edge instead.
        mode = "reflect" if self.pad < min(height, width) else "replicate"
        padded = F.pad(images.float(), pad, mode=mode).to(images.dtype) if self.pad else images
        picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], cols[:, None, :]]  # (N, H, W, C)
        return picked.permute(0, 3, 1, 2)


def default_augmentation(spec: InputSpec) -> CropFlip | None:
    """Choose the random view for inputs of this kind: crop and flip for colour photos, none for the rest.

    Small grey images are mostly digits, characters or measurements, where a mirror image is another thing.
    """
    if not spec.is_image or spec.shape[0] == 1 or min(spec.shape[1:]) < 32:
        return None
    return CropFlip(pad=min(spec.shape[1:]) // 8)
