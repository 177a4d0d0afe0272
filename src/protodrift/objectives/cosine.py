"""Rebalance's classifier: cosine heads under one softmax (Hou et al., "Learning a Unified Classifier Incrementally via
Rebalancing", CVPR 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import number
from .base import Held, Network, Step, Task
from .softmax import Heads, softmax_losses


def cosine_losses(z: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return -log p(y_i | x_i), p(c | x) = softmax_c(eta cos(z, w_c)), of each image, (N,).

    Args:
        z: (N, D) embeddings.
        targets: (N,) classes.
        weight: (K, D) class embeddings w.
        scale: eta.

    >>> cosine_losses(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), torch.tensor([[2.0, 0.0], [4.0, 0.0]])).exp()
    tensor([2.])
    """
    return softmax_losses([scale * cosines(z, weight)], targets)


def cosines(z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the cosine of each embedding with each class embedding, (N, D), (K, D) -> (N, K)."""
    return F.normalize(z, dim=1) @ F.normalize(weight, dim=1).T


def imprinted_weights(z: torch.Tensor, targets: torch.Tensor, classes: int, old_weights: torch.Tensor) -> torch.Tensor:
    """Return first weights for new classes, (classes, D): the direction of mean_i z_i / |z_i| over a class's images.

    Args:
        z: (N, D) embeddings of the new classes' images.
        targets: (N,) their classes, in 0..classes-1.
        classes: how many are new.
        old_weights: (K, D) of the old classes; their average length becomes that of the new ones.

    >>> z, old = torch.tensor([[9.0, 0.0], [0.0, 5.0]]), torch.tensor([[0.0, 2.0]])
    >>> imprinted_weights(z, torch.tensor([1, 0]), 2, old)
    tensor([[0., 2.],
            [2., 0.]])
    """
    unit = F.normalize(z, dim=1)
    sums = torch.zeros(classes, z.shape[1], dtype=torch.float64).index_add_(0, targets, unit.double())
    means = (sums / torch.bincount(targets, minlength=classes)[:, None]).to(z.dtype).to(old_weights)
    length: torch.Tensor = torch.linalg.vector_norm(old_weights, dim=1).mean()
    return F.normalize(means, dim=1) * length


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
        return cosines(z, self.weight)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Return the logits eta * cos(z, w_c), (N, classes)."""
        return self.eta * self.cosines(z)


@dataclass(frozen=True)
class CosineHeads(Heads):
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

    def grow(self, network: Network, classes: int) -> None:
        """Add a cosine head for the new classes, with the eta of the heads that are there."""
        eta = next((head.eta for head in _cosine_heads(network)), nn.Parameter(torch.tensor(self.scale)))
        network.heads.append(CosineHead(network.embedding_dim, classes, eta).to(next(network.parameters())))

    def start_task(self, network: Network, task: Task, classes: int) -> None:
        """Grow, and from the second task on imprint the new classes' weights."""
        self.grow(network, classes)
        *old, new = _cosine_heads(network)
        if old:
            weights = torch.cat([head.weight.detach() for head in old])
            added = task.targets >= len(weights)
            z, targets = task.embed(task.images[added]), task.targets[added] - len(weights)
            new.weight.data.copy_(imprinted_weights(z, targets, classes, weights))

    def single_losses(self, step: Step) -> torch.Tensor:
        """Return -log p(y_i | x_i), (N,)."""
        return softmax_losses(step.logits, step.targets)

    def held(self, step: Step) -> Held:
        """The logits of all old classes, one softmax."""
        now = step.logits[: len(step.logits_old)]
        return Held("logits", [torch.cat(now, dim=1)], [torch.cat(step.logits_old, dim=1)])


def _cosine_heads(network: Network) -> list[CosineHead]:
    return [head for head in network.heads if isinstance(head, CosineHead)]
