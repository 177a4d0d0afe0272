"""Local linear drift: an affine map of its own around every prototype, shrunk toward the identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..config import number, optional, whole
from ..pool import HERE, Pool
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
        return self.fit_in(HERE, z_old, z_new, labels)

    def fit_in(
        self, pool: Pool, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None
    ) -> FittedLocalLinear:
        """Do the same with pairs that may lie in pieces; all pieces call this, and what it returns, together."""
        mean, basis = subspace(z_old, pool)
        return FittedLocalLinear(self, z_old, z_new.double() - z_old.double(), mean, basis, pool)


@dataclass(frozen=True)
class _Around:
    """The weighted problem around one prototype, in coordinates of the subspace."""

    weights: torch.Tensor  # (n,), of sum 1 over all pieces
    points: torch.Tensor  # (n, r), about their weighted mean
    arm: torch.Tensor  # (r,), from the weighted mean to the prototype
    inverse: torch.Tensor  # (r, r)

    @property
    def lever(self) -> torch.Tensor:
        """What the slope adds to the weight of each image, (n,): B itself is never formed."""
        return self.weights * (self.points @ (self.inverse @ self.arm))


@dataclass(frozen=True)
class FittedLocalLinear(FittedDrift):
    """The vector field of one task, asked with an affine map of its own around each prototype."""

    config: LocalLinear
    z_old: torch.Tensor
    delta: torch.Tensor
    mean: torch.Tensor
    basis: torch.Tensor
    pool: Pool = HERE

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return p + b, and the `effective_samples` behind each."""
        if not len(prototypes):
            return prototypes, {"effective_samples": prototypes.new_empty(0)}
        weights = torch.stack([around.weights + around.lever for around in self._problems(prototypes)])
        moved = prototypes.double() + self.pool.total(weights @ self.delta)
        effective = 1 / self.pool.total(weights.square().sum(dim=1))
        return moved.to(prototypes.dtype), {"effective_samples": effective.to(prototypes.dtype)}

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means and A' Sigma A with each prototype's own A = I + B."""
        result = []
        for sigma, around in zip(covariances, self._problems(prototypes), strict=True):
            slope = around.inverse @ self.pool.total((around.weights[:, None] * around.points).T @ self.delta)
            identity = torch.eye(len(self.mean), dtype=torch.float64)
            result.append(push(sigma[None], identity + self.basis @ slope))
        return self.explain(prototypes)[0], torch.cat(result) if result else covariances

    def _problems(self, prototypes: torch.Tensor) -> Iterator[_Around]:
        check_prototypes(prototypes, len(self.mean))
        config = self.config
        sigma = relative_bandwidth(prototypes, self.z_old, config.fraction, config.neighbours, self.pool)
        log_w = torch.full((len(prototypes), len(self.z_old)), -torch.inf, dtype=torch.float64)
        if len(self.z_old):
            log_w = -squared_distances(prototypes, self.z_old) / (2 * sigma.square()[:, None])
        peak = -self.pool.least(-log_w.amax(dim=1) if len(self.z_old) else torch.full_like(sigma, torch.inf))
        weights = (log_w - peak[:, None]).exp()
        weights = weights / self.pool.total(weights.sum(dim=1))[:, None]
        points = (self.z_old.double() - self.mean) @ self.basis
        at = (prototypes.double() - self.mean) @ self.basis
        means = self.pool.total(weights @ points)
        for w, mean, p in zip(weights, means, at, strict=True):
            about = points - mean
            spread = self.pool.total((w[:, None] * about).T @ about)
            yield _Around(w, about, p - mean, Spectrum.of(spread).inverse(config.ridge))
