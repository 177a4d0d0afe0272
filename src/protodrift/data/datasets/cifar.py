"""CIFAR-100, python version: `cifar-100-python/{train,test,meta}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...common.labels import Label
from ...errors import InputError
from .base import PackedDataset, Pixels, RemoteFile
from .pickles import read_pickle


class Cifar100(PackedDataset):
    """60,000 images of 32 x 32; the labels are the fine names, whose alphabetical order is the publisher's index."""

    def sources(self, folder: Path) -> tuple[str, ...]:
        """Return the three files."""
        return self.needs

    def read(self, folder: Path) -> Pixels:
        """Read both parts."""
        names = _names(folder / "meta")
        return Pixels(*_part(folder / "train", names), *_part(folder / "test", names))


def _field(path: Path, key: str) -> Any:
    content = read_pickle(path)
    if key not in content:
        raise InputError(f"{path} has no {key!r} (it has {sorted(content)[:6]}): is this CIFAR-100?")
    return content if key == "data" else content[key]


def _names(path: Path) -> list[str]:
    listed = _field(path, "fine_label_names")
    if not isinstance(listed, (list, tuple)) or not all(isinstance(name, (bytes, str)) for name in listed):
        raise InputError(f"{path} is damaged: its fine_label_names are not a list of names. Get it again.")
    try:
        names = [name.decode() if isinstance(name, bytes) else name for name in listed]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is damaged: the class name {error.object!r} is not UTF-8. Get it again.") from None
    if len(set(names)) != len(names):
        raise InputError(f"{path} names a class twice.")
    return names


def _part(path: Path, names: list[str]) -> tuple[np.ndarray, tuple[Label, ...]]:
    content = _field(path, "data")
    data, labels = content["data"], content.get("fine_labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        got = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise InputError(f"{path} is damaged: its data are {got}, not uint8 (N, 3072).")
    if not isinstance(labels, (list, tuple)) or len(labels) != len(data):
        raise InputError(f"{path} is damaged: {len(data)} images, but not as many fine_labels.")
    if not all(isinstance(label, int) and 0 <= label < len(names) for label in labels):
        raise InputError(f"{path} is damaged: a fine label is not in 0..{len(names) - 1}.")
    return data.reshape(-1, 3, 32, 32), tuple(names[label] for label in labels)


CIFAR100 = Cifar100(
    name="cifar100",
    title="CIFAR-100",
    classes=100,
    train=50_000,
    test=10_000,
    balanced=True,
    folders=("cifar-100-python",),
    needs=("train", "test", "meta"),
    size=32,
    files=(
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            bytes=169_001_437,
            checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",  # on the publisher's page, and torchvision's
        ),
    ),
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    terms="no license stated; cite Krizhevsky 2009",
)
