"""Read-outs of classification heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import PreparedReadout, Scorer, View


@dataclass(frozen=True)
class MaxOverHeads(PreparedReadout):
    """Each task's head is a softmax of its own; the largest probability over all heads wins (Sec. 3.2, FT).

    A head of a single class is always sure of it, and wins everywhere: tasks of one class need another read-out.
    """

    uses_prototypes: ClassVar[bool] = False
    needs_heads: ClassVar[bool] = True

    def scorer(self, view: View) -> Scorer:
        """Return log-probabilities within each head, (N, K)."""
        return lambda z, logits: torch.cat([one.log_softmax(dim=1) for one in logits], dim=1)


@dataclass(frozen=True)
class MaxOverClasses(PreparedReadout):
    """One comparison over the outputs of all heads: for heads that were trained together (Joint, iCaRL-CNN)."""

    uses_prototypes: ClassVar[bool] = False
    needs_heads: ClassVar[bool] = True

    def scorer(self, view: View) -> Scorer:
        """Return the outputs of all heads side by side, (N, K)."""
        return lambda z, logits: torch.cat(logits, dim=1)
