"""What objectives and penalties both see of one batch on its way through the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch


class Answers(Protocol):
    """A batch, and what the network in training and the old one answer to it."""

    @property
    def targets(self) -> torch.Tensor:
        """Class of each image, (N,): positions among all classes seen so far, in task order."""

    @property
    def z(self) -> torch.Tensor:
        """Embeddings z^t, (N, D)."""

    @property
    def z_old(self) -> torch.Tensor:
        """Embeddings z^{t-1} of the same views by the old network, (N, D); no gradient."""

    @property
    def logits(self) -> list[torch.Tensor]:
        """The outputs of every classification head, (N, classes of its task) each."""

    @property
    def logits_old(self) -> list[torch.Tensor]:
        """The outputs of the old network's heads; no gradient."""


@dataclass(frozen=True)
class Held:
    """What LwF holds at the old network's answer, as the objective names it.

    Attributes:
        kind: "embeddings"; "logits" (of softmax heads) or "sigmoids" (outputs before the sigmoid).
        now, old: the same quantities by the network in training and by the old one; for logits one pair per head.
    """

    kind: Literal["embeddings", "logits", "sigmoids"]
    now: list[torch.Tensor]
    old: list[torch.Tensor]
