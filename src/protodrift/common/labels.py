"""The type of a class label."""

from __future__ import annotations

from collections.abc import Iterable

Label = str | int
"""A class label: the user's own, never renumbered."""


def sorted_labels(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Return each label once, sorted; ints by value, never as strings.

    >>> sorted_labels([100, 20, 100, 3])
    (3, 20, 100)
    """
    return tuple(sorted(set(labels), key=lambda label: (isinstance(label, str), label)))
