"""Affine drift, then a kernel on what the affine map leaves: the two simplest estimators, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import number, optional, whole
from ..base import Drift, FittedDrift, check_pairs
from ..kernel import kernel_sums
from .linear import FittedAffine, RidgeToIdentity
from .relative import relative_bandwidth


@dataclass(frozen=True)
class AffineKernel(Drift):
    """Affine ridge toward the identity first, then SDC on its residuals.

        T = RidgeToIdentity(ridge),   w_i = exp(-|m_i - p|^2 / (2 sigma^2))
        p -> T(p) + sum_i w_i (z_i - T(m_i)) / sum_i w_i

    The affine part carries over to prototypes far from the images; the kernel mends what is local near them.

    Args:
        ridge: of the affine part.
        fraction, neighbors: the bandwidth of the kernel, as for `RelativeSDC`.
        sigma: an absolute bandwidth instead.
    """

    ridge: float = 1e-2
    fraction: float = 0.3
    neighbors: int | None = None
    sigma: float | None = None
    rules: ClassVar = {
        "ridge": number(0),
        "fraction": number(above=0),
        "neighbors": optional(whole(1)),
        "sigma": optional(number(above=0)),
    }

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedAffineKernel:
        """Solve for the affine part, and keep what it leaves."""
        check_pairs(z_old, z_new)
        affine = RidgeToIdentity(self.ridge).fit(z_old, z_new)
        return FittedAffineKernel(self, affine, z_old, z_old + (z_new - affine.transport(z_old)))


@dataclass(frozen=True)
class FittedAffineKernel(FittedDrift):
    """An affine map and the residual field z_old -> residual."""

    config: AffineKernel
    affine: FittedAffine
    z_old: torch.Tensor
    residual: torch.Tensor  # z_old + residual: where the residuals alone would take the images

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the affine image plus the kernel's mean residual, and `effective_samples` of the kernel."""
        config = self.config
        sigma: float | torch.Tensor | None = config.sigma
        if sigma is None:
            sigma = relative_bandwidth(prototypes, self.z_old, config.fraction, config.neighbors)
        sums = kernel_sums(prototypes, self.z_old, self.residual, sigma)
        return self.affine.transport(prototypes) + sums.drift, {"effective_samples": sums.effective_samples}

    def maps(self, prototypes: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield A of the affine part: the kernel only translates."""
        return self.affine.maps(prototypes)

    def noise(self) -> torch.Tensor | None:
        """Return R of the affine part."""
        return self.affine.noise()
