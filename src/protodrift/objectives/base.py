"""The interface of an objective."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from ..common.config import Config
from ..training.step import Step

if TYPE_CHECKING:
    from ..networks.embedder import Embedder
    from ..penalties.base import TaskContext


@dataclass(frozen=True)
class Held:
    """What LwF holds at the old network's answer, as the objective names it.

    Attributes:
        kind: "embeddings"; "logits" (of softmax heads) or "sigmoids" (outputs before the sigmoid).
        now, old: the same quantities in the network in training and in the old one; one pair a head for logits.
    """

    kind: Literal["embeddings", "logits", "sigmoids"]
    now: list[torch.Tensor]
    old: list[torch.Tensor]


@dataclass(frozen=True)
class Objective(Config):
    """What a batch is trained for. Configuration only; it may read anything of the `Step`."""

    classifies: ClassVar[bool] = False
    """Whether it classifies with heads on the backbone's pooled features (else: it trains an embedding)."""

    @property
    def spans_tasks(self) -> bool:
        """Whether it can train on images of old and new classes together, as exemplars need it."""
        return True

    def grow(self, network: Embedder, classes: int) -> None:
        """Give the network what it needs for `classes` more classes: a head, for objectives that classify."""

    def start_task(self, network: Embedder, context: TaskContext, classes: int) -> None:
        """Prepare the network in training for a task of new classes; by default it only grows."""
        self.grow(network, classes)

    @abstractmethod
    def missing_signal(self, targets: torch.Tensor) -> str:
        """Say why images of these classes, (N,), cannot train this objective, or return "" if they can."""

    @abstractmethod
    def loss(self, step: Step) -> torch.Tensor:
        """Return the batch's loss, a scalar with gradient."""

    @abstractmethod
    def single_losses(self, step: Step) -> torch.Tensor:
        """Return a loss for each image (or anchor) of the batch, (A,), for importances that need single losses."""

    def skip(self, targets: torch.Tensor, generator: torch.Generator) -> None:
        """Draw what `loss` would draw by chance for a batch of these classes, (N,), which another rank computes."""

    @abstractmethod
    def held(self, step: Step) -> Held:
        """Return what LwF holds."""

    @abstractmethod
    def output(self, network: Embedder, images: torch.Tensor) -> torch.Tensor:
        """Return the function's output whose sensitivity MAS measures, (N, outputs)."""
