"""Add your own method: a drift estimator of ten lines, compared with SDC and with doing nothing.

A method is a choice on each axis; a new part on one axis is a new method, and no training loop is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protodrift import SDC, Method, Training
from protodrift.data import load_digits
from protodrift.data.tasks import TaskStream
from protodrift.drift import Drift, FittedDrift
from protodrift.experiments.tree import Tree


@dataclass(frozen=True)
class MedianShift(Drift):
    """Move every prototype by the median movement of the current images, dimension by dimension."""

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedDrift:
        """Remember the median of z_new - z_old."""
        return Fitted((z_new - z_old).median(dim=0).values)


@dataclass(frozen=True)
class Fitted(FittedDrift):
    """One vector for all prototypes."""

    shift: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the moved prototypes; no diagnostics."""
        return prototypes + self.shift, {}


stream = TaskStream(load_digits(), tasks=5, class_order=0)
tree = Tree(stream, training=Training(epochs=2, learning_rate=3e-4, later_learning_rate=1e-4), seed=0)
methods = {"nothing": Method(), "SDC": Method(drift=SDC()), "median shift": Method(drift=MedianShift())}
for name, result in tree.run(methods).items():  # one training for all three: drift is a read-out
    print(f"{name:12} A_5 = {100 * result.average_accuracy[-1]:.1f}")
