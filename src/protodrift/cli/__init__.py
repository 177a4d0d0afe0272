"""The command line, one file per command. Nothing here imports torch; a command does when it runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence

from .. import __version__
from ..common.machine import wait_briefly
from ..distributed import launched
from . import (
    backbones,
    data,
    demo,
    evaluate,
    export,
    forget,
    inspect,
    learn,
    merge,
    predict,
    recipes,
    rename,
    report,
    reproduce,
    run,
    runs,
    serve,
    sign,
    transport,
    undo,
    verify,
    watch,
)
from .arguments import import_modules
from .interrupts import between_imports

COMMANDS = (
    demo,
    learn,
    predict,
    watch,
    serve,
    evaluate,
    inspect,
    undo,
    rename,
    forget,
    merge,
    export,
    sign,
    verify,
    recipes,
    run,
    runs,
    report,
    reproduce,
    transport,
    data,
    backbones,
)


INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C
UNREAD = 141  # and for one that wrote to a pipe without a reader


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    result = argparse.ArgumentParser(
        prog="protodrift",
        description="Class-incremental learning without keeping old images.",
        epilog="example:  protodrift demo        the main job, on data that comes with the install",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"protodrift {__version__}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return result


def _run(args: argparse.Namespace) -> int:
    """Run a command, alone or as one of the ranks that torchrun started."""
    run: Callable[[argparse.Namespace], int] = args.run
    import_modules(getattr(args, "imports", ()))
    if not launched():
        return run(args)
    from ..distributed import joined
    from ..errors import InputError

    with joined():
        if not getattr(args, "on_ranks", False):
            raise InputError("torchrun starts several processes, and only `run` and `learn` share work among them.")
        status = run(args)
    # All is done and on disk. torch's threads between ranks now and then abort while the interpreter takes itself apart
    # ("terminate called without an active exception"), and torchrun would call the run failed.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Print what the library logs, and its warnings, on standard error: one line each, without a line of code."""
    logger, handler = logging.getLogger("protodrift"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("protodrift: %(message)s"))
    before = logger.level, logger.propagate
    usual = warnings.formatwarning
    from ..common.files import printable

    def plain(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        ours = category.__module__.partition(".")[0] == __name__.partition(".")[0]
        return (
            printable(f"protodrift: warning: {message}\n") if ours else usual(message, category, filename, lineno, line)
        )

    warnings.formatwarning = plain
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        warnings.formatwarning = usual
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 an error that was explained, 2 wrong usage, 130 Ctrl-C.

    141: the reader of what `run` or `learn` prints went away before they had done their work.
    """
    wait_briefly()  # before torch is imported
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name that is no UTF-8, or a letter that the terminal does not have, must not end a command half-way. As
        # standard error does by itself, and not by surrogateescape: what comes out stays text that every program
        # reads, and in JSON the escape \udcff is the name again.
        sys.stdout.reconfigure(errors="backslashreplace")
    args = parser().parse_args(argv)
    from ..common.files import printable
    from ..errors import ProtodriftError

    # A reader that closes the pipe early, as in `protodrift inspect birds | head`, is no error.
    status = UNREAD if getattr(args, "on_ranks", False) else 0
    try:
        with between_imports(), _messages():
            status = _run(args)
        sys.stdout.flush()  # here, where a reader that has gone is no error, and not when Python ends
        return status
    except ProtodriftError as error:
        print(printable(f"protodrift: error: {error}"), file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again when it ends
        return status
    except OSError as error:
        said = f"protodrift: error: {error.strerror or error}: {error.filename or ''}".rstrip(": ")
        print(printable(said), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("protodrift: interrupted; nothing was half-written.", file=sys.stderr)
        return INTERRUPTED
