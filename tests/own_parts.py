"""Parts as a user writes them, in a module of their own: some declare sums, some do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from protodrift.common.sums import Sums
from protodrift.drift import Drift, FittedDrift
from protodrift.readouts import LinearReadout, View


@dataclass(frozen=True)
class FittedOwnShift(FittedDrift):
    """Everything moves alike."""

    shift: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return prototypes + self.shift.to(prototypes.dtype), {}


@dataclass(frozen=True)
class DeltaSums(Sums):
    """How many pairs, and the sum of their differences."""

    count: torch.Tensor
    total: torch.Tensor

    def merge(self, other: DeltaSums) -> DeltaSums:
        return DeltaSums(self.count + other.count, self.total + other.total)


@dataclass(frozen=True)
class OwnMeanShift(Drift):
    """The mean movement, which declares sums and can be drawn."""

    draws: ClassVar[bool] = True

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedDrift:
        return FittedOwnShift((z_new.double() - z_old.double()).mean(dim=0))

    def sums(
        self, prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None
    ) -> DeltaSums:
        return DeltaSums(torch.tensor(len(z_old)), (z_new.double() - z_old.double()).sum(dim=0))

    def fit_sums(self, prototypes: torch.Tensor, sums: Sums) -> FittedDrift:
        assert isinstance(sums, DeltaSums)
        return FittedOwnShift(sums.total / sums.count)


@dataclass(frozen=True)
class OwnMedianShift(Drift):
    """The median movement: no sums, so on ranks its embeddings are gathered."""

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedDrift:
        return FittedOwnShift((z_new - z_old).median(dim=0).values)


@dataclass(frozen=True)
class SquareSums(Sums):
    """How many images, and the sum of their squares."""

    count: torch.Tensor
    total: torch.Tensor

    def merge(self, other: SquareSums) -> SquareSums:
        return SquareSums(self.count + other.count, self.total + other.total)


@dataclass(frozen=True)
class OwnProduct(LinearReadout):
    """The largest product with a prototype, in units of each direction's length: linear, and it learns from sums."""

    def learn(
        self, readout_state: dict[str, torch.Tensor], z: torch.Tensor, targets: torch.Tensor, task: int, seed: int
    ) -> dict[str, torch.Tensor]:
        return self.learn_sums(readout_state, self.sums(z, targets, 0), task, seed)

    def sums(self, z: torch.Tensor, targets: torch.Tensor, classes: int) -> SquareSums:
        return SquareSums(torch.tensor(len(z)), z.double().square().sum(dim=0))

    def learn_sums(
        self, readout_state: dict[str, torch.Tensor], sums: Sums, task: int, seed: int
    ) -> dict[str, torch.Tensor]:
        assert isinstance(sums, SquareSums)
        return {"scale": (sums.total / sums.count + 1e-3).sqrt()}

    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        weights = (view.prototypes.double() / view.readout_state["scale"].square()).T
        return weights, torch.zeros(len(view.prototypes), dtype=torch.float64)
