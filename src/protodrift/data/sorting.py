"""Photos into folders by class: copied or moved, and never over another file. Imports no torch."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..common.labels import Label
from ..errors import InputError

UNKNOWN = "unknown"
"""The folder of photos that are of none of the classes; with a _ before it if a class has that name."""


class Sorter:
    """Puts photos into `root/<class>/`, and those that are unknown into a folder of their own.

    A label with slashes is a folder in a folder, as `learn --classes path` makes them. Whatever a label is, its folder
    lies below `root`.

    Args:
        root: made when the first photo is put there.
        labels: all classes of the model.
        move: move photos instead of copying them.
    """

    def __init__(self, root: str | Path, labels: Iterable[Label], *, move: bool = False) -> None:
        self.root, self.move = Path(root), move
        names = {str(label).casefold() for label in labels}
        self.unknown = UNKNOWN
        while self.unknown in names:
            self.unknown = f"_{self.unknown}"

    def check(self, places: Iterable[str | Path]) -> None:
        """Refuse a root inside a folder whose photos are sorted: the next time they would be found there again.

        Raises:
            InputError: if it is.
        """
        root = self.root.resolve()
        for place in map(Path, places):
            if place.is_dir() and (root == place.resolve() or place.resolve() in root.parents):
                raise InputError(
                    f"{self.root} lies in {place}, whose photos are to be sorted: they would be found there again. "
                    "Choose a folder outside of it."
                )
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root} is a file. Give a folder, new or not.")

    def folder(self, label: Label | None) -> Path:
        """Return where photos of a class go; None: those that are unknown."""
        if label is None:
            return self.root / self.unknown
        parts = [_safe(part) for part in str(label).split("/")]
        return self.root.joinpath(*parts)

    def put(self, photo: Path, label: Label | None) -> Path:
        """Copy or move a photo to its folder, and return where it is now.

        A photo that is there already, byte for byte, is not copied again; another file of the same name stays, and
        the photo gets a number: `a (2).jpg`.

        Raises:
            OSError: if it cannot be copied. There is nothing half-copied then, and the photo is where it was.
        """
        folder = self.folder(label)
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            name = photo.name if number == 1 else f"{photo.stem} ({number}){photo.suffix}"
            target = folder / name
            if os.path.lexists(target):
                if not (target.is_file() and filecmp.cmp(photo, target, shallow=False)):
                    number += 1
                    continue
                if self.move and not target.samefile(photo):
                    photo.unlink()
                return target
            with contextlib.suppress(FileExistsError):  # somebody was faster: look again
                _place(photo, target, move=self.move)
                return target


def _place(photo: Path, target: Path, *, move: bool) -> None:
    """Copy or move a file to a name that is free; it is there whole or not at all.

    Raises:
        FileExistsError: if it is not free any more.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        shutil.copy2(photo, draft)  # the content, where the photo is a link
        try:
            os.link(draft, target)  # fails where a rename would replace
        except FileExistsError:
            raise
        except OSError:  # a disk without hard links
            if os.path.lexists(target):
                raise FileExistsError(target) from None
            os.rename(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    if move:
        photo.unlink()


def _safe(part: str) -> str:
    r"""Return one part of a label as the name of a folder.

    >>> _safe("Snowy Owl"), _safe(".."), _safe("a\\b"), _safe("")
    ('Snowy Owl', '__', 'a_b', '_')
    """
    kept = "".join("_" if c in '\\\0:*?"<>|' or not c.isprintable() else c for c in part).strip()
    return kept.replace(".", "_") if not kept.strip(".") and kept else kept or "_"
