"""A gate: move a prototype only as far as moving is predicted to help, and say how far off it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ...common.config import number, whole
from ...common.covariance import Covariance
from ...common.geometry import squared_distances
from ..base import Drift, FittedDrift, check_pairs
from .folds import HeldOut, leave_one_class_out, nearest
from .relative import relative_bandwidth
from .residual import AffineKernel


def an_estimator(value: Any) -> str | None:
    """Accept a drift estimator that can be fitted on pairs."""
    if isinstance(value, Drift) and not value.evaluation_only and not value.needs_networks:
        return None
    return "must be a drift estimator that is fitted on pairs, such as SDC()"


@dataclass(frozen=True)
class Gated(Drift):
    """An estimator that moves a prototype only as far as it is predicted to help.

    The estimator is fitted without one current class after the other and asked about it (`leave_one_class_out`):
    predicted drifts D^_c beside true ones D_c. The share of a predicted movement that is right,

        g = sum_c <D^_c, D_c> / sum_c |D^_c|^2, clipped to [0, 1],

    is how far prototypes go: p -> p + g(p) (T(p) - p). It is 0 where moving hurt. A prototype farther from the images
    than any left-out class was is moved less, g(p) = g (reach / distance)^2. What stays wrong on left-out classes,
    relative to the size of the movement, is the `uncertainty` of each prototype, in units of the embedding, unless the
    estimator has its own. Covariances follow: (1 - g) Sigma + g T(Sigma).

    Args:
        estimator: what moves.
        folds: fits that are spent on left-out classes, at most.
        least: below this share a prototype is not moved at all.
    """

    estimator: Drift = AffineKernel()
    folds: int = 10
    least: float = 0.0
    rules: ClassVar = {"estimator": an_estimator, "folds": whole(2), "least": number(0, 1)}

    @property
    def keeps(self) -> Covariance | None:
        """What the estimator keeps."""
        return self.estimator.keeps

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedGated:
        """Fit the estimator, and try it on left-out classes."""
        check_pairs(z_old, z_new)
        fitted = self.estimator.fit(z_old, z_new, targets)
        held_out = leave_one_class_out(self.estimator, z_old, z_new, targets, self.folds)
        # Of one image, or of equal ones, nothing was left out: then nothing is known.
        known = held_out.reach > 0
        return FittedGated(self, fitted, held_out if known else None, z_old)


@dataclass(frozen=True)
class FittedGated(FittedDrift):
    """A fitted estimator, and how it fared on classes it was not shown."""

    config: Gated
    fitted: FittedDrift
    held_out: HeldOut | None
    z_old: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the gated positions, and `gate`, `uncertainty`, `distance`, `effective_samples`."""
        moved, inner = self.fitted.explain(prototypes)
        distance = nearest(prototypes, self.z_old)
        gate = self._gate(distance)
        step = moved.double() - prototypes.double()
        values = {"uncertainty": self._uncertainty(gate[:, None] * step, distance), "distance": distance}
        if "effective_samples" not in inner:
            values["effective_samples"] = _effective(prototypes, self.z_old)
        values.update({name: value.double() for name, value in inner.items()}, gate=gate)
        result = prototypes.double() + gate[:, None] * step
        return result.to(prototypes.dtype), {name: value.to(prototypes.dtype) for name, value in values.items()}

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gated means and (1 - g) Sigma + g T(Sigma)."""
        moved, pushed = self.fitted.transport(prototypes, covariances)
        gate = self._gate(nearest(prototypes, self.z_old)).to(prototypes.dtype)
        means = prototypes + gate[:, None] * (moved - prototypes)
        return means, covariances + gate[:, None, None] * (pushed - covariances)

    def _gate(self, distance: torch.Tensor) -> torch.Tensor:
        if self.held_out is None:
            return torch.ones_like(distance)
        predicted, true = self.held_out.predicted_drift, self.held_out.true_drift
        right = float((predicted * true).sum() / predicted.square().sum().clamp(min=1e-300))
        share = min(max(right, 0.0), 1.0) if math.isfinite(right) else 0.0  # an estimator that broke down moves nothing
        gate = share * (self.held_out.reach / distance.clamp(min=1e-300)).clamp(max=1).square()
        return torch.where(gate < self.config.least, 0.0, gate)

    def _uncertainty(self, step: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """Return the predicted distance to the truth: what was left on left-out classes, relative to their movement."""
        length = step.square().sum(dim=1)
        if self.held_out is None:
            return length.sqrt()
        predicted, true = self.held_out.predicted_drift, self.held_out.true_drift
        share = self._gate(torch.zeros(1, dtype=torch.float64))
        left = (share * predicted - true).square().sum(dim=1).mean()
        size = (share * predicted).square().sum(dim=1).mean()
        grown = (distance / max(self.held_out.reach, 1e-300)).clamp(min=1).square()
        # Half relative to its own movement, half to the mean one: a prototype that hardly moves is not certain.
        relative = (length + size) / (2 * size).clamp(min=1e-300)
        return (left * torch.where(size > 0, relative, 1.0) * grown).sqrt()


def _effective(prototypes: torch.Tensor, z_old: torch.Tensor) -> torch.Tensor:
    """Return (sum w)^2 / sum w^2 of a kernel about each prototype, for estimators that do not say it themselves."""
    sigma = relative_bandwidth(prototypes, z_old, 0.3, None)
    w = (-squared_distances(prototypes.double(), z_old.double()) / (2 * sigma.square()[:, None])).softmax(dim=1)
    return 1 / w.square().sum(dim=1)
