"""LwF: hold the answers of the old network on the current images (Eq. 4 for embeddings)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..common.config import number, one_of
from ..training.step import Step
from .base import Penalty, Tensors


@dataclass(frozen=True)
class LwF(Penalty):
    """Learning without forgetting: the answer to the same view of the same image must stay.

    What is held is what the objective names. Embeddings: the alignment loss of E-LwF, Eq. 4,
    L_LwF = || z_i^t - z_i^{t-1} ||. Softmax heads: the cross-entropy to the old heads' probabilities at a temperature
    (Li and Hoiem). Sigmoid heads: the binary cross-entropy to the old classes' sigmoids (iCaRL).

    Args:
        gamma: trade-off; 1 in the paper (Sec. 5).
        reading: of Eq. 4. "paper": the norm, mean over the images of a batch; "released": 1/2 the sum of squares over
            batch and dimensions, as the paper's code computes it.
        temperature: of softmax heads; 2 as in Li and Hoiem.
    """

    asks_old_network: ClassVar[bool] = True
    gamma: float = 1.0
    reading: str = "paper"
    temperature: float = 2.0
    rules: ClassVar = {"gamma": number(0), "reading": one_of("paper", "released"), "temperature": number(above=0)}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_LwF of the batch."""
        held = step.objective.held(step)
        pairs = zip(held.now, held.old, strict=True)
        if held.kind == "embeddings":
            return torch.stack([self._alignment(now, old) for now, old in pairs]).sum()
        if held.kind == "logits":
            return torch.stack([distillation(now, old, self.temperature) for now, old in pairs]).sum()
        single = [F.binary_cross_entropy_with_logits(now, old.sigmoid(), reduction="none") for now, old in pairs]
        return torch.cat(single, dim=1).sum(dim=1).mean()

    def _alignment(self, z: torch.Tensor, z_old: torch.Tensor) -> torch.Tensor:
        difference = z - z_old
        if self.reading == "released":
            return 0.5 * difference.square().sum()
        lengths: torch.Tensor = torch.linalg.vector_norm(difference, dim=1)
        return lengths.mean()


def distillation(logits: torch.Tensor, logits_old: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return -sum_c p_old(c) log p(c), probabilities at a temperature, mean over images: (N, C), (N, C) -> scalar."""
    target = (logits_old / temperature).softmax(dim=1)
    return -(target * (logits / temperature).log_softmax(dim=1)).sum(dim=1).mean()
