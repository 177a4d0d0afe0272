"""Taking a class out of a model directory, in all versions that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import saving
from .labels import Label
from .learned import without
from .learner import IncrementalClassifier


@dataclass(frozen=True)
class Left:
    """What is left after a class was forgotten.

    Attributes:
        version: the new version; the only one.
        classes: how many the model knows.
        removed: how many older versions went.
        trained: whether the network was trained in the class's lesson or a later one.
        shared: whether sums over all classes are kept, which hold its share.
    """

    version: int
    classes: int
    removed: int
    trained: bool
    shared: bool


def forget(path: str | Path, label: Label) -> Left:
    """Remove a class's prototype and statistics from a model, and every version that had them.

    A version never changes once it is written: a new one without the class is written and becomes the only one. Killed
    in between, the old ones are still there; they are not on the chain any more, `inspect` names them, and forgetting
    any class again, or the next lesson, removes them.

    Raises:
        InputError: if the model does not know the class.
        ModelFileError: if it cannot be read or written.
    """
    path = Path(path)
    saving.read_current(path)
    try:
        with saving.locked(path):
            clf = IncrementalClassifier.load(path)
            state = clf.state_
            left_behind = saving.unreachable(path)
            saving.remove_unreachable(path)  # a forget that was killed is finished first
            label = _own_kind(label, state.prototypes.labels)
            if label not in state.prototypes.labels and left_behind:
                return Left(saving.read_current(path).version, len(state.prototypes), len(left_behind), True, True)
            row = state.prototypes.labels.index(label) if label in state.prototypes.labels else None
            trained = row is not None and any(
                task.history for task in state.tasks[int(state.prototypes.tasks[row]) - 1 :]
            )
            clf.state_ = without(state, label)
            versions = len(saving.chain(path)) + len(left_behind)
            clf.save(path, root=True, holding=True, store_images=True)  # what was stored before may be stored again
            shared = bool(state.readout) or any(state.trained.kept)
            return Left(saving.read_current(path).version, len(clf.state_.prototypes), versions, trained, shared)
    except OSError as error:
        raise saving.unwritable(path, error) from error


def _own_kind(label: Label, labels: tuple[Label, ...]) -> Label:
    """Return the label as the model has it: a command line knows only text."""
    if isinstance(label, str) and labels and isinstance(labels[0], int):
        try:
            return int(label)
        except ValueError:
            return label
    return label
