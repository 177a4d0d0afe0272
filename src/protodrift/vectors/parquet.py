"""Vectors as a list column of a Parquet file; the other columns are kept. Extra: `vectors` (pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, did_you_mean
from .formats import Chunk, Sink, Source, needs_extra, sync_file

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise needs_extra("Parquet", error) from None

COLUMN = "vector"
"""The name of the column where a file is made from a store that has no columns."""

UNCERTAINTY = "uncertainty"


class ParquetSource(Source):
    """The vectors of one column: lists of floats, all of one length, none missing."""

    def __init__(self, path: Path, column: str | None) -> None:
        self.path = path
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path} cannot be read as a Parquet file ({error}).") from None
        self.keeps = self._file.schema_arrow
        self.column = self._choose(column)
        kind = self.keeps.field(self.column).type
        self.count = self._file.metadata.num_rows
        self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
        self.width = kind.list_size if pa.types.is_fixed_size_list(kind) else self._first_length()

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield batches: never more than a row group is decoded at once."""
        start = 0
        for batch in self._file.iter_batches(batch_size=rows):
            yield Chunk(self._matrix(batch.column(self.keeps.get_field_index(self.column)), start), batch)
            start += len(batch)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _choose(self, column: str | None) -> str:
        fitting = [field.name for field in self.keeps if _is_vector(field.type)]
        if column is not None and column not in self.keeps.names:
            raise InputError(f"{self.path} has no column {column!r}. {did_you_mean(column, self.keeps.names)}")
        if column is not None and column not in fitting:
            kind = self.keeps.field(column).type
            raise InputError(f"{self.path}: column {column!r} holds {kind}, not lists of floats.")
        if column is None and len(fitting) != 1:
            raise InputError(
                f"{self.path} has {len(fitting)} columns of vectors (lists of floats)"
                + (
                    f": {', '.join(fitting)}. Say which: --column, or column=."
                    if fitting
                    else f" among {self.keeps.names}."
                )
            )
        return column or fitting[0]

    def _first_length(self) -> int:
        for batch in self._file.iter_batches(batch_size=1, columns=[self.column]):
            first = batch.column(0)[0].as_py()
            if not first:  # missing or empty: its length says nothing about the others
                raise self._no_vector(0)
            return len(first)
        return 0

    def _no_vector(self, row: int) -> InputError:
        return InputError(f"{self.path}: column {self.column!r} has no vector in row {row}. Drop such rows first.")

    def _matrix(self, column: Any, start: int) -> np.ndarray:
        """Return a list column as (n, D); a view of it where it can be."""
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._no_vector(row)
        if not pa.types.is_fixed_size_list(column.type):
            lengths = np.diff(column.offsets.to_numpy())
            if (lengths != self.width).any():
                row = int(np.flatnonzero(lengths != self.width)[0])
                raise InputError(
                    f"{self.path}: column {self.column!r} has vectors of different lengths: {self.width} in row 0, "
                    f"{lengths[row]} in row {start + row}."
                )
        values = column.flatten()
        if values.null_count:
            raise InputError(
                f"{self.path}: column {self.column!r} has a missing number inside a vector. Drop such rows."
            )
        matrix: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(len(column), self.width)
        return matrix


class ParquetSink(Sink):
    """A Parquet file with the source's other columns as they were, and the uncertainty as one more."""

    def __init__(self, path: Path, source: Source, width: int, dtype: np.dtype[Any], uncertainty: bool) -> None:
        super().__init__(path)
        self._width, self._dtype = width, dtype
        value = pa.from_numpy_dtype(dtype)
        if isinstance(source, ParquetSource):
            self._column, schema = source.column, source.keeps
            old = schema.field(self._column)
            # Of a fixed size it stays so; lists and large lists stay what they are.
            kind = pa.list_(value, width)
            if not pa.types.is_fixed_size_list(old.type):
                kind = pa.large_list(value) if pa.types.is_large_list(old.type) else pa.list_(value)
            self._schema = schema.set(schema.get_field_index(self._column), old.with_type(kind))
        else:
            self._column, self._schema = COLUMN, pa.schema([pa.field(COLUMN, pa.list_(value, width))])
        self._at = self._schema.get_field_index(self._column)
        self._uncertainty = ""
        if uncertainty:
            self._uncertainty = (
                UNCERTAINTY if UNCERTAINTY not in self._schema.names else f"{self._column}_{UNCERTAINTY}"
            )
            if self._uncertainty in self._schema.names:
                raise InputError(f"{source.path} already has a column {self._uncertainty!r}. Rename it, or drop it.")
            self._schema = self._schema.append(pa.field(self._uncertainty, pa.float32()))
        self._writer = pq.ParquetWriter(self.draft, self._schema)

    def write(self, vectors: np.ndarray, uncertainty: np.ndarray | None, columns: Any) -> None:
        """Append a row group."""
        arrays = list(columns.columns) if isinstance(columns, pa.RecordBatch) else [None]
        values = pa.array(np.ascontiguousarray(vectors, dtype=self._dtype).reshape(-1))
        kind = self._schema.field(self._at).type
        if pa.types.is_fixed_size_list(kind):
            arrays[self._at] = pa.FixedSizeListArray.from_arrays(values, self._width)
        else:
            offsets = np.arange(0, vectors.size + 1, self._width)
            large = pa.types.is_large_list(kind)
            make = pa.LargeListArray if large else pa.ListArray
            arrays[self._at] = make.from_arrays(pa.array(offsets, pa.int64() if large else pa.int32()), values)
        arrays[self._at] = arrays[self._at].cast(kind)  # the names inside a list type are the source's
        if self._uncertainty:
            arrays.append(pa.array(uncertainty, pa.float32()))
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))

    def finish(self) -> None:
        """Write the footer, and bring the file to the disk."""
        self._writer.close()
        sync_file(self.draft)

    def abandon(self) -> None:
        """Close the writer."""
        self._writer.close()


def _is_vector(kind: Any) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and pa.types.is_floating(kind.value_type)
