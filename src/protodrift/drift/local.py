"""Local linear drift: an affine map of its own around every prototype, shrunk toward the identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..config import number, optional, whole
from .algebra import Spectrum, squared_distances, subspace
from .base import Drift, FittedDrift, check_pairs, check_prototypes
from .linear import push
from .sdc import relative_bandwidth


@dataclass(frozen=True)
class LocalLinear(Drift):
    """Kernel-weighted affine ridge around each prototype p, shrunk toward the identity.

        min over b, B of  sum_i w_i |delta_i - b - (m_i - p) B|^2 + lambda |B|^2,   p -> p + b
        w_i = exp(-|m_i - p|^2 / (2 sigma_c^2)),   lambda = ridge * trace(weighted covariance of m) / r

    With lambda -> infinity it is SDC; where all weights are equal it is `RidgeToIdentity` with an intercept. Unlike
    SDC it sees that images on one side of the prototype move otherwise than those on the other, and extrapolates.

    Cost: O(N r^2 + r^3 + N D) a prototype, in the r directions that the images span.

    The constants are the best of nine pairs on the part of `results/drift.md` that was kept for choosing.

    Args:
        fraction, neighbours: the bandwidth, as for `RelativeSDC`.
        ridge: relative to the mean weighted variance.
    """

    fraction: float = 0.3
    neighbours: int | None = None
    ridge: float = 0.3
    rules: ClassVar = {"fraction": number(above=0), "neighbours": optional(whole(1)), "ridge": number(above=0)}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None) -> FittedLocalLinear:
        """Remember how the current images moved, and the directions they span."""
        check_pairs(z_old, z_new)
        mean, basis = subspace(z_old)
        return FittedLocalLinear(self, z_old, z_new.double() - z_old.double(), mean, basis)


@dataclass(frozen=True)
class _Around:
    """The weighted problem around one prototype, in coordinates of the subspace."""

    weights: torch.Tensor  # (N,), sum 1
    points: torch.Tensor  # (N, r), about their weighted mean
    drift: torch.Tensor  # (D,), weighted mean of delta
    arm: torch.Tensor  # (r,), from the weighted mean to the prototype
    inverse: torch.Tensor  # (r, r)


@dataclass(frozen=True)
class FittedLocalLinear(FittedDrift):
    """The vector field of one task, asked with an affine map of its own around each prototype."""

    config: LocalLinear
    z_old: torch.Tensor
    delta: torch.Tensor
    mean: torch.Tensor
    basis: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return p + b, and the `effective_samples` behind each."""
        moved, effective = prototypes.double().clone(), prototypes.new_empty(len(prototypes))
        for row, around in enumerate(self._problems(prototypes)):
            # b = mean drift + arm B, where B = inverse * cross: never formed, only the weights it gives the images.
            lever = around.weights * (around.points @ (around.inverse @ around.arm))
            moved[row] += around.drift + lever @ self.delta
            effective[row] = 1 / (around.weights + lever).square().sum()
        return moved.to(prototypes.dtype), {"effective_samples": effective}

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means and A' Sigma A with each prototype's own A = I + B."""
        result = []
        for sigma, around in zip(covariances, self._problems(prototypes), strict=True):
            slope = around.inverse @ ((around.weights[:, None] * around.points).T @ self.delta)
            identity = torch.eye(len(self.mean), dtype=torch.float64)
            result.append(push(sigma[None], identity + self.basis @ slope))
        return self.explain(prototypes)[0], torch.cat(result) if result else covariances

    def _problems(self, prototypes: torch.Tensor) -> list[_Around]:
        check_prototypes(prototypes, len(self.mean))
        sigma = relative_bandwidth(prototypes, self.z_old, self.config.fraction, self.config.neighbours)
        log_w = -squared_distances(prototypes, self.z_old) / (2 * sigma.square()[:, None])
        points = (self.z_old.double() - self.mean) @ self.basis
        at = (prototypes.double() - self.mean) @ self.basis
        return [_around(w, points, self.delta, p, self.config.ridge) for w, p in zip(log_w.softmax(1), at, strict=True)]


def _around(w: torch.Tensor, points: torch.Tensor, delta: torch.Tensor, at: torch.Tensor, ridge: float) -> _Around:
    mean = w @ points
    points = points - mean
    inverse = Spectrum.of((w[:, None] * points).T @ points).inverse(ridge)
    return _Around(w, points, w @ delta, at - mean, inverse)
