"""Cosine heads: those of Rebalance, under one softmax (Hou et al., "Learning a Unified Classifier Incrementally via
Rebalancing", CVPR 2019), or one softmax for each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import flag, number, one_of
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
    so that a network's heads can be grown, copied, saved and loaded like any others. An eta that is not learned is a
    buffer of each head.
    """

    eta: torch.Tensor

    def __init__(self, features: int, classes: int, eta: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)
        if isinstance(eta, nn.Parameter):
            self.eta = eta
        else:
            self.register_buffer("eta", eta.clone())

    def cosines(self, z: torch.Tensor) -> torch.Tensor:
        """Return the cosine of each embedding with each class embedding w_c, (N, D) -> (N, classes)."""
        return cosines(z, self.weight)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Return the logits eta * cos(z, w_c), (N, classes)."""
        return self.eta * self.cosines(z)


@dataclass(frozen=True)
class CosineHeads(Heads):
    """Cross-entropy over the classes of all heads, or of the task's own, p(c | x) = softmax_c(eta cos(z, w_c)).

    New classes begin with imprinted weights: w_c is the direction of the mean of z / |z| over their images by the OLD
    network, with the average length of the old classes' weights. Rebalance is this objective with `LessForget`,
    `MarginRanking` and `Herding`. The original takes the last ReLU out of its ResNet, so that features have both signs;
    here the backbone stays as it is for all methods.

    Args:
        scale: eta before the first task. The paper does not print it; its code starts at 1, with steps of 0.1 (SGD).
        over: "all": one softmax over the classes of all heads (Rebalance); "head": each task is a softmax of its own,
            and trains its own head only.
        learned: whether eta is trained, else it stays `scale`.
        imprint: which tasks' new classes begin with imprinted weights: "later" ones, as in Rebalance, or "all". Before
            the first task weights have the length 1, and only a network that brings features has something to say.
    """

    scale: float = 10.0  # with Adam's small steps eta hardly moves: at 1 two classes cannot pass p = 0.88
    over: Literal["all", "head"] = "all"
    learned: bool = True
    imprint: Literal["later", "all"] = "later"
    rules: ClassVar = {
        "scale": number(above=0),
        "over": one_of("all", "head"),
        "learned": flag,
        "imprint": one_of("later", "all"),
    }

    @property
    def spans_tasks(self) -> bool:
        """A head of its own cannot answer for the classes of other heads."""
        return self.over == "all"

    def grow(self, network: Network, classes: int) -> None:
        """Add a cosine head for the new classes, with the eta of the heads that are there."""
        first = torch.tensor(self.scale)
        eta = next((head.eta for head in _cosine_heads(network)), nn.Parameter(first) if self.learned else first)
        network.heads.append(CosineHead(network.embedding_dim, classes, eta).to(next(network.parameters())))

    def start_task(self, network: Network, task: Task, classes: int) -> None:
        """Grow, and imprint the new classes' weights."""
        self.grow(network, classes)
        *old, new = _cosine_heads(network)
        if old or self.imprint == "all":
            known = sum(len(head.weight) for head in old)
            weights = torch.cat([head.weight.detach() for head in old]) if old else new.weight.new_ones(1, 1)
            added = task.targets >= known
            z, targets = task.embed(task.images[added]), task.targets[added] - known
            new.weight.data.copy_(imprinted_weights(z, targets, classes, weights))

    def single_losses(self, step: Step) -> torch.Tensor:
        """Return -log p(y_i | x_i), (N,)."""
        return softmax_losses(step.logits, step.targets, self.over)

    def held(self, step: Step) -> Held:
        """The logits of all old classes, one softmax."""
        now = step.logits[: len(step.logits_old)]
        return Held("logits", [torch.cat(now, dim=1)], [torch.cat(step.logits_old, dim=1)])


def _cosine_heads(network: Network) -> list[CosineHead]:
    return [head for head in network.heads if isinstance(head, CosineHead)]
