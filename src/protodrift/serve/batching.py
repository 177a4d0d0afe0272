"""Concurrent requests become one forward pass.

One thread owns the network. While it works, requests queue up; what has queued up is the next batch. So a lone request
never waits for company, and many share the cost. A request is never split: all its images are answered by one version.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 16
"""Images in a batch, unless one request alone brings more. Small, so that requests of the next batch can be read and
decoded while one is computed; of 64 and 16, tried once each, 16 served more images a second."""

LINGER = 0.004
"""Seconds to wait for more after a batch of several requests: their clients ask again at once, one after another."""


@dataclass(frozen=True)
class Rows:
    """The answer to a request: rows start..stop of what a batch gave."""

    result: Any
    start: int
    stop: int


@dataclass(frozen=True)
class _Job:
    work: Callable[[np.ndarray], Any]
    images: np.ndarray
    future: Future[Rows]


class Batcher:
    """Runs work on images in one thread, many requests at a time.

    Args:
        largest: images in a batch.
        linger: seconds to wait for more while there is a crowd.
    """

    def __init__(self, largest: int = LARGEST, linger: float = LINGER) -> None:
        self.largest, self.linger = largest, linger
        self.batches, self.images = 0, 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._next: _Job | None = None
        self._thread = threading.Thread(target=self._run, name="forward passes", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[np.ndarray], Any], images: np.ndarray) -> Future[Rows]:
        """Queue images, (n, ...); those with an equal `work` are computed together. A cancelled one is left out."""
        future: Future[Rows] = Future()
        self._jobs.put(_Job(work, images, future))
        return future

    def close(self) -> None:
        """Finish what is queued, and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        crowd = False
        while (first := self._take()) is not None:
            batch = self._gather(first, self.linger if crowd else 0.0)
            crowd = len(batch) > 1
            self._compute(batch)
            del first, batch  # an old version must not live on in this frame while the thread waits

    def _take(self) -> _Job | None:
        job, self._next = self._next, None
        return job if job is not None else self._jobs.get()

    def _gather(self, first: _Job, linger: float) -> list[_Job]:
        """Return the first job and those after it that fit in with it."""
        batch, count, until = [first], len(first.images), time.monotonic() + linger
        while count < self.largest:
            try:
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)  # stop after this batch
                break
            alike = job.work == first.work and job.images.shape[1:] == first.images.shape[1:]
            if not alike or count + len(job.images) > self.largest:
                self._next = job
                break
            batch.append(job)
            count += len(job.images)
        return batch

    def _compute(self, batch: Sequence[_Job]) -> None:
        wanted = [job for job in batch if job.future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            result = wanted[0].work(np.concatenate([job.images for job in wanted]))
        except BaseException as error:  # goes to those who asked; the thread lives on
            for job in wanted:
                job.future.set_exception(error)
            return
        self.batches += 1
        self.images += sum(len(job.images) for job in wanted)
        start = 0
        for job in wanted:
            with contextlib.suppress(InvalidStateError):
                job.future.set_result(Rows(result, start, start + len(job.images)))
            start += len(job.images)
