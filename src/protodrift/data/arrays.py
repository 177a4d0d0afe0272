"""From what a user holds (arrays, tensors, lists, paths, PyTorch datasets) to checked tensors, or to a clear error.

Inside protodrift an image is always (C, H, W), uint8 or float32, and a feature vector (D,) float32. What the first task
looked like is kept as an `InputSpec`; later tasks and predictions must look the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from ..common.labels import Label, wrong_with_label
from ..errors import InputError
from .images import read_image, to_rgb

Channels = Literal["auto", "first", "last"]
"""Where the channel axis of (N, ., ., .) is; "auto": where the length is 1, 3 or 4."""

Scale = Literal["uint8", "unit", "byte", "free"]

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class InputSpec:
    """What the images of a model look like; fixed by its first task.

    Attributes:
        shape: (C, H, W) of an image, (D,) of a feature vector.
        scale: "uint8"; "unit" (floats in [0, 1]); "byte" (floats in [0, 255]); "free" (other floats, and vectors).
        low, high: smallest and largest value of the first task.
    """

    shape: tuple[int, ...]
    scale: Scale
    low: float
    high: float

    @property
    def is_image(self) -> bool:
        """Whether the inputs are images (else: feature vectors)."""
        return len(self.shape) == 3

    def __str__(self) -> str:
        if not self.is_image:
            return f"vectors of {self.shape[0]} features"
        channels, height, width = self.shape
        return f"{height} x {width} images with {channels} channel{'s' * (channels != 1)}, {self.scale} pixels"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"shape": list(self.shape), "scale": self.scale, "low": self.low, "high": self.high}

    @staticmethod
    def from_json(data: dict[str, Any]) -> InputSpec:
        """Invert `to_json`."""
        return InputSpec(tuple(int(n) for n in data["shape"]), data["scale"], data["low"], data["high"])


def read_images(
    X: Any, *, spec: InputSpec | None = None, channels: Channels = "auto"
) -> tuple[torch.Tensor, InputSpec]:
    """Check images or feature vectors and bring them into the inner form.

    Args:
        X: array, tensor or nested list: (N, H, W), (N, H, W, C), (N, C, H, W) or (N, D); uint8, bool, other ints in
            0..255, or float.
        spec: what the model's first task looked like; None if this is the first task.
        channels: where the channel axis of a 4-d X is: "first", "last", or "auto" (the one of length 1, 3 or 4).

    Returns:
        (N, C, H, W) uint8 or float32, or (N, D) float32; and the spec.

    Raises:
        InputError: naming what was got, what is accepted, and what to do.

    >>> images, spec = read_images(np.zeros((5, 8, 8), np.uint8))
    >>> tuple(images.shape), str(spec)
    ((5, 1, 8, 8), '8 x 8 images with 1 channel, uint8 pixels')
    """
    if channels not in get_args(Channels):
        raise InputError(f"channels={channels!r} is unknown: 'auto', 'first' or 'last'.")
    tensor = _tensor(X)
    if tensor.ndim and len(tensor) == 0:
        raise InputError("got no images: X is empty. Give at least one.")
    if tensor.ndim == 2 and tensor.shape[1] == 0:
        raise InputError(f"X has 0 feature(s) (shape={tuple(tensor.shape)}) while a minimum of 1 is required.")
    if tensor.numel() == 0:
        raise InputError(f"X has shape {tuple(tensor.shape)}: its images have no pixels.")
    images = _channels_first(tensor, channels, spec)
    if images.is_floating_point():
        bad = ~torch.isfinite(images.flatten(1)).all(dim=1)
        if bad.any():
            first = int(bad.nonzero()[0])
            raise InputError(
                f"X has NaN or infinite values in {int(bad.sum())} of {len(images)} rows (the first is row {first}). "
                "Clean or drop them."
            )
    if spec is None:
        return images, _describe(images)
    if tuple(images.shape[1:]) != spec.shape:
        hint = "Resize or convert the images to match."
        if math.prod(tensor.shape) == math.prod(spec.shape):
            hint = "A single image needs a first axis: X[None]."
        got = InputSpec(tuple(images.shape[1:]), _describe(images).scale, 0, 0)
        raise InputError(f"this model was made for {spec}; got {len(images)} {got}. {hint}")
    _compare(images, spec)
    return images, spec


def read_inputs(
    X: Any, y: Any, *, spec: InputSpec | None, channels: Channels, size: int
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


def read_labels(y: Any, count: int) -> tuple[Label, ...]:
    """Check labels: one for each image, all str or all int; numpy and pandas scalars become Python's.

    >>> read_labels(np.array([3, 1]), 2)
    (3, 1)
    """
    if y is None:
        raise InputError(
            "y is missing: learning requires y to be passed, but the target y is None. Give one label per image."
        )
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu().numpy()
    values = np.asarray(y, dtype=object) if isinstance(y, (list, tuple)) else np.asarray(y)
    if values.ndim != 1:
        raise InputError(f"y must be one-dimensional, one label per image; got shape {values.shape}.")
    if len(values) != count:
        raise InputError(f"X has {count} images but y has {len(values)} labels: give one label per image.")
    labels: list[Label] = []
    for value in values.tolist():
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, bool) or not isinstance(plain, (str, int)):
            raise InputError(
                f"Unknown label type: labels must be str or int, got {plain!r} ({type(plain).__name__}). "
                "Convert them first, for example y.astype(int) or y.astype(str)."
            )
        # Enums and other children of str and int give their plain value: the only thing a file can hold.
        labels.append(str.__str__(plain) if isinstance(plain, str) else int(plain))
    for label in set(labels):
        if wrong := wrong_with_label(label):
            raise InputError(f"the label {label!r} {wrong}. Give the class a name.")
    if len({type(label) for label in labels}) > 1:
        raise InputError(
            f"labels mix int and str, for example {next(v for v in labels if isinstance(v, int))!r} and "
            f"{next(v for v in labels if isinstance(v, str))!r}. Use one kind: 1 and '1' would be two classes."
        )
    return tuple(labels)


def _tensor(X: Any) -> torch.Tensor:
    if isinstance(X, torch.Tensor):
        if X.is_complex():
            raise InputError(f"Complex data not supported: X has dtype {X.dtype}. Give uint8 pixels or floats.")
        tensor = X.detach().cpu().clone()  # a copy: no later change of X reaches a learned state
    else:
        if hasattr(X, "toarray"):  # of scipy.sparse
            raise InputError("X is sparse, and sparse input is not supported. Give X.toarray().")
        try:
            array = np.asarray(X)
        except ValueError as error:
            raise InputError(f"X is not a rectangular array ({error}). All images need one size.") from None
        if array.dtype.kind == "c":
            raise InputError(f"Complex data not supported: X has dtype {array.dtype}. Give uint8 pixels or floats.")
        if array.dtype == object and array.ndim:
            with contextlib.suppress(TypeError, ValueError):  # numbers of Python's, as tables with gaps hold them
                array = array.astype(np.float32)
        if array.dtype.kind not in "buif":
            raise InputError(
                f"X has dtype {array.dtype}; numbers are needed: uint8 pixels or floats. "
                "Images of different sizes must be resized to one size first."
            )
        # A copy, as above; and of a type that torch can compute with: no uint16, float128 or foreign byte order.
        kinds = {"b": np.bool_, "u": np.int64, "i": np.int64, "f": np.float32}
        plain = np.uint8 if array.dtype == np.uint8 else kinds[array.dtype.kind]
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is reported by its row
            tensor = torch.from_numpy(np.array(array, dtype=plain))
    if tensor.dtype == torch.uint8:
        return tensor
    if tensor.is_floating_point():
        return tensor.to(torch.float32)
    tensor = tensor.to(torch.int64)
    if tensor.ndim >= 3:
        if tensor.numel() and (int(tensor.min()) < 0 or int(tensor.max()) > 255):
            raise InputError(
                f"integer images must lie in 0..255, got {int(tensor.min())}..{int(tensor.max())}. "
                "Convert 16-bit images first, for example (X / 257).astype('uint8')."
            )
        return tensor.to(torch.uint8)
    return tensor.to(torch.float32)


def _channels_first(tensor: torch.Tensor, channels: Channels, spec: InputSpec | None) -> torch.Tensor:
    if tensor.ndim == 2:
        return tensor.to(torch.float32)
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    if tensor.ndim != 4:
        raise InputError(
            f"X has shape {tuple(tensor.shape)}; accepted are (N, H, W), (N, H, W, C), (N, C, H, W) and (N, D). "
            "Reshape your data. A single image needs a first axis: X[None]."
        )
    first, last = tensor.shape[1] in _CHANNELS, tensor.shape[3] in _CHANNELS
    if channels == "auto":
        # What the model already knows settles a case that is ambiguous by itself, such as (N, 3, 4, 3).
        if spec is not None and first != last:
            pass
        elif spec is not None and tuple(tensor.shape[1:]) == spec.shape:
            first, last = True, False
        elif spec is not None and (tensor.shape[3], *tensor.shape[1:3]) == spec.shape:
            first, last = False, True
        if first == last:
            why = "both the second and the last axis" if first else "neither the second nor the last axis"
            raise InputError(
                f"X has shape {tuple(tensor.shape)}: {why} could be the channels (length 1, 3 or 4). "
                "Say which with channels='first' or channels='last'."
            )
        channels = "first" if first else "last"
    return tensor if channels == "first" else tensor.permute(0, 3, 1, 2).contiguous()


def _describe(images: torch.Tensor) -> InputSpec:
    low, high = float(images.min()), float(images.max())
    scale: Scale
    if images.dtype == torch.uint8:
        scale = "uint8"
    elif images.ndim == 2 or low < 0 or high > 255:
        scale = "free"
    else:
        scale = "unit" if high <= 1 else "byte"
    return InputSpec(tuple(images.shape[1:]), scale, low, high)


def _compare(images: torch.Tensor, spec: InputSpec) -> None:
    is_uint8 = images.dtype == torch.uint8
    if is_uint8 != (spec.scale == "uint8"):
        got = "uint8" if is_uint8 else "float"
        raise InputError(
            f"this model was made for {spec}, got {got} pixels. Convert them as for the first task: a silent change of "
            "scale would ruin the model."
        )
    if spec.scale in ("uint8",) or not spec.is_image:
        return
    # Floats have no natural range, so the first task sets it. 'free' images (already standardized, say) may reach
    # one width further out on both sides: a brighter photo is no error, pixels in 0..255 after 0..1 are.
    width = max(spec.high - spec.low, 1e-6)
    low, high = {"unit": (0.0, 1.0), "byte": (0.0, 255.0)}.get(spec.scale, (spec.low - width, spec.high + width))
    slack = 1e-3 * (high - low)
    got_low, got_high = float(images.min()), float(images.max())
    if got_low < low - slack or got_high > high + slack:
        raise InputError(
            f"X holds floats in [{got_low:.4g}, {got_high:.4g}], but the first task had [{spec.low:.4g}, "
            f"{spec.high:.4g}], so [{low:.4g}, {high:.4g}] is accepted. Scale the images as for the first task."
        )
    # The other direction: a model of 0..255 floats that is shown 0..1 floats would see black images.
    # (A blank image is the same on both scales.)
    if spec.scale == "byte" and 0 < got_high <= 1 < spec.high:
        raise InputError(
            f"X holds floats in [{got_low:.4g}, {got_high:.4g}], but the first task had [{spec.low:.4g}, "
            f"{spec.high:.4g}]: the images look scaled to 0..1. Scale them as for the first task."
        )


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


def _pairs(dataset: Any, spec: InputSpec | None, channels: Channels) -> tuple[Any, list[Any]]:
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
