"""A folder of class folders: `photos/owl/1.jpg`, `photos/owl/2.png`, `photos/emu/...`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ..errors import InputError, SkippedImagesWarning
from .images import read_image as read_image
from .images import to_rgb as to_rgb

if TYPE_CHECKING:
    from .examples import Dataset


@dataclass(frozen=True)
class FolderScan:
    """What was found in a folder: image files with their class, and what was passed over."""

    root: Path
    files: tuple[tuple[Path, str], ...]
    ignored: tuple[Path, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted."""
        return tuple(sorted({label for _, label in self.files}))


def scan_folder(root: str | Path, *, classes: Collection[str] | None = None) -> FolderScan:
    """List the images of a folder of class folders (or of some of them); nothing is decoded.

    The name of a class folder is the label. Sub-folders of a class folder belong to it. Hidden files and folders, and
    files that Pillow cannot read by their ending, are ignored and listed.

    Raises:
        InputError: if the folder is missing, holds no class folder, no image, or two class folders whose names differ
            only in case.
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
    files: list[tuple[Path, str]] = []
    ignored = [p for p in entries if p.is_file()]
    for folder in folders:
        if classes is not None and folder.name not in classes:
            continue
        images, others = image_files(folder)
        files += [(path, folder.name) for path in images]
        ignored += others
    if not files:
        raise InputError(f"{root} has class folders but no image that Pillow reads ({len(ignored)} other files).")
    return FolderScan(root, tuple(files), tuple(ignored))


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """List the files of a folder and its sub-folders, sorted: images by their ending, and all others.

    Hidden files count as others. Nothing is decoded.
    """
    endings = _endings()
    images: list[Path] = []
    others: list[Path] = []
    for path in sorted(_walk(folder)):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        (images if not hidden and path.suffix.lower() in endings else others).append(path)
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


HOW_TO_SKIP = "Or leave out what is damaged: --skip-bad-images (skip_bad_images=True)."


def warn_of_skipped(what: str, skipped: Sequence[str]) -> None:
    """Warn of images that were left out, naming the first ten."""
    shown = "".join(f"\n  {line}" for line in skipped[:10])
    more = f"\n  and {len(skipped) - 10} more" * (len(skipped) > 10)
    images = f"{len(skipped)} damaged or missing image{'s were' if len(skipped) > 1 else ' was'} left out"
    warnings.warn(f"{what}: {images}:{shown}{more}", SkippedImagesWarning, stacklevel=3)


def load_folder(
    root: str | Path,
    size: int = 64,
    *,
    test: str | Path | None = None,
    classes: Sequence[str] | None = None,
    ram: int | None = None,
    fit: str = "center",
    skip_bad_images: bool = False,
) -> Dataset:
    """Read a folder of class folders.

    Decoded images that do not fit in RAM are mapped (see `spill.py`) and read batch by batch; results are the same.

    Args:
        root: the folder.
        size: images become size x size.
        test: a second folder of the same classes, as test images.
        classes: read only these class folders.
        ram: bytes of decoded images held in RAM; None: `ram_budget()`.
        fit: "center" resizes the short side and crops the center, "squash" resizes both sides.
        skip_bad_images: leave out images that cannot be read, with a warning; the dataset's `skipped` lists them.

    Returns:
        A `Dataset` whose labels are the names of the class folders.
    """
    import torch

    from .arrays import InputSpec
    from .examples import Dataset, Examples
    from .spill import empty_images

    parts, low, high = [], 255, 0
    skipped: list[str] = []
    for folder in (root, test):
        if folder is None:
            continue
        scan = scan_folder(folder)
        wanted = set(scan.classes if classes is None else classes)
        if wanted - set(scan.classes):
            raise InputError(f"{folder} has no class folder {sorted(wanted - set(scan.classes))[0]!r}.")
        picked = [(path, label) for path, label in scan.files if label in wanted]
        images = empty_images(len(picked), (3, size, size), ram=ram)
        labels: list[str] = []
        for path, label in picked:
            try:
                pixels = read_image(path, size, fit)
            except InputError as error:
                if not skip_bad_images:
                    raise InputError(f"{error} {HOW_TO_SKIP}") from None
                skipped.append(str(error))
                continue
            images[len(labels)] = torch.from_numpy(pixels.transpose(2, 0, 1))
            labels.append(label)
            if folder is root:  # the spec is that of the training images
                low, high = min(low, int(pixels.min())), max(high, int(pixels.max()))
        if not labels:
            raise InputError(f"{folder} holds no image that can be read: {skipped[-1]}")
        parts.append(Examples(images[: len(labels)], tuple(labels)))
    if skipped:
        warn_of_skipped(Path(root).name, skipped)
    spec = InputSpec((3, size, size), "uint8", float(low), float(high))
    rest = parts[1] if test is not None else None
    return Dataset.of_examples(parts[0], rest, spec=spec, name=Path(root).name, skipped=skipped)


def _endings() -> set[str]:
    """Return the endings of what Pillow can decode: not PDF, which it only writes, nor kinds it only recognizes."""
    only_recognized = {"BUFR", "GRIB", "HDF5", "MPEG"}
    known = Image.registered_extensions().items()
    return {ending for ending, kind in known if kind in Image.OPEN and kind not in only_recognized}


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
