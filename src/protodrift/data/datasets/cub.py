"""CUB-200-2011: `CUB_200_2011/images/<class>/*.jpg` and its four lists."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ...common.labels import Label
from ...errors import InputError
from .base import PhotoDataset, Photos, RemoteFile
from .listing import compared, read_table


class Cub200(PhotoDataset):
    """11,788 photos of birds, whole, no bounding boxes; the labels are as published: `001.Black_footed_Albatross`."""

    def scan(self, folder: Path, *, classes: int | None = None, seed: int | None = None) -> Photos:
        """Join the lists."""
        names = read_table(folder / "classes.txt")
        images = read_table(folder / "images.txt")
        classes_of = read_table(folder / "image_class_labels.txt")
        is_training = read_table(folder / "train_test_split.txt")
        for table, file in ((classes_of, "image_class_labels.txt"), (is_training, "train_test_split.txt")):
            if table.keys() != images.keys():
                odd = sorted(table.keys() ^ images.keys())[0]
                raise InputError(f"{folder}: images.txt and {file} disagree about image {odd}. A list is damaged.")
        parts: dict[str, list[tuple[str, Label]]] = {"1": [], "0": []}
        for image, path in images.items():
            label, part = classes_of[image], is_training[image]
            if label not in names:
                raise InputError(f"{folder}: image {image} has class {label}, which classes.txt does not name.")
            if part not in parts:
                raise InputError(f"{folder}/train_test_split.txt: image {image} has {part!r}, not 0 or 1.")
            parts[part].append((f"images/{path}", names[label]))
        photos = compared(folder, parts["1"], parts["0"], ["images"])
        for name, of in (*photos.train, *photos.test):
            # The folder says the class a second time: labels that were moved by a line are seen by nothing else.
            inside = PurePosixPath(name).parent.relative_to("images").as_posix()
            if inside != of:
                raise InputError(
                    f"{folder}: {name} is in the folder {inside!r}, but image_class_labels.txt and classes.txt give it "
                    f"the class {of!r}. A list is damaged: get CUB-200-2011 again from its publisher."
                )
        return photos


CUB200 = Cub200(
    name="cub200",
    title="CUB-200-2011",
    classes=200,
    train=5_994,
    test=5_794,
    folders=("CUB_200_2011",),
    needs=("images/", "images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"),
    size=256,
    files=(
        RemoteFile(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            bytes=1_150_585_339,
            checksum="md5:97eceeb196236b17998738112f37df78",  # CaltechDATA's record
        ),
    ),
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    terms="research use; images belong to their owners",
)
