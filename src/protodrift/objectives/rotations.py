"""Rotation labels in the first task: a class turned by 90, 180 or 270 degrees is a class of its own while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..errors import InputError
from .base import Network, Task
from .softmax import Softmax


def turned(images: torch.Tensor, quarters: torch.Tensor) -> torch.Tensor:
    """Return square images turned counterclockwise by so many quarters each, (N, C, S, S), (N,) -> (N, C, S, S).

    >>> turned(torch.tensor([[[[1, 2], [3, 4]]]] * 2), torch.tensor([0, 1])).tolist()
    [[[[1, 2], [3, 4]]], [[[2, 4], [1, 3]]]]
    """
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise InputError(
            f"rotation labels need square images; got inputs of shape {tuple(images.shape[1:])}. Use Softmax()."
        )
    result = images.clone()
    for quarter in (1, 2, 3):
        rows = quarters == quarter
        result[rows] = images[rows].rot90(quarter, dims=(2, 3))
    return result


class RotatedHead(nn.Linear):
    """A linear head for four times as many labels: class c turned by r quarters has the label 4 c + r."""

    def upright(self) -> nn.Linear:
        """Return the head of the classes alone: the outputs for images that are not turned."""
        head = nn.Linear(self.in_features, self.out_features // 4).to(self.weight)
        head.weight.data.copy_(self.weight.data[::4])
        head.bias.data.copy_(self.bias.data[::4])
        return head


@dataclass(frozen=True)
class RotatedSoftmax(Softmax):
    """Cross-entropy, in the first task over classes x rotations: features that see more than those classes need.

    Each image of a batch is turned by 0, 90, 180 or 270 degrees, drawn evenly, and (class, rotation) are labels of one
    softmax (PASS, Zhu et al., CVPR 2021; AdaGauss turns each image in all four ways, at four times the cost). After the
    first task only the outputs for images that are not turned stay. Later tasks are those of `Softmax`: rotation labels
    in all tasks harm.
    """

    replaces_head: ClassVar[bool] = True

    def start_task(self, network: Network, task: Task, classes: int) -> None:
        """Grow; in the first task by a head for the rotations, too."""
        if len(network.heads):
            self.grow(network, classes)
        else:
            network.heads.append(RotatedHead(network.embedding_dim, 4 * classes).to(next(network.parameters())))

    def draw(self, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw a rotation for each image, (N,) quarters."""
        return torch.randint(4, (len(targets),), generator=generator)

    def shown(
        self, network: Network, images: torch.Tensor, targets: torch.Tensor, drawn: torch.Tensor, own: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn the images, and label them by class and rotation, where the head has such labels."""
        if not isinstance(network.heads[-1], RotatedHead):
            return images, targets
        quarters = drawn.to(targets.device)
        return turned(images, quarters[own].to(images.device)), 4 * targets + quarters

    def merge(self, network: Network) -> None:
        """Leave the outputs for images that are not turned."""
        head = network.heads[-1]
        if isinstance(head, RotatedHead):
            network.heads[-1] = head.upright()
