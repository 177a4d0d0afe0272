"""Semantic drift compensation, the paper's contribution (Sec. 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.config import number, optional, whole
from ..common.pool import HERE, Pool
from .algebra import squared_distances
from .base import Drift, FittedDrift, check_pairs, check_prototypes

_IMAGES, _PROTOTYPES = 2048, 1024
"""Kernel weights held at once: 8 MB of float32. Smaller blocks lose time in the matrix products, larger ones in exp and
sums, which then read memory instead of the cache (`make bench ARGS=sdc`)."""


def semantic_drift(prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, sigma: float) -> torch.Tensor:
    """Estimate how far each prototype drifted while the current task was learned, Eqs. 9-11.

        delta_i = z_i^t - z_i^{t-1}                                     (Eq. 9)
        Delta_c = sum_i w_i delta_i / sum_i w_i                         (Eq. 10)
        w_i     = exp(-||z_i^{t-1} - mu_c^{t-1}||^2 / (2 sigma^2))      (Eq. 11)

    Normalized Gaussian weights are a softmax of -d^2 / (2 sigma^2): finite wherever the squared distances are, where
    the quotient of sums is 0/0. Weights are made block by block and used up, so memory is O((K + N) D), never O(K N).

    Args:
        prototypes: (K, D) mu^{t-1}, in the space of the old network.
        z_old: (N, D) z^{t-1}, the current task's images through the old network.
        z_new: (N, D) z^t, the same images through the new one.
        sigma: bandwidth of the kernel.

    Returns:
        (K, D) the drift Delta; `prototypes + drift` is the compensated position (Eq. 13).

    >>> prototypes = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
    >>> z_old = torch.tensor([[0.1, 0.0], [9.0, 9.1]])
    >>> z_new = torch.tensor([[1.1, 0.0], [9.0, 7.1]])
    >>> semantic_drift(prototypes, z_old, z_new, sigma=0.3).round(decimals=3).tolist()
    [[1.0, 0.0], [0.0, -2.0]]
    """
    return kernel_sums(prototypes, z_old, z_new, sigma).drift


@dataclass
class KernelSums:
    """Sums over images from which drift and diagnostics follow; two of them from disjoint images can be merged.

    Attributes:
        peak: (K,) the largest log-weight so far; all sums are relative to it.
        total: (K,) sum of weights.
        squares: (K,) sum of squared weights.
        moved: (K, D) sum of weights times delta.
    """

    peak: torch.Tensor
    total: torch.Tensor
    squares: torch.Tensor
    moved: torch.Tensor

    @property
    def drift(self) -> torch.Tensor:
        """Delta, (K, D): Eq. 10."""
        return self.moved / self.total[:, None]

    @property
    def effective_samples(self) -> torch.Tensor:
        """(sum w)^2 / sum w^2, (K,): how many images the estimate really rests on, between 1 and N."""
        return self.total.square() / self.squares

    @staticmethod
    def empty(count: int, size: int, dtype: torch.dtype = torch.float64) -> KernelSums:
        """Return the sums over no images: a peak of -inf, all else zero."""
        zeros = torch.zeros(count, dtype=dtype)
        return KernelSums(zeros - torch.inf, zeros, zeros.clone(), torch.zeros(count, size, dtype=dtype))

    def add(self, block: slice, log_w: torch.Tensor, delta: torch.Tensor) -> None:
        """Add n images to the sums of some prototypes, in place: log_w (k, n), which is used up, and delta (n, D)."""
        peak = torch.maximum(self.peak[block], log_w.amax(dim=1))
        before = (self.peak[block] - peak).exp()  # all sums so far become relative to the new peak
        w = log_w.sub_(peak[:, None]).exp_()
        self.peak[block] = peak
        self.total[block].mul_(before).add_(w.sum(dim=1))
        self.squares[block].mul_(before.square()).add_(torch.linalg.vector_norm(w, dim=1).square_())
        self.moved[block].mul_(before[:, None]).addmm_(w, delta)  # Eq. 10

    def merge(self, other: KernelSums) -> KernelSums:
        """Return the sums over both sets of images, exactly: each is rescaled to the larger peak."""
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
    """Return the sums of Eq. 10 over all images, block by block.

    Args:
        sigma: bandwidth: one, or (K,) one a prototype.
        center: (D,) subtracted from everything against cancellation; None: the mean of z_old. Sums that are to be
            merged must share it.
    """
    check_pairs(z_old, z_new)
    one = not isinstance(sigma, torch.Tensor)
    if one and not (isinstance(sigma, (int, float)) and math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"sigma must be a finite number greater than 0, got {sigma!r}")
    check_prototypes(prototypes, z_old.shape[1])
    # ||z - mu||^2 = ||z||^2 - 2 z.mu + ||mu||^2 cancels badly far from the origin, so the cloud is centered first.
    center = z_old.mean(dim=0) if center is None else center
    each = None if one else torch.as_tensor(sigma, dtype=z_old.dtype)[:, None].square()
    sigma = 1.0 if not one else sigma
    mu = (prototypes - center) / sigma
    nothing = mu.new_zeros(len(mu))
    result = KernelSums(nothing - torch.inf, nothing, nothing.clone(), torch.zeros_like(mu))
    for old, new in zip(z_old.split(_IMAGES), z_new.split(_IMAGES), strict=True):
        scaled = (old - center).div_(sigma)
        squares, delta = torch.linalg.vector_norm(scaled, dim=1).square_(), new - old  # Eq. 9
        for start in range(0, len(mu), _PROTOTYPES):
            block = slice(start, start + _PROTOTYPES)
            # log w up to ||mu||^2 / 2, which is the same for all images of a row and drops out of the softmax.
            log_w = torch.addmm(squares, mu[block], scaled.T, beta=-0.5)  # Eq. 11, (k, n)
            result.add(block, log_w if each is None else log_w.div_(each[block]), delta)
    return result


@dataclass(frozen=True)
class SDC(Drift):
    """Semantic drift compensation: mu^t = mu^{t-1} + Delta (Eq. 13), Delta by `semantic_drift`.

    Args:
        sigma: bandwidth, in units of the embedding. Sec. 5: 0.3, CIFAR-100 0.2, for embeddings of unit length.

    >>> z_old = torch.eye(3)
    >>> moved = SDC(sigma=0.3).fit(z_old, z_old + 1).transport(torch.zeros(2, 3))
    >>> moved
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """

    sigma: float = 0.3
    rules: ClassVar = {"sigma": number(above=0)}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None) -> FittedSDC:
        """Remember how the current images moved."""
        check_pairs(z_old, z_new)
        return FittedSDC(self.sigma, z_old, z_new)


@dataclass(frozen=True)
class FittedSDC(FittedDrift):
    """SDC with the vector field delta_i of one task."""

    sigma: float
    z_old: torch.Tensor
    z_new: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return mu + Delta (Eq. 13), and the `effective_samples` behind each prototype's Delta."""
        sums = kernel_sums(prototypes, self.z_old, self.z_new, self.sigma)
        return prototypes + sums.drift, {"effective_samples": sums.effective_samples}


