"""How good a model is on labeled photos: accuracy, confusion, calibration, novelty, retrieval; old and new apart."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.labels import Label
from ..learner import IncrementalClassifier
from ..metrics import (
    CONFUSION_CLASSES,
    auroc,
    confusion_counts,
    expected_calibration_error,
    mean_average_precision,
    recall_at,
)

RECALL_AT = (1, 2, 4, 8)
NEAREST = 4
"""How many classes an answer names: itself, and those that were nearest to it."""
_BATCH = 256
_SCORES_AT_ONCE = 2**22  # of a batch, images x classes: a few arrays of 32 MB


@dataclass(frozen=True)
class Part:
    """What was measured on the photos of some of the known classes.

    Attributes:
        images: how many photos.
        accuracy: share named rightly, "unknown" not being an answer.
        calibration_error: expected calibration error of the confidence.
        false_unknown: share called unknown although their class is known.
        auroc: how well novelty tells these photos from those of classes never learned; NaN without such photos.
    """

    images: int
    accuracy: float
    calibration_error: float
    false_unknown: float
    auroc: float


@dataclass(frozen=True)
class Answer:
    """What was answered for one photo.

    Attributes:
        truth: its class.
        known: whether the model knows that class.
        top: the likeliest classes and how sure each is, the answer first.
        unknown: whether it was called unknown.
        novelty: how far it is from the answer's class, over the limit of what is known.
    """

    truth: Label
    known: bool
    top: tuple[tuple[Label, float], ...]
    unknown: bool
    novelty: float

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if not self.known:
            return "stranger found" if self.unknown else "stranger named"
        return "called unknown" if self.unknown else "right" if self.top[0][0] == self.truth else "wrong"


VERDICTS = ("wrong", "called unknown", "stranger named", "stranger found", "right")
"""Of known classes: another class was named; none was named. Of classes never learned: one was named; none was."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Attributes:
        all, old, new: all known classes; those of earlier tasks; those of the last one. None without photos of them.
        per_task: for each task whose classes have photos, in order: its number, and what was measured on them.
        unknown_rate: the share of photos of known classes that was to be called unknown.
        per_class: for each known class that has photos: photos, share named rightly, what it is mostly taken for.
        never_learned: photos of classes that the model does not know.
        found_unknown: share of those that are called unknown; NaN without such photos.
        counts: (true class, answer) -> photos; nothing for pairs that do not occur.
        classes: the known classes that have photos or were answered, in task order.
        recall: Recall@k: is one of the k nearest other photos of the same class?
        mean_average_precision: of the ranking of all other photos by distance.
        tasks: how many of `classes` each task brought.
        answers: one for each photo, in order.
    """

    all: Part | None
    old: Part | None
    new: Part | None
    per_task: dict[int, Part]
    unknown_rate: float
    per_class: dict[Label, tuple[int, float, Label | None]]
    never_learned: int
    found_unknown: float
    counts: dict[tuple[Label, Label], int]
    classes: tuple[Label, ...]
    recall: dict[int, float]
    mean_average_precision: float
    tasks: tuple[int, ...] = ()
    answers: tuple[Answer, ...] = ()

    @property
    def confusion(self) -> np.ndarray | None:
        """(K, K) counts over `classes`; None for more than `metrics.CONFUSION_CLASSES`, whose `counts` say the same."""
        if len(self.classes) > CONFUSION_CLASSES:
            return None
        index = {label: i for i, label in enumerate(self.classes)}
        result = np.zeros((len(index), len(index)), dtype=np.int64)
        for (truth, answer), n in self.counts.items():
            result[index[truth], index[answer]] = n
        return result

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; what was not measured is None."""
        confusion = self.confusion

        def part(one: Part | None) -> dict[str, Any] | None:
            return None if one is None else {name: _plain(value) for name, value in vars(one).items()}

        return {
            "all": part(self.all),
            "old": part(self.old),
            "new": part(self.new),
            "per_task": [{"task": number, **(part(one) or {})} for number, one in self.per_task.items()],
            "unknown_rate": self.unknown_rate,
            "per_class": [
                {"class": label, "images": n, "accuracy": _plain(right), "mostly_taken_for": other}
                for label, (n, right, other) in self.per_class.items()
            ],
            "never_learned": self.never_learned,
            "found_unknown": _plain(self.found_unknown),
            "classes": list(self.classes),
            "confusion": None if confusion is None else confusion.tolist(),
            "confusion_counts": [[*pair, n] for pair, n in self.counts.items()] if confusion is None else None,
            "recall_at": {str(k): _plain(value) for k, value in self.recall.items()},
            "mean_average_precision": _plain(self.mean_average_precision),
        }


