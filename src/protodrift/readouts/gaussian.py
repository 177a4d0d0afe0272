"""Read-outs that know more of a class than its mean: Mahalanobis distance (FeCAM), Bayes, ridge classifier (DPCR)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..common.config import flag, number, one_of
from ..common.covariance import Covariance
from .base import Readout, View


@dataclass(frozen=True)
class Mahalanobis(Readout):
    """The class of the smallest Mahalanobis distance, with shrunk and normalized covariances (FeCAM, NeurIPS 2023).

        d_c(z) = (z - mu_c)' S_c^-1 (z - mu_c)
        S_c = Sigma_c + gamma_1 V_1 I + gamma_2 V_2 (1 - I),  V_1, V_2: mean diagonal and off-diagonal entry of Sigma_c
        S_c <- S_c / sqrt(diag S_c diag S_c')   if `normalize`: correlations, so that classes of all sizes compare

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
        parts = [
            -_quadratic(z - mu, self._shrunk(sigma.double())) if bool(torch.isfinite(mu).all()) else _never(z)
            for mu, sigma in zip(means, _covariances(view), strict=True)
        ]
        return torch.stack(parts, dim=1)

    def _shrunk(self, sigma: torch.Tensor) -> torch.Tensor:
        size = len(sigma)
        trace = sigma.trace()
        on, off = trace / size, (sigma.sum() - trace) / max(size * (size - 1), 1)
        shrunk = sigma + self.gamma_2 * off
        shrunk.diagonal().add_(self.gamma_1 * on - self.gamma_2 * off)
        if self.normalize:
            std = shrunk.diagonal().clamp(min=1e-300).sqrt()
            shrunk = shrunk / std[:, None] / std
        return shrunk


@dataclass(frozen=True)
class Bayes(Readout):
    """The class of the largest posterior under one Gaussian a class: quadratic discriminant analysis.

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
        counts = view.counts.double() if self.prior == "counts" else torch.ones(len(means), dtype=torch.float64)
        parts = []
        for mu, sigma, count in zip(means, _covariances(view), counts.tolist(), strict=True):
            if not bool(torch.isfinite(mu).all()) or count == 0:
                parts.append(_never(z))
                continue
            sigma = sigma.double()
            shrunk = (1 - self.shrinkage) * sigma
            shrunk.diagonal().add_(self.shrinkage * float(sigma.trace()) / len(sigma))
            log_det = torch.linalg.slogdet(shrunk).logabsdet
            parts.append(math.log(count) - 0.5 * (log_det + _quadratic(z - mu, shrunk)))
        return torch.stack(parts, dim=1)


@dataclass(frozen=True)
class RidgeClassifier(Readout):
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

    def scores(self, view: View) -> torch.Tensor:
        """Return z W, (N, K), in float64; a class without a prototype gets -inf."""
        valid = torch.isfinite(view.prototypes).all(dim=1)
        means = torch.where(valid[:, None], view.prototypes, 0.0).double()
        counts = view.counts.double() * valid
        if "shared" in view.statistics:
            within = counts.sum() * view.statistics["shared"].double()
        else:
            within = torch.einsum("k,kde->de", counts, view.covariances().double())
        gram = within + means.T @ (counts[:, None] * means)
        gram.diagonal().add_(self.ridge * float(gram.trace()) / len(gram))
        weights: torch.Tensor = torch.linalg.solve(gram, (counts[:, None] * means).T)
        if self.normalize:
            weights = F.normalize(weights, dim=0)
        return (view.z.double() @ weights).masked_fill(~valid, -torch.inf)


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


def _never(z: torch.Tensor) -> torch.Tensor:
    return torch.full((len(z),), -torch.inf, dtype=torch.float64)
