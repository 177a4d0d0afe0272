"""Tables as text and as Markdown: the one printer of reports, of the command line and of benchmarks."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence


def one_line(text: object) -> str:
    """Return text without line breaks and escape sequences: names are the user's, and go to a terminal or a table."""
    return "".join(c if c.isprintable() else "\ufffd" for c in str(text))


def text_table(
    rows: Iterable[Sequence[object]], head: Sequence[object] = (), right: Container[int] = (), *, rule: bool = False
) -> str:
    """Return rows as aligned lines.

    Args:
        rows: cells, as many in each row as in `head`.
        head: the headings; empty: none.
        right: the columns that are aligned to the right.
        rule: whether a line of dashes stands under the headings.

    >>> print(text_table([["owl", 3], ["sparrow", 12]], ["class", "photos"], right=[1]))
    class    photos
    owl           3
    sparrow      12
    """
    lines = [[one_line(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    widths = [max(map(width_of, column)) for column in zip(*lines, strict=True)]
    table = [aligned(line, widths, right) for line in lines]
    if rule:
        table.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(table)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: a Chinese character is two wide, an accent none."""
    from rich.cells import cell_len

    return cell_len(text)


def aligned(cells: Sequence[str], widths: Sequence[int], right: Container[int] = ()) -> str:
    """Return one line of a table whose columns have these widths.

    >>> aligned(["owl", "3"], [6, 3], right=[1])
    'owl       3'
    """
    gaps = [" " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True)]
    parts = [gap + cell if i in right else cell + gap for i, (cell, gap) in enumerate(zip(cells, gaps, strict=True))]
    return "  ".join(parts).rstrip()


def markdown_table(rows: Iterable[Sequence[str]], head: Sequence[str], right: Container[int] = ()) -> str:
    """Return a Markdown table; cells are Markdown themselves (`markdown_text` escapes what is not).

    >>> print(markdown_table([["*owl*", "3"]], ["class", "photos"], right=[1]))
    | class | photos |
    | --- | ---: |
    | *owl* | 3 |
    """
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])


def markdown_text(text: object) -> str:
    r"""Return text that Markdown shows as it is.

    >>> print(markdown_text("FT* | a_b"))
    FT\* \| a\_b
    """
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
