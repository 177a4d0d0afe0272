"""`protodrift watch`: answers photos as they appear in a folder."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .answer_formats import Counts, CsvWriter, JsonLinesWriter, Writer
from .arguments import Commands, add_command, add_model, seconds, whole_number

if TYPE_CHECKING:
    from ..data.arrivals import Arrivals, Arrived
    from ..learner import IncrementalClassifier
    from ..model.versions import Current

_EPILOG = """\
examples:
  protodrift watch birds /media/camera                               JSON lines, one per photo
  protodrift watch birds /media/camera --csv | tee seen.csv
  protodrift watch birds /media/camera --out seen.csv --resume       goes on where it was stopped

Photos that are there already are answered first. A file that is still being written is waited for. Names are those in
the folder; bytes and modified tell a photo from another that is written later under the same name. A photo that cannot
be read gets a line with the reason. When the model has learned more, its new version answers from then on.
Ctrl-C ends it.
"""

_MORE = ("bytes", "modified", "version")
_BATCH = 64


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "watch",
        run,
        help="answer photos as they appear in a folder",
        description="Answers every photo in a folder, and those that appear there, as CSV or JSON lines.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where photos appear, in sub-folders too")
    parser.add_argument("--csv", action="store_true", help="comma-separated values instead of JSON lines")
    parser.add_argument("--out", metavar="FILE", type=Path, help="where to write; a name that ends in .csv means --csv")
    parser.add_argument(
        "--resume", action="store_true", help="add to FILE, and answer only photos that it does not have yet"
    )
    parser.add_argument(
        "--top", type=whole_number(1), default=3, metavar="K", help="the K likeliest classes (default 3)"
    )
    parser.add_argument("--no-unknown", action="store_true", help="always name a class")
    parser.add_argument("--every", type=seconds, default=1.0, metavar="S", help="look every S seconds (default 1)")
    parser.add_argument(
        "--settle", type=seconds, default=2.0, metavar="S", help="wait until a file has not changed for S seconds (2)"
    )
    parser.add_argument(
        "--stop-after", type=seconds, metavar="S", help="end when no photo has appeared for S seconds (default: never)"
    )


def run(args: argparse.Namespace) -> int:
    """Answer until nothing more is to come."""
    from ..common import machine
    from ..data.arrivals import Arrivals
    from ..errors import InputError

    if not args.folder.is_dir():
        raise InputError(f"{args.folder} is not a folder. Give the folder in which photos appear.")
    if args.resume and args.out is None:
        raise InputError("--resume needs --out FILE: what was answered before stands there.")
    machine.tune()
    answering = _Answering(args)  # a model that cannot be read is an error before anything is written
    with _opened(args) as (out, writer, answered):
        arrivals, counts = Arrivals(args.folder, settle=args.settle, answered=answered), Counts()
        with contextlib.suppress(KeyboardInterrupt):
            for batch in _batches(arrivals, args):
                answers = answering(batch)
                writer.write(answers)
                out.flush()
                counts.add(answers)
    print(counts, file=sys.stderr)
    return 0


def _batches(arrivals: Arrivals, args: argparse.Namespace) -> Iterator[list[Arrived]]:
    """Yield photos as they appear; end when none has appeared for as long as the user said."""
    from ..errors import InputError

    last, lost = time.monotonic(), False
    while True:
        try:
            found, lost = arrivals.take(), False
        except InputError as error:  # a disk that was taken out may come back
            if not lost:
                print(f"protodrift: {error} Waiting for it.", file=sys.stderr)
            found, lost = [], True
        for start in range(0, len(found), _BATCH):
            yield found[start : start + _BATCH]
        if found or arrivals.waiting:
            last = time.monotonic()
        if args.stop_after is not None and time.monotonic() - last >= args.stop_after:
            return
        time.sleep(args.every)


class _Answering:
    """Answers photos by the newest version of a model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._current: Current | None = None
        self._clf: IncrementalClassifier
        self._size = 0
        self._load()

    def _load(self) -> None:
        from ..learner import IncrementalClassifier
        from ..model import versions
        from ..model.facts import photo_size

        saved = versions.read(self._args.model)
        clf = IncrementalClassifier.from_saved(saved, self._args.model)
        self._size = photo_size(clf.state_.spec, self._args.model)
        self._clf, self._current = clf, saved.current

    def __call__(self, batch: list[Arrived]) -> list[dict[str, Any]]:
        """Return an answer for each photo, and what tells it from others."""
        from ..errors import ModelFileError
        from ..model import versions
        from ..model.answers import answers_of

        try:
            if versions.read_current(self._args.model) != self._current:
                self._load()
        except ModelFileError as error:  # the version at hand still answers
            print(f"protodrift: {error} Answering by the version before.", file=sys.stderr)
        assert self._current is not None
        photos = [(one.path, one.path) for one in batch]
        answers = answers_of(self._clf, self._size, photos, top=self._args.top, always_name=self._args.no_unknown)
        facts = [{"bytes": one.bytes, "modified": one.modified, "version": self._current.version} for one in batch]
        return [{**answer, "file": one.name, **more} for answer, one, more in zip(answers, batch, facts, strict=True)]


