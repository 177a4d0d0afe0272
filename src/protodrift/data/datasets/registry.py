"""All named datasets."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError, did_you_mean
from .base import NamedDataset, locate
from .caltech import CALTECH101
from .cars import CARS196
from .cifar import CIFAR100
from .cub import CUB200
from .flowers import FLOWERS102
from .imagenet import IMAGENET_SUBSET, TINY_IMAGENET
from .mnist import FASHION_MNIST, MNIST

DATASETS: dict[str, NamedDataset] = {
    dataset.name: dataset
    for dataset in (
        CIFAR100,
        CUB200,
        FLOWERS102,
        CALTECH101,
        CARS196,
        IMAGENET_SUBSET,
        MNIST,
        FASHION_MNIST,
        TINY_IMAGENET,
    )
}


def get_dataset(name: str) -> NamedDataset:
    """Return a dataset's facts by its name."""
    try:
        return DATASETS[name]
    except KeyError:
        raise InputError(f"there is no dataset {name!r}. {did_you_mean(name, DATASETS)}") from None


def find_dataset(name: str, data: str | Path | None = None) -> Path:
    """Return the folder that holds a dataset; an `InputError` says what to put where if there is none."""
    return locate(get_dataset(name), data)
