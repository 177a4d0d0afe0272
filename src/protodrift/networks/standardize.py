"""By what inputs are standardized: the option `standardize` of classifiers and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from ..common.config import number
from ..data.arrays import InputSpec
from ..errors import InputError, did_you_mean
from .embedder import Standardize
from .weights import ORIGINS, pixel_statistics

Values = float | tuple[float, ...]
Standardization = Literal["auto", "imagenet", "none"] | tuple[Values, Values]
"""What `standardize` may be.

- "auto": a network by name sees (x - mean) / std with the pixel statistics that its weights were trained with, or else
  with those of the first task's inputs. So does a module of the user's that is given uint8 images; its float inputs are
  left alone: whoever made them floats has scaled them.
- "imagenet": the statistics of ImageNet's pixels, in the scale of the images (0..255 or 0..1).
- "none": inputs are left alone; uint8 becomes float 0..255.
- (mean, std): in the units of the inputs; a number each, or one per channel (images) or feature (vectors).
"""

_WORDS = ("auto", "imagenet", "none")


def as_tuples(value: Any) -> Any:
    """Return (mean, std) with tuples for lists, as JSON has them; a word as it is."""
    return tuple(as_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


def standardization(value: Any) -> str | None:
    """Return what is wrong with a value of `standardize`, or None."""
    if isinstance(value, str):
        return None if value in _WORDS else f"is unknown. {did_you_mean(value, _WORDS)}, or (mean, std)"
    words = f"must be {', '.join(map(repr, _WORDS))} or (mean, std): numbers, or one per channel"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return words
    mean, std = (part if isinstance(part, (tuple, list)) else (part,) for part in value)
    if not mean or not std or any(number()(one) for one in (*mean, *std)):
        return words
    return f"has a std that is not above 0; {words}" if min(std) <= 0 else None


def choose_statistics(
    into: Standardize,
    standardize: Standardization,
    spec: InputSpec,
    *,
    module: str,
    name: str,
    weights: str | Path | None,
) -> None:
    """Fix the statistics of a network where they do not follow from the first task's inputs.

    Args:
        into: the network's.
        standardize: what was asked for.
        spec: what the inputs look like.
        module: the name of the user's module, or "" for a backbone by name.
        name, weights: of the backbone.

    Raises:
        InputError: if the statistics do not fit the inputs.
    """
    size = spec.shape[0]
    if standardize == "imagenet":
        if not spec.is_image or size != 3 or spec.scale == "free":
            raise InputError(
                f"standardize='imagenet' needs color images as uint8, 0..255 or 0..1, and this network is for {spec}. "
                "Use 'none', or (mean, std) of your own."
            )
        one = 255.0 if spec.scale == "unit" else 1.0
        origin = ORIGINS["resnet18"]
        into.fix(_values(origin.mean, size) / one, _values(origin.std, size) / one)
    elif standardize == "none":
        into.fix(_values(0.0, size), _values(1.0, size))
    elif standardize != "auto":
        mean, std = (_values(part, size) for part in standardize)
        into.fix(mean, std)
    elif module and spec.scale != "uint8":
        note = (
            f"float inputs go to {module} as they are (standardize='auto'); 'imagenet' or (mean, std) would "
            "standardize them."
        )
        into.fix(_values(0.0, size), _values(1.0, size), note)
    else:
        pixels = pixel_statistics(name, weights, spec)
        if pixels is not None:
            into.fix(*pixels)


def _values(given: Values, size: int) -> torch.Tensor:
    """Return one number per channel or feature, (size,)."""
    values = torch.tensor(given, dtype=torch.float64).flatten()
    if len(values) not in (1, size):
        raise InputError(
            f"standardize has {len(values)} values for inputs with {size} channels or features: give {size}."
        )
    return values.expand(size)
