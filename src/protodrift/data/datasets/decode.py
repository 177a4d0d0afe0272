"""Decode many image files into one array on disk, with worker processes.

A worker is a fresh Python that is told its work line by line and writes pixels straight into the array. It is not
forked (torch's threads do not survive that) and does not import the caller's script, as multiprocessing's would; it
ends by itself when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import InputError, RunError
from ..folder import HOW_TO_SKIP
from ..images import Job, decoder
from .base import OnProgress

CHUNK = 32  # images a message
WORTH_A_WORKER = 128  # images

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from protodrift.data.images import serve; serve()"


def decode_files(
    parts: Sequence[tuple[Sequence[Path], Path]],
    *,
    size: int,
    fit: str,
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
        workers: processes; None: one a core, fewer for few images; 0: this process alone. The result is the same.
        what: shown in progress.
        on_progress: called with the number of files done.

    Returns:
        For each part, why each row that could not be decoded could not.
    """
    jobs = []
    for number, (files, out) in enumerate(parts):
        reserve(out, (len(files), 3, size, size))
        for start in range(0, len(files), CHUNK):
            jobs.append({"part": number, "start": start, "files": [str(f) for f in files[start : start + CHUNK]]})
    total = sum(len(files) for files, _ in parts)
    bad: list[dict[int, str]] = [{} for _ in parts]
    done = 0

    def heard(job: Job, answer: dict[str, str]) -> None:
        nonlocal done
        if answer and not skip_bad:
            raise InputError(f"{next(iter(answer.values()))} {HOW_TO_SKIP}")
        bad[job["part"]].update({int(row): why for row, why in answer.items()})
        done += len(job["files"])
        if on_progress is not None:
            on_progress(what, done, total)

    task = {"outs": [str(out) for _, out in parts], "size": size, "fit": fit}
    count = min(_cores(), total // WORTH_A_WORKER) if workers is None else workers
    if count < 1 or not sys.executable:
        decode = decoder(task)
        for job in jobs:
            heard(job, decode(job))
    else:
        _with_workers(count, task, iter(jobs), heard)
    return bad


def reserve(out: Path, shape: tuple[int, ...]) -> None:
    """Make an array on disk with all its room: a mapped file that meets a full disk later would kill the process."""
    np.lib.format.open_memmap(out, mode="w+", dtype=np.uint8, shape=shape).flush()
    if hasattr(os, "posix_fallocate"):
        with open(out, "rb+") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def _with_workers(
    count: int, task: dict[str, Any], jobs: Iterator[Job], heard: Callable[[Job, dict[str, str]], None]
) -> None:
    lock = threading.Lock()
    processes = [_start(task) for _ in range(count)]
    try:
        with ThreadPoolExecutor(count) as threads:
            # A thread a worker: it only waits for its worker's answer.
            running = [threads.submit(_feed, process, jobs, heard, lock) for process in processes]
            try:
                before = wait(running, return_when=FIRST_EXCEPTION).done
            finally:
                # After Ctrl-C or an error the other threads wait for answers that nobody needs: end their workers.
                if not all(future.done() and not future.exception() for future in running):
                    _end(processes)
        failed = [future for future in running if future.exception() is not None]
        # A worker that was ended here is not what went wrong.
        for future in sorted(failed, key=lambda one: (isinstance(one.exception(), _WorkerGone), one not in before)):
            future.result()
    finally:
        _end(processes)


class _WorkerGone(RunError):
    pass


def _start(task: dict[str, Any]) -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C reaches this process, which ends its workers in order.
    process = subprocess.Popen(
        [sys.executable, "-c", _START, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    _pipe(process.stdin).write(json.dumps(task) + "\n")
    return process


def _feed(
    process: subprocess.Popen[str],
    jobs: Iterator[Job],
    heard: Callable[[Job, dict[str, str]], None],
    lock: threading.Lock,
) -> None:
    source, answers = _pipe(process.stdin), _pipe(process.stdout)
    while True:
        with lock:
            job = next(jobs, None)
        if job is None:
            return
        try:
            source.write(json.dumps(job) + "\n")
            source.flush()
            line = answers.readline()
        except (OSError, ValueError):
            line = ""
        if not line:
            raise _WorkerGone(
                f"a process that decodes images ended early (status {process.wait()}), near {job['files'][0]}: out of "
                "memory? Try again, with workers=0 if it happens again."
            )
        with lock:
            heard(job, json.loads(line))


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()  # they hold nothing that could be lost
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
