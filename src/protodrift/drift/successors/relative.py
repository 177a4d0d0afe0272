"""SDC whose bandwidth has no unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import number, optional, whole
from ...common.geometry import squared_distances
from ..base import Drift, FittedDrift, check_pairs, check_prototypes
from ..kernel import kernel_sums


def relative_bandwidth(
    prototypes: torch.Tensor, z_old: torch.Tensor, fraction: float, neighbors: int | None = None
) -> torch.Tensor:
    """Return a bandwidth per prototype, in float64: (K, D), (N, D) -> (K,).

        sigma_c = fraction * median of all distances from prototypes to images (one sigma for all), or
        sigma_c = fraction * distance from prototype c to its k-th nearest image (each its own)

    Coinciding points get the smallest positive bandwidth.

    Args:
        prototypes, z_old: mu and the images, in the old space.
        fraction: of the distance.
        neighbors: k; None takes the median distance (the lower one of an even number).

    >>> relative_bandwidth(torch.zeros(1, 1), torch.tensor([[1.0], [2.0], [4.0]]), 0.5)
    tensor([1.], dtype=torch.float64)
    """
    if not len(prototypes):
        return torch.ones(0, dtype=torch.float64)
    distances = squared_distances(prototypes.double(), z_old.double()).sqrt()
    if neighbors is None:
        scale = distances.flatten().median().expand(len(prototypes))
    else:
        scale = distances.kthvalue(min(neighbors, len(z_old)), dim=1).values
    return (fraction * scale).clamp(min=1e-12)


@dataclass(frozen=True)
class RelativeSDC(Drift):
    """SDC whose bandwidth is a fraction of how far the prototypes are from the images, see `relative_bandwidth`.

    The paper's 0.3 belongs to embeddings of unit length; where distances are another scale, it is the nearest image
    (too small) or the mean shift (too large).

    Args:
        fraction: of the distance.
        neighbors: k; None takes the median distance.
    """

    fraction: float = 0.3
    neighbors: int | None = None
    rules: ClassVar = {"fraction": number(above=0), "neighbors": optional(whole(1))}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedRelativeSDC:
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
