"""Local linear drift: an affine map of its own around every prototype, shrunk toward the identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import number, optional, whole
from ...common.geometry import squared_distances, subspace
from ..base import Drift, FittedDrift, check_pairs, check_prototypes
from .linear import push
from .relative import relative_bandwidth


@dataclass(frozen=True)
class LocalLinear(Drift):
    """Kernel-weighted affine ridge around each prototype p, shrunk toward the identity.

        min over b, B of  sum_i w_i |delta_i - b - (m_i - p) B|^2 + lambda |B|^2,   p -> p + b
        w_i = exp(-|m_i - p|^2 / (2 sigma_c^2)),   lambda = ridge * trace(weighted covariance of m) / r

    With lambda -> infinity it is SDC; where all weights are equal it is `RidgeToIdentity` with an intercept. Unlike
    SDC it sees that images on one side of the prototype move otherwise than those on the other, and extrapolates.

    Cost: O(N r) a step of conjugate gradients and O(N D) in all, a prototype, in the r directions that the images span.

    The constants are the best of nine pairs on the part of `results/drift.md` that was kept for choosing.

    Args:
        fraction, neighbors: the bandwidth, as for `RelativeSDC`.
        ridge: relative to the mean weighted variance.
    """

    fraction: float = 0.3
    neighbors: int | None = None
    ridge: float = 0.3
    rules: ClassVar = {"fraction": number(above=0), "neighbors": optional(whole(1)), "ridge": number(above=0)}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedLocalLinear:
        """Remember how the current images moved, and the directions they span."""
        check_pairs(z_old, z_new)
        mean, basis = subspace(z_old)
        return FittedLocalLinear(self, z_old, z_new.double() - z_old.double(), mean, basis)


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
        around = self._around(prototypes)
        solved = conjugate_gradients(around.times, around.arms)
        # b = sum v_i delta_i, v_i = w_i (1 + (m_i - mbar)(C + lambda I)^-1 (p - mbar)'): B is never formed.
        weights = around.weights * (1 + around.along(solved))
        moved = prototypes.double() + weights @ self.delta
        effective = 1 / weights.square().sum(dim=1)
        return moved.to(prototypes.dtype), {"effective_samples": effective.to(prototypes.dtype)}

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means and A' Sigma A with each prototype's own A = I + B."""
        around, result = self._around(prototypes), []
        identity = torch.eye(len(self.mean), dtype=torch.float64)
        for row, sigma in enumerate(covariances):
            points = around.points - around.means[row]
            weighted = around.weights[row, :, None] * points
            spread, cross = weighted.T @ points, weighted.T @ self.delta
            slope = torch.linalg.solve(
                spread + around.penalty[row] * torch.eye(len(spread), dtype=torch.float64), cross
            )
            result.append(push(sigma[None], identity + self.basis @ slope))
        return self.explain(prototypes)[0], torch.cat(result) if result else covariances

    def _around(self, prototypes: torch.Tensor) -> _Around:
        check_prototypes(prototypes, len(self.mean))
        config = self.config
        sigma = relative_bandwidth(prototypes, self.z_old, config.fraction, config.neighbors)
        log_w = -squared_distances(prototypes.double(), self.z_old.double()) / (2 * sigma.square()[:, None])
        weights = (log_w - log_w.amax(dim=1, keepdim=True)).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
        points = (self.z_old.double() - self.mean) @ self.basis
        means = weights @ points
        squares = weights @ points.square().sum(dim=1)
        variance = squares - means.square().sum(dim=1)
        # Where all the weight is on one place there is no slope to see, and the difference above is rounding: a penalty
        # far above that makes the slope 0, and leaves it alone wherever there is one.
        least = _LEAST * squares
        penalty = torch.maximum(config.ridge * variance, least) / max(1, points.shape[1])
        penalty = torch.where(penalty > 0, penalty, 1.0)
        arms = (prototypes.double() - self.mean) @ self.basis - means
        return _Around(weights, points, means, arms, penalty)


@dataclass(frozen=True)
class _Around:
    """The weighted problems around K prototypes, in coordinates of the subspace.

    Attributes:
        weights: (K, N), of sum 1.
        points: (N, r) the images.
        means: (K, r) their weighted means mbar.
        arms: (K, r) p - mbar.
        penalty: (K,) lambda.
    """

    weights: torch.Tensor
    points: torch.Tensor
    means: torch.Tensor
    arms: torch.Tensor
    penalty: torch.Tensor

    def along(self, x: torch.Tensor) -> torch.Tensor:
        """Return (m_i - mbar_k) . x_k for one x per prototype, (K, r) -> (K, N)."""
        return x @ self.points.T - (x * self.means).sum(dim=1, keepdim=True)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """Return (C_k + lambda_k I) x_k, (K, r): no C_k is ever formed."""
        weighted = self.weights * self.along(x)
        # Its sum is 0 but for rounding. Taken off all the same, or C is not quite symmetric, nor quite positive.
        products = weighted @ self.points
        products -= weighted.sum(dim=1)[:, None] * self.means
        return products + self.penalty[:, None] * x


_LEAST = 1e-12  # of the mean square, which is known to 1e-16 of itself


def conjugate_gradients(
    times: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor, *, tolerance: float = 1e-11
) -> torch.Tensor:
    """Solve A_k x_k = b_k for K positive definite matrices at once, (K, r) -> (K, r), from products alone.

    Args:
        times: (K, r) -> (K, r), A_k x_k.
        b: (K, r).
        tolerance: of |b - A x| relative to |b|.
    """
    x, rest = torch.zeros_like(b), b.clone()
    direction, squares = rest.clone(), rest.square().sum(dim=1)
    enough = tolerance**2 * squares
    for _ in range(10 * b.shape[1]):
        if not bool((squares > enough).any()):
            break
        product = times(direction)
        # What is solved stays as it is: its direction is 0.
        step = squares / (direction * product).sum(dim=1).clamp(min=1e-300)
        step = torch.where(squares > enough, step, 0.0)[:, None]
        x += step * direction
        rest -= step * product
        before, squares = squares, rest.square().sum(dim=1)
        direction = rest + torch.where(before > 0, squares / before, 0.0)[:, None] * direction
    return x
