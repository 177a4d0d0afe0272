"""Streaming linear discriminant analysis (Hayes and Kanan, CVPR Workshops 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.config import number
from ..common.sums import Sums
from .base import LinearReadout, Tensors, View, present


def discriminants(means: torch.Tensor, covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return linear discriminants of classes that share a covariance: score_k(z) = z . w_k + b_k.

        w_k = S^-1 mu_k,   b_k = -1/2 mu_k . w_k

    Args:
        means: (K, D) mu_k.
        covariance: (D, D) S, positive definite.

    Returns:
        w (D, K) and b (K,).

    >>> weights, bias = discriminants(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.diag(torch.tensor([1.0, 2.0])))
    >>> weights.T.tolist(), bias.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [-2.0, -4.0])
    """
    weights: torch.Tensor = torch.linalg.solve(covariance, means.T)
    return weights, -0.5 * (means.T * weights).sum(dim=0)


@dataclass(frozen=True)
class ScatterSums(Sums):
    """How the images of K classes lie about their class means; two of them merge by Chan's formula.

    Attributes:
        counts: (K,) images of each class.
        means: (K, D) their means, float64; 0 without images.
        scatter: (D, D) sum of (z - mean)(z - mean)' over all classes, float64.
    """

    counts: torch.Tensor
    means: torch.Tensor
    scatter: torch.Tensor

    @staticmethod
    def of(z: torch.Tensor, targets: torch.Tensor, classes: int) -> ScatterSums:
        """Return the sums over (N, D) embeddings of classes (N,) in 0..K-1, K = classes; N may be 0."""
        z = z.double()
        counts = torch.bincount(targets, minlength=classes)
        means = z.new_zeros(classes, z.shape[1]).index_add_(0, targets, z) / counts.clamp(min=1)[:, None]
        centered = z - means[targets]
        return ScatterSums(counts, means, centered.T @ centered)

    def merge(self, other: ScatterSums) -> ScatterSums:
        """Return the sums over both sets of images: the scatter gains n m / (n + m) d d' per class."""
        n, m = self.counts.double()[:, None], other.counts.double()[:, None]
        total = (n + m).clamp(min=1)
        apart = other.means - self.means
        between = (n * m / total * apart).T @ apart
        means = (n * self.means + m * other.means) / total
        return ScatterSums(self.counts + other.counts, means, self.scatter + other.scatter + between)


@dataclass(frozen=True)
class StreamingLDA(LinearReadout):
    """Linear discriminant analysis: class means are the prototypes, and one covariance is shared by all classes.

    score_k(z) = z . (Lambda mu_k) - 1/2 mu_k . (Lambda mu_k),  Lambda = ((1 - eps) Sigma + eps I)^-1

    Sigma is the scatter of the embeddings about their own class's mean, over their number. It is summed task by task,
    and no image is needed again. Images of a class that come later add the term between the two means (`refreshed`), so
    that any split into tasks gives the same Sigma (the paper streams single images, for which its update is an
    approximation). Made for a network that stays fixed, as
    in `Schedule(train="first")`: a network that moves leaves the older share of Sigma behind.

    Args:
        shrinkage: eps; 1e-4, the value ports of SLDA use (not checked against the paper).
    """

    stores: ClassVar[str] = "a prototype for every class, and one covariance"
    shrinkage: float = 1e-4
    rules: ClassVar = {"shrinkage": number(above=0, high=1)}

    def learn(self, readout_state: Tensors, z: torch.Tensor, targets: torch.Tensor, task: int, seed: int) -> Tensors:
        """Add the task's scatter, (D, D) in float64, and its number of images."""
        return self.learn_sums(readout_state, self.sums(z, targets, len(torch.bincount(targets))), task, seed)

    def sums(self, z: torch.Tensor, targets: torch.Tensor, classes: int) -> ScatterSums:
        """Return counts, means and scatter of the classes."""
        return ScatterSums.of(z, targets, classes)

    def learn_sums(self, readout_state: Tensors, sums: Sums, task: int, seed: int) -> Tensors:
        """Add the scatter and the number of images."""
        assert isinstance(sums, ScatterSums)
        scatter, count = sums.scatter, sums.counts.sum()
        if readout_state:
            scatter, count = readout_state["scatter"] + scatter, readout_state["count"] + count
        return {"scatter": scatter, "count": count}

    def refreshed(
        self,
        readout_state: Tensors,
        means: torch.Tensor,
        counts: torch.Tensor,
        added: torch.Tensor,
        added_counts: torch.Tensor,
    ) -> Tensors:
        """Add n m / (n + m) (mu - mean_added)(mu - mean_added)': with it, the scatter is that about the common mean."""
        n, m, apart = counts.double(), added_counts.double(), means.double() - added.double()
        return {**readout_state, "scatter": readout_state["scatter"] + ((n * m / (n + m))[:, None] * apart).T @ apart}

    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the discriminants."""
        means, bias = present(view.prototypes.double())
        weights, constants = discriminants(means, self._shrunk(view.readout_state))
        return weights, constants + bias

    def _shrunk(self, readout_state: Tensors) -> torch.Tensor:
        sigma = readout_state["scatter"] / readout_state["count"]
        return (1 - self.shrinkage) * sigma + self.shrinkage * torch.eye(len(sigma), dtype=sigma.dtype)

    def coordinates(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the discriminant coordinates: whitened by the covariance, in the plane that the class means span.

        Outside that plane distances say nothing about classes: with few images they are mostly noise.
        """
        means = view.prototypes.double()
        factor = torch.linalg.cholesky(self._shrunk(view.readout_state))  # P = L L', whitened: L^-1 z
        center = means.mean(dim=0)
        if len(means) > len(factor):  # the plane is the whole space: any axes give the same distances
            axes = torch.eye(len(factor), dtype=factor.dtype)
        else:
            between = torch.linalg.solve_triangular(factor, (means - center).T, upper=False)  # (D, K)
            axes = torch.linalg.svd(between, full_matrices=False).U[:, : max(1, len(means) - 1)]
        project = torch.linalg.solve_triangular(factor.T, axes, upper=True)  # (D, C): z -> axes' L^-1 z
        return (view.z.double() - center) @ project, (means - center) @ project
