"""E-EWC: hold each weight in proportion to its Fisher information (Eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..config import flag, number, one_of
from ..data.batches import missing_signal
from .base import IMPORTANCE_BATCH, Importance, TaskContext, Tensors, squared_gradients


@dataclass(frozen=True)
class EWC(Importance):
    """Elastic weight consolidation, Eq. 5: L_EWC = sum_p 1/2 F_p^{t-1} (theta_p^t - theta_p^{t-1})^2.

    F is measured after a task, network in eval mode, on its un-augmented images.

    Args:
        gamma: trade-off; 1e7 in the paper (Sec. 5), valid for F of mini-batches of 32.
        fisher: "batch": squared gradient of the batch's loss, mean over batches (a triplet has no loss of a single
            image); "anchor": mean over anchors of the squared gradient of the anchor's own loss, divided by the batch
            size so that the same gamma fits (the variance of a mean of B terms is 1/B of a term's).
        accumulate: sum F over all tasks; the paper's F^{t-1} is the last task's only.
    """

    gamma: float = 1e7
    fisher: str = "batch"
    accumulate: bool = False
    rules: ClassVar = {"gamma": number(0), "fisher": one_of("batch", "anchor"), "accumulate": flag}

    def end_task(self, context: TaskContext, kept: Tensors) -> Tensors:
        """Measure F; a task of one class has no loss to measure it with, so what was known before it stays."""
        if missing_signal(context.rows):
            return kept or {name: torch.zeros_like(weight) for name, weight in context.network.named_parameters()}
        return super().end_task(context, kept)

    def importance(self, context: TaskContext) -> Tensors:
        """Return F_p, the (approximate) diagonal of the Fisher information."""
        objective = context.objective
        if self.fisher == "batch":
            return squared_gradients(context.network, (objective.loss(step) for step in context.steps()))
        single = (loss for step in context.steps() for loss in objective.anchor_losses(step))
        return {name: f / IMPORTANCE_BATCH for name, f in squared_gradients(context.network, single).items()}
