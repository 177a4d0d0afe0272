"""Images that do not fit in ram: a tensor whose rows lie in a file, and are read when something is computed.

    images = room(len(files), (3, 192, 192), folder="birds")      # in memory, or in a file if there are too many
    images.write(row, pixels)
    examples = Examples(images.tensor(), labels)                  # everything after this does not know which

The file has no name: no other program can open it, and it is gone when the process ends, however it ends. Decoded
photos never outlive the lesson that they were decoded for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ..common.files import unlinked_file
from ..common.ram import ram_budget, size_text
from ..errors import InputError

READ_AT_ONCE = 2**26
"""Bytes. Rows that are picked out of a stored tensor are read into memory if they are fewer; else they stay stored."""


class Room:
    """Room for images in memory; `StoredRoom` is the same in a file."""

    def __init__(self, count: int, shape: Sequence[int]) -> None:
        self._images = torch.empty((count, *shape), dtype=torch.uint8)

    def write(self, row: int, pixels: np.ndarray) -> None:
        """Put in one image, (C, H, W) uint8."""
        self._images[row] = torch.from_numpy(np.ascontiguousarray(pixels))

    def tensor(self, count: int) -> torch.Tensor:
        """Return the first `count` images, (count, C, H, W)."""
        return self._images[:count]


class StoredRoom:
    """Room for images in a file without a name."""

    def __init__(self, count: int, shape: Sequence[int], folder: str | Path) -> None:
        self.shape = tuple(shape)
        self._size = int(np.prod(self.shape))
        self._lock = threading.Lock()
        total = count * self._size
        try:
            self._file = unlinked_file(_existing(Path(folder)), total)
        except OSError as error:
            raise InputError(
                f"no room for {size_text(total)} of decoded images in {folder}: {error.strerror or error}. Make "
                "room there, choose a smaller --size, or allow more memory (--ram)."
            ) from None

    def write(self, row: int, pixels: np.ndarray) -> None:
        """Put in one image, (C, H, W) uint8."""
        data = np.ascontiguousarray(pixels).reshape(-1).data
        with self._lock:
            self._file.seek(row * self._size)
            while data:
                data = data[self._file.write(data) :]

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Return some images, (n,) -> (n, C, H, W); neighbors are read together."""
        result = np.empty((len(rows), *self.shape), np.uint8)
        into, wanted = result.reshape(-1).data, rows.tolist()
        ends = [i for i in range(1, len(wanted)) if wanted[i] != wanted[i - 1] + 1] + [len(wanted)]
        start = 0
        for end in ends if wanted else []:
            self._fill(into[start * self._size : end * self._size], wanted[start] * self._size)
            start = end
        return torch.from_numpy(result)

    def _fill(self, into: memoryview, at: int) -> None:
        with self._lock:
            self._file.seek(at)
            while into:
                read = self._file.readinto(into)
                if not read:
                    raise InputError("the file of decoded images ended early: it was cut by something else.")
                into = into[read:]

    def tensor(self, count: int) -> torch.Tensor:
        """Return the first `count` images, (count, C, H, W), as a tensor that reads them when they are needed."""
        return StoredImages(self, torch.arange(count))


def room(
    count: int, shape: Sequence[int], *, ram: int | None = None, folder: str | Path | None = None
) -> Room | StoredRoom:
    """Return room for `count` images of uint8: in memory if they fit its budget, else in a file.

    Args:
        count, shape: N and (C, H, W).
        ram: bytes; None: `ram_budget()`.
        folder: where the file is; None: the user's cache directory, for temporary directories are often in memory.
    """
    if count * int(np.prod(shape)) <= ram_budget(ram):
        return Room(count, shape)
    if folder is None:
        from .datasets.base import cache_home

        folder = cache_home()
        folder.mkdir(parents=True, exist_ok=True)
    return StoredRoom(count, shape, folder)


class StoredImages(torch.Tensor):
    """(N, C, H, W) uint8 whose rows lie in a file.

    Taking rows (a slice, an index, `split`, `cat` of the same file) reads nothing, unless the rows are few; whatever
    else is done with it reads its rows first, and gives ordinary tensors. So every result is that of the same images in
    memory, bit for bit; what is read at once is up to the caller: batches, not everything.
    """

    _stored: StoredRoom
    _rows: torch.Tensor

    @staticmethod
    def __new__(cls, stored: StoredRoom, rows: torch.Tensor) -> StoredImages:
        """Make a tensor that has a shape and no memory of its own."""
        shape = (len(rows), *stored.shape)
        made: StoredImages = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.uint8)
        return made

    def __init__(self, stored: StoredRoom, rows: torch.Tensor) -> None:
        self._stored, self._rows = stored, rows

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StoredImages({tuple(self.shape)})"

    def numpy(self, *, force: bool = False) -> Any:
        """Return the images in memory as an array."""
        return self.read().numpy(force=force)

    def read(self) -> torch.Tensor:
        """Return the images in memory."""
        return self._stored.read(self._rows)

    def taken(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the images at these positions: in memory if they are few."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero().flatten()
        found = StoredImages(self._stored, self._rows[rows])
        return found.read() if len(rows) * self[0:1].numel() <= READ_AT_ONCE else found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[Any, Any] | None = None
    ) -> Any:
        """Do what taking rows means without reading; else read, and compute."""
        lazily = _LAZY.get(func)
        if lazily is not None:
            with torch.inference_mode(False):  # a view of an ordinary tensor has to be one
                found = lazily(*args, **(kwargs or {}))
            if found is not None:
                return found
        composed = func.decompose(*args, **(kwargs or {}))  # made of others: in inference mode it comes here whole
        if composed is not NotImplemented:
            return composed
        args, kwargs = tree_map(lambda one: one.read() if isinstance(one, cls) else one, (args, kwargs or {}))
        return func(*args, **kwargs)


def _slice(x: StoredImages, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return StoredImages(x._stored, x._rows[start:end:step]) if dim == 0 else None


def _index(x: StoredImages, indices: Sequence[torch.Tensor | None]) -> Any:
    first = indices[0]
    alone = first is not None and first.ndim == 1 and all(one is None for one in indices[1:])
    return x.taken(first) if alone and isinstance(first, torch.Tensor) else None


def _select(x: StoredImages, dim: int, at: int) -> Any:
    return x._stored.read(x._rows[at : at + 1 or None])[0] if dim == 0 else None


def _split(x: StoredImages, size: int, dim: int = 0) -> Any:
    return [StoredImages(x._stored, part) for part in x._rows.split(size)] if dim == 0 else None


def _cat(parts: Sequence[torch.Tensor], dim: int = 0) -> Any:
    real = [part for part in parts if len(part)]
    same = all(isinstance(part, StoredImages) and part._stored is real[0]._stored for part in real)  # type: ignore[attr-defined]
    if dim != 0 or not real or not same:
        return None
    return StoredImages(real[0]._stored, torch.cat([part._rows for part in real]))  # type: ignore[attr-defined]


_ATEN = torch.ops.aten
_LAZY: dict[Any, Callable[..., Any]] = {
    _ATEN.slice.Tensor: _slice,
    _ATEN.index.Tensor: _index,
    _ATEN.index_select.default: lambda x, dim, rows: x.taken(rows) if dim == 0 else None,
    _ATEN.select.int: _select,
    _ATEN.split.Tensor: _split,
    _ATEN.cat.default: _cat,
    _ATEN.detach.default: lambda x: StoredImages(x._stored, x._rows),
    _ATEN.alias.default: lambda x: StoredImages(x._stored, x._rows),
}


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder
