"""The one loop behind all engines: stages go to workers as soon as what they are made from is there."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...common.progress import Reporter
from ...errors import RunError
from ...methods import Method
from ..stages import KINDS, Stage
from ..store import Store
from ..tree import Tree, announce
from .worker import Job, Report, Setting

_ORDER = list(KINDS)  # what to begin with when several stages are ready: other stages wait for trainings


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        problem: what went wrong in the stage; "": nothing, it is in the store.
        lost: why its worker is gone; "": it is not.
    """

    problem: str = ""
    lost: str = ""


class Workers(Protocol):
    """What an engine has while it works on one tree."""

    @property
    def retries(self) -> int:
        """How often a stage is tried again whose worker is gone."""

    def capacity(self) -> int:
        """Return how many stages fit at the same time, now."""

    def submit(self, job: Job) -> Hashable:
        """Begin a job; return a handle."""

    def wait(self, running: Collection[Hashable]) -> list[tuple[Hashable, Outcome]]:
        """Return jobs that ended, after a while also none."""


class Engine(Protocol):
    """Where stages are computed.

    Attributes:
        device: of the networks.
    """

    @property
    def device(self) -> str:
        """The device of the networks."""

    def opened(self) -> AbstractContextManager[None]:
        """Be ready for any number of trees."""

    def workers(
        self, setting: Setting, store: Store | None, stages: int, report: Report
    ) -> AbstractContextManager[Workers]:
        """Begin with one tree of so many missing stages; what still runs at the end is stopped."""


def compute_stages(
    make_tree: Callable[[Reporter], Tree],
    tree: Tree,
    methods: Mapping[str, Method],
    *,
    engine: Engine,
    reporter: Reporter,
) -> None:
    """Compute all missing stages of these methods on an engine, each with this process's number of threads.

    Args:
        make_tree: makes the same tree in a worker, on the shared store; it must be picklable.
        tree: the tree here.
        methods: what is asked for.
        engine: where; it must be open.
        reporter: shows progress.

    Raises:
        RunError: if a stage fails, or its worker dies too often; finished stages and epochs are kept.
    """
    plan = tree.plan(methods)
    if not plan:
        return
    announce(plan.values(), reporter)
    setting = Setting(uuid.uuid4().hex, make_tree, torch.get_num_threads())
    with engine.workers(setting, tree.store, len(plan), reporter.worker) as workers:
        dispatch(workers, plan, tree.store, reporter)


def dispatch(workers: Workers, plan: Mapping[str, Stage[Any]], store: Store | None, reporter: Reporter) -> None:
    """Give every stage of a plan to the workers, parents first; try again what lost its worker."""
    waiting = dict(plan)
    numbers = {key: number for number, key in enumerate(plan)}
    lost: Counter[str] = Counter()
    left = set(plan)  # not finished yet
    running: dict[Hashable, str] = {}
    while waiting or running:
        ready = [key for key, stage in waiting.items() if not any(parent.key in left for parent in stage.parents())]
        ready.sort(key=lambda key: _ORDER.index(waiting[key].kind))  # stable: earlier tasks and methods first
        # With nothing under way one is always sent: a cluster that is full or empty now will take it later.
        for key in ready[: max(workers.capacity() - len(running), 0 if running else 1)]:
            stage = waiting.pop(key)
            running[workers.submit(Job(numbers[key], key, stage.kind, stage.method, stage.task))] = key
        for handle, outcome in workers.wait(list(running)):
            key = running.pop(handle)
            stage = plan[key]
            if outcome.lost:
                lost[key] += 1
                if lost[key] > workers.retries:
                    raise RunError(_given_up(stage, lost[key], outcome.lost))
                reporter.worker(numbers[key], "", None)
                reporter.note(f"{stage}: its worker is gone ({outcome.lost}); it goes on in another one")
                if store is not None:
                    store.discard_draft(stage.kind, key)
                waiting[key] = stage
            elif outcome.problem:
                raise RunError(outcome.problem)
            else:
                left.remove(key)
                reporter.done(training=stage.trains)


def _given_up(stage: Stage[Any], times: int, why: str) -> str:
    return (
        f"a worker process died{f' {times} times' if times > 1 else ''} in the stage {stage}: {why}. Finished "
        "stages and epochs are kept: run the same command again, with fewer --jobs if memory is short."
    )
