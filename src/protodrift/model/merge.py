"""Models that were taught in different places become one model directory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common import files
from ..common.labels import Label
from ..errors import InputError
from ..learner import IncrementalClassifier
from ..training.merging import merged
from ..training.state import LearnerState
from . import versions
from .learn import KEPT_VERSIONS


@dataclass(frozen=True)
class Merged:
    """What merging did.

    Attributes:
        classifier: the model that was written.
        version: its version.
        added: for each model after the first, how many classes it brought, and which ones it has in common with those
            before it.
        bases: for each of them, whether both were copied from one model whose photos were counted once.
    """

    classifier: IncrementalClassifier
    version: int
    added: tuple[tuple[int, tuple[Label, ...]], ...]
    bases: tuple[bool, ...]


def merge(paths: Sequence[str | Path], out: str | Path, base: str | Path | None = None) -> Merged:
    """Write a model that knows what all these models know.

    It equals a model that has learned all their photos itself, in the order of the models (`training.merging`).

    Args:
        paths: model directories, two or more.
        out: where to write: a new path, or one of the models, which gets one more version.
        base: the model that they were copied from; None: it is looked for among the versions that they keep.

    Raises:
        InputError: if they cannot be merged; it says which two, and why. Nothing is written.
        ModelFileError: if one of them cannot be read, or `out` cannot be written.
    """
    models, target = [Path(path) for path in paths], Path(out)
    if len(models) < 2:
        raise InputError("merging needs two models or more.")
    versions.check_target(target)
    own = [path for path in models if target.exists() and path.exists() and path.samefile(target)]
    if (target / "CURRENT").exists() and not own:
        raise InputError(
            f"{target} is a model already. Give a new path, or one of the models that are merged: that one gets one "
            "more version, which can be undone."
        )
    with files.locked(target) if own else contextlib.nullcontext() as held:
        read = [versions.read(path) for path in models]
        clf, *others = (IncrementalClassifier.from_saved(saved, path) for saved, path in zip(read, models, strict=True))
        given = None if base is None else IncrementalClassifier.load(base).state_
        added, bases = [], []
        for number, other in enumerate(others, 1):
            if clf.readout != other.readout:
                raise _refused(models, number, f"their read-outs differ, {clf.readout} and {other.readout}.")
            common = given if given is not None else _common(models[:number], models[number])
            known = frozenset(clf.state_.prototypes.labels)
            there = other.state_.prototypes.labels
            try:
                clf.state_ = merged(clf.state_, other.state_, clf.readout, common)
            except InputError as error:
                raise _refused(models, number, str(error)) from None
            both = tuple(label for label in there if label in known)
            added.append((len(there) - len(both), both))
            bases.append(common is not None)
        onto = read[models.index(own[0])].current if own else None
        written = versions.write(target, *clf.files(), keep=KEPT_VERSIONS, onto=onto, held=held)
    return Merged(clf, written.version, tuple(added), tuple(bases))


def _refused(models: Sequence[Path], number: int, why: str) -> InputError:
    before = ", ".join(map(str, models[:number]))
    return InputError(f"{models[number]} cannot be merged with {before}: {why} Nothing was written.")


def _common(models: Sequence[Path], other: Path) -> LearnerState | None:
    """Return the newest version that one model has in common with another, or None."""
    theirs = {one.manifest_sha256 for path in models for one in versions.chain(path)}
    for one in versions.chain(other):
        if one.manifest_sha256 in theirs:
            return IncrementalClassifier.from_saved(versions.read_version(other, one), other).state_
    return None
