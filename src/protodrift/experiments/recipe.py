"""What a recipe is: an experiment as frozen, validated data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..common.config import Config, number, one_of, optional, part, whole
from ..common.labels import Label
from ..data import Dataset
from ..data.augment import AutoAugment, ColorJitter, Cutout, TrivialAugment
from ..data.images import Fit
from ..data.tasks import TaskStream, ordered
from ..data.views import Augmentation, Composed, CropFlip, RandomCropFlip, ResizedCropFlip
from ..errors import InputError, did_you_mean
from ..methods import Method
from ..training.config import Training, Warmup
from .identity import written
from .setup import Network
from .tree import Tree

VIEWS = {
    "plain": "images as they are; color photos of 32 pixels or more are cropped with padding and mirrored",
    "cifar": "4 pixels of black padding at 32 x 32, a random crop back to size, mirrored half of the time",
    "paper": "256 x 256 stored for 224, a random crop, mirrored; evaluation on the center crop (Sec. 5)",
    "center": "as paper, but the short side is resized and the center cut out: nothing is squashed",
    "released": "short side 256 for 224, a random part of random size and shape, mirrored; evaluation on the center",
}
"""How training sees images at random. The sizes scale with the recipe's `size`."""

POLICIES: dict[str, tuple[Augmentation, ...]] = {
    "none": (),
    "jitter": (ColorJitter(brightness=63 / 255),),
    "auto": (ColorJitter(brightness=63 / 255), AutoAugment()),
    "trivial": (TrivialAugment(),),
    "trivial+cutout": (TrivialAugment(), Cutout()),
}
"""What else changes at random after the view: brightness and AutoAugment as in ADC, LDC and DPCR; TrivialAugmentWide as
in ACIL. For images of whole gray levels."""

_CROPPED = ("paper", "center", "released")


