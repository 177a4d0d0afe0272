"""Learning while serving: photos wait in a queue, one thread learns them into the model directory, job after job.

Every job is one version, or nothing. Photos are held in memory until their job ends, and never written. Whatever else
writes to the directory (`protodrift learn`) takes turns with this by the directory's lock.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..common.files import shown
from ..common.labels import Label, label_like
from ..common.progress import OnProgress, Progress, Reporter
from ..data.examples import Examples
from ..data.folder import Found, Photos
from ..errors import InputError, ModelFileError, ProtodriftError
from ..model import versions
from ..model.defaults import choose
from ..model.learn import ModelDirectory, Plan, learn_task, locked_model
from ..training.state import check_new_classes

logger = logging.getLogger(__package__)

LONGEST_NAME = 100
"""Characters of a class name."""

WAITING = 32
"""Jobs that may wait; one more is refused."""

SHOWN = 20
"""Finished jobs that are remembered."""

PATIENCE = 60.0
"""Seconds to wait for another process that writes to the model."""


class Busy(ProtodriftError):
    """The queue is full."""


class Outdated(ProtodriftError):
    """What was to be undone is not the newest version any more."""


@dataclass
class Job:
    """One change of the model.

    Attributes:
        number: counted from 1.
        what: "teach" or "undo".
        label: the class that is taught; None: a version is undone.
        images: how many photos.
        state: where it is; a job that failed has changed nothing.
        epoch, epochs: how far the training of the network is; 0 of 0 where it is left as it is.
        version: the version that the model is after it.
        why: it failed.
        seconds: that it took.
        pixels: (N, size, size, 3) uint8, until it ends.
        undoes: the version to go back from.
    """

    number: int
    what: Literal["teach", "undo"]
    label: Label | None
    images: int
    state: Literal["waiting", "learning", "done", "failed"] = "waiting"
    epoch: int = 0
    epochs: int = 0
    version: int | None = None
    why: str = ""
    seconds: float = 0.0
    pixels: np.ndarray | None = field(default=None, repr=False)
    undoes: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        found = {name: getattr(self, name) for name in Job.__dataclass_fields__ if name not in ("pixels", "undoes")}
        return {**found, "class": found.pop("label"), "seconds": round(self.seconds, 3)}


class Teacher:
    """The queue and its thread.

    Args:
        path: the model directory.
        changed: called after every new version, before its job is done: the server takes it up.
        trains: whether the network trains in the next task. What waits is then learned as one task: a class alone gives
            a network nothing to tell it from.
    """

    def __init__(self, path: str | Path, changed: Callable[[], Any], trains: Callable[[], bool]) -> None:
        self.path, self.changed, self.trains = Path(path), changed, trains
        self._numbers = itertools.count(1)
        self._waiting: deque[Job] = deque()
        self._jobs: deque[Job] = deque(maxlen=WAITING + SHOWN)
        self._wake, self._stopped = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="learning", daemon=True)
        self._thread.start()

    def teach(self, name: str, pixels: np.ndarray) -> Job:
        """Queue photos of one class, (N, size, size, 3) uint8; a class that is known gets them in addition.

        Raises:
            InputError: if the name is none.
            Busy: if too many jobs wait.
        """
        return self._add(what="teach", label=class_name(name), images=len(pixels), pixels=pixels)

    def undo(self, version: int) -> Job:
        """Queue going back from a version to the one before.

        Raises:
            Busy: if too many jobs wait.
        """
        return self._add(what="undo", label=None, images=0, undoes=version)

    def documents(self) -> list[dict[str, Any]]:
        """Return all jobs that are remembered, the newest first, as JSON."""
        with self._wake:
            return [job.document() for job in reversed(self._jobs)]

    def close(self) -> None:
        """Stop after the epoch at hand: what is not learned by then is not learned."""
        with self._wake:
            self._stopped = True
            while self._waiting:
                self._fail(self._waiting.popleft(), "the server stopped.")
            self._wake.notify()
        self._thread.join()

    def _add(self, **job: Any) -> Job:
        with self._wake:
            if self._stopped or len(self._waiting) >= WAITING:
                raise Busy(f"{len(self._waiting)} changes wait already. Try again in a moment.")
            added = Job(next(self._numbers), **job)
            self._waiting.append(added)
            self._jobs.append(added)
            self._wake.notify()
            return added

    def _run(self) -> None:
        while jobs := self._next():
            self._do(jobs)
            del jobs  # photos must not live on in this frame while the thread waits

    def _next(self) -> list[Job]:
        """Return what is done next, as one task; nothing when the server stops."""
        with self._wake:
            while not self._waiting and not self._stopped:
                self._wake.wait()
            jobs = [] if self._stopped else [self._waiting.popleft()]
            while jobs and self._waiting and {jobs[0].what, self._waiting[0].what} == {"teach"} and self.trains():
                jobs.append(self._waiting.popleft())
            for job in jobs:
                job.state = "learning"
            return jobs

    def _do(self, jobs: list[Job]) -> None:
        began = time.monotonic()
        try:
            version = self._undone(jobs[0].undoes) if jobs[0].what == "undo" else self._learned(jobs)
            self.changed()
        except Exception as error:  # the model is what it was; the thread lives on
            if len(jobs) > 1 and not self._stopped:
                for job in jobs:  # one of them cannot be learned: the others can, one by one
                    self._do([job])
                return
            explained = isinstance(error, (ProtodriftError, OSError))
            logger.warning("not learned: %s", error)
            for job in jobs:
                self._fail(job, str(error) if explained else f"{type(error).__name__}: {error}")
            return
        for job in jobs:
            job.version, job.seconds, job.pixels = version, time.monotonic() - began, None
            job.state = "done"

    def _learned(self, jobs: list[Job]) -> int:
        with _patiently(self.path) as model:
            return learn_task(_plan(model, jobs), _Reported(jobs, lambda: self._stopped)).version

    def _undone(self, version: int) -> int:
        now = versions.read_current(self.path).version
        if now != version:
            raise Outdated(f"version {version} is not the newest any more: {now} is. Look at what was learned since.")
        return versions.undo(self.path)[1]

    def _fail(self, job: Job, why: str) -> None:
        job.why, job.state, job.pixels = why.replace(f"{self.path}", self.path.name), "failed", None


def class_name(text: str) -> str:
    """Return the name of a class as it is stored: one line, composed, without spaces around it.

    >>> class_name("  house  sparrow ")
    'house sparrow'

    Raises:
        InputError: if nothing is left, or it cannot be shown.
    """
    name = unicodedata.normalize("NFC", " ".join(text.split()))
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise InputError(
            f"a class needs a name of 1 to {LONGEST_NAME} letters that can be shown; got {shown(text)[:120]!r}."
        )
    return name


def _plan(model: ModelDirectory, jobs: list[Job]) -> Plan:
    """Return the task of photos that are in memory."""
    if model.classifier is None:
        raise ModelFileError(f"there is no model at {model.path} any more.")
    known, labels, parts = frozenset(model.labels), [], []
    for job in jobs:
        assert job.pixels is not None
        assert job.label is not None
        job.label = label_like(job.label, model.labels)
        check_new_classes(model.classifier.state_, (job.label,), "refresh")
        labels += [job.label] * len(job.pixels)
        parts.append(job.pixels)
    counts = {str(label): count for label, count in Counter(labels).items()}
    again = [str(label) for label in set(labels) & known]
    images = torch.from_numpy(np.ascontiguousarray(np.concatenate(parts).transpose(0, 3, 1, 2)))
    return Plan(
        model,
        Found("the page", (), ()),
        Photos(Examples(images, tuple(labels)), (), ()),
        choose(model.classifier, counts, {}, again),
        new={label: count for label, count in counts.items() if label not in again},
        refreshed={label: count for label, count in counts.items() if label in again},
        skipped_known=0,
    )


@contextlib.contextmanager
def _patiently(path: Path) -> Iterator[ModelDirectory]:
    """Lock the model; another process that writes to it is waited for."""
    until = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as held:
        while True:
            try:
                model = held.enter_context(locked_model(path))
                break
            except ModelFileError:
                if time.monotonic() > until or not (path / "CURRENT").exists():
                    raise
                time.sleep(0.2)
        yield model


class _Reported(Reporter):
    """Notes in jobs how far their training is, and ends it when the server stops."""

    def __init__(self, jobs: list[Job], stopped: Callable[[], bool]) -> None:
        self.jobs, self.stopped = jobs, stopped

    @contextlib.contextmanager
    def training(self, label: str) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""

        def on_progress(at: Progress) -> None:
            for job in self.jobs:
                job.epoch, job.epochs = at.epoch, at.epochs
            if self.stopped():
                raise InputError("the server stopped.")

        yield on_progress
