"""Arguments that several commands share. No torch here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What `add_subparsers` returns."""


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str,
    **defaults: Any,
) -> argparse.ArgumentParser:
    """Add a command; `run(args)` returns its exit status."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, **defaults)
    return parser


def whole_number(low: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number of at least `low`.

    >>> whole_number(1)("12")
    12
    """

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"a whole number of at least {low} is needed, got {text!r}")
        return value

    return read


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `MODEL`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="model directory")


def add_photos(parser: argparse.ArgumentParser) -> None:
    """Add `DATA`, `--ram` and `--quiet`."""
    parser.add_argument("data", metavar="DATA", type=Path, help="folder with one sub-folder per class, or a .csv file")
    add_ram(parser, "photos")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_ram(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--ram`."""
    parser.add_argument(
        "--ram",
        type=_bytes,
        metavar="SIZE",
        help=f"hold decoded {what} in memory up to this size, such as 8G (default: a quarter of the memory); more are "
        "read from disk. Results are the same",
    )


def _bytes(text: str) -> int:
    from ..common.machine import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
