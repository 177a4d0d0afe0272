"""`protodrift forget`: take a class out of a model."""

from __future__ import annotations

import argparse

from .arguments import Commands, add_command, add_model
from .text import plural

_EPILOG = """\
examples:
  protodrift forget birds "Sooty Albatross"

Removes the class's prototype and all numbers of its own from every kept version, so that no version has it any more.
Other tasks can be undone as before. Where the network was trained with its photos, its weights still carry their
influence: to be rid of that too, make a new model without it.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "forget",
        run,
        help="take a class out of a model, in all its versions",
        description="Removes a class's prototype and statistics from all versions that are kept.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("label", metavar="CLASS", help="its name, as `protodrift inspect` shows it")


def run(args: argparse.Namespace) -> int:
    """Forget the class."""
    from ..model.forget import forget

    left = forget(args.model, args.label)
    print(
        f"{args.model} has forgotten {args.label!r}: {left.classes} classes are left, version {left.version}.\n"
        f"Its prototype and statistics are gone from all versions; {plural(left.undo, 'earlier version')} can still be "
        "undone to, without it."
    )
    if left.trained is None:
        print("If the network was trained with its photos, its weights still carry their influence.")
    elif left.trained:
        print("The network was trained with its photos, and its weights still carry their influence.")
    else:
        print("The network was never trained on its photos.")
    if left.shared:
        print("Sums over all classes that the read-out or a penalty keeps still hold its share.")
    return 0
