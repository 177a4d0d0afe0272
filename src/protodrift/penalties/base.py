"""The interface of a penalty."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import nn

from ..common.config import Config
from ..common.step import Answers
from ..common.step import Held as Held

Tensors = dict[str, torch.Tensor]
"""What a penalty keeps from task to task: named tensors, nothing else, so that they can be saved as they are."""

Reduce = Callable[[Tensors], Tensors]
"""Sums named tensors over all processes that measure together; names, shapes and types are the same on each."""

IMPORTANCE_BATCH = 32  # Sec. 5: gamma 1e7 and 1e6 belong to importances measured on mini-batches of 32


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that are trained, by name: what `requires_grad=False` freezes needs no importance.

    >>> layer = nn.Linear(2, 2)
    >>> _ = layer.weight.requires_grad_(False)
    >>> list(trainable(layer))
    ['bias']
    """
    return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}


class Step(Answers, Protocol):
    """What a penalty sees of one batch on its way through the network."""

    @property
    def network(self) -> nn.Module:
        """The network in training, F^t."""

    @property
    def network_old(self) -> nn.Module:
        """The frozen network of the task before, F^{t-1}."""

    @property
    def images(self) -> torch.Tensor:
        """The batch, (N, ...)."""

    @property
    def feature_maps(self) -> torch.Tensor:
        """Maps of the backbone's last convolution, (N, C, h, w)."""

    @property
    def old(self) -> Step:
        """The same views through the old network."""

    @property
    def loss(self) -> torch.Tensor:
        """L_ML of the batch, a scalar."""

    @property
    def single_losses(self) -> torch.Tensor:
        """L_ML of each image or anchor, (A,)."""

    @property
    def output(self) -> torch.Tensor:
        """The function's output whose sensitivity MAS measures, (N, outputs)."""

    @property
    def held(self) -> Held:
        """What LwF holds."""

    def scores_of_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the outputs of all heads for feature maps of this step's network, (N, C, h, w) -> (N, K)."""


class Context(Protocol):
    """A task that begins or has ended, as `start_task` and `end_task` see it."""

    @property
    def network(self) -> nn.Module:
        """The network as it is at that moment, in eval mode, on its device."""

    @property
    def images(self) -> torch.Tensor:
        """The task's training images, (N, ...)."""

    @property
    def targets(self) -> torch.Tensor:
        """Their classes, (N,): positions among all classes seen so far, in task order."""

    @property
    def task(self) -> int:
        """t, counted from 1."""

    @property
    def classifies(self) -> bool:
        """Whether the objective classifies with heads: then an image's loss is its own."""

    def missing_signal(self) -> str:
        """Say why these images cannot train the objective, or return "" if they can."""

    def steps(self) -> Iterator[Step]:
        """Yield one full pass of class-balanced batches of un-augmented images.

        Where several processes measure together each gets some of the batches: what is measured goes through `reduce`.
        """

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> Step:
        """Return a step of some images."""

    def share(self) -> torch.Tensor:
        """Return the images that this process measures, (n, ...): all of them, unless there are several."""

    def reduce(self, tensors: Tensors) -> Tensors:
        """Return the sums over all processes."""

    def with_network(self, network: nn.Module) -> Context:
        """Return the same task with another network."""


@dataclass(frozen=True)
class Penalty(Config, ABC):
    """What is added to the objective, L = L_ML + gamma * L_C (Eq. 7), from the second task on (but see `acts_first`).

    Configuration only. What a penalty must remember are named tensors: `start_task` gets what `end_task` returned after
    the task before; what it returns is the task's `state`, given to `penalty`, `after_step` and `end_task`. Tensors of
    the state that need a gradient are trained along with the network, by the same optimizer (`FeatureDistillation`).

    Required is `penalty`. The optional hooks are

        start_task          prepare for the training of a task
        after_step          look at the weights after an optimizer step
        merge               undo what `start_task` did to the network
        end_task            measure what to keep
        names_weights       what it keeps belongs to single weights
        turns_weights       it trains other weights under the same names
        needs_maps          it looks at feature maps
        asks_old_network    it asks for the old network's answers
        follows_path        it watches every step, the first task's too
        acts_first          it holds the first task, too
    """

    gamma: float

    names_weights: ClassVar[bool] = False
    """Whether what it keeps belongs to single weights, by their names."""

    turns_weights: ClassVar[bool] = False
    """Whether it trains other weights than the network's own (a rotation), under the same names."""

    needs_maps: ClassVar[bool] = False
    """Whether it looks at feature maps: where a batch lies on several ranks, these are gathered then."""

    asks_old_network: ClassVar[bool] = False
    """Whether it asks for the old network's embeddings or logits of the batch."""

    follows_path: ClassVar[bool] = False
    """Whether `after_step` watches the training, the first task's too (then that task cannot be shared)."""

    @property
    def acts_first(self) -> bool:
        """Whether it is added in the first task, too; the old network is then the one that it starts from."""
        return False

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Prepare for the training of a task, and return its state.

        Args:
            context: the task's images, and the old network.
            penalty_state: what `end_task` returned after the task before; empty before the second task.
            network: the network about to be trained; it may be reparametrized here if `merge` undoes it.

        Random numbers come from torch's global generator, which is seeded for this task.
        """
        return penalty_state

    @abstractmethod
    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_C for this step, a scalar with gradient; the trainer multiplies it by gamma."""

    def after_step(self, step: Step, state: Tensors) -> None:
        """Look at the weights after an optimizer step; path integrals update `state` here."""

    def merge(self, network: nn.Module, state: Tensors) -> None:
        """Undo what `start_task` did to the network, after the last step; nobody else ever sees it."""

    def end_task(self, context: Context, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Return what to keep after a task, from what was kept before it and the state at the end of its training."""
        return {}
