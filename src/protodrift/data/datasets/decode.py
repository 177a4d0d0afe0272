"""Decode many image files into one array on disk, in worker processes.

The processes are joblib's (loky): fresh ones, for torch's threads do not survive a fork, which import neither torch nor
the caller's script. They write pixels straight into the array.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from ...common.machine import usable_cpus
from ...errors import InputError, RunError
from ..folder import HOW_TO_SKIP
from ..images import Fit, decode_rows
from .base import OnProgress

CHUNK = 32  # images per job
WORTH_A_WORKER = 128  # images
IDLE_SECONDS = 5  # after which a worker ends that has nothing to do, or whose parent was killed

_Job = tuple[str, int, list[str], int, Fit]


def decode_files(
    parts: Sequence[tuple[Sequence[Path], Path]],
    *,
    size: int,
    fit: Fit,
    skip_bad: bool,
    workers: int | None = None,
    what: str = "decode",
    on_progress: OnProgress | None = None,
) -> list[dict[int, str]]:
    """Decode image files into new `.npy` files, each (N, 3, size, size) uint8, in their order.

    Args:
        parts: for each array, its N image files and the file to make.
        size, fit: see `read_image`.
        skip_bad: leave the rows of files that cannot be decoded black and go on; else the first one is an error.
        workers: processes; None: one per core, fewer for few images; 0 and 1: this process alone. The result is the
            same.
        what: shown in progress.
        on_progress: called with the number of files done.

    Returns:
        For each part, why each row that could not be decoded could not.
    """
    jobs: list[_Job] = []
    owners: list[int] = []
    for number, (files, out) in enumerate(parts):
        reserve(out, (len(files), 3, size, size))
        for start in range(0, len(files), CHUNK):
            jobs.append((str(out), start, [str(file) for file in files[start : start + CHUNK]], size, fit))
            owners.append(number)
    total = sum(len(files) for files, _ in parts)
    count = min(usable_cpus(), total // WORTH_A_WORKER) if workers is None else workers
    answers = (decode_rows(*job) for job in jobs) if count < 2 else _in_workers(count, jobs)
    bad: list[dict[int, str]] = [{} for _ in parts]
    done = 0
    with contextlib.closing(answers):  # after an error or Ctrl-C the workers stop at once
        for job, owner, failed in zip(jobs, owners, answers, strict=True):
            if failed and not skip_bad:
                raise InputError(f"{next(iter(failed.values()))} {HOW_TO_SKIP}")
            bad[owner].update(failed)
            done += len(job[2])
            if on_progress is not None:
                on_progress(what, done, total)
    return bad


def _in_workers(count: int, jobs: Sequence[_Job]) -> Generator[dict[int, str], None, None]:
    from joblib import Parallel, delayed

    pool = Parallel(count, backend="loky", return_as="generator", batch_size=1, idle_worker_timeout=IDLE_SECONDS)
    answers = pool(delayed(decode_rows)(*job) for job in jobs)
    try:
        for answer in answers:  # noqa: UP028 - `yield from` would close it before the warning is silenced
            yield answer
    except BrokenProcessPool as error:
        raise RunError(
            "a process that decodes images ended early: out of memory? Try again, with workers=0 if it happens again. "
            f"({error})"
        ) from None
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib's, of answers that nobody needs any more
            answers.close()


def reserve(out: Path, shape: tuple[int, ...]) -> None:
    """Make an array on disk with all its space: a mapped file that meets a full disk later would kill the process."""
    np.lib.format.open_memmap(out, mode="w+", dtype=np.uint8, shape=shape).flush()
    if hasattr(os, "posix_fallocate"):
        with open(out, "rb+") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
