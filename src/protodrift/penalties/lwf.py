"""E-LwF: hold the embeddings of the current images where the old network put them (Eq. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..config import number, one_of
from ..step import Step
from .base import Penalty, Tensors


@dataclass(frozen=True)
class LwF(Penalty):
    """Alignment loss, Eq. 4: L_LwF = || z_i^t - z_i^{t-1} ||, on the same view of the same image.

    Args:
        gamma: trade-off; 1 in the paper (Sec. 5).
        reading: "paper": the norm, mean over the images of a batch; "released": 1/2 the sum of squares over batch and
            dimensions, as the paper's code computes it.
    """

    gamma: float = 1.0
    reading: str = "paper"
    rules: ClassVar = {"gamma": number(0), "reading": one_of("paper", "released")}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_LwF of the batch."""
        difference = step.z - step.z_old
        if self.reading == "released":
            return 0.5 * difference.square().sum()
        lengths: torch.Tensor = torch.linalg.vector_norm(difference, dim=1)
        return lengths.mean()
