"""From a name to a `Dataset`: find the folder, check its counts, decode or take the decoded images from the cache."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

from ...common.labels import Label
from ...errors import InputError, SkippedImagesWarning
from ..arrays import InputSpec
from ..examples import Dataset, Examples
from ..folder import HOW_TO_SKIP, warn_of_skipped
from ..images import Fit
from . import cache as decoded
from .base import (
    NamedDataset,
    OnProgress,
    PackedDataset,
    PhotoDataset,
    Pixels,
    cache_home,
    chosen_classes,
    locate,
)
from .counting import require_counts
from .decode import decode_files, reserve
from .registry import get_dataset


def load_dataset(
    name: str,
    data: str | Path | None = None,
    *,
    size: int | None = None,
    fit: Fit = "squash",
    classes: int | None = None,
    seed: int | None = None,
    skip_bad_images: bool = False,
    check: bool = True,
    cache: bool | str | Path = True,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load a dataset by name, from its publisher's ordinary layout.

    Args:
        name: a name from `DATASETS`.
        data: the data directory, or the dataset's own folder; None: $PROTODRIFT_DATA, then the user's cache directory.
        size: images become size x size; None: their own size, or 256 (the paper's) for photos.
        fit: how photos become square: "squash" resizes both sides (Sec. 5: "all resized to 256 x 256"), "center"
            resizes the short side and crops the center.
        classes: use only so many classes: the first ones sorted, or by `seed`. None: all (ImageNet-Subset: 100).
        seed: chooses the classes, by numpy's `RandomState(seed).permutation` of the sorted classes, and the training
            images where the publisher names none (Caltech-101). None: the first classes; training images of seed 0.
        skip_bad_images: leave out images that are damaged or missing, with a warning; the dataset's `skipped` lists
            them. Otherwise the first one is an error.
        check: whether counts other than the published ones are an error.
        cache: True: keep decoded images in the user's cache directory; a path: in that one; False: nowhere.
        workers: processes that decode; None: as many as pay. The images are the same.
        on_progress: called as `on_progress(what, done, total)`.

    Returns:
        A `Dataset`; train and test images are uint8, (N, 3, size, size), (N, 1, size, size) for MNIST and
        Fashion-MNIST. With a cache they are memory-mapped.

    Raises:
        InputError: naming what is missing, damaged or miscounted, and what to do.
    """
    dataset = get_dataset(name)
    if fit not in get_args(Fit):
        raise InputError(f"fit={fit!r} is unknown: 'squash' (resize both sides) or 'center' (crop the center square).")
    side = dataset.size if size is None else size
    if isinstance(side, bool) or not isinstance(side, (int, np.integer)) or not 1 <= side <= 4096:
        raise InputError(f"size={size!r} must be a whole number of pixels, 1 to 4096.")
    folder = locate(dataset, data)
    packed = isinstance(dataset, PackedDataset)
    options = {"size": int(side), "fit": "" if packed else fit, "classes": classes, "seed": seed}
    if isinstance(dataset, PhotoDataset):
        entry = _photos(dataset, folder, options, skip_bad_images, check, cache, workers, on_progress)
    else:
        assert isinstance(dataset, PackedDataset)
        entry = _pixels(dataset, folder, options, check, cache, on_progress)
    if entry.skipped:
        warn_of_skipped(dataset.title, entry.skipped)
    return Dataset.of_examples(
        Examples(torch.from_numpy(entry.train), entry.train_labels),
        Examples(torch.from_numpy(entry.test), entry.test_labels),
        spec=InputSpec(tuple(entry.train.shape[1:]), "uint8", 0.0, 255.0),
        name=dataset.name,
        skipped=entry.skipped,
    )


def _keep(
    dataset: NamedDataset, folder: Path, options: dict[str, Any], key: str, build: Any, cache: bool | str | Path
) -> decoded.Entry:
    where = decoded.fingerprint(folder, (), str(folder.resolve()), options)[:8]
    identity = "-".join([dataset.name, str(options["size"]), *([options["fit"]] if options["fit"] else []), where])
    if cache is False:
        scratch = Path(tempfile.mkdtemp(prefix="protodrift-"))
        try:
            return decoded.cached(scratch, identity, key, build, remap=False)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    root = cache_home() / "decoded" if cache is True else Path(cache).expanduser()
    return decoded.cached(root, identity, key, build)