@dataclass(frozen=True)
class Recipe(Config):
    """An experiment: data, split, network, training, methods.

    Args:
        name: what it is called.
        about: one line: which table or figure it is.
        data: "digits", a name from `protodrift data ls`, or "folder": the folder given at run time.
        tasks, first, step: how the classes are cut into tasks, as for `TaskStream`.
        classes: the tasks spelled out instead.
        class_order: the seed of the class order; None: sorted. It is not the training seed.
        use_classes: how many classes take part, the first ones of the order; None: all.
        size: side of the images that the network sees.
        view: how training sees images at random, and evaluation in one way; see `VIEWS`.
        policy: what else changes at random after the view; see `POLICIES`.
        test_fraction: share of each class held out for testing, where the data has no test part of its own.
        validation: a share of each class's TRAINING images that is held out and stands in for the test images, which
            are not looked at: for choosing constants. None: the test images.
        held_out: a share of each class's training images that is not trained on, nor tested on without `validation`:
            the images of a `validation` of the same share, so that constants that were chosen there, and the numbers
            on test images, are of the same trainings. None: all are trained on.
        train_images, test_images: at most so many images of each class, the first ones of the data; None: all.
        network: the network.
        warmup: a training of the backbone as a classifier of the first task's classes, before the first task, or None.
        training: how metric objectives are trained.
        classifier_training: how objectives that classify are trained; None: the same.
        exemplar_training: how those that also remember old images are trained; None: as all that classify.
        rows: the methods by name, in the order of the table.
        table: the paper's table whose numbers stand beside ours, such as "table5_eleven_tasks/cifar100", or "".
        budget: "paper", "cpu" or "drift", for recipes that have several.
        mean_images: how many training images of each old class its true mean is measured on; None: all.
        data_seed: chooses the classes of a set of which a part is taken (ImageNet-Subset); None: the first, sorted.
        notes: where the constants come from, for people who read the recipe.
    """

    name: str
    about: str
    data: str
    rows: tuple[tuple[str, Method], ...]
    tasks: int | None = None
    first: int | None = None
    step: int | None = None
    classes: tuple[tuple[str | int, ...], ...] | None = None
    class_order: int | None = None
    use_classes: int | None = None
    size: int = 32
    view: str = "plain"
    policy: str = "none"
    test_fraction: float = 0.2
    validation: float | None = None
    held_out: float | None = None
    train_images: int | None = None
    test_images: int | None = None
    network: Network = Network()
    training: Training = Training()
    classifier_training: Training | None = None
    exemplar_training: Training | None = None
    warmup: Warmup | None = None
    table: str = ""
    budget: str = ""
    mean_images: int | None = None
    data_seed: int | None = None
    notes: tuple[str, ...] = ()

    rules: ClassVar = {
        "tasks": optional(whole(1)),
        "first": optional(whole(1)),
        "step": optional(whole(1)),
        "class_order": optional(whole(0, 2**32 - 1)),
        "use_classes": optional(whole(2)),
        "size": whole(8),
        "view": one_of(*VIEWS),
        "policy": one_of(*POLICIES),
        "test_fraction": number(0.01, 0.9),
        "validation": optional(number(0.01, 0.9)),
        "held_out": optional(number(0.01, 0.9)),
        "train_images": optional(whole(2)),
        "test_images": optional(whole(1)),
        "mean_images": optional(whole(1)),
        "data_seed": optional(whole(0, 2**32 - 1)),
        "network": part(Network),
        "training": part(Training),
        "classifier_training": optional(part(Training)),
        "exemplar_training": optional(part(Training)),
        "warmup": optional(part(Warmup)),
    }

    @property
    def methods(self) -> dict[str, Method]:
        """The methods by name."""
        return dict(self.rows)

    def only(self, names: list[str]) -> Recipe:
        """Return the recipe with some of its methods, in the order given."""
        for name in names:
            if name not in self.methods:
                raise InputError(f"recipe {self.name!r} has no method {name!r}. {did_you_mean(name, self.methods)}")
        return replace(self, rows=tuple((name, self.methods[name]) for name in dict.fromkeys(names)))

    @property
    def stored_size(self) -> int:
        """The side at which images are stored: larger than what the network sees where it sees crops (256 for 224)."""
        return round(self.size * 256 / 224) if self.view in _CROPPED else self.size

    @property
    def fit(self) -> Fit:
        """How photos become squares: "squash", or "center": the short side is resized and the center cut out."""
        return "squash" if self.view == "paper" else "center"

    @property
    def augment(self) -> Augmentation | str:
        """The random views of training."""
        views: dict[str, Augmentation | str] = {
            "plain": "auto",
            "cifar": CropFlip(pad=max(1, self.size // 8), mode="zeros"),
            "paper": RandomCropFlip(self.size),
            "center": RandomCropFlip(self.size),
            "released": ResizedCropFlip(self.size),
        }
        view, more = views[self.view], POLICIES[self.policy]
        if not more:
            return view
        if isinstance(view, str):
            raise InputError(
                f"recipe {self.name!r}: policy={self.policy!r} follows a view that is known before the images are: set "
                "view to cifar, paper, center or released, too."
            )
        return Composed((view, *more))

    @property
    def seen_network(self) -> Network:
        """The network with the center view that belongs to this recipe's random views."""
        return replace(self.network, crop=self.size) if self.view in _CROPPED else self.network

    def tree(self, stream: TaskStream, **options: Any) -> Tree:
        """Return the tree of stages of this recipe; `options` are those of `Tree`: seed, device, store, world, ..."""
        return Tree(
            stream,
            network=self.seen_network,
            training=self.training,
            classifier_training=self.classifier_training,
            exemplar_training=self.exemplar_training,
            warmup=self.warmup,
            augment=self.augment,
            mean_images=self.mean_images,
            **options,
        )

    def stream(self, dataset: Dataset) -> TaskStream:
        """Cut a dataset into this recipe's tasks."""
        order: int | list[Label] | None = self.class_order
        if self.use_classes is not None:
            order = ordered(dataset.classes, self.class_order)[: self.use_classes]
            dataset = dataset.of_classes(order)
        return TaskStream(
            dataset, self.tasks, first=self.first, step=self.step, classes=self.classes, class_order=order
        )

    def resolved(self) -> dict[str, Any]:
        """Return everything, JSON-able, as `protodrift show` prints it."""
        document: dict[str, Any] = written(self)
        document["rows"] = {name: written(method) for name, method in self.rows}
        return document
