"""`protodrift runs ls` and `protodrift runs clean`: what runs keep on disk."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from ..common.machine import size_text
from ..common.tables import text_table
from .arguments import Commands

_EPILOG = """\
examples:
  protodrift runs ls                       all runs below ./runs
  protodrift runs ls runs/digits           one run, by kind of stage
  protodrift runs clean runs/digits        remove trainings and embeddings; results.json stays
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "runs",
        help="show or remove what runs keep on disk",
        description="Shows the disk use of runs, or removes their stages.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ls|clean", required=True)
    ls = actions.add_parser("ls", help="show runs and their disk use")
    ls.add_argument(
        "path", type=Path, nargs="?", default=Path("runs"), help="a run, or a folder of runs (default: runs)"
    )
    ls.set_defaults(run=show)
    clean = actions.add_parser("clean", help="remove stages; results.json and run.json stay")
    clean.add_argument("path", type=Path, help="a run directory")
    clean.add_argument("--kind", action="append", metavar="KIND", help="only this kind of stage (train, embed, ...)")
    clean.add_argument("--dry-run", action="store_true", help="say what would be removed")
    clean.set_defaults(run=remove)


def show(args: argparse.Namespace) -> int:
    """List runs, or the stages of one."""
    from ..errors import RunError
    from ..experiments.store import list_stages

    if (args.path / "run.json").exists():
        listed = list_stages(args.path)
        counts = Counter(stage.kind for stage in listed)
        rows = [
            (kind, f"{counts[kind]} stages", size_text(sum(stage.bytes for stage in listed if stage.kind == kind)))
            for kind in counts
        ]
        rows.append(("all", f"{len(listed)} stages", size_text(sum(stage.bytes for stage in listed))))
        print(text_table(rows, right=(1, 2)))
        return 0
    found = sorted(args.path.glob("*/run.json")) if args.path.is_dir() else []
    if not found:
        raise RunError(f"there are no runs at {args.path}. Run one: protodrift run digits --out {args.path}/digits")
    rows = []
    for path in found:
        size = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
        done = "finished" if (path.parent / "results.json").exists() else "not finished"
        rows.append((str(path.parent), size_text(size), done))
    print(text_table(rows, right=(1,)))
    return 0


def remove(args: argparse.Namespace) -> int:
    """Remove the stages of one run."""
    from ..common.files import locked
    from ..errors import InputError, RunError, did_you_mean
    from ..experiments.stages import KINDS
    from ..experiments.store import Store

    for kind in args.kind or ():
        if kind not in KINDS:
            raise InputError(f"unknown kind of stage {kind!r}. {did_you_mean(kind, KINDS)}")
    if not (args.path / "run.json").exists():
        raise RunError(f"{args.path} is not a run directory: it has no run.json.")
    with locked(args.path):
        store = Store(args.path)
        stages = [stage for stage in store.listing() if not args.kind or stage.kind in args.kind]
        if not args.dry_run:
            for stage in stages:
                store.remove(stage.name)
    done = "would remove" if args.dry_run else "removed"
    print(f"{done} {len(stages)} stages, {size_text(sum(stage.bytes for stage in stages))}")
    return 0
