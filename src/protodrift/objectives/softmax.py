"""Objectives that classify: one head per task on the backbone's pooled features (Sec. 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import flag, number, one_of
from .base import Held, Network, Objective, Step


def softmax_losses(
    logits: Sequence[torch.Tensor], targets: torch.Tensor, over: Literal["head", "all"] = "all", smoothing: float = 0.0
) -> torch.Tensor:
    """Return the cross-entropy -log p(y_i | x_i) of each image, (N,).

    Args:
        logits: the outputs of every head, (N, classes of its task) each.
        targets: (N,) classes, counted over all heads.
        over: "all": one softmax over the classes of all heads; "head": over those of the last head, to which all
            targets must belong.
        smoothing: label smoothing: the target is 1 - smoothing plus an equal share of it for every class of the
            softmax.

    >>> softmax_losses([torch.zeros(2, 3), torch.zeros(2, 1)], torch.tensor([0, 3])).exp()
    tensor([4., 4.])
    """
    if over == "head":
        logits, targets = logits[-1:], targets - _count(logits[:-1])
    outputs = logits[0] if len(logits) == 1 else torch.cat(list(logits), dim=1)
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


def sigmoid_losses(logits: Sequence[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """Return sum over the classes c of the last head of BCE(sigmoid(o_c), [y_i = c]), (N,).

    Args:
        logits: the outputs of every head, (N, classes of its task) each.
        targets: (N,) classes, counted over all heads; those of older heads are negatives of every new class.

    >>> sigmoid_losses([torch.zeros(1, 2)], torch.tensor([1])).exp()
    tensor([4.])
    """
    new = logits[-1]
    classes = _count(logits[:-1]) + torch.arange(new.shape[1], device=new.device)
    wanted = (targets[:, None] == classes).to(new.dtype)
    return F.binary_cross_entropy_with_logits(new, wanted, reduction="none").sum(dim=1)


def _count(logits: Sequence[torch.Tensor]) -> int:
    return sum(outputs.shape[1] for outputs in logits)


@dataclass(frozen=True)
class Heads(Objective):
    """What all classifying objectives share: linear heads, one per task."""

    classifies: ClassVar[bool] = True

    def grow(self, network: Network, classes: int) -> None:
        """Add a linear head for the new classes."""
        network.heads.append(nn.Linear(network.embedding_dim, classes).to(next(network.parameters())))

    def missing_signal(self, targets: torch.Tensor) -> str:
        """One class alone is always the right answer of its head: nothing to learn."""
        if len(targets.unique()) > 1:
            return ""
        return "a task of one class cannot train a classifier; the network stays as it is"

    def loss(self, step: Step) -> torch.Tensor:
        """Mean over the images of the batch."""
        return self.single_losses(step).mean()

    def output(self, step: Step) -> torch.Tensor:
        """The outputs of all heads, (N, K)."""
        return torch.cat(step.logits, dim=1)


@dataclass(frozen=True)
class Softmax(Heads):
    """Cross-entropy.

    Args:
        over: "head": each task is a softmax of its own and trains its own head only (FT, LwF, EWC, MAS, R-EWC, LwM);
            "all": one softmax over the classes of all heads (Joint, and methods with exemplars).
        smoothing: label smoothing.
    """

    over: Literal["head", "all"] = "head"
    smoothing: float = 0.0
    rules: ClassVar = {"over": one_of("head", "all"), "smoothing": number(0, 0.9)}

    @property
    def spans_tasks(self) -> bool:
        """A head of its own cannot answer for the classes of other heads."""
        return self.over == "all"

    def single_losses(self, step: Step) -> torch.Tensor:
        """Return -log p(y_i | x_i), (N,)."""
        return softmax_losses(step.logits, step.targets, self.over, self.smoothing)

    def held(self, step: Step) -> Held:
        """The logits of the old heads: a softmax each, or one over all of them."""
        now, old = step.logits[: len(step.logits_old)], step.logits_old
        if self.over == "all":
            now, old = [torch.cat(now, dim=1)], [torch.cat(old, dim=1)]
        return Held("logits", now, old)


@dataclass(frozen=True)
class SigmoidHeads(Heads):
    """iCaRL's loss: a binary cross-entropy for every class, summed over the classes of the newest head.

    The old classes' terms, with the old network's answers as targets, are LwF's: iCaRL = SigmoidHeads + LwF + Herding.

    Args:
        prior: biases of a new head begin at -log(classes - 1), where every class has the probability 1 / classes. Else
            at random about 0, where every class has 1/2, and the first steps bend the features to lower all outputs at
            once: with Adam a bias moves by no more than the rate in a step (fifty classes of CIFAR-100 after a warm-up,
            two epochs at 1e-3: 11 % on validation images, the network before them 52 %).
    """

    prior: bool = True
    rules: ClassVar = {"prior": flag}

    def grow(self, network: Network, classes: int) -> None:
        """Add a linear head for the new classes."""
        super().grow(network, classes)
        head = network.heads[-1]
        assert isinstance(head, nn.Linear)
        if self.prior and classes > 2:  # two classes have theirs, 1/2, about where a linear layer begins
            nn.init.constant_(head.bias, -math.log(classes - 1))

    def missing_signal(self, targets: torch.Tensor) -> str:
        """A sigmoid learns from one class too."""
        return ""

    def single_losses(self, step: Step) -> torch.Tensor:
        """Return the sum over new classes c of BCE(sigmoid(o_c), [y_i = c]), (N,)."""
        return sigmoid_losses(step.logits, step.targets)

    def held(self, step: Step) -> Held:
        """The old classes' outputs before the sigmoid."""
        return Held("sigmoids", step.logits[: len(step.logits_old)], step.logits_old)
