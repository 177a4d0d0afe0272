"""What was counted beside what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...common.labels import Label, sorted_labels
from ...errors import InputError
from .base import NamedDataset


def require_counts(
    dataset: NamedDataset,
    folder: Path,
    train: Sequence[Label],
    test: Sequence[Label],
    classes: int | None = None,
    *,
    fewer: bool = False,
) -> list[str]:
    """Raise an `InputError` if a folder's counts are not the published ones.

    If images may be `fewer`, return what there is less of; a missing class is an error all the same.
    """
    wrong: list[str] = []
    less: list[str] = []
    for what, counted, published in counts(dataset, train, test, classes):
        if published is not None and counted != published:
            missing = fewer and "images" in what and counted < published
            (less if missing else wrong).append(f"{what} {counted:,} (published: {published:,})")
    if wrong:
        raise InputError(
            f"{folder} does not hold {dataset.title} as published: {', '.join(wrong)}. `protodrift data check "
            f"{dataset.name}` says more; check=False takes it as it is."
        )
    return less


def counts(
    dataset: NamedDataset, train: Sequence[Label], test: Sequence[Label], classes: int | None = None
) -> list[tuple[str, int, int | None]]:
    """Return (what, counted, published) of a dataset; published is None where it is not one number."""
    expected, expected_train, expected_test = dataset.published(classes)
    both = None if expected_train is None else expected_train + expected_test
    rows = [
        ("training images", len(train), expected_train),
        ("test images", len(test), expected_test),
        ("images in all", len(train) + len(test), both),
        ("classes", len(set(train) | set(test)), expected),
        # Of each part by itself: a class without training images is still one of the classes in all.
        ("training classes", len(set(train)), expected),
        ("test classes", len(set(test)), expected),
    ]
    if dataset.train_range is not None:
        smallest, largest = dataset.train_range
        counted = Counter(train)
        sizes = [counted[label] for label in {*train, *test}] or [0]
        # Any number in the range is right, so only one outside of it has a published number to differ from.
        rows.append(("smallest training class", min(sizes), smallest if min(sizes) < smallest else None))
        rows.append(("largest training class", max(sizes), largest if max(sizes) > largest else None))
    if dataset.balanced and expected_train is not None:
        # The class that is furthest from the published share tells that labels are wrong where the sums are right.
        for what, labels, total in (("training", train, expected_train), ("test", test, expected_test)):
            share = total // expected
            furthest = max(Counter(labels).values(), key=lambda n: abs(n - share), default=0)
            rows.append((f"{what} images per class", furthest, share))
    if dataset.per_class is not None:
        known = sorted_labels({*train, *test})
        for what, labels, published in zip(("training", "test"), (train, test), dataset.per_class, strict=True):
            if len(known) != len(published):
                continue  # the row of the classes says so
            counted = Counter(labels)
            label, expected_of = max(zip(known, published, strict=True), key=lambda row: abs(counted[row[0]] - row[1]))
            rows.append((f"{what} images of {label}", counted[label], expected_of))
    return rows
