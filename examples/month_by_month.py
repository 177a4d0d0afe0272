"""Learn new classes month by month without keeping photos, and ask how sure an answer is.

Runs in seconds on scikit-learn's digits, which come with the install; replace `month` by folders of your own:

    clf.partial_fit(paths_of_photos, labels)
"""

from __future__ import annotations

from protodrift import IncrementalClassifier, Schedule, StreamingLDA
from protodrift.data import load_digits

digits = load_digits()


def month(*classes: int):
    """Return this month's images and labels."""
    part = digits.train.of_classes(classes)
    return part.images, list(part.labels)


# A network that is left as it is, and linear discriminant analysis on top: nothing drifts.
clf = IncrementalClassifier(schedule=Schedule(train="none"), readout=StreamingLDA(), temperature="auto")
for classes in ((0, 1, 2), (3, 4), (5, 6, 7)):
    clf.partial_fit(*month(*classes))
    checked, accuracy = clf.tasks_[-1].held_out
    print(f"learned {classes}: {accuracy:.0%} of {checked} held-out images, among {len(clf.classes_)} classes")

test = digits.test.of_classes(range(8))
print(f"accuracy on all eight classes: {clf.score(test.images, list(test.labels)):.1%}")

answer = clf.recognize(digits.test.of_classes([8, 9]).images)  # never learned
print(f"{answer.unknown.mean():.0%} of the images of two classes that it never learned are called unknown")
