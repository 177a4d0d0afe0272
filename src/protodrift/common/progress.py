"""Progress of long work: a live view in a terminal, plain lines in a log, nothing when not wanted."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ..methods import Method
    from ..training.trainer import OnProgress, Progress


class Reporter:
    """What a run tells while it works. This one is silent; the others show the same calls in their own way."""

    def plan(self, missing: Mapping[str, str]) -> None:
        """Hear which stages will be computed, key -> kind."""

    @contextlib.contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""
        yield None

    @contextlib.contextmanager
    def reading(self, what: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Give a callback for reading `total` files: it is called with the number of those done."""
        yield None

    def elsewhere(self, worker: int, label: str, at: Progress | None) -> None:
        """Hear of a training in a worker process; None: it ended."""

    def note(self, text: str) -> None:
        """Hear something that a user wants to know, and that is no error."""

    def done(self, kind: str) -> None:
        """Hear that a stage of this kind was computed."""

    def result(self, name: str, average_accuracy: np.ndarray, overall_accuracy: np.ndarray) -> None:
        """Hear the result of a whole method."""

    def close(self) -> None:
        """Give the terminal back."""


silent = Reporter()

TRAININGS = ("warm", "train")  # the kinds of stages that train a network


class _Pace:
    """How long a run still takes, by its trainings: all else takes little beside them.

    A warm-up, and a training that was not planned (one lesson), is measured by its own epochs; the other trainings
    together, and those that went on from a stored epoch only from there.
    """

    def __init__(self) -> None:
        self._planned = self._done = 0
        self._gained = 0.0  # trainings, of those that ended
        self._running: dict[int, tuple[float, float]] = {}  # worker -> share of a training when first heard of, and now
        self._since = time.monotonic()

    def plan(self, missing: Mapping[str, str]) -> None:
        self._since = time.monotonic()
        self._planned += sum(kind == "train" for kind in missing.values())

    def begin(self) -> None:
        if not self._planned:
            self._since = time.monotonic()

    def at(self, worker: int, progress: Progress) -> str:
        first, _ = self._running.get(worker, ((progress.epoch - 1) / progress.epochs, 0.0))
        self._running[worker] = first, progress.epoch / progress.epochs
        if progress.task == 0 or not self._planned:
            gained, left = self._running[worker][1] - first, 1 - self._running[worker][1]
        else:
            gained = self._gained + sum(now - then for then, now in self._running.values())
            left = self._planned - self._done - sum(now for _, now in self._running.values())
        if left <= 0:
            return ""
        seconds = (time.monotonic() - self._since) / gained * left
        return f"about {_time(seconds)} left" + " of the warm-up" * (progress.task == 0)

    def ended(self, worker: int) -> None:
        first, now = self._running.pop(worker, (0.0, 0.0))
        self._gained += now - first

    def done(self, kind: str) -> None:
        if kind == "warm":
            self._since, self._gained = time.monotonic(), 0.0
        self._done += kind == "train"


