"""Photos as people keep them: a folder of class folders or a CSV of path,label, with whatever else lies among them.

Finding looks at names only; reading decodes one file after another, names what cannot be used and why, and goes on.
"""

from __future__ import annotations

import csv
import hashlib
import io
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..errors import InputError
from .arrays import InputSpec
from .examples import Examples
from .folder import image_files, scan_folder
from .images import fitted
from .spill import empty_images

SMALLEST_SIDE = 8
"""Pixels; what is smaller or thinner shows nothing."""


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
        hint: a likely mistake in the layout, or "".
    """

    name: str
    files: tuple[tuple[Path, str], ...]
    skipped: tuple[Skipped, ...]
    hint: str = ""

    @property
    def classes(self) -> dict[str, int]:
        """Images of each class, sorted by its name."""
        return dict(sorted(Counter(label for _, label in self.files).items()))

    def only(self, keep: Callable[[str], bool]) -> Found:
        """Return the files of some classes."""
        return Found(self.name, tuple(one for one in self.files if keep(one[1])), self.skipped, self.hint)


@dataclass(frozen=True)
class Photos:
    """Decoded images.

    Attributes:
        examples: (N, 3, size, size) uint8 with their labels.
        paths: N files.
        skipped: files that could not be used, and why.
        twins: pairs of files that show the same pixels under different classes.
        repeats: how many further files show the same pixels as another of their class.
    """

    examples: Examples
    paths: tuple[Path, ...]
    skipped: tuple[Skipped, ...]
    twins: tuple[tuple[Path, Path], ...] = ()
    repeats: int = 0

    @property
    def spec(self) -> InputSpec:
        """What the images look like: fixed by their size alone, so that every month's photos agree."""
        return photo_spec(self.examples.images.shape[2])


def photo_spec(size: int) -> InputSpec:
    """Return the spec of color photos of size x size."""
    return InputSpec((3, size, size), "uint8", 0.0, 255.0)


def find_photos(data: str | Path) -> Found:
    """List the images of a folder of class folders, or of a CSV with columns path and label; nothing is decoded.

    Raises:
        InputError: if there is none.
    """
    data = Path(data)
    if data.is_file() and data.suffix.lower() in (".csv", ".tsv"):
        return _listed(data)
    if data.is_file():
        raise InputError(f"{data} is a file. Give a folder with one sub-folder per class, or a .csv of path,label.")
    try:
        scan = scan_folder(data)
    except OSError as error:
        raise InputError(f"{data} cannot be read: {error.strerror or error}.") from None
    hint = ""
    deep = [path for path, label in scan.files if path.parent != scan.root / label]
    if len(deep) == len(scan.files):
        example = deep[0].relative_to(scan.root)
        hint = (
            f"all images lie one folder deeper than usual ({shown(example)}), and {example.parts[0]!r} was taken for a "
            f"class. If {example.parts[1]!r} is the class, give {shown(scan.root / example.parts[0])} instead."
        )
    ignored = tuple(Skipped(path, "not an image file by its name") for path in scan.ignored)
    return Found(data.resolve().name, scan.files, ignored, hint)


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


def load_photo(source: str | Path | bytes, size: int) -> np.ndarray:
    """Decode one photo, a file or its bytes, as (size, size, 3) uint8.

    Raises:
        InputError: naming the file and why it cannot be used.
    """
    name = "-" if isinstance(source, bytes) else shown(source)
    try:
        if not isinstance(source, bytes):
            _check_file(Path(source), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures and odd metadata; what is too large is refused
            with Image.open(_opened(source)) as image:
                if min(image.size) < SMALLEST_SIDE:
                    raise InputError(f"{name} is too small: {image.size[0]} x {image.size[1]} pixels.")
                return fitted(image, size)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file.") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(f"{name} cannot be read as an image ({_reason(error)}).") from None


def _check_file(path: Path, name: str) -> None:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):  # a pipe would make us wait for ever
        raise InputError(f"{name} is not a file.")
    if facts.st_size == 0:
        raise InputError(f"{name} is empty.")


def _opened(source: str | Path | bytes) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "not an image, or damaged" if "cannot identify image file" in text else text.split("\n")[0]


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
    images = empty_images(len(found.files), (3, size, size), ram=ram, folder=folder)
    used: list[tuple[Path, str]] = []
    skipped: list[Skipped] = []
    seen: dict[bytes, tuple[Path, str]] = {}
    twins: list[tuple[Path, Path]] = []
    repeats = 0
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
            elif other[1] != label:
                twins.append((other[0], path))
            else:
                repeats += 1
        if on_file is not None:
            on_file(number)
    if not used:
        why = f", for example {shown(skipped[0].path)}: {skipped[0].why}" if skipped else ""
        raise InputError(f"none of the {len(found.files)} images can be used{why}")
    examples = Examples(images[: len(used)], tuple(label for _, label in used))
    return Photos(examples, tuple(path for path, _ in used), tuple(skipped), tuple(twins), repeats)


def shown(path: str | Path) -> str:
    """Return a path as one line of text: control characters and broken encodings are written as escapes.

    >>> shown("a\\nb"), shown("Käuzchen 梟.jpg")
    ('a\\\\nb', 'Käuzchen 梟.jpg')
    """
    text = str(path)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


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
