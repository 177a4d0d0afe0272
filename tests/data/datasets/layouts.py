"""Small datasets in the layouts of their publishers."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def photo(path: Path, color=(200, 30, 60), size=(12, 8)) -> Path:
    """Write a photo; its color tells it from others (JPEG keeps a flat color within a few levels)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path, "JPEG", quality=95)
    return path


def cut_short(path: Path) -> Path:
    """Make a JPEG that ends in the middle, with a header that is fine."""
    noise = np.random.RandomState(0).randint(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG", quality=95)
    path.write_bytes(path.read_bytes()[:2000])
    return path


def python2_pickle(value: object) -> bytes:
    """Pickle as Python 2 and the numpy of its day did: byte strings, and modules by their old names."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(k) + _python2(v) for k, v in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    kind = value.dtype.str[1:].encode()
    made = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + _python2(0) + b"\x85" + _python2(b"b") + b"\x87R"
    )
    dtype = b"cnumpy\ndtype\n" + _python2(kind) + _python2(0) + _python2(1) + b"\x87R"
    dtype += (
        b"(" + _python2(3) + _python2(value.dtype.str[:1].encode()) + b"NNN" + _python2(-1) * 2 + _python2(0) + b"tb"
    )
    shape = b"(" + b"".join(map(_python2, value.shape)) + b"t"
    return made + b"(" + _python2(1) + shape + dtype + b"\x89" + _python2(value.tobytes()) + b"tb"


CIFAR_NAMES = ["apple", "bee", "cup"]


def cifar_parts(train: int = 6, test: int = 3) -> dict[str, dict[bytes, object]]:
    rng = np.random.RandomState(0)
    parts: dict[str, dict[bytes, object]] = {
        part: {
            b"data": rng.randint(0, 256, (count, 3072)).astype(np.uint8),
            b"fine_labels": [i % 3 for i in range(count)],
            b"coarse_labels": [0] * count,
        }
        for part, count in (("train", train), ("test", test))
    }
    parts["meta"] = {b"fine_label_names": [name.encode() for name in CIFAR_NAMES]}
    return parts


def cifar(root: Path, write=python2_pickle, **counts: int) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, content in cifar_parts(**counts).items():
        (folder / name).write_bytes(write(content))
    return folder


def cub(root: Path, classes: int = 3, images: int = 4) -> Path:
    """The last image of each class is a test image; colors tell class and image."""
    folder = root / "CUB_200_2011"
    names = [f"{c + 1:03d}.Bird_{'zyx'[c]}" for c in range(classes)]
    files, labels, split = [], [], []
    for c, name in enumerate(names):
        for i in range(images):
            photo(folder / "images" / name / f"Bird_{i}.jpg", (60 * c, 60 * i % 256, 100))
            number = len(files) + 1
            files.append(f"{number} {name}/Bird_{i}.jpg\n")
            labels.append(f"{number} {c + 1}\n")
            split.append(f"{number} {int(i < images - 1)}\n")
    (folder / "images.txt").write_text("".join(files))
    (folder / "image_class_labels.txt").write_text("".join(labels))
    (folder / "train_test_split.txt").write_text("".join(split))
    (folder / "classes.txt").write_text("".join(f"{c + 1} {name}\n" for c, name in enumerate(names)))
    return folder


def flowers(root: Path) -> Path:
    """Eight images of classes 1 and 2: ids 1, 2 train; 3, 4 validation; 5..8 test."""
    from scipy.io import savemat

    folder = root / "flowers-102"
    for i in range(1, 9):
        photo(folder / "jpg" / f"image_{i:05d}.jpg", (30 * i, 0, 0))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 1, 2, 1, 1, 2, 2]], np.uint8)})
    ids = {"trnid": [[2, 1]], "valid": [[3, 4]], "tstid": [[5, 6, 7, 8]]}
    savemat(folder / "setid.mat", {name: np.array(value, np.uint16) for name, value in ids.items()})
    return folder


def cars(root: Path, test_in_devkit: bool = False) -> Path:
    from scipy.io import savemat

    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.empty((1, 2), object)
    names[0, :] = ["Zeta Coupe 2012", "Alfa Wagon 2007"]  # not in the order of the alphabet, on purpose
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    kind = [("bbox_x1", object), ("class", object), ("fname", object)]
    for part, rows, where in (
        ("cars_train", [(1, "00001.jpg"), (2, "00002.jpg"), (1, "00003.jpg")], "devkit/cars_train_annos.mat"),
        (
            "cars_test",
            [(2, "00001.jpg"), (1, "00002.jpg")],
            "devkit/" * test_in_devkit + "cars_test_annos_withlabels.mat",
        ),
    ):
        table = np.empty((1, len(rows)), kind)
        for i, (label, file) in enumerate(rows):
            table[0, i] = (np.uint16(5), np.uint8(label), file)
            photo(folder / part / file, (0, 40 * i, 0))
        savemat(folder / where, {"annotations": table})
    return folder


def caltech(root: Path, images: int = 33) -> Path:
    folder = root / "caltech-101" / "101_ObjectCategories"
    for label in ("accordion", "Faces", "Faces_easy", "yin_yang", "BACKGROUND_Google"):
        for i in range(images):
            photo(folder / label / f"image_{i + 1:04d}.jpg", (0, 0, 7 * i), (4, 4))
    (folder / "BACKGROUND_Google" / "tmp").write_text("as in the published archive")
    return folder


def imagenet(root: Path, classes: int = 5) -> Path:
    folder = root / "imagenet"
    for c in range(classes):
        for part, count in (("train", 3), ("val", 2)):
            for i in range(count):
                photo(folder / part / f"n{c:08d}" / f"n{c:08d}_{part}_{i}.JPEG", (40 * c, 0, 0))
    return folder


def tiny_imagenet(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    lines = []
    for c in range(2):
        wnid = f"n{c:08d}"
        for i in range(3):
            photo(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (90 * c, 0, 0), (64, 64))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("0 0 0 0")
        photo(folder / "val" / "images" / f"val_{c}.JPEG", (90 * c, 0, 0), (64, 64))
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    photo(folder / "test" / "images" / "test_0.JPEG")
    return folder


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def mnist(root: Path, folder: str = "MNIST/raw", compressed: bool = True) -> Path:
    where = root / folder
    where.mkdir(parents=True)
    rng = np.random.RandomState(0)
    for part, count in (("train", 6), ("t10k", 4)):
        for name, array in (
            (f"{part}-images-idx3-ubyte", rng.randint(0, 256, (count, 28, 28)).astype(np.uint8)),
            (f"{part}-labels-idx1-ubyte", (np.arange(count) % 2).astype(np.uint8)),
        ):
            content = idx(array)
            (where / (name + ".gz" * compressed)).write_bytes(gzip.compress(content) if compressed else content)
    return where
