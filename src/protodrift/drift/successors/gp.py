"""Drift as a Gaussian process: an affine map plus a local part, with an error bar for every prototype.

Derived in docs/drift.md. Everything is in units of the data: old embeddings are centered and scaled to mean squared
length 1, lengths are shares of their median distance, variances are multiples of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from ...common.config import flag, number, one_of, optional, whole
from ...common.geometry import squared_distances, subspace
from ..base import Drift, FittedDrift, check_pairs, check_prototypes, residual_covariance
from .folds import as_groups

_TRANSLATION = 10.0  # prior variance of a common translation: as good as free, N images see it
_LINEAR = (0.0, 0.1, 1.0, 10.0, 100.0)
_LOCAL = (0.0, 0.1, 1.0, 10.0, 100.0)
_LENGTH = (0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Spread:
    """How images lie about their class's mean: eigenvalues (D,) and eigenvectors (D, D) of the covariance W."""

    values: torch.Tensor
    vectors: torch.Tensor

    @staticmethod
    def within(x: torch.Tensor, groups: torch.Tensor, share: float) -> Spread:
        """Return the pooled within-class covariance of x, (N, D), times `share`."""
        centered = x.clone()
        for group in groups.unique():
            centered[groups == group] -= x[groups == group].mean(dim=0)
        values, vectors = torch.linalg.eigh(share * (centered.T @ centered) / len(x))
        return Spread(values.clamp(min=0), vectors)

    def damping(self, length: float) -> float:
        """Return |I + W / l^2|^(-1/2): how much of a local bump of that length is left in the mean over a cloud."""
        return math.exp(-0.5 * float((self.values / length**2).log1p().sum()))


