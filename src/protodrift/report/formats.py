"""The results table for other programs: CSV, JSON, Markdown, LaTeX; one per group of runs that can be compared."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..common.tables import markdown_table, markdown_text, one_line
from ..experiments.stages.readout import json_numbers
from .summary import METRICS, Summaries, Summary
from .table import MISSING, columns


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
            row["seconds"] = _plain(float(one.seconds.mean))
            row["bytes_stored"] = _plain(float(one.bytes_stored.mean))
            rows.append(row)
    names = max((list(row) for row in rows), key=len)
    names = list(dict.fromkeys(name for row in [dict.fromkeys(names), *rows] for name in row))
    target = io.StringIO()
    writer = csv.DictWriter(target, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def _plain(value: float) -> object:
    return round(value, 6) + 0.0 if math.isfinite(value) else ""


def to_json(groups: Sequence[Summaries], facts: Mapping[str, str]) -> str:
    """Return every metric with mean and standard deviation (null: not defined), and how the results were made."""
    methods = [_described(one) for summaries in groups for one in summaries.values()]
    document = {"format": "protodrift-summary", "format_version": 1, "facts": dict(facts), "methods": methods}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _described(one: Summary) -> dict[str, Any]:
    spreads = {name: getattr(one, name) for name in METRICS}
    return {
        "name": one.name,
        "run": one.run,
        "method": one.method_name,
        "configuration": one.method.to_json(),
        "seeds": list(one.seeds),
        "tasks": [list(task) for task in one.tasks],
        **{name: {"mean": _numbers(spread.mean), "std": _numbers(spread.std)} for name, spread in spreads.items()},
        "paper_average_accuracy": _numbers(one.paper),
        "confusion": None if one.confusion is None else one.confusion.tolist(),
    }


def _numbers(values: np.ndarray) -> Any:
    return json_numbers(values) if values.ndim else json_numbers(values[None])[0]


def to_markdown(groups: Sequence[Summaries]) -> str:
    """Return Markdown tables; the best of a column is bold, upper bounds are in italics."""
    parts = []
    for summaries in groups:
        table = [column for column in columns(summaries) if not column.detail]
        rows = []
        for i, (name, one) in enumerate(summaries.items()):
            shown = f"*{markdown_text(name)}*" if one.is_upper_bound else markdown_text(name)
            rows.append([shown, *(f"**{c.texts[i]}**" if i in c.best else c.texts[i] for c in table)])
        head = ["method", *(markdown_text(column.heading) for column in table)]
        parts.append(markdown_table(rows, head, range(1, len(head))) + "\n")
    return "\n".join(parts)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
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
        heads = [f"${c.symbol}_{{{c.index}}}$" if c.index and c.ours else latex_escape(c.heading) for c in table]
        lines = [rf"\begin{{tabular}}{{l{'r' * len(table)}}}", r"\hline", _latex_row(["Method", *heads]), r"\hline"]
        for i, (name, one) in enumerate(summaries.items()):
            texts = [latex_escape(column.texts[i]) for column in table]
            cells = [rf"\textbf{{{t}}}" if i in c.best else t for t, c in zip(texts, table, strict=True)]
            shown = latex_escape(name)
            lines.append(_latex_row([rf"\textit{{{shown}}}" if one.is_upper_bound else shown, *cells]))
        parts.append("\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n")
    return "\n".join(parts)


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
