"""Giving a class of a model directory another name."""

from __future__ import annotations

from pathlib import Path

from ..common import files
from ..common.labels import Label, label_like
from ..learner import IncrementalClassifier
from ..training.state import renamed
from . import versions
from .learn import KEPT_VERSIONS


def rename(path: str | Path, old: Label, new: Label) -> versions.Current:
    """Write a version in which a class has another name; answers do not change otherwise, and it can be undone.

    Raises:
        InputError: if the model does not know the class, or the new name cannot be used.
        ModelFileError: if it cannot be read or written.
    """
    path = Path(path)
    versions.read_current(path)
    with files.locked(path) as held:
        saved = versions.read(path)
        clf = IncrementalClassifier.from_saved(saved, path)
        labels = clf.state_.prototypes.labels
        clf.state_ = renamed(clf.state_, label_like(old, labels), label_like(new, labels))
        # What was stored before may be stored again.
        made = clf.files(store_images=True)
        return versions.write(path, *made, onto=saved.current, held=held, keep=KEPT_VERSIONS)
