"""The results table for a terminal."""

from __future__ import annotations

from .summary import Document, Summaries, has_seeds, summaries
from .table import columns


def summary_text(document: Document) -> str:
    """Return the results table of one run as aligned lines."""
    return results_text(summaries([document])).rstrip("\n")


def results_text(summaries: Summaries) -> str:
    """Return the results as aligned lines: R methods by A_1..A_T, their mean, overall, F_T (percent) and distance.

    The best row of a column carries a `*`; upper bounds, which see old images, do not compete and stand in brackets.
    """
    names = [f"({one_line(name)})" if one.is_upper_bound else one_line(name) for name, one in summaries.items()]
    grid = [["method", *names]]
    table = columns(summaries)
    for column in table:
        marked = [text + ("*" if row in column.best else " ") for row, text in enumerate(column.texts)]
        grid.append([column.heading + " ", *marked])
    widths = [max(map(len, column)) for column in grid]
    lines = []
    for row in zip(*grid, strict=True):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    notes = ["A, overall, F in %; F and distance: lower is better; * best"]
    if has_seeds(summaries):
        notes.append("mean ± standard deviation over seeds")
    if not all(column.ours for column in table):
        notes.append("paper: what the paper prints")
    if any(one.is_upper_bound for one in summaries.values()):
        notes.append("(in brackets: upper bounds, they see old images)")
    return "\n".join([*lines, *notes]) + "\n"


def one_line(name: str) -> str:
    """Return a name without line breaks and escape sequences: it is the user's, and goes to a terminal or a table."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)
