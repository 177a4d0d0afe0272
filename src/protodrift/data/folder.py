"""Folders of class folders, `photos/owl/1.jpg`, `photos/emu/2.png`, and CSV files of path,label.

`scan.py` says which files are images, and of which class. Here they are read: by `load_folder` as a dataset for
experiments, where a damaged image is an error, and by `read_photos` as what people collect: it names what cannot be
used and why, and goes on.
"""

from __future__ import annotations

import csv
import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.files import shown
from ..errors import InputError, SkippedImagesWarning
from .images import Fit, load_photo, read_image
from .scan import LabelBy, check_name, image_files, scan_folder

if TYPE_CHECKING:
    from .arrays import InputSpec
    from .examples import Dataset, Examples


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
    label_by: LabelBy | None = None,
    ram: int | None = None,
    fit: Fit = "center",
    skip_bad_images: bool = False,
) -> Dataset:
    """Read a folder of class folders.

    Decoded images that do not fit in RAM are mapped (see `spill.py`) and read batch by batch; results are the same.

    Args:
        root: the folder.
        size: images become size x size.
        test: a second folder of the same classes, as test images.
        classes: read only these classes.
        label_by: which name is the class where there are folders in folders, as for `scan_folder`.
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
        scan = scan_folder(folder, label_by=label_by)
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


# -- photos as people keep them, with whatever else lies among them ---------------------------------------------------


@dataclass(frozen=True)
class Skipped:
    """A file that was not used, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Found:
    """What was found, by names alone.

    Attributes:
        name: of the folder or CSV, in a word.
        files: paths of images with their label.
        skipped: files that cannot be images, or are listed and not there.
        note: which classes were put together from several folders, or "".
    """

    name: str
    files: tuple[tuple[Path, str], ...]
    skipped: tuple[Skipped, ...]
    note: str = ""

    @property
    def classes(self) -> dict[str, int]:
        """Images of each class, sorted by its name."""
        return dict(sorted(Counter(label for _, label in self.files).items()))

    def only(self, keep: Callable[[str], bool]) -> Found:
        """Return the files of some classes."""
        return Found(self.name, tuple(one for one in self.files if keep(one[1])), self.skipped, self.note)


@dataclass(frozen=True)
class Photos:
    """Decoded images.

    Attributes:
        examples: (N, 3, size, size) uint8 with their labels.
        paths: N files.
        skipped: files that could not be used, and why.
        twins: pairs of files that show the same pixels under different classes.
        repeats: pairs of files that show the same pixels under one class.
    """

    examples: Examples
    paths: tuple[Path, ...]
    skipped: tuple[Skipped, ...]
    twins: tuple[tuple[Path, Path], ...] = ()
    repeats: tuple[tuple[Path, Path], ...] = ()

    @property
    def spec(self) -> InputSpec:
        """What the images look like: fixed by their size alone, so that every month's photos agree."""
        return photo_spec(self.examples.images.shape[2])


def photo_spec(size: int) -> InputSpec:
    """Return the spec of color photos of size x size."""
    from .arrays import InputSpec

    return InputSpec((3, size, size), "uint8", 0.0, 255.0)


def find_photos(data: str | Path, *, label_by: LabelBy | None = None) -> Found:
    """List the images of a folder of class folders, or of a CSV with columns path and label; nothing is decoded.

    Args:
        data: the folder or CSV.
        label_by: which name is the class where there are folders in folders, as for `scan_folder`.

    Raises:
        InputError: if there is none, or `scan_folder` refuses the folder.
    """
    data = Path(data)
    if data.is_file() and data.suffix.lower() in (".csv", ".tsv"):
        if label_by is not None:
            raise InputError(f"{data} lists its labels: --classes (label_by) is for folders in folders. Drop it.")
        return _listed(data)
    if data.is_file():
        raise InputError(f"{data} is a file. Give a folder with one sub-folder per class, or a .csv of path,label.")
    try:
        scan = scan_folder(data, label_by=label_by)
    except OSError as error:
        raise InputError(f"{data} cannot be read: {error.strerror or error}.") from None
    ignored = tuple(Skipped(path, "not an image file by its name") for path in scan.ignored)
    return Found(data.resolve().name, scan.files, ignored, scan.note)


def find_images(places: Iterable[str | Path]) -> Iterator[Path]:
    """Yield image files: those named, and those in folders that are named, however deep."""
    for place in map(Path, places):
        if place.is_dir():
            images, _ = image_files(place)
            if not images:
                raise InputError(f"{shown(place)} holds no image.")
            yield from images
        else:
            yield place


