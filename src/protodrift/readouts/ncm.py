"""Nearest class mean (Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from .base import Readout, View

_CHUNK_ELEMENTS = 2**24


def squared_distances(z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Return squared Euclidean distances, (N, D) and (K, D) -> (N, K).

    A prototype that is not finite (a class without one) is infinitely far away.

    >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [float("nan"), 0.0]]))
    tensor([[25., inf]])
    """
    valid = torch.isfinite(prototypes).all(dim=1)
    known = torch.where(valid[:, None], prototypes, torch.zeros_like(prototypes))
    centre = known[valid].mean(dim=0) if bool(valid.any()) else torch.zeros_like(known[0])
    known, z = known - centre, z - centre  # far from the origin the expanded square would cancel
    square = known.square().sum(dim=1)
    parts = [
        torch.addmm(square, part, known.T, alpha=-2).add_(part.square().sum(dim=1, keepdim=True)).clamp_(min=0)
        for part in z.split(max(1, _CHUNK_ELEMENTS // max(1, len(known))))
    ]
    distances = torch.cat(parts)
    distances[:, ~valid] = torch.inf
    return distances


def nearest_class_mean(z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Return the row of the nearest prototype, Eq. 2: c* = argmin_c dist(z, mu_c). (N, D), (K, D) -> (N,).

    >>> nearest_class_mean(torch.tensor([[0.9, 0.0]]), torch.eye(2))
    tensor([0])
    """
    return squared_distances(z, prototypes).argmin(dim=1)


@dataclass(frozen=True)
class NearestClassMean(Readout):
    """Nearest class mean over all classes seen so far, task-agnostic (Eq. 2)."""

    stores: ClassVar[str] = "a prototype for every class"

    def scores(self, view: View) -> torch.Tensor:
        """Return negative squared distances, (N, K)."""
        return -squared_distances(view.z, view.prototypes)


@dataclass(frozen=True)
class NearestExemplarMean(Readout):
    """iCaRL's nearest mean of exemplars: features of unit length, and means that are brought back to unit length.

    With a memory of exemplars the prototypes are the means of the exemplars, computed anew after every task.
    """

    stores: ClassVar[str] = "a prototype for every class"

    @property
    def space_name(self) -> str:
        """Unit length."""
        return "unit length"

    def space(self, z: torch.Tensor) -> torch.Tensor:
        """Return features of unit length."""
        return F.normalize(z, dim=1)

    def scores(self, view: View) -> torch.Tensor:
        """Return negative squared distances to the means of unit length, (N, K)."""
        return -squared_distances(self.space(view.z), self.space(view.prototypes))
