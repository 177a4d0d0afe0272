"""Flowers-102: `flowers-102/jpg/image_00001.jpg` with `imagelabels.mat` and `setid.mat`."""

from __future__ import annotations

from pathlib import Path

from ...common.labels import Label
from ...errors import InputError
from .base import PhotoDataset, Photos, RemoteFile
from .listing import compared, read_mat, whole_numbers

_AT = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"


class Flowers102(PhotoDataset):
    """8,189 photos; the labels are the publisher's numbers, 1 to 102.

    Training images are the publisher's training and validation parts (20 per class), test images its test part.
    """

    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """Join `setid.mat` and `imagelabels.mat`."""
        labeled, split = folder / "imagelabels.mat", folder / "setid.mat"
        labels = whole_numbers(read_mat(labeled, "labels"), labeled, "labels")
        ids = {part: whole_numbers(read_mat(split, part), split, part) for part in ("trnid", "valid", "tstid")}
        odd = [i for part in ids.values() for i in part if not 1 <= i <= len(labels)]
        if odd:
            raise InputError(f"{folder}: setid.mat names image {odd[0]}, imagelabels.mat labels {len(labels)} images.")

        def named(numbers: list[int]) -> list[tuple[str, Label]]:
            return [(f"jpg/image_{i:05d}.jpg", labels[i - 1]) for i in sorted(numbers)]

        return compared(folder, named(ids["trnid"] + ids["valid"]), named(ids["tstid"]), ["jpg"])


FLOWERS102 = Flowers102(
    name="flowers102",
    title="Flowers-102",
    classes=102,
    train=2_040,
    test=6_149,
    folders=("flowers-102", "flowers102"),
    needs=("jpg/", "imagelabels.mat", "setid.mat"),
    size=256,
    files=(  # checksums: torchvision's; the publisher prints none
        RemoteFile(
            _AT + "102flowers.tgz",
            bytes=344_862_509,
            checksum="md5:52808999861908f626f3c1f4e79d11fa",
            into="flowers-102",
            gives="jpg",
        ),
        RemoteFile(
            _AT + "imagelabels.mat", checksum="md5:e0620be6f572b9609742df49c70aed4d", unpack=False, into="flowers-102"
        ),
        RemoteFile(
            _AT + "setid.mat", checksum="md5:a5357ecc9cb78c4bef273ce3793fc85c", unpack=False, into="flowers-102"
        ),
    ),
    page="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    terms="no license stated; cite Nilsback & Zisserman 2008",
)
