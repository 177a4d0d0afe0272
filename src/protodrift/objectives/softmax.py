"""Objectives that classify: one head a task on the backbone's pooled features (Sec. 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import flag, number, one_of
from ..training.step import Step
from .base import Held, Objective

if TYPE_CHECKING:
    from ..networks.embedder import Embedder


@dataclass(frozen=True)
class _Heads(Objective):
    """What all classifying objectives share: linear heads, one a task."""

    classifies: ClassVar[bool] = True

    def grow(self, network: Embedder, classes: int) -> None:
        """Add a linear head for the new classes."""
        like = next(network.parameters())
        network.heads.append(nn.Linear(network.embedding_dim, classes).to(like))

    def missing_signal(self, targets: torch.Tensor) -> str:
        """One class alone is always the right answer of its head: nothing to learn."""
        return (
            ""
            if len(targets.unique()) > 1
            else "a task of one class cannot train a classifier; the network stays as it is"
        )

    def loss(self, step: Step) -> torch.Tensor:
        """Mean over the images of the batch."""
        return self.single_losses(step).mean()

    def output(self, network: Embedder, images: torch.Tensor) -> torch.Tensor:
        """The outputs of all heads, (N, K)."""
        return torch.cat(network.logits(network(images)), dim=1)


@dataclass(frozen=True)
class Softmax(_Heads):
    """Cross-entropy.

    Args:
        over: "head": each task is a softmax of its own and trains its own head only (FT, LwF, EWC, MAS, R-EWC, LwM);
            "all": one softmax over the classes of all heads (Joint, and methods with exemplars).
        smoothing: label smoothing: the target is 1 - smoothing plus an equal share of it for every class of the
            softmax.
    """

    over: str = "head"
    smoothing: float = 0.0
    rules: ClassVar = {"over": one_of("head", "all"), "smoothing": number(0, 0.9)}

    @property
    def spans_tasks(self) -> bool:
        """A head of its own cannot answer for the classes of other heads."""
        return self.over == "all"

    def single_losses(self, step: Step) -> torch.Tensor:
        """Return -log p(y_i | x_i), (N,)."""
        if self.over == "all":
            return self._cross_entropy(torch.cat(step.logits, dim=1), step.targets)
        before = sum(logits.shape[1] for logits in step.logits[:-1])
        return self._cross_entropy(step.logits[-1], step.targets - before)

    def _cross_entropy(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing)

    def held(self, step: Step) -> Held:
        """The logits of the old heads: a softmax each, or one over all of them."""
        now, old = step.logits[: len(step.logits_old)], step.logits_old
        if self.over == "all":
            now, old = [torch.cat(now, dim=1)], [torch.cat(old, dim=1)]
        return Held("logits", now, old)


@dataclass(frozen=True)
class SigmoidHeads(_Heads):
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

    def grow(self, network: Embedder, classes: int) -> None:
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
        before = sum(logits.shape[1] for logits in step.logits[:-1])
        new = step.logits[-1]
        target = (step.targets[:, None] == before + torch.arange(new.shape[1], device=new.device)).to(new.dtype)
        return F.binary_cross_entropy_with_logits(new, target, reduction="none").sum(dim=1)

    def held(self, step: Step) -> Held:
        """The old classes' outputs before the sigmoid."""
        count = len(step.logits_old)
        return Held("sigmoids", step.logits[:count], step.logits_old)
