"""`protodrift runs ls` and `protodrift runs clean`: what runs keep on disk."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.machine import size_text

if TYPE_CHECKING:
    from ..experiments.store import StageInfo

_EPILOG = """\
examples:
  protodrift runs ls                       all runs below ./runs
  protodrift runs ls runs/digits           one run, by kind of stage
  protodrift runs clean runs/digits        remove trainings and embeddings; results.json stays
"""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
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
        total = 0
        for kind, stages in _by_kind(list_stages(args.path)).items():
            size = sum(stage.bytes for stage in stages)
            total += size
            print(f"{kind:8} {len(stages):5} stages {size_text(size):>10}")
        print(f"{'all':8} {'':5}        {size_text(total):>10}")
        return 0
    found = sorted(args.path.glob("*/run.json")) if args.path.is_dir() else []
    if not found:
        raise RunError(f"there are no runs at {args.path}. Run one: protodrift run digits --out {args.path}/digits")
    for path in found:
        size = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
        done = "finished" if (path.parent / "results.json").exists() else "not finished"
        print(f"{path.parent}  {size_text(size)}  {done}")
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
    verb = "would remove" if args.dry_run else "removed"
    print(f"{verb} {len(stages)} stages, {size_text(sum(stage.bytes for stage in stages))}")
    return 0


def _by_kind(stages: list[StageInfo]) -> dict[str, list[StageInfo]]:
    result: dict[str, list[StageInfo]] = {}
    for stage in stages:
        result.setdefault(stage.kind, []).append(stage)
    return result
