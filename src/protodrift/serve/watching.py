"""The version that is served. A new one is read whole beside it, answers a warm-up photo, and takes its place in one
assignment."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelFileError, ProtodriftError
from ..learner import IncrementalClassifier
from ..model import versions
from ..model.facts import classes_document, model_document, photo_size
from .history import Cache, Plane, drift_map, read_steps

RETRY = 10.0
"""Seconds after which a version that could not be read is tried again."""


@dataclass(frozen=True)
class Served:
    """One whole version; a request holds on to the one that it began with.

    Attributes:
        current: its number and the sha256 of its manifest, which names every byte of it.
        classifier: the model.
        size: side of an image as the network sees it.
        plane: where embeddings are on the map.
        documents: what the API says about it, as JSON: "model", "classes", "map".
    """

    current: versions.Current
    classifier: IncrementalClassifier
    size: int
    plane: Plane
    documents: dict[str, bytes]


class Watched:
    """A model directory and the version of it that is served.

    Args:
        path: the model directory.
        params: for `IncrementalClassifier.load`, such as `device`.

    Raises:
        ModelFileError: if there is no model, or it cannot be used.
        InputError: if it is no model of photos.
    """

    def __init__(self, path: str | Path, **params: Any) -> None:
        self.path, self.params = Path(path), params
        self.problem = ""
        self._failed: tuple[versions.Current | None, float] | None = None
        self._cache: Cache = {}
        self._checking = threading.Lock()
        self.served = self._read()

    def check(self) -> bool:
        """Look for a new version, and return whether one took over; blocks while it is read.

        A version that cannot be read leaves the one before in place; `problem` says why.
        """
        with self._checking:
            return self._check()

    def trains(self) -> bool:
        """Return whether the network of the served version trains in the next task."""
        clf = self.served.classifier
        return bool(clf.schedule.trains(len(clf.state_.tasks) + 1))

    def _check(self) -> bool:
        current = None
        try:
            current = versions.read_current(self.path)
            if current == self.served.current:
                self.problem, self._failed = "", None
                return False
            if self._failed is not None and self._failed[0] == current and time.monotonic() < self._failed[1]:
                return False
            served = self._read()
            self.problem, self._failed = "", None  # before: nobody is told of a new version and an old problem
            self.served = served
        except Exception as error:  # also what torch says where there is no memory for a second model
            explained = isinstance(error, (ProtodriftError, OSError))
            self.problem = str(error) if explained else f"{type(error).__name__}: {error}".removesuffix(": ")
            self._failed = (current, time.monotonic() + RETRY)
            return False
        return True

    def _read(self) -> Served:
        saved = versions.read(self.path)
        clf = IncrementalClassifier.from_saved(saved, self.path, **self.params)
        version, state = saved.current.version, clf.state_
        size = photo_size(state.spec, self.path)
        _warm_up(clf, size, self.path)
        steps = read_steps(self.path, state, self._cache)
        plane, drawn = drift_map(steps, state)
        documents = {
            "model": model_document(self.path.resolve().name, version, clf),
            "classes": classes_document(version, state),
            "map": {"version": version, **drawn},
        }
        as_bytes = {key: json.dumps(value, allow_nan=False).encode() for key, value in documents.items()}
        return Served(saved.current, clf, size, plane, as_bytes)


def _warm_up(clf: IncrementalClassifier, size: int, path: Path) -> None:
    """Have a photo answered, so that the first one of a client does not wait for what is only done once.

    Raises:
        ModelFileError: if the answer holds what is no number.
    """
    found = clf.recognize(np.full((1, size, size, 3), 127, dtype=np.uint8))
    if not all(np.isfinite(part).all() for part in (found.probabilities, found.embeddings)):
        raise ModelFileError(f"{path} answers a gray photo with what is no number.")
