"""The interface of a drift estimator: configuration, then fitted on the current task, then asked about prototypes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

import torch

from ..common.config import Config, check_signatures
from ..common.covariance import Covariance
from ..common.sums import Sums
from ..errors import InputError

Network = Callable[[torch.Tensor], torch.Tensor]
"""Images (N, ...) -> embeddings (N, D), differentiable."""


class FittedDrift(ABC):
    """An estimator that has seen how the current images moved; it can be asked about any prototypes.

    A subclass has `explain`. Optional: `maps` and `noise`, if it says how a class is stretched and not only where it
    goes; `linear`, if it is one linear map; `gaussians`, if it moves covariances in another way.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_signatures(cls)

    @abstractmethod
    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the moved prototypes, (K, D) -> (K, D), and named (K,) values: how well supported each movement is."""

    def maps(self, prototypes: torch.Tensor) -> Iterator[torch.Tensor] | None:
        """Yield for each prototype the linear map of its surroundings, A_c (D, D) in float64; None: it has none."""
        return None

    def noise(self) -> torch.Tensor | None:
        """Return R, (D, D): the covariance of what the map leaves of single images; None: not known."""
        return None

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return moved means and covariances, (K, D) and (K, D, D).

            Sigma_c -> A_c' Sigma_c A_c + R

        An image moves to x A plus what the map does not know, R. Without R moved classes look tighter than they are,
        and win too often. An estimator that says only where a prototype goes translates its class: Sigma_c stays.
        """
        means, maps = self.explain(prototypes)[0], self.maps(prototypes)
        if maps is None:
            return means, covariances
        rest = self.noise()
        moved = torch.empty_like(covariances)
        for row, (sigma, weight) in enumerate(zip(covariances, maps, strict=True)):
            moved[row] = pushed(sigma, weight, rest)
        return means, moved

    def scatter(self, prototypes: torch.Tensor, counts: torch.Tensor, scatter: torch.Tensor) -> torch.Tensor:
        """Return the moved scatter of all N images about their own class's mean, where one matrix is all that is known.

            W -> sum_c n_c (A_c' (W / N) A_c + R)

        Args:
            prototypes: (K, D) of the classes, in the old space.
            counts: (K,) n_c.
            scatter: (D, D) W, in any type, which the result has too.
        """
        total = counts.sum().clamp(min=1)
        line = self.linear()
        if line is not None:
            return pushed(scatter, line[0], self.noise(), int(total))
        if type(self).gaussians is FittedDrift.gaussians and self.maps(prototypes[:1]) is None:
            return scatter
        there = torch.isfinite(prototypes).all(dim=1) & (counts > 0)
        shares = (counts[there].double() / total).tolist()
        every = (scatter.double() / total).expand(len(shares), -1, -1)
        maps = self.maps(prototypes[there]) if type(self).gaussians is FittedDrift.gaussians else None
        if maps is None:
            moved: Iterable[torch.Tensor] = self.gaussians(prototypes[there].double(), every)[1]
        else:  # one after the other: K of them may take much memory
            rest = self.noise()
            moved = (pushed(sigma, weight, rest) for sigma, weight in zip(every, maps, strict=True))
        result = torch.zeros_like(scatter, dtype=torch.float64)
        for share, sigma in zip(shares, moved, strict=True):
            result.add_(sigma, alpha=share * int(total))
        return result.to(scatter.dtype)

    @overload
    def transport(self, prototypes: torch.Tensor, covariances: None = None) -> torch.Tensor: ...

    @overload
    def transport(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def transport(
        self, prototypes: torch.Tensor, covariances: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the prototypes moved into the new embedding space, (K, D) -> (K, D).

        Args:
            prototypes: (K, D), in the old space.
            covariances: (K, D, D) of their classes; then they are moved too, and both are returned.
        """
        if covariances is None:
            return self.explain(prototypes)[0]
        check_gaussians(prototypes, covariances)
        return self.gaussians(prototypes, covariances)

    def linear(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return A (D_old, D_new) and b (D_new,) of a movement x -> x A + b; None: it is no such map.

        Whoever moves millions of vectors needs no more than that.
        """
        return None

    def diagnostics(self, prototypes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return named (K,) values on how well supported each movement is."""
        return self.explain(prototypes)[1]


@dataclass(frozen=True)
class Known(FittedDrift):
    """Prototypes whose new places are known already; it can be asked about these only.

    Attributes:
        moved: (K, D) where they are now.
        values: named (K,) diagnostics.
        covariances: (K, D, D) what they are now; None: not known, they stay.
        true_scatter: (D, D) sum of n_c times them; None: not known, it stays.
    """

    moved: torch.Tensor
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    covariances: torch.Tensor | None = None
    true_scatter: torch.Tensor | None = None

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the known places, and the known covariances; those that were given, if none are known."""
        return self.explain(prototypes)[0], covariances if self.covariances is None else self.covariances

    def scatter(self, prototypes: torch.Tensor, counts: torch.Tensor, scatter: torch.Tensor) -> torch.Tensor:
        """Return the known scatter; that which was given, if none is known."""
        return scatter if self.true_scatter is None else self.true_scatter.to(scatter.dtype)

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the known places."""
        if prototypes.shape != self.moved.shape:
            raise ValueError(
                f"new places are known for prototypes of shape {tuple(self.moved.shape)}, not {tuple(prototypes.shape)}"
            )
        return self.moved.clone(), self.values


@dataclass(frozen=True)
class Leading(FittedDrift):
    """A movement of the first dimensions; the others are features that never drift.

    Attributes:
        moving: the estimator, fitted on the first dimensions.
        size: how many there are.
    """

    moving: FittedDrift
    size: int

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the prototypes with their first dimensions moved, and the estimator's diagnostics."""
        moved, diagnostics = self.moving.explain(prototypes[:, : self.size])
        return torch.cat([moved, prototypes[:, self.size :]], dim=1), diagnostics

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return moved means and covariances, (K, D) and (K, D, D): each class as `scatter` has all of them."""
        one = torch.ones(1, dtype=torch.long)
        pairs = zip(prototypes, covariances, strict=True)
        moved = [self.scatter(mean[None], one, sigma) for mean, sigma in pairs]
        return self.explain(prototypes)[0], torch.stack(moved) if moved else covariances

    def scatter(self, prototypes: torch.Tensor, counts: torch.Tensor, scatter: torch.Tensor) -> torch.Tensor:
        """Return the moved scatter: of the first dimensions by the estimator, C -> A' C what they share with the rest.

        A is the mean of the estimator's maps over the images. Where it moves covariances and has no map, what both
        share is not known any more: 0, with which the matrix stays one of a Gaussian.
        """
        size, first = self.size, prototypes[:, : self.size]
        moved = scatter.clone()
        moved[:size, :size] = self.moving.scatter(first, counts, scatter[:size, :size])
        if not torch.equal(moved[:size, :size], scatter[:size, :size]):
            shared = self._shared(first, counts, scatter[:size, size:])
            moved[:size, size:], moved[size:, :size] = shared, shared.T
        return moved

    def _shared(self, prototypes: torch.Tensor, counts: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        line = self.moving.linear()
        if line is not None:
            return (line[0].T @ shared.to(line[0].dtype)).to(shared.dtype)
        there = torch.isfinite(prototypes).all(dim=1) & (counts > 0)
        maps = self.moving.maps(prototypes[there])
        if maps is None:
            return torch.zeros_like(shared)
        weights = counts[there].double() / counts[there].sum().clamp(min=1)
        mean = sum(float(weight) * one for weight, one in zip(weights, maps, strict=True))
        assert isinstance(mean, torch.Tensor)
        return (mean.T @ shared.double()).to(shared.dtype)


@dataclass(frozen=True)
class Drift(Config, ABC):
    """How stored prototypes are moved after a task. Configuration only.

    A subclass is a frozen dataclass with `fit`. Everything else is optional:

    - `keeps`: what it needs to be kept of every class beside the mean.
    - `draws`: whether runs keep pictures of what it did.
    - `sums` and `fit_sums`: for images that lie in pieces (on ranks). An estimator that declares no sums still works
      there: the embeddings of all pieces are gathered.
    - `needs_networks` and `probe`: for estimators that need images and both networks.
    - `evaluation_only` and `knowing`: for those that need the true new means, which only an experiment has.
    """

    evaluation_only: ClassVar[bool] = False
    """Whether it needs old data, which a real learner does not have: then it has `knowing` beside `fit`."""

    draws: ClassVar[bool] = False
    """Whether a run keeps pictures of the vector field and of the prototypes that it moved."""

    needs_networks: ClassVar[bool] = False
    """Whether it makes its pairs from images and both networks: then it has `probe` beside `fit`."""

    @property
    def keeps(self) -> Covariance | None:
        """What it needs to be kept of every class beside the mean; None: nothing."""
        return None

    @abstractmethod
    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedDrift:
        """Look at the embeddings of the SAME current images before and after the task.

        Args:
            z_old: (N, D) z^{t-1}, through the network before the task.
            z_new: (N, D) z^t, through the network after it; row i is the same view of the same image.
            targets: (N,) class indices of the images, for estimators that use them.
        """

    @property
    def declares_sums(self) -> bool:
        """Whether `sums` and `fit_sums` are there."""
        return type(self).sums is not Drift.sums

    def sums(
        self, prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None
    ) -> Sums | None:
        """Return sums over some images from which the movement of these prototypes follows; None: there are none.

        Args:
            prototypes: (K, D) that will be asked about, the same for all pieces.
            z_old, z_new: (n, D) the pairs of this piece, as for `fit`; n may be 0.
            targets: (n,) their classes.
        """
        return None

    def fit_sums(self, prototypes: torch.Tensor, sums: Sums) -> FittedDrift:
        """Return the estimator fitted on all pieces, from their merged sums; it knows these prototypes only."""
        raise NotImplementedError(f"{type(self).__name__} declares sums and has no fit_sums: write both or neither.")

    def probe(
        self, network_old: Network, network_new: Network, images: torch.Tensor, prototypes: torch.Tensor
    ) -> FittedDrift:
        """Fit on images and both networks; only for estimators that need them.

        Args:
            network_old, network_new: images -> embeddings, before and after the task; differentiable.
            images: (N, ...) the current images.
            prototypes: (K, D) that will be asked about.
        """
        raise InputError(f"{type(self).__name__} does not look at images: use fit(z_old, z_new).")

    def knowing(
        self, true_means: torch.Tensor, covariances: torch.Tensor | None = None, scatter: torch.Tensor | None = None
    ) -> FittedDrift:
        """Fit on the true statistics of the old classes now; for evaluation only.

        Args:
            true_means: (K, D), in prototype order.
            covariances: (K, D, D) of each class, where they are kept.
            scatter: (D, D) of all their images about their own class's mean, where that is kept.
        """
        raise InputError(f"{type(self).__name__} needs no true means: use fit(z_old, z_new).")


def pushed(sigma: torch.Tensor, weight: torch.Tensor, rest: torch.Tensor | None, times: int = 1) -> torch.Tensor:
    """Return A' Sigma A + times R, (D, D), (D, E) -> (E, E): in float64, then in the type of Sigma."""
    moved = weight.T @ (sigma.double() @ weight)
    if rest is not None:
        moved.add_(rest, alpha=times)
    return moved.to(sigma.dtype)


def residual_covariance(rest: torch.Tensor, free: float) -> torch.Tensor:
    """Return R = sum_i r_i r_i' / (N - p), (N, D) -> (D, D) in float64.

    Args:
        rest: r_i = z_i - f(m_i), what a fitted map leaves of each image.
        free: p, the directions that it was free to follow: the trace of its hat matrix. At least one is left.
    """
    rest = rest.double()
    covariance: torch.Tensor = rest.T @ rest / max(1.0, len(rest) - free)
    return covariance


def check_pairs(z_old: torch.Tensor, z_new: torch.Tensor, *, same_size: bool = True, empty: bool = False) -> None:
    """Refuse embeddings that cannot be pairs.

    Args:
        z_old, z_new: (N, D_old) and (N, D_new).
        same_size: whether D_old and D_new must be equal.
        empty: whether N may be 0.
    """
    wrong = z_old.ndim != 2 or z_new.ndim != 2 or len(z_old) != len(z_new)
    if wrong or (same_size and z_old.shape != z_new.shape):
        raise ValueError(
            f"z_old and z_new must be (N, D) embeddings of the same N images, got {tuple(z_old.shape)} and "
            f"{tuple(z_new.shape)}"
        )
    if len(z_old) == 0 and not empty:
        raise ValueError("drift cannot be measured from no images: z_old and z_new are empty")


def check_prototypes(prototypes: torch.Tensor, size: int) -> None:
    """Refuse prototypes that are not (K, size)."""
    if prototypes.ndim != 2 or prototypes.shape[1] != size:
        raise ValueError(f"prototypes must be (K, {size}), got {tuple(prototypes.shape)}")


def check_sigma(sigma: float) -> None:
    """Refuse a bandwidth that is not a positive number."""
    if not (isinstance(sigma, (int, float)) and math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"sigma must be a finite number greater than 0, got {sigma!r}")


def check_gaussians(prototypes: torch.Tensor, covariances: torch.Tensor) -> None:
    """Refuse covariances that do not belong to the prototypes."""
    count, size = prototypes.shape
    if covariances.shape != (count, size, size):
        raise ValueError(f"covariances must be {(count, size, size)}, got {tuple(covariances.shape)}")
