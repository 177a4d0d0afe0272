"""The version that is served. A new one is read whole beside it, and takes its place in one assignment."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelFileError, ProtodriftError
from ..learner import IncrementalClassifier
from ..model import answers, versions
from .history import Cache, drift_map, read_steps

RETRY = 10.0
"""Seconds after which a version that could not be read is tried again."""


@dataclass(frozen=True)
class Served:
    """One whole version; a request holds on to the one that it began with.

    Attributes:
        current: its number and the sha256 of its manifest, which names every byte of it.
        classifier: the model.
        size: side of an image as the network sees it.
        documents: what is said about it, as JSON: "model", "classes", "map".
    """

    current: versions.Current
    classifier: IncrementalClassifier
    size: int
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
        self.served = self._read()

    def check(self) -> bool:
        """Look for a new version, and return whether one took over; blocks while it is read.

        A version that cannot be read leaves the one before in place; `problem` says why.
        """
        current = None
        try:
            current = versions.read_current(self.path)
            if current == self.served.current:
                self.problem, self._failed = "", None
                return False
            if self._failed is not None and self._failed[0] == current and time.monotonic() < self._failed[1]:
                return False
            self.served = self._read()
            self.problem, self._failed = "", None
        except Exception as error:  # also what torch says where there is no memory for a second model
            explained = isinstance(error, (ProtodriftError, OSError))
            self.problem = str(error) if explained else f"{type(error).__name__}: {error}".removesuffix(": ")
            self._failed = (current, time.monotonic() + RETRY)
            return False
        return True

    def _read(self) -> Served:
        for _ in range(5):
            current = versions.read_current(self.path)
            clf = IncrementalClassifier.from_saved(versions.read(self.path), self.path, **self.params)
            # Numbers come again after an undo: only an unchanged digest says that this is what was read.
            if versions.read_current(self.path) == current:
                return self._served(current, clf)
        raise ModelFileError(f"{self.path} changes faster than it can be read. Try again when the others are done.")

    def _served(self, current: versions.Current, clf: IncrementalClassifier) -> Served:
        spec = clf.state_.spec
        if not spec.is_image or spec.shape[0] != 3 or spec.shape[1] != spec.shape[2] or spec.scale != "uint8":
            raise InputError(f"{self.path} was made for {spec}, not for photos. Only models of photos can be served.")
        name = self.path.resolve().name
        documents = {
            "model": answers.about_model(name, current.version, clf),
            "classes": answers.about_classes(current.version, clf.state_),
            "map": {
                "version": current.version,
                **drift_map(read_steps(self.path, clf.state_, self._cache), clf.state_),
            },
        }
        as_bytes = {key: json.dumps(value, allow_nan=False).encode() for key, value in documents.items()}
        return Served(current, clf, spec.shape[1], as_bytes)