@dataclass(frozen=True)
class RelativeSDC(Drift):
    """SDC whose bandwidth has no unit: a fraction of how far the prototypes are from the images.

    sigma_c = fraction * median of all distances from prototypes to images (one sigma for all), or
    sigma_c = fraction * distance from prototype c to its k-th nearest image (each its own).

    The paper's 0.3 belongs to embeddings of unit length; where distances are another scale, it is the nearest image
    (too small) or the mean shift (too large).

    Args:
        fraction: of the distance.
        neighbors: k; None takes the median distance.
    """

    fraction: float = 0.3
    neighbors: int | None = None
    rules: ClassVar = {"fraction": number(above=0), "neighbors": optional(whole(1))}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None) -> FittedRelativeSDC:
        """Remember how the current images moved."""
        check_pairs(z_old, z_new)
        return FittedRelativeSDC(self, z_old, z_new)


@dataclass(frozen=True)
class FittedRelativeSDC(FittedDrift):
    """SDC with the vector field of one task; the bandwidth follows the prototypes it is asked about."""

    config: RelativeSDC
    z_old: torch.Tensor
    z_new: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return mu + Delta (Eq. 13), `effective_samples`, and the `sigma` of each prototype."""
        check_prototypes(prototypes, self.z_old.shape[1])
        sigma = relative_bandwidth(prototypes, self.z_old, self.config.fraction, self.config.neighbors)
        sums = kernel_sums(prototypes, self.z_old, self.z_new, sigma)
        values = {"effective_samples": sums.effective_samples, "sigma": sigma.to(prototypes.dtype)}
        return prototypes + sums.drift, values


def relative_bandwidth(
    prototypes: torch.Tensor, z_old: torch.Tensor, fraction: float, neighbors: int | None, pool: Pool = HERE
) -> torch.Tensor:
    """Return sigma_c, (K,), in float64: see `RelativeSDC`. Coinciding points get the smallest positive bandwidth."""
    count = pool.images(z_old)
    empty = torch.zeros(len(prototypes), 0, dtype=torch.float64)
    distances = squared_distances(prototypes, z_old).sqrt() if len(z_old) else empty
    if not len(prototypes) or not count:
        scale = torch.ones(len(prototypes), dtype=torch.float64)
    elif neighbors is None:
        # The lower median of all distances.
        scale = pool.smallest(distances.reshape(1, -1), (len(prototypes) * count + 1) // 2).expand(len(prototypes))
    else:
        scale = pool.smallest(distances, min(neighbors, count))
    return (fraction * scale).clamp(min=1e-12)
