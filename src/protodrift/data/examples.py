"""Examples and datasets: images with the labels their owner gave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..common.labels import Label, sorted_labels
from ..errors import InputError
from . import spill
from .arrays import Channels, InputSpec, read_images, read_labels


@dataclass(frozen=True)
class Examples:
    """N images and their labels.

    Attributes:
        images: (N, C, H, W) uint8 or float32, or feature vectors (N, D) float32.
        labels: N labels, the user's own.
        ids: (N,) their rows in the dataset they come from, or None: a run can note which images it kept.
    """

    images: torch.Tensor
    labels: tuple[Label, ...]
    ids: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise InputError(f"{len(self.images)} images but {len(self.labels)} labels: give one label per image.")

    def __len__(self) -> int:
        return len(self.labels)

    def of_classes(self, classes: Iterable[Label]) -> Examples:
        """Return the examples of some classes, in their order here."""
        wanted = set(classes)
        return self.at(torch.tensor([i for i, label in enumerate(self.labels) if label in wanted], dtype=torch.long))

    def at(self, rows: torch.Tensor) -> Examples:
        """Return the examples at these positions, in that order."""
        ids = None if self.ids is None else self.ids[rows]
        return Examples(spill.take(self.images, rows), tuple(self.labels[i] for i in rows.tolist()), ids)

    def targets_of(self, classes: Sequence[Label]) -> torch.Tensor:
        """Return for each example the index of its label in `classes`, (N,) long.

        >>> Examples(torch.zeros(3, 2), ("b", "a", "b")).targets_of(["a", "b"]).tolist()
        [1, 0, 1]
        """
        index = {label: row for row, label in enumerate(classes)}
        return torch.tensor([index[label] for label in self.labels], dtype=torch.long)

    @staticmethod
    def concatenate(parts: Sequence[Examples]) -> Examples:
        """Join examples one after another."""
        ids = [p.ids for p in parts if p.ids is not None]
        return Examples(
            spill.join([p.images for p in parts]),
            tuple(label for p in parts for label in p.labels),
            torch.cat(ids) if len(ids) == len(parts) else None,
        )


class Dataset:
    """A named set of training images and, for experiments, test images.

    Args:
        X: training images or feature vectors, in any form that `read_images` takes.
        y: their labels, all str or all int.
        X_test, y_test: test images, or None.
        name: shown in reports.
        channels: "auto", "first" or "last"; see `read_images`.

    Attributes:
        train, test: `Examples`; `test` is None if there are none.
        classes: the training labels, each once, sorted.
        skipped: image files that were damaged and left out, if that was asked for.

    >>> import numpy as np
    >>> Dataset(np.zeros((4, 8, 8), np.uint8), ["owl", "owl", "emu", "jay"], name="birds")
    Dataset('birds': 4 training images of 3 classes, no test images)
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        X_test: Any = None,
        y_test: Any = None,
        *,
        name: str = "arrays",
        channels: Channels = "auto",
    ) -> None:
        images, spec = read_images(X, channels=channels)
        train = Examples(images, read_labels(y, len(images)), torch.arange(len(images)))
        test = None
        if X_test is not None:
            images_test, _ = read_images(X_test, spec=spec, channels=channels)
            test = Examples(images_test, read_labels(y_test, len(images_test)))
        self._set(train, test, spec, name, ())

    @classmethod
    def of_examples(
        cls, train: Examples, test: Examples | None, *, spec: InputSpec, name: str, skipped: Sequence[str] = ()
    ) -> Dataset:
        """Make a dataset of images that are checked already; nothing is copied, so they may be memory-mapped.

        Args:
            train, test: images in the inner form, (N, C, H, W) uint8 or float32, as `spec` says.
            spec: what the images look like.
            name: shown in reports.
            skipped: image files that were damaged and left out.
        """
        for part in (train, test):
            if part is not None and tuple(part.images.shape[1:]) != spec.shape:
                raise InputError(f"images of shape {tuple(part.images.shape[1:])}, but the spec says {spec.shape}.")
        result = object.__new__(cls)
        result._set(train, test, spec, name, skipped)
        return result

    def _set(self, train: Examples, test: Examples | None, spec: InputSpec, name: str, skipped: Sequence[str]) -> None:
        self.name, self.spec, self.skipped = name, spec, tuple(skipped)
        self.train = Examples(train.images, train.labels, torch.arange(len(train)))
        self.test = test
        unknown = set(test.labels) - set(train.labels) if test is not None else set()
        if unknown:
            raise InputError(
                f"the test images have classes that the training images lack: {sorted(map(str, unknown))[:5]}. "
                "Drop them, or add training images."
            )

    @property
    def classes(self) -> tuple[Label, ...]:
        """The training labels, each once, sorted."""
        return sorted_labels(self.train.labels)

    def of_classes(self, classes: Iterable[Label]) -> Dataset:
        """Return the dataset of some classes only."""
        wanted = set(classes)
        test = None if self.test is None else self.test.of_classes(wanted)
        return Dataset.of_examples(
            self.train.of_classes(wanted), test, spec=self.spec, name=self.name, skipped=self.skipped
        )

    def split(self, test_fraction: float, seed: int = 0) -> Dataset:
        """Return a dataset whose test part is a seeded, per-class share of these training images.

        Every class keeps at least one training image.
        """
        if not 0 < test_fraction < 1:
            raise InputError(f"test_fraction={test_fraction!r} must be between 0 and 1, exclusively.")
        rng = np.random.RandomState(seed)
        labels = self.train.targets_of(self.classes).numpy()
        held = np.zeros(len(labels), dtype=bool)
        for row in range(len(self.classes)):
            members = rng.permutation(np.flatnonzero(labels == row))
            held[members[: min(round(test_fraction * len(members)), len(members) - 1)]] = True
        train, test = (self.train.at(torch.from_numpy(np.flatnonzero(rows))) for rows in (~held, held))
        return Dataset.of_examples(train, test, spec=self.spec, name=self.name, skipped=self.skipped)

    def holding_out(self, fraction: float) -> Dataset:
        """Return the dataset without the training images that `split(fraction)` would test on; same test images."""
        train = self.split(fraction).train
        return Dataset.of_examples(train, self.test, spec=self.spec, name=self.name, skipped=self.skipped)

    def first_of_each(self, train: int | None, test: int | None) -> Dataset:
        """Return a dataset with at most so many training and test images of each class, the first ones; None: all."""
        if train is None and test is None:
            return self
        parts = [
            part if part is None or count is None else part.at(_first(part.targets_of(self.classes), count))
            for part, count in ((self.train, train), (self.test, test))
        ]
        assert parts[0] is not None
        return Dataset.of_examples(parts[0], parts[1], spec=self.spec, name=self.name, skipped=self.skipped)

    def __repr__(self) -> str:
        test = f"{len(self.test)} test images" if self.test else "no test images"
        return f"Dataset({self.name!r}: {len(self.train)} training images of {len(self.classes)} classes, {test})"


def _first(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return where the first `count` of each value stand, in the order of the data, (N,) -> (M,)."""
    seen: dict[int, int] = {}
    kept = []
    for at, row in enumerate(rows.tolist()):
        seen[row] = seen.get(row, 0) + 1
        if seen[row] <= count:
            kept.append(at)
    return torch.tensor(kept, dtype=torch.long)
