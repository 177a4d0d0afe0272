"""Read-outs with a covariance of every class: Mahalanobis distance (FeCAM), Bayes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F

from ..common.config import flag, number, one_of
from ..common.covariance import Covariance
from .base import PoweredReadout, Scorer, View, present

_T = TypeVar("_T")

FACTORS_AT_ONCE = 2**27
"""K D^2, numbers of all factorizations that a `scorer` holds: 1 GB of float64. Beyond, `scores` factors each time."""


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
    means, bias = present(means)
    whitenings = (whitened(sigma)[0] for sigma in covariances)
    return -_scores(z, (_Gaussian(*one) for one in zip(means, whitenings, bias, strict=True)))


def whitened(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return W with M^-1 = W W' over the directions in which M is not zero, (D, D) -> (D, r), and log |det M|, ().

    >>> whitened(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))[0]
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]])
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal()
    if not bool(failed) and bool(pivots.min() > 1e-4 * pivots.max()):  # as shrunk matrices are; far cheaper
        identity = torch.eye(len(matrix), dtype=matrix.dtype)
        return torch.linalg.solve_triangular(factor, identity, upper=False).T, 2 * pivots.log().sum()
    values, vectors = torch.linalg.eigh(matrix)
    real = values > 1e-10 * values[-1:].abs()
    return vectors[:, real] / values[real].sqrt(), values.abs().log().sum()


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


class _Gaussian(NamedTuple):
    """What is said of z by one class: constant - |(z - mean) W|^2, with mean (D,), W (D, r), constant ()."""

    mean: torch.Tensor
    whitening: torch.Tensor
    constant: torch.Tensor


def _scores(z: torch.Tensor, classes: Iterable[_Gaussian]) -> torch.Tensor:
    parts = [constant - ((z - mean) @ whitening).square().sum(dim=1) for mean, whitening, constant in classes]
    return torch.stack(parts, dim=1)


@dataclass(frozen=True)
class GaussianReadout(PoweredReadout):
    """A read-out with a Gaussian per class. A subclass has `gaussians`."""

    @abstractmethod
    def gaussians(self, view: View) -> Iterator[_Gaussian]:
        """Yield every class, one after another: all of them may take much memory."""

    def points(self, z: torch.Tensor) -> torch.Tensor:
        """Return images where Gaussians are compared with them, (N, D) in float64."""
        return self.space(z).double()

    def scorer(self, view: View) -> Scorer | None:
        """Return `scores` with all matrices factored; None where these take too much memory."""
        classes, size = view.prototypes.shape
        if classes * size * size > FACTORS_AT_ONCE:
            return None
        factored = list(self.gaussians(view))
        return lambda z, logits: _scores(self.points(z), factored)

    def scores(self, view: View) -> torch.Tensor:
        """Return (N, K) scores in float64; a class without a prototype gets -inf."""
        return _scores(self.points(view.z), self.gaussians(view))


@dataclass(frozen=True)
class Mahalanobis(GaussianReadout):
    """The class of the smallest Mahalanobis distance, with shrunk and normalized covariances (FeCAM, NeurIPS 2023).

    d_c(z) = (z - mu_c)' S_c^-1 (z - mu_c), S_c by `fecam_covariance`: correlations, so that classes of all sizes
    compare.

    A class without any spread, such as one of a single image, takes the mean covariance of the others.

    Args:
        gamma_1, gamma_2: the shrinkage.
        normalize: correlations in place of covariances, and z and mu_c of unit length.
        covariance: which form of the covariances is kept.
        tukey, unit: the space, see `PoweredReadout` (FeCAM: tukey 0.5).
    """

    gamma_1: float = 1.0
    gamma_2: float = 1.0
    normalize: bool = True
    covariance: Covariance = Covariance()
    stores: ClassVar[str] = "a prototype and a covariance for every class"
    rules: ClassVar = {**PoweredReadout.rules, "gamma_1": number(0), "gamma_2": number(0), "normalize": flag}

    @property
    def keeps(self) -> Covariance:
        """Covariances."""
        return self.covariance

    def points(self, z: torch.Tensor) -> torch.Tensor:
        """Return the space's z, of unit length if `normalize`."""
        z = super().points(z)
        return F.normalize(z, dim=1) if self.normalize else z

    def gaussians(self, view: View) -> Iterator[_Gaussian]:
        """Yield every class; its constant is 0."""
        means, bias = present(self._centers(view))
        if self.normalize:
            means = F.normalize(means, dim=1)
        return (_Gaussian(*one) for one in zip(means, self._whitenings(view), bias, strict=True))

    def _centers(self, view: View) -> torch.Tensor:
        return view.prototypes.double()

    def _whitenings(self, view: View) -> Iterator[torch.Tensor]:
        def factored(sigma: torch.Tensor) -> torch.Tensor:
            return whitened(fecam_covariance(sigma.double(), self.gamma_1, self.gamma_2, self.normalize))[0]

        return _each(factored, _covariances(view))


