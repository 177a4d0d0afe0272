"""`protodrift evaluate`: how good a model is on labeled photos."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.tables import text_table
from .arguments import Commands, add_command, add_model, add_photos
from .text import percent, plural

if TYPE_CHECKING:
    from ..model.evaluate import Evaluation, Part

_EPILOG = """\
examples:
  protodrift evaluate birds photos/test                               accuracy, calibration, retrieval
  protodrift evaluate birds photos/test --confusion confusion.html    and a picture of what is taken for what
  protodrift evaluate birds photos/test --json > evaluation.json

Folders of classes that the model does not know are no mistake: their photos show how well it detects unknown classes.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "evaluate",
        run,
        help="measure a model on labeled photos",
        description="Accuracy, accuracy of each class, calibration, unknown detection and retrieval on a folder of "
        "class folders (or a CSV of path,label) that the model has not learned from.",
        epilog=_EPILOG,
    )
    add_model(parser)
    add_photos(parser)
    parser.add_argument(
        "--confusion",
        metavar="FILE",
        type=Path,
        help="write the confusion matrix as a page (.html); needs the extra `report`",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print, draw."""
    import sys

    from ..common import machine
    from ..common.labels import label_like
    from ..common.progress import reporting
    from ..data.folder import find_photos, read_photos, summary_of
    from ..errors import InputError
    from ..learner import IncrementalClassifier
    from ..model.evaluate import evaluate
    from ..model.facts import photo_size
    from ..report import require_charts

    if args.confusion is not None:
        if args.confusion.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"--confusion {args.confusion}: it is an HTML page; give a name that ends in .html.")
        require_charts()  # before the work
    machine.tune()
    clf = IncrementalClassifier.load(args.model)
    size = photo_size(clf.state_.spec, args.model)
    found = find_photos(args.data)
    with reporting(not args.quiet) as reporter, reporter.reading("reading photos", len(found.files)) as on_file:
        photos = read_photos(found, size, on_file, ram=args.ram)
    passed = [*found.skipped, *photos.skipped]
    for line in summary_of(passed):
        print(f"protodrift: passed over {line}", file=sys.stderr)
    labels = [label_like(label, clf.state_.prototypes.labels) for label in photos.examples.labels]
    result = evaluate(clf, photos.examples.images, labels)
    if args.confusion is not None and result.confusion is None:
        raise InputError(
            f"--confusion: {len(result.classes)} classes are too many for a picture. --json has the counts."
        )
    if args.confusion is not None:
        _draw(args, result)
    if args.json:
        print(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
    else:
        _print(args, result)
    return 0


def _print(args: argparse.Namespace, result: Evaluation) -> None:
    from ..common.files import shown

    def row(name: str, part: Part | None) -> list[str]:
        if part is None:
            return [name, "0", "-", "-", "-", "-"]
        values = [percent(part.accuracy), percent(part.calibration_error), percent(part.false_unknown)]
        return [name, str(part.images), *values, "-" if part.auroc != part.auroc else f"{part.auroc:.3f}"]

    head = ["classes", "photos", "accuracy", "calibration error", "false unknown", "AUROC"]
    rows = [row("all known", result.all), row("of earlier tasks", result.old), row("of the last task", result.new)]
    print(text_table(rows, head, right=range(1, 6)))
    if result.never_learned:
        print(
            f"never learned: {plural(result.never_learned, 'photo')}, {percent(result.found_unknown)} of them called "
            "unknown (AUROC: known against these)"
        )
    recall = ", ".join(f"Recall@{k} {percent(value)}" for k, value in result.recall.items())
    print(f"retrieval among these photos: {recall}, mAP {percent(result.mean_average_precision)}")
    print()
    worst = sorted(result.per_class.items(), key=lambda item: item[1][1])
    lines = [
        [shown(str(label)), n, percent(right), "" if other is None else shown(str(other))]
        for label, (n, right, other) in worst
    ]
    print(text_table(lines, ["class, worst first", "photos", "accuracy", "mostly taken for"], right=[1, 2]))
    if args.confusion is not None:
        print(f"\nwrote {args.confusion}")


def _draw(args: argparse.Namespace, result: Evaluation) -> None:
    from ..report import Figure, Section, render, write
    from ..report.figures import confusion

    assert result.confusion is not None  # checked
    title = f"{percent(result.all.accuracy)} of {result.all.images} photos right"
    chart = confusion({title: result.confusion}, result.classes, result.tasks)
    caption = (
        "Rows: the true class. Columns: the answer. Strong color: a large share of the row. Lines: tasks. The pointer "
        "on a cell tells names and numbers."
    )
    facts = {
        "model": str(args.model),
        "photos": f"{args.data}, {result.all.images} of known classes",
        "accuracy": percent(result.all.accuracy),
    }
    names = ", ".join(f"{number}. {label}" for number, label in enumerate(result.classes, 1))
    page = render(
        "What is taken for what",
        f"{result.all.images} photos of {len(result.classes)} classes, {percent(result.all.accuracy)} named rightly.",
        [
            Section("Confusion matrix", [Figure("confusion", chart, caption)]),
            Section("Classes in order", note=names),
        ],
        facts,
    )
    write(args.confusion, page)
