"""LwF: hold the answers of the old network on the current images (Eq. 4 for embeddings)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from ..common.config import number, one_of
from .base import Penalty, Step, Tensors

Reading = Literal["paper", "released"]


def alignment_loss(z: torch.Tensor, z_old: torch.Tensor, reading: Reading = "paper") -> torch.Tensor:
    """Return L_LwF = || z_i^t - z_i^{t-1} || (Eq. 4), (N, D), (N, D) -> scalar.

    Args:
        z, z_old: embeddings of the same views by the new and the old network.
        reading: "paper": the mean of the norms; "released": 1/2 the sum of squares over batch and dimensions.

    >>> z, z_old = torch.tensor([[3.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 4.0], [1.0, 0.0]])
    >>> alignment_loss(z, z_old), alignment_loss(z, z_old, "released")
    (tensor(2.5000), tensor(12.5000))
    """
    difference = z - z_old
    if reading == "released":
        return 0.5 * difference.square().sum()
    lengths: torch.Tensor = torch.linalg.vector_norm(difference, dim=1)
    return lengths.mean()


def distillation_loss(logits: torch.Tensor, logits_old: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """Return -sum_c p_old(c) log p(c), probabilities at a temperature, mean over images: (N, C), (N, C) -> scalar.

    >>> distillation_loss(torch.zeros(1, 4), torch.zeros(1, 4)).exp()
    tensor(4.)
    """
    target = (logits_old / temperature).softmax(dim=1)
    return -(target * (logits / temperature).log_softmax(dim=1)).sum(dim=1).mean()


def sigmoid_distillation_loss(outputs: Sequence[torch.Tensor], outputs_old: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return sum_c BCE(sigmoid(o_c), sigmoid(o_c^{t-1})) over the classes of all heads, mean over images (iCaRL).

    Args:
        outputs, outputs_old: the heads' outputs before the sigmoid, (N, classes of the head) each.

    >>> sigmoid_distillation_loss([torch.zeros(1, 2)], [torch.zeros(1, 2)]).exp()
    tensor(4.)
    """
    terms = [
        F.binary_cross_entropy_with_logits(now, old.sigmoid(), reduction="none")
        for now, old in zip(outputs, outputs_old, strict=True)
    ]
    return torch.cat(terms, dim=1).sum(dim=1).mean()


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
        over: of softmax heads. "head": a softmax for each head, where the objective has one for each; "all": one over
            the classes of all old heads. LwF(gamma=10, over="all") is the distillation of the field's later methods
            (SDC's own authors' re-runs, ADC, LDC, DPCR): -10 mean_i sum_c p_old(c | x_i) log p(c | x_i) at T = 2.
    """

    asks_old_network: ClassVar[bool] = True
    gamma: float = 1.0
    reading: Reading = "paper"
    temperature: float = 2.0
    over: Literal["head", "all"] = "head"
    rules: ClassVar = {
        "gamma": number(0),
        "reading": one_of("paper", "released"),
        "temperature": number(above=0),
        "over": one_of("head", "all"),
    }

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_LwF of the batch."""
        held = step.held
        if held.kind == "sigmoids":
            return sigmoid_distillation_loss(held.now, held.old)
        pairs = list(zip(held.now, held.old, strict=True))
        if held.kind == "embeddings":
            return torch.stack([alignment_loss(z, z_old, self.reading) for z, z_old in pairs]).sum()
        if self.over == "all":
            pairs = [(torch.cat(held.now, dim=1), torch.cat(held.old, dim=1))]
        return torch.stack([distillation_loss(now, old, self.temperature) for now, old in pairs]).sum()