class LineReporter(Reporter):
    """Plain lines on standard error, for logs: one a training, one a method, and one every ten seconds between."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._pace = _Pace()
        self._trainings = 0
        self._training = 0
        self._said: dict[int, float] = {}

    def plan(self, missing: Mapping[str, str]) -> None:
        """Hear which stages will be computed."""
        self._total += len(missing)
        self._pace.plan(missing)
        self._trainings += sum(kind in TRAININGS for kind in missing.values())
        self._say(
            f"{len(missing)} stages to compute, {sum(k in TRAININGS for k in missing.values())} of them trainings"
        )

    @contextlib.contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""
        self._training += 1
        self._pace.begin()
        last = time.monotonic()
        where = f"training {self._training}/{max(self._trainings, self._training)} ({describe(method, task)})"

        def update(at: Progress) -> None:
            nonlocal last
            left = self._left(0, at)
            if at.epoch == at.epochs or time.monotonic() - last > 10:
                last = time.monotonic()
                self._say(f"{where}: epoch {at.epoch}/{at.epochs} loss {at.loss:.4f}{_held(at)}{left}")

        try:
            yield update
        finally:
            self._pace.ended(0)

    @contextlib.contextmanager
    def reading(self, what: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Say every ten seconds how far the reading is."""
        last = time.monotonic()

        def update(done: int) -> None:
            nonlocal last
            if time.monotonic() - last > 10:
                last = time.monotonic()
                self._say(f"{what}: {done}/{total}")

        yield update

    def elsewhere(self, worker: int, label: str, at: Progress | None) -> None:
        """Say it, at most every ten seconds for a worker, and at the end of a training."""
        if at is None:
            self._pace.ended(worker)
            return
        left = self._left(worker, at)
        if at.epoch == at.epochs or time.monotonic() - self._said.get(worker, 0.0) > 10:
            self._said[worker] = time.monotonic()
            self._say(f"{label}: epoch {at.epoch}/{at.epochs} loss {at.loss:.4f}{_held(at)}{left}")

    def note(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def done(self, kind: str) -> None:
        """Count."""
        self._done += 1
        self._pace.done(kind)

    def result(self, name: str, average_accuracy: np.ndarray, overall_accuracy: np.ndarray) -> None:
        """Say a method's result."""
        self._say(
            f"{name}: A_{len(average_accuracy)} {100 * average_accuracy[-1]:.1f}, all classes "
            f"{100 * overall_accuracy[-1]:.1f}"
        )

    def _left(self, worker: int, at: Progress) -> str:
        stage = f"stage {self._done + 1}/{self._total}" if self._done < self._total else ""
        return "".join(f", {part}" for part in (stage, self._pace.at(worker, at)) if part)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class BarReporter(Reporter):
    """A live view in a terminal: all stages, the training under way, the last result."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        class Remaining(TimeRemainingColumn):
            def render(self, task: Any) -> Text:  # of all stages the pace is known better
                return Text() if task.description == "stages" else super().render(task)

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            Remaining(),
            console=Console(stderr=True),
            transient=True,
        )
        self._all = self._bars.add_task("stages", total=0, text="")
        self._elsewhere: dict[int, Any] = {}
        self._total = 0
        self._pace = _Pace()
        self._last = self._left = ""
        self._bars.start()

    def plan(self, missing: Mapping[str, str]) -> None:
        """Hear which stages will be computed."""
        self._total += len(missing)
        self._pace.plan(missing)
        self._bars.update(self._all, total=self._total)

    @contextlib.contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Show a bar for one training."""
        row = self._bars.add_task(describe(method, task), total=None, text="")
        self._pace.begin()

        def update(at: Progress) -> None:
            self._above(left=self._pace.at(0, at))
            self._bars.update(row, completed=at.epoch, total=at.epochs, text=f"loss {at.loss:.4f}{_held(at)}")

        try:
            yield update
        finally:
            self._pace.ended(0)
            self._bars.remove_task(row)

    @contextlib.contextmanager
    def reading(self, what: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Show a bar for reading files."""
        row = self._bars.add_task(what, total=total, text="")
        try:
            yield lambda done: self._bars.update(row, completed=done)
        finally:
            self._bars.remove_task(row)

    def elsewhere(self, worker: int, label: str, at: Progress | None) -> None:
        """Show a bar for the training of each worker."""
        if at is None:
            self._pace.ended(worker)
            if worker in self._elsewhere:
                self._bars.remove_task(self._elsewhere.pop(worker))
            return
        if worker not in self._elsewhere:
            self._elsewhere[worker] = self._bars.add_task(label, total=at.epochs, text="")
        self._above(left=self._pace.at(worker, at))
        text = f"loss {at.loss:.4f}{_held(at)}"
        self._bars.update(self._elsewhere[worker], description=label, completed=at.epoch, total=at.epochs, text=text)

    def note(self, text: str) -> None:
        """Print it above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def done(self, kind: str) -> None:
        """Move the upper bar on."""
        self._pace.done(kind)
        self._bars.advance(self._all)

    def result(self, name: str, average_accuracy: np.ndarray, overall_accuracy: np.ndarray) -> None:
        """Show the last result beside the upper bar."""
        self._above(last=f"{name} {100 * average_accuracy[-1]:.1f}")

    def _above(self, *, last: str | None = None, left: str | None = None) -> None:
        self._last = self._last if last is None else last
        self._left = self._left if left is None else left
        self._bars.update(self._all, text=", ".join(part for part in (self._last, self._left) if part))

    def close(self) -> None:
        """Give the terminal back."""
        self._bars.stop()


@contextlib.contextmanager
def reporting(enabled: bool = True) -> Iterator[Reporter]:
    """Choose how to show progress: live in a terminal, lines elsewhere; on standard error either way."""
    reporter = silent if not enabled else BarReporter() if sys.stderr.isatty() else LineReporter()
    try:
        yield reporter
    finally:
        reporter.close()


@contextlib.contextmanager
def counting(enabled: bool = True) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Give a callback `(what, done, total)` for work that is counted: downloads in bytes, decoding in files.

    A bar in a terminal, a line every ten seconds elsewhere; on standard error either way.
    """
    if not enabled:
        yield None
        return
    if not sys.stderr.isatty():
        last: dict[str, float] = {}

        def line(what: str, done: int, total: int | None) -> None:
            if time.monotonic() - last.setdefault(what, time.monotonic()) > 10:
                last[what] = time.monotonic()
                print(f"{what}: {done:,}" + (f" of {total:,}" if total else ""), file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    shown = TextColumn("{task.fields[count]}")
    columns = (TextColumn("{task.description}"), BarColumn(), shown, TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        rows: dict[str, Any] = {}

        def bar(what: str, done: int, total: int | None) -> None:
            if what not in rows:
                rows[what] = bars.add_task(what, total=total, count="")
            count = f"{done:,}" + (f" / {total:,}" if total else "")
            bars.update(rows[what], completed=done, total=total, count=count)

        yield bar


def describe(method: Method, task: int) -> str:
    """Name a training shortly: `Triplet+EWC, task 2`; task 0 is the warm-up."""
    if task == 0:
        return "warm-up"
    parts = [type(part).__name__ for part in (method.objective, *method.penalties)]
    parts += [type(method.exemplars).__name__] if method.exemplars is not None else []
    return f"{'+'.join(parts)}, task {task}"


def _held(at: Progress) -> str:
    return f" + {at.penalty:.4f}" if at.penalty else ""


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
