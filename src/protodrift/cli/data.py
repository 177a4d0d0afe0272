"""`protodrift data ls`, `protodrift data check` and `protodrift data prepare`: datasets by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..common.tables import text_table
from .arguments import Commands, whole_number

if TYPE_CHECKING:
    from ..data.datasets.check import Check

_EPILOG = """\
examples:
  protodrift data ls                            what there is, where it was found, its terms
  protodrift data check cub200 --data ~/data    what the folder holds beside what it should hold
  protodrift data prepare cifar100              download, verify, unpack and check

A dataset lies in its publisher's ordinary layout below --data, $PROTODRIFT_DATA or the user's cache directory:
docs/datasets.md has the layouts.
"""

SHOWN = 10  # names listed of each kind


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data",
        help="list, check or download the named datasets",
        description="Lists, checks or downloads the datasets that recipes use by name.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ls|check|prepare", required=True)
    ls = actions.add_parser("ls", help="list the datasets: size, where found or how to get it, terms")
    ls.set_defaults(run=show)
    check = actions.add_parser("check", help="compare a dataset's folder with what was published")
    check.add_argument("name", metavar="NAME", help="a name from `protodrift data ls`")
    check.add_argument("--images", action="store_true", help="also decode every image, to find damaged ones")
    check.set_defaults(run=compare)
    prepare = actions.add_parser("prepare", help="download, verify, unpack and check a dataset")
    prepare.add_argument("name", metavar="NAME", help="a name from `protodrift data ls`")
    prepare.add_argument(
        "--size", type=whole_number(1), metavar="N", help="also decode the images, N x N, into the cache"
    )
    prepare.add_argument("--fit", choices=("squash", "center"), default="squash", help="how photos become square")
    prepare.add_argument("--skip-bad-images", action="store_true", help="with --size: leave out damaged images")
    prepare.set_defaults(run=get)
    for action in (ls, check, prepare):
        action.add_argument(
            "--data", metavar="DIR", help="the data directory (default: $PROTODRIFT_DATA, then the user's cache)"
        )


def show(args: argparse.Namespace) -> int:
    """Print a table of the datasets."""
    from ..data.datasets import DATASETS, find_dataset
    from ..errors import InputError

    rows = []
    for name, dataset in DATASETS.items():
        try:
            where = str(find_dataset(name, args.data))
        except InputError:
            where = f"not here: protodrift data prepare {name}" if dataset.files else f"not here: {dataset.page}"
        train = "varies" if dataset.train is None else f"{dataset.train:,}"
        rows.append([name, dataset.classes, train, f"{dataset.test:,}", dataset.terms, where])
    print(text_table(rows, ["NAME", "CLASSES", "TRAIN", "TEST", "TERMS", "WHERE"], right=[1, 2, 3]))
    return 0


def compare(args: argparse.Namespace) -> int:
    """Print what was counted beside what was published; status 1 if they differ."""
    from ..common.progress import counting
    from ..data.datasets import check_dataset

    with counting() as on_progress:
        found = check_dataset(args.name, args.data, images=args.images, on_progress=on_progress)
    return _say(args.name, found)


def get(args: argparse.Namespace) -> int:
    """Download what is missing, check it, and decode it if a size is asked for."""
    import warnings

    from ..common.progress import counting
    from ..data.datasets import check_dataset, prepare_dataset
    from ..errors import SkippedImagesWarning

    with counting() as on_progress:
        prepare_dataset(args.name, args.data, on_progress=on_progress)
        found = check_dataset(args.name, args.data, on_progress=on_progress)
    status = _say(args.name, found)
    if args.size is None or (status and not (args.skip_bad_images or found.only_extra)):
        return status
    from ..data.datasets import load_dataset

    with counting() as on_progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SkippedImagesWarning)
        loaded = load_dataset(
            args.name,
            args.data,
            size=args.size,
            fit=args.fit,
            skip_bad_images=args.skip_bad_images,
            on_progress=on_progress,
        )
    for warning in caught:
        print(f"protodrift: warning: {warning.message}", file=sys.stderr)
    print(f"decoded: {loaded}, {args.size} x {args.size}")
    return 0


def _say(name: str, found: Check) -> int:
    from ..data.datasets import DATASETS

    print(f"{DATASETS[name].title} in {found.folder}")
    print(f"  {'':24} {'counted':>9} {'published':>10}")
    for what, counted, published in found.counts:
        expected = "varies" if published is None else f"{published:,}"
        mark = "" if published is None or counted == published else "   <- differs"
        print(f"  {what:24} {counted:>9,} {expected:>10}{mark}")
    _list("missing files", found.missing)
    _list("images that no list names", found.extra)
    _list("damaged images", found.damaged)
    if found.ignored:
        print(f"  {len(found.ignored):,} other files beside the images, ignored")
    if DATASETS[name].note:
        print(f"  ({DATASETS[name].note})")
    print("  as published" if found.good else "  NOT as published")
    return 0 if found.good else 1


def _list(what: str, names: Sequence[str]) -> None:
    if names:
        print(f"  {len(names):,} {what}:")
        for name in names[:SHOWN]:
            print(f"    {name}")
        if len(names) > SHOWN:
            print(f"    and {len(names) - SHOWN:,} more")
