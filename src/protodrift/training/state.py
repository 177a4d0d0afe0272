"""What a classifier has learned: one object, never changed, replaced in one assignment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..common.labels import Label, wrong_with_label
from ..data.arrays import InputSpec
from ..errors import InputError, did_you_mean
from ..penalties import Penalty, Tensors
from ..prototypes import DriftReport
from ..prototypes.store import Prototypes
from ..readouts import Readout
from .calibration import Calibration
from .trainer import Trained


@dataclass(frozen=True)
class ClassDrift:
    """How far an old class's prototype was moved in a task, and how far it may be off after that (None: not known)."""

    label: Label
    moved: float
    uncertainty: float | None = None


@dataclass(frozen=True)
class LearnedTask:
    """What is remembered about a task.

    Attributes:
        classes: its new classes.
        images: images of each, at learning time.
        history: for each epoch the mean loss and penalty.
        note: why the network was not trained, or "".
        drift: what drift compensation did to each old class.
        refreshed: known classes that got more images: (class, images).
        held_out: images whose answer was checked, and the share answered rightly among all classes known by then; None
            if none could be.
        source: the name of the folder or file that the images came from, or "".
    """

    classes: tuple[Label, ...]
    images: tuple[int, ...]
    history: tuple[dict[str, float], ...]
    note: str
    drift: tuple[ClassDrift, ...] = ()
    refreshed: tuple[tuple[Label, int], ...] = ()
    held_out: tuple[int, float] | None = None
    source: str = ""


@dataclass(frozen=True)
class LearnerState:
    """Everything a classifier has learned. One object, never changed, replaced in one assignment.

    Attributes:
        spec: what the images look like.
        fixed: the parameters that the first task fixed.
        penalties: the last task's penalties, whose importances and the like `trained.penalty_state` holds.
        trained: network, what penalties keep, memory.
        prototypes: mu_c of all classes seen.
        tasks: one entry per task.
        drift: what the last task's drift compensation did; empty after the first task.
        readout_state: what the read-out has learned.
        calibration: distances and temperatures of all classes.
        space: what the read-out calls the space in which prototypes were averaged.
    """

    spec: InputSpec
    fixed: dict[str, Any]
    penalties: tuple[Penalty, ...]
    trained: Trained
    prototypes: Prototypes
    tasks: tuple[LearnedTask, ...]
    drift: DriftReport
    readout_state: Tensors
    calibration: Calibration
    space: str = "plain"

    @cached_property
    def classes(self) -> np.ndarray:
        """(K,) the labels as an array, in the order of the prototypes; it cannot be written to."""
        labels = self.prototypes.labels
        found = np.array(labels)
        if found.dtype.kind == "f":  # small ints and ints from 2^63 on
            found = np.array(labels, dtype=object)
        found.flags.writeable = False
        return found


def class_drift(report: DriftReport) -> tuple[ClassDrift, ...]:
    """Return a drift report as what is remembered of it for ever: two numbers per class."""
    uncertainty = report.diagnostics.get("uncertainty")
    known = [None] * len(report.labels) if uncertainty is None else uncertainty.tolist()
    return tuple(
        ClassDrift(label, moved, u if u is not None and u == u and u != float("inf") else None)
        for (label, moved), u in zip(report.distances.items(), known, strict=True)
    )


def without(state: LearnerState, label: Label) -> LearnerState:
    """Return a state in which a class has left no prototype and no number of its own.

    What cannot be taken back: the network was trained on its images, and sums over all classes (importances, a shared
    covariance) hold their share.

    Raises:
        InputError: if the class is not known, is the only one, or has an output of its own in the network.
    """
    labels = state.prototypes.labels
    if label not in labels:
        raise unknown_class(label, labels)
    if len(labels) == 1:
        raise InputError(f"{label!r} is the only class of this model. Delete the model's directory instead.")
    if len(state.trained.network.heads):
        raise InputError(
            f"this model's network has classification heads, with outputs for {label!r} in them. Only models that "
            "classify by prototypes alone can forget a class."
        )
    rows = [row for row, other in enumerate(labels) if other != label]
    kept = tuple(labels[row] for row in rows)
    old = state.prototypes
    # A covariance that all classes share has no row of its own; it keeps the class's share.
    statistics = {name: value if name == "shared" else value[rows] for name, value in old.statistics.items()}
    prototypes = Prototypes(kept, old.means[rows], old.counts[rows], old.tasks[rows], statistics)
    exemplars = state.trained.exemplars
    if exemplars is not None:
        exemplars = exemplars.of_classes([other for other in exemplars.labels if other != label])
        exemplars = exemplars if len(exemplars) else None
    return replace(
        state,
        trained=replace(state.trained, classes=kept, exemplars=exemplars),
        prototypes=prototypes,
        tasks=tuple(_task_without(task, label) for task in state.tasks),
        drift=_report_without(state.drift, label),
        calibration=state.calibration.at(rows),
    )


