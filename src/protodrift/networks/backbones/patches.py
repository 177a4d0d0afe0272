"""Features that are not trained and never drift: whitened patches (Coates, Ng and Lee, AISTATS 2011).

Statistics and filters come from the images of the first task. After it nothing changes: every split into tasks gives
the same features, and no prototype ever has to be moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 6
"""Side of a patch."""

GRID = 2
"""Responses are averaged over the cells of a grid of so many rows and columns."""

CONTRAST = 2e-3
"""Added to the variance of a patch, in units of the variance of all pixels: an even patch is not blown up to noise."""

WHITENING = 0.1
"""Added to the eigenvalues of the covariance of patches."""

THRESHOLD = 0.5
"""Responses between -0.5 and 0.5 count as zero."""

SAMPLED = 100_000
"""Patches that the statistics are measured on."""

SIDE = 32
"""Images with a longer short side are scaled down to it: filters are made for patches of about a fifth of a side."""

_POSITIONS = 2916
"""Patches in one matrix product, four images of 32 x 32: their responses stay in the cache."""


def patch_statistics(patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean m (P,) and whitening matrix W (P, P) of patches (M, P): W = U (Lambda + 0.1)^-1/2 U' of their
    covariance U Lambda U'."""
    double = patches.double()
    mean = double.mean(dim=0)
    centered = double - mean
    values, vectors = torch.linalg.eigh(centered.T @ centered / len(centered))
    whitening = (vectors * (values.clamp(min=0) + WHITENING).rsqrt()) @ vectors.T
    return mean, whitening


def contrast_normalized(patches: torch.Tensor) -> torch.Tensor:
    """Return (p - mean(p)) / sqrt(var(p) + 0.002) for each patch, (M, P) -> (M, P).

    >>> contrast_normalized(torch.tensor([[0.0, 2.0], [5.0, 5.0]])).round(decimals=3)
    tensor([[-0.9990,  0.9990],
            [ 0.0000,  0.0000]])
    """
    variance, mean = torch.var_mean(patches, dim=1, correction=0, keepdim=True)
    return (patches - mean) / (variance + CONTRAST).sqrt()


class Patches(nn.Module):
    """Responses of whitened patches to filters that are patches themselves, rectified on both sides, pooled, rooted.

        r_k(p) = f_k . W (c(p) - m),   phi_k = sqrt(mean over a cell of max(r_k - 1/2, 0)), and the same of -r_k

    c is contrast normalization, m and W whiten patches, f_k is a whitened patch of unit length. For color images phi is
    averaged over the image and its mirror image. K filters give 2 K features per cell of a 2 x 2 grid, 8 K in all.

    Args:
        channels: of the images.
        filters: K.
    """

    learns_from_first_images: ClassVar = True

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        # One linear map of a patch that is only scaled by its contrast: its mean is taken out by the filters
        # themselves. Weights, so that the network has a type and a device; but nothing trains them.
        self.weight = nn.Parameter(torch.zeros(channels * SIZE * SIZE, filters), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(filters), requires_grad=False)
        self.mirror = channels == 3

    def fit(self, parts: Iterable[torch.Tensor], generator: torch.Generator) -> None:
        """Take statistics and filters from standardized images of the first task, parts of (n, C, H, W)."""
        images = torch.cat([_scaled(part) for part in parts])
        sampled = contrast_normalized(_random_patches(images, SAMPLED, generator))
        mean, whitening = patch_statistics(sampled)
        chosen = contrast_normalized(_random_patches(images, self.weight.shape[1], generator)).double()
        filters = F.normalize((chosen - mean) @ whitening, dim=1) @ whitening
        self.bias.copy_(-(filters @ mean))
        self.weight.copy_((filters - filters.mean(dim=1, keepdim=True)).T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, (N, C, H, W) -> (N, 8 K)."""
        x = _scaled(x)
        out = self._pooled(x).sqrt_()
        return (out + self._pooled(x.flip(-1)).sqrt_()).mul_(0.5) if self.mirror else out

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        """Return rectified responses averaged over the cells, (N, 8 K)."""
        rows, columns = (side - SIZE + 1 for side in x.shape[2:])
        pool = _pooling(rows, columns).to(x)
        filters = self.weight.shape[1]
        some = max(1, _POSITIONS // (rows * columns))
        out = x.new_empty(len(x), GRID * GRID, 2 * filters)
        # The two large buffers are made once: memory that is new in every round costs as much as the product.
        high = x.new_empty(some * rows * columns, filters)
        low = torch.empty_like(high)
        for start in range(0, len(x), some):
            part = x[start : start + some]
            patches = _all_patches(part)
            variance = torch.var(patches, dim=1, correction=0, keepdim=True)
            count = len(patches)
            torch.addmm(self.bias, patches / (variance + CONTRAST).sqrt(), self.weight, out=high[:count])
            torch.clamp(high[:count], max=-THRESHOLD, out=low[:count])
            high[:count].clamp_(min=THRESHOLD)
            for side, responses in enumerate((high, low)):
                maps = responses[:count].view(len(part), rows * columns, filters)
                out[start : start + len(part), :, side * filters : (side + 1) * filters] = pool @ maps
        out[..., :filters] -= THRESHOLD
        out[..., filters:].add_(THRESHOLD).neg_()
        return out.flatten(1).clamp_(min=0)


def _scaled(x: torch.Tensor) -> torch.Tensor:
    """Return images whose short side is at most SIDE, and at least one patch and a cell of the grid more."""
    short, least = min(x.shape[2:]), SIZE + GRID - 1
    if least <= short <= SIDE:
        return x
    factor = (SIDE if short > SIDE else least) / short
    height, width = (max(least, round(side * factor)) for side in x.shape[2:])
    return F.interpolate(x, (height, width), mode="bilinear", antialias=True)


def _all_patches(images: torch.Tensor) -> torch.Tensor:
    """Return the patches at every place of every image, (N, C, H, W) -> (N * positions, C * SIZE * SIZE)."""
    windows = images.unfold(2, SIZE, 1).unfold(3, SIZE, 1)
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * SIZE * SIZE)


def _random_patches(images: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return patches at random places of random images, (count, C * SIZE * SIZE)."""
    windows = images.unfold(2, SIZE, 1).unfold(3, SIZE, 1)
    n, _, rows, columns = windows.shape[:4]
    which, row, column = (torch.randint(size, (count,), generator=generator) for size in (n, rows, columns))
    return windows[which, :, row, column].flatten(1)


def _pooling(rows: int, columns: int) -> torch.Tensor:
    """Return the weights of each position in each cell, (GRID * GRID, rows * columns): those of adaptive pooling."""
    one = F.adaptive_avg_pool2d(torch.eye(rows * columns).view(-1, rows, columns), GRID)
    return one.flatten(1).T.contiguous()


def patches(filters: int, channels: int) -> tuple[nn.Module, int]:
    """Return a network of so many filters, and its number of features."""
    return Patches(channels, filters), 2 * GRID * GRID * filters
