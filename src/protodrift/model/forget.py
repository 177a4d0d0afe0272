"""Taking a class out of a model directory, in all versions that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..common import files
from ..common.labels import Label, label_like
from ..errors import InputError
from ..learner import IncrementalClassifier
from ..training.state import LearnerState, trained_with, unknown_class, without
from . import versions


@dataclass(frozen=True)
class Left:
    """What is left after a class was forgotten.

    Attributes:
        version: the new version; the only one.
        classes: how many the model knows.
        removed: how many older versions went.
        trained: whether the network was trained with the class's images; None: not known any more.
        shared: whether sums over all classes are kept, which hold its share.
    """

    version: int
    classes: int
    removed: int
    trained: bool | None
    shared: bool


def forget(path: str | Path, label: Label) -> Left:
    """Remove a class's prototype and statistics from a model, and every version that had them.

    A version never changes once it is written: a new one without the class is written and becomes the only one. Killed
    in between, the old ones are still there; they are not on the chain any more, `inspect` names them, and forgetting
    the class again, or the next task, removes them.

    Raises:
        InputError: if the model does not know the class.
        ModelFileError: if it cannot be read or written, or older versions cannot be removed.
    """
    path = Path(path)
    versions.read_current(path)
    try:
        with files.locked(path):
            clf = IncrementalClassifier.load(path)
            state = clf.state_
            label = label_like(label, state.prototypes.labels)
            if label not in state.prototypes.labels:
                return _finished(path, state, label)
            clf.state_ = without(state, label)
            removed = sum(folder.name.isdigit() for folder in (path / "versions").iterdir())
            # What was stored before may be stored again.
            versions.write(path, *clf.files(store_images=True), root=True, is_locked=True)
            return _left(path, clf.state_, removed, trained_with(state, label))
    except OSError as error:
        raise versions.unwritable(path, error) from error


def _finished(path: Path, state: LearnerState, label: Label) -> Left:
    """Finish a forget that wrote its version and could not remove the others: these still name the class."""
    left_behind = versions.unreachable(path)
    older = [folder for folder in left_behind if folder.name.removeprefix(".new-gone-").isdigit()]
    named = any(label in versions.listed_labels(folder) for folder in older)
    versions.remove_others(path)  # whatever it is: it may hold a class whose name is gone already
    if not named:
        unknown = unknown_class(label, state.prototypes.labels)
        if left_behind:
            names = ", ".join(f"versions/{folder.name}" for folder in left_behind)
            raise InputError(f"{unknown} What an interrupted command had left in {path} was removed: {names}.")
        raise unknown
    return _left(path, state, len(older), None)


def _left(path: Path, state: LearnerState, removed: int, trained: bool | None) -> Left:
    shared = bool(state.readout_state) or any(state.trained.penalty_state)
    return Left(versions.read_current(path).version, len(state.prototypes), removed, trained, shared)
