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


Tensors = dict[str, torch.Tensor]


@dataclass
class MeanSums:
    """Sums and counts of each class, from which its mean follows (Eq. 3): mu_c = sums_c / counts_c.

    Attributes:
        sums: (K, D) float64, sum of the embeddings of each class.
        counts: (K,) int64, how many they are.
    """

    sums: torch.Tensor
    counts: torch.Tensor

    @staticmethod
    def empty(count: int, size: int) -> MeanSums:
        """Return the sums over no images, for K = count classes and embeddings of D = size numbers."""
        return MeanSums(torch.zeros(count, size, dtype=torch.float64), torch.zeros(count, dtype=torch.int64))

    def add(self, z: torch.Tensor, rows: torch.Tensor) -> MeanSums:
        """Add a piece, in place: z (n, D), rows (n,) in 0..K-1; n may be 0. Returns itself."""
        if z.ndim != 2 or z.shape[1] != self.sums.shape[1] or len(z) != len(rows):
            size = self.sums.shape[1]
            raise ValueError(f"z must be (n, {size}) with n rows, got {tuple(z.shape)} and {tuple(rows.shape)}")
        self.sums.index_add_(0, rows, z.double())
        self.counts += torch.bincount(rows, minlength=len(self.counts))
        return self

    def merge(self, other: MeanSums) -> MeanSums:
        """Return the sums over both sets of images."""
        return MeanSums(self.sums + other.sums, self.counts + other.counts)

    def finish(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the means, (K, D); a class without an image gets NaN, as in `prototypes.class_means`."""
        return (self.sums / self.counts[:, None]).to(dtype)


class DriftSums:
    """SDC from pieces: add pairs of embeddings, merge with others, finish.

        whole = DriftSums(prototypes, sigma)
        for z_old, z_new in pieces:
            whole.add(z_old, z_new)
        moved, diagnostics = whole.finish()

    Pieces that are added elsewhere need the same prototypes and sigma. Log-weights are relative to a center that
    cancels in every quotient but must be shared: the mean of the prototypes, which all pieces know beforehand.

    Args:
        prototypes: (K, D) mu^{t-1}.
        sigma: bandwidth: one, or (K,) one a prototype.
        dtype: of weights and sums. float64 makes the result independent of the cut to 1e-12; float32 is faster.
        sums: what was added already; None: nothing.
    """

    def __init__(
        self,
        prototypes: torch.Tensor,
        sigma: float | torch.Tensor,
        *,
        dtype: torch.dtype = torch.float64,
        sums: KernelSums | None = None,
    ) -> None:
        check_prototypes(prototypes, prototypes.shape[-1])
        self.prototypes = prototypes
        self.sigma = sigma
        self.dtype = dtype
        self._mu = prototypes.to(dtype)
        self._center = self._mu.mean(dim=0) if len(prototypes) else self._mu.sum(dim=0)
        count, size = prototypes.shape
        self.sums = KernelSums.empty(count, size, dtype) if sums is None else sums

    def add(self, z_old: torch.Tensor, z_new: torch.Tensor) -> DriftSums:
        """Add the pairs of a piece, (n, D) each; n may be 0. Returns itself."""
        if z_old.shape == z_new.shape and z_old.ndim == 2 and not len(z_old):
            return self
        check_pairs(z_old, z_new)
        sigma = self.sigma.to(self.dtype) if isinstance(self.sigma, torch.Tensor) else self.sigma
        part = kernel_sums(self._mu, z_old.to(self.dtype), z_new.to(self.dtype), sigma, center=self._center)
        self.sums = self.sums.merge(part)
        return self

    def merge(self, other: DriftSums) -> DriftSums:
        """Return the sums over both sets of pairs."""
        return DriftSums(self.prototypes, self.sigma, dtype=self.dtype, sums=self.sums.merge(other.sums))

    def finish(self) -> tuple[torch.Tensor, Tensors]:
        """Return mu + Delta (Eq. 13), (K, D), and the `effective_samples` of each; without any pair, mu stays."""
        seen = self.sums.total > 0
        drift = torch.where(seen[:, None], self.sums.drift, torch.zeros_like(self.sums.moved))
        effective = torch.where(seen, self.sums.effective_samples, torch.zeros_like(self.sums.total))
        kind = self.prototypes.dtype
        return (self._mu + drift).to(kind), {"effective_samples": effective.to(kind)}

    def pack(self) -> Tensors:
        """Return the sums as named tensors, to be sent or stored: K (D + 3) numbers."""
        return {name: getattr(self.sums, name) for name in ("peak", "total", "squares", "moved")}

    def unpack(self, packed: Tensors) -> DriftSums:
        """Return the sums that `pack` made of pieces with the same prototypes and sigma."""
        return DriftSums(self.prototypes, self.sigma, dtype=self.dtype, sums=KernelSums(**packed))
