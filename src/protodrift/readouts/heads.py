"""Read-outs of classification heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import Readout, View


@dataclass(frozen=True)
class MaxOverHeads(Readout):
    """Each task's head is a softmax of its own; the largest probability over all heads wins (Sec. 3.2, FT).

    A head of a single class is always sure of it, and wins everywhere: tasks of one class need another read-out.
    """

    uses_prototypes: ClassVar[bool] = False
    needs_heads: ClassVar[bool] = True

    def scores(self, view: View) -> torch.Tensor:
        """Return log-probabilities within each head, (N, K)."""
        return torch.cat([logits.log_softmax(dim=1) for logits in view.logits], dim=1)


@dataclass(frozen=True)
class MaxOverClasses(Readout):
    """One comparison over the outputs of all heads: for heads that were trained together (Joint, iCaRL-CNN)."""

    uses_prototypes: ClassVar[bool] = False
    needs_heads: ClassVar[bool] = True

    def scores(self, view: View) -> torch.Tensor:
        """Return the outputs of all heads side by side, (N, K)."""
        return torch.cat(view.logits, dim=1)
