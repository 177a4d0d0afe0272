"""Data as a program holds it: arrays, PyTorch datasets, Hugging Face datasets; made one `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..errors import InputError
from .arrays import Channels, read_inputs
from .examples import Dataset
from .images import fitted, to_rgb

_TRAIN, _TEST = ("train", "training"), ("test", "validation", "valid", "val")


def dataset_of(data: Any, *, size: int | None = None, channels: Channels = "auto", name: str = "arrays") -> Dataset:
    """Return given data as a `Dataset`; without test images where none are given.

    Args:
        data: a `Dataset`; (X, y) or (X, y, X_test, y_test); a PyTorch dataset of (image, label) pairs or a Hugging Face
            `Dataset` with a column of images and one of labels; a pair (train, test) of these; or a mapping with
            "train" and "test", such as a `DatasetDict`.
        size: side to which pictures of a Hugging Face dataset are resized and cut; None: they have one size already.
        channels: where the channels of arrays are, as for `read_images`.
        name: shown in reports.

    Raises:
        InputError: saying what was got and what is accepted.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping):
        train, test = _named(data, _TRAIN), _named(data, _TEST)
        if train is None:
            raise InputError(f"the data has the parts {list(data)}, and none of them is 'train'.")
        parts = [train, test]
    elif isinstance(data, tuple) and len(data) == 2 and all(map(_is_set, data)):
        parts = list(data)
    elif _is_set(data):
        parts = [data, None]
    elif isinstance(data, (tuple, list)) and len(data) in (2, 4):
        X, y, X_test, y_test = (*data, None, None)[:4]
        return Dataset(X, y, X_test, y_test, name=name, channels=channels)
    else:
        raise InputError(
            f"data is a {type(data).__name__}. Give (X, y) or (X, y, X_test, y_test), a PyTorch or Hugging Face "
            "dataset, a pair of them (train, test), the name of a dataset, or a folder."
        )
    (X, y), *tests = [_pair(part, size, channels) for part in parts if part is not None]
    X_test, y_test = tests[0] if tests else (None, None)
    return Dataset(X, y, X_test, y_test, name=name, channels="first" if X.ndim == 4 else channels)


def _is_set(value: Any) -> bool:
    return isinstance(value, torch.utils.data.Dataset) or _is_table(value)


def _is_table(value: Any) -> bool:
    """Whether something looks like a Hugging Face `Dataset`: rows that are mappings, columns with features."""
    return all(hasattr(value, name) for name in ("features", "column_names", "__getitem__", "__len__"))


def _named(data: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((data[name] for name in names if name in data), None)


def _pair(part: Any, size: int | None, channels: Channels) -> tuple[torch.Tensor, Any]:
    """Return the inputs of one set as a tensor in the inner form, and its labels."""
    if _is_table(part):
        return _columns(part, size)
    images, labels, _ = read_inputs(part, None, spec=None, channels=channels, size=size or 64)
    return images, labels


def _columns(table: Any, size: int | None) -> tuple[torch.Tensor, list[Any]]:
    """Return images, (N, C, H, W), or vectors, (N, D), and labels of a Hugging Face dataset."""
    features = table.features
    image = _column(features, "Image", ("image", "img", "pixel_values", "features", "embedding", "x"), "images")
    label = _column(features, "ClassLabel", ("label", "labels", "fine_label", "y", "target", "class"), "labels")
    names = getattr(features[label], "names", None)
    rows, labels = [], []
    for at in range(len(table)):
        row = table[at]
        rows.append(_array(row[image], size))
        labels.append(names[row[label]] if names is not None else row[label])
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise InputError(
            f"column {image!r} has images of different shapes, {shapes[0]} and {shapes[1]}. Say to which size they are "
            "resized: Experiment(..., size=224)."
        )
    stacked = torch.from_numpy(np.stack(rows))
    if isinstance(table[0][image], Image.Image) and stacked.ndim == 4:
        stacked = stacked.permute(0, 3, 1, 2).contiguous()
    return (stacked[:, None] if stacked.ndim == 3 else stacked), labels


def _column(features: Mapping[str, Any], kind: str, usual: tuple[str, ...], what: str) -> str:
    """Return the one column of a kind, or the first that has a usual name."""
    found = [name for name, feature in features.items() if type(feature).__name__ == kind]
    found = found if len(found) == 1 else [name for name in usual if name in features]
    if not found:
        raise InputError(f"none of the columns {list(features)} is known to hold {what}: call it {usual[0]!r}.")
    return found[0]


def _array(value: Any, size: int | None) -> np.ndarray:
    if not isinstance(value, Image.Image):
        return np.asarray(value)
    if size is not None:
        return fitted(value, size, "center", None)
    return np.array(value if value.mode == "L" else to_rgb(value))
