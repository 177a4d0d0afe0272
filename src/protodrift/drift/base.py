"""The interface of a drift estimator: configuration, then fitted on the current task, then asked about prototypes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, overload

import torch

from ..common.config import Config
from ..common.covariance import Covariance
from ..common.sums import Sums
from ..errors import InputError

Network = Callable[[torch.Tensor], torch.Tensor]
"""Images (N, ...) -> embeddings (N, D), differentiable."""


class FittedDrift(ABC):
    """An estimator that has seen how the current images moved; it can be asked about any prototypes.

    A subclass has `explain`. Optional: `gaussians`, if it moves covariances, and `linear`, if it is one linear map.
    """

    @abstractmethod
    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the moved prototypes, (K, D) -> (K, D), and named (K,) values: how well supported each movement is."""

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return moved means and covariances, (K, D) and (K, D, D).

        An estimator that says only where a prototype goes translates its class: the covariance stays. Those that know
        more (a linear map, an adapter) say more.
        """
        return self.explain(prototypes)[0], covariances

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
    """

    moved: torch.Tensor
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the known places."""
        if prototypes.shape != self.moved.shape:
            raise ValueError(
                f"new places are known for prototypes of shape {tuple(self.moved.shape)}, not {tuple(prototypes.shape)}"
            )
        return self.moved.clone(), self.values


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

    def knowing(self, true_means: torch.Tensor) -> FittedDrift:
        """Fit on the true new means of the old classes, (K, D), in prototype order; for evaluation only."""
        raise InputError(f"{type(self).__name__} needs no true means: use fit(z_old, z_new).")


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
