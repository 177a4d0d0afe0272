"""`protodrift verify`: whether a model was signed with a key, and is whole."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import Commands, add_command, add_model

_EPILOG = """\
examples:
  protodrift verify birds --key birds.key.pub && protodrift predict birds photos
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "verify",
        run,
        help="check who signed a model, and every byte of it",
        description="Checks the signature of `protodrift sign` and every byte of the current version. Exit status 1 if "
        "the model is not signed, signed with another key, or changed. Needs the extra `sign`.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="the public key of who signed")


def run(args: argparse.Namespace) -> int:
    """Verify."""
    from ..common.files import shown
    from ..model import signature

    number = signature.verify(args.model, args.key)
    print(f"version {number} of {shown(args.model)} is whole, and signed with {shown(args.key)}")
    return 0
