"""Local linear drift: an affine map of its own around every prototype, shrunk toward the identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import number, optional, whole
from ...common.geometry import squared_distances, subspace
from ..base import Drift, FittedDrift, check_pairs, check_prototypes, residual_covariance
from .relative import relative_bandwidth


def local_linear_drift(
    prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, sigma: torch.Tensor, ridge: float
) -> torch.Tensor:
    """Return the drift of each prototype p by an affine map of its own around it, (K, D) in float64.

        min over b, B of  sum_i w_i |delta_i - b - (m_i - p) B|^2 + lambda |B|^2,   drift = b
        w_i = exp(-|m_i - p|^2 / (2 sigma_c^2)),   lambda = ridge * trace(weighted covariance of m) / r

    Args:
        prototypes: (K, D) p.
        z_old, z_new: (N, D) m and m + delta.
        sigma: (K,) a bandwidth per prototype.
        ridge: relative to the mean weighted variance, in the r directions that the images span.

    >>> z = torch.tensor([[-1.0], [0.0], [1.0]])  # what is at x moves by x / 2: so does a prototype outside
    >>> local_linear_drift(torch.tensor([[3.0]]), z, 1.5 * z, torch.tensor([9.0]), 1e-9).round(decimals=4)
    tensor([[1.5000]], dtype=torch.float64)
    """
    around = Around.of(prototypes, z_old, sigma, ridge, *subspace(z_old))
    return around.drift(z_new.double() - z_old.double())[0]


@dataclass(frozen=True)
class LocalLinear(Drift):
    """Kernel-weighted affine ridge around each prototype, shrunk toward the identity: p -> p + `local_linear_drift`.

    With lambda -> infinity it is SDC; where all weights are equal it is `RidgeToIdentity` with an intercept. Unlike
    SDC it sees that images on one side of the prototype move otherwise than those on the other, and extrapolates.

    Cost per prototype: O(N r) a step of conjugate gradients and O(N D) in all, r the directions that the images span.

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
        return FittedLocalLinear(self, z_old, z_new.double() - z_old.double(), *subspace(z_old))


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
        drift, effective = self._around(prototypes).drift(self.delta)
        moved = prototypes.double() + drift
        return moved.to(prototypes.dtype), {"effective_samples": effective.to(prototypes.dtype)}

    def maps(self, prototypes: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield each prototype's own A = I + B."""
        around, identity = self._around(prototypes), torch.eye(len(self.mean), dtype=torch.float64)
        return (identity + self.basis @ around.slope(row, self.delta) for row in range(len(prototypes)))

    def noise(self) -> torch.Tensor:
        """Return R: how far single images move from where all others say, over some of them, spread evenly."""
        some = torch.linspace(0, len(self.z_old) - 1, min(_ASKED, len(self.z_old)), dtype=torch.float64).round().long()
        if len(self.z_old) < 2:
            return torch.zeros(len(self.mean), len(self.mean), dtype=torch.float64)
        predicted, _ = self._around(self.z_old[some], without=some).drift(self.delta)
        return residual_covariance(self.delta[some] - predicted, 0)

    def _around(self, prototypes: torch.Tensor, without: torch.Tensor | None = None) -> Around:
        check_prototypes(prototypes, len(self.mean))
        sigma = relative_bandwidth(prototypes, self.z_old, self.config.fraction, self.config.neighbors)
        return Around.of(prototypes, self.z_old, sigma, self.config.ridge, self.mean, self.basis, without)


@dataclass(frozen=True)
class Around:
    """The weighted problems around K prototypes, in coordinates of the r directions that N images span.

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

    @staticmethod
    def of(
        prototypes: torch.Tensor,
        z_old: torch.Tensor,
        sigma: torch.Tensor,
        ridge: float,
        mean: torch.Tensor,
        basis: torch.Tensor,
        without: torch.Tensor | None = None,
    ) -> Around:
        """Weigh the images for each prototype.

        Args:
            mean, basis: (D,) and (D, r), those of `subspace`.
            without: (K,) for each prototype an image that does not count.
        """
        log_w = -squared_distances(prototypes.double(), z_old.double()) / (2 * sigma.square()[:, None])
        if without is not None:
            log_w[torch.arange(len(without)), without] = -torch.inf
        weights = (log_w - log_w.amax(dim=1, keepdim=True)).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
        points = (z_old.double() - mean) @ basis
        means = weights @ points
        squares = weights @ points.square().sum(dim=1)
        variance = squares - means.square().sum(dim=1)
        # Where all the weight is on one place there is no slope to see, and the difference above is rounding: a penalty
        # far above that makes the slope 0, and leaves it alone wherever there is one.
        penalty = torch.maximum(ridge * variance, _LEAST * squares) / max(1, points.shape[1])
        penalty = torch.where(penalty > 0, penalty, 1.0)
        return Around(weights, points, means, (prototypes.double() - mean) @ basis - means, penalty)

    def drift(self, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return b and the effective number of images behind it, (N, D) -> (K, D) and (K,).

        b = sum v_i delta_i, v_i = w_i (1 + (m_i - mbar)(C + lambda I)^-1 (p - mbar)'): B is never formed.
        """
        weights = self.weights * (1 + self._along(conjugate_gradients(self._times, self.arms)))
        return weights @ delta, 1 / weights.square().sum(dim=1)

    def slope(self, row: int, delta: torch.Tensor) -> torch.Tensor:
        """Return B of one prototype, (N, D) -> (r, D)."""
        points = self.points - self.means[row]
        weighted = self.weights[row, :, None] * points
        spread = weighted.T @ points + self.penalty[row] * torch.eye(points.shape[1], dtype=torch.float64)
        slope: torch.Tensor = torch.linalg.solve(spread, weighted.T @ delta)
        return slope

    def _along(self, x: torch.Tensor) -> torch.Tensor:
        """Return (m_i - mbar_k) . x_k for one x per prototype, (K, r) -> (K, N)."""
        return x @ self.points.T - (x * self.means).sum(dim=1, keepdim=True)

    def _times(self, x: torch.Tensor) -> torch.Tensor:
        """Return (C_k + lambda_k I) x_k, (K, r): no C_k is ever formed."""
        weighted = self.weights * self._along(x)
        # Its sum is 0 but for rounding. Taken off all the same, or C is not quite symmetric, nor quite positive.
        products = weighted @ self.points
        products -= weighted.sum(dim=1)[:, None] * self.means
        return products + self.penalty[:, None] * x


_ASKED = 500  # images whose own movement is compared with that which all others predict
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
