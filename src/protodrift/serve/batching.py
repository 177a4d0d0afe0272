"""Concurrent requests become one forward pass.

One thread owns the network. While it works, requests queue up; what has queued up is the next batch. So a lone request
never waits for company, and many share the cost. Requests with many images come in pieces (`pieces`), and clients take
turns: a large request does not keep small ones waiting.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .turns import Turn, Turns

LARGEST = 16
"""Images in a batch. Small, so that requests of the next batch can be read and decoded while one is computed; of 64 and
16, tried once each, 16 served more images a second."""

LINGER = 0.004
"""Seconds to wait for more after a batch of several requests: their clients ask again at once, one after another."""


S = TypeVar("S")


def pieces(items: Sequence[S]) -> list[Sequence[S]]:
    """Return what fits into a batch each, in order.

    >>> [len(piece) for piece in pieces(range(40))]
    [16, 16, 8]
    """
    return [items[i : i + LARGEST] for i in range(0, len(items), LARGEST)]


@dataclass(frozen=True)
class Rows:
    """The answer to a piece of a request: rows start..stop of what a batch gave."""

    result: Any
    start: int
    stop: int


@dataclass(frozen=True)
class _Job:
    work: Callable[[np.ndarray], Any]
    images: np.ndarray
    turn: Turn
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
        self._began = math.inf
        self._turns: Turns[_Job] = Turns()
        self._changed, self._stopped = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="forward passes", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[np.ndarray], Any], images: np.ndarray, turn: Turn = ("", 0)) -> Future[Rows]:
        """Queue images, (n, ...); those with an equal `work` are computed together. A cancelled one is left out."""
        job = _Job(work, images, turn, Future())
        with self._changed:
            self._turns.put(turn, job)
            self._changed.notify()
        return job.future

    def busy_for(self) -> float:
        """Return for how many seconds the batch at hand is being computed."""
        return max(0.0, time.monotonic() - self._began)

    def close(self) -> None:
        """Finish what is queued, and stop."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        crowd = False
        while (first := self._take(math.inf)) is not None:
            batch = self._gather(first, self.linger if crowd else 0.0)
            crowd, self._began = len(batch) > 1, time.monotonic()
            self._compute(batch)
            seconds, self._began = time.monotonic() - self._began, math.inf
            with self._changed:
                for job in batch:
                    self._turns.charge(job.turn, seconds * len(job.images) / sum(len(one.images) for one in batch))
                del job
            del first, batch  # an old version must not live on in this frame while the thread waits

    def _take(self, until: float) -> _Job | None:
        """Return the next job; None if there is none by then, or none any more."""
        with self._changed:
            while (taken := self._turns.take()) is None:
                left = until - time.monotonic()
                if self._stopped or left <= 0:
                    return None
                self._changed.wait(None if left == math.inf else left)
            return taken[1]

    def _gather(self, first: _Job, linger: float) -> list[_Job]:
        """Return the first job and those after it that fit in with it."""
        batch, count, until = [first], len(first.images), time.monotonic() + linger
        while count < self.largest and (job := self._take(until)) is not None:
            alike = job.work == first.work and job.images.shape[1:] == first.images.shape[1:]
            if not alike or count + len(job.images) > self.largest:
                with self._changed:
                    self._turns.put(job.turn, job, first=True)
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