# -- where answers go -------------------------------------------------------------------------------------------------


class _OneLine:
    """CSV in which every photo is one line, whatever its name: a file that was cut short can be cut to whole lines."""

    def __init__(self, writer: CsvWriter) -> None:
        self._writer = writer

    def write(self, answers: Sequence[dict[str, Any]]) -> None:
        from ..common.files import shown

        self._writer.write([{**one, "file": shown(one["file"])} for one in answers])

    def close(self) -> None:
        self._writer.close()


@contextlib.contextmanager
def _opened(args: argparse.Namespace) -> Iterator[tuple[TextIO, Writer, set[tuple[str, int, str]]]]:
    """Open the output: a stream, what writes answers to it, and the keys of photos that are in it already."""
    from ..errors import InputError

    as_csv = args.csv or (args.out is not None and args.out.suffix.lower() == ".csv")
    if args.out is None:
        yield sys.stdout, _written(sys.stdout, args, as_csv, head=True), set()
        return
    there = args.out.read_bytes() if args.out.exists() else b""
    if there and not args.resume:
        raise InputError(f"{args.out} is there already. Add --resume to go on with it, or choose another name.")
    there = there[: there.rfind(b"\n") + 1]  # without a line that was being written when it was stopped
    answered = _answered(args, there.decode(errors="replace"), as_csv)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with open(args.out, "a", encoding="utf-8", errors="backslashreplace", newline="") as out:
        out.truncate(len(there))
        yield out, _written(out, args, as_csv, head=not there), answered


def _written(out: TextIO, args: argparse.Namespace, as_csv: bool, *, head: bool) -> Writer:
    return _OneLine(CsvWriter(out, args.top, _MORE, head=head)) if as_csv else JsonLinesWriter(out)


def _answered(args: argparse.Namespace, text: str, as_csv: bool) -> set[tuple[str, int, str]]:
    """Return the keys of the photos that were answered before.

    Raises:
        InputError: if the file is something else.
    """
    from ..data.arrivals import key_of
    from ..errors import InputError

    if not text:
        return set()
    try:
        if as_csv:
            wanted = io.StringIO()
            CsvWriter(wanted, args.top, _MORE)
            if not text.startswith(wanted.getvalue()):
                raise ValueError("it has other columns; --top must be what it was")
            rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(text)))
        else:
            rows = [json.loads(line) for line in text.split("\n") if line]
        return {key_of(row["file"], int(row["bytes"]), row["modified"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{args.out} is not what `protodrift watch` wrote ({error}). Nothing was changed. Choose another name."
        ) from None
