"""Sums of the Gaussian kernel of Eqs. 9-11: block by block, so that memory is O((K + N) D), and mergeable.

The kernel average of Eq. 10 is a quotient of two sums over images, so sums over parts of the images merge to those over
all of them, exactly and in any order. Far from all images of a part the weights underflow, and 0/0 is no drift; they
are therefore held relative to the largest one so far (a running log-sum-exp):

    peak = max_i log w_i,   total = sum_i w_i e^-peak,   moved = sum_i w_i e^-peak delta_i
    merged: peak = max(peak_a, peak_b),   total = e^(peak_a - peak) total_a + e^(peak_b - peak) total_b,   ...
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..common.sums import Sums
from .base import check_pairs, check_prototypes, check_sigma

_IMAGES, _PROTOTYPES = 2048, 1024
"""Kernel weights held at once: 8 MB of float32. Smaller blocks lose time in the matrix products, larger ones in exp and
sums, which then read memory instead of the cache (`make bench ARGS=sdc`)."""


@dataclass(frozen=True)
class KernelSums(Sums):
    """Sums over images from which drift and diagnostics of K prototypes follow.

    Attributes:
        peak: (K,) the largest log-weight; all sums are relative to it. -inf without images.
        total: (K,) sum of weights.
        squares: (K,) sum of squared weights.
        moved: (K, D) sum of weights times delta.
    """

    peak: torch.Tensor
    total: torch.Tensor
    squares: torch.Tensor
    moved: torch.Tensor

    @staticmethod
    def empty(count: int, size: int, dtype: torch.dtype = torch.float64) -> KernelSums:
        """Return the sums over no images, for (count, size) prototypes."""
        zeros = torch.zeros(count, dtype=dtype)
        return KernelSums(zeros - torch.inf, zeros, zeros.clone(), torch.zeros(count, size, dtype=dtype))

    @property
    def drift(self) -> torch.Tensor:
        """Delta, (K, D): Eq. 10; 0 without images."""
        return self.moved / self._some(self.total)[:, None]

    @property
    def effective_samples(self) -> torch.Tensor:
        """(sum w)^2 / sum w^2, (K,): how many images the estimate really rests on, between 1 and N."""
        return self.total.square() / self._some(self.squares)

    def _some(self, value: torch.Tensor) -> torch.Tensor:
        return value.masked_fill(self.peak == -torch.inf, 1.0)

    def merge(self, other: KernelSums) -> KernelSums:
        """Return the sums over both sets of images: each is rescaled to the larger peak."""
        peak = torch.maximum(self.peak, other.peak)
        base = peak.masked_fill(peak == -torch.inf, 0.0)  # of two empty sets: -inf - -inf would be NaN
        mine, theirs = (self.peak - base).exp(), (other.peak - base).exp()
        return KernelSums(
            peak,
            mine * self.total + theirs * other.total,
            mine.square() * self.squares + theirs.square() * other.squares,
            mine[:, None] * self.moved + theirs[:, None] * other.moved,
        )


def kernel_sums(
    prototypes: torch.Tensor,
    z_old: torch.Tensor,
    z_new: torch.Tensor,
    sigma: float | torch.Tensor,
    *,
    center: torch.Tensor | None = None,
) -> KernelSums:
    """Return the sums of Eqs. 9-11 over N images, block by block.

    Args:
        prototypes: (K, D) mu^{t-1}.
        z_old, z_new: (N, D) z^{t-1} and z^t; N may be 0.
        sigma: bandwidth: one, or (K,) one per prototype.
        center: (D,) subtracted from everything against cancellation; None: the mean of z_old. It drops out of every
            quotient, but sums that are to be merged must share it.
    """
    check_pairs(z_old, z_new, empty=True)
    check_prototypes(prototypes, z_old.shape[1])
    each = None
    if isinstance(sigma, torch.Tensor):
        each, sigma = sigma.to(z_old.dtype)[:, None].square(), 1.0
    else:
        check_sigma(sigma)
    if not len(z_old):
        return KernelSums.empty(len(prototypes), prototypes.shape[1], prototypes.dtype)
    # ||z - mu||^2 = ||z||^2 - 2 z.mu + ||mu||^2 cancels badly far from the origin, so the cloud is centered first.
    center = z_old.mean(dim=0) if center is None else center
    mu = (prototypes - center) / sigma
    result = KernelSums.empty(len(mu), mu.shape[1], mu.dtype)
    for old, new in zip(z_old.split(_IMAGES), z_new.split(_IMAGES), strict=True):
        scaled = (old - center).div_(sigma)
        squares, delta = torch.linalg.vector_norm(scaled, dim=1).square_(), new - old  # Eq. 9
        for start in range(0, len(mu), _PROTOTYPES):
            block = slice(start, start + _PROTOTYPES)
            # log w up to ||mu||^2 / 2, which is the same for all images of a row and drops out of the softmax.
            log_w = torch.addmm(squares, mu[block], scaled.T, beta=-0.5)  # Eq. 11, (k, n)
            _add(result, block, log_w if each is None else log_w.div_(each[block]), delta)
    return result


def _add(sums: KernelSums, block: slice, log_w: torch.Tensor, delta: torch.Tensor) -> None:
    """Add n images to the sums of some prototypes, in place: log_w (k, n), which is used up, and delta (n, D)."""
    peak = torch.maximum(sums.peak[block], log_w.amax(dim=1))
    before = (sums.peak[block] - peak).exp()  # all sums so far become relative to the new peak
    w = log_w.sub_(peak[:, None]).exp_()
    sums.peak[block] = peak
    sums.total[block].mul_(before).add_(w.sum(dim=1))
    sums.squares[block].mul_(before.square()).add_(torch.linalg.vector_norm(w, dim=1).square_())
    sums.moved[block].mul_(before[:, None]).addmm_(w, delta)  # Eq. 10
