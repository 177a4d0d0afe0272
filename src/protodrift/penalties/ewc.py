"""E-EWC: hold each weight in proportion to its Fisher information (Eq. 5)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.config import flag, number, one_of
from .base import IMPORTANCE_BATCH, Importance, TaskContext, Tensors, squared_gradients
from .single import mean_squared_gradients


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
    fisher: str = "batch"
    accumulate: bool = False
    rules: ClassVar = {"gamma": number(0), "fisher": one_of("batch", "single"), "accumulate": flag}

    def end_task(self, context: TaskContext, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Measure F; a task of one class has no loss to measure it with, so what was known before it stays."""
        if context.objective.missing_signal(context.targets):
            zeros = {name: torch.zeros_like(weight) for name, weight in context.network.named_parameters()}
            return {**zeros, **penalty_state}
        return super().end_task(context, penalty_state, state)

    def importance(self, context: TaskContext) -> Tensors:
        """Return F_p, the (approximate) diagonal of the Fisher information."""
        objective = context.objective
        if self.fisher == "batch":
            return squared_gradients(context.network, (objective.loss(step) for step in context.steps()))
        if objective.classifies:  # an image's loss is its own: no other image of the batch has a part in it
            # A module that torch.func cannot vectorize goes the long way.
            with suppress(RuntimeError):
                return {name: f / IMPORTANCE_BATCH for name, f in mean_squared_gradients(context).items()}
        single = (loss for step in context.steps() for loss in objective.single_losses(step))
        return {name: f / IMPORTANCE_BATCH for name, f in squared_gradients(context.network, single).items()}
