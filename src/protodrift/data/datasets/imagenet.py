"""ImageNet-Subset (100 classes of an ImageNet folder) and Tiny-ImageNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...common.labels import Label
from ...errors import InputError
from ..scan import FolderScan, check_case, scan_folder
from .base import PhotoDataset, Photos, RemoteFile, chosen_classes
from .listing import compared, read_lines

SUBSET = 100  # Sec. 5: "100 randomly chosen classes from ImageNet"; which ones is not printed


class ImageNetSubset(PhotoDataset):
    """100 classes of ImageNet: the first ones sorted, or by `seed`; the labels are the WordNet ids.

    The folder is the usual one, `train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`, of all 1,000 classes or fewer. ImageNet
    has 732 to 1,300 training images and 50 test images per class, so the number of training images depends on the
    classes (the paper's: 129,156 with its test images).
    """

    def published(self, classes: int | None = None) -> tuple[int, int | None, int]:
        """Scale with the number of classes."""
        count = classes or SUBSET
        return count, None, 50 * count

    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """Choose the classes before anything is listed."""
        known = [path.name for path in (folder / "train").iterdir() if path.is_dir() and path.name[0] != "."]
        count = min(SUBSET, len(known)) if classes is None else classes
        wanted = {str(label) for label in chosen_classes(known, count, seed)} if known else None
        train, test = (scan_folder(folder / part, classes=wanted, label_by="top") for part in ("train", "val"))
        return Photos(
            tuple(_named(train, folder)),
            tuple(_named(test, folder)),
            ignored=tuple(path.relative_to(folder).as_posix() for path in (*train.ignored, *test.ignored)),
        )


class TinyImageNet(PhotoDataset):
    """110,000 images of 64 x 64; the labels are the WordNet ids, the test images its validation part.

    The publisher's own test part has no labels and is not read.
    """

    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """Read the training folders and the annotations of the validation images."""
        train = scan_folder(folder / "train", label_by="top")
        rows = read_lines(folder / "val" / "val_annotations.txt", 6)
        test: list[tuple[str, Label]] = [(f"val/images/{name}", wnid) for name, wnid, *_ in rows]
        for name, _ in test:
            if name.count("/") != 2 or name.endswith(".."):
                raise InputError(f"{folder}/val/val_annotations.txt names {name!r}, which is not a file of val/images.")
        check_case(sorted({*train.classes, *(str(wnid) for _, wnid in test)}), folder)
        # Only the test images have a list to compare; the training folders were just listed themselves.
        photos = compared(folder, [], test, ["val/images"])
        return replace(
            photos,
            train=tuple(_named(train, folder)),
            ignored=(*(path.relative_to(folder).as_posix() for path in train.ignored), *photos.ignored),
        )


def _named(scan: FolderScan, folder: Path) -> list[tuple[str, Label]]:
    return [(path.relative_to(folder).as_posix(), label) for path, label in scan.files]


IMAGENET_SUBSET = ImageNetSubset(
    name="imagenet-subset",
    title="ImageNet-Subset",
    classes=SUBSET,
    train=None,
    test=50 * SUBSET,
    train_range=(732, 1_300),
    folders=("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
    needs=("train/", "val/"),
    size=256,
    page="https://www.image-net.org/download.php",
    note="732 to 1,300 training images per class; the paper's 100 classes have 129,156 images, test images included",
    terms="login; non-commercial research and education",
)

TINY_IMAGENET = TinyImageNet(
    name="tiny-imagenet",
    title="Tiny-ImageNet",
    classes=200,
    train=100_000,
    test=10_000,
    balanced=True,
    folders=("tiny-imagenet-200",),
    needs=("train/", "val/images/", "val/val_annotations.txt"),
    size=64,
    files=(
        RemoteFile(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            bytes=248_100_043,
            checksum="md5:90528d7ca1a48142e341f4ef8d21d0de",  # printed by many users, not by the publisher
        ),
    ),
    page="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    terms="as ImageNet: non-commercial research",
)
