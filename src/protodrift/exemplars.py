"""Which old images are kept: none, that is the promise; herded exemplars; everything (joint training)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from .common.config import Config, optional, whole
from .common.labels import sorted_labels
from .data.examples import Examples

Embed = Callable[[torch.Tensor], torch.Tensor]
"""Images to their embeddings by the network after the task, (n, ...) -> (n, D)."""


@dataclass(frozen=True)
class Exemplars(Config, ABC):
    """What is kept of the images of finished tasks. Configuration only; the images are in the learner's state.

    Attributes:
        joint: whether all images are kept: then a method is an upper bound that does not compete.
    """

    joint: ClassVar[bool] = False

    @abstractmethod
    def keep(self, kept: Examples | None, new: Examples, embed: Embed) -> Examples:
        """Return what to keep after a task.

        Args:
            kept: what was kept before it, or None.
            new: the task's own examples.
            embed: gives embeddings of images by the network after the task.
        """


@dataclass(frozen=True)
class Everything(Exemplars):
    """Keep all images of all tasks: joint training. Needs what exemplar-free learning does without."""

    stores: ClassVar[str] = "all images"
    joint: ClassVar[bool] = True

    def keep(self, kept: Examples | None, new: Examples, embed: Embed) -> Examples:
        """Return all examples so far."""
        return new if kept is None else Examples.concatenate([kept, new])


@dataclass(frozen=True)
class Herding(Exemplars):
    """Keep a few exemplars of each class, chosen so that their mean follows the class mean (iCaRL, Algorithm 4).

    Features have unit length; their means are compared as Algorithm 4 writes them, without being brought back to unit
    length in between.

    Args:
        total: exemplars in all, shared equally by the classes seen so far; older classes give up their last ones. A
            class keeps at least one, so that more classes than `total` keep one each.
        per_class: exemplars of each class, however many classes there are; instead of `total`.
    """

    stores: ClassVar[str] = "exemplar images"
    total: int = 2000
    per_class: int | None = None
    rules: ClassVar = {"total": whole(1), "per_class": optional(whole(1))}

    def keep(self, kept: Examples | None, new: Examples, embed: Embed) -> Examples:
        """Return the exemplars of all classes, each class in herding order."""
        old = () if kept is None else tuple(dict.fromkeys(kept.labels))
        added = sorted_labels(new.labels)
        quota = self.per_class or max(1, self.total // (len(old) + len(added)))
        parts = []
        for label in old:
            assert kept is not None
            members = kept.of_classes([label])
            parts.append(members.at(torch.arange(min(quota, len(members)))))  # the first chosen follow the mean best
        for label in added:
            members = new.of_classes([label])
            z = F.normalize(embed(members.images), dim=1)  # iCaRL: unit length
            parts.append(members.at(herding_order(z, quota)))
        return Examples.concatenate(parts)


def herding_order(z: torch.Tensor, count: int) -> torch.Tensor:
    """Choose images one by one so that the mean of the chosen stays nearest to the mean of all.

    p_k = argmin_x || mu - 1/k (z(x) + sum_{j<k} z(p_j)) ||, no image twice.

    Args:
        z: (N, D) embeddings of one class.
        count: how many to choose; at most N are.

    Returns:
        Indices in the order of choice, (min(count, N),).

    >>> herding_order(torch.tensor([[0.0], [1.0], [2.0], [9.0]]), 2).tolist()
    [2, 1]
    """
    z = z.double()
    mean = z.mean(dim=0)
    chosen: list[int] = []
    total = torch.zeros_like(mean)
    free = torch.ones(len(z), dtype=torch.bool)
    for k in range(1, min(count, len(z)) + 1):
        gap = torch.linalg.vector_norm(mean - (z + total) / k, dim=1)
        best = int(torch.where(free, gap, torch.inf).argmin())
        chosen.append(best)
        free[best] = False
        total += z[best]
    return torch.tensor(chosen, dtype=torch.long)
