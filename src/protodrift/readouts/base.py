"""The interface of a read-out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..config import Config

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class View:
    """What a read-out may look at when it classifies N images.

    Attributes:
        z: (N, D) their embeddings.
        prototypes: (K, D) of all classes seen, in task order.
        logits: the outputs of the network's heads, one (N, classes of its task) a task; empty for metric objectives.
        kept: what the read-out itself learned so far.
        z_of_task: t -> (N, D), embeddings by the network as it was after task t (0: the initial one), for read-outs
            that keep all networks; None where only the last network is at hand.
        logits_of_task: t -> the outputs of the heads of that network; None likewise.
    """

    z: torch.Tensor
    prototypes: torch.Tensor
    logits: list[torch.Tensor] = field(default_factory=list)
    kept: Tensors = field(default_factory=dict)
    z_of_task: Callable[[int], torch.Tensor] | None = None
    logits_of_task: Callable[[int], list[torch.Tensor]] | None = None


@dataclass(frozen=True)
class Readout(Config):
    """How an embedding gets its class. Configuration only; what it learns goes through `learn` as named tensors."""

    uses_prototypes: ClassVar[bool] = True
    """Whether prototypes, and so drift, matter to it."""

    needs_heads: ClassVar[bool] = False
    """Whether it reads classification heads, which only some objectives train."""

    space_name: ClassVar[str] = "plain"
    """Names what `space` does: stages that agree on it can be shared."""

    needs_every_network: ClassVar[bool] = False
    """Whether it asks the networks of earlier tasks, which a learner does not keep."""

    def space(self, z: torch.Tensor) -> torch.Tensor:
        """Map embeddings into the space in which prototypes are averaged and compared, (N, D) -> (N, D)."""
        return z

    def learn(self, kept: Tensors, z: torch.Tensor, rows: torch.Tensor, task: int, seed: int) -> Tensors:
        """Learn from a finished task's embeddings, in `space`, and return what to keep.

        Args:
            kept: what was kept before.
            z: (N, D) the task's training images through the network after the task; for read-outs that need every
                network, through the initial network.
            rows: (N,) their classes: positions among all classes seen so far.
            task: t, counted from 1.
            seed: the run's seed.
        """
        return kept

    @abstractmethod
    def scores(self, view: View) -> torch.Tensor:
        """Return (N, K) scores, larger is better; a class that must not win gets -inf."""

    def predict(self, view: View) -> torch.Tensor:
        """Return the row of the best class for each image, (N,)."""
        return self.scores(view).argmax(dim=1)
