"""The interface of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from ..common.config import Config
from ..common.step import Answers
from ..common.step import Held as Held


class Network(Protocol):
    """What an objective needs of a network in order to add heads, or a loss with weights of its own, to it."""

    heads: nn.ModuleList
    embedding_dim: int
    loss: Any

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield its weights; a new head gets their type and device."""


class Task(Protocol):
    """What an objective sees of a task that begins."""

    @property
    def images(self) -> torch.Tensor:
        """The task's training images, exemplars included, (N, ...)."""

    @property
    def targets(self) -> torch.Tensor:
        """Their classes, (N,): positions among all classes seen so far, in task order."""

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Return the old network's embeddings of some images, (n, ...) -> (n, D)."""


class Step(Answers, Protocol):
    """What an objective sees of one batch on its way through the network."""

    @property
    def network(self) -> nn.Module:
        """The network in training."""

    @property
    def drawn(self) -> Any:
        """What `Objective.draw` drew for this batch."""

    @property
    def raw(self) -> torch.Tensor:
        """Embeddings before their normalization, (N, D)."""


@dataclass(frozen=True)
class Objective(Config, ABC):
    """What a batch is trained for. Configuration only: the trainable parts are in the network.

    Required are `missing_signal`, `loss`, `single_losses`, `held` and `output`. The optional hooks are

        classifies     whether it classifies with heads on the backbone's pooled features
        spans_tasks    whether it can train on images of old and new classes together
        grow           add what the network needs for more classes
        weight_groups  how weights that `grow` added are trained otherwise than the network
        start_task     prepare the network in training for a task
        draw           draw what the loss of a batch needs by chance
        shown          change the images and targets of a batch by what was drawn
        merge          undo what `start_task` did to the network
        replaces_head  whether `merge` leaves another head than the one that was trained
    """

    classifies: ClassVar[bool] = False
    """Whether it classifies with heads on the backbone's pooled features (else: it trains an embedding)."""

    replaces_head: ClassVar[bool] = False
    """Whether `merge` leaves another head than the one that was trained: no path of its weights can be followed."""

    @property
    def spans_tasks(self) -> bool:
        """Whether it can train on images of old and new classes together, as exemplars need it."""
        return True

    def grow(self, network: Network, classes: int) -> None:
        """Give the network what it needs for `classes` more classes: a head, for objectives that classify."""

    def weight_groups(self, network: Network) -> list[dict[str, Any]]:
        """Return groups of weights that are trained otherwise than the network, as a torch optimizer takes them.

        Each has "params", options of the optimizer such as "weight_decay", and "rate": its learning rate in learning
        rates of the network.
        """
        return []

    def start_task(self, network: Network, task: Task, classes: int) -> None:
        """Prepare the network in training for a task of new classes; by default it only grows."""
        self.grow(network, classes)

    def draw(self, targets: torch.Tensor, generator: torch.Generator) -> Any:
        """Return what the loss of a batch of these classes, (N,), needs by chance; the step carries it as `drawn`.

        It is called once for every batch, in order, also where another process computes the batch: draws must depend
        on `targets` and `generator` only.
        """

    def shown(
        self, network: Network, images: torch.Tensor, targets: torch.Tensor, drawn: Any, own: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images and targets that a step is trained with; by default those of the batch.

        Args:
            network: the network in training.
            images: (n, ...) views of some images of the batch.
            targets: (N,) classes of the whole batch.
            drawn: what was drawn for the whole batch.
            own: which images of the batch these are; all of them, unless there are several ranks.
        """
        return images, targets

    def merge(self, network: Network) -> None:
        """Undo what `start_task` did to the network beside growing it, after the last step."""

    @abstractmethod
    def missing_signal(self, targets: torch.Tensor) -> str:
        """Say why images of these classes, (N,), cannot train this objective, or return "" if they can."""

    @abstractmethod
    def loss(self, step: Step) -> torch.Tensor:
        """Return the batch's loss, a scalar with gradient."""

    @abstractmethod
    def single_losses(self, step: Step) -> torch.Tensor:
        """Return a loss for each image (or anchor) of the batch, (A,), for importances that need single losses."""

    @abstractmethod
    def held(self, step: Step) -> Held:
        """Return what LwF holds."""

    @abstractmethod
    def output(self, step: Step) -> torch.Tensor:
        """Return the function's output whose sensitivity MAS measures, (N, outputs)."""
