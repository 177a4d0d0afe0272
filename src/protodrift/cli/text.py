"""Numbers as people read them; tables are in `common.tables`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "photo"), plural(2, "class")
    ('1 photo', '2 classes')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def time_text(seconds: float) -> str:
    """Return a duration."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.1234), percent(float("nan"))
    ('12.3 %', '-')
    """
    return "-" if share != share else f"{100 * share:.1f} %"


def span(values: Sequence[float], form: str = "{:.3g}") -> str:
    """Return smallest to largest.

    >>> span([3, 1, 2]), span([2, 2])
    ('1 to 3', '2')
    """
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that can be printed: letters of all languages as they are, the rest as escapes.

    >>> print(json_text({"file": "Käuzchen\\x9b\\u202e.jpg"}))
    {"file": "Käuzchen\\u009b\\u202e.jpg"}
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
