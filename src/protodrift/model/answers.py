"""What a model says about images, as what JSON can hold: `protodrift predict --json` and the HTTP API."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.files import shown
from ..data.images import load_photo
from ..errors import InputError
from ..training.recognition import Recognized

if TYPE_CHECKING:
    from ..learner import IncrementalClassifier


def finite(value: float, digits: int = 6) -> float | None:
    """Return a rounded number; None for what JSON cannot hold: infinite or not a number."""
    return round(float(value), digits) if math.isfinite(value) else None


def predictions(
    names: Sequence[str], found: Recognized, start: int = 0, *, top: int, always_name: bool
) -> list[dict[str, Any]]:
    """Return one answer per image; row `start` of `found` is the first.

    `class` is None where an image is unknown; `best` is the likeliest class all the same.
    """
    result = []
    for row, name in enumerate(names, start):
        unknown = bool(found.unknown[row]) and not always_name
        ranked = [
            {"class": label, "confidence": finite(share), "distance": finite(distance)}
            for label, share, distance in found.top(row, top)
        ]
        result.append(
            {
                "file": name,
                "class": None if unknown else ranked[0]["class"],
                "best": ranked[0]["class"],
                "unknown": unknown,
                "novelty": finite(found.novelty[row]),
                "top": ranked,
            }
        )
    return result


def answers_of(
    clf: IncrementalClassifier, size: int, photos: Sequence[tuple[str | Path, Any]], *, top: int, always_name: bool
) -> list[dict[str, Any]]:
    """Return one answer per photo, in order; one that cannot be read gets the reason, and the others their answers.

    Args:
        clf: a classifier that has learned.
        size: the side of a photo as it sees it.
        photos: a name for each, and a path, its bytes, or an `InputError` that says why there is nothing.
        top, always_name: as for `predictions`.
    """
    names: list[str] = []
    pixels: list[np.ndarray] = []
    failed: dict[int, dict[str, Any]] = {}
    for position, (name, source) in enumerate(photos):
        try:
            if isinstance(source, InputError):
                raise source
            pixels.append(load_photo(source, size))
            names.append(str(name))
        except InputError as error:
            reason = str(error).removeprefix(shown(name)).removeprefix(":").lstrip()
            failed[position] = {"file": str(name), "error": reason.rstrip(".")}
    answered: list[dict[str, Any]] = []
    if pixels:
        answered = predictions(names, clf.recognize(np.stack(pixels)), top=top, always_name=always_name)
    read = iter(answered)
    return [failed[i] if i in failed else next(read) for i in range(len(photos))]


def embeddings(names: Sequence[str], z: np.ndarray) -> list[dict[str, Any]]:
    """Return one embedding per image, (N, D)."""
    return [{"file": name, "embedding": row.tolist()} for name, row in zip(names, z, strict=True)]
