"""Engines that compute the stages of a tree: this process, or several on this machine.

A tree says which stages are missing and what each is made from (`Tree.plan`). An engine computes them in any order
that respects that; results do not depend on the order, because a stage seeds itself. Stages go to and come from the
store, so workers share nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from .errors import ProtodriftError, RunError
from .methods import Method
from .progress import Reporter, describe
from .stages import Planned, Tree
from .trainer import OnProgress

_ORDER = ("warm", "root", "train", "close", "embed", "readout")
"""What to begin with when several stages are ready: other stages wait for trainings."""


def compute_stages(
    make_tree: Callable[[Reporter], Tree],
    tree: Tree,
    methods: Mapping[str, Method],
    *,
    jobs: int,
    reporter: Reporter,
) -> None:
    """Compute all missing stages of these methods in `jobs` processes, each with this process's number of threads.

    Args:
        make_tree: makes the same tree in a worker, on the shared store; it must be picklable.
        tree: the tree here.
        methods: what is asked for.
        jobs: how many processes.
        reporter: shows progress.

    Raises:
        RunError: if a worker dies; finished stages and epochs are kept.
    """
    plan = tree.plan(methods)
    if not plan:
        return
    reporter.plan({key: stage.kind for key, stage in plan.items()})
    context = multiprocessing.get_context("spawn")
    events = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(events, reporter), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(
        max_workers=min(jobs, len(plan)),
        mp_context=context,
        initializer=_start_worker,
        initargs=(make_tree, torch.get_num_threads(), events),
    )
    try:
        _dispatch(pool, plan, jobs, reporter)
    except BrokenProcessPool:
        raise RunError(
            "a worker process died (killed, or out of memory). Finished stages and epochs are kept: run the same "
            "command again, with fewer --jobs if memory is short."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        events.put(None)
        listener.join(timeout=5)


def _dispatch(pool: ProcessPoolExecutor, plan: Mapping[str, Planned], jobs: int, reporter: Reporter) -> None:
    waiting = dict(plan)
    done: set[str] = set()
    running: dict[Future[str], str] = {}
    while waiting or running:
        ready = [key for key, stage in waiting.items() if all(need in done for need in stage.needs)]
        ready.sort(key=lambda key: _ORDER.index(waiting[key].kind))  # stable: earlier tasks and methods first
        for key in ready[: jobs - len(running)]:
            stage = waiting.pop(key)
            running[pool.submit(_compute, stage.kind, stage.method, stage.task)] = key
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            key = running.pop(future)
            problem = future.result()
            if problem:
                raise RunError(problem)
            done.add(key)
            reporter.done(plan[key].kind)


class _Telling(Reporter):
    """A worker's reporter: progress goes to the process that shows it."""

    def __init__(self, events: Any) -> None:
        self._events = events

    @contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""
        label = describe(method, task)
        yield lambda at: self._events.put((os.getpid(), label, at))
        self._events.put((os.getpid(), label, None))


def _listen(events: Any, reporter: Reporter) -> None:
    while True:
        event = events.get()
        if event is None:
            return
        worker, label, at = event
        reporter.elsewhere(worker, label, at)


_tree: Tree | None = None


def _start_worker(make_tree: Callable[[Reporter], Tree], threads: int, events: Any) -> None:
    global _tree
    torch.set_num_threads(threads)
    _tree = make_tree(_Telling(events))


def _compute(kind: str, method: Method, task: int) -> str:
    """Compute one stage in a worker; return what went wrong, or ""."""
    assert _tree is not None
    try:
        _tree.compute(kind, method, task)
    except ProtodriftError as error:
        return str(error)
    except Exception:
        return f"a {kind} stage of task {task} failed in a worker:\n{traceback.format_exc()}"
    return ""


__all__ = ["compute_stages"]
