"""Cars-196 (Stanford Cars): `stanford_cars/{cars_train,cars_test,devkit}` and `cars_test_annos_withlabels.mat`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...common.labels import Label
from ...errors import InputError
from .base import PhotoDataset, Photos
from .listing import compared, read_mat, whole_numbers

_TEST = "cars_test_annos_withlabels.mat"  # beside devkit/, or in it


class Cars196(PhotoDataset):
    """16,185 photos; a label is the publisher's number and name: `001.AM General Hummer SUV 2000`.

    The number keeps the publisher's order of classes when labels are sorted. The publisher's links are gone, so there
    is nothing to download.
    """

    def lacks(self, folder: Path) -> list[str]:
        """Find the test annotations in either place."""
        lacks = [name for name in super().lacks(folder) if name != _TEST]
        return lacks if _test_file(folder) is not None else [*lacks, _TEST]

    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """Read the annotations."""
        names = [str(name) for name in np.atleast_1d(read_mat(folder / "devkit" / "cars_meta.mat", "class_names"))]
        train = _annotations(folder / "devkit" / "cars_train_annos.mat", "cars_train", names)
        test = _annotations(_test_file(folder) or folder / _TEST, "cars_test", names)
        return compared(folder, train, test, ["cars_train", "cars_test"])


def _test_file(folder: Path) -> Path | None:
    return next((path for path in (folder / _TEST, folder / "devkit" / _TEST) if path.exists()), None)


def _annotations(path: Path, folder: str, names: list[str]) -> list[tuple[str, Label]]:
    rows = np.atleast_1d(read_mat(path, "annotations"))
    if rows.dtype.names is None or not {"class", "fname"} <= set(rows.dtype.names):
        raise InputError(f"{path} has no 'class' and 'fname': are these the test annotations without labels?")
    result: list[tuple[str, Label]] = []
    for row in rows:
        numbers = whole_numbers(row["class"], path, "class")
        if len(numbers) != 1:
            raise InputError(f"{path} is damaged: {row['fname']} has {len(numbers)} classes, not one. Get it again.")
        number = numbers[0]
        if not 1 <= number <= len(names):
            raise InputError(f"{path} is damaged: class {number}, but cars_meta.mat names {len(names)}.")
        result.append((f"{folder}/{row['fname']}", f"{number:03d}.{names[number - 1]}"))
    return result


CARS196 = Cars196(
    name="cars196",
    title="Cars-196",
    classes=196,
    train=8_144,
    test=8_041,
    folders=("stanford_cars", "cars196"),
    needs=("cars_train/", "cars_test/", "devkit/cars_meta.mat", "devkit/cars_train_annos.mat", _TEST),
    size=256,
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    terms="research use only",
)