def renamed(state: LearnerState, old: Label, new: Label) -> LearnerState:
    """Return a state in which a class has another name, and everything else is as it was.

    Raises:
        InputError: if there is no such class, or the new name is taken, of another kind or none that a class can have.
    """
    labels = state.prototypes.labels
    if old not in labels:
        raise unknown_class(old, labels)
    if new in labels:
        raise InputError(f"this model has a class {new!r} already. Two classes cannot become one by their names.")
    if type(new) is not type(old):
        raise InputError(
            f"the classes of this model are like {old!r}, and {new!r} is of another kind: text or a whole number."
        )
    if wrong := wrong_with_label(new):
        raise InputError(f"the new name {new!r} {wrong}. A class needs a name that can be shown and written.")

    def named(label: Label) -> Label:
        return new if label == old else label

    exemplars = state.trained.exemplars
    if exemplars is not None:
        exemplars = replace(exemplars, labels=tuple(map(named, exemplars.labels)))
    classes = tuple(map(named, labels))
    return replace(
        state,
        trained=replace(state.trained, classes=classes, exemplars=exemplars),
        prototypes=replace(state.prototypes, labels=classes),
        tasks=tuple(
            replace(
                task,
                classes=tuple(map(named, task.classes)),
                drift=tuple(replace(one, label=named(one.label)) for one in task.drift),
                refreshed=tuple((named(label), images) for label, images in task.refreshed),
            )
            for task in state.tasks
        ),
        drift=replace(state.drift, labels=tuple(map(named, state.drift.labels))),
    )


def unknown_class(label: Label, labels: tuple[Label, ...]) -> InputError:
    """Return the error for a class that is none of these."""
    return InputError(f"this model does not know a class {label!r}. {did_you_mean(label, labels)}")


def trained_with(state: LearnerState, label: Label) -> bool:
    """Return whether the network was trained in a task that had images of a class: its own, or one that refreshed it.

    Exemplars bring images of their classes into all later tasks.
    """
    seen = False
    for task in state.tasks:
        here = label in task.classes or any(label == other for other, _ in task.refreshed)
        seen = seen or here
        if task.history and (here or (seen and state.trained.exemplars is not None)):
            return True
    return False


def _task_without(task: LearnedTask, label: Label) -> LearnedTask:
    left = [(c, n) for c, n in zip(task.classes, task.images, strict=True) if c != label]
    return replace(
        task,
        classes=tuple(c for c, _ in left),
        images=tuple(n for _, n in left),
        drift=tuple(one for one in task.drift if one.label != label),
        refreshed=tuple(one for one in task.refreshed if one[0] != label),
    )


def _report_without(report: DriftReport, label: Label) -> DriftReport:
    rows = [row for row, other in enumerate(report.labels) if other != label]
    diagnostics = {name: value[rows] for name, value in report.diagnostics.items()}
    return DriftReport(tuple(report.labels[row] for row in rows), report.before[rows], report.after[rows], diagnostics)


def tensor_bytes(tensors: Tensors) -> int:
    """Return the bytes of named tensors."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def kept_for(penalties: tuple[Penalty, ...], state: LearnerState) -> tuple[Tensors, ...]:
    """Return for each penalty what the same one kept after the last task; another one's importances mean other things.

    Only gamma may differ: it weighs what was measured.
    """

    def measures(penalty: Penalty) -> dict[str, Any]:
        return {**penalty.to_json(), "gamma": None}

    # Nothing is kept when no task could train yet.
    kept = [
        (measures(old), tensors) for old, tensors in zip(state.penalties, state.trained.penalty_state, strict=False)
    ]
    return tuple(next((t for old, t in kept if old == measures(penalty)), {}) for penalty in penalties)


def check_new_classes(state: LearnerState, classes: tuple[Label, ...], known: str = "error") -> None:
    """Refuse labels of another kind, and known ones unless they are to be skipped or refreshed."""
    learned = {label: t for t, task in enumerate(state.tasks, 1) for label in task.classes}
    before = next(iter(learned))
    other = next((label for label in classes if type(label) is not type(before)), None)
    if other is not None:
        raise InputError(
            f"labels mix int and str: earlier tasks had {before!r}, this one has {other!r}. Use one kind: 1 and '1' "
            "would be two classes."
        )
    if known != "error":
        return
    for label in classes:
        if label in learned:
            raise InputError(
                f"class {label!r} was learned in task {learned[label]}; tasks must not share classes. Drop it, or "
                "start a new model; known='skip' passes over its images, known='refresh' merges them into its "
                "prototype."
            )


def check_fixed(state: LearnerState, fixed: dict[str, Any], readout: Readout) -> None:
    """Refuse what a later task cannot change: the parameters that the first one fixed, and the read-out's space."""
    for name, value in fixed.items():
        if value is not state.fixed[name] and value != state.fixed[name]:
            raise InputError(
                f"{name} was {state.fixed[name]!r} when this model learned its first task and is {value!r} now. It "
                "cannot change between tasks: set it back, or start a new model."
            )
    if state.space != readout.space_name:
        raise InputError(
            f"prototypes were averaged in the space {state.space!r} of the read-out that this model learned with, and "
            f"{readout} would average the new ones in {readout.space_name!r}. Set the read-out back, or start a new "
            "model."
        )
