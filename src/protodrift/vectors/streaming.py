"""Move a whole store, chunk by chunk: read, move, write; whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..common.files import sync_directory
from ..drift.base import Drift
from ..errors import InputError
from .formats import NpySink, Sink, Source, format_of, open_sink, open_source, read_npy, stored_dtype
from .mover import HeldOutReport, Mover, fit_mover

OnProgress = Callable[[str, int, "int | None"], None]

_SIDECARS = ("uncertainty", "reembed")
_CHUNK_BYTES = 64 * 2**20  # of float32 vectors, the wider of old and new


@dataclass(frozen=True)
class Transported:
    """What was moved, and how well.

    Attributes:
        report: Recall@k and residuals on held-out pairs.
        count: vectors moved.
        width_old, width_new: their sizes.
        dtype_old, dtype_new: types of the stored numbers.
        out: the new store.
        uncertainty: the file of (N,) float32 uncertainties; None: a column of the Parquet file, or not wanted.
        reembed: the file of row numbers worth re-embedding first; None: not wanted.
        dropped: what the new format could not hold, in words; empty: nothing.
    """

    report: HeldOutReport
    count: int
    width_old: int
    width_new: int
    dtype_old: str
    dtype_new: str
    out: Path
    uncertainty: Path | None
    reembed: Path | None
    dropped: str


def transport(
    pairs_old: str | Path | np.ndarray,
    pairs_new: str | Path | np.ndarray,
    vectors: str | Path,
    out: str | Path,
    *,
    drift: Drift | None = None,
    metric: str | None = None,
    uncertainty: bool = True,
    reembed: int = 0,
    column: str | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Transported:
    """Move stored embeddings of an old model into the space of a new one, from a sample embedded by both.

    Args:
        pairs_old, pairs_new: (N, D_old) and (N, D_new), arrays or .npy files; row i of both is the same item.
        vectors: the store: .npy, .parquet or a flat .faiss index of D_old vectors. It is not changed.
        out: the new store; the ending of its name is the format.
        drift: the estimator; None: the best of a few on held-out pairs.
        metric: of the searches: "l2", "ip" or "cosine"; None: the index's own, else "l2".
        uncertainty: estimate for every vector how far it may be off: `OUT.uncertainty.npy`, or a Parquet column.
        reembed: write the numbers of so many rows, the most uncertain first, to `OUT.reembed.npy`.
        column: of a Parquet file, where several could be meant.
        held_out: share of the pairs that chooses and judges.
        seed: of that split.
        force: replace files that are there: the store, and with it all that an earlier run left beside it.
        on_progress: called as `on_progress(what, done, total)`.

    Raises:
        InputError: saying what is wrong with the pairs, the store or the target; nothing is written then.
    """
    path, target = Path(vectors), Path(out)
    with contextlib.closing(open_source(path, column)) as source:
        metric = metric or source.metric or "l2"
        sidecars = _sidecars(target, uncertainty, reembed)
        _check_target(path, target, reembed, source, force)
        old, new = _pairs(pairs_old), _pairs(pairs_new)
        if old.ndim == 2 and source.width != old.shape[1]:
            raise InputError(
                f"{path} holds vectors of {source.width} numbers, but the old pairs have {old.shape[1]}: they must "
                "come from the same model."
            )
        mover = fit_mover(old, new, drift=drift, metric=metric, held_out=held_out, seed=seed)
        _stream(source, target, mover, metric, uncertainty, sidecars, reembed, on_progress)
        return Transported(
            mover.report,
            source.count,
            mover.width_old,
            mover.width_new,
            source.dtype.name,
            stored_dtype(target, source.dtype).name,
            target,
            sidecars.get("uncertainty"),
            sidecars.get("reembed"),
            _dropped(source, target),
        )


def _stream(
    source: Source,
    target: Path,
    mover: Mover,
    metric: str,
    uncertainty: bool,
    sidecars: dict[str, Path],
    reembed: int,
    on_progress: OnProgress | None,
) -> None:
    dtype = stored_dtype(target, source.dtype)
    apply, with_uncertainty = mover.applied(), uncertainty or reembed > 0
    rows = max(1, _CHUNK_BYTES // (4 * max(mover.width_old, mover.width_new)))
    worst, done = _Worst(reembed), 0
    with contextlib.ExitStack() as stack:
        main = stack.enter_context(open_sink(target, source, mover.width_new, dtype, metric, uncertainty))
        sidecar_sinks: list[Sink] = []
        if "uncertainty" in sidecars:
            one = NpySink(sidecars["uncertainty"], (source.count,), np.dtype(np.float32))
            sidecar_sinks.append(stack.enter_context(one))
        for chunk in source.chunks(rows):
            x = torch.from_numpy(np.array(chunk.vectors, dtype=np.float32))
            moved = apply(x)
            _check_moved(source, x, moved, done, dtype)
            uncertain = mover.uncertainty(x).numpy() if with_uncertainty else None
            main.write(moved.numpy(), uncertain, chunk.columns)
            if uncertain is not None:
                for sink in sidecar_sinks:
                    sink.write(uncertain, None, None)
                worst.see(uncertain, done)
            done += len(x)
            if on_progress is not None:
                on_progress("vectors", done, source.count)
        if "reembed" in sidecars:
            rows_sink = NpySink(sidecars["reembed"], (len(worst.rows),), np.dtype(np.int64))
            sidecar_sinks.append(stack.enter_context(rows_sink))
            rows_sink.write(worst.rows)
        for sink in (*sidecar_sinks, main):
            sink.finish()
        _remove_stale(target, sidecars)
        for sink in (*sidecar_sinks, main):  # the store last: where it is, all is
            sink.commit()


class _Worst:
    """The rows of the largest values so far, largest first; of equal ones the earlier row."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values = np.empty(0, np.float32)
        self.rows = np.empty(0, np.int64)

    def see(self, values: np.ndarray, start: int) -> None:
        """Look at the values of rows start, start + 1, ..."""
        if not self._count:
            return
        values = np.concatenate([self._values, values])
        rows = np.concatenate([self.rows, np.arange(start, start + len(values) - len(self.rows))])
        best = np.lexsort((rows, -values))[: self._count]
        self._values, self.rows = values[best], rows[best]


