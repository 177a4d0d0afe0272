"""Embeddings after a task: the stage embed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...common.finite import check_finite
from ...common.labels import sorted_labels
from ...distributed.passes import embedded_on_first, joined
from ...networks.embedder import Embedder
from ...prototypes.store import Prototypes
from ...training.trainer import Trained
from .base import Given, Packed, Stage
from .networks import kept_after, network_after


@dataclass(frozen=True)
class Embeddings:
    """Embeddings after a task, all by the same network but `z_old`.

    Attributes:
        z_old: (N, D) the new training images through the network before the task (z^{t-1}).
        z_new: (N, D) the same images through the network after it (z^t).
        z_test: the test images of all tasks so far, in task order.
        z_kept: the exemplars, in their order; empty without exemplars.
        true_means: (K, D) the true mean of every class seen so far: what the oracle knows (Eq. 8).
    """

    z_old: torch.Tensor
    z_new: torch.Tensor
    z_test: torch.Tensor
    z_kept: torch.Tensor
    true_means: torch.Tensor


class Embed(Stage[Embeddings]):
    """The embeddings after task t that read-outs and figures need."""

    kind, version = "embed", 4

    @property
    def moved(self) -> bool:
        """Whether the network changed in this task."""
        return self._network(self.task) is not self._network(self.task - 1)

    def parents(self) -> tuple[Stage[Any], ...]:
        """The networks after the task and before it, the exemplars, and the embeddings of past tasks that it uses."""
        kept = kept_after(self.setup, self.method, self.task) if self.method.exemplars is not None else ()
        past = tuple(Embed.of(self.setup, self.method, t) for t in self._past_embeddings())
        return (self._network(self.task), *((self._network(self.task - 1),) if self.moved else ()), *kept, *past)

    def identity(self) -> Mapping[str, Any]:
        """The images, the features and the space of means, and on how many images old means are measured."""
        return {
            "task": self.task,
            "data": self.setup.fingerprints[: self.task],
            "space": self.method.readout.space_name,
            "mean_images": self.setup.mean_images,
            # A network that classifies has no other features.
            **({"pooled": True} if self.method.reads_pooled and not self.method.objective.classifies else {}),
        }

    def compute(self, given: Given) -> Embeddings:
        """Embed images; on several ranks each embeds its share of every pass, and the first one gets all of them."""
        setup, method, task, world = self.setup, self.method, self.task, self.setup.world

        def z(network: Embedder, *parts: torch.Tensor) -> torch.Tensor:
            network = network.pooled() if method.reads_pooled else network
            whole = embedded_on_first(world, network, parts, given.scratch)
            check_finite(network.backbone, "the embeddings of a task's images", whole)
            return whole

        network, new = given.of(self._network(task)).network, setup.data(task)
        # Where the network did not change, neither did the embeddings of old classes.
        again = task == 1 or self.moved
        z_new = z(network, new.images)
        z_old = z(given.of(self._network(task - 1)).network, new.images) if self.moved else z_new
        z_test = z(network, *(setup.test(t).images for t in (range(1, task + 1) if again else (task,))))
        z_kept = z_new[:0]
        if method.exemplars is not None:
            (kept,) = kept_after(setup, method, task)
            exemplars = given.of(kept).exemplars
            z_kept = z_kept if exemplars is None else z(network, exemplars.images)
        true_means = []
        for past in range(1, task) if again else ():
            images, some = setup.data(past).images, self._measured(past)
            z_past = z(network, images if some is None else images[some])
            if world.is_first:
                true_means.append(self._true_means(z_past, past, given))
        if not world.is_first:
            return Embeddings(z_old, z_new, z_new, z_kept, z_new)  # (0, D) each: only the first rank is asked
        if not again:
            before = given.of(Embed.of(setup, method, task - 1))
            z_test = joined(world, [before.z_test, z_test], given.scratch)
            true_means = [before.true_means]
        added = sorted_labels(new.labels)
        true_means.append(Prototypes.of(added, method.readout.space(z_new), new.targets_of(added), task).means)
        return Embeddings(z_old, z_new, z_test, z_kept, torch.cat(true_means))

    def pack(self, value: Embeddings) -> Packed:
        """Return one file of all embeddings."""
        return {}, {"embeddings": dict(vars(value))}

    def unpack(self, packed: Packed) -> Embeddings:
        """Return them."""
        return Embeddings(**packed[1]["embeddings"])

    def _network(self, task: int) -> Stage[Trained]:
        return network_after(self.setup, self.method, task)

    def _past_embeddings(self) -> range:
        """Return the tasks whose embeddings it uses."""
        if self.task > 1 and not self.moved:
            return range(self.task - 1, self.task)
        return range(1, self.task if self.setup.mean_images is not None else 1)

    def _measured(self, past: int) -> torch.Tensor | None:
        """Return on which images of a past task the movement of its means is measured; None: on all."""
        most = self.setup.mean_images
        if most is None:
            return None
        classes = self.setup.stream.task_classes[past - 1]
        targets = self.setup.data(past).targets_of(classes)
        return torch.cat([(targets == target).nonzero().flatten()[:most] for target in range(len(classes))])

    def _true_means(self, z: torch.Tensor, past: int, given: Given) -> torch.Tensor:
        """Return the means of a past task's classes by the network now, (K, D), from its images that are measured.

        Where only some images of each class are used, what they moved is added to the mean of all images when the task
        was learned. A mean of 100 images is off by about 0.06 in a space of unit vectors, as far as many prototypes
        drift; the mean movement of the same 100 images is known several times better.
        """
        space, classes = self.method.readout.space, self.setup.stream.task_classes[past - 1]
        targets, some = self.setup.data(past).targets_of(classes), self._measured(past)
        if some is None:
            return Prototypes.of(classes, space(z), targets, past).means
        now = Prototypes.of(classes, space(z), targets[some], past).means
        z_then = space(given.of(Embed.of(self.setup, self.method, past)).z_new)
        then = Prototypes.of(classes, z_then[some], targets[some], past).means
        return Prototypes.of(classes, z_then, targets, past).means + (now - then)