def _photos(
    dataset: PhotoDataset,
    folder: Path,
    options: dict[str, Any],
    skip_bad: bool,
    check: bool,
    cache: bool | str | Path,
    workers: int | None,
    on_progress: OnProgress | None,
) -> decoded.Entry:
    photos = dataset.scan(folder, classes=options["classes"], seed=options["seed"])
    if check:
        train, test = ([label for _, label in part] for part in (photos.train, photos.test))
        less = require_counts(dataset, folder, train, test, options["classes"], fewer=skip_bad)
        if less:  # of sets without a list: which images are missing is not known
            warnings.warn(
                f"{folder} holds fewer images than {dataset.title} has: {', '.join(less)}.",
                SkippedImagesWarning,
                stacklevel=3,
            )
    if photos.missing and not skip_bad:
        raise InputError(
            f"{folder} lacks {len(photos.missing)} image{'s' * (len(photos.missing) > 1)} that its lists name, for "
            f"example {photos.missing[0]}. Get {dataset.title} again. {HOW_TO_SKIP}"
        )
    if not photos.train:
        raise InputError(f"{folder} holds no training images. Get {dataset.title} again.")
    wanted = chosen_classes((label for _, label in photos.train), options["classes"], options["seed"])
    absent = set(photos.missing)
    parts = [
        [(name, label) for name, label in part if label in wanted and name not in absent]
        for part in (photos.train, photos.test)
    ]
    lost = [name for name, label in (*photos.train, *photos.test) if name in absent and label in wanted]
    names = [name for part in parts for name, _ in part]
    key = decoded.fingerprint(folder, names, options, [[label for _, label in part] for part in parts], lost)

    def build(draft: Path) -> None:
        outs = (draft / "train.npy", draft / "test.npy")
        bad = decode_files(
            [([folder / name for name, _ in part], out) for part, out in zip(parts, outs, strict=True)],
            size=options["size"],
            fit=options["fit"],
            skip_bad=skip_bad,
            workers=workers,
            what=f"decode {dataset.name}",
            on_progress=on_progress,
        )
        reasons = [rows[row] for rows in bad for row in sorted(rows)]  # each names its file
        skipped = [*(f"{folder / name} is missing." for name in lost), *reasons]
        for part, out, rows in zip(parts, outs, bad, strict=True):
            if rows:
                _compact(out, [row for row in range(len(part)) if row not in rows])
        train, test = (
            [label for row, (_, label) in enumerate(part) if row not in rows]
            for part, rows in zip(parts, bad, strict=True)
        )
        if not train:
            raise InputError(f"{folder} holds no training image that can be read: {skipped[0]} Get it again.")
        decoded.describe(draft, train, test, skipped)

    entry = _keep(dataset, folder, options, key, build, cache)
    if entry.skipped and not skip_bad:  # made by a call that skipped them
        raise InputError(f"{entry.skipped[0]} {HOW_TO_SKIP}")
    return entry


def _compact(file: Path, kept: list[int]) -> None:
    """Drop the other rows of a `.npy` file."""
    old = np.load(file, mmap_mode="r")
    draft = file.with_name(f"kept-{file.name}")
    reserve(draft, (len(kept), *old.shape[1:]))
    new = np.lib.format.open_memmap(draft, mode="r+") if kept else np.load(draft)
    for start in range(0, len(kept), 256):
        rows = kept[start : start + 256]
        new[start : start + len(rows)] = old[rows]
    del old, new  # which also writes it
    draft.replace(file)


def _pixels(
    dataset: PackedDataset,
    folder: Path,
    options: dict[str, Any],
    check: bool,
    cache: bool | str | Path,
    on_progress: OnProgress | None,
) -> decoded.Entry:
    def build(draft: Path) -> None:
        pixels = dataset.read(folder)
        if check:  # an entry of files that fail the check is never made; one that exists has passed it
            require_counts(dataset, folder, pixels.train_labels, pixels.test_labels)
        pixels = _of_classes(pixels, chosen_classes(pixels.train_labels, options["classes"], options["seed"]))
        for part, images in (("train", pixels.train), ("test", pixels.test)):
            np.save(draft / f"{part}.npy", _resized(images, options["size"], f"resize {dataset.name}", on_progress))
        decoded.describe(draft, pixels.train_labels, pixels.test_labels, ())

    facts = {**options, "check": check}
    key = decoded.fingerprint(folder, dataset.sources(folder), facts)
    return _keep(dataset, folder, facts, key, build, cache)


def _of_classes(pixels: Pixels, wanted: set[Label]) -> Pixels:
    rows, rows_test = (
        np.array([label in wanted for label in labels], dtype=bool)
        for labels in (pixels.train_labels, pixels.test_labels)
    )
    if rows.all() and rows_test.all():
        return pixels
    return Pixels(
        pixels.train[rows],
        tuple(label for label in pixels.train_labels if label in wanted),
        pixels.test[rows_test],
        tuple(label for label in pixels.test_labels if label in wanted),
    )


def _resized(images: np.ndarray, size: int, what: str, on_progress: OnProgress | None) -> np.ndarray:
    if images.shape[2:] == (size, size):
        return images
    result = np.empty((*images.shape[:2], size, size), np.uint8)
    for i, image in enumerate(images):
        for channel, plane in enumerate(image):
            resized = Image.fromarray(plane).resize((size, size), resample=Image.Resampling.BILINEAR)
            result[i, channel] = np.asarray(resized)
        if on_progress is not None and (i + 1) % 1000 == 0:
            on_progress(what, i + 1, len(images))
    return result
