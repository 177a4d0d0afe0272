"""EFC's kernel: SDC with distances in a metric that knows which directions matter for the classes (ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import number
from ...common.geometry import squared_distances
from ..base import Drift, FittedDrift, check_pairs, check_prototypes


def feature_metric(z: torch.Tensor, prototypes: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return E = mean_i W'(diag(pi_i) - pi_i pi_i')W of the nearest-class-mean classifier, (N, D), (K, D) -> (D, D)."""
    pi = (-squared_distances(z.double(), prototypes.double()) / temperature).softmax(dim=1)
    weights = 2 * prototypes.double() / temperature
    spread = torch.diag(pi.mean(dim=0)) - pi.T @ pi / len(pi)
    metric: torch.Tensor = weights.T @ spread @ weights
    return metric


def efc_weights(prototypes: torch.Tensor, z_old: torch.Tensor, metric: torch.Tensor, sigma: float) -> torch.Tensor:
    """Return the normalized kernel weights of EFC, (K, N) in float64: SDC's, with distances in a metric.

        w_i = exp(-d_i^2 / (2 sigma^2)),   d^2 = (m - p) E (m - p)', scaled to [0, 1] over all pairs

    Args:
        prototypes, z_old: (K, D) p and (N, D) m, float64.
        metric: (D, D) E, positive semidefinite.
        sigma: of the scaled distance.
    """
    values, vectors = torch.linalg.eigh(metric)
    root = vectors * values.clamp(min=0).sqrt()  # (m - p) E (m - p)' is a plain distance after x -> x root
    distances = squared_distances(prototypes @ root, z_old @ root)
    low, high = distances.aminmax()
    scaled = (distances - low) / (high - low).clamp(min=1e-300)
    return (-scaled / (2 * sigma**2)).softmax(dim=1)


@dataclass(frozen=True)
class EFCKernel(Drift):
    """SDC with distances in a metric, see `efc_weights`: E = mean_i W'(diag(pi_i) - pi_i pi_i')W, (D, D).

    E is the empirical feature matrix: how strongly each direction of z changes the softmax pi of a classifier with
    weights W. EFC takes its own head. An embedding learner has none: then W is the nearest-class-mean classifier of the
    prototypes themselves, pi = softmax(-|z - p|^2 / temperature), W = 2 p / temperature, over the current images. A
    metric of your own goes to `fit(..., metric=E)`. Because of the scaling, the unit of E does not matter; but every
    prototype's weights depend on which others are asked about.

    Args:
        sigma: of the scaled distance.
        temperature: of the classifier that stands in for a head.
    """

    sigma: float = 0.2
    temperature: float = 0.1
    rules: ClassVar = {"sigma": number(above=0), "temperature": number(above=0)}

    def fit(
        self,
        z_old: torch.Tensor,
        z_new: torch.Tensor,
        targets: torch.Tensor | None = None,
        *,
        metric: torch.Tensor | None = None,
    ) -> FittedEFC:
        """Remember how the current images moved, and the metric, (D, D), if one is given."""
        check_pairs(z_old, z_new)
        return FittedEFC(self, z_old, z_new, metric)


@dataclass(frozen=True)
class FittedEFC(FittedDrift):
    """The vector field of one task, and a metric or None."""

    config: EFCKernel
    z_old: torch.Tensor
    z_new: torch.Tensor
    metric: torch.Tensor | None

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return p + Delta, and `effective_samples`."""
        check_prototypes(prototypes, self.z_old.shape[1])
        if not len(prototypes):
            return prototypes, {"effective_samples": prototypes[:, 0]}
        z, p = self.z_old.double(), prototypes.double()
        metric = feature_metric(z, p, self.config.temperature) if self.metric is None else self.metric.double()
        w = efc_weights(p, z, metric, self.config.sigma)
        moved = p + w @ (self.z_new.double() - z)
        effective = 1 / w.square().sum(dim=1)
        return moved.to(prototypes.dtype), {"effective_samples": effective.to(prototypes.dtype)}
