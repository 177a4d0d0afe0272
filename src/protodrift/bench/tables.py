"""Results as the cells of a table, as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .harness import Result

HEAD = ("case", "what", "ours", "against", "ratio", "quartiles", "aim", "met")


def as_markdown(results: Sequence[Result]) -> str:
    """Return a Markdown table; notes below it, by number."""
    notes: list[str] = []
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|---|---|---:|---|---|---|"]
    for one in results:
        row = cells(one)
        if one.met is False:
            row[-1] = "**no**"
        if one.note:
            if one.note not in notes:
                notes.append(one.note)
            row[-1] += f" [{notes.index(one.note) + 1}]"
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "", *(f"{n}. {note}" for n, note in enumerate(notes, 1))])


def as_json(results: Sequence[Result], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything, JSON-able: one entry a comparison."""
    return {"machine": dict(machine), "settings": dict(settings), "results": [_rounded(asdict(one)) for one in results]}


def cells(one: Result) -> list[str]:
    """Return one line of the table, a cell for each word of `HEAD`."""
    if one.ratio is None:
        return [one.case, one.name, one.what, one.against, "-", "", one.aim, "not run"]
    spread = "" if one.low is None or one.rounds < 2 else f"{_number(one.low)}-{_number(one.high or 0)}"
    unit = "x" if one.unit == "x" else f" {one.unit}"
    met = "" if one.met is None else "yes" if one.met else "no"
    return [one.case, one.name, one.what, one.against, _number(one.ratio) + unit, spread, one.aim, met]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _rounded(entry: dict[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        return [short(item) for item in value] if isinstance(value, (list, tuple)) else value

    return {key: short(value) for key, value in entry.items()}
