"""Leave-one-class-out: how an estimator fares on a class it was not shown, measured on the current classes.

Old classes are not among the current images, so an error on left-out IMAGES says nothing about them (the rest of their
class is there); an error on a left-out CLASS does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...common.geometry import squared_distances
from ..base import Drift

_ENOUGH = 4  # classes; of fewer, leaving one out leaves too little of the field to judge an estimator by
_PARTS = 6
_AT_ONCE = 4096  # images whose distances are held at once


@dataclass(frozen=True)
class HeldOut:
    """What an estimator predicted for classes it was not shown.

    Attributes:
        before: (C, D) their means in the old space.
        predicted: (C, D) where the estimator, fitted without them, puts these.
        after: (C, D) their true means in the new space.
        distance: (C,) from each mean to the nearest image it was fitted on.
    """

    before: torch.Tensor
    predicted: torch.Tensor
    after: torch.Tensor
    distance: torch.Tensor

    @property
    def predicted_drift(self) -> torch.Tensor:
        """How far the estimator moves each, (C, D) in float64."""
        return self.predicted.double() - self.before.double()

    @property
    def true_drift(self) -> torch.Tensor:
        """How far each really moved, (C, D) in float64."""
        return self.after.double() - self.before.double()

    @property
    def reach(self) -> float:
        """How far the farthest of them is from the images that were shown."""
        return float(self.distance.max())


def leave_one_class_out(
    drift: Drift,
    z_old: torch.Tensor,
    z_new: torch.Tensor,
    targets: torch.Tensor | None = None,
    folds: int = 10,
) -> HeldOut:
    """Fit on all classes but one, ask about that one's mean, for every class in turn.

    Args:
        drift: the estimator.
        z_old, z_new: (N, D) the current images before and after.
        targets: (N,) their classes; with fewer than four, clusters of each class stand in for classes.
        folds: at most so many fits; with more classes, several are left out at once.
    """
    groups = as_groups(z_old, targets)
    counts = torch.bincount(groups)
    count = len(counts)
    fold_of = torch.arange(count) % max(2, min(folds, count))
    before, after = (_means(z, groups, counts).to(z.dtype) for z in (z_old, z_new))
    predicted, distance = before.clone(), torch.zeros(count, dtype=torch.float64)
    for fold in fold_of.unique():
        out = fold_of == fold
        # Of images that are all the same there is one group: nothing can be left out, and it is asked about that.
        shown = ~out[groups] if count > 1 else torch.ones_like(groups, dtype=torch.bool)
        part = None if targets is None else targets[shown]
        predicted[out] = drift.fit(z_old[shown], z_new[shown], part).transport(before[out])
        distance[out] = nearest(before[out], z_old[shown])
    return HeldOut(before, predicted, after, distance)


def _means(z: torch.Tensor, groups: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean of each group, (C, D) in float64."""
    sums = torch.zeros(len(counts), z.shape[1], dtype=torch.float64).index_add_(0, groups, z.double())
    return sums / counts[:, None]


def nearest(points: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Return how far each of (K, D) points is from the nearest image, (K,) in float64."""
    least = torch.full((len(points),), torch.inf, dtype=torch.float64)
    for part in z.split(_AT_ONCE):
        least = torch.minimum(least, squared_distances(points.double(), part.double()).amin(dim=1))
    return least.sqrt()


def as_groups(z: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
    """Return a group 0..C-1 for every image: its class; of fewer than four classes, a cluster of its class."""
    targets = torch.zeros(len(z), dtype=torch.long) if targets is None else targets
    groups: torch.Tensor = torch.unique(targets, return_inverse=True)[1]
    count = int(groups.max()) + 1
    if count >= _ENOUGH:
        return groups
    parts, first = torch.zeros_like(groups), 0
    for group in range(count):
        own = clusters(z[groups == group], -(-_PARTS // count))
        parts[groups == group] = own + first
        first += int(own.max()) + 1
    return parts


def clusters(z: torch.Tensor, count: int, rounds: int = 20) -> torch.Tensor:
    """Return a cluster of each row, (N,), none empty: k-means from farthest-first centers; nothing is drawn."""
    z = z.double()
    count = min(count, len(z))
    mean = z.sum(dim=0, keepdim=True) / len(z)
    at = z[squared_distances(mean, z)[0].argmax()][None]
    for _ in range(count - 1):
        at = torch.cat([at, z[squared_distances(at, z).amin(dim=0).argmax()][None]])
    for _ in range(rounds):
        assigned: torch.Tensor = squared_distances(at, z).argmin(dim=0)
        sums = torch.zeros_like(at).index_add_(0, assigned, z)
        sizes = torch.bincount(assigned, minlength=count)
        at = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp(min=1), at)
    left: torch.Tensor = ((sizes > 0).cumsum(dim=0) - 1)[assigned]  # numbered without the empty ones
    return left
