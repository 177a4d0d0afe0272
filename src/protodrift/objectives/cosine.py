"""Rebalance's classifier: cosine heads under one softmax (Hou et al., "Learning a Unified Classifier Incrementally via
Rebalancing", CVPR 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import number
from ..distributed.passes import embedded
from ..distributed.world import current
from ..prototypes.store import class_means
from ..training.step import Step
from .base import Held
from .softmax import _Heads

if TYPE_CHECKING:
    from ..networks.embedder import Embedder
    from ..penalties.base import TaskContext


class CosineHead(nn.Module):
    """z -> eta <z / |z|, w_c / |w_c|>, (N, D) -> (N, classes); eta is one parameter, tied between all heads.

    A tied parameter is in `parameters()` once, and in the state dict under the name of every head with the same value,
    so that a network's heads can be grown, copied, saved and loaded like any others.
    """

    def __init__(self, features: int, classes: int, eta: nn.Parameter) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)
        self.eta = eta

    def cosines(self, z: torch.Tensor) -> torch.Tensor:
        """Return the cosine of each embedding with each class embedding w_c, (N, D) -> (N, classes)."""
        return F.normalize(z, dim=1) @ F.normalize(self.weight, dim=1).T

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Return the logits eta * cos(z, w_c), (N, classes)."""
        return self.eta * self.cosines(z)


@dataclass(frozen=True)
class CosineHeads(_Heads):
    """Cross-entropy over the classes of ALL heads, p(c | x) = softmax_c(eta cos(z, w_c)), with a learned scale eta.

    New classes begin with imprinted weights: w_c is the direction of the mean of z / |z| over their images by the OLD
    network, with the average length of the old classes' weights. Rebalance is this objective with `LessForget`,
    `MarginRanking` and `Herding`. The original takes the last ReLU out of its ResNet, so that features have both signs;
    here the backbone stays as it is for all methods.

    Args:
        scale: eta before the first task. The paper does not print it; its code starts at 1, with steps of 0.1 (SGD).
    """

    scale: float = 10.0  # with Adam's small steps eta hardly moves: at 1 two classes cannot pass p = 0.88
    rules: ClassVar = {"scale": number(above=0)}

    def grow(self, network: Embedder, classes: int) -> None:
        """Add a cosine head for the new classes, with the eta of the heads that are there."""
        like = next(network.parameters())
        eta = next((head.eta for head in cosine_heads(network)), nn.Parameter(torch.tensor(self.scale)))
        network.heads.append(CosineHead(network.embedding_dim, classes, eta).to(like))

    def start_task(self, network: Embedder, context: TaskContext, classes: int) -> None:
        """Grow, and from the second task on imprint the new classes' weights."""
        self.grow(network, classes)
        *old, new = cosine_heads(network)
        if old:
            weights = imprinted(context, torch.cat([head.weight.detach() for head in old]), classes)
            new.weight.data.copy_(weights)

    def single_losses(self, step: Step) -> torch.Tensor:
        """Return -log p(y_i | x_i), (N,)."""
        return F.cross_entropy(torch.cat(step.logits, dim=1), step.targets, reduction="none")

    def held(self, step: Step) -> Held:
        """The logits of all old classes, one softmax."""
        now = step.logits[: len(step.logits_old)]
        return Held("logits", [torch.cat(now, dim=1)], [torch.cat(step.logits_old, dim=1)])


def cosine_heads(network: Embedder) -> list[CosineHead]:
    """Return the network's cosine heads, one a task."""
    return [head for head in network.heads if isinstance(head, CosineHead)]


def imprinted(context: TaskContext, old_weights: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the first weights of new classes, in the direction of mean_i z_i / |z_i|: (classes, D).

    Args:
        context: the task about to begin: the old network, the new images (and those of a exemplars).
        old_weights: (K, D) of the old classes; their average length becomes that of the new ones.
        classes: how many are new: rows K, K + 1, ...
    """
    new = context.targets >= len(old_weights)
    z = F.normalize(embedded(current(), context.network, context.images[new], 256, fold=False), dim=1)
    means = class_means(z, context.targets[new] - len(old_weights), classes).to(old_weights)
    length: torch.Tensor = torch.linalg.vector_norm(old_weights, dim=1).mean()
    return F.normalize(means, dim=1) * length
