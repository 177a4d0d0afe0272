"""Semantic drift compensation, the paper's contribution (Sec. 4, Eqs. 8-13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.config import number
from ..common.sums import Sums
from .base import Drift, FittedDrift, Known, check_pairs, check_prototypes, check_sigma
from .kernel import KernelSums, kernel_sums

_PLAIN = 2**20
"""Kernel weights, K x N, up to which they are formed all at once."""


def semantic_drift(prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, sigma: float) -> torch.Tensor:
    """Estimate how far each prototype drifted while the current task was learned, Eqs. 9-11.

        delta_i = z_i^t - z_i^{t-1}                                     (Eq. 9)
        Delta_c = sum_i w_i delta_i / sum_i w_i                         (Eq. 10)
        w_i     = exp(-||z_i^{t-1} - mu_c^{t-1}||^2 / (2 sigma^2))      (Eq. 11)

    Normalized Gaussian weights are a softmax of -d^2 / (2 sigma^2): finite wherever the squared distances are, where
    the quotient of sums is 0/0. Where K x N is large, `kernel_sums` does the same block by block.

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
    check_pairs(z_old, z_new)
    check_prototypes(prototypes, z_old.shape[1])
    check_sigma(sigma)
    if len(prototypes) * len(z_old) > _PLAIN:
        return kernel_sums(prototypes, z_old, z_new, sigma).drift
    delta = z_new - z_old  # Eq. 9
    distances = torch.cdist(prototypes, z_old, compute_mode="donot_use_mm_for_euclid_dist")
    log_w = -distances.square() / (2 * sigma**2)  # Eq. 11
    drift: torch.Tensor = log_w.softmax(dim=1) @ delta  # Eq. 10
    return drift


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

    draws: ClassVar[bool] = True
    sigma: float = 0.3
    rules: ClassVar = {"sigma": number(above=0)}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedSDC:
        """Remember how the current images moved."""
        check_pairs(z_old, z_new)
        return FittedSDC(self.sigma, z_old, z_new)

    def sums(
        self, prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None
    ) -> KernelSums:
        """Return the kernel sums over these images, in float64, about a center that all pieces know."""
        mu = prototypes.double()
        return kernel_sums(mu, z_old.double(), z_new.double(), self.sigma, center=mu.mean(dim=0))

    def fit_sums(self, prototypes: torch.Tensor, sums: Sums) -> FittedDrift:
        """Return mu + Delta (Eq. 13) of these prototypes."""
        assert isinstance(sums, KernelSums)
        moved = (prototypes.double() + sums.drift).to(prototypes.dtype)
        return Known(moved, {"effective_samples": sums.effective_samples.to(prototypes.dtype)})


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
