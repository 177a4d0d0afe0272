"""Vectors in a flat FAISS index, with or without ids of their own. Extra: `vectors` (faiss-cpu).

A flat index is one block of memory in FAISS itself, so reading and writing one takes as much memory as it is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .formats import Chunk, Sink, Source, needs_extra, sync_file

try:
    import faiss
except ImportError as error:
    raise needs_extra("a FAISS index", error) from None

_METRICS = {faiss.METRIC_L2: "l2", faiss.METRIC_INNER_PRODUCT: "ip"}


class FaissSource(Source):
    """The vectors of IndexFlatL2 or IndexFlatIP, alone or inside IndexIDMap or IndexIDMap2."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path} cannot be read as a FAISS index ({reason}).") from None
        self._index = index
        self._flat = index
        if isinstance(index, faiss.IndexIDMap):  # IndexIDMap2 is one
            self.keeps = (type(index), faiss.vector_to_array(index.id_map))
            self._flat = faiss.downcast_index(index.index)
        if not isinstance(self._flat, faiss.IndexFlat) or index.metric_type not in _METRICS:
            raise InputError(
                f"{path} is a {type(self._flat).__name__}: only flat indexes (L2 or inner product, also inside "
                "IndexIDMap) hold vectors as they were. Give the vectors themselves as .npy or Parquet, and build the "
                "index again from what comes out."
            )
        self.count, self.width, self.dtype = int(self._flat.ntotal), int(self._flat.d), np.dtype(np.float32)
        self.metric = _METRICS[index.metric_type]

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield vectors in the order they were added."""
        for start in range(0, self.count, rows):
            yield Chunk(self._flat.reconstruct_n(start, min(rows, self.count - start)))


class FaissSink(Sink):
    """A flat index of the same metric, and of the same ids if the source had some.

    FAISS has no index of cosines: they are inner products of vectors that are brought to length 1 here.
    """

    def __init__(self, path: Path, source: Source, width: int, metric: str) -> None:
        super().__init__(path)
        self._unit = metric == "cosine"
        self._flat = faiss.IndexFlatL2(width) if metric == "l2" else faiss.IndexFlatIP(width)
        self._index, self._ids = self._flat, None
        if isinstance(source, FaissSource) and source.keeps is not None:
            wrapper, self._ids = source.keeps
            self._index = wrapper(self._flat)

    def write(self, vectors: np.ndarray, uncertainty: np.ndarray | None = None, columns: Any = None) -> None:
        """Add vectors."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if self._unit:
            vectors = vectors.copy()  # FAISS changes it in place, and it is the caller's
            faiss.normalize_L2(vectors)
        if self._ids is None:
            self._index.add(vectors)
        else:
            start = self._index.ntotal
            self._index.add_with_ids(vectors, self._ids[start : start + len(vectors)])

    def finish(self) -> None:
        """Write the file, and bring it to the disk."""
        faiss.write_index(self._index, str(self.draft))
        sync_file(self.draft)
