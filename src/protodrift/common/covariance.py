"""Covariances of classes, whole or in a shorter form: what can be kept of a class beside its mean.

A `Covariance` says what is kept; the kept values are a flat dict of named tensors, so that saving and stages need no
further code. Every form can be made `dense`, (K, D, D), moved by a drift estimator, and made short again:

    full        {"full": (K, D, D)}                               K D^2 numbers
    diagonal    {"diagonal": (K, D)}                              K D
    low-rank    {"factors": (K, r, D), "rest": (K,)}              K (r D + 1):  Sigma = F'F + rest I
    shared      {"shared": (D, D)}                                D^2, one for all classes

Sums are in float64, what is kept has the type of the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .config import Config, one_of, whole

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Covariance(Config):
    """Which form of each class's covariance is kept.

    Args:
        form: "full"; "diagonal"; "low-rank": the `rank` leading directions, and the mean variance of all others in
            every other direction (probabilistic PCA, so the trace is kept); "shared": one for all classes, the mean
            weighted by the number of images.
        rank: for "low-rank".
    """

    form: str = "full"
    rank: int = 16
    rules: ClassVar = {"form": one_of("full", "diagonal", "low-rank", "shared"), "rank": whole(1)}

    def measure(self, z: torch.Tensor, targets: torch.Tensor, count: int) -> Tensors:
        """Return what is kept of `count` classes, from their embeddings.

        Sigma_c = 1/n_c sum_i [y_i = c] (z_i - mu_c)(z_i - mu_c)', a class without an image gets zeros.

        Args:
            z: (N, D) embeddings.
            targets: (N,) class index of each, in 0..count-1.
            count: K.
        """
        return self.shorten(class_covariances(z, targets, count), torch.bincount(targets, minlength=count))

    def shorten(self, covariances: torch.Tensor, counts: torch.Tensor) -> Tensors:
        """Return the kept form of dense covariances, (K, D, D); counts (K,) weigh the classes of a shared one."""
        if self.form == "full":
            return {"full": covariances}
        if self.form == "diagonal":
            return {"diagonal": covariances.diagonal(dim1=1, dim2=2).clone()}
        if self.form == "shared":
            weights = counts.double() / counts.sum().clamp(min=1)
            return {"shared": torch.einsum("k,kde->de", weights, covariances.double()).to(covariances.dtype)}
        size = covariances.shape[1]
        rank = min(self.rank, size)
        values, vectors = torch.linalg.eigh(covariances.double())
        values, vectors = values.clamp(min=0), vectors.mT  # ascending; rows are directions
        rest = values[:, : size - rank].sum(dim=1) / max(size - rank, 1)
        above = (values[:, size - rank :] - rest[:, None]).clamp(min=0).sqrt()
        factors = above[:, :, None] * vectors[:, size - rank :]
        return {"factors": factors.to(covariances.dtype), "rest": rest.to(covariances.dtype)}


def class_covariances(z: torch.Tensor, targets: torch.Tensor, count: int) -> torch.Tensor:
    """Return each class's covariance about its own mean, over its number of images, (K, D, D).

    >>> class_covariances(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 0]), 1)
    tensor([[[1., 0.],
             [0., 0.]]])
    """
    result = torch.zeros(count, z.shape[1], z.shape[1], dtype=z.dtype)
    for row in range(count):
        own = z[targets == row].double()
        if len(own):
            own = own - own.mean(dim=0)
            result[row] = (own.T @ own / len(own)).to(z.dtype)
    return result


def form_of(statistics: Tensors) -> Covariance | None:
    """Return which form these tensors are; None if there are none."""
    if not statistics:
        return None
    if "factors" in statistics:
        return Covariance("low-rank", statistics["factors"].shape[1])
    return Covariance(next(name for name in ("full", "diagonal", "shared") if name in statistics))


def dense(statistics: Tensors, count: int) -> torch.Tensor:
    """Return the covariances of `count` classes, (K, D, D), whatever form they are kept in."""
    if "full" in statistics:
        return statistics["full"]
    if "diagonal" in statistics:
        return torch.diag_embed(statistics["diagonal"])
    if "shared" in statistics:
        return statistics["shared"].expand(count, -1, -1)
    factors, rest = statistics["factors"], statistics["rest"]
    return factors.mT @ factors + torch.diag_embed(rest[:, None].expand(-1, factors.shape[2]))
