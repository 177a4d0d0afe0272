"""Rebalance's two penalties (Hou et al., CVPR 2019): less-forget and inter-class separation. For `CosineHeads`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import number, one_of, whole
from ..errors import InputError
from .base import Context, Penalty, Step, Tensors

Reading = Literal["paper", "released"]


def less_forget_loss(z: torch.Tensor, z_old: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """Return sqrt(|C_old| / |C_new|) * mean_i (1 - cos(z_i, z_i^{t-1})), (N, D), (N, D) -> scalar.

    Args:
        z, z_old: embeddings of the same views by the new and the old network.
        old, new: numbers of old and of new classes.

    >>> less_forget_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), 4, 1)
    tensor(2.)
    """
    return math.sqrt(old / new) * (1 - F.cosine_similarity(z, z_old, dim=1)).mean()


def margin_ranking_loss(
    cosines_old: torch.Tensor,
    cosines_new: torch.Tensor,
    targets: torch.Tensor,
    margin: float = 0.5,
    negatives: int = 2,
    reading: Reading = "paper",
) -> torch.Tensor:
    """Return the mean over images of sum_k max(0, m - cos(z, w_y) + cos(z, w_k)), k the new classes with the highest
    cosines.

    Args:
        cosines_old, cosines_new: (N, K_old) and (N, K_new) cosines of images of OLD classes with all classes.
        targets: (N,) their classes, in 0..K_old-1.
        margin: m.
        negatives: how many k; fewer if there are fewer new classes.
        reading: "paper": the sum over k; "released": the mean over k.

    >>> margin_ranking_loss(torch.tensor([[0.9, 0.0]]), torch.tensor([[0.5, 0.8, 0.0]]), torch.tensor([0]))
    tensor(0.5000)
    """
    own = cosines_old.gather(1, targets[:, None])
    highest = cosines_new.topk(min(negatives, cosines_new.shape[1]), dim=1).values
    terms = (margin - own + highest).clamp(min=0)
    return terms.sum(dim=1).mean() if reading == "paper" else terms.mean()


@runtime_checkable
class CosineHead(Protocol):
    """A head that compares embeddings with class embeddings, as those of `CosineHeads` do."""

    weight: nn.Parameter

    def cosines(self, z: torch.Tensor) -> torch.Tensor:
        """Return the cosine of each embedding with each class embedding, (N, D) -> (N, classes)."""


def _cosine_heads(network: nn.Module) -> list[CosineHead]:
    return [module for module in network.modules() if isinstance(module, CosineHead)]


def _count(heads: list[CosineHead]) -> int:
    return sum(len(head.weight) for head in heads)


@dataclass(frozen=True)
class _Rebalance(Penalty):
    """What both share: they compare embeddings with the class embeddings of cosine heads."""

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Check that there are cosine heads."""
        if not _cosine_heads(context.network):
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

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Fix the old classes' weights."""
        super().start_task(context, penalty_state, network)
        for head in _cosine_heads(network)[:-1]:
            head.weight.requires_grad_(False)
        return {}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return sqrt(|C_old| / |C_new|) * mean_i (1 - cos(z_i, z_i^{t-1}))."""
        *old, new = _cosine_heads(step.network)
        return less_forget_loss(step.z, step.z_old, _count(old), _count([new]))

    def merge(self, network: nn.Module, state: Tensors) -> None:
        """Let all weights go again."""
        for head in _cosine_heads(network):
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
    reading: Reading = "paper"
    rules: ClassVar = {
        "gamma": number(0),
        "margin": number(0),
        "negatives": whole(1),
        "reading": one_of("paper", "released"),
    }

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_mr of the batch."""
        *old_heads, new_head = _cosine_heads(step.network)
        exemplars = step.targets < _count(old_heads)
        if not bool(exemplars.any()):
            return step.z.new_zeros(())
        z = step.z[exemplars]
        cosines_old = torch.cat([head.cosines(z) for head in old_heads], dim=1)
        return margin_ranking_loss(
            cosines_old, new_head.cosines(z), step.targets[exemplars], self.margin, self.negatives, self.reading
        )