def _listed(table: Path) -> Found:
    files: list[tuple[Path, str]] = []
    seen: set[tuple[Path, str]] = set()
    skipped: list[Skipped] = []
    try:
        text = table.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{table} cannot be read as a CSV file: {error}.") from None
    for number, row in _rows(table, text):
        if not row or not any(cell.strip() for cell in row):
            continue
        if number == 1 and [cell.strip().lower() for cell in row[:2]] in (["path", "label"], ["file", "label"]):
            continue
        if len(row) < 2 or not row[0].strip() or not row[1].strip():
            raise InputError(f"{table}, line {number}: a path and a label are needed, got {','.join(row)!r}.")
        check_name(row[1], f"{table}, line {number}")
        path = Path(row[0].strip())
        path = path if path.is_absolute() else table.parent / path
        one = (path, row[1].strip())
        if not path.exists():
            skipped.append(Skipped(path, "there is no such file"))
        elif one in seen:  # a photo is one example, however often it is listed; under two labels it is a twin
            skipped.append(Skipped(path, "listed before with the same label"))
        else:
            seen.add(one)
            files.append(one)
    if not files:
        raise InputError(
            f"{table} lists no image that is there ({len(skipped)} are missing). Paths are relative to it."
        )
    return Found(table.stem, tuple(files), tuple(skipped))


def _rows(table: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV, each with the line that it begins in."""
    delimiter = "\t" if table.suffix.lower() == ".tsv" else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{table}, line {line}: not a row of a CSV file ({error} in line {reader.line_num}). A quote at the start "
            "of a cell must be closed at its end."
        ) from None


def read_photos(
    found: Found,
    size: int,
    on_file: Callable[[int], None] | None = None,
    *,
    ram: int | None = None,
    folder: str | Path | None = None,
) -> Photos:
    """Decode everything that was found; what cannot be used is named and passed over.

    Args:
        found: from `find_photos`.
        size: side of the decoded squares.
        on_file: called with the number of files done.
        ram: bytes of decoded photos held in memory; None: `ram_budget()`. More of them are mapped (see `spill.py`)
            and read batch by batch.
        folder: where that file is; None: the user's cache directory.

    Raises:
        InputError: if nothing can be used, or there is no disk space.
    """
    import torch

    from .examples import Examples
    from .spill import empty_images

    images = empty_images(len(found.files), (3, size, size), ram=ram, folder=folder)
    used: list[tuple[Path, str]] = []
    skipped: list[Skipped] = []
    seen: dict[bytes, tuple[Path, str]] = {}
    twins: list[tuple[Path, Path]] = []
    repeats: list[tuple[Path, Path]] = []
    for number, (path, label) in enumerate(found.files, 1):
        try:
            pixels = load_photo(path, size)
        except InputError as error:
            skipped.append(Skipped(path, str(error).replace(f"{shown(path)} ", "").replace(f"{shown(path)}: ", "")))
        else:
            images[len(used)] = torch.from_numpy(pixels.transpose(2, 0, 1))
            used.append((path, label))
            digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
            other = seen.get(digest)
            if other is None:
                seen[digest] = (path, label)
            else:
                (repeats if other[1] == label else twins).append((other[0], path))
        if on_file is not None:
            on_file(number)
    if not used:
        why = f", for example {shown(skipped[0].path)}: {skipped[0].why}" if skipped else ""
        raise InputError(f"none of the {len(found.files)} images can be used{why}")
    examples = Examples(images[: len(used)], tuple(label for _, label in used))
    return Photos(examples, tuple(path for path, _ in used), tuple(skipped), tuple(twins), tuple(repeats))


def summary_of(skipped: Iterable[Skipped], most: int = 5) -> list[str]:
    """Return lines that count what was passed over by reason, and name a few files of each."""
    by_reason: dict[str, list[Path]] = {}
    for one in skipped:
        by_reason.setdefault(one.why.rstrip("."), []).append(one.path)
    lines = []
    for why, paths in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        names = ", ".join(shown(path.name) for path in paths[:most])
        more = f" and {len(paths) - most} more" if len(paths) > most else ""
        lines.append(f"{len(paths)} x {why}: {names}{more}")
    return lines


def same_pictures(photos: Photos, most: int = 5) -> list[str]:
    """Return lines that name files with the same pixels: notes of one class, warnings of two."""
    lines = []
    for pairs, start in (
        (photos.repeats, "note: the same picture twice"),
        (photos.twins, "warning: the same picture under two classes"),
    ):
        lines += [f"{start}: {shown(one)} and {shown(other)}" for one, other in pairs[:most]]
        lines += [f"{start}: {len(pairs) - most} more"] * (len(pairs) > most)
    return lines
