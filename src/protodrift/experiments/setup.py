"""What all stages of an experiment have in common: tasks, network, training, seed, device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from ..common.config import Config, flag, optional, text, whole
from ..common.labels import Label
from ..common.outside import Outside
from ..data.examples import Examples
from ..data.tasks import Task, TaskStream
from ..data.views import Augmentation, default_augmentation
from ..distributed.world import ALONE, World
from ..errors import InputError
from ..methods import Method
from ..networks.build import backbone_name, build_embedder, embedding_options
from ..networks.embedder import Embedder
from ..networks.standardize import Standardization, as_tuples, standardization
from ..networks.weights import find_weights, pixel_statistics
from ..training.config import Training, Warmup
from .identity import fingerprint, written


def _backbone(value: Any) -> str | None:
    known = isinstance(value, (str, nn.Module, Outside))  # the last is one that a run's files tell of
    return None if known else "must be a name or an nn.Module, not its class"


@dataclass(frozen=True)
class Network(Config):
    """The network of an experiment: what `build_embedder` needs.

    Args:
        backbone: a name from `networks.BACKBONES`, or a module of yours that maps a batch to (N, features). It is known
            by the digest of its code and its weights, and starts from these weights whatever the seed.
        embedding_dim: size of z; objectives that classify, and rows whose network stays fixed, use the backbone's
            features instead.
        normalize: L2-normalize z.
        weights: a weight file for the backbone, "imagenet", or another source (`networks.weights`); None: none.
        crop: side of the center view that prototypes, drift and evaluation use; None: the whole image.
        standardize: by what inputs are standardized: "auto", "imagenet", "none" or (mean, std), see
            `networks.standardize.Standardization`; `--set network.standardize=none`.
    """

    backbone: str | nn.Module = "auto"
    embedding_dim: int | None = 512
    normalize: bool = True
    weights: str | None = None
    crop: int | None = None
    standardize: Standardization = "auto"
    rules: ClassVar = {
        "backbone": _backbone,
        "embedding_dim": optional(whole(1)),
        "normalize": flag,
        "weights": optional(text),
        "crop": optional(whole(1)),
        "standardize": standardization,
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "standardize", as_tuples(self.standardize))
        super().__post_init__()

    def to_json(self, outside: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Return it without a `standardize` that changes nothing: runs that were begun without it go on."""
        document = super().to_json(outside)
        return {key: value for key, value in document.items() if (key, value) != ("standardize", "auto")}


