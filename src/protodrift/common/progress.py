"""Progress of long work: a live view in a terminal, plain lines in a log, nothing when not wanted."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

_PAUSE = 10.0  # seconds between two lines about the same thing


@dataclass(frozen=True)
class Progress:
    """Where a training is; given to the `on_progress` callback after every epoch. Task 0 is the warm-up."""

    task: int
    epoch: int
    epochs: int
    loss: float
    penalty: float

    def __str__(self) -> str:
        return f"loss {self.loss:.4f}" + (f" + {self.penalty:.4f}" if self.penalty else "")


OnProgress = Callable[[Progress], None]
OnCount = Callable[[str, int, "int | None"], None]
"""Called as `on_count(what, done, total)`; total is None where it is not known."""


class Reporter:
    """What long work says while it runs. This one is silent; the others show the same on a terminal or in a log."""

    def plan(self, stages: int, trainings: int) -> None:
        """Say how many stages will be computed, and how many of them are trainings."""

    @contextlib.contextmanager
    def training(self, label: str) -> Iterator[OnProgress | None]:
        """Give a callback for one training in this process."""
        yield None

    def worker(self, number: int, label: str, at: Progress | None) -> None:
        """Say where the training of a worker process is; None: it ended."""

    def done(self, *, training: bool) -> None:
        """Say that a stage was computed, and whether it was a training."""

    def count(self, what: str, done: int, total: int | None) -> None:
        """Say how much of something is done: files that are read, bytes that are downloaded."""

    @contextlib.contextmanager
    def reading(self, what: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Give a callback for reading `total` files: it is called with the number of those done."""
        yield None

    def result(self, text: str) -> None:
        """Say the result of a whole method."""

    def note(self, text: str) -> None:
        """Say something that a user wants to know, and that is no error."""

    def close(self) -> None:
        """Give the terminal back."""


silent = Reporter()


class _Pace:
    """How long a run still takes, by its trainings: all else takes little beside them.

    A warm-up, and a training that was not planned (one task of a classifier), is measured by its own epochs; the other
    trainings together, and those that went on from a stored epoch only from there.
    """

    def __init__(self) -> None:
        self._planned = self._done = 0
        self._gained = 0.0  # trainings, of those that ended
        self._running: dict[int, tuple[float, float]] = {}  # worker -> share of a training at its first report, and now
        self._warming = False
        self._since = time.monotonic()

    def plan(self, trainings: int) -> None:
        self._since = time.monotonic()
        self._planned += trainings

    def begin(self) -> None:
        if not self._planned:
            self._since = time.monotonic()

    def at(self, worker: int, progress: Progress) -> str:
        first, _ = self._running.get(worker, ((progress.epoch - 1) / progress.epochs, 0.0))
        now = progress.epoch / progress.epochs
        self._running[worker] = first, now
        self._warming = progress.task == 0
        if self._warming or not self._planned:
            gained, left = now - first, 1 - now
        else:
            gained = self._gained + sum(now - then for then, now in self._running.values())
            left = self._planned - self._done - sum(now for _, now in self._running.values())
        if left <= 0:
            return ""
        seconds = (time.monotonic() - self._since) / gained * left
        text = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return f"about {text} left" + " of the warm-up" * self._warming

    def ended(self, worker: int) -> None:
        first, now = self._running.pop(worker, (0.0, 0.0))
        self._gained += now - first

    def done(self) -> None:
        self._done += 1
        if self._warming:  # it says nothing about the time of the other trainings
            self._since, self._gained, self._warming = time.monotonic(), 0.0, False


class _Showing(Reporter):
    """What a log and a terminal have in common: it counts stages and trainings, and knows the pace."""

    def __init__(self) -> None:
        self._stages = self._done = 0
        self._pace = _Pace()

    def plan(self, stages: int, trainings: int) -> None:
        self._stages += stages
        self._pace.plan(trainings)

    @contextlib.contextmanager
    def training(self, label: str) -> Iterator[OnProgress | None]:
        self._pace.begin()
        try:
            yield partial(self.worker, 0, label)
        finally:
            self.worker(0, label, None)

    def worker(self, number: int, label: str, at: Progress | None) -> None:
        if at is not None:
            self._show(number, label, at, self._pace.at(number, at))
            return
        self._pace.ended(number)
        self._hide(number)

    def done(self, *, training: bool) -> None:
        self._done += 1
        if training:
            self._pace.done()

    @contextlib.contextmanager
    def reading(self, what: str, total: int) -> Iterator[Callable[[int], None] | None]:
        self.count(what, 0, total)
        try:
            yield lambda done: self.count(what, done, total)
        finally:
            self._hide(what)

    def _show(self, number: int, label: str, at: Progress, left: str) -> None:
        raise NotImplementedError

    def _hide(self, what: int | str) -> None:
        raise NotImplementedError


