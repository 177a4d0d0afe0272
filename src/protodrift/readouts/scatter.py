"""Read-outs of class means and one matrix: how all images lie about the mean of their own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.scatter import ScatterSums, add_products, mirror
from ..common.sums import Sums
from ..common.transport import Transport
from ..errors import InputError
from .base import PoweredReadout, Tensors


@dataclass(frozen=True)
class ScatterReadout(PoweredReadout):
    """A read-out that keeps W = sum_i (z_i - mu_i)(z_i - mu_i)', (D, D), and N beside the prototypes.

    Sums: those of tasks, shards and ranks add up (`learn`, `learn_sums`), so that any split into tasks gives the same
    W; more images of a known class add the term between the two means (`refreshed`); what was learned from a class's
    images can be taken away exactly (`added`, sign -1). When the network moves, W moves with it (`moved`).
    W is float64, beyond `WIDE` dimensions float32, and no step copies it more than once.
    """

    stores: ClassVar[str] = "a prototype for every class, and one covariance"

    def learn(self, readout_state: Tensors, z: torch.Tensor, targets: torch.Tensor, task: int, seed: int) -> Tensors:
        """Add the task's scatter and its number of images."""
        store = readout_state["scatter"].clone() if readout_state else None
        sums = ScatterSums.of(z, targets, len(torch.bincount(targets)), store)
        return {"scatter": sums.scatter, "count": readout_state.get("count", 0) + sums.counts.sum()}

    def sums(self, z: torch.Tensor, targets: torch.Tensor, classes: int) -> Sums:
        """Return counts, means and scatter of the classes."""
        return ScatterSums.of(z, targets, classes)

    def learn_sums(self, readout_state: Tensors, sums: Sums, task: int, seed: int) -> Tensors:
        """Add the scatter and the number of images."""
        assert isinstance(sums, ScatterSums)
        scatter, count = sums.scatter, sums.counts.sum()
        if readout_state:
            scatter, count = readout_state["scatter"] + scatter, readout_state["count"] + count
        return {"scatter": scatter, "count": count}

    def settled(self, readout_state: Tensors) -> Tensors:
        """Make W exactly symmetric, not only up to rounding: it takes half the space in a file."""
        if "scatter" not in readout_state:
            return readout_state
        scatter = readout_state["scatter"]
        return {**readout_state, "scatter": scatter.triu() + scatter.triu(1).T}

    def added(
        self, readout_state: Tensors, other: Tensors, targets: torch.Tensor, classes: int, sign: int = 1
    ) -> Tensors:
        """Add the scatter and the number of images; which classes they are of does not matter."""
        return {name: value + sign * other[name] for name, value in readout_state.items()}

    def refreshed(
        self,
        readout_state: Tensors,
        means: torch.Tensor,
        counts: torch.Tensor,
        added: torch.Tensor,
        added_counts: torch.Tensor,
    ) -> Tensors:
        """Add n m / (n + m) (mu - mean_added)(mu - mean_added)': with it, the scatter is that about the common mean."""
        n, m, scatter = counts.double(), added_counts.double(), readout_state["scatter"].clone()
        apart = means.double() - added.double()
        add_products(scatter, apart, (n * m / (n + m))[:, None] * apart)  # m < 0: images that are taken away
        return {**readout_state, "scatter": mirror(scatter)}

    def moved(
        self,
        readout_state: Tensors,
        fitted: Transport,
        prototypes: torch.Tensor,
        counts: torch.Tensor,
        task: int,
        seed: int,
    ) -> Tensors:
        """Move the scatter along with the prototypes."""
        if "scatter" not in readout_state:
            return readout_state
        weights = counts * torch.isfinite(prototypes).all(dim=1)
        scatter = fitted.scatter(prototypes, weights, readout_state["scatter"])
        return {**readout_state, "scatter": scatter}


def cholesky(matrix: torch.Tensor, option: str) -> torch.Tensor:
    """Return L of L L' = matrix, (D, D); in float64 where float32 has too few digits.

    Args:
        matrix: symmetric.
        option: which option of a read-out makes it positive definite, for the message.

    Raises:
        InputError: if it is not positive definite.
    """
    factor: torch.Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed) and matrix.dtype != torch.float64:
        factor, failed = torch.linalg.cholesky_ex(matrix.double())
    if bool(failed):
        raise InputError(f"{option} is too small for these features: their covariance cannot be inverted. Raise it.")
    return factor
