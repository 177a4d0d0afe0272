"""The results table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from ..stages import MethodResult
from .table import columns, is_upper_bound


def results_text(results: Mapping[str, MethodResult]) -> str:
    """Return the results as aligned lines: R methods by A_1..A_T, overall, F_T (percent) and distance.

    The best row of a column carries a `*`; upper bounds, which see old images, do not compete and stand in brackets.
    """
    names = [
        f"({_one_line(name)})" if is_upper_bound(result.method) else _one_line(name) for name, result in results.items()
    ]
    grid = [["method", *names]]
    for column in columns(results):
        heading = f"{column.symbol}_{column.index}" if column.index else column.symbol
        marked = [text + ("*" if row in column.best else " ") for row, text in enumerate(column.texts)]
        grid.append([heading + " ", *marked])
    widths = [max(map(len, column)) for column in grid]
    lines = []
    for row in zip(*grid, strict=True):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    notes = ["A, overall, F in %; F and distance: lower is better; * best"]
    if any(is_upper_bound(result.method) for result in results.values()):
        notes.append("(in brackets: upper bounds, they see old images)")
    return "\n".join([*lines, *notes]) + "\n"


def _one_line(name: str) -> str:
    # A name is the user's: a line break or an escape sequence must not reach the terminal.
    return "".join(c if c.isprintable() else "\ufffd" for c in name)
