"""Answers about photos as they are printed, one after another: a table, CSV, a JSON list or JSON lines."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

from ..common.tables import aligned, width_of
from .text import json_text, plural

Answer = dict[str, Any]
"""What `model.answers` says of one photo, or its file and an error."""


class Writer(Protocol):
    """Prints answers as they come."""

    def write(self, answers: Sequence[Answer]) -> None:
        """Print some answers."""

    def close(self) -> None:
        """Print what belongs after the last one."""


class CsvWriter:
    """One line per photo: file, class ("unknown", if it is none), best class, confidence, ..., error."""

    def __init__(self, out: TextIO, top: int, more: Sequence[str] = (), *, head: bool = True) -> None:
        self._writer, self._top, self._more = csv.writer(out, lineterminator="\n"), top, tuple(more)
        if head:
            others = [f"{name}{k}" for k in range(2, top + 1) for name in ("class", "confidence")]
            columns = ["file", "class", "best", "confidence", "unknown", "novelty", *others]
            self._writer.writerow([*columns, *more, "error"])

    def write(self, answers: Sequence[Answer]) -> None:
        """Print a line each."""
        for one in answers:
            ranked = one.get("top", [])
            first = ranked[0] if ranked else {"class": "", "confidence": ""}
            named = "unknown" if one.get("unknown") else first["class"]
            unknown = int(one["unknown"]) if ranked else ""
            row = [one["file"], named, first["class"], first["confidence"], unknown, one.get("novelty", "")]
            for k in range(1, self._top):
                row += [ranked[k]["class"], ranked[k]["confidence"]] if k < len(ranked) else ["", ""]
            row += [*(one.get(name, "") for name in self._more), one.get("error", "")]
            self._writer.writerow([_shown(cell) if isinstance(cell, str) else cell for cell in row])

    def close(self) -> None:
        """Nothing more belongs to it."""


class JsonLinesWriter:
    """One JSON object per line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, answers: Sequence[Answer]) -> None:
        """Print a line each."""
        for one in answers:
            self._out.write(json_text(one) + "\n")

    def close(self) -> None:
        """Nothing more belongs to it."""


class JsonWriter:
    """A JSON list that grows as answers come."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._between = out, "["

    def write(self, answers: Sequence[Answer]) -> None:
        """Print the next items."""
        for one in answers:
            self._out.write(f"{self._between}\n{json_text(one, 1)}")
            self._between = ","

    def close(self) -> None:
        """End the list."""
        self._out.write("[]\n" if self._between == "[" else "\n]\n")


class TableWriter:
    """A table for people; what could not be read is not in it.

    Args:
        out: where to.
        names: of all photos, which are as wide as the first column.
        labels: all classes, for the second one.
        top: how many classes are named.
    """

    def __init__(self, out: TextIO, names: Sequence[str], labels: Sequence[object], top: int) -> None:
        self._out, self._top, self._begun = out, top, False
        answers = [width_of(f"{_shown(label)} 100 %") for label in labels]
        self._widths = [max(map(width_of, [*map(_shown, names), "photo"])), max([len("unknown"), *answers]), 0]

    def write(self, answers: Sequence[Answer]) -> None:
        """Print a line each, after the headings."""
        for one in answers:
            if "error" in one:
                continue
            if not self._begun:
                self._begun = True
                self._out.write(aligned(["photo", "class", "then" if self._top > 1 else ""], self._widths) + "\n")
            named = [f"{_shown(c['class'])} {100 * c['confidence']:.0f} %" for c in one["top"]]
            answer = "unknown" if one["unknown"] else named[0]
            others = [f"nearest: {named[0]}", *named[1:]] if one["unknown"] else named[1:]
            self._out.write(aligned([_shown(one["file"]), answer, ", ".join(others)], self._widths) + "\n")

    def close(self) -> None:
        """Nothing more belongs to it."""


def _shown(text: object) -> str:
    from ..common.files import shown

    return shown(str(text))


class Counts:
    """How many photos were answered, and how."""

    def __init__(self) -> None:
        self.photos = self.failed = self.unknown = 0

    def add(self, answers: Sequence[Answer]) -> None:
        """Count some more."""
        self.photos += len(answers)
        self.failed += sum("error" in one for one in answers)
        self.unknown += sum(bool(one.get("unknown")) for one in answers)

    def __str__(self) -> str:
        parts = [plural(self.photos - self.failed, "photo") + " answered"]
        parts += [f"{self.unknown} unknown"] if self.unknown else []
        parts += [f"{self.failed} could not be read"] if self.failed else []
        return ", ".join(parts)
