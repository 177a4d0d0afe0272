"""`protodrift undo`: a model as it was before its last task."""

from __future__ import annotations

import argparse

from .arguments import Commands, add_command, add_model

_EPILOG = """\
examples:
  protodrift undo birds        back to before the last `learn`; again: one more back
  protodrift inspect birds     shows how far back undo can go
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "undo",
        run,
        help="go back to before the last task",
        description="Makes the version before the last task current again, bit for bit, and removes the last one.",
        epilog=_EPILOG,
    )
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Go back one version."""
    from ..model import versions

    # Only its names are read: a damaged version is one to go back from.
    before = versions.listed_labels(versions.read_current(args.model).folder(args.model))
    left, now = versions.undo(args.model)
    after = versions.listed_labels(args.model / "versions" / str(now))
    there = set(after)
    gone = [str(label) for label in before if label not in there]
    names = f" without {', '.join(gone[:5])}{' and others' if len(gone) > 5 else ''}" if gone else ""
    stays = (args.model / "versions" / str(left)).exists()
    removed = "could not be removed: the next task does that" if stays else "was removed"
    print(f"{args.model} is version {now} again, {len(after)} classes{names}; version {left} {removed}")
    return 0
