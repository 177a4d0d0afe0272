"""The results table for other programs: CSV, JSON, Markdown, LaTeX; one per group of runs that can be compared."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..common.tables import markdown_table, markdown_text, one_line
from ..experiments.stages.readout import json_numbers
from .summary import Summaries, Summary, not_learned
from .table import MISSING, Column, columns


def to_csv(groups: Sequence[Summaries]) -> str:
    """Return one line per method: percent, distances as they are; `_std` columns are empty for a single seed."""
    rows: list[dict[str, object]] = []
    for summaries in groups:
        table = columns(summaries)
        for i, one in enumerate(summaries.values()):
            row: dict[str, object] = {"run": one.run, "method": one.method_name, "seeds": len(one.seeds)}
            for column in table:
                row[column.key] = _plain(column.values[i])
                if column.ours:
                    row[f"{column.key}_std"] = _plain(column.deviations[i])
            rows.append(
                {**row, "seconds": _plain(one["seconds"].mean), "bytes_stored": _plain(one["bytes_stored"].mean)}
            )
    longest = max(rows, key=len)
    target = io.StringIO()
    writer = csv.DictWriter(
        target, list(dict.fromkeys(n for row in [longest, *rows] for n in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def _plain(value: Any) -> object:
    return round(float(value), 6) + 0.0 if math.isfinite(value) else ""


def to_json(groups: Sequence[Summaries], facts: Mapping[str, str]) -> str:
    """Return every metric with mean and standard deviation (null: not defined), and how the results were made."""
    methods = [_described(one) for summaries in groups for one in summaries.values()]
    document = {"format": "protodrift-summary", "format_version": 1, "facts": dict(facts), "methods": methods}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _described(one: Summary) -> dict[str, Any]:
    return {
        "name": one.name,
        "run": one.run,
        "method": one.method_name,
        "configuration": one.method.to_json(),
        "seeds": list(one.seeds),
        "tasks": [list(task) for task in one.tasks],
        **{name: {"mean": _numbers(spread.mean), "std": _numbers(spread.std)} for name, spread in one.metrics.items()},
        "paper_average_accuracy": _numbers(one.paper),
        "confusion": None if one.confusion is None else one.confusion.tolist(),
    }


def _numbers(values: np.ndarray) -> Any:
    return json_numbers(values) if values.ndim else json_numbers(values[None])[0]


def _cells(summaries: Summaries, table: Sequence[Column]) -> Iterator[tuple[str, bool, list[tuple[str, bool]]]]:
    """Yield the name of each method, whether it is an upper bound, and its texts, each with whether it is the best."""
    for i, (name, one) in enumerate(summaries.items()):
        yield name, one.is_upper_bound, [(column.texts[i], i in column.best) for column in table]


def to_markdown(groups: Sequence[Summaries]) -> str:
    """Return Markdown tables; the best of a column is bold, upper bounds are in italics."""
    parts = []
    for summaries in groups:
        table = [column for column in columns(summaries) if not column.detail]
        rows = [
            [f"*{markdown_text(name)}*" if bound else markdown_text(name), *(f"**{t}**" if b else t for t, b in cells)]
            for name, bound, cells in _cells(summaries, table)
        ]
        head = ["method", *(markdown_text(column.heading) for column in table)]
        parts.append(markdown_table(rows, head, range(1, len(head))) + "\n")
        if warning := not_learned(summaries):
            parts.append(markdown_text(warning) + "\n")
    return "\n".join(parts)


_SPECIAL = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum", "<": "textless", ">": "textgreater"}
_LATEX = {
    **{character: f"\\{character}" for character in "{}&%$#_"},
    **{character: f"\\{name}{{}}" for character, name in {**_SPECIAL, "|": "textbar"}.items()},
    "±": r"$\pm$",
    MISSING: "--",
}


def latex_escape(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> print(latex_escape("50 % of a_b"))
    50 \% of a\_b
    """
    return "".join(_LATEX.get(c, c) for c in one_line(text))


def to_latex(groups: Sequence[Summaries]) -> str:
    """Return `tabular` environments that need no package; the best of a column is bold, upper bounds are in italics."""
    parts = []
    for summaries in groups:
        table = [column for column in columns(summaries) if not column.detail]
        lines = [["Method"]]
        for column in table:
            symbol, _, index = column.heading.partition("_")
            lines[0].append(f"${symbol}_{{{index}}}$" if index and column.ours else latex_escape(column.heading))
        for name, bound, cells in _cells(summaries, table):
            texts = [rf"\textbf{{{latex_escape(t)}}}" if best else latex_escape(t) for t, best in cells]
            lines.append([rf"\textit{{{latex_escape(name)}}}" if bound else latex_escape(name), *texts])
        head, *rows = (f"{' & '.join(line)} \\\\" for line in lines)
        begin, end = rf"\begin{{tabular}}{{l{'r' * len(table)}}}", r"\end{tabular}"
        parts.append("\n".join([begin, r"\hline", head, r"\hline", *rows, r"\hline", end]) + "\n")
    return "\n".join(parts)
