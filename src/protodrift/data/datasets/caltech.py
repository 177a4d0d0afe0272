"""Caltech-101: `101_ObjectCategories/<class>/image_0001.jpg`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...common.labels import Label
from ..scan import scan_folder
from .base import PhotoDataset, Photos, RemoteFile

BACKGROUND = "BACKGROUND_Google"  # clutter, not a class
TRAINING_IMAGES = 30  # per class: the usual number; the publisher names no split


class Caltech101(PhotoDataset):
    """8,677 photos of 101 classes, without the 467 of the background folder; the labels are the folder names.

    30 images of each class, chosen by `seed` (None: 0), are for training, the others for testing.
    """

    def contents(self) -> str:
        """Name them together."""
        return "the 101 class folders, accordion/ to yin_yang/,"

    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """Draw the training images of each class by itself: a file more in one leaves the others as they are."""
        from ...common.seeding import derive  # imports torch, which nothing else here needs

        found = scan_folder(folder)
        train: list[tuple[str, Label]] = []
        test: list[tuple[str, Label]] = []
        for label in found.classes:
            if label == BACKGROUND:
                continue
            names = [path.relative_to(folder).as_posix() for path, of in found.files if of == label]
            random = np.random.RandomState(derive(seed or 0, "caltech101", label) % 2**32)
            order = random.permutation(len(names))
            chosen = set(order[: min(TRAINING_IMAGES, max(len(names) - 1, 1))].tolist())
            train += [(name, label) for i, name in enumerate(names) if i in chosen]
            test += [(name, label) for i, name in enumerate(names) if i not in chosen]
        return Photos(
            tuple(train), tuple(test), ignored=tuple(path.relative_to(folder).as_posix() for path in found.ignored)
        )


CALTECH101 = Caltech101(
    name="caltech101",
    title="Caltech-101",
    classes=101,
    train=101 * TRAINING_IMAGES,
    test=8_677 - 101 * TRAINING_IMAGES,
    folders=("caltech-101/101_ObjectCategories", "101_ObjectCategories", "caltech101/101_ObjectCategories"),
    needs=("accordion/", "yin_yang/"),
    size=256,
    files=(
        RemoteFile(
            "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
            bytes=137_414_764,
            checksum="sha256:331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",  # from public code
            inner=("caltech-101/101_ObjectCategories.tar.gz",),
        ),
    ),
    page="https://data.caltech.edu/records/mzrjq-6wc02",
    terms="CC BY 4.0",
)
