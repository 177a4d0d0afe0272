"""`protodrift sign`: an Ed25519 signature of a model's current version."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import Commands, add_command, add_model

_EPILOG = """\
examples:
  protodrift sign birds --key birds.key --make-key   makes birds.key (keep it secret) and birds.key.pub (give it away)
  protodrift sign birds --key birds.key                again, after every task
  protodrift verify birds --key birds.key.pub          what those do who got the model

Checksums find damage, not tampering: whoever changes a model can recompute them. Needs the extra `sign`.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "sign",
        run,
        help="sign a model, so that others can check who wrote it",
        description="Checks every byte of the current version and signs it with an Ed25519 key (PEM).",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="the private key")
    parser.add_argument("--make-key", action="store_true", help="make the key first; FILE.pub is the public one")


def run(args: argparse.Namespace) -> int:
    """Sign."""
    from ..common.files import shown
    from ..model import signature, versions

    versions.read_current(args.model)
    if args.make_key:
        print(f"made {shown(args.key)}, to be kept secret, and {shown(signature.make_key(args.key))}, to be given away")
    print(f"signed version {signature.sign(args.model, args.key)} of {shown(args.model)}")
    return 0
