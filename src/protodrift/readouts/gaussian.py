"""Read-outs that know more of a class than its mean: Mahalanobis distance (FeCAM), Bayes, ridge classifier (DPCR)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..common.config import flag, number, one_of
from ..common.covariance import Covariance
from .base import LinearReadout, Readout, View, present


def squared_mahalanobis(z: torch.Tensor, means: torch.Tensor, covariances: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return d_k(z) = (z - mu_k)' S_k^-1 (z - mu_k), (N, K): inf for a class without a mean.

    Args:
        z: (N, D) in float64.
        means: (K, D) mu_k.
        covariances: K matrices S_k, (D, D); directions in which S_k is zero do not count.

    >>> z, means = torch.tensor([[2.0, 0.0]]).double(), torch.zeros(2, 2).double()
    >>> squared_mahalanobis(z, means, [torch.eye(2).double(), 4 * torch.eye(2).double()])
    tensor([[4., 1.]], dtype=torch.float64)
    """
    never = torch.full((len(z),), torch.inf, dtype=z.dtype)
    parts = [
        _quadratic(z - mu, sigma) if bool(torch.isfinite(mu).all()) else never
        for mu, sigma in zip(means, covariances, strict=True)
    ]
    return torch.stack(parts, dim=1)


def fecam_covariance(sigma: torch.Tensor, gamma_1: float, gamma_2: float, normalize: bool) -> torch.Tensor:
    """Return FeCAM's shrunk and normalized covariance of a class, (D, D) -> (D, D).

        S = Sigma + gamma_1 V_1 I + gamma_2 V_2 (1 - I),   V_1, V_2: mean diagonal and off-diagonal entry of Sigma
        S <- S / sqrt(diag S diag S')   if `normalize`: correlations

    >>> fecam_covariance(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), 1.0, 1.0, normalize=False)
    tensor([[4., 2.],
            [2., 4.]])
    """
    size = len(sigma)
    trace = sigma.trace()
    on, off = trace / size, (sigma.sum() - trace) / max(size * (size - 1), 1)
    shrunk = sigma + gamma_2 * off
    shrunk.diagonal().add_(gamma_1 * on - gamma_2 * off)
    if normalize:
        std = shrunk.diagonal().clamp(min=1e-300).sqrt()
        shrunk = shrunk / std[:, None] / std
    return shrunk


def spherical_covariance(sigma: torch.Tensor, shrinkage: float) -> torch.Tensor:
    """Return (1 - shrinkage) Sigma + shrinkage (trace Sigma / D) I, (D, D) -> (D, D)."""
    shrunk = (1 - shrinkage) * sigma
    shrunk.diagonal().add_(shrinkage * float(sigma.trace()) / len(sigma))
    return shrunk


