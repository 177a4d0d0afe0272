"""What a model says about images, as what JSON can hold: `protodrift predict --json` and the HTTP API."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..training.recognition import Recognized


def finite(value: float, digits: int = 6) -> float | None:
    """Return a rounded number; None for what JSON cannot hold: infinite or not a number."""
    return round(float(value), digits) if math.isfinite(value) else None


def predictions(
    names: Sequence[str], found: Recognized, start: int = 0, *, top: int, always_name: bool
) -> list[dict[str, Any]]:
    """Return one answer per image; row `start` of `found` is the first."""
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
                "unknown": unknown,
                "novelty": finite(found.novelty[row]),
                "top": ranked,
            }
        )
    return result


def embeddings(names: Sequence[str], z: np.ndarray) -> list[dict[str, Any]]:
    """Return one embedding per image, (N, D)."""
    return [{"file": name, "embedding": row.tolist()} for name, row in zip(names, z, strict=True)]
