"""Decoded images on disk, memory-mapped.

    <cache>/cub200-256-squash-1f0c2a7b-<fingerprint>/
        train.npy, test.npy     (N, C, S, S) uint8
        entry.json              labels, and the files that were left out

The fingerprint covers every source file's name, size and time of change, and its label: when a source changes, the
entry is made anew and the old one removed. An entry is written beside its final name and renamed when it is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ...common.files import sync_directory
from ...common.labels import Label
from ...errors import InputError

FORMAT = 2  # of the entries, and of how images are decoded


@dataclass(frozen=True)
class Entry:
    """Decoded images with their labels; `skipped` names the source files that were damaged and left out."""

    train: np.ndarray
    test: np.ndarray
    train_labels: tuple[Label, ...]
    test_labels: tuple[Label, ...]
    skipped: tuple[str, ...] = ()


def fingerprint(folder: Path, files: Iterable[str], *facts: Any) -> str:
    """Return a hash of the files' names, sizes and times of change, and of some JSON-able facts."""
    digest = hashlib.sha256(json.dumps([FORMAT, *facts]).encode())
    for name in files:
        stat = os.stat(folder / name)
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def cached(root: Path, identity: str, key: str, build: Callable[[Path], None], *, remap: bool = True) -> Entry:
    """Return the entry `identity` with the fingerprint `key`; build it if it is missing, damaged or out of date.

    Two processes may ask at once: one builds, the other waits for it.

    Args:
        root: the cache directory.
        identity: what the entry is of; entries of the same identity with another fingerprint are removed.
        key: the fingerprint.
        build: makes `train.npy`, `test.npy` and, by `describe`, `entry.json` in the folder it is given.
        remap: whether to map the images into memory instead of reading them.
    """
    folder = root / f"{identity}-{key[:20]}"
    entry = open_entry(folder, remap=remap)
    if entry is not None:
        return entry
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{identity}.lock"):
            entry = open_entry(folder, remap=remap)  # another process may have built it while this one waited
            if entry is None:
                for stale in (*root.glob(f"{identity}-*"), *root.glob(f".new-{identity}-*")):
                    shutil.rmtree(stale, ignore_errors=True)
                _build(folder, build)
                entry = open_entry(folder, remap=remap)
    except OSError as error:
        raise InputError(
            f"cannot write decoded images to {root}: {error.strerror or error}. Nothing half-made was left. Free some "
            "space, name another directory (cache=..., XDG_CACHE_HOME), or do without (cache=False)."
        ) from error
    if entry is None:
        raise InputError(f"decoded images were written to {root} and cannot be read back. Is its disk damaged?")
    return entry


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    draft = folder.with_name(f".new-{folder.name}")
    try:
        draft.mkdir()
        build(draft)
        for file in draft.iterdir():
            with open(file, "rb+") as opened:
                os.fsync(opened.fileno())
        sync_directory(draft)
        os.rename(draft, folder)
        sync_directory(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def describe(draft: Path, train: Iterable[Label], test: Iterable[Label], skipped: Iterable[str]) -> None:
    """Write `entry.json`."""
    facts = {"format": FORMAT, "train": list(train), "test": list(test), "skipped": list(skipped)}
    (draft / "entry.json").write_text(json.dumps(facts), encoding="utf-8")


def _mapped(file: Path) -> np.ndarray:
    """Map an array: pages are shared with the file until somebody writes to them; the file itself never changes."""
    try:
        whole: np.ndarray = np.load(file, mmap_mode="c")
        return whole
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
    # More than memory and swap can hold, should all pages be written to. Nobody does: map it without that promise.
    with open(file, "rb") as opened:
        np.lib.format.read_magic(opened)
        shape, _, dtype = np.lib.format.read_array_header_1_0(opened)
        offset = opened.tell()
        no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # in Python from 3.13 on
        flags = mmap.MAP_PRIVATE | no_reserve
        pages = mmap.mmap(opened.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return np.ndarray(shape, dtype, buffer=pages, offset=offset)


def open_entry(folder: Path, *, remap: bool = True) -> Entry | None:
    """Open an entry; None if it is not there, or not whole."""
    try:
        facts = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        pixels = [
            # An array without rows cannot be mapped.
            _mapped(folder / f"{part}.npy") if remap and facts[part] else np.load(folder / f"{part}.npy")
            for part in ("train", "test")
        ]
        entry = Entry(pixels[0], pixels[1], tuple(facts["train"]), tuple(facts["test"]), tuple(facts["skipped"]))
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    whole = all(
        array.dtype == np.uint8 and array.ndim == 4 and len(array) == len(labels)
        for array, labels in ((entry.train, entry.train_labels), (entry.test, entry.test_labels))
    )
    return entry if whole else None
