"""Several processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Collection, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from ..store import Store
from .dispatch import Outcome
from .worker import Job, Report, Setting, compute, receiving, sending


@dataclass(frozen=True)
class LocalEngine:
    """Processes of this machine, each with this process's number of threads.

    Args:
        jobs: how many.
    """

    jobs: int
    device: str = "cpu"

    def opened(self) -> AbstractContextManager[None]:
        """Nothing is kept between trees."""
        return nullcontext()

    @contextmanager
    def workers(self, setting: Setting, store: Store | None, stages: int, report: Report) -> Iterator[_Processes]:
        """Start the processes; end them when all stages are done, or one has failed."""
        context = multiprocessing.get_context("spawn")
        events = context.SimpleQueue()
        jobs = min(self.jobs, stages)
        with receiving(events, report):
            pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(setting, events))
            try:
                yield _Processes(pool, jobs)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


class _Processes:
    """The pool, as the dispatch loop sees it."""

    retries = 0  # a pool that lost a process is broken, and memory that was short stays short

    def __init__(self, pool: ProcessPoolExecutor, jobs: int) -> None:
        self._pool = pool
        self._jobs = jobs

    def capacity(self) -> int:
        """As many as processes."""
        return self._jobs

    def submit(self, job: Job) -> Future[str]:
        """Give it to a free process."""
        try:
            return self._pool.submit(_compute, job)
        except BrokenProcessPool as error:  # a process died while nobody was waiting
            broken: Future[str] = Future()
            broken.set_exception(error)
            return broken

    def wait(self, running: Collection[Hashable]) -> list[tuple[Hashable, Outcome]]:
        """Wait until one has ended."""
        finished, _ = wait(cast(Collection[Future[str]], running), return_when=FIRST_COMPLETED)
        return [(future, _outcome(future)) for future in finished]


def _outcome(future: Future[str]) -> Outcome:
    try:
        return Outcome(future.result())
    except BrokenProcessPool:
        return Outcome(lost="it was killed, or memory ran out")


_setting: Setting | None = None
_events: Any = None


def _start(setting: Setting, events: Any) -> None:
    global _setting, _events
    _setting, _events = setting, events
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, killed perhaps: the run's lock is free then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _compute(job: Job) -> str:
    assert _setting is not None
    return compute(_setting, job, sending(_events.put))
