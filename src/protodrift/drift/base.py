"""The interface of a drift estimator: configuration, then fitted on the current task, then asked about prototypes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, overload

import torch

from ..common.config import Config
from ..errors import InputError
from ..prototypes.covariance import Covariance

Network = Callable[[torch.Tensor], torch.Tensor]
"""Images (N, ...) -> embeddings (N, D), differentiable."""


class FittedDrift(ABC):
    """An estimator that has seen how the current images moved; it can be asked about any prototypes."""

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

    def diagnostics(self, prototypes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return named (K,) values on how well supported each movement is."""
        return self.explain(prototypes)[1]


@dataclass(frozen=True)
class Drift(Config):
    """How stored prototypes are moved after a task. Configuration only."""

    evaluation_only: ClassVar[bool] = False
    """Whether it needs old data, which a real learner does not have."""

    needs_networks: ClassVar[bool] = False
    """Whether it makes its pairs from images and both networks: then it has `probe` beside `fit`."""

    @property
    def keeps(self) -> Covariance | None:
        """What it needs to be kept of every class beside the mean; None: nothing."""
        return None

    @abstractmethod
    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None) -> FittedDrift:
        """Look at the embeddings of the SAME current images before and after the task.

        Args:
            z_old: (N, D) z^{t-1}, through the network before the task.
            z_new: (N, D) z^t, through the network after it; row i is the same view of the same image.
            labels: (N,) class indices of the images, for estimators that use them.
        """

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


def check_pairs(z_old: torch.Tensor, z_new: torch.Tensor, *, same_size: bool = True) -> None:
    """Refuse embeddings that cannot be pairs.

    Args:
        z_old, z_new: (N, D_old) and (N, D_new).
        same_size: whether D_old and D_new must be equal.
    """
    wrong = z_old.ndim != 2 or z_new.ndim != 2 or len(z_old) != len(z_new)
    if wrong or (same_size and z_old.shape != z_new.shape):
        raise ValueError(
            f"z_old and z_new must be (N, D) embeddings of the same N images, got {tuple(z_old.shape)} and "
            f"{tuple(z_new.shape)}"
        )
    if len(z_old) == 0:
        raise ValueError("drift cannot be measured from no images: z_old and z_new are empty")


def check_prototypes(prototypes: torch.Tensor, size: int) -> None:
    """Refuse prototypes that are not (K, size)."""
    if prototypes.ndim != 2 or prototypes.shape[1] != size:
        raise ValueError(f"prototypes must be (K, {size}), got {tuple(prototypes.shape)}")


def check_gaussians(prototypes: torch.Tensor, covariances: torch.Tensor) -> None:
    """Refuse covariances that do not belong to the prototypes."""
    count, size = prototypes.shape
    if covariances.shape != (count, size, size):
        raise ValueError(f"covariances must be {(count, size, size)}, got {tuple(covariances.shape)}")