@dataclass(eq=False, repr=False)
class Setup:
    """One stream, one network and one seed, for any number of methods.

    Args:
        stream: the tasks; its dataset needs test images.
        network, training: how every method is trained.
        classifier_training: how objectives that classify are trained; None: the same.
        exemplar_training: how those that also keep old images are trained; None: as all that classify.
        warmup: a training of the backbone as a classifier of the first task's classes, before the first task.
        augment: random views; "auto" as for `IncrementalClassifier`.
        mean_images: on how many training images of each old class (the first ones) the movement of its true mean is
            measured; None: all. True means are for evaluation only, and on large sets they are most of its cost.
        seed: of initial weights, batches and mining (the class order has its own seed, in the stream).
        device: of the networks.
        world: the ranks that compute each stage together.
        ranks: the number of ranks in the keys of stages; None: that of the world. A run that goes on with another
            number of ranks keeps the keys it began with.

    Attributes:
        tasks: the tasks of the stream.
        views: the random views of training, or None.
        fingerprints: for each task a hash of its training images, and one of its test images.
        threads: of every computation: the last bits of results depend on it.
    """

    stream: TaskStream
    _: KW_ONLY
    network: Network = Network()
    training: Training = Training()
    classifier_training: Training | None = None
    exemplar_training: Training | None = None
    warmup: Warmup | None = None
    augment: Augmentation | str | None = "auto"
    mean_images: int | None = None
    seed: int = 0
    device: str = "cpu"
    world: World = ALONE
    ranks: int | None = None
    stages: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of `Stage.of`

    def __post_init__(self) -> None:
        dataset = self.stream.dataset
        if dataset.test is None:
            raise InputError("an experiment needs test images: Dataset(X, y, X_test, y_test), or dataset.split(0.2).")
        self.tasks = list(self.stream)
        _check_test_images(self.tasks)
        auto = self.augment == "auto"
        self.views: Augmentation | None = default_augmentation(dataset.spec) if auto else self.augment  # type: ignore[assignment]
        numbers = range(1, len(self.tasks) + 1)
        self.fingerprints = [(fingerprint(self.data(t)), fingerprint(self.test(t))) for t in numbers]
        self.threads = torch.get_num_threads()
        self._weights = self._weights_identity()

    def data(self, task: int) -> Examples:
        """Return D^t: the training images of task t, counted from 1."""
        return self.tasks[task - 1].data

    def test(self, task: int) -> Examples:
        """Return the test images of task t."""
        test = self.tasks[task - 1].test
        assert test is not None  # checked when this was made
        return test

    def classes(self, task: int) -> tuple[Label, ...]:
        """Return the labels of all tasks up to t, in task order."""
        return tuple(label for classes in self.stream.task_classes[:task] for label in classes)

    def training_of(self, method: Method, task: int | None = None) -> Training:
        """Return how a method is trained; with a task, without what acts in other tasks."""
        training = self.training
        if method.objective.classifies:
            training = self.classifier_training or training
            if method.exemplars is not None:
                training = self.exemplar_training or training
        return training if task is None else training.of_task(method.schedule.is_first(task))

    def heads(self, method: Method, task: int) -> tuple[tuple[Label, ...], ...]:
        """Return the classes of each head that a classifying network has after task t."""
        own = self.stream.task_classes[:task]
        return tuple(own[-1:] if method.schedule.start == "initial" else own)

    def head_classes(self, method: Method, task: int) -> tuple[Label, ...]:
        """Return the classes of all heads after task t."""
        return tuple(label for classes in self.heads(method, task) for label in classes)

    def network_of(self, method: Method) -> Network:
        """Return the network of a method: the experiment's, or a backbone of the method's own."""
        if not method.backbone:
            return self.network
        return Network(method.backbone, embedding_dim=None, normalize=False, crop=self.network.crop)

    def fresh_network(self, method: Method, task: int) -> Embedder:
        """Return a network with initial weights and the heads that it has after task t."""
        wanted = self.network_of(method)
        network = build_embedder(
            wanted.backbone,
            self.stream.dataset.spec,
            **embedding_options(method.objective, wanted.embedding_dim, wanted.normalize),
            weights=wanted.weights,
            seed=self.seed,
            crop=wanted.crop,
            standardize=wanted.standardize,
        )
        for classes in self.heads(method, task):
            method.objective.grow(network, len(classes))
        return network

    def initial(self, method: Method) -> dict[str, Any]:
        """Return what initial weights and standardization, and the last bits of all that follows, depend on."""
        network: Mapping[str, Any] = {"backbone": method.backbone, "crop": self.network.crop}
        if not method.backbone:
            options = embedding_options(method.objective, self.network.embedding_dim, self.network.normalize)
            network = {**written(self.network), **options, "weights": self._weights}
        return {
            "network": network,
            "seed": self.seed,
            "data": self.fingerprints[0][0],
            "device": self.device,
            "threads": self.threads,
            "ranks": self.world.size if self.ranks is None else self.ranks,
        }

    def settings(self, method: Method) -> dict[str, Any]:
        """Return how a method was trained, beside its own parts; JSON-able."""
        return {
            "network": written(self.network_of(method)),
            "training": written(self.training_of(method)),
            "warmup": None if method.backbone else written(self.warmup),
            "augment": written(self.views),
            "data": hashlib.sha256(repr(self.fingerprints).encode()).hexdigest()[:32],
            "device": self.device,
            "threads": self.threads,
        }

    def _weights_identity(self) -> Any:
        """Return what the given weights are: their content, and the pixels they expect."""
        spec, weights = self.stream.dataset.spec, self.network.weights
        if weights is None:
            return None
        name = backbone_name(self.network.backbone, spec, self.network.crop)
        digest, pixels = find_weights(name, weights).sha256, pixel_statistics(name, weights, spec)
        return digest if pixels is None else {"sha256": digest, "pixels": [part.tolist() for part in pixels]}


def _check_test_images(tasks: Sequence[Task]) -> None:
    """Refuse a task without test images before anything is trained."""
    for task in tasks:
        if not len(task.test or ()):
            some = ", ".join(map(repr, task.classes[:3])) + (", ..." if len(task.classes) > 3 else "")
            raise InputError(
                f"task {task.index} has no test images ({some}: {len(task.data)} images to learn from). A class needs "
                "three or more images for one of them to be set aside; give it more, choose fewer tasks, or leave it "
                "out."
            )
