"""Class labels: the user's own, never renumbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Label = str | int
"""A class label."""


def sorted_labels(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Return each label once, sorted; ints by value, never as strings.

    >>> sorted_labels([100, 20, 100, 3])
    (3, 20, 100)
    """
    return tuple(sorted(set(labels), key=lambda label: (isinstance(label, str), label)))


def label_like(text: Label, labels: Sequence[Label]) -> Label:
    """Return a label in the type of `labels`: folders and command lines know only text.

    >>> label_like("7", [3, 7]), label_like("7", ["a"]), label_like("owl", [3])
    (7, '7', 'owl')
    """
    if isinstance(text, str) and labels and isinstance(labels[0], int):
        try:
            return int(text)
        except ValueError:
            return text
    return text
