"""Prototypes, predictions and accuracies after a task: the stage readout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ... import metrics
from ...common.labels import Label, sorted_labels
from ...common.tensorfiles import Tensors
from ...drift import FittedDrift
from ...networks.embedder import Embedder, embed
from ...prototypes.store import Prototypes
from ...readouts import View
from ...training.moving import move_prototypes, move_readout
from ...training.recognition import readout_view
from ...training.task import compute_prototypes, fit_drift, read_out
from ...training.trainer import Trained
from ..identity import described
from .base import Given, Packed, Stage
from .embed import Embed, Embeddings
from .networks import network_after, stages_after, trained_after
from .truth import true_moments

_SCORES = 2**26  # held at once: a read-out that solves for its map solves once for so many


@dataclass(frozen=True)
class ReadoutResult:
    """What one drift estimator and read-out made of a trained network after a task.

    Attributes:
        prototypes: all classes seen so far.
        readout_state: what the read-out has learned.
        predicted: (N,) index of the predicted class for every test image of the tasks so far.
        accuracies: accuracy on each task so far: a row of a[k, j].
        aware: the same where an image's task is told, and only its classes can be answered.
        before: how well the network before this task told its classes apart (`metrics.left_out_accuracy`).
        distances: distance of each prototype to its true mean; NaN for read-outs without prototypes.
        bytes_stored: what has to be kept after this task beside the network, in bytes.
    """

    prototypes: Prototypes
    readout_state: Tensors
    predicted: torch.Tensor
    accuracies: tuple[float, ...]
    aware: tuple[float, ...]
    before: float
    distances: tuple[float, ...]
    bytes_stored: int


class ReadOut(Stage[ReadoutResult]):
    """Prototypes, predictions and accuracies after task t, for one drift estimator and read-out."""

    kind, version = "readout", 9

    @property
    def _embed(self) -> Embed:
        return Embed.of(self.setup, self.method, self.task)

    @property
    def _beside(self) -> tuple[Embed, ...]:
        """The embeddings of the method whose features stand beside this one's, if there is one."""
        beside = self.method.beside
        return () if beside is None else (Embed.of(self.setup, beside, self.task),)

    @property
    def _before(self) -> ReadOut | None:
        return ReadOut.of(self.setup, self.method, self.task - 1) if self.task > 1 else None

    @property
    def _probes(self) -> bool:
        """Whether the drift estimator looks at images through the networks before and after the task."""
        drift = self.method.drift
        return drift is not None and drift.needs_networks and self.task > 1 and self._embed.moved

    def parents(self) -> tuple[Stage[Any], ...]:
        """The embeddings, what training left behind, the read-out before, and networks that the parts ask for."""
        first = 0 if self.method.readout.needs_every_network else self.task - self._probes
        networks = (network_after(self.setup, self.method, t) for t in range(first, self.task))
        before = () if self._before is None else (self._before,)
        found = (self._embed, *self._beside, *stages_after(self.setup, self.method, self.task), *before, *networks)
        return tuple(dict.fromkeys(found))

    def identity(self) -> Mapping[str, Any]:
        """Drift and read-out."""
        return {"drift": described(self.method.drift), "readout": described(self.method.readout)}

    def compute(self, given: Given) -> ReadoutResult:
        """Move old prototypes, add new ones, and classify the test images."""
        setup, method, task = self.setup, self.method, self.task
        embeddings = given.of(self._embed)
        size = embeddings.z_new.shape[1]  # of what can drift
        for stage in self._beside:
            embeddings = side_by_side(embeddings, given.of(stage))
        new, classes = setup.data(task), setup.classes(task)
        trained = trained_after(setup, method, task, given.of)
        before = None if self._before is None else given.of(self._before)
        old = None if before is None else before.prototypes
        exemplars = None if trained.exemplars is None else (trained.exemplars, embeddings.z_kept)
        computed = compute_prototypes(method, task, new, embeddings.z_new, old=old, exemplars=exemplars)
        fitted = None if old is None else self._fitted(old, computed, embeddings, size, trained.network, given)
        prototypes, _ = move_prototypes(method, old, computed, fitted)
        z = embeddings.z_new
        if method.readout.needs_every_network:
            z = embed(given.of(network_after(setup, method, 0)).network, new.images)
        state = {} if before is None else before.readout_state
        state = move_readout(method, state, old, fitted, task, setup.seed)
        targets = new.targets_of(classes)
        state = read_out(method, state, z, targets, task=task, seed=setup.seed, classes=len(classes))
        view = self._view(embeddings.z_test, prototypes, trained.network, state, given)
        predicted = method.readout.predict(view)
        added = sorted_labels(new.labels)
        y_true = [label for t in range(1, task + 1) for label in setup.test(t).labels]
        y_pred = [classes[target] for target in predicted.tolist()]
        distances = np.full(len(classes), np.nan)
        if method.readout.uses_prototypes:
            distances = metrics.prototype_distance(prototypes.means, embeddings.true_means)
        return ReadoutResult(
            prototypes,
            state,
            predicted,
            tuple(metrics.task_accuracies(y_true, y_pred, setup.stream.task_classes[:task]).tolist()),
            self._aware(view, classes),
            metrics.left_out_accuracy(method.readout.space(embeddings.z_old), new.targets_of(added), len(added)),
            tuple(distances.tolist()),
            self._bytes_stored(trained, prototypes, state),
        )

    def pack(self, value: ReadoutResult) -> Packed:
        """Return numbers as JSON, and tensors."""
        prototypes = value.prototypes
        data = {
            "accuracies": json_numbers(np.array(value.accuracies)),
            "aware": json_numbers(np.array(value.aware)),
            "before": value.before,
            "distances": json_numbers(np.array(value.distances)),
            "bytes_stored": value.bytes_stored,
        }
        return data, {
            "prototypes": {"means": prototypes.means, "counts": prototypes.counts, "tasks": prototypes.tasks},
            "statistics": prototypes.statistics,
            "readout": value.readout_state,
            "predicted": {"targets": value.predicted},
        }

    def unpack(self, packed: Packed) -> ReadoutResult:
        """Return the result; labels come from the stream."""
        data, tensors = packed
        classes = self.setup.classes(self.task)
        return ReadoutResult(
            Prototypes(classes, **tensors["prototypes"], statistics=tensors.get("statistics", {})),
            tensors["readout"],
            tensors["predicted"]["targets"],
            tuple(np.nan if value is None else float(value) for value in data["accuracies"]),
            tuple(np.nan if value is None else float(value) for value in data["aware"]),
            float(data["before"]),
            tuple(np.nan if value is None else float(value) for value in data["distances"]),
            data["bytes_stored"],
        )

    def _fitted(
        self, old: Prototypes, computed: Prototypes, embeddings: Embeddings, size: int, network: Embedder, given: Given
    ) -> FittedDrift | None:
        """Return the drift estimator that has seen how the task's images moved, or knows the true means.

        Only the first `size` dimensions can have moved: the rest are features beside the network's own.
        """
        method, new = self.method, self.setup.data(self.task)
        if method.drift is not None and method.drift.evaluation_only:
            return method.drift.knowing(embeddings.true_means[: len(old)], *self._true_moments(old, network, given))
        if not self._embed.moved:
            return None
        networks = None
        if self._probes:
            networks = (given.of(network_after(self.setup, method, self.task - 1)).network, network)
        return fit_drift(
            method,
            old,
            embeddings.z_old,
            embeddings.z_new,
            new.targets_of(sorted_labels(new.labels)),
            recomputed=computed.labels,
            networks=networks,
            images=new.images,
            moving=size,
        )

    def _aware(self, view: View, classes: tuple[Label, ...]) -> tuple[float, ...]:
        """Return the accuracy on each task so far among its own classes: the best of their scores."""
        scores = (self.method.readout.scores(part) for part in view.parts(_SCORES))
        tasks = self.setup.stream.task_classes[: self.task]
        own = torch.cat([self.setup.test(t).targets_of(classes) for t in range(1, self.task + 1)])
        task_of = torch.tensor([t for t, task in enumerate(tasks) for _ in task])
        right, at = torch.zeros(len(tasks)), 0
        for some in scores:
            targets = own[at : at + len(some)]
            elsewhere = task_of[None, :] != task_of[targets][:, None]
            best = some.masked_fill(elsewhere.to(some.device), -torch.inf).argmax(dim=1).cpu()
            right.index_add_(0, task_of[targets], (best == targets).float())
            at += len(some)
        counts = torch.bincount(task_of[own], minlength=len(tasks))
        return tuple((right.double() / counts).tolist())

    def _true_moments(
        self, old: Prototypes, network: Embedder, given: Given
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return what the oracle knows beside means, if the read-out keeps any of it and the network moved."""
        assert self._before is not None
        one = "shared" in old.statistics or "scatter" in given.of(self._before).readout_state
        each = bool(old.statistics) and "shared" not in old.statistics
        if not (one or each) or not self._embed.moved or self.method.beside is not None:
            return None, None
        network = network.pooled() if self.method.reads_pooled else network
        return true_moments(self.setup, self.method, self.task, network, each=each)

    def _view(
        self, z_test: torch.Tensor, prototypes: Prototypes, network: Embedder, state: Tensors, given: Given
    ) -> View:
        view = readout_view(z_test, prototypes, network, state)
        if not self.method.readout.needs_every_network:
            return view

        def network_of_task(t: int) -> Embedder:
            return given.of(network_after(self.setup, self.method, t)).network

        def z_of_task(t: int) -> torch.Tensor:
            tests = (self.setup.test(task).images for task in range(1, self.task + 1))
            return torch.cat([embed(network_of_task(t), images) for images in tests])

        def logits_of_task(t: int) -> list[torch.Tensor]:
            with torch.no_grad():
                return network_of_task(t).logits(z_of_task(t))

        return replace(view, z_of_task=z_of_task, logits_of_task=logits_of_task)

    def _bytes_stored(self, trained: Trained, prototypes: Prototypes, readout_state: Tensors) -> int:
        """Count what must be kept after the task beside the network itself, in bytes."""
        parts = [tensor for state in trained.penalty_state for tensor in state.values()] + list(readout_state.values())
        if self.method.readout.uses_prototypes:
            parts += [prototypes.means, *prototypes.statistics.values()]
        if trained.exemplars is not None:
            parts.append(trained.exemplars.images)
        if self.method.readout.needs_every_network:  # the initial network and one per task, not one
            parts += self.task * list(trained.network.state_dict().values())
        return sum(part.numel() * part.element_size() for part in parts)


def side_by_side(own: Embeddings, fixed: Embeddings) -> Embeddings:
    """Return the embeddings of two networks, dimensions after dimensions; the second one did not move in the task."""
    return Embeddings(
        torch.cat([own.z_old, fixed.z_new], dim=1),
        torch.cat([own.z_new, fixed.z_new], dim=1),
        torch.cat([own.z_test, fixed.z_test], dim=1),
        torch.cat([own.z_kept, fixed.z_kept], dim=1),
        torch.cat([own.true_means, fixed.true_means], dim=1),
    )


def json_numbers(values: np.ndarray) -> Any:
    """Return numbers as nested lists, NaN as None."""
    if values.ndim > 1:
        return [json_numbers(row) for row in values]
    return [None if np.isnan(value) else float(value) for value in values]
