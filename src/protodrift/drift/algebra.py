"""Solves that stay sound when images are fewer than dimensions, or embeddings lie in a subspace. All in float64."""

from __future__ import annotations

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
    """Return squared Euclidean distances, (K, D), (N, D) -> (K, N), in float64, centered against cancellation."""
    center = b.double().mean(dim=0)
    a, b = a.double() - center, b.double() - center
    cross = torch.addmm(b.square().sum(dim=1), a, b.T, alpha=-2)
    return cross.add_(a.square().sum(dim=1, keepdim=True)).clamp_(min=0)


def subspace(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean (D,) and an orthonormal basis (D, r) of the directions in which z, (N, D), varies at all."""
    z = z.double()
    mean = z.sum(dim=0) / len(z)
    centered = z - mean
    return mean, Spectrum.of(centered.T @ centered).vectors
