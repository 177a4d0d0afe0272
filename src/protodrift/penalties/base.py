"""The interface of a penalty, and the one form that EWC and MAS share."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from .. import distributed
from ..common import seeding
from ..common.config import Config
from ..data.batches import class_balanced_batches
from ..errors import ImportanceWarning, InputError
from ..networks.embedder import laid_out
from ..training.step import Step

if TYPE_CHECKING:
    from ..networks.embedder import Embedder
    from ..objectives import Objective

Tensors = dict[str, torch.Tensor]
"""What a penalty keeps from task to task: named tensors, nothing else, so that they can be saved as they are."""

IMPORTANCE_BATCH = 32  # Sec. 5: gamma 1e7 and 1e6 belong to importances measured on mini-batches of 32


@dataclass(frozen=True)
class TaskContext:
    """A finished or beginning task, for the verbs `start_task` and `end_task`.

    Attributes:
        network: the network as it is at that moment, in eval mode, on its device.
        objective: what it is trained for.
        images: (N, ...) the task's training images.
        targets: (N,) their classes: positions among all classes seen so far, in task order.
        task: t, counted from 1.
        seed: the run's seed.
    """

    network: Embedder
    objective: Objective
    images: torch.Tensor
    targets: torch.Tensor
    task: int
    seed: int

    def steps(self, batch_size: int = IMPORTANCE_BATCH) -> Iterator[Step]:
        """Yield one full pass of class-balanced batches of un-augmented images.

        On several ranks each gets every W-th batch, whole: what is measured must be summed over ranks
        (`distributed.current().sum`).
        """
        device = next(self.network.parameters()).device
        batches = class_balanced_batches(
            self.targets,
            batch_size=batch_size,
            images_per_class=8,
            epoch="full",
            generator=seeding.generator(self.seed, "importance batches", self.task),
        )
        mining = seeding.generator(self.seed, "importance mining", self.task)
        world = distributed.current()
        for number, batch in enumerate(batches):
            if number % world.size != world.rank:
                self.objective.skip(self.targets[batch], mining)  # the next batch is mined as if this one had been
                continue
            images, targets = laid_out(self.images[batch], device), self.targets[batch].to(device)
            yield Step(self.network, images, targets, objective=self.objective, generator=mining)


@dataclass(frozen=True)
class Penalty(Config):
    """What is added to the objective, L = L_ML + gamma * L_C (Eq. 7), from the second task on.

    Configuration only. What a penalty must remember goes through its verbs as named tensors: `start_task` gets what
    `end_task` kept; what it returns is the task's `state`, given to `penalty`, `after_step` and `end_task`.
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

    def start_task(self, context: TaskContext, penalty_state: Tensors, network: Embedder) -> Tensors:
        """Prepare for the training of a task.

        Args:
            context: the task's images, and the old network.
            penalty_state: what `end_task` kept after the task before; empty before the second task.
            network: the network about to be trained; it may be reparametrized here if `merge` undoes it.
        """
        return penalty_state

    @abstractmethod
    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_C for this step, a scalar with gradient; the trainer multiplies it by gamma."""

    def after_step(self, step: Step, state: Tensors) -> None:
        """Look at the weights after an optimizer step; path integrals update `state` here."""

    def merge(self, network: Embedder, state: Tensors) -> None:
        """Undo what `start_task` did to the network, after the last step; nobody else ever sees it."""

    def end_task(self, context: TaskContext, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Return what to keep after a task, from what was kept before it and the state at the end of its training."""
        return {}


@dataclass(frozen=True)
class Importance(Penalty):
    """L_C = sum_p 1/2 I_p (theta_p - theta_p^{t-1})^2: weights are held in proportion to their importance I_p.

    EWC (Eq. 5, I = Fisher information F) and MAS (Eq. 6, I = sensitivity Omega) differ only in how I is measured. The
    anchor theta^{t-1} is the old network itself; it is not stored twice.
    """

    stores: ClassVar[str] = "an importance for every weight"
    names_weights: ClassVar[bool] = True

    def start_task(self, context: TaskContext, penalty_state: Tensors, network: Embedder) -> Tensors:
        """Check that there is an importance for every weight of the old network (a new head has none)."""
        missing = [name for name, _ in context.network.named_parameters() if name not in penalty_state]
        if missing:
            raise InputError(
                f"{type(self).__name__} needs importances measured after the task before, but this model has none: it "
                "learned that task with another penalty. Use this penalty from the first task on."
            )
        # What has no importance is not held at all. A gradient of zero would not leave it alone: Adam makes whole steps
        # of the weight decay that it adds, and in two epochs the head of an older task loses half its length.
        return {name: value for name, value in penalty_state.items() if bool(value.any())}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return sum_p 1/2 I_p (theta_p - theta_p^{t-1})^2."""
        old = self.anchor(step, state)
        terms = [
            (state[name].to(theta.device) * (theta - old[name].to(theta.device)).square()).sum()
            for name, theta in step.network.named_parameters()
            if name in old and name in state
        ]
        return 0.5 * torch.stack(terms).sum() if terms else torch.zeros(())

    def anchor(self, step: Step, state: Tensors) -> Tensors:
        """Return theta^{t-1} by name."""
        return {name: theta.detach() for name, theta in step.network_old.named_parameters()}

    def end_task(self, context: TaskContext, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Measure the importances on the finished task."""
        importance = self.importance(context)
        if not any(bool(value.any()) for value in importance.values()):
            warnings.warn(
                f"{type(self).__name__}: all importances after task {context.task} are zero, so this penalty holds "
                "nothing in the next task. The loss may already be zero on every batch: try a larger margin.",
                ImportanceWarning,
                stacklevel=2,
            )
        if self.accumulate and penalty_state:
            importance = {
                name: value + penalty_state[name] if name in penalty_state else value
                for name, value in importance.items()
            }
        return importance

    @property
    @abstractmethod
    def accumulate(self) -> bool:
        """Whether importances are summed over tasks; else the last task's replace the older ones."""

    @abstractmethod
    def importance(self, context: TaskContext) -> Tensors:
        """Return I_p >= 0 for every parameter, by name, on the CPU."""


def squared_gradients(network: Embedder, losses: Iterator[torch.Tensor]) -> Tensors:
    """Return the mean over scalar `losses` of the squared gradient of each weight, by name, on the CPU.

    On several ranks: the mean over the losses of all of them.
    """
    names, weights = zip(*network.named_parameters(), strict=True)
    sums = [torch.zeros_like(weight) for weight in weights]
    count = 0
    for loss in losses:
        count += 1
        if not loss.requires_grad:  # no valid triplet in this batch: its gradient is zero
            continue
        gradients = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += gradient.square()
    world = distributed.current()
    if not world.alone:
        number = torch.tensor([count])
        world.sum([number], "importances")
        world.sum(sums, "importances")
        count = int(number)
    # Plain layout, as it is after saving and loading: the layout decides the last bits of a sum.
    return {name: (total / max(count, 1)).cpu().contiguous() for name, total in zip(names, sums, strict=True)}
