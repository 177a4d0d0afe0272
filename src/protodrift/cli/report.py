"""`protodrift report`: one page, a table, or figures for a paper, of the results of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .arguments import Commands, add_command, add_imports

_FORMATS = ("html", "csv", "json", "md", "latex")  # report.FORMATS, which imports torch; a test compares them
_FILES = ("pdf", "png", "svg")  # report.charts.FILES, which imports altair; a test compares them

_EPILOG = """\
examples:
  protodrift report runs/digits                                 writes report.html: tables and figures, opens offline
  protodrift report runs/digits runs/digits-2d --out both.html  several runs; those on the same tasks are compared
  protodrift report runs/digits --format md                     the table, to standard output
  protodrift report runs/* --format csv --out all.csv
  protodrift report runs/digits --figures paper --format pdf    every figure as a file of its own

The page and the figures need:  pip install 'protodrift[report]'
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        run,
        help="write one page, a table, or figures, of the results of runs",
        description="Writes the results of runs as one HTML page with the paper's figures, as a table, or as one "
        "file per figure: mean and standard deviation over seeds, beside them what the paper prints where it does.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run directory, as `protodrift run` made it"
    )
    add_imports(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: report.html; tables: standard output)"
    )
    where.add_argument("--figures", type=Path, metavar="DIR", help="write every figure into this folder instead")
    parser.add_argument(
        "--format",
        choices=(*_FORMATS, *_FILES),
        help=f"default: by the ending of --out, else html; with --figures: {', '.join(_FILES)} (default pdf)",
    )


def format_of(chosen: str | None, out: Path | None) -> str:
    """Return the format: as chosen, else by the ending of the file, else html."""
    endings = {"csv": "csv", "json": "json", "md": "md", "tex": "latex"}
    return chosen or endings.get("" if out is None else out.suffix.lstrip(".").lower(), "html")


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    from ..errors import InputError
    from ..report import read_runs, report, write, write_figures

    if args.figures is not None:
        if args.format in _FORMATS:
            raise InputError(f"--figures writes {', '.join(_FILES)}, not {args.format}: leave out one of the two.")
        for path in write_figures(read_runs(args.runs), args.figures, args.format or "pdf"):
            print(f"wrote {path}")
        return 0
    if args.format in _FILES:
        raise InputError(f"--format {args.format} is of figures: say where to, --figures DIR.")
    form = format_of(args.format, args.out)
    text = report(read_runs(args.runs), form)
    if args.out is None and form != "html":
        sys.stdout.write(text)
        return 0
    out = args.out or Path("report.html")
    write(out, text)
    print(f"wrote {out}")
    return 0
