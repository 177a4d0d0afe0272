"""`protodrift evaluate`: how good a model is on labeled photos."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.tables import text_table
from .arguments import Commands, add_command, add_model, add_photos, add_unknown_rate, answering
from .text import json_text, percent, plural

if TYPE_CHECKING:
    from ..data.folder import Photos
    from ..learner import IncrementalClassifier
    from ..model.evaluate import Evaluation, Part

_EPILOG = """\
examples:
  protodrift evaluate birds photos/test                               accuracy, calibration, retrieval
  protodrift evaluate birds photos/test --html report.html            and every mistake with its photo
  protodrift evaluate birds photos/test --csv answers.csv             and one line per photo
  protodrift evaluate birds photos/test --json > evaluation.json
  protodrift evaluate birds photos/strangers                          how many photos of other things are called unknown

Folders of classes that the model does not know are no mistake: their photos show how well it detects unknown classes.
The page of --html needs the extra `report`, and nothing else to be opened: it holds small copies of the photos.
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
    add_unknown_rate(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write a page (.html) of every mistake, each class, and what is taken for what; needs the extra `report`",
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write the answer for each photo")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print, draw."""
    import sys

    from ..common import machine
    from ..common.labels import label_like
    from ..common.progress import reporting
    from ..data.folder import find_photos, read_photos, same_pictures, summary_of
    from ..errors import InputError
    from ..learner import IncrementalClassifier
    from ..model.evaluate import evaluate
    from ..model.facts import photo_size
    from ..report import require_charts

    if args.html is not None:
        if args.html.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"--html {args.html}: it is an HTML page; give a name that ends in .html.")
        require_charts()  # before the work
    machine.tune()
    clf = IncrementalClassifier.load(args.model, **answering(args))
    size = photo_size(clf.state_.spec, args.model)
    found = find_photos(args.data, label_by=args.label_by)
    with reporting(not args.quiet) as reporter, reporter.reading("reading photos", len(found.files)) as on_file:
        photos = read_photos(found, size, on_file, ram=args.ram)
    passed = [*found.skipped, *photos.skipped]
    for line in summary_of(passed):
        print(f"protodrift: passed over {line}", file=sys.stderr)
    for line in [f"note: {found.note}"] * bool(found.note) + same_pictures(photos):
        print(f"protodrift: {line}", file=sys.stderr)
    labels = [label_like(label, clf.state_.prototypes.labels) for label in photos.examples.labels]
    result = evaluate(clf, photos.examples.images, labels)
    if args.html is not None:
        _write_page(args, clf, result, photos)
    if args.csv is not None:
        _write_csv(args.csv, result, photos.paths)
    if args.json:
        print(json_text(result.to_json(), 1))
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
    if len(result.per_task) > 2:
        rows += [row(f"of task {number}", part) for number, part in result.per_task.items()]
    if result.all is not None:
        print(text_table(rows, head, right=range(1, 6)))
    else:
        print("none of these classes is known to the model: only strangers are measured")
    if result.never_learned:
        print(
            f"never learned: {plural(result.never_learned, 'photo')}, {percent(result.found_unknown)} of them called "
            f"unknown where {percent(result.unknown_rate)} of known ones may be"
            + (" (AUROC: known against these)" if result.all is not None else "")
        )
    recall = ", ".join(f"Recall@{k} {percent(value)}" for k, value in result.recall.items())
    print(f"retrieval among these photos: {recall}, mAP {percent(result.mean_average_precision)}")
    if result.per_class:
        worst = sorted(result.per_class.items(), key=lambda item: item[1][1])
        lines = [
            [shown(str(label)), n, percent(right), "" if other is None else shown(str(other))]
            for label, (n, right, other) in worst
        ]
        print("\n" + text_table(lines, ["class, worst first", "photos", "accuracy", "mostly taken for"], right=[1, 2]))
    wrong = sum(one.verdict not in ("right", "stranger found") for one in result.answers)
    written = [args.html, args.csv]
    if any(written):
        print(f"\nwrote {' and '.join(str(path) for path in written if path)}")
    elif wrong:
        print(f"\n--html report.html shows the photos of all {plural(wrong, 'mistake')}")


def _write_page(args: argparse.Namespace, clf: IncrementalClassifier, result: Evaluation, photos: Photos) -> None:
    from ..common.files import shown
    from ..report import write
    from ..report.evaluation import evaluation_page

    prototypes = clf.state_.prototypes
    options = {"--classes": args.label_by, "--unknown-rate": args.unknown_rate, "--html": args.html}
    given = [f"{name} {shown(str(value))}" for name, value in options.items() if value is not None]
    facts = {
        "model": f"{shown(args.model)}, {plural(len(prototypes), 'class')}",
        "photos": f"{shown(args.data)}, {plural(len(photos.paths), 'photo')}, {len(photos.skipped)} passed over",
        "command": f"protodrift evaluate {shown(args.model)} {shown(args.data)} {' '.join(given)}",
    }
    tasks = dict(zip(prototypes.labels, prototypes.tasks.tolist(), strict=True))
    write(args.html, evaluation_page(result, photos.paths, photos.examples.images, tasks, facts))


def _write_csv(path: Path, result: Evaluation, files: Sequence[Path]) -> None:
    import csv
    import io

    from ..common.files import replace_file, shown
    from ..model.answers import finite

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    most = max(len(one.top) for one in result.answers)
    more = [f"{name}{k}" for k in range(2, most + 1) for name in ("class", "confidence")]
    writer.writerow(["file", "true_class", "class", "best", "confidence", "unknown", "novelty", "verdict", *more])
    for file, one in zip(files, result.answers, strict=True):
        best, confidence = one.top[0]
        row = [file, one.truth, "unknown" if one.unknown else best, best, finite(confidence), int(one.unknown)]
        rest = [value for name, share in one.top[1:] for value in (name, finite(share))]
        cells = [*row, finite(one.novelty), one.verdict, *rest]
        writer.writerow([shown(cell) if isinstance(cell, (str, Path)) else cell for cell in cells])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.getvalue().encode(errors="backslashreplace"))
