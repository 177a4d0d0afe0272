"""Embeddings of a task that do not fit in memory: files of a fixed size on disk, memory-mapped, read once.

    task2.shards/
      manifest.json       what it holds; for each shard its rows, and size and sha256 of each of its files
      000000.z_old.npy    (n, D) through the network before the task
      000000.z_new.npy    (n, D) the same images through the network after it
      000000.rows.npy     (n,) int64: their classes, positions in the manifest's `classes`

    with ShardWriter("task2.shards", 512, classes=labels) as writer:
        for ...: writer.write(rows, z_old=z_old, z_new=z_new)
    new, report = update_from_shards(old, Shards("task2.shards"), SDC(0.3), task=2)

Prototypes and drift are sums over images (`drift.kernel`), so one pass over the shards gives both. It holds one shard
of the embeddings, and O(K D) for K prototypes: how many images there are does not matter.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from protodrift.common.files import file_sha256, json_sha256, replace_file, sync_directory
from protodrift.common.labels import Label
from protodrift.common.tensorfiles import packed_manifest
from protodrift.data.arrays import read_labels
from protodrift.data.examples import Examples
from protodrift.drift import SDC, KernelSums, Known, kernel_sums
from protodrift.drift.base import check_prototypes
from protodrift.errors import InputError, ModelFileError
from protodrift.networks.embedder import Embedder, embed
from protodrift.prototypes import ClassSums, DriftReport, Prototypes, update_prototypes

FORMAT = "protodrift-shards"
FORMAT_VERSION = 1

SHARD_BYTES = 32 * 2**20
"""Of one file of a shard; a writer and a reader hold one shard each."""

PROTOTYPE_BLOCK = 2048
"""Prototypes whose sums are merged at once: merging those of 100,000 would take a few copies of 400 MB."""

_FLOATS = ("float16", "float32", "float64")


class ShardWriter:
    """Writes embeddings in shards; the directory has its name only when it is whole.

    Use it in a `with` block: left by an error or Ctrl-C, it leaves nothing.

    Args:
        path: the directory to make; it must not be there.
        width: D.
        names: which embeddings of each image are written.
        classes: the labels that `rows` count; empty: not said.
        dtype: of the files: "float16", "float32" or "float64".
        rows_per_shard: images of a shard; None: as many as make `SHARD_BYTES`.
    """

    def __init__(
        self,
        path: str | Path,
        width: int,
        *,
        names: Sequence[str] = ("z_old", "z_new"),
        classes: Sequence[Label] = (),
        dtype: str = "float32",
        rows_per_shard: int | None = None,
    ) -> None:
        self.path = Path(path)
        if dtype not in _FLOATS:
            raise InputError(f"dtype={dtype!r}: embeddings are written as {', '.join(_FLOATS)}.")
        if self.path.exists():
            raise InputError(f"{self.path} is already there. Name another directory, or remove it first.")
        size = rows_per_shard or max(1, SHARD_BYTES // (width * np.dtype(dtype).itemsize))
        self.width, self.names, self.dtype = width, tuple(names), dtype
        self.classes = read_labels(classes, len(classes)) if len(classes) else ()
        self._draft = self.path.with_name(f".new-{self.path.name}")
        self._shards: list[dict[str, Any]] = []
        self._held = {name: np.empty((size, width), dtype) for name in self.names}
        self._rows = np.empty(size, np.int64)
        self._filled = 0

    def __enter__(self) -> ShardWriter:
        if self._draft.exists():  # of a process that was killed
            shutil.rmtree(self._draft)
        self._draft.mkdir(parents=True)
        return self

    def write(self, rows: torch.Tensor, **embeddings: torch.Tensor) -> None:
        """Append n images: rows (n,), and for each of `names` (n, D)."""
        if set(embeddings) != set(self.names):
            raise InputError(f"this writer takes {', '.join(self.names)}; got {', '.join(embeddings) or 'nothing'}.")
        for name, z in embeddings.items():
            if z.ndim != 2 or z.shape != (len(rows), self.width):
                raise InputError(f"{name} must be ({len(rows)}, {self.width}), got {tuple(z.shape)}.")
            if not bool(torch.isfinite(z).all()):
                raise InputError(f"{name} has NaN or infinite numbers: prototypes made from it would have them too.")
            if len(z) and float(z.abs().max()) > (largest := float(np.finfo(self.dtype).max)):
                raise InputError(
                    f"{name} has numbers above {largest:g}, which {self.dtype} cannot hold. Use a wider one."
                )
        if len(rows) and (int(rows.min()) < 0 or (self.classes and int(rows.max()) >= len(self.classes))):
            raise InputError(f"rows must lie in 0..{len(self.classes) - 1}, the positions in `classes`.")
        start, count = 0, len(rows)
        while start < count:
            take = min(count - start, len(self._rows) - self._filled)
            at = slice(self._filled, self._filled + take)
            self._rows[at] = rows[start : start + take].numpy()
            for name, z in embeddings.items():
                self._held[name][at] = z[start : start + take].numpy()
            self._filled += take
            start += take
            if self._filled == len(self._rows):
                self._flush()

    def _flush(self) -> None:
        files = {}
        for name, array in {"rows": self._rows, **self._held}.items():
            file = self._draft / f"{len(self._shards):06d}.{name}.npy"
            with open(file, "wb") as opened:
                digest = _Hashing(opened)
                np.lib.format.write_array(digest, np.ascontiguousarray(array[: self._filled]), allow_pickle=False)
                opened.flush()
                os.fsync(opened.fileno())
            files[name] = {"name": file.name, "bytes": digest.bytes, "sha256": digest.hexdigest}
        self._shards.append({"count": self._filled, "files": files})
        self._filled = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._draft, ignore_errors=True)

    def _finish(self) -> None:
        if self._filled:
            self._flush()
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "count": sum(shard["count"] for shard in self._shards),
            "width": self.width,
            "dtype": self.dtype,
            "names": list(self.names),
            "classes": list(self.classes),
            "shards": self._shards,
        }
        manifest["checksum"] = json_sha256(manifest)
        replace_file(self._draft / "manifest.json", packed_manifest(manifest))
        sync_directory(self._draft)
        os.rename(self._draft, self.path)
        sync_directory(self.path.parent)


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file: Any) -> None:
        self._file, self._digest, self.bytes = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self.bytes += memoryview(data).nbytes
        self._file.write(data)
        return memoryview(data).nbytes

    @property
    def hexdigest(self) -> str:
        return self._digest.hexdigest()


@dataclass(frozen=True)
class Piece:
    """Some consecutive images of a shard.

    Attributes:
        rows: (n,) long, their classes.
        embeddings: by name, (n, D); at least float32.
    """

    rows: torch.Tensor
    embeddings: dict[str, torch.Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.embeddings[name]


class Shards:
    """Embeddings on disk, made by `ShardWriter`; can be read again and again, and cut into parts.

    Args:
        path: the directory.
        check: whether the sha256 of every file is compared before it is used.

    Raises:
        ModelFileError: if it is not there, of another format, or damaged.
    """

    def __init__(self, path: str | Path, *, check: bool = True) -> None:
        self.path, self.check = Path(path), check
        file = self.path / "manifest.json"
        try:
            manifest = json.loads(file.read_bytes())
            checksum = manifest.pop("checksum")
            known = manifest["format"] == FORMAT
        except FileNotFoundError:
            raise ModelFileError(f"{file} is not there: {self.path} holds no shards.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"{file} cannot be read ({error}). Write the shards again.") from None
        if not known or manifest.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(
                f"{file} says {manifest.get('format')!r}, version {manifest.get('format_version')!r}; this protodrift "
                f"reads {FORMAT!r}, version {FORMAT_VERSION}."
            )
        if checksum != json_sha256(manifest):
            raise ModelFileError(f"{file} does not match its checksum: it was changed. Write the shards again.")
        self.width, self.dtype = int(manifest["width"]), str(manifest["dtype"])
        self.names, self.classes = tuple(manifest["names"]), tuple(manifest["classes"])
        self._shards: list[dict[str, Any]] = manifest["shards"]

    @property
    def count(self) -> int:
        """N, the images of these shards."""
        return sum(shard["count"] for shard in self._shards)

    def __len__(self) -> int:
        """Return how many shards there are."""
        return len(self._shards)

    def part(self, index: int, of: int) -> Shards:
        """Return every `of`-th shard from `index` on: the share of one of `of` workers; it may be empty."""
        if not 0 <= index < of:
            raise InputError(f"part {index} of {of} is not there: parts are counted from 0.")
        some = object.__new__(Shards)
        some.__dict__.update(self.__dict__)
        some._shards = self._shards[index::of]
        return some

    def pieces(self, *names: str, rows: int | None = None) -> Iterator[Piece]:
        """Yield the images in order, a shard or at most `rows` of it at a time.

        Args:
            names: which embeddings; none named: all.
            rows: images of a piece; None: a whole shard.
        """
        wanted = names or self.names
        for name in wanted:
            if name not in self.names:
                raise InputError(f"{self.path} holds {', '.join(self.names)}; it has no {name!r}.")
        for shard in self._shards:
            maps = {name: self._map(shard, name) for name in ("rows", *wanted)}
            step = rows or shard["count"]
            for start in range(0, shard["count"], step):
                cut = {name: np.array(array[start : start + step]) for name, array in maps.items()}
                classes = torch.from_numpy(cut.pop("rows"))
                yield Piece(classes, {name: _at_least_float32(array) for name, array in cut.items()})

    def _map(self, shard: Mapping[str, Any], name: str) -> np.ndarray:
        facts = shard["files"][name]
        file = self.path / facts["name"]
        try:
            if file.stat().st_size != facts["bytes"]:
                raise ModelFileError(
                    f"{file} has {file.stat().st_size} bytes, not {facts['bytes']}: it is damaged. "
                    "Write the shards again."
                )
            if self.check and file_sha256(file) != facts["sha256"]:
                raise ModelFileError(f"{file} does not match its sha256: it is damaged. Write the shards again.")
            array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise ModelFileError(f"{file} is missing. Write the shards again.") from None
        except ModelFileError:
            raise
        except (OSError, ValueError, EOFError) as error:
            raise ModelFileError(f"{file} cannot be read ({error}). Write the shards again.") from None
        wanted = (shard["count"],) if name == "rows" else (shard["count"], self.width)
        if array.shape != wanted:
            raise ModelFileError(f"{file} holds an array of {array.shape}, not {wanted}. Write the shards again.")
        return array


def embed_to_shards(
    path: str | Path,
    examples: Examples,
    classes: Sequence[Label],
    network_new: Embedder,
    network_old: Embedder | None = None,
    *,
    at_once: int = 4096,
) -> Shards:
    """Embed the images of a task straight into shards; row i is example i.

    Args:
        path: the directory to make.
        examples: D^t.
        classes: C^t, in the order of the prototypes to be made.
        network_new: the network after the task.
        network_old: the one before it; None: only `z_new` is written.
        at_once: images whose embeddings are held before they are written.
    """
    networks = {"z_new": network_new} if network_old is None else {"z_old": network_old, "z_new": network_new}
    rows = examples.targets_of(classes)
    with ShardWriter(path, network_new.embedding_dim, names=tuple(networks), classes=classes) as writer:
        for start in range(0, len(examples), at_once):
            images = examples.images[start : start + at_once]
            found = {name: embed(network, images) for name, network in networks.items()}
            writer.write(rows[start : start + at_once], **found)
    return Shards(path, check=False)


@dataclass
class Sweep:
    """What one pass over embeddings sums up: class sums for new prototypes, kernel sums for old ones; both mergeable.

    Attributes:
        classes: of the classes in the pass.
        kernels: of the old prototypes, `PROTOTYPE_BLOCK` of them each.
        prototypes: (K_old, D) old prototypes whose drift is wanted; (0, D): none.
        sigma: of SDC.
        dtype: in which kernel weights are computed. Pieces are added up in float64.
    """

    classes: ClassSums
    kernels: list[KernelSums]
    prototypes: torch.Tensor
    sigma: float
    dtype: torch.dtype

    @staticmethod
    def of(
        count: int, width: int, prototypes: torch.Tensor | None = None, sigma: float = 0.3, dtype: Any = None
    ) -> Sweep:
        """Begin a pass over embeddings of D = width numbers, of K_new = count classes; dtype None: float32."""
        prototypes = torch.zeros(0, width) if prototypes is None else prototypes
        check_prototypes(prototypes, width)
        kernels = [KernelSums.empty(len(block), width) for block in prototypes.split(PROTOTYPE_BLOCK)]
        nothing = ClassSums.of(torch.zeros(0, width), torch.zeros(0, dtype=torch.long), count)
        return Sweep(nothing, kernels, prototypes, sigma, dtype or torch.float32)

    def add(self, rows: torch.Tensor, z_new: torch.Tensor, z_old: torch.Tensor | None = None) -> Sweep:
        """Add a piece, in place: rows (n,), embeddings (n, D); z_old is needed where drift is. Returns itself."""
        self.classes = self.classes.merge(ClassSums.of(z_new, rows, len(self.classes.counts)))
        if not len(self.prototypes):
            return self
        if z_old is None:
            raise InputError("drift is measured from pairs: z_old is missing. Write z_old beside z_new.")
        old, new, mu = (z.to(self.dtype) for z in (z_old, z_new, self.prototypes))
        for at, block in enumerate(mu.split(PROTOTYPE_BLOCK)):
            part = kernel_sums(block, old, new, self.sigma, center=block.mean(dim=0))
            self.kernels[at] = self.kernels[at].merge(part)
        return self

    def merge(self, other: Sweep) -> Sweep:
        """Return the sums over both passes: of other shards, the same prototypes."""
        both = zip(self.kernels, other.kernels, strict=True)
        kernels = [mine.merge(theirs) for mine, theirs in both]
        return replace(self, classes=self.classes.merge(other.classes), kernels=kernels)

    def moved(self) -> Known:
        """Return the old prototypes moved, (K_old, D) (Eq. 13), and `effective_samples`."""
        kind = self.prototypes.dtype
        drift = torch.cat([sums.drift for sums in self.kernels])
        effective = torch.cat([sums.effective_samples for sums in self.kernels])
        return Known((self.prototypes.double() + drift).to(kind), {"effective_samples": effective.to(kind)})


def sweep(shards: Shards, prototypes: torch.Tensor | None = None, sigma: float = 0.3, *, dtype: Any = None) -> Sweep:
    """Go once over shards: class sums of `z_new`, and the kernel sums of SDC for (K, D) old prototypes if given."""
    if not shards.classes:
        raise InputError(f"{shards.path} does not say which classes its rows are. Write it with classes=....")
    names = ("z_new",) if prototypes is None or not len(prototypes) else ("z_new", "z_old")
    whole = Sweep.of(len(shards.classes), shards.width, prototypes, sigma, dtype)
    for piece in shards.pieces(*names):
        whole.add(piece.rows, piece["z_new"], piece.embeddings.get("z_old"))
    return whole


def update_from_shards(
    old: Prototypes | None, shards: Shards, drift: SDC | None, *, task: int, dtype: Any = None
) -> tuple[Prototypes, DriftReport]:
    """Return all prototypes after a task in one pass: as `prototypes.update_prototypes`, from shards.

    Args:
        old: the prototypes before the task, or None.
        shards: `z_new`, and `z_old` where drift is measured, of the task's images; with `classes`.
        drift: SDC, or None: old prototypes stay. Other estimators need all pairs at once.
        task: t, counted from 1.
        dtype: in which kernel weights are computed; None: float32.
    """
    if drift is not None and not isinstance(drift, SDC):
        raise InputError(f"{drift} cannot be measured in one pass over shards; SDC can. Use SDC(), or fewer images.")
    moving = old is not None and drift is not None and len(old) > 0
    whole = sweep(shards, old.means if old is not None and moving else None, drift.sigma if drift else 0.3, dtype=dtype)
    counts = whole.classes.counts
    if not bool(counts.all()):
        missing = shards.classes[int((counts == 0).int().argmax())]
        raise InputError(f"{shards.path} lists class {missing!r} and has no image of it. Leave it out of classes=....")
    computed = Prototypes.from_sums(shards.classes, whole.classes, task)
    return update_prototypes(old, computed, whole.moved() if moving else None)


def _at_least_float32(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.float() if tensor.dtype == torch.float16 else tensor
