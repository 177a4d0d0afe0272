"""Progress of long work: a bar in a terminal, plain lines in a log, nothing when not wanted."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from .trainer import OnProgress, Progress


@contextlib.contextmanager
def training_progress(title: str, enabled: bool = True) -> Iterator[OnProgress | None]:
    """Give a callback for `trainer.advance` that shows where it is, on standard error."""
    if not enabled:
        yield None
    elif sys.stderr.isatty():
        with _bar(title) as update:
            yield update
    else:
        yield _lines(title)


@contextlib.contextmanager
def _bar(title: str) -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(title, total=None, text="")

        def update(at: Progress) -> None:
            text = f"epoch {at.epoch}/{at.epochs}  loss {at.loss:.4f}" + (f" + {at.penalty:.4f}" if at.penalty else "")
            bar.update(row, description=f"{title} task {at.task}", completed=at.epoch, total=at.epochs, text=text)

        yield update


def _lines(title: str) -> OnProgress:
    last = 0.0

    def update(at: Progress) -> None:
        nonlocal last
        if at.epoch == at.epochs or time.monotonic() - last > 10:
            last = time.monotonic()
            print(
                f"{title} task {at.task}: epoch {at.epoch}/{at.epochs} loss {at.loss:.4f}", file=sys.stderr, flush=True
            )

    return update
