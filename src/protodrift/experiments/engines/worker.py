"""What a worker does with a stage, whoever started it: a process of this machine, or of a Ray cluster."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Any

from ...common import machine
from ...common.progress import OnProgress, Progress, Reporter
from ...errors import ProtodriftError
from ...methods import Method
from ..tree import Tree

Report = Callable[[int, str, "Progress | None"], None]
"""Says where a worker's training is: the job's number, what is trained, the progress (None: it ended)."""

_PAUSE = 0.2  # seconds between two reports of one training: nobody reads faster


@dataclass(frozen=True)
class Job:
    """One stage, as it is sent to a worker.

    Attributes:
        number: its place in the plan; progress is shown under it, so a stage that is tried again keeps its line.
        key: what the stage is called where the plan was made; a worker that would call it otherwise refuses.
        kind, method, task: what to ask the tree for.
    """

    number: int
    key: str
    kind: str
    method: Method
    task: int


@dataclass(frozen=True)
class Setting:
    """What a worker needs before its first stage.

    Attributes:
        name: of the tree; a worker keeps the last one, with its data.
        make_tree: makes the tree on the shared store; picklable.
        threads: of every computation; stages carry it in their keys.
    """

    name: str
    make_tree: Callable[[Reporter], Tree]
    threads: int


class _Forwarding(Reporter):
    """A worker's reporter: progress goes to the process that shows it."""

    def __init__(self) -> None:
        self.number = 0
        self.report: Report = lambda number, label, at: None

    @contextmanager
    def training(self, label: str) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""
        said = 0.0

        def update(at: Progress) -> None:
            nonlocal said
            if at.epoch == at.epochs or time.monotonic() - said > _PAUSE:
                said = time.monotonic()
                self.report(self.number, label, at)

        try:
            yield update
        finally:
            self.report(self.number, label, None)


_forwarding = _Forwarding()
_held: tuple[str, Tree] | None = None


def compute(setting: Setting, job: Job, report: Report) -> str:
    """Compute one stage here; return what went wrong, or ""."""
    _forwarding.number, _forwarding.report = job.number, report
    try:
        tree = _tree(setting)
        stage = tree.stage(job.kind, job.method, job.task)
        if stage.key != job.key:
            return (
                f"a worker knows the {job.kind} stage of task {job.task} under another name than this process: its "
                "data, weights or protodrift are not the same. Give every machine the same files, or name a folder "
                "that all of them see with --data."
            )
        tree.value(stage)
    except ProtodriftError as error:
        return str(error)
    except Exception:
        return f"a {job.kind} stage of task {job.task} failed in a worker:\n{traceback.format_exc()}"
    return ""


def _tree(setting: Setting) -> Tree:
    global _held
    machine.tune(setting.threads)
    if _held is None or _held[0] != setting.name:
        _held = None  # its data may be large: gone before the next comes
        _held = setting.name, setting.make_tree(_forwarding)
    return _held[1]


# -- progress from process to process -------------------------------------------------------------------------------


def sending(put: Callable[[Any], None]) -> Report:
    """Return what puts reports into a queue, as plain values: a process that only holds it need not import torch."""
    return lambda number, label, at: put((number, label, None if at is None else astuple(at)))


@contextmanager
def receiving(events: Any, report: Report) -> Iterator[None]:
    """Pass on what workers put into a queue, until the block ends."""
    receiver = threading.Thread(target=receive, args=(events, report), daemon=True)
    receiver.start()
    try:
        yield
    finally:
        with suppress(Exception):  # a queue of Ray may be gone with its node
            events.put(None)
            receiver.join(timeout=5)


def receive(events: Any, report: Report) -> None:
    """Pass on what is in a queue, up to a None."""
    with suppress(Exception):  # the queue is gone: progress is not shown any more
        while (event := events.get()) is not None:
            number, label, at = event
            with suppress(Exception):  # a terminal that has gone: workers wait if nobody empties the queue
                report(number, label, None if at is None else Progress(*at))
