"""Images that do not fit in RAM: ordinary tensors whose pages lie in a temporary file and are read when touched.

    images = empty_images(len(files), (3, 192, 192), folder="birds")    # in RAM, or mapped if they are too many
    images[row] = pixels
    examples = Examples(images, labels)                                 # nothing after this knows which

The file is unlinked before the first image is written: no other program can open it, and it is gone when the process
ends, however it ends. Mapped pages are the system's cache: it takes them back when memory is needed.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ..common.machine import ram_budget, size_text
from ..errors import InputError

COPY_BYTES = 2**26
"""Fewer bytes of images that are selected from mapped ones are copied into RAM; more stay in a file."""


def mapped(shape: Sequence[int], dtype: torch.dtype, folder: str | Path) -> torch.Tensor:
    """Return a tensor of zeros in an unlinked temporary file.

    All of its disk space is reserved now, where the system can do that: a mapped file that meets a full disk later
    would kill the process.

    Raises:
        OSError: if there is no space for it in `folder`.
    """
    count = math.prod(shape)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".protodrift-") as file:
        if hasattr(os, "posix_fallocate") and count:
            os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
        return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(*shape)


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor, or what it is a view of, was made by `mapped`."""
    return tensor.untyped_storage().filename is not None


def empty_images(
    count: int, shape: Sequence[int], *, ram: int | None = None, folder: str | Path | None = None
) -> torch.Tensor:
    """Return space for images, (count, C, H, W) uint8: in RAM if they fit the budget, else mapped.

    Args:
        count, shape: N and (C, H, W).
        ram: bytes of images that may be in RAM; None: `ram_budget()`.
        folder: where the file is, if need be the nearest parent that exists; None: the user's cache directory, for
            temporary directories are often in RAM.
    """
    if count * math.prod(shape) <= ram_budget(ram):
        return torch.empty((count, *shape), dtype=torch.uint8)
    if folder is None:
        from .datasets.base import cache_home

        folder = cache_home()
        folder.mkdir(parents=True, exist_ok=True)
    folder = Path(folder).absolute()
    return _mapped_images((count, *shape), torch.uint8, next(p for p in (folder, *folder.parents) if p.is_dir()))


def take(images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return `images[rows]`, (N, C, H, W) and (n,) -> (n, C, H, W); many mapped ones stay mapped.

    Of mapped images a range is a view, and many scattered ones are copied to a file beside the first.
    """
    if not is_mapped(images) or len(rows) * images[:1].nbytes <= COPY_BYTES:
        return images[rows]
    if bool((rows.diff() == 1).all()):
        return images[int(rows[0]) : int(rows[-1]) + 1]
    result = _mapped_images((len(rows), *images.shape[1:]), images.dtype, _folder(images))
    step = max(1, COPY_BYTES // images[:1].nbytes)
    for into, some in zip(result.split(step), rows.split(step), strict=True):
        torch.index_select(images, 0, some, out=into)
    return result


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return `torch.cat(parts)`; mapped, if one of them is and the result is large."""
    files = [part for part in parts if is_mapped(part)]
    if not files or sum(part.nbytes for part in parts) <= COPY_BYTES:
        return torch.cat(list(parts))
    shape = (sum(map(len, parts)), *files[0].shape[1:])
    result = _mapped_images(shape, files[0].dtype, _folder(files[0]))
    for into, part in zip(result.split([len(part) for part in parts]), parts, strict=True):
        into.copy_(part)
    return result


def _mapped_images(shape: Sequence[int], dtype: torch.dtype, folder: Path) -> torch.Tensor:
    try:
        return mapped(shape, dtype, folder)
    except OSError as error:
        raise InputError(
            f"no space for {size_text(math.prod(shape) * dtype.itemsize)} of decoded images in {folder}: "
            f"{error.strerror or error}. Free some there, choose a smaller --size, or allow more RAM (--ram)."
        ) from None


def _folder(images: torch.Tensor) -> Path:
    return Path(str(images.untyped_storage().filename)).parent
