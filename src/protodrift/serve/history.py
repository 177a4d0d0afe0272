"""Where the prototypes were after each task, on one 2-D map.

A model keeps its last versions (`model.versions`), and each its prototypes after a task. The oldest one kept also knows
where its old prototypes were before it moved them. Earlier tasks have left numbers only: how far, and how unsure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.geometry import main_plane
from ..common.labels import Label
from ..errors import ModelFileError
from ..model import versions
from ..training.state import LearnerState


@dataclass(frozen=True)
class Step:
    """The prototypes after a task.

    Attributes:
        task: which, counted from 1.
        labels: K classes.
        means: (K, D).
    """

    task: int
    labels: tuple[Label, ...]
    means: torch.Tensor


Cache = dict[str, tuple[Step, ...]]
"""What a version adds to the history, by the sha256 of its manifest: versions never change."""


def read_steps(path: Path, state: LearnerState, cache: Cache) -> list[Step]:
    """Return the steps that the kept versions of a model know, oldest first; the last one is `state`.

    Args:
        path: the model directory; versions may be removed from it meanwhile: then the history begins later.
        state: the version that is served.
        cache: of earlier calls; what is not used any more is dropped from it.
    """
    known = {len(state.tasks): Step(len(state.tasks), state.prototypes.labels, state.prototypes.means)}
    if state.drift.labels:
        known.setdefault(len(state.tasks) - 1, Step(len(state.tasks) - 1, state.drift.labels, state.drift.before))
    used: set[str] = set()
    try:
        for current in versions.chain(path):
            if current.manifest_sha256 not in cache:
                cache[current.manifest_sha256] = _steps_of(path, current)
            used.add(current.manifest_sha256)
            for step in cache[current.manifest_sha256]:
                # A whole version goes before what the next one remembers of it: it has more classes.
                if step.task < len(state.tasks) and (
                    step.task not in known or len(step.labels) > len(known[step.task].labels)
                ):
                    known[step.task] = step
    except ModelFileError:
        pass  # removed while we read, or damaged: the rest of the history is whole
    for digest in set(cache) - used:
        del cache[digest]
    return [known[task] for task in sorted(known)]


def _steps_of(path: Path, current: versions.Current) -> tuple[Step, ...]:
    saved = versions.read_version(path, current)
    manifest, tensors = saved.manifest, saved.tensors
    try:
        task = len(manifest["tasks"])
        own = Step(task, tuple(manifest["labels"]), tensors["prototypes"]["means"])
        before = Step(task - 1, tuple(manifest["drift_labels"]), tensors["drift"]["before"])
        if any(step.means.ndim != 2 or len(step.means) != len(step.labels) for step in (own, before)):
            raise ModelFileError(f"version {current.version} of {path} is damaged: prototypes do not fit its classes.")
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"version {current.version} of {path} is damaged: {error}.") from None
    return (own, before) if before.labels else (own,)


@dataclass(frozen=True)
class Plane:
    """A plane in the space of embeddings: (D,) a point of it, and (D, 2) two directions."""

    center: torch.Tensor
    directions: torch.Tensor

    def places(self, z: np.ndarray | torch.Tensor) -> list[list[float] | None]:
        """Return x, y for each of (N, D) embeddings; None where they are not finite."""
        flat = ((torch.as_tensor(z).double() - self.center) @ self.directions).numpy()
        return [[round(float(value), 5) for value in at] if np.isfinite(at).all() else None for at in flat]


def drift_map(steps: list[Step], state: LearnerState) -> tuple[Plane, dict[str, Any]]:
    """Return the plane, and what the page draws: all steps in it, with the numbers of every class, as JSON.

    Lists with one value per class follow the order of `classes`; null: not there yet, or not known.
    """
    labels = state.prototypes.labels
    row_of = {label: row for row, label in enumerate(labels)}
    center, directions, share = main_plane(torch.cat([step.means for step in steps]))
    plane = Plane(center, directions)
    numbers = {number: _numbers(state, number, row_of) for number in range(1, len(state.tasks) + 1)}
    drawn = []
    for step in steps:
        x: list[float | None] = [None] * len(labels)
        y: list[float | None] = [None] * len(labels)
        for label, place in zip(step.labels, plane.places(step.means), strict=True):
            row = row_of.get(label)  # a class that was forgotten since has no place on the map
            if row is not None and place is not None:
                x[row], y[row] = place
        moved, unsure = numbers.get(step.task, ([], []))
        drawn.append({"task": step.task, "x": x, "y": y, "moved": moved, "uncertainty": unsure})
    return plane, {
        "classes": list(labels),
        "learned_in": state.prototypes.tasks.tolist(),
        "images": state.prototypes.counts.tolist(),
        "variance_shown": round(share, 4),
        "steps": drawn,
        "total_moved": _total(numbers, len(labels)),
    }


def _numbers(
    state: LearnerState, number: int, row_of: Mapping[Label, int]
) -> tuple[list[float | None], list[float | None]]:
    moved: list[float | None] = [None] * len(row_of)
    unsure: list[float | None] = [None] * len(row_of)
    for one in state.tasks[number - 1].drift:
        if one.label in row_of:
            moved[row_of[one.label]] = round(one.moved, 5)
            unsure[row_of[one.label]] = None if one.uncertainty is None else round(one.uncertainty, 5)
    return moved, unsure


def _total(numbers: Mapping[int, tuple[list[float | None], list[float | None]]], count: int) -> list[float]:
    return [round(sum(moved[row] or 0.0 for moved, _ in numbers.values()), 5) for row in range(count)]
