"""Pillow's image operations on batches of uint8 images, each image with a strength of its own.

Results are Pillow's own, bit for bit: the same integers and roundings, for all images of a batch at once. That is what
`AutoAugment` and `TrivialAugment` were defined with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Operation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(n, C, H, W) uint8 images, (n,) float64 strengths, the gray level of pixels from outside -> (n, C, H, W)."""


def affine(images: torch.Tensor, matrix: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Return images whose pixel (x, y) is the input's at (a x + b y + c, d x + e y + f), the nearest one.

    In Pillow's arithmetic: pixels have their centers at + 1/2, and coordinates 16 bits after the point.

    Args:
        images: (n, C, H, W).
        matrix: (n, 6) float64: a, b, c, d, e, f.
        fill: the gray level of pixels that lie outside.
    """
    count, _, height, width = images.shape
    a, b, c, d, e, f = matrix.unbind(dim=1)
    x, y = torch.arange(width), torch.arange(height)[:, None]

    def coordinate(by_x: torch.Tensor, by_y: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        fixed = [
            (part * 65536 + 0.5).floor().long().view(-1, 1, 1) for part in (by_x, by_y, start + by_x / 2 + by_y / 2)
        ]
        return (fixed[0] * x + fixed[1] * y + fixed[2]) >> 16

    columns, rows = coordinate(a, b, c), coordinate(d, e, f)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    where = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).view(count, 1, -1)
    moved = images.flatten(2).gather(2, where.expand(-1, images.shape[1], -1)).view(images.shape)
    return torch.where(inside[:, None], moved, torch.full_like(moved, fill))


def _matrix(strength: torch.Tensor, **entries: torch.Tensor) -> torch.Tensor:
    """Return identity matrices with some entries given, (n, 6)."""
    identity = dict(zip("abcdef", (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), strict=True))
    return torch.stack([entries.get(name, torch.full_like(strength, value)) for name, value in identity.items()], dim=1)


def shear_x(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Move row y by strength * y pixels to the left."""
    return affine(images, _matrix(strength, b=strength), fill)


def shear_y(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Move column x by strength * x pixels up."""
    return affine(images, _matrix(strength, d=strength), fill)


def translate_x(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Move to the right by so many pixels, cut off to whole ones."""
    return affine(images, _matrix(strength, c=-strength.trunc()), fill)


def translate_y(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Move down by so many pixels, cut off to whole ones."""
    return affine(images, _matrix(strength, f=-strength.trunc()), fill)


def rotate(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Turn counterclockwise by so many degrees about the center."""
    height, width = images.shape[2:]
    angle = -strength.deg2rad()
    cosine, sine = (torch.round(part(angle), decimals=15) for part in (torch.cos, torch.sin))
    middle_x, middle_y = width / 2, height / 2
    c = cosine * -middle_x + sine * -middle_y + middle_x
    f = -sine * -middle_x + cosine * -middle_y + middle_y
    return affine(images, _matrix(strength, a=cosine, b=sine, c=c, d=-sine, e=cosine, f=f), fill)


def blend(base: torch.Tensor, images: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    """Return base + (1 + strength) (image - base), cut off to whole gray levels in 0..255."""
    factor = (1 + strength).float().view(-1, 1, 1, 1)
    start = base.float()
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)


def gray(images: torch.Tensor) -> torch.Tensor:
    """Return the luminance of color images, (n, 1, H, W); gray images are their own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]


def brightness(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Blend with black."""
    return blend(torch.zeros_like(images), images, strength)


def color(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Blend with the gray image."""
    return blend(gray(images), images, strength)


def contrast(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Blend with the mean luminance."""
    mean = (gray(images).double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor()
    return blend(mean.expand_as(images), images, strength)


def sharpness(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Blend with the smoothed image: weights 5 for a pixel and 1 for each of its eight neighbors; the edge stays."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    kernel = torch.ones(1, 1, 3, 3)
    kernel[..., 1, 1] = 5
    sums = F.conv2d(images.float().view(-1, 1, height, width), kernel).view(*images.shape[:2], height - 2, width - 2)
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = ((2 * sums + 13) / 26).floor().to(torch.uint8)  # rounded; no sum / 13 is halfway
    return blend(smooth, images, strength)


def posterize(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Keep so many of the highest bits."""
    mask = (256 - 2 ** (8 - strength.long())).to(torch.uint8).view(-1, 1, 1, 1)
    return images & mask


def solarize(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Invert gray levels that are not below the strength."""
    return torch.where(images.double() < strength.view(-1, 1, 1, 1), images, 255 - images)


def invert(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Return 255 - image."""
    return 255 - images


def auto_contrast(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Stretch the gray levels of each channel to 0..255."""
    low, high = (part.double() for part in images.flatten(2).aminmax(dim=2))
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # 255 / x would be 255 * (1 / x), rounded twice
    offset = -low * scale
    stretched = (images * scale[..., None, None] + offset[..., None, None]).clamp(0, 255).to(torch.uint8)
    return torch.where((high > low)[..., None, None], stretched, images)


def equalize(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Give each channel nearly equal numbers of all gray levels."""
    levels = images.flatten(0, 1).flatten(1).long()
    counts = torch.zeros(len(levels), 256, dtype=torch.long).scatter_add_(1, levels, torch.ones_like(levels))
    highest = levels.amax(dim=1, keepdim=True)
    step = (levels.shape[1] - counts.gather(1, highest)) // 255
    below = counts.cumsum(dim=1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, levels), levels).to(torch.uint8).view(images.shape)


def identity(images: torch.Tensor, strength: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Return the images."""
    return images


OPERATIONS: dict[str, Operation] = {
    "Identity": identity,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
    "Brightness": brightness,
    "Color": color,
    "Contrast": contrast,
    "Sharpness": sharpness,
    "Posterize": posterize,
    "Solarize": solarize,
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
}
"""By the names of the papers. Strengths of the four enhancements are relative: 0 leaves an image as it is."""
