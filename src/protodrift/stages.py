"""Experiments as a tree of stages: what begins alike is computed once.

Methods that agree on objective, penalty and memory are ONE training, read out with every drift estimator asked for.
Methods that begin alike share the beginning: in the first task no penalty acts, so E-FT, E-LwF, E-EWC, E-MAS and E-Fix
have the same first task. A stage is identified by the hash of what acts in it (and nothing else), and of its parent; a
stage that is in the store is not computed again.

    root -> train 1 -> close 1 -> train 2 -> close 2 -> ...      close: importances, memory
                          |                     |
                       embed 1               embed 2             read-outs, one a drift estimator: no training
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from . import metrics
from .config import Config, encode
from .data.dataset import Examples
from .data.transforms import CropFlip, default_augmentation
from .drift import Oracle, compensate
from .errors import InputError
from .labels import Label
from .methods import Method
from .networks.build import build_embedder
from .networks.embedder import embed
from .progress import training_progress
from .prototypes import Prototypes
from .tasks import TaskStream
from .trainer import Trained, Training, close_task, train_network

VERSIONS = {"root": 1, "train": 1, "close": 1, "embed": 1}
"""A number per kind of stage, raised by hand when its numerics change."""

T = TypeVar("T")


@dataclass(frozen=True)
class Network(Config):
    """The network of an experiment: what `build_embedder` needs.

    Args:
        backbone: a name from `networks.BACKBONES`.
        embedding_dim: size of z.
        normalise: L2-normalise z.
        weights: a weight file for the backbone, or None.
    """

    backbone: str = "auto"
    embedding_dim: int | None = 512
    normalise: bool = True
    weights: str | None = None


@dataclass(frozen=True)
class Embeddings:
    """Embeddings after a task, all by the same network but `z_old`.

    Attributes:
        z_old: (N, D) the new training images through the network before the task (z^{t-1}).
        z_new: (N, D) the same images through the network after it (z^t).
        z_seen: embeddings of the training images of all tasks so far, for true means.
        z_test: embeddings of the test images of all tasks so far.
    """

    z_old: torch.Tensor
    z_new: torch.Tensor
    z_seen: torch.Tensor
    z_test: torch.Tensor


@dataclass(frozen=True)
class MethodResult:
    """What one method reached on a stream.

    Attributes:
        accuracy_matrix: (T, T) a[k, j], NaN for j > k.
        test_counts: (T,) test images of each task.
        classes: all labels in task order.
        prototype_distance: (T, K) distance of each prototype to the true mean after each task; NaN before a class is
            learned.
        confusion: (K, K) after the last task.
        prototypes: the store after each task.
    """

    name: str
    method: Method
    seed: int
    accuracy_matrix: np.ndarray
    test_counts: tuple[int, ...]
    classes: tuple[Label, ...]
    prototype_distance: np.ndarray
    confusion: np.ndarray
    prototypes: tuple[Prototypes, ...]

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
    def old_prototype_distance(self) -> np.ndarray:
        """Mean distance of the OLD classes' prototypes to their true means after each task, (T,), NaN for the first."""
        result = np.full(len(self.prototype_distance), np.nan)
        for k, store in enumerate(self.prototypes[:-1], 1):
            result[k] = self.prototype_distance[k, : len(store)].mean()
        return result

    def to_json(self) -> dict[str, Any]:
        """Return everything but the prototypes, JSON-able; what is not defined is null."""
        return {
            "method": self.name,
            "configuration": self.method.to_json(),
            "seed": self.seed,
            "accuracy_matrix": _json_numbers(self.accuracy_matrix),
            "average_accuracy": _json_numbers(self.average_accuracy),
            "overall_accuracy": _json_numbers(self.overall_accuracy),
            "average_forgetting": _json_numbers(self.average_forgetting),
            "prototype_distance": _json_numbers(self.prototype_distance),
            "old_prototype_distance": _json_numbers(self.old_prototype_distance),
            "confusion": self.confusion.tolist(),
            "classes": list(self.classes),
        }


