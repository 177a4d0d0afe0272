"""Which files of a folder are images, and of which class. Looks at names only; imports no torch.

Where folders lie in folders (`photos/2026-01/owl/1.jpg`), the user says which name is the class: nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..common.files import shown
from ..common.labels import wrong_with_label
from ..errors import InputError
from .images import endings

LabelBy = Literal["leaf", "top", "path"]
"""Which name is the class where folders lie in folders: the innermost one, the outermost one, or all of them."""


@dataclass(frozen=True)
class FolderScan:
    """What was found in a folder: image files with their class, and what was passed over.

    Attributes:
        root: the folder.
        files: image files with their class.
        ignored: all other files.
        note: which classes were put together from several folders of the same name, or "".
    """

    root: Path
    files: tuple[tuple[Path, str], ...]
    ignored: tuple[Path, ...]
    note: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted."""
        return tuple(sorted({label for _, label in self.files}))


def scan_folder(
    root: str | Path, *, classes: Collection[str] | None = None, label_by: LabelBy | None = None
) -> FolderScan:
    """List the images of a folder of class folders; nothing is decoded.

    The name of a class folder is the label. Hidden files and folders, and files that cannot be read by their ending,
    are ignored and listed.

    Args:
        root: the folder.
        classes: list only these folders of it.
        label_by: which name is the label where there are folders in folders; None: there must be none.

    Raises:
        InputError: if the folder is missing, holds no class folder, no image, folders in folders without a `label_by`,
            or two classes whose names differ only in case.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder. Give a folder with one sub-folder per class.")
    entries = _entries(root)
    folders = [p for p in entries if p.is_dir() and not p.name.startswith(".")]
    if not folders:
        raise InputError(
            f"{root} has no class folders. Put the images of each class in a sub-folder, e.g. {root}/owl/1.jpg."
        )
    check_case([folder.name for folder in folders], root)
    for folder in folders:
        check_name(folder.name, f"the folder {shown(folder)}")
    images: list[Path] = []
    ignored = [p for p in entries if p.is_file()]
    for folder in folders:
        if classes is None or folder.name in classes:
            found, others = image_files(folder)
            images += found
            ignored += others
    if not images:
        raise InputError(f"{root} has class folders but no image that can be read ({len(ignored)} other files).")
    if label_by is None and any(path.parent.parent != root for path in images):
        raise InputError(_readings(root, images))
    files = [(path, _label(root, path, label_by or "top")) for path in images]
    note = ""
    if label_by in ("leaf", "path"):
        labels = sorted({label for _, label in files})
        check_case(labels, root)
        for label in labels:
            check_name(label, f"a folder in {shown(root)}")
        note = _put_together(root, files)
    return FolderScan(root, tuple(files), tuple(ignored), note)


def _label(root: Path, path: Path, label_by: LabelBy) -> str:
    names = path.relative_to(root).parts[:-1]
    return {"leaf": names[-1], "top": names[0], "path": "/".join(names)}[label_by]


def _readings(root: Path, images: Sequence[Path]) -> str:
    """Return what each `label_by` would make of folders in folders, and how to choose."""
    deep = next(path for path in images if path.parent.parent != root)
    lines = []
    for label_by in get_args(LabelBy):
        counts = Counter(_label(root, path, label_by) for path in images)
        names = ", ".join(f"{shown(label)} ({count})" for label, count in sorted(counts.items())[:4])
        more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
        lines.append(f"\n  --classes {label_by:4}  {len(counts)} class{'es' * (len(counts) > 1)}: {names}{more}")
    return (
        f"{root} has folders in folders ({shown(deep.relative_to(root))}): which name is the class? Add one of "
        f"(images in brackets; in Python label_by=...):{''.join(lines)}"
    )


def _put_together(root: Path, files: Sequence[tuple[Path, str]]) -> str:
    folders: dict[str, set[str]] = {}
    for path, label in files:
        folders.setdefault(label, set()).add(shown(path.parent.relative_to(root)))
    several = {label: sorted(places) for label, places in folders.items() if len(places) > 1}
    if not several:
        return ""
    label, places = next(iter(several.items()))
    more = f", and so {len(several) - 1} more" if len(several) > 1 else ""
    count = f" and {len(places) - 3} more folders" if len(places) > 3 else ""
    return f"{shown(label)} is one class from {', '.join(places[:3])}{count}{more}"


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """List the files of a folder and its sub-folders, sorted: images by their ending, and all others.

    Hidden files count as others. Nothing is decoded.
    """
    known = endings()
    images: list[Path] = []
    others: list[Path] = []
    for path in sorted(_walk(folder)):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        (images if not hidden and path.suffix.lower() in known else others).append(path)
    return images, others


def check_case(classes: Iterable[str], where: Path) -> None:
    """Raise an `InputError` if two names differ only in case: on many disks they would be one folder."""
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InputError(
                f"{where} has classes {other!r} and {name!r}, which differ only in case: on another disk they would be "
                "one folder. Rename one, or put their images together."
            )


def check_name(name: str, where: str) -> None:
    """Raise an `InputError` if a class cannot have this name."""
    if wrong := wrong_with_label(name):
        raise InputError(f"{where} would be a class of the name {name!r}, which {wrong}. Rename it.")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InputError(
            f"{folder} cannot be listed ({error.strerror}). Give yourself the right to read it, or leave it out."
        ) from None


def _walk(folder: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    here = folder.resolve()
    if here in seen:  # a link that leads back up
        return
    for path in _entries(folder):
        if path.is_dir():
            yield from _walk(path, seen | {here})
        else:
            yield path
