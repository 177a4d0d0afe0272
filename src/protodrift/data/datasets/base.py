"""What a named dataset is: its facts as published, where its folder is looked for, and what a folder of it holds."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...common.labels import Label
from ...errors import InputError

OnProgress = Callable[[str, int, int | None], None]
"""Called as `on_progress(what, done, total)`; total is None where it is not known."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of the publisher's.

    Attributes:
        url: where it is.
        bytes: its size, or None where no source confirms it.
        checksum: "md5:<hex>" or "sha256:<hex>" as published, or None: then only the counts tell.
        unpack: whether it is an archive (.tar, .tar.gz, .tgz, .zip) to unpack; else it is kept as it is.
        into: the folder it belongs in, below the data directory.
        mirrors: other addresses of the same bytes, tried after `url`.
        gives: the folder below `into` that it unpacks to, where the dataset has other files too: not fetched if there.
        inner: archives inside the archive, unpacked where they lie and then removed.
    """

    url: str
    bytes: int | None = None
    checksum: str | None = None
    unpack: bool = True
    into: str = ""
    mirrors: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    gives: str = ""

    @property
    def name(self) -> str:
        """The last part of its address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Photos:
    """What a folder of image files holds; nothing is decoded.

    Attributes:
        train, test: (path relative to the folder, label) of each image, in the publisher's order.
        missing: files that the publisher's lists name and the folder lacks.
        extra: images that the lists do not name.
        ignored: other files beside the images.
    """

    train: tuple[tuple[str, Label], ...]
    test: tuple[tuple[str, Label], ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pixels:
    """What a packed file holds: images (N, C, H, W) uint8 and their labels."""

    train: np.ndarray
    train_labels: tuple[Label, ...]
    test: np.ndarray
    test_labels: tuple[Label, ...]


@dataclass(frozen=True, kw_only=True)
class NamedDataset(ABC):
    """A dataset known by name.

    Attributes:
        name: what the user types.
        title: what the publisher calls it.
        classes, train, test: how many there are, as published; `train` is None if it depends on the classes chosen.
        balanced: whether every class has the same number of images.
        per_class: training images and test images of each class, in the order of sorted labels; None if not known.
        train_range: training images of the smallest and of the largest class there is, where `train` is None.
        folders: where it lies below a data directory, in the publisher's ordinary layout; the first is where it is put.
        needs: what that folder must hold; a name that ends with "/" is a folder.
        size: side of its images, or what photos are resized to if nothing else is asked for.
        files: what `protodrift data prepare` downloads; empty if the publisher asks for a login or the link is gone.
        page: the publisher's page.
        terms: license or terms of use in a few words.
        note: what else a check should say.
    """

    name: str
    title: str
    classes: int
    train: int | None
    test: int
    balanced: bool = False
    per_class: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    train_range: tuple[int, int] | None = None
    folders: tuple[str, ...]
    needs: tuple[str, ...]
    size: int
    files: tuple[RemoteFile, ...] = ()
    page: str
    terms: str
    note: str = ""

    def published(self, classes: int | None = None) -> tuple[int, int | None, int]:
        """Return how many classes, training and test images a folder of it should have."""
        return self.classes, self.train, self.test

    def lacks(self, folder: Path) -> list[str]:
        """Return what `folder` would have to hold and does not."""
        return [name for name in self.needs if not _holds(folder, name)]

    def contents(self) -> str:
        """Say in words what the folder holds."""
        return ", ".join(self.needs)

    def how_to_get(self, data: str | Path | None = None) -> str:
        """Say what to put where."""
        directory = data_directories(data)[0]
        source = ", ".join(file.url for file in self.files) or self.page
        command = f", or run `protodrift data prepare {self.name}`" if self.files else ""
        return (
            f"Put {self.contents()} into {directory / self.folders[0]} (from {source}){command}. Another directory: "
            "--data (data=...) or PROTODRIFT_DATA."
        )


class PackedDataset(NamedDataset):
    """A dataset in a few files that hold many images each."""

    @abstractmethod
    def read(self, folder: Path) -> Pixels:
        """Read all images."""

    @abstractmethod
    def sources(self, folder: Path) -> tuple[str, ...]:
        """Return the files that `read` reads, relative to the folder."""


class PhotoDataset(NamedDataset):
    """A dataset with one file per image."""

    @abstractmethod
    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """List its images; where the publisher leaves a choice, of `classes` many classes and by `seed`."""


def _holds(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_dir() if name.endswith("/") else path.is_file()


def cache_home() -> Path:
    """Return the directory that protodrift may fill: $XDG_CACHE_HOME/protodrift, or ~/.cache/protodrift."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "protodrift"


def data_directories(data: str | Path | None) -> list[Path]:
    """Return the directories to look in: `data` alone if it is given, else $PROTODRIFT_DATA, then the user's cache."""
    if data is not None:
        return [_expanded(data, "--data (data=...)")]
    named = os.environ.get("PROTODRIFT_DATA")
    return [*([_expanded(named, "PROTODRIFT_DATA")] if named else []), cache_home() / "data"]


def _expanded(path: str | Path, source: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # pathlib's, for a user that the system does not know
        raise InputError(
            f"{source} is {str(path)!r}, but the system knows no home directory of that user. Write the path in full."
        ) from None


def locate(dataset: NamedDataset, data: str | Path | None) -> Path:
    """Return the folder that holds a dataset.

    Raises:
        InputError: that says which file to put where, and the publisher's address.
    """
    near: list[str] = []
    looked = []
    for directory in data_directories(data):
        if data is not None and not directory.is_dir():
            raise InputError(f"{directory} is not a folder. {dataset.how_to_get(data)}")
        for folder in (*(directory / name for name in dataset.folders), directory):
            lacks = dataset.lacks(folder)
            if not lacks:
                return folder
            looked.append(folder)
            if folder.is_dir() and len(lacks) < len(dataset.needs):
                near.append(f"{folder} holds a part of it, but not {', '.join(lacks)}.")
    where = ", ".join(str(folder) for folder in looked)
    raise InputError(" ".join([f"{dataset.title} is not in {where}.", *near, dataset.how_to_get(data)]))


def chosen_classes(labels: Iterable[Label], count: int | None, seed: int | None) -> set[Label]:
    """Choose `count` classes: the first ones sorted, or by numpy's `RandomState(seed).permutation`, as the field does.

    >>> sorted(chosen_classes("abcdef", 3, None)), sorted(chosen_classes("abcdef", 3, 1993))
    (['a', 'b', 'c'], ['a', 'c', 'd'])
    """
    from ...common.labels import sorted_labels

    known = sorted_labels(labels)
    if count is None:
        return set(known)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(known):
        raise InputError(f"classes={count!r}: the dataset has {len(known)} classes. Ask for 1 to {len(known)}.")
    order = range(len(known)) if seed is None else np.random.RandomState(seed).permutation(len(known))
    return {known[i] for i in order[:count]}