class Tree:
    """The stages of one stream, one network and one seed, for any number of methods.

    Args:
        stream: the tasks; its dataset needs test images.
        network, training: how every method is trained.
        augment: random views; "auto" as for `IncrementalClassifier`.
        seed: of initial weights, batches and mining (the class order has its own seed, in the stream).
        verbose: show progress on standard error.

    Attributes:
        computed: how many stages of each kind were really computed. `computed["train"]` counts trainings of one task.
        seconds: time spent in each kind.
    """

    def __init__(
        self,
        stream: TaskStream,
        *,
        network: Network = Network(),
        training: Training = Training(),
        augment: CropFlip | str | None = "auto",
        seed: int = 0,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        if stream.dataset.test is None:
            raise InputError("an experiment needs test images: Dataset(X, y, X_test, y_test), or dataset.split(0.2).")
        self.stream = stream
        self.network = network
        self.training = training
        self.augment: CropFlip | None = (
            default_augmentation(stream.dataset.spec) if augment == "auto" else augment  # type: ignore[assignment]
        )
        self.seed = seed
        self.device = device
        self.verbose = verbose
        self.computed: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self._store: dict[str, Any] = {}

    # -- stages --------------------------------------------------------------------------------------------------

    def trained(self, method: Method, task: int) -> Trained:
        """Return what training leaves behind after task t (0: the initial network)."""
        return self._store[self._ensure(method, task)]  # type: ignore[no-any-return]

    def embeddings(self, method: Method, task: int) -> Embeddings:
        """Return the embeddings after task t that read-outs and pictures need."""
        parent = self._ensure(method, task)
        return self._stage("embed", {}, parent, lambda: self._embed(method, task))[1]

    def true_means(self, method: Method, task: int) -> torch.Tensor:
        """Return the true mean of every class seen up to task t in the space of its network, (K, D) (Eq. 8)."""
        seen = self._seen(task)
        means = self.embeddings(method, task).z_seen
        return Prototypes.of(self._classes(task), means, seen.rows_of(self._classes(task)), task).means

    def prototypes(self, method: Method, task: int) -> Prototypes:
        """Return the prototypes after task t: the old ones compensated (Eq. 13), the new ones computed (Eq. 3)."""
        embeddings = self.embeddings(method, task)
        current = self.stream[task - 1]
        if method.memory is not None:  # the old images are there: all prototypes are computed anew
            new = Prototypes.of(
                self._classes(task), embeddings.z_seen, self._seen(task).rows_of(self._classes(task)), task
            )
            return new if task == 1 else Prototypes.joined(self.prototypes(method, task - 1), new)
        rows = current.data.rows_of(current.classes)
        new = Prototypes.of(current.classes, embeddings.z_new, rows, task)
        if task == 1:
            return new
        old = self.prototypes(method, task - 1)
        fitted = None
        if isinstance(method.drift, Oracle):
            fitted = method.drift.knowing(self.true_means(method, task)[: len(old)])
        elif method.drift is not None:
            fitted = method.drift.fit(embeddings.z_old, embeddings.z_new, rows)
        return Prototypes.joined(compensate(old, fitted)[0], new)

    def run(self, methods: Mapping[str, Method]) -> dict[str, MethodResult]:
        """Return the result of every method; trainings are shared wherever methods agree."""
        return {name: self._result(name, method) for name, method in methods.items()}

    # -- how they are made ---------------------------------------------------------------------------------------

    def _ensure(self, method: Method, task: int) -> str:
        """Compute what is missing of the chain up to task t and return the key of its last stage."""
        key, trained = self._stage("root", self._root_identity(), "", self._root)
        for t in range(1, task + 1):
            before = trained
            new = self.stream[t - 1].data
            if not method.schedule.trains(t):
                key, trained = self._stage("close", {"carried": True, "task": t}, key, lambda b=before: b)  # type: ignore[misc]
                continue
            key, fresh = self._stage(
                "train",
                self._train_identity(method, t),
                key,
                lambda b=before, n=new, t=t: self._train(b, n, t, method),  # type: ignore[misc]
            )
            kept = {"penalty": encode(method.penalties), "memory": encode(method.memory), "seed": self.seed}
            key, trained = self._stage(
                "close",
                kept,
                key,
                lambda f=fresh, b=before, n=new, t=t: close_task(f, b, n, task=t, method=method, seed=self.seed),  # type: ignore[misc]
            )
        return key

    def _stage(self, kind: str, identity: Mapping[str, Any], parent: str, compute: Callable[[], T]) -> tuple[str, T]:
        described = {"kind": kind, "version": VERSIONS[kind], "parent": parent, **identity}
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        if key not in self._store:
            started = time.perf_counter()
            self._store[key] = compute()
            self.seconds[kind] += time.perf_counter() - started  # type: ignore[assignment]
            self.computed[kind] += 1
        return key, self._store[key]

    def _root_identity(self) -> dict[str, Any]:
        return {
            "network": encode(self.network),
            "seed": self.seed,
            "data": fingerprint(self.stream[0].data),
            "device": self.device,
            "threads": torch.get_num_threads(),
        }

    def _train_identity(self, method: Method, task: int) -> dict[str, Any]:
        """Only what acts: no penalty, batch-norm policy or memory in the first task, no drift or read-out in any."""
        later = {
            "penalty": encode(method.penalties),
            "batch_norm": method.schedule.batch_norm,
            "memory": encode(method.memory),
        }
        return {
            "task": task,
            "objective": encode(method.objective),
            "training": encode(self.training),
            "augment": encode(self.augment),
            "data": fingerprint(self.stream[task - 1].data),
            **(later if task > 1 else {}),
        }

    def _root(self) -> Trained:
        network = build_embedder(
            self.network.backbone,
            self.stream.dataset.spec,
            embedding_dim=self.network.embedding_dim,
            normalise=self.network.normalise,
            weights=self.network.weights,
            seed=self.seed,
        )
        network.standardise.fit(self.stream[0].data.images)
        return Trained(network.to(self.device).eval())

    def _train(self, before: Trained, new: Examples, task: int, method: Method) -> Trained:
        examples = new if before.memory is None else Examples.concatenate([before.memory, new])
        with training_progress("training", self.verbose) as on_progress:
            return train_network(
                before,
                examples,
                task=task,
                method=method,
                training=self.training,
                augment=self.augment,
                seed=self.seed,
                on_progress=on_progress,
            )

    def _embed(self, method: Method, task: int) -> Embeddings:
        network, network_old = (self.trained(method, t).network for t in (task, task - 1))
        seen = self._seen(task)
        test = Examples.concatenate([self.stream[t].test for t in range(task)])  # type: ignore[misc]
        z_seen = embed(network, seen.images)
        new = self.stream[task - 1].data.images
        return Embeddings(embed(network_old, new), z_seen[-len(new) :], z_seen, embed(network, test.images))

    def _seen(self, task: int) -> Examples:
        return Examples.concatenate([self.stream[t].data for t in range(task)])

    def _classes(self, task: int) -> tuple[Label, ...]:
        return tuple(label for classes in self.stream.task_classes[:task] for label in classes)

    def _result(self, name: str, method: Method) -> MethodResult:
        stream, classes = self.stream, self.stream.classes
        acc = np.full((len(stream), len(stream)), np.nan)
        distance = np.full((len(stream), len(classes)), np.nan)
        stores = []
        for k in range(1, len(stream) + 1):
            store = self.prototypes(method, k)
            stores.append(store)
            y_true = [label for t in range(k) for label in stream[t].test.labels]  # type: ignore[union-attr]
            rows = method.readout.predict(self.embeddings(method, k).z_test, store.means)
            y_pred = [store.labels[row] for row in rows.tolist()]
            acc[k - 1, :k] = metrics.task_accuracies(y_true, y_pred, stream.task_classes[:k])
            distance[k - 1, : len(store)] = metrics.prototype_distance(store.means, self.true_means(method, k))
        return MethodResult(
            name,
            method,
            self.seed,
            acc,
            tuple(len(task.test) for task in stream),  # type: ignore[arg-type]
            classes,
            distance,
            metrics.confusion_matrix(y_true, y_pred, classes),
            tuple(stores),
        )


def fingerprint(examples: Examples) -> str:
    """Return a hash of images and labels."""
    digest = hashlib.sha256(repr((tuple(examples.images.shape), str(examples.images.dtype), examples.labels)).encode())
    digest.update(examples.images.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _json_numbers(values: np.ndarray) -> Any:
    if values.ndim > 1:
        return [_json_numbers(row) for row in values]
    return [None if np.isnan(value) else float(value) for value in values]