def _check_moved(source: Source, x: torch.Tensor, moved: torch.Tensor, start: int, dtype: np.dtype[np.generic]) -> None:
    """Refuse vectors that are not finite, before or after: a search would meet them much later, without an error."""
    finite = torch.isfinite(moved).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).int().argmax())
        cause = "cannot be moved" if bool(torch.isfinite(x[row]).all()) else "has NaN or infinite numbers"
        raise InputError(f"{source.path}: the vector in row {start + row} {cause}. Drop it, or embed it again.")
    if dtype == np.float16 and float(moved.abs().max()) > 65504:
        raise InputError(f"{source.path}: moved vectors do not fit float16. Convert the store to float32 first.")


def _pairs(value: str | Path | np.ndarray) -> np.ndarray:
    return read_npy(Path(value)) if isinstance(value, (str, Path)) else np.asarray(value)


def _beside(target: Path, name: str) -> Path:
    return target.with_name(f"{target.name}.{name}.npy")


def _sidecars(target: Path, uncertainty: bool, reembed: int) -> dict[str, Path]:
    wanted = {"uncertainty": uncertainty and format_of(target) != "parquet", "reembed": bool(reembed)}
    return {name: _beside(target, name) for name in _SIDECARS if wanted[name]}


def _remove_stale(target: Path, sidecars: dict[str, Path]) -> None:
    """Remove what an earlier run left and this one does not replace: its rows are those of another store."""
    stale = [_beside(target, name) for name in _SIDECARS if name not in sidecars]
    for file in stale:
        file.unlink(missing_ok=True)
    sync_directory(target.parent)  # before the new store has its name, also if the power fails in between


def _check_target(path: Path, target: Path, reembed: int, source: Source, force: bool) -> None:
    if isinstance(reembed, bool) or reembed < 0 or reembed > source.count:
        raise InputError(f"reembed={reembed} must be between 0 and the {source.count} vectors of {path}.")
    if not source.count:
        raise InputError(f"{path} holds no vectors.")
    stored_dtype(target, source.dtype)  # refuses an unknown ending
    # Also the sidecars that this run does not write: beside a new store their row numbers would be wrong.
    for file in (target, *(_beside(target, name) for name in _SIDECARS)):
        if file.is_dir():
            raise InputError(f"{file} is a folder. Name a file.")
        if file.exists() and file.samefile(path):
            raise InputError(f"{file} is the store itself. Write the moved vectors to another file.")
        if file.exists() and not force:
            raise InputError(
                f"{file} is already there. Name another file, or replace the store and what lies beside it with "
                "--force (force=True)."
            )
    target.parent.mkdir(parents=True, exist_ok=True)


def _dropped(source: Source, target: Path) -> str:
    """Name what the store holds and another format cannot."""
    if source.keeps is None or format_of(source.path) == format_of(target):
        return ""
    return "the ids of the index" if format_of(source.path) == "faiss" else "the other columns"