def ridge_weights(means: torch.Tensor, scatter: torch.Tensor, counts: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the weights of ridge regression to one-hot classes, from statistics alone.

        W = (sum_k n_k (Sigma_k + mu_k mu_k') + lambda I)^-1 [n_k mu_k],   lambda = ridge * trace / D

    Args:
        means: (K, D) mu_k.
        scatter: (D, D) sum_k n_k Sigma_k.
        counts: (K,) n_k.
        ridge: relative to the mean eigenvalue.

    Returns:
        (D, K).
    """
    gram = scatter + means.T @ (counts[:, None] * means)
    gram.diagonal().add_(ridge * float(gram.trace()) / len(gram))
    weights: torch.Tensor = torch.linalg.solve(gram, (counts[:, None] * means).T)
    return weights


@dataclass(frozen=True)
class Mahalanobis(Readout):
    """The class of the smallest Mahalanobis distance, with shrunk and normalized covariances (FeCAM, NeurIPS 2023).

    d_c(z) = (z - mu_c)' S_c^-1 (z - mu_c), S_c by `fecam_covariance`: correlations, so that classes of all sizes
    compare.

    A class without any spread, such as one of a single image, takes the mean covariance of the others.

    Args:
        gamma_1, gamma_2: the shrinkage.
        normalize: correlations in place of covariances, and z and mu_c of unit length.
        tukey: z <- sign(z) |z|^tukey before anything is averaged; 1 leaves z (FeCAM: 0.5, for features >= 0).
        covariance: which form of the covariances is kept.
    """

    gamma_1: float = 1.0
    gamma_2: float = 1.0
    normalize: bool = True
    tukey: float = 1.0
    covariance: Covariance = Covariance()
    stores: ClassVar[str] = "a prototype and a covariance for every class"
    rules: ClassVar = {"gamma_1": number(0), "gamma_2": number(0), "normalize": flag, "tukey": number(above=0, high=1)}

    @property
    def keeps(self) -> Covariance:
        """Covariances."""
        return self.covariance

    @property
    def space_name(self) -> str:
        """Plain, or the power."""
        return "plain" if self.tukey == 1 else f"tukey {self.tukey:g}"

    def space(self, z: torch.Tensor) -> torch.Tensor:
        """Return sign(z) |z|^tukey."""
        return z if self.tukey == 1 else z.sign() * z.abs() ** self.tukey

    def scores(self, view: View) -> torch.Tensor:
        """Return negative Mahalanobis distances, (N, K), in float64; a class without a prototype gets -inf."""
        z, means = self.space(view.z).double(), view.prototypes.double()
        if self.normalize:
            z, means = F.normalize(z, dim=1), F.normalize(means, dim=1)
        shrunk = (
            fecam_covariance(sigma.double(), self.gamma_1, self.gamma_2, self.normalize) for sigma in _covariances(view)
        )
        return -squared_mahalanobis(z, means, shrunk)


@dataclass(frozen=True)
class Bayes(Readout):
    """The class of the largest posterior under one Gaussian per class: quadratic discriminant analysis.

        score_c(z) = log pi_c - 1/2 log det S_c - 1/2 (z - mu_c)' S_c^-1 (z - mu_c),
        S_c = (1 - shrinkage) Sigma_c + shrinkage (trace Sigma_c / D) I

    With `Covariance("shared")` it is linear discriminant analysis. A class without any spread, such as one of a single
    image, takes the mean covariance of the others.

    Args:
        shrinkage: toward a sphere of the same mean variance.
        prior: "equal", or "counts": as frequent as in training.
        covariance: which form of the covariances is kept.
    """

    shrinkage: float = 0.1
    prior: str = "equal"
    covariance: Covariance = Covariance()
    stores: ClassVar[str] = "a prototype and a covariance for every class"
    rules: ClassVar = {"shrinkage": number(above=0, high=1), "prior": one_of("equal", "counts")}

    @property
    def keeps(self) -> Covariance:
        """Covariances."""
        return self.covariance

    def scores(self, view: View) -> torch.Tensor:
        """Return log-posteriors up to a constant, (N, K), in float64; a class without a prototype gets -inf."""
        z, means = view.z.double(), view.prototypes.double()
        counts = view.counts.tolist() if self.prior == "counts" else [1] * len(means)

        def shrunk() -> Iterator[torch.Tensor]:  # twice, one after another: all of them may take much memory
            return (spherical_covariance(sigma.double(), self.shrinkage) for sigma in _covariances(view))

        log_det = torch.stack([torch.linalg.slogdet(sigma).logabsdet for sigma in shrunk()])
        log_prior = torch.tensor([math.log(n) if n else -math.inf for n in counts], dtype=torch.float64)
        return log_prior - 0.5 * (log_det + squared_mahalanobis(z, means, shrunk()))


@dataclass(frozen=True)
class RidgeClassifier(LinearReadout):
    """A linear classifier that needs only means, covariances and counts: the ridge head of DPCR.

        W = (sum_c n_c (Sigma_c + mu_c mu_c') + lambda I)^-1 [n_c mu_c],   score_c(z) = z . w_c

    On means and covariances that were never moved, this is ridge regression to one-hot classes over all images ever
    seen. lambda = ridge * trace / D.

    Args:
        ridge: relative to the mean eigenvalue.
        normalize: every w_c of unit length, so that no class wins by its size.
        covariance: which form is kept. The sum is all that matters, so one "shared" covariance says as much, as long
            as nothing moves.
    """

    ridge: float = 1e-2
    normalize: bool = True
    covariance: Covariance = Covariance("shared")
    stores: ClassVar[str] = "a prototype for every class, and covariances"
    rules: ClassVar = {"ridge": number(above=0), "normalize": flag}

    @property
    def keeps(self) -> Covariance:
        """Covariances."""
        return self.covariance

    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W; b is 0, or -inf for a class without a prototype."""
        means, bias = present(view.prototypes.double())
        counts = view.counts.double() * (bias == 0)
        if "shared" in view.statistics:
            scatter = counts.sum() * view.statistics["shared"].double()
        else:
            scatter = torch.einsum("k,kde->de", counts, view.covariances().double())
        weights = ridge_weights(means, scatter, counts, self.ridge)
        return F.normalize(weights, dim=0) if self.normalize else weights, bias


def _covariances(view: View) -> Iterator[torch.Tensor]:
    """Yield a covariance for every class, (D, D); for a class without one, that of the others.

    A class of one image, or of the same image many times, has no spread of its own. Taken as it is, zero, it would be
    infinitely near to everything, or to nothing. The mean of the others weighs them by their images; where no class has
    any spread, it is I: then the nearest mean decides.
    """
    covariances = view.covariances()
    points = covariances.diagonal(dim1=1, dim2=2).sum(dim=1) <= 0
    weights = (view.counts.double() if len(view.counts) else torch.ones(len(points))) * ~points
    if not bool(points.any()):
        others = covariances[0]
    elif bool(weights.sum() > 0):
        others = torch.einsum("k,kde->de", weights / weights.sum(), covariances.double())
    else:
        others = torch.eye(covariances.shape[1], dtype=torch.float64)
    for sigma, point in zip(covariances, points.tolist(), strict=True):
        yield others if point else sigma


def _quadratic(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return x' M^-1 x for every row, (N, D), (D, D) -> (N,), over the directions in which M is not zero."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal()
    sound = not bool(failed) and bool(pivots.min() > 1e-4 * pivots.max())
    if sound:  # as shrunk matrices are; far cheaper than eigenvalues
        halves: torch.Tensor = torch.linalg.solve_triangular(factor, x.T, upper=False)
        return halves.square_().sum(dim=0)
    values, vectors = torch.linalg.eigh(matrix)
    real = values > 1e-10 * values[-1:].abs()
    squares: torch.Tensor = (x @ vectors[:, real]).square() / values[real]
    return squares.sum(dim=1)
