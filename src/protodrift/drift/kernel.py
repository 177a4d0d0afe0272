"""Prototypes and SDC from embeddings that lie in pieces: each piece is added where it lies, and the sums are merged.

A mean is a sum over a count, and the kernel estimate of Eq. 10 is a quotient of two sums: both can be merged exactly,
in any order and from any number of pieces, empty ones too. Kernel weights need care: far from all images of a piece
they underflow, and 0/0 is no drift. They are held relative to the largest one so far (a running log-sum-exp):

    peak = max_i log w_i,   total = sum_i w_i e^-peak,   moved = sum_i w_i e^-peak delta_i
    merged: peak = max(peak_a, peak_b),   total = e^(peak_a - peak) total_a + e^(peak_b - peak) total_b,   ...

Nothing here knows where the pieces are: on ranks (`distributed.py`), on disk, or in a stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .base import check_pairs, check_prototypes
from .sdc import KernelSums, kernel_sums

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
