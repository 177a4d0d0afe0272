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


def wrong_with_label(label: object) -> str | None:
    """Return what is wrong with a class label, or None: it must be an int, or a name that can be shown and written.

    >>> wrong_with_label("owl"), wrong_with_label(7), wrong_with_label("")
    (None, None, 'is empty')
    """
    if isinstance(label, bool) or not isinstance(label, (str, int)):
        return "is neither a name nor a whole number"
    if isinstance(label, int):
        return None
    if not label.strip():
        return "is empty"
    if "\0" in label:
        return "holds a zero character"
    if any("\ud800" <= character <= "\udfff" for character in label):
        return "is not valid Unicode"
    return None
