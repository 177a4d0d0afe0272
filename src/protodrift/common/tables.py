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
    from rich.cells import cell_len  # a Chinese character is two columns wide, an accent none

    lines = [[one_line(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for line in lines:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = [gap + cell if i in right else cell + gap for i, (cell, gap) in enumerate(zip(line, gaps, strict=True))]
        aligned.append("  ".join(cells).rstrip())
    if rule:
        aligned.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(aligned)


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
