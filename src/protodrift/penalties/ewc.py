"""E-EWC: hold each weight in proportion to its Fisher information (Eq. 5)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from ..common.config import flag, number, one_of
from .base import IMPORTANCE_BATCH, Context, Reduce, Tensors, trainable
from .gradients import image_gradients, mean_squared_gradients
from .importance import Importance


def fisher(network: nn.Module, losses: Iterable[torch.Tensor], reduce: Reduce | None = None) -> Tensors:
    """Return the diagonal of the (empirical) Fisher information, F_p = mean over losses of (d loss / d theta_p)^2.

    Args:
        network: whose weights.
        losses: scalars with gradient, one per mini-batch or one per image; they may be made one by one.
        reduce: sums over processes that have some of the losses each.

    Returns:
        F by name of the weight, in its shape, on the CPU.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> fisher(network, (network(x).sum() for x in torch.tensor([[[1.0]], [[3.0]]])))
    {'weight': tensor([[5.]])}
    """
    return mean_squared_gradients(network, losses, reduce)


@dataclass(frozen=True)
class EWC(Importance):
    """Elastic weight consolidation, Eq. 5: L_EWC = sum_p 1/2 F_p^{t-1} (theta_p^t - theta_p^{t-1})^2.

    F is measured after a task, network in eval mode, on its un-augmented images.

    Args:
        gamma: trade-off; 1e7 in the paper (Sec. 5), valid for F of mini-batches of 32.
        fisher: "batch": squared gradient of the batch's loss, mean over batches (a triplet has no loss of a single
            image); "single": mean over images (anchors, for triplets) of the squared gradient of the image's own loss,
            divided by the batch size so that the same gamma fits (a mean of B terms has 1/B of the variance).
        accumulate: sum F over all tasks; the paper's F^{t-1} is the last task's only.
    """

    gamma: float = 1e7
    fisher: Literal["batch", "single"] = "batch"
    accumulate: bool = False
    rules: ClassVar = {"gamma": number(0), "fisher": one_of("batch", "single"), "accumulate": flag}

    def end_task(self, context: Context, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Measure F; a task of one class has no loss to measure it with, so what was known before it stays."""
        if context.missing_signal():
            zeros = {name: torch.zeros_like(weight) for name, weight in trainable(context.network).items()}
            return {**zeros, **penalty_state}
        return super().end_task(context, penalty_state, state)

    def importance(self, context: Context) -> Tensors:
        """Return F_p, the (approximate) diagonal of the Fisher information."""
        if self.fisher == "batch":
            return fisher(context.network, (step.loss for step in context.steps()), context.reduce)
        return {name: value / IMPORTANCE_BATCH for name, value in self._single(context).items()}

    def _single(self, context: Context) -> Tensors:
        if context.classifies:  # an image's loss is its own: no other image of the batch has a part in it
            # A module that torch.func cannot vectorize goes the long way.
            with suppress(RuntimeError):
                return single_fisher(context)
        single = (loss for step in context.steps() for loss in step.single_losses)
        return fisher(context.network, single, context.reduce)


def single_fisher(context: Context) -> Tensors:
    """Return mean_i (d l_i / d theta)^2 where an image's loss l_i depends on that image alone."""

    def loss(image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return context.step(image, target).single_losses.sum()

    batches = ((step.images, step.targets) for step in context.steps())
    return image_gradients(context.network, loss, batches, torch.square, context.reduce)
