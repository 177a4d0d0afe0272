"""Ridge regression to one-hot classes, from sums alone: plain (DPCR), or behind a random ReLU layer (RanPAC, ACIL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..common.config import flag, number, optional, whole
from ..common.covariance import Covariance
from ..common.scatter import ScatterSums, add_products, class_sums, mirror, store_type
from ..common.seeding import generator
from ..common.sums import Sums
from ..common.transport import Transport
from .base import LinearReadout, PoweredReadout, PreparedReadout, Scorer, Tensors, View, present
from .scatter import ScatterReadout, cholesky

RIDGES = tuple(10.0**power for power in range(-8, 9))
"""Among which a ridge is chosen, in units of the mean square of the lifted features (RanPAC: the same, absolute)."""

_CHOOSING = 2000  # images that choose the ridge: one decomposition of that size
_AT_ONCE = 1024  # images in the lifted space at once


def ridge_weights(
    means: torch.Tensor, scatter: torch.Tensor, counts: torch.Tensor, ridge: float, relative: bool = True
) -> torch.Tensor:
    """Return the weights of ridge regression to one-hot classes, from statistics alone.

        W = (sum_k n_k (Sigma_k + mu_k mu_k') + lambda I)^-1 [n_k mu_k]

    Args:
        means: (K, D) mu_k.
        scatter: (D, D) sum_k n_k Sigma_k.
        counts: (K,) n_k.
        ridge: lambda, or lambda / (trace / D) if `relative`: then no unit enters.

    Returns:
        (D, K), float64.
    """
    gram = scatter.clone()
    add_products(gram, means, counts[:, None] * means)
    return _solved(mirror(gram), (counts[:, None] * means).T, ridge, relative)


def _solved(gram: torch.Tensor, sums: torch.Tensor, ridge: float, relative: bool) -> torch.Tensor:
    """Return (G + lambda I)^-1 S, (D, D), (D, K) -> (D, K) in float64; the Gram matrix is used up."""
    mean = float(gram.trace()) / len(gram)
    gram.diagonal().add_(ridge * (mean or 1.0) if relative else ridge)
    return torch.cholesky_solve(sums.to(gram.dtype), cholesky(gram, "ridge")).double()


@dataclass(frozen=True)
class RidgeClassifier(ScatterReadout, LinearReadout):
    """A linear classifier that needs only means, counts and one matrix: the ridge head of DPCR.

        W = (sum_c n_c (Sigma_c + mu_c mu_c') + lambda I)^-1 [n_c mu_c],   score_c(z) = z . w_c

    On statistics that were never moved, this is ridge regression to one-hot classes over all images ever seen.

    Args:
        ridge: lambda relative to the mean eigenvalue, trace / D.
        normalize: every w_c of unit length, so that no class wins by its size.
        covariance: a covariance of every class to keep in place of their sum, which is all that matters as long as
            nothing moves: an estimator that moves every class by its own map moves these better.
        relative: False: lambda is `ridge` itself (DPCR: 200 on CIFAR-100 and CUB).
        tukey, unit: the space, see `PoweredReadout`.
    """

    ridge: float = 1e-2
    normalize: bool = True
    covariance: Covariance | None = None
    relative: bool = True
    stores: ClassVar[str] = "a prototype for every class, and covariances"
    rules: ClassVar = {**PoweredReadout.rules, "ridge": number(above=0), "normalize": flag, "relative": flag}

    @property
    def keeps(self) -> Covariance | None:
        """Covariances, if they are asked for."""
        return self.covariance

    def learn(self, readout_state: Tensors, z: torch.Tensor, targets: torch.Tensor, task: int, seed: int) -> Tensors:
        """Add the task's scatter, unless covariances are kept."""
        return readout_state if self.covariance else super().learn(readout_state, z, targets, task, seed)

    def refreshed(
        self,
        readout_state: Tensors,
        means: torch.Tensor,
        counts: torch.Tensor,
        added: torch.Tensor,
        added_counts: torch.Tensor,
    ) -> Tensors:
        """Add the term between the means, unless covariances are kept."""
        if self.covariance:
            return readout_state
        return super().refreshed(readout_state, means, counts, added, added_counts)

    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W; b is 0, or -inf for a class without a prototype."""
        means, bias = present(view.prototypes.double())
        counts = view.counts.double() * (bias == 0)
        if self.covariance is None:
            scatter = view.readout_state["scatter"]
        elif "shared" in view.statistics:
            scatter = counts.sum() * view.statistics["shared"].double()
        else:
            scatter = torch.einsum("k,kde->de", counts, view.covariances().double())
        weights = ridge_weights(means, scatter, counts, self.ridge, self.relative)
        return F.normalize(weights, dim=0) if self.normalize else weights, bias


def left_out_errors(x: torch.Tensor, targets: torch.Tensor, classes: int, ridges: torch.Tensor) -> torch.Tensor:
    """Return the squared error of ridge regression on left-out images, for each ridge, from one decomposition.

        e_i = [(X X' + lambda I)^-1 Y]_i / [(X X' + lambda I)^-1]_ii     (exact leave-one-out residuals)

    Args:
        x: (n, D).
        targets: (n,) classes, 0..classes-1; Y is one-hot.
        ridges: (r,) lambda.

    Returns:
        (r,) sums over images and classes.
    """
    values, vectors = torch.linalg.eigh(x.double() @ x.double().T)
    y = vectors.T @ F.one_hot(targets, classes).double()
    squares = vectors.square()
    errors = []
    for ridge in ridges.tolist():
        scale = 1 / (values.clamp(min=0) + ridge)
        left = (vectors @ (scale[:, None] * y)) / (squares @ scale)[:, None]
        errors.append(left.square().sum())
    return torch.stack(errors)


@dataclass(frozen=True)
class LiftSums(ScatterSums):
    """Sums over lifted images beside those of the embeddings themselves.

    Attributes:
        gram: (M, M) sum of h h'.
        lifted: (K, M) sum of h of each class, float64.
        errors: (len(RIDGES),) of each ridge on left-out images; those of the pieces of a task add up.
        scale: () sum of the mean squares of h over the images that chose.
        chose: () how many they are.
    """

    gram: torch.Tensor
    lifted: torch.Tensor
    errors: torch.Tensor
    scale: torch.Tensor
    chose: torch.Tensor

    def merge(self, other: ScatterSums) -> LiftSums:
        """Return the sums over both sets of images."""
        assert isinstance(other, LiftSums)
        base = ScatterSums.merge(self, other)
        return LiftSums(
            base.counts,
            base.means,
            base.scatter,
            self.gram + other.gram,
            self.lifted + other.lifted,
            self.errors + other.errors,
            self.scale + other.scale,
            self.chose + other.chose,
        )


@dataclass(frozen=True)
class LiftedRidge(ScatterReadout, PreparedReadout):
    """Ridge regression behind a random ReLU layer that is never trained: RanPAC (NeurIPS 2023), ACIL (NeurIPS 2022).

        h(z) = relu(z V),  V (D, M) ~ N(0, 1);   W = (sum_i h_i h_i' + lambda I)^-1 sum_i h_i y_i';   score(z) = h(z) W

    It pays where features are few (64 of a ResNet-32). The Gram form is that of ACIL's recursion: both are ridge
    regression over all images ever seen. V follows from `seed`, and is not stored.

    After drift a Gram matrix of h cannot be moved. So the scatter of z itself is kept too, which can; then `samples`
    vectors of each class are drawn from N(mu_c, Sigma), lifted, and summed as if they were its images.

    Args:
        units: M.
        ridge: lambda relative to the mean eigenvalue, trace / M; None: the one of `RIDGES` with the least squared error
            on left-out images of the current task, each in turn (RanPAC: on a fifth of them).
        relative: False: lambda is `ridge` itself (ACIL: 0.1).
        normalize: every column of W of unit length.
        samples: of each class after drift.
        seed: of V and of the samples.
        tukey, unit: the space, see `PoweredReadout`.
    """

    units: int = 5000
    ridge: float | None = None
    relative: bool = True
    normalize: bool = False
    samples: int = 200
    seed: int = 0
    most_rows: ClassVar[int] = _AT_ONCE
    stores: ClassVar[str] = "a prototype for every class, one covariance, and a Gram matrix of random features"
    rules: ClassVar = {
        **PoweredReadout.rules,
        "units": whole(1),
        "ridge": optional(number(above=0)),
        "relative": flag,
        "normalize": flag,
        "samples": whole(1),
        "seed": whole(0),
    }

    def lift(self, z: torch.Tensor) -> torch.Tensor:
        """Return h(z), (N, D) -> (N, M), in float32."""
        return (z.float() @ self._draw(z.shape[1])).relu_()

    def _draw(self, size: int) -> torch.Tensor:
        return torch.randn(size, self.units, generator=generator(self.seed, "random units"))

    def learn(self, readout_state: Tensors, z: torch.Tensor, targets: torch.Tensor, task: int, seed: int) -> Tensors:
        """Add the task's sums."""
        return self.learn_sums(readout_state, self.sums(z, targets, len(torch.bincount(targets))), task, seed)

    def sums(self, z: torch.Tensor, targets: torch.Tensor, classes: int) -> LiftSums:
        """Return the sums over lifted images and over the images themselves, and what each ridge is worth on them."""
        base = ScatterSums.of(z, targets, classes)
        gram, lifted = self._lifted(z, targets, classes)
        errors, scale, chose = torch.zeros(len(RIDGES), dtype=torch.float64), torch.zeros(()), torch.tensor(0)
        if self.ridge is None and len(z) > 1:
            some = torch.linspace(0, len(z) - 1, min(len(z), _CHOOSING), dtype=torch.float64).round().long()
            h = self.lift(z[some]).double()
            scale, chose = h.square().mean(dim=1).sum(), torch.tensor(len(some))
            errors = left_out_errors(h, targets[some], classes, torch.tensor(RIDGES) * float(scale / chose))
        fields = (base.counts, base.means, base.scatter, gram, lifted, errors, scale.double(), chose)
        return LiftSums(*fields)

    def _lifted(self, z: torch.Tensor, targets: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        gram = torch.zeros(self.units, self.units, dtype=store_type(self.units))
        lifted = torch.zeros(classes, self.units, dtype=torch.float64)
        for some, of in zip(z.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            h = self.lift(some)
            add_products(gram, h)
            lifted += class_sums(h, of, classes)
        return mirror(gram), lifted

    def learn_sums(self, readout_state: Tensors, sums: Sums, task: int, seed: int) -> Tensors:
        """Add the sums; the ridge is that of the current task."""
        assert isinstance(sums, LiftSums)
        ridge = readout_state.get("ridge", torch.tensor(1.0, dtype=torch.float64))  # where one image chooses nothing
        if int(sums.chose):
            ridge = RIDGES[int(sums.errors.argmin())] * sums.scale / sums.chose
        state = {"scatter": sums.scatter, "count": sums.counts.sum(), "gram": sums.gram, "lifted": sums.lifted}
        if readout_state:
            padded = _padded(readout_state["lifted"], len(sums.lifted))
            state = {
                name: value + (padded if name == "lifted" else readout_state[name]) for name, value in state.items()
            }
        return {**state, "ridge": ridge}

    def added(
        self, readout_state: Tensors, other: Tensors, targets: torch.Tensor, classes: int, sign: int = 1
    ) -> Tensors:
        """Add the sums, those of each class at its place; the ridge stays."""
        result = {name: readout_state[name] + sign * other[name] for name in ("scatter", "count", "gram")}
        lifted = _padded(readout_state["lifted"], classes).clone()
        known = targets >= 0
        lifted.index_add_(0, targets[known], other["lifted"][: len(targets)][known], alpha=sign)
        return {**result, "lifted": lifted, "ridge": readout_state["ridge"]}

    def moved(
        self,
        readout_state: Tensors,
        fitted: Transport,
        prototypes: torch.Tensor,
        counts: torch.Tensor,
        task: int,
        seed: int,
    ) -> Tensors:
        """Move the scatter of z, and sum lifted samples of N(mu_c, Sigma) in place of the images."""
        state = super().moved(readout_state, fitted, prototypes, counts, task, seed)
        means, valid = fitted.explain(prototypes)[0].double(), torch.isfinite(prototypes).all(dim=1)
        sigma = state["scatter"].double() / int(state["count"])
        values, vectors = torch.linalg.eigh(sigma)
        root = vectors * values.clamp(min=0).sqrt()
        draw = generator(self.seed, "lift samples", seed, task)
        gram = torch.zeros_like(readout_state["gram"])
        lifted = torch.zeros_like(readout_state["lifted"])
        for row in valid.nonzero().flatten().tolist():
            noise = torch.randn(self.samples, len(sigma), generator=draw, dtype=torch.float64)
            h = self.lift(means[row] + noise @ root.T)
            share = int(counts[row]) / self.samples
            add_products(gram, h, share * h)
            lifted[row] = share * h.double().sum(dim=0)
        return {**state, "gram": mirror(gram), "lifted": lifted}

    def scorer(self, view: View) -> Scorer:
        """Return z -> h(z) W, (N, K), in float64; W is solved for once. A class without a prototype gets -inf."""
        state, (_, bias) = view.readout_state, present(view.prototypes.double())
        lifted = _padded(state["lifted"], len(bias))[: len(bias)]
        gram, ridge, relative = state["gram"], self.ridge, self.relative
        if ridge is None:  # the chosen one, but not below what rounding leaves of the smallest eigenvalues
            known = torch.finfo(gram.dtype).eps * float(gram.trace())
            ridge, relative = max(float(state["ridge"]), known), False
        weights = _solved(gram.clone(), lifted.T, ridge, relative)
        weights = F.normalize(weights, dim=0) if self.normalize else weights
        draw = self._draw(view.prototypes.shape[1])
        return lambda z, logits: (self.space(z).float() @ draw).relu().double() @ weights + bias


def _padded(lifted: torch.Tensor, classes: int) -> torch.Tensor:
    """Return sums of K classes as those of more, which have no image yet."""
    return F.pad(lifted, (0, 0, 0, max(0, classes - len(lifted))))
