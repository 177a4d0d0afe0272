"""Progress of long work: a live view in a terminal, plain lines in a log, nothing when not wanted."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .trainer import OnProgress, Progress

if TYPE_CHECKING:
    import numpy as np

    from .methods import Method


class Reporter:
    """What a run tells while it works. This one is silent; the others show the same calls in their own way."""

    def plan(self, missing: Mapping[str, str]) -> None:
        """Hear which stages will be computed, key -> kind."""

    @contextlib.contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""
        yield None

    def done(self, kind: str) -> None:
        """Hear that a stage of this kind was computed."""

    def result(self, name: str, average_accuracy: np.ndarray, overall_accuracy: np.ndarray) -> None:
        """Hear the result of a whole method."""

    def close(self) -> None:
        """Give the terminal back."""


silent = Reporter()


class LineReporter(Reporter):
    """Plain lines on standard error, for logs: one a training, one a method, and one every ten seconds between."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._started = time.monotonic()
        self._trainings = 0
        self._training = 0

    def plan(self, missing: Mapping[str, str]) -> None:
        """Hear which stages will be computed."""
        self._total += len(missing)
        self._trainings += sum(kind == "train" for kind in missing.values())
        self._say(f"{len(missing)} stages to compute, {sum(k == 'train' for k in missing.values())} of them trainings")

    @contextlib.contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Give a callback for one training."""
        self._training += 1
        last = time.monotonic()
        where = f"training {self._training}/{max(self._trainings, self._training)} ({describe(method)}, task {task})"

        def update(at: Progress) -> None:
            nonlocal last
            if at.epoch == at.epochs or time.monotonic() - last > 10:
                last = time.monotonic()
                self._say(f"{where}: epoch {at.epoch}/{at.epochs} loss {at.loss:.4f}{_held(at)}{self._eta()}")

        yield update

    def done(self, kind: str) -> None:
        """Count."""
        self._done += 1

    def result(self, name: str, average_accuracy: np.ndarray, overall_accuracy: np.ndarray) -> None:
        """Say a method's result."""
        self._say(
            f"{name}: A_{len(average_accuracy)} {100 * average_accuracy[-1]:.1f}, all classes "
            f"{100 * overall_accuracy[-1]:.1f}"
        )

    def _eta(self) -> str:
        if not self._done or self._done >= self._total:
            return ""
        left = (time.monotonic() - self._started) / self._done * (self._total - self._done)
        return f", stage {self._done + 1}/{self._total}, about {_time(left)} left"

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class BarReporter(Reporter):
    """A live view in a terminal: all stages, the training under way, the last result."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._all = self._bars.add_task("stages", total=0, text="")
        self._one: Any = None
        self._total = 0
        self._bars.start()

    def plan(self, missing: Mapping[str, str]) -> None:
        """Hear which stages will be computed."""
        self._total += len(missing)
        self._bars.update(self._all, total=self._total)

    @contextlib.contextmanager
    def training(self, method: Method, task: int) -> Iterator[OnProgress | None]:
        """Show a bar for one training."""
        row = self._bars.add_task(f"{describe(method)} task {task}", total=None, text="")

        def update(at: Progress) -> None:
            self._bars.update(row, completed=at.epoch, total=at.epochs, text=f"loss {at.loss:.4f}{_held(at)}")

        try:
            yield update
        finally:
            self._bars.remove_task(row)

    def done(self, kind: str) -> None:
        """Move the upper bar on."""
        self._bars.advance(self._all)

    def result(self, name: str, average_accuracy: np.ndarray, overall_accuracy: np.ndarray) -> None:
        """Show the last result beside the upper bar."""
        self._bars.update(self._all, text=f"{name} {100 * average_accuracy[-1]:.1f}")

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


def describe(method: Method) -> str:
    """Name what a training is made of, shortly: `Triplet+EWC`."""
    parts = [type(part).__name__ for part in (method.objective, *method.penalties)]
    return "+".join(parts + ([type(method.memory).__name__] if method.memory is not None else []))


def _held(at: Progress) -> str:
    return f" + {at.penalty:.4f}" if at.penalty else ""


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
