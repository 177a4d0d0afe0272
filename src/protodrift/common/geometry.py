"""Distances, and the directions in which embeddings lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_SMALLEST = 1e-10
"""Eigenvalues of a Gram matrix below this share of the largest are rounding: embeddings come in float32, whose relative
error of 1e-7 is 1e-14 in squares, summed over images. A 512-dimensional embedding of 64 features has 448 of them."""


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues, (r,), and eigenvectors, (D, r), of a positive semidefinite matrix that are not rounding."""

    values: torch.Tensor
    vectors: torch.Tensor
    size: int

    @staticmethod
    def of(matrix: torch.Tensor) -> Spectrum:
        """Decompose (D, D)."""
        values, vectors = torch.linalg.eigh(matrix.double())
        real = values > _SMALLEST * values[-1:].clamp(min=0)
        return Spectrum(values[real], vectors[:, real], len(matrix))

    def regularizer(self, ridge: float) -> float:
        """Return lambda = ridge * trace / D: a ridge relative to the mean eigenvalue, so no unit enters."""
        return ridge * float(self.values.sum()) / max(1, self.size)  # no directions: images that all are the same

    def inverse(self, ridge: float) -> torch.Tensor:
        """Return (G + lambda I)^-1 on the range of G and 0 beyond it, (D, D)."""
        inverse: torch.Tensor = (self.vectors / (self.values + self.regularizer(ridge))) @ self.vectors.T
        return inverse


def squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return squared Euclidean distances, (N, D) and (K, D) -> (N, K), in the type of the numbers.

    A row of b that is not finite (a class without a prototype) is infinitely far away.

    >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [float("nan"), 0.0]]))
    tensor([[25., inf]])
    """
    return squared_distances_to(b)(a)


def squared_distances_to(b: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function a -> `squared_distances(a, b)`; what depends on b alone, (K, D), is computed once."""
    missing = ~torch.isfinite(b).all(dim=1)
    some_missing = bool(missing.any())
    known = b[~missing] if some_missing else b
    center = known.mean(dim=0) if len(known) else torch.zeros_like(b.sum(dim=0))
    # |a - b|^2 = |a|^2 - 2 a.b + |b|^2 cancels badly far from the origin, so both are centered first.
    b = (b - center).masked_fill(missing[:, None], 0.0)
    squares = b.square().sum(dim=1)

    def distances(a: torch.Tensor) -> torch.Tensor:
        a = a - center
        result = torch.addmm(squares, a, b.T, alpha=-2)
        result.add_(a.square().sum(dim=1, keepdim=True)).clamp_(min=0)
        return result.masked_fill_(missing, torch.inf) if some_missing else result

    return distances


def subspace(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean (D,) and an orthonormal basis (D, r) of the directions in which z, (N, D), varies at all."""
    z = z.double()
    mean = z.sum(dim=0) / len(z)
    centered = z - mean
    return mean, Spectrum.of(centered.T @ centered).vectors


def main_plane(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the plane of most variance of (N, D) points, by scikit-learn's PCA, in float64.

    Rows that are not finite are left out. Points of two dimensions are shown as they are. The largest entry of a
    direction is positive, so that a picture does not flip between machines.

    Returns:
        Center (D,), directions (D, 2), and the plane's share of the variance.
    """
    z = z[torch.isfinite(z).all(dim=1)].double()
    count, size = z.shape
    if size == 2:
        return torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64), 1.0
    center = z.mean(dim=0) if count else z.sum(dim=0)
    directions = torch.zeros(size, 2, dtype=torch.float64)
    if count < 2 or not bool((z != z[0]).any()):  # no variance, which PCA would divide by
        return center, directions, 1.0
    from sklearn.decomposition import PCA  # slow to import

    found = PCA(min(2, size, count - 1), svd_solver="covariance_eigh" if count >= size else "full").fit(z.numpy())
    directions[:, : len(found.components_)] = torch.from_numpy(found.components_).T
    return center, directions, float(found.explained_variance_ratio_.sum())
