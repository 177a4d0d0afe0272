"""`protodrift report`: one page, or a table, of the results of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

_FORMATS = ("html", "csv", "json", "md", "latex")  # report.FORMATS, which imports torch; a test compares them

_EPILOG = """\
examples:
  protodrift report runs/digits                                 writes report.html: tables and figures, opens offline
  protodrift report runs/digits runs/digits-2d --out both.html  several runs; those on the same tasks are compared
  protodrift report runs/digits --format md                     the table, to standard output
  protodrift report runs/* --format csv --out all.csv
"""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "report",
        help="write one page, or a table, of the results of runs",
        description="Writes the results of runs as one HTML page with the paper's figures, or as a table: mean and "
        "standard deviation over seeds, beside them what the paper prints where there is a number.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run directory, as `protodrift run` made it"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: report.html; tables: standard output)"
    )
    parser.add_argument("--format", choices=_FORMATS, help="default: by the ending of --out, else html")
    parser.set_defaults(run=run)


def format_of(chosen: str | None, out: Path | None) -> str:
    """Return the format: as chosen, else by the ending of the file, else html."""
    endings = {"csv": "csv", "json": "json", "md": "md", "tex": "latex"}
    return chosen or endings.get("" if out is None else out.suffix.lstrip(".").lower(), "html")


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    from ..report import read_runs, report, write

    form = format_of(args.format, args.out)
    text = report(read_runs(args.runs), form)
    if args.out is None and form != "html":
        sys.stdout.write(text)
        return 0
    out = args.out or Path("report.html")
    write(out, text)
    print(f"wrote {out}")
    return 0
