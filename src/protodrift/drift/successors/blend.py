"""A blend of estimators, weighed by how they fare on left-out classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ...common.config import whole
from ...common.covariance import Covariance
from ..base import Drift, FittedDrift, check_pairs
from .folds import leave_one_class_out
from .gate import an_estimator
from .linear import RidgeToIdentity
from .relative import RelativeSDC
from .residual import AffineKernel


def _estimators(value: Any) -> str | None:
    if not isinstance(value, tuple) or not value:
        return "must be one estimator or more in a tuple, such as (SDC(), Ridge())"
    return next((wrong for wrong in map(an_estimator, value) if wrong), None)


@dataclass(frozen=True)
class Blend(Drift):
    """p -> p + sum_j w_j (T_j(p) - p): several estimators, w_j >= 0, sum w_j <= 1.

    w minimizes sum_c |D_c - sum_j w_j D^_cj|^2 over the current classes, each left out in turn: stacking. What is
    missing to a sum of 1 is the weight of not moving.

    Args:
        estimators: T_j.
        folds: fits of each that are spent on left-out classes, at most.
    """

    estimators: tuple[Drift, ...] = (RelativeSDC(), RidgeToIdentity(1.0), AffineKernel(1.0, 0.2))
    folds: int = 10
    rules: ClassVar = {"estimators": _estimators, "folds": whole(2)}

    @property
    def keeps(self) -> Covariance | None:
        """What the first estimator keeps that keeps anything."""
        return next((estimator.keeps for estimator in self.estimators if estimator.keeps), None)

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedBlend:
        """Fit all estimators, and weigh them."""
        check_pairs(z_old, z_new)
        fitted = tuple(estimator.fit(z_old, z_new, targets) for estimator in self.estimators)
        if len(z_old) < 2:  # nothing to leave out
            return FittedBlend(fitted, torch.full((len(fitted),), 1 / len(fitted), dtype=torch.float64))
        tried = [leave_one_class_out(estimator, z_old, z_new, targets, self.folds) for estimator in self.estimators]
        predicted = torch.stack([(one.predicted - one.before).double().flatten() for one in tried])
        true = (tried[0].after - tried[0].before).double().flatten()
        return FittedBlend(fitted, capped_weights(predicted @ predicted.T, predicted @ true))


def capped_weights(gram: torch.Tensor, target: torch.Tensor, rounds: int = 2000) -> torch.Tensor:
    """Return argmin_w w'Gw - 2 w't with w >= 0, sum w <= 1, (J, J), (J,) -> (J,): projected gradient steps."""
    gram = torch.nn.functional.pad(gram, (0, 1, 0, 1))  # one more: not moving, so that the weights sum to 1
    target = torch.nn.functional.pad(target, (0, 1))
    step = 1 / float(torch.linalg.matrix_norm(gram, 2).clamp(min=1e-300))
    w = torch.full_like(target, 1 / len(target))
    for _ in range(rounds):
        w = _onto_simplex(w - step * (gram @ w - target))
    return w[:-1]


def _onto_simplex(w: torch.Tensor) -> torch.Tensor:
    """Return the nearest point with entries >= 0 that sum to 1."""
    ordered = w.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(w) + 1)
    return (w - excess[int((ordered > excess).sum()) - 1]).clamp(min=0)


@dataclass(frozen=True)
class FittedBlend(FittedDrift):
    """Fitted estimators and their weights, (J,)."""

    fitted: tuple[FittedDrift, ...]
    weights: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted positions, and their `spread`: how far apart the estimators put each prototype."""
        places = torch.stack([one.transport(prototypes) for one in self.fitted]).double()
        moved = prototypes.double() + torch.einsum("j,jkd->kd", self.weights, places - prototypes)
        spread = (places - places.mean(dim=0)).square().sum(dim=2).mean(dim=0).sqrt()
        return moved.to(prototypes.dtype), {"spread": spread.to(prototypes.dtype)}

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weighted means and weighted covariances; what is missing to 1 stays."""
        means, moved = prototypes.clone(), covariances.clone()
        for weight, one in zip(self.weights.tolist(), self.fitted, strict=True):
            place, pushed = one.transport(prototypes, covariances)
            means, moved = means + weight * (place - prototypes), moved + weight * (pushed - covariances)
        return means, moved
