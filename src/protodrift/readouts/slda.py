"""Streaming linear discriminant analysis (Hayes and Kanan, CVPR Workshops 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.config import number
from .base import LinearReadout, PoweredReadout, Tensors, View, present
from .left_out import left_out_discriminants
from .scatter import ScatterReadout, cholesky


def discriminants(means: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return linear discriminants of classes that share a covariance: score_k(z) = z . w_k + b_k.

        w_k = S^-1 mu_k,   b_k = -1/2 mu_k . w_k

    Args:
        means: (K, D) mu_k.
        factor: (D, D) L, lower triangular, of S = L L'.

    Returns:
        w (D, K) and b (K,), in the type of the means.

    >>> weights, bias = discriminants(torch.tensor([[2.0, 0.0], [0.0, 8.0]]), torch.diag(torch.tensor([1.0, 2.0])))
    >>> weights.T.tolist(), bias.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [-2.0, -8.0])
    """
    weights = torch.cholesky_solve(means.T.to(factor.dtype), factor).to(means.dtype)
    return weights, -0.5 * (means.T * weights).sum(dim=0)


@dataclass(frozen=True)
class StreamingLDA(ScatterReadout, LinearReadout):
    """Linear discriminant analysis: class means are the prototypes, and one covariance is shared by all classes.

        score_k(z) = z . (Lambda mu_k) - 1/2 mu_k . (Lambda mu_k)
        Lambda = ((1 - s) Sigma + s (trace Sigma / D) I)^-1

    Sigma is the scatter of the embeddings about their own class's mean, over their number (`ScatterReadout`; the paper
    streams single images, for which its update is an approximation). Without any spread Lambda is I: the nearest mean.

    Args:
        shrinkage: s, toward a sphere of the same mean variance, so that no unit enters. The fewer images there are for
            each dimension, the larger: 0.6 to 0.75 for some hundred photos in 1,280 dimensions, below 0.01 for fifty
            thousand images in 3,200.
        tukey, unit: the space, see `PoweredReadout`.
    """

    shrinkage: float = 0.3
    rules: ClassVar = {**PoweredReadout.rules, "shrinkage": number(above=0, high=1)}

    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the discriminants."""
        means, bias = present(view.prototypes.double())
        weights, constants = discriminants(means, self._factor(view.readout_state))
        return weights, constants + bias

    def _factor(self, readout_state: Tensors) -> torch.Tensor:
        """Return L of the shrunk covariance L L'."""
        shrunk = readout_state["scatter"] * ((1 - self.shrinkage) / int(readout_state["count"]))
        mean = float(readout_state["scatter"].trace()) / int(readout_state["count"]) / len(shrunk)
        shrunk.diagonal().add_(self.shrinkage * mean if mean > 0 else 1.0)
        return cholesky(shrunk, "shrinkage")

    def axes(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the discriminant coordinates: whitened by the covariance, in the plane that the class means span.

        Outside that plane distances say nothing about classes: with few images they are mostly noise.
        """
        means = view.prototypes.double()
        factor = self._factor(view.readout_state)  # A = L L', whitened: L^-1 z
        center = means.mean(dim=0)
        if len(means) > len(factor):  # the plane is the whole space: any axes give the same distances
            axes = torch.eye(len(factor), dtype=factor.dtype)
        else:
            apart = (means - center).T.to(factor.dtype)
            between = torch.linalg.solve_triangular(factor, apart, upper=False)  # (D, K)
            axes = torch.linalg.svd(between, full_matrices=False).U[:, : max(1, len(means) - 1)]
        return center, torch.linalg.solve_triangular(factor.T, axes, upper=True).double()  # z -> axes' L^-1 z

    def left_out(self, view: View, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and distances without each image, the covariance downdated: `left_out_discriminants`."""
        means, bias = present(view.prototypes.double())
        share = (1 - self.shrinkage) / int(view.readout_state["count"])
        factor = self._factor(view.readout_state)
        scores, distances = left_out_discriminants(self.space(view.z), targets, means, view.counts, factor, share)
        return scores + bias, distances
