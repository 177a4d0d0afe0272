"""Several processes of this machine."""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
import threading
from collections.abc import Collection, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

from ...errors import InputError
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

    def __post_init__(self) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that runs the script again
            raise SystemExit(_unguarded(_script()))

    def opened(self) -> AbstractContextManager[None]:
        """Nothing is kept between trees."""
        return nullcontext()

    @contextmanager
    def workers(self, setting: Setting, store: Store | None, stages: int, report: Report) -> Iterator[_Processes]:
        """Start the processes; end them when all stages are done, or one has failed."""
        context = multiprocessing.get_context("spawn")
        events, started = context.SimpleQueue(), context.Event()
        jobs = min(self.jobs, stages)
        with receiving(events, report):
            given = (setting, events, started)
            pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=given)
            try:
                yield _Processes(pool, jobs, started)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


class _Processes:
    """The pool, as the dispatch loop sees it."""

    retries = 0  # a pool that lost a process is broken, and memory that was short stays short

    def __init__(self, pool: ProcessPoolExecutor, jobs: int, started: Event) -> None:
        self._pool = pool
        self._jobs = jobs
        self._started = started

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
        """Wait until one has ended.

        Raises:
            InputError: if no process could even start, because each runs a script again that starts processes.
        """
        finished, _ = wait(cast(Collection[Future[str]], running), return_when=FIRST_COMPLETED)
        outcomes: list[tuple[Hashable, Outcome]] = [(future, _outcome(future)) for future in finished]
        script = _script()
        if any(outcome.lost for _, outcome in outcomes) and not self._started.is_set() and not _is_guarded(script):
            raise InputError(_unguarded(script))
        return outcomes


def _outcome(future: Future[str]) -> Outcome:
    try:
        return Outcome(future.result())
    except BrokenProcessPool:
        return Outcome(lost="it was killed, or memory ran out")


def _script() -> str:
    """Return the file that workers run again; "" in a notebook, at the prompt, and for `python -m protodrift`."""
    main = sys.modules["__main__"]
    again = not getattr(getattr(main, "__spec__", None), "name", "").endswith("__main__")
    return (getattr(main, "__file__", None) or "") if again else ""


def _is_guarded(script: str) -> bool:
    """Whether a script asks for its `__name__`, or is none."""
    try:
        tree = ast.parse(Path(script).read_bytes()) if script else ast.parse("__name__")
    except (OSError, ValueError, SyntaxError):
        return True
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(tree))


def _unguarded(script: str) -> str:
    return (
        f"{script or 'this program'} starts processes (jobs=2 or more), and each of them runs it again from the top. "
        'Put what it does below a line `if __name__ == "__main__":`, or leave jobs away.'
    )


_setting: Setting | None = None
_events: Any = None


def _start(setting: Setting, events: Any, started: Event) -> None:
    global _setting, _events
    _setting, _events = setting, events
    started.set()
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
