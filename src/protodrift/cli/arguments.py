"""Arguments that several commands share. No torch here."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
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


def seconds(text: str) -> float:
    """Return a time; an argparse type.

    >>> seconds("0.5")
    0.5
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds is needed, 0 or more, got {text!r}")
    return value


def add_model(parser: argparse.ArgumentParser, help: str = "model directory") -> None:
    """Add `MODEL` and `--import`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=help)
    add_imports(parser)


def add_imports(parser: argparse.ArgumentParser) -> None:
    """Add `--import`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module, or .py file, first: it defines parts of your own that a model or run was made with; "
        "can be repeated",
    )


def import_modules(names: Sequence[str]) -> None:
    """Import what `--import` names: modules from the current folder or installed ones, or files.

    Raises:
        InputError: if there is no such module, or it fails.
    """
    for name in names:
        folder, module = (str(Path(name).resolve().parent), Path(name).stem) if name.endswith(".py") else ("", name)
        sys.path.insert(0, folder or str(Path.cwd()))  # workers of a run get the same search path
        try:
            importlib.import_module(module)
        except Exception as error:
            from ..errors import InputError

            raise InputError(f"--import {name}: {type(error).__name__}: {error}") from error


def add_unknown_rate(parser: argparse.ArgumentParser) -> None:
    """Add `--unknown-rate`."""
    parser.add_argument(
        "--unknown-rate",
        type=_share,
        metavar="SHARE",
        help="share of photos of known classes that may be called unknown (default: the model's, 0.05); a larger one "
        "finds more photos of other classes, 0 calls nothing unknown",
    )


def answering(args: argparse.Namespace) -> dict[str, Any]:
    """Return what of the model's parameters the arguments replace."""
    return {} if args.unknown_rate is None else {"unknown_rate": args.unknown_rate}


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a number from 0 to 1 is needed, got {text!r}")
    return value


def add_photos(parser: argparse.ArgumentParser) -> None:
    """Add `DATA`, `--classes`, `--ram` and `--quiet`."""
    parser.add_argument("data", metavar="DATA", type=Path, help="folder with one sub-folder per class, or a .csv file")
    add_label_by(parser)
    add_ram(parser, "photos")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_label_by(parser: argparse.ArgumentParser) -> None:
    """Add `--classes`."""
    parser.add_argument(
        "--classes",
        dest="label_by",
        choices=("leaf", "top", "path"),
        help="where folders lie in folders, as in 2026-01/owl/1.jpg: the class is the innermost one (leaf: owl), the "
        "outermost (top: 2026-01), or all (path: 2026-01/owl)",
    )


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
