"""`protodrift merge`: models that were taught in different places become one."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import Commands, add_command, add_imports
from .text import plural

_EPILOG = """\
examples:
  protodrift merge shop1 shop2 --out all            a new model; no photo is needed
  protodrift merge shop1 shop2 shop3 --out shop1    shop1 gets one more version; `protodrift undo shop1` takes it back

The result equals a model that has learned all photos itself: a class that several models know is merged by the number
of photos behind it. For this all must have the same network, left as it is: `protodrift learn` without --train. Copies
of one model count its photos once.

How sure answers are, and when they are "unknown", was measured in each place among its own classes. A merged model
keeps that until the next `learn`, which measures it among all classes.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "merge",
        run,
        help="make one model of models that were taught in different places",
        description="Makes one model of two or more that were taught in different places with the same network.",
        epilog=_EPILOG,
    )
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+", help="model directories, two or more")
    add_imports(parser)
    parser.add_argument("--out", metavar="MODEL", type=Path, required=True, help="the new model, or one of the others")
    parser.add_argument(
        "--base", metavar="MODEL", type=Path, help="the model that they were copied from, if it is not found by itself"
    )


def run(args: argparse.Namespace) -> int:
    """Merge, and say what came from where."""
    from ..common.files import shown
    from ..model.merge import merge

    done = merge(args.models, args.out, args.base)
    prototypes = done.classifier.state_.prototypes
    for path, (new, both), copied in zip(args.models[1:], done.added, done.bases, strict=True):
        names = ", ".join(shown(str(label)) for label in both[:5]) + (" and others" if len(both) > 5 else "")
        same = f"; {plural(len(both), 'class')} in both, merged by counts: {names}" if both else ""
        print(
            f"{path}: {plural(new, 'new class')}{same}" + ("; what both were copied from counts once" if copied else "")
        )
    print(
        f"{args.out} is version {done.version} with {plural(len(prototypes), 'class')} from "
        f"{plural(int(prototypes.counts.sum()), 'photo')}"
    )
    print("confidence and limits of unknown are those of each place until the next `learn` measures them among all")
    return 0