@dataclass(frozen=True)
class Kernel:
    """k(x, x') = translation + linear <x, x'> + local exp(-|x - x'|^2 / (2 length^2)), with noise of variance 1."""

    linear: float
    local: float
    length: float

    def __call__(self, inner: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        """Return k from inner products and squared distances, (K, N) each -> (K, N)."""
        return _TRANSLATION + self.linear * inner + self.local * (squared / (-2 * self.length**2)).exp_()

    def cloud(
        self, a: torch.Tensor, b: torch.Tensor, spread: Spread, beyond: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the mean of k(x, b) over x ~ N(a, W), (K, D), (N, D) -> (K, N).

        The linear part is k itself; the local part is |I + W / l^2|^(-1/2) exp(-1/2 (a - b)'(l^2 I + W)^-1 (a - b)).

        Args:
            a, b: in the directions that the images span.
            spread: W.
            beyond: (K,) what |a|^2 has in other directions, where W has nothing and b has nothing.
        """
        stretched = spread.vectors / (self.length**2 + spread.values).sqrt()
        near = (squared_distances(a @ stretched, b @ stretched) / -2).exp_()
        if beyond is not None:
            near = near * (beyond / (-2 * self.length**2)).exp()[:, None]
        return _TRANSLATION + self.linear * (a @ b.T) + self.local * spread.damping(self.length) * near

    def cloud_gradient(
        self, a: torch.Tensor, b: torch.Tensor, spread: Spread, beyond: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the gradient of `cloud` with respect to one a, (D,), (N, D) -> (N, D)."""
        stretched = spread.vectors / (self.length**2 + spread.values).sqrt()
        apart = (a - b) @ stretched
        near = (apart.square().sum(dim=1) / -2).exp_()
        if beyond is not None:
            near *= (beyond / (-2 * self.length**2)).exp()
        local = self.local * spread.damping(self.length) * near
        return self.linear * b - local[:, None] * (apart @ stretched.T)

    def cloud_variance(self, a: torch.Tensor, spread: Spread, beyond: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean of k(x, x') over x, x' ~ N(a, W), (K, D) -> (K,): the prior variance of a cloud's drift."""
        local = self.local * spread.damping(self.length / math.sqrt(2))
        squares = a.square().sum(dim=1)
        return _TRANSLATION + self.linear * (squares if beyond is None else squares + beyond) + local

    def inverse(self, inner: torch.Tensor, squared: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return (K + I)^-1 of the images, (N, N), and log det(K + I)."""
        gram = self(inner, squared)
        gram.diagonal().add_(1.0)
        factor = torch.linalg.cholesky(gram)
        return torch.cholesky_inverse(factor), 2 * float(factor.diagonal().log().sum())


@dataclass(frozen=True)
class GaussianProcess(Drift):
    """The drift of a point x is a Gaussian process: translation + linear map + smooth local part; images add noise.

        delta(x) ~ GP(0, s^2 k), k(x, x') = c + a <x, x'> + g exp(-|x - x'|^2 / (2 l^2)), z_i - m_i = delta(m_i) + noise
        p -> p + kbar(p, M) (K + I)^-1 (Z - M),   kbar(p, m) = mean of k(x, m) over x ~ N(p, W)

    A prototype is no image: it is the mean of a class, and lies inside the cloud (for embeddings of unit length: inside
    the ball) where no image is. So the process is asked for the mean drift of a cloud about p, W the pooled
    within-class covariance of the current images; the integral is closed.

    Read as a kernel machine: `RidgeToIdentity` (g = 0), a local kernel that fades out instead of following the nearest
    image far away (a = 0), and everything between, weighed by the images themselves: a, g and l are those of largest
    marginal likelihood, or of least error on left-out classes. The posterior variance is the `uncertainty` of each
    prototype, made honest by the errors on left-out classes.

    Cost: O(points^3 + points D K), and O(tuning^3) for each of 65 kernels; no more with more images.

    Args:
        linear: a; None: chosen.
        local: g; None: chosen.
        length: l, as a share of the median distance between images; None: chosen.
        select: what chooses: "likelihood", or "classes" (leave-one-class-out).
        cloud: W as a share of the within-class covariance; 0 asks about the point p.
        points: images it rests on, at most; drawn evenly from the classes.
        tuning: images that choose a, g, l.
        calibrate: scale the uncertainty by what is seen on left-out classes.
    """

    linear: float | None = None
    local: float | None = None
    length: float | None = None
    select: str = "likelihood"
    cloud: float = 1.0
    points: int = 1000
    tuning: int = 300
    calibrate: bool = True
    rules: ClassVar = {
        "linear": optional(number(0)),
        "local": optional(number(0)),
        "length": optional(number(above=0)),
        "select": one_of("likelihood", "classes"),
        "cloud": number(0),
        "points": whole(2),
        "tuning": whole(2),
        "calibrate": flag,
    }

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedGP:
        """Choose the kernel, and condition on the images."""
        check_pairs(z_old, z_new)
        y = z_new.double() - z_old.double()
        center, basis = subspace(
            z_old
        )  # all that matters of x lies in few directions: what prototypes have beyond stays
        x = (z_old.double() - center) @ basis
        scale = float(x.square().sum(dim=1).mean().sqrt()) or 1.0
        x = x / scale
        groups = as_groups(z_old, targets)
        spread = Spread.within(x, groups if targets is None else targets, self.cloud)
        few, many = (evenly(groups, count) for count in (self.tuning, self.points))
        tune = _Images(x[few], y[few], groups[few], spread)
        median = float(tune.squared.sqrt().median()) or 1.0
        kernels = list(self._kernels(median))
        kernel = kernels[0]
        if len(kernels) > 1:
            score = tune.unlikelihood if self.select == "likelihood" else tune.class_error
            kernel = min(kernels, key=score)
        inverse, _ = kernel.inverse(x[many] @ x[many].T, squared_distances(x[many], x[many]))
        weights = inverse @ y[many]
        # E|delta - mean|^2 at a point is variance * (k(p, p) - ...); the scale by maximum likelihood
        variance = float((y[many] * weights).sum()) / len(many)
        if self.calibrate:
            errors, variances = tune.held_out(kernel)
            variance *= float((errors / (variance * variances).clamp(min=1e-300)).mean())
        return FittedGP(kernel, spread, center, basis, scale, x[many], weights, inverse, variance)

    def _kernels(self, median: float) -> Iterator[Kernel]:
        for linear in _LINEAR if self.linear is None else (self.linear,):
            for local in _LOCAL if self.local is None else (self.local,):
                lengths = _LENGTH if self.length is None else (self.length,)
                for length in lengths if local else lengths[:1]:
                    yield Kernel(linear, local, length * median)


@dataclass(frozen=True)
class _Images:
    """Scaled old embeddings (N, r), drifts (N, D) and classes (N,) of a few images."""

    x: torch.Tensor
    y: torch.Tensor
    groups: torch.Tensor
    spread: Spread

    @cached_property
    def inner(self) -> torch.Tensor:
        """<x_i, x_j>, (N, N)."""
        return self.x @ self.x.T

    @cached_property
    def squared(self) -> torch.Tensor:
        """|x_i - x_j|^2, (N, N)."""
        return squared_distances(self.x, self.x)

    @cached_property
    def outer(self) -> torch.Tensor:
        """<y_i, y_j>, (N, N)."""
        return self.y @ self.y.T

    def unlikelihood(self, kernel: Kernel) -> float:
        """Return -2/D log p(drifts) up to a constant, with the best variance: N log tr(Y'(K+I)^-1 Y) + log det(K+I)."""
        inverse, log_det = kernel.inverse(self.inner, self.squared)
        energy = float((inverse * self.outer).sum())
        return len(self.x) * math.log(max(energy, 1e-300)) + log_det

    def class_error(self, kernel: Kernel) -> float:
        """Return the summed squared error on left-out classes."""
        return float(self.held_out(kernel)[0].sum())

    def held_out(self, kernel: Kernel) -> tuple[torch.Tensor, torch.Tensor]:
        """Return for every class, left out, the squared error at its mean, and the posterior variance there, (C,).

        One inverse serves all classes: without the rows c, the inverse is P - P[:, c] P[c, c]^-1 P[c, :] with zeros in
        row and column c.
        """
        inverse, _ = kernel.inverse(self.inner, self.squared)
        weights = inverse @ self.y
        errors, variances = [], []
        for group in self.groups.unique():
            own = self.groups == group
            mean, drift = self.x[own].mean(dim=0, keepdim=True), self.y[own].mean(dim=0)
            k = kernel.cloud(mean, self.x, self.spread)
            gone = torch.linalg.solve(inverse[own][:, own], torch.cat([inverse[own], weights[own]], dim=1))
            predicted = k @ (weights - inverse[:, own] @ gone[:, len(self.x) :])
            without = inverse - inverse[:, own] @ gone[:, : len(self.x)]
            errors.append((predicted[0] - drift).square().sum())
            variances.append((kernel.cloud_variance(mean, self.spread) - ((k @ without) * k).sum())[0].clamp(min=1e-12))
        return torch.stack(errors), torch.stack(variances)


@dataclass(frozen=True)
class FittedGP(FittedDrift):
    """The posterior of one task's drift.

    Attributes:
        kernel: the chosen one.
        spread: of a class about its mean.
        center, basis, scale: x = (z - center) basis / scale, (r,): the directions that old embeddings span.
        x: (n, r) the images it rests on.
        weights: (n, D) (K + I)^-1 (Z - M).
        inverse: (n, n) (K + I)^-1.
        variance: s^2, summed over the dimensions.
    """

    kernel: Kernel
    spread: Spread
    center: torch.Tensor
    basis: torch.Tensor
    scale: float
    x: torch.Tensor
    weights: torch.Tensor
    inverse: torch.Tensor
    variance: float

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the posterior mean, and `uncertainty` (expected distance to the truth), `distance` to the nearest
        image, and `effective_samples`: independent images at p itself that would leave as little doubt."""
        check_prototypes(prototypes, len(self.center))
        centered = (prototypes.double() - self.center) / self.scale
        p = centered @ self.basis
        # Fewer images than dimensions: what a prototype has in directions without any image, nothing is known about.
        beyond = None
        if self.basis.shape[1] < self.basis.shape[0]:
            beyond = (centered.square().sum(dim=1) - p.square().sum(dim=1)).clamp(min=0)
        k = self.kernel.cloud(p, self.x, self.spread, beyond)
        prior = self.kernel.cloud_variance(p, self.spread, beyond)
        doubt = (prior - ((k @ self.inverse) * k).sum(dim=1)).clamp(min=1e-12)
        values = {
            "uncertainty": (self.variance * doubt).sqrt(),
            "distance": (squared_distances(p, self.x).amin(dim=1) + (0 if beyond is None else beyond)).sqrt()
            * self.scale,
            "effective_samples": (1 / doubt - 1 / prior).clamp(min=0),
        }
        moved = prototypes.double() + k @ self.weights
        return moved.to(prototypes.dtype), {name: value.to(prototypes.dtype) for name, value in values.items()}

    def maps(self, prototypes: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield A_p = I + the gradient of the cloud's mean drift at p, which is the mean gradient over the cloud.

        By Stein's lemma Cov(x, x + delta(x)) = W A_p for x ~ N(p, W): A_p is the best linear map of that cloud.
        """
        identity = torch.eye(len(self.center), dtype=torch.float64)
        for p in (prototypes.double() - self.center) / self.scale:
            beyond = None
            if self.basis.shape[1] < self.basis.shape[0]:
                beyond = (p.square().sum() - (p @ self.basis).square().sum()).clamp(min=0)[None]
            slope = self.kernel.cloud_gradient(p @ self.basis, self.x, self.spread, beyond)
            yield identity + self.basis @ (slope.T @ self.weights) / self.scale

    def noise(self) -> torch.Tensor:
        """Return R: how far each image moves from where all others say; r_i = [(K + I)^-1 y]_i / [(K + I)^-1]_ii."""
        return residual_covariance(self.weights / self.inverse.diagonal()[:, None], 0)


def evenly(groups: torch.Tensor, count: int) -> torch.Tensor:
    """Return at most `count` rows, spread evenly over the groups and within each; nothing is drawn.

    Groups of about the same size are walked through as one; else each gives the same number, or all it has.

    >>> evenly(torch.tensor([0] * 90 + [1] * 3), 6).tolist()
    [0, 44, 89, 90, 91, 92]
    """
    order = torch.argsort(groups, stable=True)
    if len(order) <= count:
        return order
    sizes = groups.unique(return_counts=True)[1]
    if int(sizes.max()) <= 2 * int(sizes.min()) or len(sizes) > count:
        return order[_spaced(len(order), count)]
    taken, left = torch.zeros_like(sizes), count
    for done, row in enumerate(sizes.argsort().tolist()):  # the smallest first: what it leaves over goes to the others
        taken[row] = min(int(sizes[row]), left // (len(sizes) - done))
        left -= int(taken[row])
    parts = order.split(sizes.tolist())
    return torch.cat([part[_spaced(len(part), int(n))] for part, n in zip(parts, taken, strict=True)])


def _spaced(size: int, count: int) -> torch.Tensor:
    """Return `count` positions among `size`, from the first to the last."""
    return torch.linspace(0, size - 1, count, dtype=torch.float64).round().long()