def _plain(value: float) -> float | int | None:
    return None if value != value else value


def evaluate(clf: IncrementalClassifier, X: Any, y: Sequence[Label]) -> Evaluation:
    """Measure a classifier on labeled images; labels that it does not know count as never learned.

    Args:
        clf: a classifier that has learned.
        X: N images, as for `predict`; N > 0.
        y: N labels. All of them may be unknown to the classifier: then only strangers are measured.
    """
    y = list(y)
    state = clf.state_
    known = list(state.prototypes.labels)
    row = {label: i for i, label in enumerate(known)}
    is_known = np.array([label in row for label in y])
    answers, z = _answers(clf, X, y, set(known))
    best = np.array([row[one.top[0][0]] for one in answers])
    confidence, novelty = (
        np.array(values) for values in zip(*((a.top[0][1], a.novelty) for a in answers), strict=True)
    )
    unknown = np.array([one.unknown for one in answers])
    true = np.array([row.get(label, -1) for label in y])
    right = best == true
    last = int(max(state.prototypes.tasks.tolist()))
    task = np.array([int(state.prototypes.tasks[row[label]]) if label in row else 0 for label in y])

    def part(chosen: np.ndarray) -> Part | None:
        if not chosen.any():
            return None
        unseen = novelty[~is_known]
        return Part(
            int(chosen.sum()),
            float(right[chosen].mean()),
            expected_calibration_error(confidence[chosen], right[chosen]),
            float(unknown[chosen].mean()),
            auroc(unseen, novelty[chosen]) if len(unseen) else float("nan"),
        )

    shown = sorted({*true[is_known].tolist(), *best[is_known].tolist()})
    classes = tuple(known[i] for i in shown)
    counts = confusion_counts(
        [one.truth for one in answers if one.known], [one.top[0][0] for one in answers if one.known]
    )
    named = np.array([str(label) for label in y])
    return Evaluation(
        part(is_known),
        part(is_known & (task < last)),
        part(is_known & (task == last)),
        {number: found for number in range(1, last + 1) if (found := part(is_known & (task == number))) is not None},
        clf.unknown_rate,
        _per_class(counts, classes),
        int((~is_known).sum()),
        float(unknown[~is_known].mean()) if (~is_known).any() else float("nan"),
        counts,
        classes,
        recall_at(z, named, RECALL_AT),
        mean_average_precision(z, named),
        tuple(np.bincount([int(state.prototypes.tasks[i]) for i in shown])[1:].tolist()) if shown else (),
        tuple(answers),
    )


def _answers(
    clf: IncrementalClassifier, X: Any, y: Sequence[Label], known: Container[Label]
) -> tuple[list[Answer], np.ndarray]:
    """Return one answer per image, and z, (N, D); what there is of every class goes by batch."""
    size = max(1, min(_BATCH, _SCORES_AT_ONCE // max(1, len(clf.classes_))))
    answers: list[Answer] = []
    z: list[np.ndarray] = []
    for start in range(0, len(y), size):
        found = clf.recognize(X[start : start + size])
        z.append(found.embeddings)
        for i, label in enumerate(y[start : start + size]):
            top = tuple((name, share) for name, share, _ in found.top(i, NEAREST))
            answers.append(Answer(label, label in known, top, bool(found.unknown[i]), float(found.novelty[i])))
    return answers, np.concatenate(z)


def _per_class(
    counts: Mapping[tuple[Label, Label], int], classes: Sequence[Label]
) -> dict[Label, tuple[int, float, Label | None]]:
    position = {label: i for i, label in enumerate(classes)}
    answers: dict[Label, dict[Label, int]] = {}
    for (truth, answer), n in counts.items():
        answers.setdefault(truth, {})[answer] = n
    result: dict[Label, tuple[int, float, Label | None]] = {}
    for label in sorted(answers, key=position.__getitem__):
        found = answers[label]
        total, right = sum(found.values()), found.pop(label, 0)
        # Of equals the class that was learned first.
        mostly = min(found, key=lambda other: (-found[other], position[other])) if found else None
        result[label] = (total, right / total, mostly)
    return result
