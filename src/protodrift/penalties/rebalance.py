"""Rebalance's two penalties (Hou et al., CVPR 2019): less-forget and inter-class separation. For `CosineHeads`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from ..common.config import number, one_of, whole
from ..errors import InputError
from ..objectives.cosine import CosineHead, cosine_heads
from ..training.step import Step
from .base import Penalty, TaskContext, Tensors

if TYPE_CHECKING:
    from ..networks.embedder import Embedder


@dataclass(frozen=True)
class _Rebalance(Penalty):
    """What both share: they speak about the class embeddings of cosine heads."""

    def start_task(self, context: TaskContext, penalty_state: Tensors, network: Embedder) -> Tensors:
        """Check that there are cosine heads."""
        if not cosine_heads(context.network):
            raise InputError(
                f"{type(self).__name__} compares embeddings with cosine heads, and this network has none. Use "
                "objective=CosineHeads()."
            )
        return {}


@dataclass(frozen=True)
class LessForget(_Rebalance):
    """Less-forget constraint: L_dis = sqrt(|C_old| / |C_new|) * mean_i (1 - cos(z_i, z_i^{t-1})).

    The orientation of the embeddings is held while the old classes' weights stay fixed in the task (the paper's
    Sec. 3.3), so that the two keep their relation.

    Args:
        gamma: lambda_base; 5 for CIFAR-100 and 10 for ImageNet in the authors' scripts. The square root adapts it to
            each task: the more old classes there are for each new one, the more there is to hold.
    """

    asks_old_network: ClassVar[bool] = True
    gamma: float = 5.0
    rules: ClassVar = {"gamma": number(0)}

    def start_task(self, context: TaskContext, penalty_state: Tensors, network: Embedder) -> Tensors:
        """Fix the old classes' weights."""
        super().start_task(context, penalty_state, network)
        for head in cosine_heads(network)[:-1]:
            head.weight.requires_grad_(False)
        return {}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return sqrt(|C_old| / |C_new|) * mean_i (1 - cos(z_i, z_i^{t-1}))."""
        old, new = _count(cosine_heads(step.network)[:-1]), _count(cosine_heads(step.network)[-1:])
        return math.sqrt(old / new) * (1 - F.cosine_similarity(step.z, step.z_old, dim=1)).mean()

    def merge(self, network: Embedder, state: Tensors) -> None:
        """Let all weights go again."""
        for head in cosine_heads(network):
            head.weight.requires_grad_(True)


@dataclass(frozen=True)
class MarginRanking(_Rebalance):
    """Inter-class separation: an old class's exemplar must be nearer to its own class than to new ones, by a margin.

    L_mr(x) = sum_k max(0, m - cos(z, w_y) + cos(z, w_k)) over the K new classes k with the highest cosines; mean over
    the images of old classes in the batch, 0 if there are none.

    Args:
        gamma: trade-off; 1 in the authors' scripts.
        margin: m; 0.5 in the authors' scripts.
        negatives: K; 2 in the authors' scripts. A task of fewer classes has fewer.
        reading: "paper": the sum over k; "released": the mean over k, as the paper's code computes it.
    """

    gamma: float = 1.0
    margin: float = 0.5
    negatives: int = 2
    reading: str = "paper"
    rules: ClassVar = {
        "gamma": number(0),
        "margin": number(0),
        "negatives": whole(1),
        "reading": one_of("paper", "released"),
    }

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_mr of the batch."""
        *old_heads, new_head = cosine_heads(step.network)
        exemplars = step.targets < _count(old_heads)
        if not bool(exemplars.any()):
            return step.z.new_zeros(())
        z, targets = step.z[exemplars], step.targets[exemplars]
        own = torch.cat([head.cosines(z) for head in old_heads], dim=1).gather(1, targets[:, None])
        highest = new_head.cosines(z).topk(min(self.negatives, _count([new_head])), dim=1).values
        terms = (self.margin - own + highest).clamp(min=0)
        return terms.sum(dim=1).mean() if self.reading == "paper" else terms.mean()


def _count(heads: list[CosineHead]) -> int:
    return sum(len(head.weight) for head in heads)
