"""Stores of vectors on disk, read and written chunk by chunk: what all formats share, and .npy itself."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..common.files import sync_directory
from ..errors import InputError, did_you_mean

FORMATS = {".npy": "npy", ".parquet": "parquet", ".pq": "parquet", ".faiss": "faiss", ".index": "faiss"}
"""File name endings and their formats."""

_FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Chunk:
    """Consecutive vectors of a store.

    Attributes:
        vectors: (n, D), as they are stored.
        columns: what else the store holds about these rows: a Parquet batch, or None.
    """

    vectors: np.ndarray
    columns: Any = None


class Source(ABC):
    """A store that is read once, in order, in bounded memory.

    Attributes:
        path: the file.
        count, width: N and D.
        dtype: of the stored numbers.
        metric: what its searches compare by, if the store says so: "l2" or "ip".
        keeps: what only its own format can hold: a Parquet schema, the ids of an index.
    """

    path: Path
    count: int
    width: int
    dtype: np.dtype[Any]
    metric: str | None = None
    keeps: Any = None

    @abstractmethod
    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield the vectors in order, at most `rows` at a time."""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close the file."""


class Sink(ABC):
    """A store that is written chunk by chunk under another name; `commit` gives it its own, else nothing stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.draft = path.with_name(f".{path.name}.new")

    @abstractmethod
    def write(self, vectors: np.ndarray, uncertainty: np.ndarray | None, columns: Any) -> None:
        """Append moved vectors, (n, D), their uncertainty, (n,), and their other columns."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is missing; after it the draft is whole and on disk."""

    def abandon(self) -> None:  # noqa: B027  most have nothing open
        """Close what `finish` would have closed."""

    def commit(self) -> None:
        """Give the draft its name, atomically."""
        os.replace(self.draft, self.path)
        sync_directory(self.path.parent)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(Exception):  # the error that ended it matters, not this one
            self.abandon()
        self.draft.unlink(missing_ok=True)


def read_npy(path: Path) -> np.ndarray:
    """Memory-map a .npy file of one (N, D) array."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path} cannot be read as a .npy array ({error}).") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        shape = getattr(array, "shape", "an archive of arrays")
        raise InputError(f"{path} must hold one (N, D) array of vectors, got {shape}.")
    return array


class NpySource(Source):
    """An (N, D) array in a .npy file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path, self._array = path, read_npy(path)
        (self.count, self.width), self.dtype = self._array.shape, self._array.dtype
        check_dtype(path, str(self.dtype))

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield slices of the map."""
        for start in range(0, self.count, rows):
            yield Chunk(self._array[start : start + rows])


class NpySink(Sink):
    """An (N, D) or (N,) array, written from front to back: no more than a chunk is in memory."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(path)
        self._dtype = dtype
        self._file = open(self.draft, "wb")  # noqa: SIM115  closed by finish or abandon
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, vectors: np.ndarray, uncertainty: np.ndarray | None = None, columns: Any = None) -> None:
        """Append rows."""
        self._file.write(np.ascontiguousarray(vectors, dtype=self._dtype).data)

    def finish(self) -> None:
        """Sync and close the file."""
        self._file.close()
        sync_file(self.draft)

    def abandon(self) -> None:
        """Close the file."""
        self._file.close()


def format_of(path: Path) -> str:
    """Return the format that a file name's ending stands for."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{path}: vectors are kept in .npy, .parquet or .faiss files, got a name that ends in {path.suffix!r}. "
            f"{did_you_mean(path.suffix, FORMATS)}"
        )
    return FORMATS[path.suffix.lower()]


def open_source(path: Path, column: str | None = None) -> Source:
    """Open a store by the ending of its name.

    Args:
        path: the file.
        column: of a Parquet file; None: its only column of vectors.
    """
    kind = format_of(path)
    if column is not None and kind != "parquet":
        raise InputError(f"{path} has no columns: column={column!r} is for Parquet files.")
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    if kind == "npy":
        return NpySource(path)
    if kind == "parquet":
        from .parquet import ParquetSource

        return ParquetSource(path, column)
    from .faiss_index import FaissSource

    return FaissSource(path)


def open_sink(path: Path, source: Source, width: int, dtype: np.dtype[Any], metric: str, uncertainty: bool) -> Sink:
    """Begin a store of as many vectors as `source` has.

    Args:
        path: the file to make; the ending of its name is the format.
        source: where the vectors come from; its other columns or ids are kept if the format is the same.
        width, dtype: of the moved vectors.
        metric: of a FAISS index.
        uncertainty: whether each vector has one; a Parquet file takes it as a column.
    """
    kind = format_of(path)
    if kind == "npy":
        return NpySink(path, (source.count, width), dtype)
    if kind == "parquet":
        from .parquet import ParquetSink

        return ParquetSink(path, source, width, dtype, uncertainty)
    from .faiss_index import FaissSink

    return FaissSink(path, source, width, metric)


def stored_dtype(path: Path, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that moved vectors have in a file: the source's, or float32 if the format has no other."""
    return np.dtype(np.float32) if format_of(path) == "faiss" else dtype.newbyteorder("=")


def check_dtype(path: Path, dtype: str) -> None:
    """Refuse numbers that are not floats."""
    if np.dtype(dtype).newbyteorder("=").name not in _FLOATS:
        raise InputError(f"{path} holds {dtype} numbers: vectors must be {', '.join(_FLOATS)}. Convert them first.")


def sync_file(path: Path) -> None:
    """Bring a file to the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def needs_extra(what: str, error: ImportError) -> InputError:
    """Return the error for a format whose library is not installed."""
    return InputError(f"{what} needs the extra: pip install 'protodrift[vectors]' ({error.name} is missing).")
