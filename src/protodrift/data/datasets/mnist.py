"""MNIST and Fashion-MNIST: four idx files, compressed or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from ...common.labels import Label
from ...errors import InputError
from .base import PackedDataset, Pixels, RemoteFile

_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_FILES = tuple(f"{part}-{kind}" for part in ("train", "t10k") for kind in (_IMAGES, _LABELS))


class Idx(PackedDataset):
    """70,000 gray images of 28 x 28; the labels are 0 to 9."""

    def lacks(self, folder: Path) -> list[str]:
        """Find each file with or without `.gz`."""
        return [name for name in self.needs if _there(folder, name) is None]

    def sources(self, folder: Path) -> tuple[str, ...]:
        """Return the names as they are on disk."""
        return tuple(_there(folder, name) or name for name in self.needs)

    def read(self, folder: Path) -> Pixels:
        """Read the four files."""
        return Pixels(*_part(folder, "train"), *_part(folder, "t10k"))


def _there(folder: Path, name: str) -> str | None:
    return next((n for n in (name, f"{name}.gz") if (folder / n).is_file()), None)


def _part(folder: Path, part: str) -> tuple[np.ndarray, tuple[Label, ...]]:
    images, labels = (read_idx(folder / (_there(folder, f"{part}-{kind}") or "")) for kind in (_IMAGES, _LABELS))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(
            f"{folder}: {part} has images of shape {images.shape} and labels of shape {labels.shape}; one label per "
            "image is needed. Get the files again."
        )
    return images[:, None], tuple(int(label) for label in labels)


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes: two zeros, type 8, number of axes, each length as 4 bytes, then the bytes."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged: cut off or changed ({error}). Get it again from its publisher.") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from None
    axes = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    start = 4 + 4 * axes
    if not axes or len(data) - start != np.prod(shape, dtype=np.int64):
        raise InputError(f"{path} is damaged: not an idx file of bytes, or cut off. Get it again from its publisher.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def _files(at: str, into: str, facts: tuple[tuple[int, str], ...], mirror: str = "") -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(
            f"{at}{name}.gz",
            bytes=size,
            checksum=f"md5:{md5}",
            unpack=False,
            into=into,
            mirrors=(f"{mirror}{name}.gz",) if mirror else (),
        )
        for name, (size, md5) in zip(_FILES, facts, strict=True)
    )


MNIST = Idx(
    name="mnist",
    title="MNIST",
    classes=10,
    train=60_000,
    test=10_000,
    per_class=(  # as counted in the published files; Fashion-MNIST's have the same names, but 6,000 and 1,000 of each
        (5_923, 6_742, 5_958, 6_131, 5_842, 5_421, 5_918, 6_265, 5_851, 5_949),
        (980, 1_135, 1_032, 1_010, 982, 892, 958, 1_028, 974, 1_009),
    ),
    folders=("MNIST/raw", "mnist"),
    needs=_FILES,
    size=28,
    files=_files(
        "http://yann.lecun.com/exdb/mnist/",
        "MNIST/raw",
        (  # sizes: the publisher's page; checksums: torchvision's
            (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        mirror="https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    page="http://yann.lecun.com/exdb/mnist/",
    terms="CC BY-SA 3.0",
)

FASHION_MNIST = Idx(
    name="fashion-mnist",
    title="Fashion-MNIST",
    classes=10,
    train=60_000,
    test=10_000,
    balanced=True,  # MNIST's files have the same names, but MNIST is not balanced: a mix-up is noticed
    folders=("FashionMNIST/raw", "fashion-mnist"),
    needs=_FILES,
    size=28,
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "FashionMNIST/raw",
        (  # checksums: the publisher's README
            (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
    ),
    page="https://github.com/zalandoresearch/fashion-mnist",
    terms="MIT",
)
