"""A task that begins or has ended, as objectives and penalties see it; the only place where they meet ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..common import seeding
from ..data.batches import class_balanced_batches
from ..distributed.passes import embedded
from ..distributed.world import ALONE, World
from ..networks.embedder import Embedder, laid_out
from ..objectives import Objective
from ..penalties import Tensors
from ..penalties.base import IMPORTANCE_BATCH
from .step import Step


@dataclass(frozen=True)
class TaskContext:
    """The context of `Penalty.start_task`, `Penalty.end_task` and `Objective.start_task`.

    Attributes:
        network: the network as it is at that moment, in eval mode, on its device.
        objective: what it is trained for.
        images: (N, ...) the task's training images.
        targets: (N,) their classes: positions among all classes seen so far, in task order.
        task: t, counted from 1.
        seed: the run's seed.
        world: the ranks that measure together.
    """

    network: Embedder
    objective: Objective
    images: torch.Tensor
    targets: torch.Tensor
    task: int
    seed: int
    world: World = ALONE

    @property
    def classifies(self) -> bool:
        """Whether the objective classifies with heads."""
        return self.objective.classifies

    def missing_signal(self) -> str:
        """Say why these images cannot train the objective, or return "" if they can."""
        return self.objective.missing_signal(self.targets)

    def steps(self) -> Iterator[Step]:
        """Yield one full pass of class-balanced batches of un-augmented images; on ranks every W-th batch, whole."""
        device = next(self.network.parameters()).device
        batches = class_balanced_batches(
            self.targets,
            batch_size=IMPORTANCE_BATCH,
            images_per_class=8,
            epoch="full",
            generator=seeding.generator(self.seed, "importance batches", self.task),
        )
        mining = seeding.generator(self.seed, "importance mining", self.task)
        for number, batch in enumerate(batches):
            targets = self.targets[batch].to(device)
            drawn = self.objective.draw(targets, mining)  # also for other ranks' batches: the next draws follow them
            if number % self.world.size == self.world.rank:
                images = laid_out(self.images[batch], device)
                yield Step(self.network, images, targets, objective=self.objective, drawn=drawn)

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> Step:
        """Return a step of some images, as they are."""
        return Step(self.network, images, targets, objective=self.objective)

    def share(self) -> torch.Tensor:
        """Return this rank's images, (n, ...)."""
        return self.images[self.world.own(len(self.images))]

    def reduce(self, tensors: Tensors) -> Tensors:
        """Return the sums over all ranks, which give tensors of the same names, shapes and types."""
        if self.world.alone:
            return tensors
        for kind in dict.fromkeys((value.dtype, value.device) for value in tensors.values()):
            same = [value for value in tensors.values() if (value.dtype, value.device) == kind]
            self.world.sum(same, "importances")
        return tensors

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Return the network's embeddings of some images, (n, D) on every rank, each of which embeds a part."""
        return embedded(self.world, self.network, images, 256, fold=False)

    def with_network(self, network: nn.Module) -> TaskContext:
        """Return the same task with another network."""
        assert isinstance(network, Embedder)
        return replace(self, network=network)
