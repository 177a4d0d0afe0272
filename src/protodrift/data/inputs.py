"""Whatever a user calls X: arrays (`arrays.py`), paths of image files, or a PyTorch dataset of (image, label) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from .arrays import InputSpec, read_images
from .folder import read_image, to_rgb


def read_inputs(
    X: Any, y: Any, *, spec: InputSpec | None, channels: str, size: int
) -> tuple[torch.Tensor, Any, InputSpec]:
    """Return checked images, labels as they were given, and what the images look like.

    Args:
        X: what `read_images` takes; or N paths; or a dataset with `__len__` and `__getitem__` that gives (image, label)
            pairs, images as arrays, tensors or Pillow images.
        y: labels, or None where a dataset gives them, and where none are needed.
        spec: what the model's first task looked like, or None.
        channels: as for `read_images`.
        size: side of images read from files, in a first task.

    >>> class Pairs(torch.utils.data.Dataset):
    ...     def __len__(self): return 2
    ...     def __getitem__(self, i): return torch.full((1, 8, 8), i, dtype=torch.uint8), "ab"[i]
    >>> images, labels, _ = read_inputs(Pairs(), None, spec=None, channels="auto", size=8)
    >>> tuple(images.shape), labels
    ((2, 1, 8, 8), ['a', 'b'])
    """
    if isinstance(X, torch.utils.data.Dataset):
        if y is not None:
            raise InputError("a dataset of (image, label) pairs brings its own labels. Leave y away.")
        X, y = _pairs(X, spec, channels)
    else:
        paths = _paths(X)
        if paths is not None:
            if spec is not None and (not spec.is_image or spec.shape[0] != 3 or spec.scale != "uint8"):
                raise InputError(
                    f"this model was made for {spec}, not for image files. Give arrays like its first ones."
                )
            X = read_paths(paths, size if spec is None else spec.shape[1:])
            channels = "first"
    images, spec = read_images(X, spec=spec, channels=channels)
    return images, y, spec


def read_paths(paths: Sequence[Path], size: int | tuple[int, ...]) -> torch.Tensor:
    """Decode image files, (N, 3, H, W) uint8."""
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise InputError(f"this model was made for images of {height} x {width}; files are cropped to squares.")
    result = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)
    for i, path in enumerate(paths):
        result[i] = torch.from_numpy(read_image(path, height).copy()).permute(2, 0, 1)
    return result


def _paths(X: Any) -> list[Path] | None:
    """Return X as paths if it holds paths: a list, an array or a pandas series of them."""
    if isinstance(X, (str, Path)):
        raise InputError(f"X is one path, {str(X)!r}. Give a list: [{str(X)!r}].")
    if isinstance(X, torch.Tensor) or (isinstance(X, np.ndarray) and X.dtype.kind in "buifc"):
        return None
    dtypes = getattr(X, "dtypes", None)  # a frame's columns, or the one of a series
    if dtypes is not None and all(getattr(one, "kind", "O") in "buifc" for one in np.atleast_1d(dtypes)):
        return None  # numbers: as Python's objects they would take ten times the memory, just to be looked at
    values: Any = (
        X if isinstance(X, (list, tuple)) else np.asarray(X, dtype=object) if hasattr(X, "__array__") else None
    )
    if values is None or len(values) == 0:
        return None
    if getattr(values, "ndim", 1) == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if not all(isinstance(value, (str, Path)) for value in values):
        return None
    return [Path(value) for value in values]


def _pairs(dataset: Any, spec: InputSpec | None, channels: str) -> tuple[Any, list[Any]]:
    images, labels = [], []
    for i in range(len(dataset)):
        pair = dataset[i]
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise InputError(f"the dataset must give (image, label) pairs; item {i} is a {type(pair).__name__}.")
        image, label = pair
        if not isinstance(image, (np.ndarray, torch.Tensor)) and hasattr(image, "getbands"):
            gray = spec.shape[0] == 1 if spec is not None and spec.is_image else image.mode in ("1", "L")
            image = np.asarray(image.convert("L") if gray else to_rgb(image))
            if channels == "first" and image.ndim == 3:  # where a picture's own are is known
                image = image.transpose(2, 0, 1)
        images.append(torch.as_tensor(np.array(image) if not isinstance(image, torch.Tensor) else image))
        labels.append(label.item() if isinstance(label, (torch.Tensor, np.generic)) else label)
    if not images:
        raise InputError("got no images: the dataset is empty. Give at least one.")
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise InputError(f"the dataset gives images of different shapes, {one} and {other}. Resize them to one size.")
    return torch.stack(images), labels
