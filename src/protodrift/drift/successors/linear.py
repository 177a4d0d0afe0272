"""Drift as one linear map of the whole space: mean shift, ridge (LDC), ridge toward the identity (SLDC), Procrustes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import flag, number, one_of
from ...common.geometry import Spectrum
from ..base import Drift, FittedDrift, check_pairs, check_prototypes, residual_covariance


def ridge_map(
    x: torch.Tensor,
    y: torch.Tensor,
    ridge: float = 0.0,
    *,
    to_identity: bool = False,
    inverse: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the linear map that takes x to y, in closed form and float64: (N, D), (N, E) -> (D, E).

        A = argmin |x A - y|^2 + lambda |A|^2 = (x'x + lambda I)^-1 x'y,   lambda = ridge * trace(x'x) / D

    With ridge = 0 it is the solution of least norm.

    Args:
        x, y: N pairs.
        ridge: relative to the mean eigenvalue of x'x, so that no unit enters.
        to_identity: shrink A toward the identity instead of zero: I + (x'x + lambda I)^-1 x'(y - x); D = E.
        inverse: (x'x + lambda I)^-1, (D, D), if it is known already.

    >>> ridge_map(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([[3.0], [6.0]])).round(decimals=6)
    tensor([[3.],
            [0.]], dtype=torch.float64)
    """
    x, y = x.double(), y.double()
    inverse = Spectrum.of(x.T @ x).inverse(ridge) if inverse is None else inverse
    if to_identity:
        return torch.eye(x.shape[1], dtype=x.dtype) + inverse @ (x.T @ (y - x))
    return inverse @ (x.T @ y)


