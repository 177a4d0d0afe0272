"""`protodrift predict`: which class a photo shows, how sure that is, and whether it is none of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answer_formats import Counts, CsvWriter, JsonLinesWriter, JsonWriter, TableWriter, Writer
from .arguments import Commands, add_command, add_model, add_unknown_rate, answering, whole_number

if TYPE_CHECKING:
    from ..common.labels import Label
    from ..data.sorting import Sorter

_EPILOG = """\
examples:
  protodrift predict birds a.jpg b.jpg                  a table
  protodrift predict birds photos/new --csv > out.csv   every photo below a folder
  protodrift predict birds photos/new --json --top 5    or --jsonl: one object per line
  protodrift predict birds photos/new --sort-into sorted  copies each photo to sorted/<class>/ or sorted/unknown/
  protodrift predict birds photos/new --unknown-rate 0.2  rather "unknown" than a wrong class
  find . -name '*.jpg' | protodrift predict birds -     paths from standard input, one per line
  curl -s URL | protodrift predict birds -              or one photo from standard input

Confidence is calibrated on photos that were left out when the model last learned. A photo is "unknown" when it is
farther from its class than 95 % of such photos were from theirs; --unknown-rate says another share than 5 %.
The likeliest class is said all the same. Answers are printed as they come. --sort-into never writes over a file.
Exit status: 0 if at least one photo could be read, 1 if none could.
"""

_BATCH = 64


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "predict",
        run,
        help="say which class photos show, and how sure that is",
        description="Names the class of photos, with calibrated confidence, or says that they are none of the classes.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("places", metavar="IMAGE|FOLDER|-", nargs="+", help="photos, folders of photos, or - for stdin")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON list, one object per photo")
    form.add_argument("--csv", action="store_true", help="comma-separated values, one line per photo")
    form.add_argument("--jsonl", action="store_true", help="one JSON object per line and photo")
    parser.add_argument(
        "--top", type=whole_number(1), default=3, metavar="K", help="the K likeliest classes (default 3)"
    )
    add_unknown_rate(parser)
    parser.add_argument("--no-unknown", action="store_true", help="always name a class")
    parser.add_argument(
        "--sort-into",
        metavar="DIR",
        type=Path,
        help="copy each photo to DIR/<class>/, or DIR/unknown/; never overwrites",
    )
    parser.add_argument("--move", action="store_true", help="with --sort-into: move the photos instead of copying them")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Predict batch by batch, print answers as they come."""
    from ..common import machine
    from ..common.files import shown
    from ..common.progress import reporting
    from ..data.sorting import Sorter
    from ..errors import InputError
    from ..learner import IncrementalClassifier
    from ..model.answers import answers_of
    from ..model.facts import photo_size

    if args.move and args.sort_into is None:
        raise InputError("--move says how to sort: give --sort-into DIR too.")
    machine.tune()
    clf = IncrementalClassifier.load(args.model, **answering(args))
    size, labels = photo_size(clf.state_.spec, args.model), clf.state_.prototypes.labels
    sorter = None if args.sort_into is None else Sorter(args.sort_into, labels, move=args.move)
    if sorter is not None:
        sorter.check(place for place in args.places if place != "-")
    photos = list(_places(args.places))
    writer, counts, failed = _writer(args, [str(name) for name, _ in photos], labels), Counts(), []
    # Where answers are read on the terminal, they are the progress.
    showing = not args.quiet and len(photos) > _BATCH and not sys.stdout.isatty()
    with reporting(showing) as reporter, reporter.reading("answering", len(photos)) as on_photo:
        for start in range(0, len(photos), _BATCH):
            batch = photos[start : start + _BATCH]
            answers = answers_of(clf, size, batch, top=args.top, always_name=args.no_unknown)
            if sorter is not None:
                answers = [_sorted(sorter, one, source) for one, (_, source) in zip(answers, batch, strict=True)]
            writer.write(answers)
            sys.stdout.flush()
            counts.add(answers)
            failed += [one for one in answers if "error" in one]
            if on_photo is not None:
                on_photo(start + len(batch))
    writer.close()
    if counts.photos > 1:
        print(f"\n{counts}", file=sys.stdout if isinstance(writer, TableWriter) else sys.stderr)
    if sorter is not None:
        print(f"{'moved' if args.move else 'copied'} to {shown(args.sort_into)}", file=sys.stderr)
    for one in failed[:20]:
        print(f"protodrift: passed over {shown(one['file'])}: {one['error']}", file=sys.stderr)
    if len(failed) > 20:
        print(f"protodrift: passed over {len(failed) - 20} more", file=sys.stderr)
    return 1 if len(failed) == counts.photos else 0


def _writer(args: argparse.Namespace, names: list[str], labels: Sequence[Label]) -> Writer:
    more = [] if args.sort_into is None else ["sorted_into"]
    if args.json:
        return JsonWriter(sys.stdout)
    if args.jsonl:
        return JsonLinesWriter(sys.stdout)
    return CsvWriter(sys.stdout, args.top, more) if args.csv else TableWriter(sys.stdout, names, labels, args.top)


def _sorted(sorter: Sorter, answer: dict[str, Any], source: Any) -> dict[str, Any]:
    """Put a photo into its folder, and say where; one that cannot be put there is passed over like a damaged one."""
    if "error" in answer:
        return answer
    if not isinstance(source, Path):
        return {"file": answer["file"], "error": "a photo from standard input has no name to be sorted by"}
    try:
        return {**answer, "sorted_into": str(sorter.put(source, answer["class"]))}
    except OSError as error:
        return {"file": answer["file"], "error": f"cannot be sorted: {error.strerror or error}"}


def _places(places: list[str]) -> Iterator[tuple[Path, Any]]:
    """Yield what to read: a name for it, and a path, the bytes, or an `InputError` that says why there is nothing."""
    for place in places:
        yield from _from_stdin() if place == "-" else _found(place)


def _found(place: str) -> Iterator[tuple[Path, Any]]:
    from ..data.folder import find_images
    from ..errors import InputError

    try:
        yield from ((path, path) for path in find_images([place]))
    except InputError as error:  # passed over like a photo: the other places have their answers
        yield Path(place), error


def _from_stdin() -> Iterator[tuple[Path, Any]]:
    from ..data.images import is_image
    from ..errors import InputError

    data = sys.stdin.buffer.read()
    if is_image(data):
        yield Path("-"), data
        return
    lines = [line for line in data.decode(errors="surrogateescape").splitlines() if line.strip()]
    if not lines or b"\0" in data:
        yield Path("-"), InputError("standard input holds neither an image nor paths, one per line.")
        return
    for line in lines:
        yield from _found(line)
