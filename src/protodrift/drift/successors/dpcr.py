"""DPCR's dual projection: one linear map for the task, and a projection for every class (ICML 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import number, one_of, optional
from ...common.covariance import Covariance
from ...common.geometry import Spectrum
from ..base import Drift, FittedDrift, pushed
from .linear import FittedAffine, Ridge


def own_directions(phi: torch.Tensor, threshold: float, basis: torch.Tensor) -> torch.Tensor:
    """Return a class's own directions U, (D, u): eigenvectors of Phi with eigenvalues above a share of the largest.

    Args:
        phi: (D, D) the class's mean outer product.
        threshold: the share.
        basis: (D, r) directions that all classes span, within which Phi is decomposed: r^3 instead of D^3.
    """
    values, vectors = torch.linalg.eigh(basis.T @ phi @ basis)
    own: torch.Tensor = basis @ vectors[:, values > threshold * values[-1:]]
    return own


def project(
    p: torch.Tensor, phi: torch.Tensor, weight: torch.Tensor, own: torch.Tensor, order: str = "after"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p P and P' Phi P with P = A U U' (order "after") or U U' A ("before"); everything has u columns.

    Args:
        p, phi: (D,) and (D, D) of a class.
        weight: (D, D) A.
        own: (D, u) U.
    """
    if order == "after":
        reached = weight @ own
        return (p @ reached) @ own.T, own @ (reached.T @ phi @ reached) @ own.T
    reached = own.T @ weight
    return (p @ own) @ reached, reached.T @ (own.T @ phi @ own) @ reached


@dataclass(frozen=True)
class DualProjection(Drift):
    """P_c = A U_c U_c', p -> p P_c, Phi_c -> P_c' Phi_c P_c: a ridge map, then the class's own subspace.

    Phi_c = Sigma_c + p p' is the class's mean outer product, U_c its eigenvectors with eigenvalues above `threshold` of
    the largest. It needs a covariance of every class; a prototype without one is moved by A alone.

    Args:
        ridge: of A, as for `Ridge`.
        threshold: relative; the smaller, the more of each class's directions stay. The paper keeps as many as a class
            has images, all that these span: 1e-10. None: every direction, as the released code has it (it keeps
            singular values above 0, and in float32 all are): then P_c = A.
        order: "after": the class's projection follows A, as written above; "before": P_c = U_c U_c' A, which leaves
            what the class really spans untouched.
    """

    ridge: float = 1e-2
    threshold: float | None = 1e-3
    order: str = "after"
    rules: ClassVar = {"ridge": number(0), "threshold": optional(number(0, 1)), "order": one_of("after", "before")}

    @property
    def keeps(self) -> Covariance | None:
        """A full covariance of every class."""
        return Covariance()

    def fit(
        self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None
    ) -> FittedDualProjection:
        """Solve for A."""
        return FittedDualProjection(self, Ridge(self.ridge).fit(z_old, z_new))


@dataclass(frozen=True)
class FittedDualProjection(FittedDrift):
    """The task's map; every class brings its own projection."""

    config: DualProjection
    shared: FittedAffine

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return p A: what can be said without covariances."""
        return self.shared.explain(prototypes)

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return p P_c, and P_c' Phi_c P_c about it."""
        p, weight, threshold = prototypes.double(), self.shared.weight, self.config.threshold
        if threshold is None:
            moved = torch.stack([pushed(sigma, weight, None) for sigma in covariances]) if len(p) else covariances
            return (p @ weight).to(prototypes.dtype), moved
        basis = Spectrum.of(covariances.sum(dim=0, dtype=torch.float64) + p.T @ p).vectors
        means, moved = p.clone(), covariances.clone()
        for row, sigma in enumerate(covariances):
            phi = sigma.double() + torch.outer(p[row], p[row])
            own = own_directions(phi, threshold, basis)
            means[row], projected = project(p[row], phi, weight, own, self.config.order)
            moved[row] = (projected - torch.outer(means[row], means[row])).to(moved.dtype)
        return means.to(prototypes.dtype), moved
