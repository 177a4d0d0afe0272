"""Experiments as a tree of stages: what begins alike is computed once, what is on disk is not computed again.

Methods that agree on objective, penalty and memory are ONE training, read out with every drift estimator and read-out
asked for. Methods that begin alike share the beginning: in the first task no penalty acts, so E-FT, E-LwF, E-EWC, E-MAS
and E-Fix have the same first task. A stage is identified by the hash of what acts in it (and nothing else), and of its
parent. That one mechanism is the cache, the resume after a crash, and the unit that a cluster runs.

    warm -> root -> train 1 -> consolidate 1 -> train 2 -> consolidate 2 -> ...     consolidate: importances and memory
                                  |                     |
                               embed 1               embed 2            embeddings of training and test images
                                  |                     |
                              readout 1 ----------> readout 2           one chain a drift estimator and read-out

A recipe may begin with a warm-up, which all its methods share; without one, there is no such stage.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from .. import metrics
from ..common.config import Config, encode, flag, optional, text, whole
from ..common.labels import Label, sorted_labels
from ..common.progress import Reporter, silent
from ..common.tensorfiles import Tensors
from ..data.examples import Examples
from ..data.tasks import Task, TaskStream
from ..data.views import Augmentation, default_augmentation
from ..distributed.passes import embedded_on_first, joined
from ..distributed.world import current
from ..drift import FittedDrift, Oracle
from ..errors import InputError
from ..methods import Method
from ..networks.build import backbone_name, build_embedder, embedding_options
from ..networks.embedder import Embedder, embed
from ..networks.weights import find_weights, pixel_statistics
from ..prototypes.store import Prototypes
from ..readouts import View
from ..training.evolution import probed, readout_view, update_prototypes
from ..training.trainer import Trained, Training, Warmup, asks_old_network_once, consolidate, train_network
from .store import Store

VERSIONS = {"warm": 1, "root": 1, "train": 1, "consolidate": 1, "embed": 3, "readout": 6}
"""A number per kind of stage, raised by hand when its numerics change."""

_CACHED = 24  # stages held in memory when a store has them on disk

T = TypeVar("T")
Packed = tuple[dict[str, Any], dict[str, Tensors]]
"""A stage as it is stored: JSON data, and named files of named tensors."""


@dataclass(frozen=True)
class Network(Config):
    """The network of an experiment: what `build_embedder` needs.

    Args:
        backbone: a name from `networks.BACKBONES`.
        embedding_dim: size of z; objectives that classify use the backbone's features instead.
        normalize: L2-normalize z.
        weights: a weight file for the backbone, "imagenet", or another source (`networks.pretrained`); None: none.
        crop: side of the center view that prototypes, drift and evaluation use; None: the whole image.
    """

    backbone: str = "auto"
    embedding_dim: int | None = 512
    normalize: bool = True
    weights: str | None = None
    crop: int | None = None
    rules: ClassVar = {
        "backbone": text,
        "embedding_dim": optional(whole(1)),
        "normalize": flag,
        "weights": optional(text),
        "crop": optional(whole(1)),
    }


@dataclass(frozen=True)
class Consolidated:
    """What penalties and exemplars keep after a task."""

    penalty_state: tuple[Tensors, ...]
    exemplars: Examples | None


@dataclass(frozen=True)
class Embeddings:
    """Embeddings after a task, all by the same network but `z_old`.

    Attributes:
        z_old: (N, D) the new training images through the network before the task (z^{t-1}).
        z_new: (N, D) the same images through the network after it (z^t).
        z_test: the test images of all tasks so far, in task order.
        z_kept: what the memory holds, in its order; empty without a memory.
        true_means: (K, D) the true mean of every class seen so far: what the oracle knows (Eq. 8).
    """

    z_old: torch.Tensor
    z_new: torch.Tensor
    z_test: torch.Tensor
    z_kept: torch.Tensor
    true_means: torch.Tensor


@dataclass(frozen=True)
class ReadoutResult:
    """What one drift estimator and read-out made of a trained network after a task.

    Attributes:
        prototypes: all classes seen so far.
        readout_state: what the read-out has learned.
        predicted: (N,) row of the predicted class for every test image of the tasks so far.
        accuracies: accuracy on each task so far: a row of a[k, j].
        distances: distance of each prototype to its true mean; NaN for read-outs without prototypes.
        bytes_stored: what has to be kept after this task beside the network, in bytes.
    """

    prototypes: Prototypes
    readout_state: Tensors
    predicted: torch.Tensor
    accuracies: tuple[float, ...]
    distances: tuple[float, ...]
    bytes_stored: int


@dataclass(frozen=True)
class MethodResult:
    """What one method reached on a stream.

    Attributes:
        accuracy_matrix: (T, T) a[k, j], NaN for j > k.
        test_counts: (T,) test images of each task.
        classes: all labels in task order.
        prototype_distance: (T, K) distance of each prototype to the true mean after each task; NaN before a class is
            learned, and for read-outs without prototypes.
        confusion: (K, K) after the last task; None for more than `metrics.CONFUSION_CLASSES`.
        prototypes: the store after each task.
        seconds: time that its stages took when they were computed, shared ones included.
        bytes_stored: what has to be kept between tasks beside the network, in bytes.
    """

    name: str
    method: Method
    seed: int
    accuracy_matrix: np.ndarray
    test_counts: tuple[int, ...]
    classes: tuple[Label, ...]
    prototype_distance: np.ndarray
    confusion: np.ndarray | None
    prototypes: tuple[Prototypes, ...]
    seconds: float = 0.0
    bytes_stored: int = 0

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
            "accuracy_matrix": json_numbers(self.accuracy_matrix),
            "average_accuracy": json_numbers(self.average_accuracy),
            "overall_accuracy": json_numbers(self.overall_accuracy),
            "average_forgetting": json_numbers(self.average_forgetting),
            "mean_incremental_accuracy": float(self.average_accuracy.mean()),
            "new_task_accuracy": json_numbers(np.diag(self.accuracy_matrix)),
            "prototype_distance": json_numbers(self.prototype_distance),
            "old_prototype_distance": json_numbers(self.old_prototype_distance),
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "classes": list(self.classes),
            "test_counts": list(self.test_counts),
            "seconds": round(self.seconds, 3),
            "bytes_stored": self.bytes_stored,
        }


@dataclass
class _Held:
    """A stage in memory, and how long it took when it was computed."""

    value: Any
    seconds: float


@dataclass
class _Codec:
    """How a kind of stage goes to disk and comes back."""

    pack: Callable[[Any], Packed]
    unpack: Callable[[Packed], Any]


@dataclass(frozen=True)
class Planned:
    """A stage that is still to be computed.

    Attributes:
        kind: of stage.
        method, task: what to ask the tree for.
        needs: keys of the stages that it is made from.
    """

    kind: str
    method: Method
    task: int
    needs: tuple[str, ...]


def _remembered(key: Callable[[Tree, Method, int], str]) -> Callable[[Tree, Method, int], str]:
    """Compute a key once: each is made from the keys before it, some of them on two ways."""

    @wraps(key)
    def asked(tree: Tree, method: Method, task: int) -> str:
        name = (key.__name__, method, task, torch.get_num_threads())
        if name not in tree._keys:
            tree._keys[name] = key(tree, method, task)
        return tree._keys[name]

    return asked


class Tree:
    """The stages of one stream, one network and one seed, for any number of methods.

    Args:
        stream: the tasks; its dataset needs test images.
        network, training: how every method is trained.
        classifier_training: how objectives that classify are trained; None: the same.
        exemplar_training: how those that also remember old images are trained; None: as all that classify.
        warmup: a training of the backbone as a classifier of the first task's classes, before the first task.
        augment: random views; "auto" as for `IncrementalClassifier`.
        mean_images: on how many training images of each old class (the first ones) the movement of its true mean is
            measured; None: all. True means are for evaluation only, and on large sets they are most of its cost.
        seed: of initial weights, batches and mining (the class order has its own seed, in the stream).
        store: where stages are kept on disk; None keeps them in memory only.
        reporter: shows progress.
        ranks: the number of ranks that stages are named after; None: that of this process's world. A run that goes on
            with another number keeps the names it began with.

    Attributes:
        computed: how many stages of each kind were really computed. `computed["train"]` counts trainings of one task.
        loaded: how many came from the store.
    """

    def __init__(
        self,
        stream: TaskStream,
        *,
        network: Network = Network(),
        training: Training = Training(),
        classifier_training: Training | None = None,
        exemplar_training: Training | None = None,
        warmup: Warmup | None = None,
        augment: Augmentation | str | None = "auto",
        mean_images: int | None = None,
        seed: int = 0,
        device: str = "cpu",
        store: Store | None = None,
        reporter: Reporter = silent,
        ranks: int | None = None,
    ) -> None:
        if stream.dataset.test is None:
            raise InputError("an experiment needs test images: Dataset(X, y, X_test, y_test), or dataset.split(0.2).")
        self.stream = stream
        self.network = network
        self.training = training
        self.classifier_training = classifier_training or training
        self.exemplar_training = exemplar_training or self.classifier_training
        self.warmup = warmup
        self.mean_images = mean_images
        self.augment: Augmentation | None = (
            default_augmentation(stream.dataset.spec) if augment == "auto" else augment  # type: ignore[assignment]
        )
        self.seed = seed
        self.device = device
        self.store = store
        self.reporter = reporter
        self.ranks = current().size if ranks is None else ranks
        self.computed: Counter[str] = Counter()
        self.loaded: Counter[str] = Counter()
        self._tasks = list(stream)
        _check_test_images(self._tasks)
        self._fingerprints = [(fingerprint(task.data), fingerprint(task.test)) for task in self._tasks]  # type: ignore[arg-type]
        self._keys: dict[tuple[str, Method, int, int], str] = {}
        self._memory: OrderedDict[str, _Held] = OrderedDict()
        self._elapsed = 0.0  # time spent in all stages so far
        self._weights = self._weights_identity()

    # -- what there is to ask ------------------------------------------------------------------------------------

    def trained(self, method: Method, task: int) -> Trained:
        """Return what training leaves behind after task t (0: the initial network)."""
        if task == 0:
            return self._root(method)
        base = self._network(method, task)
        if self._consolidate_key(method, task) == self._train_key(method, task):
            return base
        closed = self._stage(
            "consolidate",
            self._consolidate_key(method, task),
            self._consolidate_codec(),
            lambda: self._consolidate(method, task),
        )
        return replace(base, penalty_state=closed.penalty_state, exemplars=closed.exemplars)

    def embeddings(self, method: Method, task: int) -> Embeddings:
        """Return the embeddings after task t that read-outs and pictures need."""
        codec = _Codec(_pack_embeddings, _unpack_embeddings)
        return self._stage("embed", self._embed_key(method, task), codec, lambda: self._embed(method, task))

    def z_train(self, method: Method, task: int, of_task: int) -> torch.Tensor:
        """Return the training images of one task by the network after another, (N, D); not kept."""
        return embed(self._network(method, task).network, self._tasks[of_task - 1].data.images)

    def true_means(self, method: Method, task: int) -> torch.Tensor:
        """Return the true mean of every class seen up to task t in the space of its network, (K, D) (Eq. 8)."""
        return self.embeddings(method, task).true_means

    def readout(self, method: Method, task: int) -> ReadoutResult:
        """Return prototypes and predictions after task t."""
        codec = _Codec(_pack_readout, lambda packed: _unpack_readout(packed, self._classes(task)))
        return self._stage("readout", self._readout_key(method, task), codec, lambda: self._read_out(method, task))

    def prototypes(self, method: Method, task: int) -> Prototypes:
        """Return the prototypes after task t: the old ones compensated (Eq. 13), the new ones computed (Eq. 3)."""
        return self.readout(method, task).prototypes

    def run(self, methods: Mapping[str, Method]) -> dict[str, MethodResult]:
        """Return the result of every method; trainings are shared wherever methods agree."""
        self.reporter.plan(self.missing(methods))
        results = {}
        for name, method in methods.items():
            results[name] = self._result(name, method)
            self.reporter.result(name, results[name].average_accuracy, results[name].overall_accuracy)
        return results

    def trainings(self, methods: Mapping[str, Method]) -> int:
        """Return how many trainings of one task these methods need in all, whether they are computed yet or not."""
        stages = {key: kind for method in methods.values() for key, kind in self._chain(method).items()}
        return sum(kind == "train" for kind in stages.values())

    def missing(self, methods: Mapping[str, Method]) -> dict[str, str]:
        """Return the stages that a run of these methods would compute now, key -> kind.

        What a finished stage was made from is not asked for again: old trainings can be removed.
        """
        found: dict[str, str] = {}
        for method in methods.values():
            for t in range(len(self.stream), 0, -1):
                if self._there("readout", self._readout_key(method, t)):
                    break
                for key, kind in self._chain(method, t).items():
                    if not self._there(kind, key):
                        found[key] = kind
        return found

    def plan(self, methods: Mapping[str, Method]) -> dict[str, Planned]:
        """Return the stages that a run of these methods would compute now, with what each is made from.

        An engine that computes them in any order that respects `needs` leaves nothing to compute for `run`.
        """
        missing = self.missing(methods)
        found: dict[str, Planned] = {}
        for method in methods.values():
            for t in range(len(self.stream) + 1):
                for key, kind, needs in self._made(method, t):
                    if key in missing and key not in found:
                        found[key] = Planned(kind, method, t, tuple(dict.fromkeys(n for n in needs if n in missing)))
        return found

    def _made(self, method: Method, task: int) -> Iterator[tuple[str, str, list[str]]]:
        """Return the stages of one task as (key, kind, keys of what they are made from), in order."""
        if task == 0:
            warm = [] if self.warmup is None else [self._warm_key()]
            yield from ((key, "warm", []) for key in warm)
            yield self._root_key(method), "root", warm
            return
        train, close = self._train_key(method, task), self._consolidate_key(method, task)
        before = self._consolidate_key(method, task - 1)
        root = self._root_key(method)
        yield train, "train", [self._train_key(method, task - 1), before, root]
        yield close, "consolidate", [train, before, root]
        old = [self._embed_key(method, task - 1), self._readout_key(method, task - 1)] if task > 1 else []
        embedded = self._embed_key(method, task)
        yield embedded, "embed", [train, close, self._train_key(method, task - 1), *old[:1]]
        yield self._readout_key(method, task), "readout", [embedded, close, root, *old]

    def key(self, kind: str, method: Method, task: int) -> str:
        """Return the key of one stage of a plan, as this process makes it: data, weights and threads are in it."""
        return next(key for key, made, _ in self._made(method, task) if made == kind)

    def compute(self, kind: str, method: Method, task: int) -> None:
        """Compute one stage of a plan; what it is made from is read from the store."""
        if kind == "warm":
            assert self.warmup is not None
            self._warm(self.warmup)
        elif kind == "root":
            self._root(method)
        elif kind == "train":
            self._network(method, task)
        elif kind == "consolidate":
            self.trained(method, task)
        elif kind == "embed":
            self.embeddings(method, task)
        else:
            self.readout(method, task)

    def _chain(self, method: Method, task: int | None = None) -> dict[str, str]:
        """Return the stages of a method up to a task, key -> kind, in the order in which they depend on each other."""
        chain = {} if self.warmup is None else {self._warm_key(): "warm"}
        chain[self._root_key(method)] = "root"
        for t in range(1, (task or len(self.stream)) + 1):
            chain.setdefault(self._train_key(method, t), "train")
            chain.setdefault(self._consolidate_key(method, t), "consolidate")
            chain[self._embed_key(method, t)] = "embed"
            chain[self._readout_key(method, t)] = "readout"
        return chain

    # -- identity: only what acts --------------------------------------------------------------------------------

    def _key(self, kind: str, parents: str | list[str], identity: Mapping[str, Any]) -> str:
        described = {"kind": kind, "version": VERSIONS[kind], "parents": parents, **identity}
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def _weights_identity(self) -> Any:
        """Return what the given weights are: their content, and the pixels they expect."""
        spec, weights = self.stream.dataset.spec, self.network.weights
        if weights is None:
            return None
        name = backbone_name(self.network.backbone, spec, self.network.crop)
        digest, pixels = find_weights(name, weights).sha256, pixel_statistics(name, weights, spec)
        return digest if pixels is None else {"sha256": digest, "pixels": [part.tolist() for part in pixels]}

    def _warm_key(self) -> str:
        assert self.warmup is not None
        identity = {
            **self._initial(self.warmup.method),
            "warmup": encode(self.warmup),
            "augment": encode(self.augment),
        }
        return self._key("warm", "", identity)

    def _root_key(self, method: Method) -> str:
        return self._key("root", "" if self.warmup is None else self._warm_key(), self._initial(method))

    def _initial(self, method: Method) -> dict[str, Any]:
        """Return what initial weights, standardization, and the last bits of everything after them depend on."""
        options = embedding_options(method.objective, self.network.embedding_dim, self.network.normalize)
        return {
            "network": {**encode(self.network), **options, "weights": self._weights},
            "seed": self.seed,
            "data": self._fingerprints[0][0],
            "device": self.device,
            "threads": torch.get_num_threads(),
            **({"ranks": self.ranks} if self.ranks > 1 else {}),
        }

    @_remembered
    def _train_key(self, method: Method, task: int) -> str:
        if task == 0:
            return self._root_key(method)
        if not method.schedule.trains(task) and not method.objective.classifies:
            return self._train_key(method, task - 1)  # the network is simply still there
        later = {
            "penalty": encode(method.penalties),
            "batch_norm": method.schedule.batch_norm,
            "exemplars": encode(method.exemplars),
        }
        following = [encode(penalty) for penalty in method.penalties if penalty.follows_path]
        at_first: dict[str, Any] = {"penalty": following} if following else {}
        if method.schedule.holds_statistics(first=True):
            at_first["batch_norm"] = method.schedule.batch_norm
        identity = {
            "task": task,
            "trains": method.schedule.trains(task),
            "objective": encode(method.objective),
            "training": encode(self._acting_training(method, task)),
            "augment": encode(self.augment),
            "data": self._fingerprints[task - 1][0],
            **(later if task > 1 else at_first),
        }
        if task > 1 and asks_old_network_once(method, self._training(method), self.augment):
            identity["old_answers"] = "once"  # other last bits than before this was so
        first = method.schedule.start == "initial"
        return self._key(
            "train", self._root_key(method) if first else self._consolidate_key(method, task - 1), identity
        )

    @_remembered
    def _consolidate_key(self, method: Method, task: int) -> str:
        trained = self._train_key(method, task)
        if task == 0 or not (method.penalties or method.exemplars):
            return trained  # nothing to measure, nothing to keep
        identity = {
            "task": task,
            "penalty": encode(method.penalties),
            "exemplars": encode(method.exemplars),
            "before": self._consolidate_key(method, task - 1),
        }
        if method.objective.classifies and any(getattr(p, "fisher", "") == "single" for p in method.penalties):
            identity["importances"] = "vectorized"  # other last bits than before they were
        return self._key("consolidate", trained, identity)

    @_remembered
    def _embed_key(self, method: Method, task: int) -> str:
        identity = {"task": task, "data": self._fingerprints[:task], "space": method.readout.space_name}
        if self.mean_images is not None:
            identity["mean_images"] = self.mean_images
        # What penalties measured after the task has no part in it; what a memory kept has.
        after = self._train_key(method, task) if method.exemplars is None else self._consolidate_key(method, task)
        return self._key("embed", [after, self._train_key(method, task - 1)], identity)

    @_remembered
    def _readout_key(self, method: Method, task: int) -> str:
        parents = [self._embed_key(method, task)] + ([self._readout_key(method, task - 1)] if task > 1 else [])
        return self._key("readout", parents, {"drift": encode(method.drift), "readout": encode(method.readout)})

    # -- how stages are made -------------------------------------------------------------------------------------

    def _training(self, method: Method) -> Training:
        if not method.objective.classifies:
            return self.training
        return self.classifier_training if method.exemplars is None else self.exemplar_training

    def _acting_training(self, method: Method, task: int) -> Training:
        """Return how this task is trained, without the learning rate of other tasks."""
        training = self._training(method)
        first = task == 1 or method.schedule.start == "initial"
        return replace(training, learning_rate=training.rate(first), later_learning_rate=None)

    def _there(self, kind: str, key: str) -> bool:
        return key in self._memory or (self.store is not None and self.store.has(kind, key))

    def _stage(self, kind: str, key: str, codec: _Codec, compute: Callable[[], T]) -> T:
        held = self._memory.get(key)
        if held is None:
            held = self._loaded(kind, key, codec) or self._computed(kind, key, codec, compute)
            self._memory[key] = held
        self._memory.move_to_end(key)
        while self.store is not None and len(self._memory) > _CACHED:
            self._memory.popitem(last=False)
        value: T = held.value
        return value

    def _loaded(self, kind: str, key: str, codec: _Codec) -> _Held | None:
        packed = None if self.store is None else self.store.get(kind, key)
        if packed is None:
            return None
        self.loaded[kind] += 1
        return _Held(codec.unpack(packed), packed[0]["seconds"])

    def _computed(self, kind: str, key: str, codec: _Codec, compute: Callable[[], T]) -> _Held:
        # A stage computes its parents first, inside `compute`: their time is theirs.
        before = self._elapsed
        started = time.perf_counter()
        value = compute()
        total = time.perf_counter() - started
        seconds = total - (self._elapsed - before)
        self._elapsed = before + total
        self.computed[kind] += 1
        self.reporter.done(kind)
        if self.store is not None:
            data, tensors = codec.pack(value)
            described = {"kind": kind, "seed": self.seed}
            if not current().alone:
                described["ranks"] = current().size
            self.store.put(kind, key, described, {**data, "seconds": seconds}, tensors)
        return _Held(value, seconds)

    def _seconds(self, keys: Mapping[str, str]) -> float:
        total = 0.0
        for key, kind in keys.items():
            if key in self._memory:
                total += self._memory[key].seconds
            elif self.store is not None:
                total += self.store.seconds(kind, key)
        return total

    def _root(self, method: Method) -> Trained:
        def compute() -> Trained:
            if self.warmup is None:
                return self._untrained(method)
            warm, network = self._warm(self.warmup).network, self._fresh(method, 0)
            network.standardize.load_state_dict(warm.standardize.state_dict())
            network.backbone.load_state_dict(warm.backbone.state_dict())
            return Trained(network.to(self.device).eval())

        return self._stage("root", self._root_key(method), self._network_codec(method, ()), compute)

    def _untrained(self, method: Method) -> Trained:
        network = self._fresh(method, 0)
        network.standardize.fit(self._tasks[0].data.images)
        return Trained(network.to(self.device).eval())

    def _warm(self, warmup: Warmup) -> Trained:
        """Return the backbone trained as a classifier of the first task's classes: task 0."""
        key = self._warm_key()

        def compute() -> Trained:
            checkpoint = None if self.store is None else self.store.checkpoint("warm", key)
            with self.reporter.training(warmup.method, 0) as on_progress:
                trained = train_network(
                    self._untrained(warmup.method),
                    self._tasks[0].data,
                    task=0,
                    method=warmup.method,
                    training=warmup.training,
                    augment=self.augment,
                    seed=self.seed,
                    on_progress=on_progress,
                    checkpoint=checkpoint,
                )
            return replace(trained, running=())

        # Its head is that of the first task's classes, as a network after task 1 has it.
        return self._stage("warm", key, self._network_codec(warmup.method, self._classes(1), 1), compute)

    def _fresh(self, method: Method, task: int) -> Embedder:
        """Return a network of the right shape: initial weights, and the heads of the tasks up to t."""
        network = build_embedder(
            self.network.backbone,
            self.stream.dataset.spec,
            **embedding_options(method.objective, self.network.embedding_dim, self.network.normalize),
            weights=self.network.weights,
            seed=self.seed,
            crop=self.network.crop,
        )
        for classes in self._head_classes(method, task):
            method.objective.grow(network, len(classes))
        return network

    def _head_classes(self, method: Method, task: int) -> list[tuple[Label, ...]]:
        own = list(self.stream.task_classes[:task])
        return own[-1:] if method.schedule.start == "initial" else own

    def _network(self, method: Method, task: int) -> Trained:
        """Return the network after task t: trained, or the one that is simply still there."""
        key = self._train_key(method, task)
        classes = tuple(label for part in self._head_classes(method, task) for label in part)
        if task and key == self._train_key(method, task - 1):
            note = f"the schedule trains {method.schedule.train!r} tasks"
            return replace(self._network(method, task - 1), classes=classes, note=note)
        if task == 0:
            return self._root(method)
        codec = self._network_codec(method, classes, task)
        return self._stage("train", key, codec, lambda: self._train(method, task))

    def _network_codec(self, method: Method, classes: tuple[Label, ...], task: int = 0) -> _Codec:
        def pack(trained: Trained) -> Packed:
            tensors = {"network": dict(trained.network.state_dict())}
            tensors.update({f"running{i}": state for i, state in enumerate(trained.running)})
            return {"history": list(trained.history), "note": trained.note, "running": len(trained.running)}, tensors

        def unpack(packed: Packed) -> Trained:
            data, tensors = packed
            network = self._fresh(method, task)
            network.load_state_dict(tensors["network"])
            running = tuple(tensors[f"running{i}"] for i in range(data["running"]))
            history = tuple(data["history"])
            return Trained(network.to(self.device).eval(), classes, (), None, history, data["note"], running)

        return _Codec(pack, unpack)

    def _consolidate_codec(self) -> _Codec:
        def pack(closed: Consolidated) -> Packed:
            tensors = {f"kept{i}": kept for i, kept in enumerate(closed.penalty_state)}
            if closed.exemplars is not None:
                assert closed.exemplars.ids is not None  # a stream's examples know their rows
                tensors["exemplars"] = {"ids": closed.exemplars.ids}
            return {"kept": len(closed.penalty_state)}, tensors

        def unpack(packed: Packed) -> Consolidated:
            data, tensors = packed
            exemplars = None
            if "exemplars" in tensors:
                exemplars = self.stream.dataset.train.at(tensors["exemplars"]["ids"])
            return Consolidated(tuple(tensors[f"kept{i}"] for i in range(data["kept"])), exemplars)

        return _Codec(pack, unpack)

    def _before(self, method: Method, task: int) -> Trained:
        """Return what task t starts from."""
        return self.trained(method, 0 if method.schedule.start == "initial" else task - 1)

    def _train(self, method: Method, task: int) -> Trained:
        before = self._before(method, task)
        checkpoint = None
        if self.store is not None:
            checkpoint = self.store.checkpoint("train", self._train_key(method, task))
        with self.reporter.training(method, task) as on_progress:
            trained = train_network(
                before,
                self._tasks[task - 1].data,
                task=task,
                method=method,
                training=self._training(method),
                augment=self.augment,
                seed=self.seed,
                on_progress=on_progress,
                checkpoint=checkpoint,
            )
        following = any(penalty.follows_path for penalty in method.penalties)
        # Other penalties' states are not needed any more, and the first task may be shared by other methods.
        return replace(trained, penalty_state=(), exemplars=None, running=trained.running if following else ())

    def _consolidate(self, method: Method, task: int) -> Consolidated:
        new, before = self._tasks[task - 1].data, self._before(method, task)
        closed = consolidate(self._network(method, task), before, new, task=task, method=method, seed=self.seed)
        return Consolidated(closed.penalty_state, closed.exemplars)

    def _embed(self, method: Method, task: int) -> Embeddings:
        trained = self.trained(method, task)
        network, new = trained.network, self._tasks[task - 1].data
        moved = self._train_key(method, task) != self._train_key(method, task - 1)
        old_network = self._network(method, task - 1).network if moved else None
        # Where the network did not change, neither did what it says of the old classes.
        again = task == 1 or moved
        before = None if again else self.embeddings(method, task - 1)
        # On several ranks each embeds its share of every pass, and the first one, which writes, gets all of them.
        z_new = self._z(network, new.images)
        z_old = z_new if old_network is None else self._z(old_network, new.images)
        z_test = self._z(network, *(self._test(t).images for t in (range(1, task + 1) if again else (task,))))
        kept = z_new[:0] if trained.exemplars is None else self._z(network, trained.exemplars.images)
        past_tasks = range(1, task) if again else ()
        if not current().is_first:
            for past in past_tasks:  # as `_true_means` does: all ranks hold the same stages in memory
                self._z(network, self._past(past)[0])
                if self.mean_images is not None:
                    self.embeddings(method, past)
            return Embeddings(z_old, z_new, z_new, kept, z_new)  # (0, D) each: nobody asks this rank
        old = [self._true_means(method, self._z(network, self._past(past)[0]), past) for past in past_tasks]
        if before is not None:
            z_test, old = joined(current(), [before.z_test, z_test], self._room), [before.true_means]
        added = sorted_labels(new.labels)
        true = Prototypes.of(added, method.readout.space(z_new), new.targets_of(added), task).means
        return Embeddings(z_old, z_new, z_test, kept, torch.cat([*old, true]))

    def _z(self, network: Embedder, *parts: torch.Tensor) -> torch.Tensor:
        return embedded_on_first(current(), network, parts, self._room)

    @property
    def _room(self) -> Path | None:
        return None if self.store is None else self.store.room

    def _past(self, task: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images on which the movement of a past task's means is measured, and which they are."""
        data = self._tasks[task - 1].data
        classes = self.stream.task_classes[task - 1]
        if self.mean_images is None:
            return data.images, torch.arange(len(data))
        rows = data.targets_of(classes)
        some = torch.cat([(rows == row).nonzero().flatten()[: self.mean_images] for row in range(len(classes))])
        return data.images[some], some

    def _true_means(self, method: Method, z: torch.Tensor, past: int) -> torch.Tensor:
        """Return the means of a past task's classes by the network now, (K, D), from its embeddings z of `_past`.

        Where only some images of each class are used, what they moved is added to the mean of all images when the task
        was learned. A mean of 100 images is off by about 0.06 in a space of unit vectors, as far as many prototypes
        drift; the mean movement of the same 100 images is known several times better.
        """
        data, space = self._tasks[past - 1].data, method.readout.space
        classes = self.stream.task_classes[past - 1]
        rows = data.targets_of(classes)
        some = self._past(past)[1]
        now = Prototypes.of(classes, space(z), rows[some], past).means
        if self.mean_images is None:
            return now
        z_then = space(self.embeddings(method, past).z_new)
        then = Prototypes.of(classes, z_then[some], rows[some], past).means
        return Prototypes.of(classes, z_then, rows, past).means + (now - then)

    def _z_test(self, network: Embedder, task: int) -> torch.Tensor:
        return torch.cat([embed(network, self._test(t).images) for t in range(1, task + 1)])

    def _read_out(self, method: Method, task: int) -> ReadoutResult:
        before = self.readout(method, task - 1) if task > 1 else None
        embeddings = self.embeddings(method, task)
        trained = self.trained(method, task)
        new, classes = self._tasks[task - 1].data, self._classes(task)
        fitted: FittedDrift | None = None
        if isinstance(method.drift, Oracle) and before is not None:
            fitted = method.drift.knowing(embeddings.true_means[: len(before.prototypes)])
        moved = self._train_key(method, task) != self._train_key(method, task - 1)
        if method.drift is not None and method.drift.needs_networks and before is not None and moved:
            old = self._network(method, task - 1).network
            fitted = probed(method, old, trained.network, new.images, before.prototypes)
        prototypes, _ = update_prototypes(
            None if before is None else before.prototypes,
            method,
            task=task,
            new=new,
            z_new=embeddings.z_new,
            z_old=embeddings.z_old if moved else None,
            kept=None if trained.exemplars is None else (trained.exemplars, embeddings.z_kept),
            fitted=fitted,
        )
        z_learn = embeddings.z_new
        if method.readout.needs_every_network:
            z_learn = embed(self.trained(method, 0).network, new.images)
        kept = method.readout.learn(
            {} if before is None else before.readout_state,
            method.readout.space(z_learn),
            new.targets_of(classes),
            task,
            self.seed,
        )
        predicted = method.readout.predict(self._view(method, task, embeddings.z_test, prototypes, kept))
        y_true = [label for t in range(1, task + 1) for label in self._test(t).labels]
        y_pred = [classes[row] for row in predicted.tolist()]
        accuracies = metrics.task_accuracies(y_true, y_pred, self.stream.task_classes[:task])
        distances = np.full(len(classes), np.nan)
        if method.readout.uses_prototypes:
            distances = metrics.prototype_distance(prototypes.means, embeddings.true_means)
        return ReadoutResult(
            prototypes,
            kept,
            predicted,
            tuple(accuracies.tolist()),
            tuple(distances.tolist()),
            self._bytes_stored(method, task, trained, prototypes, kept),
        )

    def _view(self, method: Method, task: int, z_test: torch.Tensor, prototypes: Prototypes, kept: Tensors) -> View:
        view = readout_view(z_test, prototypes, self._network(method, task).network, kept)
        if not method.readout.needs_every_network:
            return view

        def z_of_task(t: int) -> torch.Tensor:
            return self._z_test(self._network(method, t).network, task)

        def logits_of_task(t: int) -> list[torch.Tensor]:
            network = self._network(method, t).network
            with torch.no_grad():
                return network.logits(z_of_task(t))

        return replace(view, z_of_task=z_of_task, logits_of_task=logits_of_task)

    def _test(self, task: int) -> Examples:
        test = self._tasks[task - 1].test
        assert test is not None  # checked when the tree was made
        return test

    def _classes(self, task: int) -> tuple[Label, ...]:
        return tuple(label for classes in self.stream.task_classes[:task] for label in classes)

    def _result(self, name: str, method: Method) -> MethodResult:
        tasks, classes = len(self.stream), self.stream.classes
        results = [self.readout(method, k) for k in range(1, tasks + 1)]
        distance = np.full((tasks, len(classes)), np.nan)
        for k, result in enumerate(results):
            distance[k, : len(result.distances)] = result.distances
        y_true = [label for k in range(1, tasks + 1) for label in self._test(k).labels]
        y_pred = [classes[row] for row in results[-1].predicted.tolist()]
        return MethodResult(
            name,
            method,
            self.seed,
            metrics.accuracy_matrix([result.accuracies for result in results]),
            tuple(len(self._test(k)) for k in range(1, tasks + 1)),
            classes,
            distance,
            metrics.confusion_matrix(y_true, y_pred, classes) if len(classes) <= metrics.CONFUSION_CLASSES else None,
            tuple(result.prototypes for result in results),
            self._seconds(self._chain(method)),
            results[-1].bytes_stored,
        )

    def _bytes_stored(
        self, method: Method, task: int, trained: Trained, prototypes: Prototypes, readout: Tensors
    ) -> int:
        """Count what must be kept after a task beside the network itself, in bytes."""
        parts = [tensor for kept in trained.penalty_state for tensor in kept.values()] + list(readout.values())
        if method.readout.uses_prototypes:
            parts += [prototypes.means, *prototypes.statistics.values()]
        if trained.exemplars is not None:
            parts.append(trained.exemplars.images)
        if method.readout.needs_every_network:  # the initial network and one a task, not one
            parts += task * list(trained.network.state_dict().values())
        return sum(part.numel() * part.element_size() for part in parts)


def _check_test_images(tasks: Sequence[Task]) -> None:
    """Refuse a task that nothing can be asked about; before anything is trained, not after."""
    for task in tasks:
        if not len(task.test or ()):
            some = ", ".join(map(repr, task.classes[:3])) + (", ..." if len(task.classes) > 3 else "")
            raise InputError(
                f"task {task.index} has no test images ({some}: {len(task.data)} images to learn from). A class needs "
                "three or more images for one of them to be set aside; give it more, choose fewer tasks, or leave it "
                "out."
            )


def _pack_embeddings(value: Embeddings) -> Packed:
    return {}, {"embeddings": dict(vars(value))}


def _unpack_embeddings(packed: Packed) -> Embeddings:
    return Embeddings(**packed[1]["embeddings"])


def _pack_readout(value: ReadoutResult) -> Packed:
    prototypes = value.prototypes
    data = {
        "accuracies": json_numbers(np.array(value.accuracies)),
        "distances": json_numbers(np.array(value.distances)),
    }
    data["bytes_stored"] = value.bytes_stored
    tensors = {"means": prototypes.means, "counts": prototypes.counts, "tasks": prototypes.tasks}
    packed = {"prototypes": tensors, "readout": value.readout_state, "predicted": {"rows": value.predicted}}
    return data, {**packed, "statistics": prototypes.statistics}


def _unpack_readout(packed: Packed, classes: tuple[Label, ...]) -> ReadoutResult:
    data, tensors = packed
    prototypes = Prototypes(classes, **tensors["prototypes"], statistics=tensors.get("statistics", {}))
    accuracies, distances = (
        tuple(np.nan if value is None else float(value) for value in data[name]) for name in ("accuracies", "distances")
    )
    rows = tensors["predicted"]["rows"]
    return ReadoutResult(prototypes, tensors["readout"], rows, accuracies, distances, data["bytes_stored"])


def fingerprint(examples: Examples) -> str:
    """Return a hash of images and labels."""
    digest = hashlib.sha256(repr((tuple(examples.images.shape), str(examples.images.dtype), examples.labels)).encode())
    for part in examples.images.split(_HASHED):  # a copy of many images would not fit in memory
        digest.update(part.clone(memory_format=torch.contiguous_format).numpy().tobytes())
    return digest.hexdigest()


_HASHED = 256  # images at once


def json_numbers(values: np.ndarray) -> Any:
    """Return numbers as nested lists, NaN as None."""
    if values.ndim > 1:
        return [json_numbers(row) for row in values]
    return [None if np.isnan(value) else float(value) for value in values]