class LineReporter(_Showing):
    """Plain lines on standard error, for logs: one per training, one per method, and one every ten seconds between."""

    def __init__(self) -> None:
        super().__init__()
        self._trainings = self._begun = 0
        self._said: dict[int | str, float] = {}

    def plan(self, stages: int, trainings: int) -> None:
        """Say it."""
        super().plan(stages, trainings)
        self._trainings += trainings
        self.note(f"{stages} stages to compute, {trainings} of them trainings")

    @contextlib.contextmanager
    def training(self, label: str) -> Iterator[OnProgress | None]:
        """Number the trainings of this process."""
        self._begun += 1
        self._said[0] = time.monotonic()
        with super().training(f"training {self._begun}/{max(self._trainings, self._begun)} ({label})") as update:
            yield update

    def count(self, what: str, done: int, total: int | None) -> None:
        """Say how much is done."""
        self._said.setdefault(what, time.monotonic())
        if self._due(what):
            self.note(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def result(self, text: str) -> None:
        """Say it."""
        self.note(text)

    def note(self, text: str) -> None:
        """Say it."""
        print(text, file=sys.stderr, flush=True)

    def _show(self, number: int, label: str, at: Progress, left: str) -> None:
        stage = f"stage {self._done + 1}/{self._stages}" if self._done < self._stages else ""
        if self._due(number) or at.epoch == at.epochs:
            more = "".join(f", {part}" for part in (stage, left) if part)
            self.note(f"{label}: epoch {at.epoch}/{at.epochs} {at}{more}")

    def _hide(self, what: int | str) -> None:
        self._said.pop(what, None)

    def _due(self, what: int | str) -> bool:
        due = time.monotonic() - self._said.get(what, -_PAUSE) > _PAUSE
        if due:
            self._said[what] = time.monotonic()
        return due


class BarReporter(_Showing):
    """A live view in a terminal: all stages, the trainings under way, the last result."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        class Remaining(TimeRemainingColumn):
            def render(self, task: Any) -> Text:  # of all stages the pace is known better
                return Text() if task.description == "stages" else super().render(task)

        super().__init__()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}{task.fields[of]}"),
            TextColumn("{task.fields[text]}"),
            Remaining(),
            console=Console(stderr=True),
            transient=True,
        )
        self._rows: dict[int | str, TaskID] = {}
        self._last = self._left = ""
        self._bars.start()

    def plan(self, stages: int, trainings: int) -> None:
        """Show the bar of all stages."""
        super().plan(stages, trainings)
        self._show_stages()

    def done(self, *, training: bool) -> None:
        """Move the bar of all stages on."""
        super().done(training=training)
        self._show_stages()

    def count(self, what: str, done: int, total: int | None) -> None:
        """Show a bar for what is counted."""
        self._bar(what, what, done, total)

    def result(self, text: str) -> None:
        """Show the last result beside the bar of all stages."""
        self._last = text
        self._show_stages()

    def note(self, text: str) -> None:
        """Print it above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Give the terminal back."""
        self._bars.stop()

    def _show(self, number: int, label: str, at: Progress, left: str) -> None:
        self._left = left
        self._bar(number, label, at.epoch, at.epochs, str(at))
        self._show_stages()

    def _show_stages(self) -> None:
        if self._stages:
            text = ", ".join(part for part in (self._last, self._left) if part)
            self._bar("stages", "stages", self._done, self._stages, text)

    def _bar(self, row: int | str, label: str, done: int, total: int | None, text: str = "") -> None:
        of = f"/{total:,}" if total else ""
        if row not in self._rows:
            self._rows[row] = self._bars.add_task(label, total=total, of=of, text=text)
        self._bars.update(self._rows[row], description=label, completed=done, total=total, of=of, text=text)

    def _hide(self, what: int | str) -> None:
        if what in self._rows:
            self._bars.remove_task(self._rows.pop(what))


@contextlib.contextmanager
def reporting(enabled: bool = True) -> Iterator[Reporter]:
    """Choose how to show progress: live in a terminal, lines elsewhere; on standard error either way."""
    reporter = silent if not enabled else BarReporter() if sys.stderr.isatty() else LineReporter()
    try:
        yield reporter
    finally:
        reporter.close()


@contextlib.contextmanager
def counting() -> Iterator[OnCount]:
    """Give a callback for work that is counted: downloads in bytes, decoding in files."""
    with reporting() as reporter:
        yield reporter.count