@dataclass(frozen=True)
class FeCAM(Mahalanobis):
    """`Mahalanobis` as FeCAM's authors release it (NeurIPS 2023), on pooled features that are never negative.

    Beside the square root and the correlations: covariances over n - 1, shrunk twice, and the root of the mean feature
    in place of the mean root. That mean is not kept; of z = sqrt(f) it is E f = mu^2 + diag Sigma, exactly. With
    another power than 0.5 the mean power is taken, and where images have no spread the covariance is as `Mahalanobis`
    has it. In the first task the released code compares with the weights of its cosine head instead.
    """

    _: KW_ONLY
    tukey: float = 0.5

    def _centers(self, view: View) -> torch.Tensor:
        means = view.prototypes.double()
        if self.tukey != 0.5:
            return means
        spread = torch.stack([sigma.diagonal().double() for sigma in view.covariances()])
        return (means.square() + spread).sqrt()

    def _whitenings(self, view: View) -> Iterator[torch.Tensor]:
        counts = view.counts.tolist() if len(view.counts) else [0] * len(view.prototypes)
        for sigma, n in zip(_covariances(view), counts, strict=True):
            once = fecam_covariance(sigma.double() * (n / (n - 1) if n > 1 else 1.0), self.gamma_1, self.gamma_2, False)
            yield whitened(fecam_covariance(once, self.gamma_1, self.gamma_2, self.normalize))[0]


@dataclass(frozen=True)
class Bayes(GaussianReadout):
    """The class of the largest posterior under one Gaussian per class: quadratic discriminant analysis.

        score_c(z) = log pi_c - 1/2 log det S_c - 1/2 (z - mu_c)' S_c^-1 (z - mu_c),
        S_c = (1 - shrinkage) Sigma_c + shrinkage (trace Sigma_c / D) I

    With `Covariance("shared")` it is linear discriminant analysis. A class without any spread, such as one of a single
    image, takes the mean covariance of the others.

    Args:
        shrinkage: toward a sphere of the same mean variance.
        prior: "equal", or "counts": as frequent as in training.
        covariance: which form of the covariances is kept.
        tukey, unit: the space, see `PoweredReadout`.
    """

    shrinkage: float = 0.1
    prior: str = "equal"
    covariance: Covariance = Covariance()
    stores: ClassVar[str] = "a prototype and a covariance for every class"
    rules: ClassVar = {
        **PoweredReadout.rules,
        "shrinkage": number(above=0, high=1),
        "prior": one_of("equal", "counts"),
    }

    @property
    def keeps(self) -> Covariance:
        """Covariances."""
        return self.covariance

    def gaussians(self, view: View) -> Iterator[_Gaussian]:
        """Yield every class; its score is the log-posterior up to a constant."""
        means, bias = present(view.prototypes.double())
        counts = view.counts.tolist() if self.prior == "counts" else [1] * len(means)

        def factored(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return whitened(spherical_covariance(sigma.double(), self.shrinkage))

        for mean, none, n, (whitening, log_det) in zip(
            means, bias, counts, _each(factored, _covariances(view)), strict=True
        ):
            log_prior = math.log(n) if n else -math.inf
            yield _Gaussian(mean, math.sqrt(0.5) * whitening, log_prior - 0.5 * log_det + none)


def _each(function: Callable[[torch.Tensor], _T], matrices: Iterable[torch.Tensor]) -> Iterator[_T]:
    """Yield function(matrix) for each; computed once for a matrix that all classes share."""
    last: tuple[torch.Tensor, _T] | None = None
    for matrix in matrices:
        if last is None or last[0] is not matrix:
            last = matrix, function(matrix)
        yield last[1]


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
    shared = covariances[0] if covariances.stride(0) == 0 else None
    for sigma, point in zip(covariances, points.tolist(), strict=True):
        yield others if point else sigma if shared is None else shared
