"""Photos as they appear in a folder, each once and only when it is whole. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ..common.files import shown
from .scan import image_files


@dataclass(frozen=True)
class Arrived:
    """A photo that has appeared.

    Attributes:
        path: where it is.
        name: its path in the folder that is watched, with slashes.
        bytes: its size.
        modified: when it was written, in UTC to the microsecond, as text.
    """

    path: Path
    name: str
    bytes: int
    modified: str

    @property
    def key(self) -> tuple[str, int, str]:
        """What is not answered twice: a photo that is written anew under its old name is another one."""
        return key_of(self.name, self.bytes, self.modified)


def key_of(name: str, size: int, modified: str) -> tuple[str, int, str]:
    """Return what tells a photo from all others, from what was noted of it: in CSV a name is one line."""
    return shown(name), size, modified


class Arrivals:
    """Watches a folder and its sub-folders for image files, by looking again and again.

    A file is taken when its size and time have not changed for `settle` seconds: one that is still being written, by a
    camera or a copy, is waited for.

    Args:
        folder: where photos appear.
        settle: seconds.
        answered: keys of photos that were taken before.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        settle: float = 2.0,
        answered: Iterable[tuple[str, int, str]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.settle = Path(folder), settle
        self._taken, self._clock = set(answered), clock
        self._since: dict[tuple[str, int, str], float] = {}

    @property
    def waiting(self) -> bool:
        """Whether there are files that may still be written."""
        return bool(self._since)

    def take(self) -> list[Arrived]:
        """Return the photos that are new and whole, in the order of their names.

        Raises:
            InputError: if the folder cannot be listed.
        """
        now, since, whole = self._clock(), {}, []
        for path in image_files(self.folder)[0]:
            try:
                facts = path.stat()
            except OSError:  # gone meanwhile
                continue
            when = datetime.fromtimestamp(facts.st_mtime_ns // 1000 / 1e6, timezone.utc)
            name = path.relative_to(self.folder).as_posix()
            one = Arrived(path, name, facts.st_size, when.isoformat(timespec="microseconds"))
            if one.key in self._taken:
                continue
            first = self._since.get(one.key, now)
            if now - first >= self.settle:
                whole.append(one)
            else:
                since[one.key] = first
        self._since = since
        self._taken.update(one.key for one in whole)
        return whole
