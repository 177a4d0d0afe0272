"""`protodrift predict`: which class a photo shows, how sure that is, and whether it is none of them."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.tables import text_table
from .arguments import Commands, add_command, add_model, whole_number
from .text import plural

if TYPE_CHECKING:
    from ..learner import IncrementalClassifier

_EPILOG = """\
examples:
  protodrift predict birds a.jpg b.jpg                  a table
  protodrift predict birds photos/new --csv > out.csv   every photo below a folder
  protodrift predict birds photos/new --json --top 5
  find . -name '*.jpg' | protodrift predict birds -     paths from standard input, one per line
  curl -s URL | protodrift predict birds -              or one photo from standard input

Confidence is calibrated on photos that were held out when a class was learned. A photo is "unknown" when it is farther
from the nearest class than 95 % of that class's held-out photos.
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
    parser.add_argument(
        "--top", type=whole_number(1), default=3, metavar="K", help="the K likeliest classes (default 3)"
    )
    parser.add_argument("--no-unknown", action="store_true", help="always name a class")


def run(args: argparse.Namespace) -> int:
    """Predict batch by batch, print all answers."""
    from ..common import machine
    from ..learner import IncrementalClassifier

    machine.tune()
    clf = IncrementalClassifier.load(args.model)
    answers = list(_answers(clf, args))
    if args.json:
        print(json.dumps(answers, indent=1, ensure_ascii=False))
    elif args.csv:
        _print_csv(answers, args.top)
    else:
        _print_table(answers, args.top)
    failed = [one for one in answers if "error" in one]
    for one in failed[:20]:
        print(f"protodrift: passed over {one['file']}: {one['error']}", file=sys.stderr)
    if len(failed) > 20:
        print(f"protodrift: passed over {len(failed) - 20} more", file=sys.stderr)
    return 1 if len(failed) == len(answers) else 0


def _answers(clf: IncrementalClassifier, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one answer per photo, in order."""
    import itertools

    import numpy as np

    from ..common.files import shown
    from ..data.images import load_photo
    from ..errors import InputError
    from ..model.answers import predictions
    from ..model.facts import photo_size

    size = photo_size(clf.state_.spec, args.model)
    places = iter(_places(args.places))
    while batch := list(itertools.islice(places, _BATCH)):
        names: list[str] = []
        pixels: list[np.ndarray] = []
        failed: dict[int, dict[str, Any]] = {}
        for position, (path, source) in enumerate(batch):
            try:
                if isinstance(source, InputError):
                    raise source
                pixels.append(load_photo(source, size))
                names.append(str(path))
            except InputError as error:
                reason = str(error).removeprefix(shown(path)).removeprefix(":").lstrip()
                failed[position] = {"file": str(path), "error": reason.rstrip(".")}
        answers: list[dict[str, Any]] = []
        if pixels:
            found = clf.recognize(np.stack(pixels))
            answers = predictions(names, found, top=args.top, always_name=args.no_unknown)
        read = iter(answers)
        yield from (failed[i] if i in failed else next(read) for i in range(len(batch)))


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
    import io

    from PIL import Image

    from ..errors import InputError

    data = sys.stdin.buffer.read()
    try:
        with Image.open(io.BytesIO(data)):
            pass
    except Exception:  # no image: then it is a list of paths
        lines = [line for line in data.decode(errors="surrogateescape").splitlines() if line.strip()]
        if not lines or b"\0" in data:
            yield Path("-"), InputError("standard input holds neither an image nor paths, one per line.")
            return
        for line in lines:
            yield from _found(line)
    else:
        yield Path("-"), data


def _print_table(answers: list[dict[str, Any]], top: int) -> None:
    from ..common.files import shown

    rows = []
    for one in answers:
        if "error" in one:
            continue
        named = [f"{shown(str(c['class']))} {100 * c['confidence']:.0f} %" for c in one["top"]]
        answer = "unknown" if one["unknown"] else named[0]
        others = [f"nearest: {named[0]}", *named[1:]] if one["unknown"] else named[1:]
        rows.append([shown(one["file"]), answer, ", ".join(others)])
    if rows:
        print(text_table(rows, ["photo", "class", "then"] if top > 1 else ["photo", "class", ""]))
    failed = sum("error" in one for one in answers)
    unknown = sum(bool(one.get("unknown")) for one in answers)
    if len(answers) > 1:
        parts = [plural(len(answers) - failed, "photo")]
        parts += [f"{unknown} unknown"] if unknown else []
        parts += [f"{failed} could not be read"] if failed else []
        print("\n" + ", ".join(parts))


def _print_csv(answers: list[dict[str, Any]], top: int) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    columns = ["file", "class", "confidence", "unknown", "novelty"]
    writer.writerow([*columns, *(f"{name}{k}" for k in range(2, top + 1) for name in ("class", "confidence")), "error"])
    for one in answers:
        ranked = one.get("top", [])
        first = ranked[0] if ranked else {"class": "", "confidence": ""}
        named = "unknown" if one.get("unknown") else first["class"]
        row = [one["file"], named, first["confidence"], int(one.get("unknown", 0)), one.get("novelty", "")]
        for k in range(1, top):
            row += [ranked[k]["class"], ranked[k]["confidence"]] if k < len(ranked) else ["", ""]
        writer.writerow([*row, one.get("error", "")])
