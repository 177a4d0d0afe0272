"""The interface of a drift estimator: configuration, then fitted on the current task, then asked about prototypes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..config import Config


class FittedDrift(ABC):
    """An estimator that has seen how the current images moved; it can be asked about any prototypes."""

    @abstractmethod
    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the moved prototypes, (K, D) -> (K, D), and named (K,) values: how well supported each movement is."""

    def transport(self, prototypes: torch.Tensor) -> torch.Tensor:
        """Return the prototypes moved into the new embedding space, (K, D) -> (K, D)."""
        return self.explain(prototypes)[0]

    def diagnostics(self, prototypes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return named (K,) values on how well supported each movement is."""
        return self.explain(prototypes)[1]


@dataclass(frozen=True)
class Drift(Config):
    """How stored prototypes are moved after a task. Configuration only."""

    evaluation_only: ClassVar[bool] = False
    """Whether it needs old data, which a real learner does not have."""

    @abstractmethod
    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None) -> FittedDrift:
        """Look at the embeddings of the SAME current images before and after the task.

        Args:
            z_old: (N, D) z^{t-1}, through the network before the task.
            z_new: (N, D) z^t, through the network after it; row i is the same view of the same image.
            labels: (N,) class indices of the images, for estimators that use them.
        """


def check_pairs(z_old: torch.Tensor, z_new: torch.Tensor) -> None:
    """Refuse embeddings that cannot be pairs."""
    if z_old.ndim != 2 or z_old.shape != z_new.shape:
        raise ValueError(
            f"z_old and z_new must be (N, D) embeddings of the same N images, got {tuple(z_old.shape)} and "
            f"{tuple(z_new.shape)}"
        )
    if len(z_old) == 0:
        raise ValueError("drift cannot be measured from no images: z_old and z_new are empty")
