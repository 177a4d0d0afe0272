"""Numbers as people read them; tables are in `common.tables`."""

from __future__ import annotations

from collections.abc import Sequence


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
