"""What the readers of image folders share: publishers' lists, MATLAB files, and a list compared with a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...common.labels import Label
from ...errors import InputError
from ..scan import check_case, image_files
from .base import Photos


def read_lines(path: Path, fields: int) -> list[list[str]]:
    """Read a list of lines; the last of `fields` parts may hold spaces.

    Raises:
        InputError: naming the line that has fewer parts.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no {path}. Get it again from its publisher.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            rows.append(line.split(None, fields - 1))
            if len(rows[-1]) < fields:
                raise InputError(f"{path}, line {number}: {line!r} has fewer than {fields} parts. The file is damaged.")
    return rows


def read_table(path: Path) -> dict[str, str]:
    """Read lines of `id value`; an id that comes twice is an error."""
    rows = read_lines(path, 2)
    table = {row[0]: row[1].strip() for row in rows}
    if len(table) != len(rows):
        raise InputError(f"{path} is damaged: it holds {len(rows)} lines, but only {len(table)} different ids.")
    return table


def read_mat(path: Path, key: str) -> Any:
    """Read one variable of a MATLAB file."""
    from scipy.io import loadmat

    try:
        return loadmat(str(path), squeeze_me=True, variable_names=[key])[key]
    except FileNotFoundError:
        raise InputError(f"there is no {path}. Get it again from its publisher.") from None
    except KeyError:
        raise InputError(f"{path} has no variable {key!r}: is it the right file?") from None
    except Exception as error:  # a damaged file makes the reader raise nearly anything
        raise InputError(f"{path} is damaged: it cannot be read as a MATLAB file ({error}). Get it again.") from None


def whole_numbers(values: Any, path: Path, what: str) -> list[int]:
    """Return a row of numbers of a MATLAB file, or one number, as a list.

    Raises:
        InputError: if it holds anything but whole numbers, be they stored as integers or as floating point.
    """
    numbers = np.atleast_1d(values)
    plain = numbers.ndim == 1 and numbers.dtype.kind in "uif"
    odd = numbers if not plain else numbers[~np.isfinite(numbers) | (numbers != np.floor(numbers))]
    if not plain or odd.size:
        got = f"{odd[0]}" if plain else f"{numbers.dtype.name} of shape {numbers.shape}"
        raise InputError(f"{path} is damaged: {what!r} must be whole numbers, but is or has {got}. Get it again.")
    return [int(number) for number in numbers.tolist()]


def compared(
    folder: Path,
    train: Sequence[tuple[str, Label]],
    test: Sequence[tuple[str, Label]],
    image_folders: Iterable[str],
) -> Photos:
    """Compare lists of images with what is in the folders that should hold them.

    Raises:
        InputError: if a list names a file outside of the folder, or one twice, or two classes or folders differ only
            in case.
    """
    listed = [name for name, _ in (*train, *test)]
    for name in listed:
        # A name from a file is never trusted as a path.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name or "\0" in name:
            raise InputError(f"{folder}: a list names {name!r}, which is not below it. The list is damaged.")
    twice, times = max(Counter(listed).items(), key=lambda row: row[1], default=("", 0))
    if times > 1:
        raise InputError(f"{folder}: the lists name {twice} twice. They are damaged.")
    check_case({str(label) for _, label in (*train, *test)}, folder)
    found, ignored = below(folder, image_folders)
    check_case(sorted({PurePosixPath(name).parent.as_posix() for name in (*listed, *found)}), folder)
    present, known = set(found), set(listed)
    return Photos(
        tuple(train),
        tuple(test),
        missing=tuple(name for name in listed if name not in present),
        extra=tuple(name for name in found if name not in known),
        ignored=tuple(ignored),
    )


def below(folder: Path, image_folders: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the images and the other files in some folders, as names relative to `folder`."""
    found: list[str] = []
    ignored: list[str] = []
    for name in image_folders:
        if not (folder / name).is_dir():
            raise InputError(f"{folder} has no folder {name}.")
        images, others = image_files(folder / name)
        for path in images:  # a link that leads nowhere, as of an archive that was not fetched, is no image
            (found if path.is_file() else ignored).append(path.relative_to(folder).as_posix())
        ignored += [path.relative_to(folder).as_posix() for path in others]
    return found, ignored
