"""What a method reached on a stream, and what is computed from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import metrics
from ..common.labels import Label
from ..methods import Method
from ..prototypes.store import Prototypes
from .identity import written
from .setup import Setup
from .stages import ReadoutResult
from .stages.readout import json_numbers


@dataclass(frozen=True)
class MethodResult:
    """What one method reached on a stream.

    Attributes:
        accuracy_matrix: (T, T) a[k, j], NaN for j > k.
        test_counts: (T,) test images of each task.
        task_sizes: (T,) classes of each task.
        classes: all labels in task order.
        prototype_distance: (T, K) distance of each prototype to the true mean after each task; NaN before a class is
            learned, and for read-outs without prototypes.
        confusion: (K, K) after the last task; None for more than `metrics.CONFUSION_CLASSES`.
        prototypes: the store after each task.
        seconds: time that its stages took when they were computed, shared ones included.
        bytes_stored: what has to be kept between tasks beside the network, in bytes.
        task_aware: (T, T) as `accuracy_matrix`, where an image's task is told.
        accuracy_before: (T,) how well the network before each task told its classes apart.
        history: of each task, and there of each epoch, its mean loss and mean penalty; empty where nothing is trained.
        settings: network, training and what else acted in this row, JSON-able.
        trainings: the trainings of a task that it rests on, by the beginning of their keys; rows share them.
    """

    name: str
    method: Method
    seed: int
    accuracy_matrix: np.ndarray
    test_counts: tuple[int, ...]
    task_sizes: tuple[int, ...]
    classes: tuple[Label, ...]
    prototype_distance: np.ndarray
    confusion: np.ndarray | None
    prototypes: tuple[Prototypes, ...]
    seconds: float = 0.0
    bytes_stored: int = 0
    task_aware: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    accuracy_before: tuple[float, ...] = ()
    history: tuple[tuple[Mapping[str, float], ...], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    trainings: tuple[str, ...] = ()

    @cached_property
    def average_accuracy(self) -> np.ndarray:
        """A_k, mean over tasks, (T,)."""
        return metrics.average_accuracy(self.accuracy_matrix)

    @cached_property
    def overall_accuracy(self) -> np.ndarray:
        """Accuracy over the test images of all seen classes, (T,)."""
        return metrics.overall_accuracy(self.accuracy_matrix, self.test_counts)

    @cached_property
    def average_forgetting(self) -> np.ndarray:
        """F_k, (T,), NaN for the first task."""
        return metrics.average_forgetting(self.accuracy_matrix)

    @cached_property
    def backward_transfer(self) -> np.ndarray:
        """What later tasks gave to old ones, (T,), NaN for the first task."""
        return metrics.backward_transfer(self.accuracy_matrix)

    @cached_property
    def forward_transfer(self) -> np.ndarray:
        """What the network knew of tasks that it had not seen, (T,), NaN for the first task."""
        return metrics.forward_transfer(self.accuracy_before, [1 / size for size in self.task_sizes])

    @cached_property
    def task_aware_accuracy(self) -> np.ndarray:
        """A_k where an image's task is told, (T,)."""
        return metrics.average_accuracy(self.task_aware)

    @cached_property
    def old_prototype_distance(self) -> np.ndarray:
        """Mean distance of the OLD classes' prototypes to their true means after each task, (T,), NaN for the first."""
        result = np.full(len(self.prototype_distance), np.nan)
        for k, store in enumerate(self.prototypes[:-1], 1):
            result[k] = self.prototype_distance[k, : len(store)].mean()
        return result

    @property
    def summary(self) -> str:
        """The accuracy after the last task in one line."""
        average, overall = self.average_accuracy, self.overall_accuracy
        return f"A_{len(average)} {100 * average[-1]:.1f}, all classes {100 * overall[-1]:.1f}"

    def to_json(self) -> dict[str, Any]:
        """Return everything but the prototypes, JSON-able; what is not defined is null."""
        return {
            "method": self.name,
            "configuration": written(self.method),
            "settings": dict(self.settings),
            "seed": self.seed,
            "accuracy_matrix": json_numbers(self.accuracy_matrix),
            "average_accuracy": json_numbers(self.average_accuracy),
            "overall_accuracy": json_numbers(self.overall_accuracy),
            "average_forgetting": json_numbers(self.average_forgetting),
            "backward_transfer": json_numbers(self.backward_transfer),
            "forward_transfer": json_numbers(self.forward_transfer),
            "task_aware_accuracy": json_numbers(self.task_aware_accuracy),
            "mean_incremental_accuracy": float(self.average_accuracy.mean()),
            "new_task_accuracy": json_numbers(np.diag(self.accuracy_matrix)),
            "prototype_distance": json_numbers(self.prototype_distance),
            "old_prototype_distance": json_numbers(self.old_prototype_distance),
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "classes": list(self.classes),
            "test_counts": list(self.test_counts),
            "history": [list(map(dict, task)) for task in self.history],
            "trainings": list(self.trainings),
            "seconds": round(self.seconds, 3),
            "bytes_stored": self.bytes_stored,
        }


def method_result(
    setup: Setup,
    name: str,
    method: Method,
    readouts: Sequence[ReadoutResult],
    seconds: float,
    history: Sequence[Sequence[Mapping[str, float]]] = (),
    trainings: Sequence[str] = (),
) -> MethodResult:
    """Return the result of a method from its read-outs after each task, and what its trainings said."""
    classes, tests = setup.stream.classes, [setup.test(t) for t in range(1, len(setup.tasks) + 1)]
    distance = np.full((len(readouts), len(classes)), np.nan)
    for k, readout in enumerate(readouts):
        distance[k, : len(readout.distances)] = readout.distances
    confusion = None
    if len(classes) <= metrics.CONFUSION_CLASSES:
        y_true = [label for test in tests for label in test.labels]
        y_pred = [classes[target] for target in readouts[-1].predicted.tolist()]
        confusion = metrics.confusion_matrix(y_true, y_pred, classes)
    return MethodResult(
        name,
        method,
        setup.seed,
        metrics.accuracy_matrix([readout.accuracies for readout in readouts]),
        tuple(map(len, tests)),
        tuple(map(len, setup.stream.task_classes)),
        classes,
        distance,
        confusion,
        tuple(readout.prototypes for readout in readouts),
        seconds,
        readouts[-1].bytes_stored,
        metrics.accuracy_matrix([readout.aware for readout in readouts]),
        tuple(readout.before for readout in readouts),
        tuple(map(tuple, history)),
        setup.settings(method),
        tuple(trainings),
    )