def procrustes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the rotation (or reflection) Q that minimizes |x Q - y|, in float64: (N, D), (N, E) -> (D, E).

    Q = U V' from the SVD x'y = U S V'. Directions that the images do not span are turned as little as possible.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> procrustes(x, torch.tensor([[0.0, 1.0], [-2.0, 0.0]])).round(decimals=6)
    tensor([[ 0.,  1.],
            [-1.,  0.]], dtype=torch.float64)
    """
    return nearest_rotation(x.double().T @ y.double())[0]


@dataclass(frozen=True)
class FittedAffine(FittedDrift):
    """x -> (x - center) A + target, in float64.

    Attributes:
        weight: (D_old, D_new) A.
        center: (D_old,).
        target: (D_new,) where the center goes.
        inverse: (D_old, D_old) of which h = (x - center)' inverse (x - center) + floor is the leverage of x.
        floor: 1/N if the target is a mean of N images, else 0.
        rest: (D_new, D_new) R, the covariance of what it leaves of single images; None: what it leaves is not
            independent of where an image is, as it is for least squares, so it cannot be added.
    """

    weight: torch.Tensor
    center: torch.Tensor
    target: torch.Tensor
    inverse: torch.Tensor
    floor: float
    rest: torch.Tensor | None = None

    @staticmethod
    def of(
        x: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        at: tuple[torch.Tensor, torch.Tensor],
        inverse: torch.Tensor,
        floor: float,
    ) -> FittedAffine:
        """Return the map by least squares with what it leaves of y, (N, D) as x; `at`: the center and the target."""
        free = float((x @ inverse * x).sum()) + floor * len(x)  # the trace of the hat matrix
        return FittedAffine(weight, *at, inverse, floor, residual_covariance(y - x @ weight, free))

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the image of each prototype, and the `effective_samples` behind it: 1 / leverage."""
        check_prototypes(prototypes, len(self.weight))
        x = prototypes.double() - self.center
        leverage = torch.einsum("kd,de,ke->k", x, self.inverse, x) + self.floor
        moved = (x @ self.weight + self.target).to(prototypes.dtype)
        return moved, {"effective_samples": leverage.clamp(min=1e-12).reciprocal().to(prototypes.dtype)}

    def linear(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A and target - center A."""
        return self.weight, self.target - self.center @ self.weight

    def maps(self, prototypes: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield A, for every prototype the same."""
        return (self.weight for _ in prototypes)

    def noise(self) -> torch.Tensor | None:
        """Return R, of maps by least squares."""
        return self.rest


@dataclass(frozen=True)
class MeanShift(Drift):
    """Every prototype moves by the mean drift of the current images: SDC with an infinite sigma.

    >>> z = torch.eye(3)
    >>> MeanShift().fit(z, z + torch.tensor([1.0, 0.0, 0.0])).transport(torch.zeros(1, 3))
    tensor([[1., 0., 0.]])
    """

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedAffine:
        """Average the drift."""
        check_pairs(z_old, z_new)
        center, target = z_old.double().mean(dim=0), z_new.double().mean(dim=0)
        identity = torch.eye(len(center), dtype=torch.float64)
        return FittedAffine(identity, center, target, 0 * identity, 1 / len(z_old))


@dataclass(frozen=True)
class Ridge(Drift):
    """One linear map of the whole space, p -> p A, by `ridge_map`: A = argmin |M A - Z|^2 + lambda |A|^2.

    Learnable drift compensation (LDC, ECCV 2024) learns the same map without the ridge by gradient steps. Sizes of old
    and new embeddings may differ.

    Args:
        ridge: relative to the mean eigenvalue of M'M.
        intercept: M and Z are centered first, so that a translation is free.
    """

    ridge: float = 1e-2
    intercept: bool = False
    rules: ClassVar = {"ridge": number(0), "intercept": flag}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedAffine:
        """Solve for A."""
        check_pairs(z_old, z_new, same_size=False)
        x, y, center, target = _centered(z_old, z_new, self.intercept)
        inverse = Spectrum.of(x.T @ x).inverse(self.ridge)
        weight = ridge_map(x, y, inverse=inverse)
        return FittedAffine.of(x, y, weight, (center, target), inverse, self.intercept / len(x))


@dataclass(frozen=True)
class RidgeToIdentity(Drift):
    """A linear map that is the identity where the images do not say otherwise.

    shrink="prior": `ridge_map` to the identity: each direction is as far from it as its images can tell.
    shrink="blend": A <- (1 - w) A + w I of the plain ridge solution, w = exp(-N / (alpha D)) (SLDC, AAAI 2026).

    Args:
        ridge: relative to the mean eigenvalue of M'M.
        intercept: M and Z are centered first, so that a translation is free.
        shrink: "prior" or "blend".
        alpha: of the blend.
    """

    ridge: float = 1e-2
    intercept: bool = True
    shrink: str = "prior"
    alpha: float = 1.0
    rules: ClassVar = {
        "ridge": number(0),
        "intercept": flag,
        "shrink": one_of("prior", "blend"),
        "alpha": number(above=0),
    }

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedAffine:
        """Solve for A."""
        check_pairs(z_old, z_new)
        x, y, center, target = _centered(z_old, z_new, self.intercept)
        inverse = Spectrum.of(x.T @ x).inverse(self.ridge)
        weight = ridge_map(x, y, to_identity=self.shrink == "prior", inverse=inverse)
        if self.shrink == "blend":
            identity = torch.eye(x.shape[1], dtype=x.dtype)
            weight = torch.lerp(weight, identity, math.exp(-len(x) / (self.alpha * x.shape[1])))
        return FittedAffine.of(x, y, weight, (center, target), inverse, self.intercept / len(x))


@dataclass(frozen=True)
class Procrustes(Drift):
    """The rotation (or reflection) that brings M nearest to Z, p -> p Q, by `procrustes`.

    With D_old < D_new, Q has orthonormal rows (M is padded); with D_old > D_new orthonormal columns.

    Args:
        intercept: M and Z are centered first, so that a translation is free.
        scale: also one factor for all directions, s = sum(S) / |M|^2.
    """

    intercept: bool = False
    scale: bool = False
    rules: ClassVar = {"intercept": flag, "scale": flag}

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedAffine:
        """Solve for Q."""
        check_pairs(z_old, z_new, same_size=False)
        x, y, center, target = _centered(z_old, z_new, self.intercept)
        turn, singular = nearest_rotation(x.T @ y)
        if self.scale:
            turn = turn * float(singular.sum() / x.square().sum().clamp(min=1e-300))
        inverse = Spectrum.of(x.T @ x).inverse(1e-6)
        return FittedAffine(turn, center, target, inverse, self.intercept / len(x))


def nearest_rotation(cross: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Q with orthonormal rows or columns that maximizes trace(Q' cross), and the singular values of cross.

    Where cross says nothing (its null spaces), Q is the one nearest to the (rectangular) identity.
    """
    u, singular, vh = torch.linalg.svd(cross, full_matrices=True)
    rank = int((singular > 1e-5 * singular[:1]).sum())
    turn = u[:, :rank] @ vh[:rank]
    u0, v0 = u[:, rank:], vh[rank:]
    if u0.shape[1] and v0.shape[0]:
        identity = torch.eye(*cross.shape, dtype=cross.dtype)
        a, _, bh = torch.linalg.svd(u0.T @ identity @ v0.T, full_matrices=False)
        turn = turn + u0 @ a @ bh @ v0
    return turn, singular


def _centered(
    z_old: torch.Tensor, z_new: torch.Tensor, intercept: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return both in float64 about the points that the map takes to each other: their means, or the origin."""
    x, y = z_old.double(), z_new.double()
    center, target = x.mean(dim=0) * intercept, y.mean(dim=0) * intercept
    return x - center, y - target, center, target
