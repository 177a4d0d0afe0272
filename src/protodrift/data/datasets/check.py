"""What a dataset's folder holds, beside what it should hold."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from .base import NamedDataset, OnProgress, PackedDataset, PhotoDataset, locate
from .counting import counts
from .decode import decode_files
from .registry import get_dataset


@dataclass(frozen=True)
class Check:
    """What was found.

    Attributes:
        folder: where.
        counts: (what, counted, published); published is None where it is not one number.
        missing: files that the lists name and the folder lacks.
        extra: images that the lists do not name.
        damaged: images that cannot be decoded, with the reason; empty if none was opened.
        ignored: other files beside the images: harmless.
    """

    folder: Path
    counts: tuple[tuple[str, int, int | None], ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the folder holds the dataset as published."""
        return not self.extra and self.only_extra

    @property
    def only_extra(self) -> bool:
        """Whether nothing is wrong but that there are images which no list names: they are not loaded."""
        right = all(published is None or counted == published for _, counted, published in self.counts)
        return right and not (self.missing or self.damaged)


def check_dataset(
    name: str | NamedDataset,
    data: str | Path | None = None,
    *,
    seed: int | None = None,
    images: bool = False,
    on_progress: OnProgress | None = None,
) -> Check:
    """Count what a dataset's folder holds, without using it.

    Args:
        name: a name from `DATASETS`, or an entry of it.
        data: the data directory, or the dataset's own folder.
        seed: chooses the classes of ImageNet-Subset; None: the first ones.
        images: also decode every image file, to find damaged ones.
        on_progress: called as `on_progress(what, done, total)`.
    """
    dataset = get_dataset(name) if isinstance(name, str) else name
    folder = locate(dataset, data)
    if isinstance(dataset, PackedDataset):
        pixels = dataset.read(folder)
        return Check(folder, tuple(counts(dataset, pixels.train_labels, pixels.test_labels)))
    assert isinstance(dataset, PhotoDataset)
    photos = dataset.scan(folder, seed=seed)
    absent = set(photos.missing)
    train, test = ([label for name, label in part if name not in absent] for part in (photos.train, photos.test))
    damaged: list[str] = []
    if images:
        names = [name for name, _ in (*photos.train, *photos.test) if name not in absent]
        with tempfile.TemporaryDirectory(prefix="protodrift-") as scratch:
            (bad,) = decode_files(
                [([folder / name for name in names], Path(scratch) / "tiny.npy")],
                size=1,
                fit="squash",
                skip_bad=True,
                what=f"open {dataset.name}",
                on_progress=on_progress,
            )
        damaged = [why for _, why in sorted(bad.items())]
    return Check(
        folder,
        tuple(counts(dataset, train, test)),
        missing=photos.missing,
        extra=photos.extra,
        damaged=tuple(damaged),
        ignored=photos.ignored,
    )
