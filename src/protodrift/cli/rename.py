"""`protodrift rename`: give a class another name."""

from __future__ import annotations

import argparse

from .arguments import Commands, add_command, add_model

_EPILOG = """\
examples:
  protodrift rename birds "Snowy Owel" "Snowy Owl"
  protodrift undo birds                               takes it back

Nothing is learned or forgotten: answers are the same under the new name.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "rename",
        run,
        help="give a class another name",
        description="Gives a class another name, in a new version of the model.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("old", metavar="OLD", help="its name, as `protodrift inspect` shows it")
    parser.add_argument("new", metavar="NEW", help="the name it gets")


def run(args: argparse.Namespace) -> int:
    """Rename the class."""
    from ..model.rename import rename

    written = rename(args.model, args.old, args.new)
    print(f"{args.model} is version {written.version}: {args.old!r} is called {args.new!r} now; `undo` takes it back")
    return 0
