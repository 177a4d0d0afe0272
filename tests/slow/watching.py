"""A real `protodrift run` process, and what can be seen of it from outside: its run directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Progress = tuple[int, int]
"""Finished stages, and finished epochs of the training under way."""


class Running:
    """A process that works on a run directory.

    Attributes:
        new_epochs: every epoch that this process was seen to finish, as (training, epoch).
        started: when it began to work: imports are over, the lock is held, run.json is written.
    """

    def __init__(self, args: list[str], out: Path) -> None:
        self.out = out
        self.before = epochs(out)
        self.new_epochs: set[tuple[str, int]] = set()
        self.started: float | None = None
        self._born = time.time()
        self._log = out.with_name(out.name + ".log")
        with self._log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "protodrift", *args, "--out", str(out)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def until(self, reached: Callable[[], bool], timeout: float = 300) -> bool:
        """Watch until something is reached (True), or the process has ended (False)."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.started is None and self._at_work():
                self.started = time.monotonic()
            if self.started is not None:
                self.new_epochs |= epochs(self.out) - self.before
                if reached():
                    return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.001)
        self.kill()
        raise AssertionError(f"nothing came in {timeout} s:\n{self.log}")

    def kill(self) -> None:
        """Send SIGKILL, which no program can catch."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Let it come to its end."""
        assert not self.until(lambda: False)
        assert self.process.returncode == 0, self.log

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def _at_work(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return (self.out / "run.json").stat().st_mtime > self._born
        return False


def names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def stages(out: Path) -> set[str]:
    """The finished stages."""
    return {name for name in names(out / "stages") if not name.startswith(".")}


def drafts(out: Path) -> set[str]:
    """Stages that are half-written."""
    return {name.removeprefix(".new-") for name in names(out / "stages") if name.startswith(".")}


def epochs(out: Path) -> set[tuple[str, int]]:
    """The finished epochs of trainings under way."""
    found = (name.rsplit(".", 1) for name in names(out / "epochs") if not name.startswith("."))
    return {(name, int(epoch)) for name, epoch in found}


def progress(out: Path) -> Progress:
    """How far a run is; it never goes back."""
    done = stages(out)
    return len(done), max((epoch for name, epoch in epochs(out) if name not in done), default=0)


def results(out: Path) -> Any:
    """What results.json says, but for times and what is not a result."""
    document = json.loads((out / "results.json").read_bytes())
    for entry in document["results"]:
        entry.pop("seconds")
    return {key: value for key, value in document.items() if key not in ("command", "environment")}


def tensors(out: Path) -> dict[str, str]:
    """The sha256 of every tensor file of every finished stage; a draft that a kill left is not finished."""
    files = [path for path in out.glob("stages/*/*.safetensors") if not path.parent.name.startswith(".")]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
