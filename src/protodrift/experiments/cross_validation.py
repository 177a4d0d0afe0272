"""Cross-validation of a classifier that learns task after task: constants are chosen without test images."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from ..data.examples import Examples
from ..data.tasks import TaskStream
from ..errors import InputError
from ..metrics import accuracy_matrix, average_accuracy, average_forgetting


def cross_validate_incremental(
    clf: Any, stream: TaskStream, *, cv: int = 5, random_state: int | None = 0
) -> dict[str, np.ndarray]:
    """Learn the tasks of a stream one after the other, once per fold, and score on the images that a fold leaves out.

    `GridSearchCV` calls `fit`, which is one task: nothing is old there, so a search over `drift` or `penalty` would
    compare nothing. Here a clone learns every task with `partial_fit`, and is scored on all tasks so far after each.
    Only training images of the stream are looked at.

    Args:
        clf: a classifier with `partial_fit(X, y)` and `predict(X)`; it is cloned, and does not change.
        stream: the tasks.
        cv: number of folds, 2 or more; every class needs that many images.
        random_state: of the folds. The same number gives the same folds, for every classifier.

    Returns:
        "accuracy_matrix" (cv, T, T): a[k, j] of each fold, NaN where j > k; "average_accuracy" (cv, T): A_k;
        "average_forgetting" (cv, T): F_k, NaN for the first task; "test_score" (cv,): A_T, and "fit_time" (cv,) in
        seconds, as scikit-learn's `cross_validate` names them.

    Raises:
        InputError: for a class with fewer images than folds.

    >>> from protodrift import SDC, IncrementalClassifier, TaskStream, Training
    >>> from protodrift.data import load_digits
    >>> stream = TaskStream(load_digits(), classes=[[0, 1], [2, 3]])
    >>> clf = IncrementalClassifier("convnet", embedding_dim=8, training=Training(epochs=1))
    >>> found = cross_validate_incremental(clf.set_params(drift=SDC(sigma=0.2)), stream, cv=2)
    >>> found["accuracy_matrix"].shape, found["test_score"].shape
    ((2, 2, 2), (2,))
    """
    tasks = list(stream)
    counts = Counter(label for task in tasks for label in task.data.labels)
    few = [label for label, count in counts.items() if count < cv]
    if isinstance(cv, bool) or not isinstance(cv, int) or cv < 2 or few:
        of = f": class {few[0]!r} has {counts[few[0]]}" if few else ""
        raise InputError(f"cv={cv!r} must be a whole number of at least 2 and at most the images of a class{of}.")
    splitter = StratifiedKFold(cv, shuffle=True, random_state=random_state)
    splits = [list(splitter.split(task.data.labels, list(map(str, task.data.labels)))) for task in tasks]
    found: dict[str, list[Any]] = {"accuracy_matrix": [], "fit_time": []}
    for fold in range(cv):
        learner, rows, seconds = clone(clf), [], 0.0
        left = [task.data.at(torch.from_numpy(split[fold][1])) for task, split in zip(tasks, splits, strict=True)]
        for k, (task, split) in enumerate(zip(tasks, splits, strict=True), 1):
            learned, start = task.data.at(torch.from_numpy(split[fold][0])), time.perf_counter()
            learner.partial_fit(learned.images.numpy(), np.array(learned.labels))
            seconds += time.perf_counter() - start
            rows.append([_accuracy(learner, one) for one in left[:k]])
        found["accuracy_matrix"].append(accuracy_matrix(rows))
        found["fit_time"].append(seconds)
    every = found["accuracy_matrix"]
    averages = np.array([average_accuracy(acc) for acc in every])
    return {
        "accuracy_matrix": np.array(every),
        "average_accuracy": averages,
        "average_forgetting": np.array([average_forgetting(acc) for acc in every]),
        "test_score": averages[:, -1],
        "fit_time": np.array(found["fit_time"]),
    }


def _accuracy(clf: Any, examples: Examples) -> float:
    return float(np.mean(clf.predict(examples.images.numpy()) == np.array(examples.labels)))
