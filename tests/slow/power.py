"""A disk that loses power: it records what a program does to a folder, and gives what may be left of it at any moment.

The program works on a real folder. After every call that makes, renames, removes or syncs something there, the names in
each directory and the bytes of each file are noted, and which of them were synced by then. What POSIX promises after a
power loss is no more than that: a directory has the names that it had when it was last synced, or at any time since,
each directory for itself; a file has the bytes that it had when it was last synced, or fewer, or none.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Names = dict[str, int]


@dataclass
class Moment:
    """The folder after one call.

    Attributes:
        what: the call.
        names: for each directory the names that it may have after a power loss, oldest first: since it was synced.
        contents: for each file what it may hold: what was synced (None: nothing was), and what it holds now.
    """

    what: str
    names: dict[int, list[Names]]
    contents: dict[int, tuple[bytes | None, bytes]]


@dataclass
class Disk:
    """Everything that happened to a folder."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    _ids: dict[int, int] = field(default_factory=dict)  # number of a file on disk -> ours, which is never used again
    _next: int = 0
    _names: dict[int, list[Names]] = field(default_factory=dict)
    _synced: dict[int, bytes] = field(default_factory=dict)
    _now: dict[int, bytes] = field(default_factory=dict)

    def begin(self) -> None:
        """Take all that is there as synced."""
        self._look()
        self._names = {one: seen[-1:] for one, seen in self._names.items()}
        self._synced = dict(self._now)
        self._note("begin")

    def _look(self) -> None:
        alive: set[int] = set()

        def visit(path: Path) -> int:
            found = os.lstat(path)
            alive.add(found.st_ino)
            if found.st_ino not in self._ids:
                self._ids[found.st_ino] = self._next = self._next + 1
            one = self._ids[found.st_ino]
            if stat.S_ISDIR(found.st_mode):
                names = {entry.name: visit(path / entry.name) for entry in os.scandir(path)}
                seen = self._names.setdefault(one, [{}])  # a new directory is empty until it is synced
                if seen[-1] != names:
                    seen.append(names)
            else:
                self._now[one] = path.read_bytes()
            return one

        visit(self.root)
        self._ids = {number: one for number, one in self._ids.items() if number in alive}

    def _note(self, what: str) -> None:
        names = {one: list(seen) for one, seen in self._names.items()}
        contents = {one: (self._synced.get(one), now) for one, now in self._now.items()}
        self.moments.append(Moment(what, names, contents))

    def after(self, what: str, descriptor: int | None = None) -> None:
        """Note what a call did; with a descriptor: that it was synced."""
        self._look()
        if descriptor is not None:
            one = self._ids.get(os.fstat(descriptor).st_ino)
            if one is None:  # not in this folder
                return
            if one in self._names:
                self._names[one] = self._names[one][-1:]
            else:
                self._synced[one] = self._now[one]
        self._note(what)

    def left(self, moment: Moment, target: Path, choice: str | random.Random) -> Path:
        """Write what may be left: "synced" (nothing else), "names" (renames came before bytes), or a random mixture."""

        def names_of(one: int) -> Names:
            seen = moment.names[one]
            return seen[0] if choice == "synced" else seen[-1] if choice == "names" else choice.choice(seen)

        def bytes_of(one: int) -> bytes:
            synced, now = moment.contents[one]
            if synced is not None and (isinstance(choice, str) or synced == now):
                return synced
            if isinstance(choice, str):
                return b""
            return choice.choice([synced or b"", now[: len(now) // 2], now])

        def build(one: int, path: Path) -> None:
            path.mkdir(parents=True)
            for name, inner in names_of(one).items():
                if inner in moment.names:
                    build(inner, path / name)
                else:
                    (path / name).write_bytes(bytes_of(inner))

        build(1, target)  # the root was seen first
        return target


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Record what this process does to a folder."""
    disk = Disk(root)
    disk.begin()
    patch = pytest.MonkeyPatch()
    for name in ("fsync", "link", "rename", "replace", "mkdir", "unlink", "remove", "rmdir"):
        real = getattr(os, name)

        def call(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
            result = _real(*args, **kwargs)
            disk.after(f"{_name} {args[0]}", args[0] if _name == "fsync" else None)
            return result

        patch.setattr(os, name, call)
    try:
        yield disk
    finally:
        patch.undo()
