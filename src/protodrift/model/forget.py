"""Taking a class out of a model directory, in all versions that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common import files
from ..common.labels import Label, label_like
from ..errors import InputError, ModelFileError
from ..learner import IncrementalClassifier
from ..training.state import LearnerState, trained_with, unknown_class, without
from . import versions
from .format import Files


@dataclass(frozen=True)
class Left:
    """What is left after a class was forgotten.

    Attributes:
        version: the new version.
        classes: how many the model knows.
        removed: how many older versions went; those that can be undone to were written anew without the class.
        undo: how many times the model can be undone.
        trained: whether the network was trained with the class's images; None: not known any more.
        shared: whether sums over all classes are kept, which hold its share.
    """

    version: int
    classes: int
    removed: int
    undo: int
    trained: bool | None
    shared: bool


def forget(path: str | Path, label: Label) -> Left:
    """Remove a class's prototype and statistics from a model, and every version that had them.

    A version never changes once it is written: new ones without the class are written for all that are kept, and take
    their place in one step, so that other tasks can still be undone. Killed in between, the old ones are still there;
    they are not on the chain any more, `inspect` names them, and forgetting the class again, or the next task, removes
    them.

    Raises:
        InputError: if the model does not know the class.
        ModelFileError: if it cannot be read or written, or older versions cannot be removed.
    """
    path = Path(path)
    versions.read_current(path)
    try:
        with files.locked(path) as held:
            saved = versions.read(path)
            clf = IncrementalClassifier.from_saved(saved, path)
            state = clf.state_
            label = label_like(label, state.prototypes.labels)
            if label not in state.prototypes.labels:
                return _finished(path, state, label)
            clf.state_ = without(state, label)
            older = _older(path, saved, label)
            removed = sum(folder.name.isdigit() for folder in (path / "versions").iterdir())
            # What was stored before may be stored again.
            rewritten = (_rewritten(path, one, name) for one, name in older)
            versions.write(
                path, *clf.files(store_images=True), onto=saved.current, held=held, root=True, older=rewritten
            )
            return _left(path, clf.state_, removed, trained_with(state, label))
    except OSError as error:
        raise versions.unwritable(path, error) from error


def _older(path: Path, saved: versions.Saved, label: Label) -> list[tuple[versions.Current, Label | None]]:
    """Return the versions that can be undone to, oldest first, each with the class's name in it; None: it is not there.

    A version that differs from the next one by nothing but this class is left out: undoing to it would change nothing.
    One that is damaged ends the chain, and so does one that has only this class.
    """
    found: list[tuple[versions.Current, Label | None]] = []
    newer, facts = saved.manifest["labels"], _facts(saved.manifest, label)
    at: Label | None = label
    for most in range(2, len(list((path / "versions").iterdir())) + 1):
        try:
            one = versions.chain(path, most)[most - 1]
            manifest = versions.read_version(path, one).manifest
        except (ModelFileError, IndexError):
            break
        labels = manifest["labels"]
        if at is not None and at not in labels:  # learned since, or renamed: then all other names are the same
            other = [(a, b) for a, b in zip(labels, newer, strict=False) if a != b]
            at = other[0][0] if len(labels) == len(newer) and len(other) == 1 else None
        own = _facts(manifest, at)
        if not own[0]:
            break
        if own != facts:
            found.insert(0, (one, at))
        newer, facts = labels, own
    return found


def _facts(manifest: dict[str, Any], label: Label | None) -> tuple[list[Label], list[Any]]:
    """Return the classes of a version without one of them, and the photos behind each in each task."""
    photos = [
        [*zip(task["classes"], task["images"], strict=True), *map(tuple, task["refreshed"])]
        for task in manifest["tasks"]
    ]
    kept = [[one for one in task if one[0] != label] for task in photos]
    return [other for other in manifest["labels"] if other != label], [task for task in kept if task]


def _rewritten(path: Path, one: versions.Current, label: Label | None) -> tuple[dict[str, Any], Files]:
    clf = IncrementalClassifier.from_saved(versions.read_version(path, one), path)
    if label is not None:
        clf.state_ = without(clf.state_, label)
    return clf.files(store_images=True)


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
    chain = versions.chain(path)
    return Left(chain[0].version, len(state.prototypes), removed, len(chain) - 1, trained, shared)
