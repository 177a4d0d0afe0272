"""What a model is and what it has learned, as what JSON can hold: `protodrift inspect` and the HTTP API."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common.labels import Label
from ..data.arrays import InputSpec
from ..errors import InputError
from ..learner import IncrementalClassifier
from ..training.calibration import LEVELS
from ..training.state import LearnedTask, LearnerState
from .answers import finite


def photo_size(spec: InputSpec, path: str | Path) -> int:
    """Return the side of a photo as a model sees it.

    Raises:
        InputError: if the model was not made for photos (square, three channels, 8 bits).
    """
    if not spec.is_image or spec.shape[0] != 3 or spec.shape[1] != spec.shape[2] or spec.scale != "uint8":
        raise InputError(f"{path} was made for {spec}, not for photos. Use the Python API for it.")
    return spec.shape[1]


def backbone_name(clf: IncrementalClassifier) -> str:
    """Return the name of a classifier's backbone, or the type of a user's own."""
    return clf.backbone if isinstance(clf.backbone, str) else type(clf.backbone).__name__


def network_facts(clf: IncrementalClassifier) -> dict[str, Any]:
    """Return backbone, number of weights and embedding size."""
    network = clf.state_.trained.network
    return {
        "backbone": backbone_name(clf),
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "embedding_dim": network.embedding_dim,
    }


def class_facts(state: LearnerState, more: Callable[[int, Label], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per class: its name, task and images, and what `more(row, label)` adds."""
    prototypes = state.prototypes
    return [
        {
            "class": label,
            "task": int(prototypes.tasks[row]),
            "images": int(prototypes.counts[row]),
            "held_out_images": int(state.calibration.images[row]),
            **more(row, label),
        }
        for row, label in enumerate(prototypes.labels)
    ]


# -- the HTTP API -----------------------------------------------------------------------------------------------------


def model_document(name: str, version: int, clf: IncrementalClassifier) -> dict[str, Any]:
    """Return the answer to GET /model."""
    state = clf.state_
    return {
        "name": name,
        "version": version,
        "classes": len(state.prototypes),
        **network_facts(clf),
        "image_size": state.spec.shape[1],
        "drift": None if clf.drift is None or clf.schedule.train == "none" else type(clf.drift).__name__,
        "readout": type(clf.readout).__name__,
        "tasks": [_task_summary(number, task) for number, task in enumerate(state.tasks, 1)],
    }


def _task_summary(number: int, task: LearnedTask) -> dict[str, Any]:
    images, accuracy = task.held_out if task.held_out is not None else (0, math.nan)
    return {
        "task": number,
        "source": task.source,
        "classes": len(task.classes),
        "images": sum(task.images) + sum(count for _, count in task.refreshed),
        "refreshed": len(task.refreshed),
        "epochs": len(task.history),
        "note": task.note,
        "held_out_images": images,
        "held_out_accuracy": finite(accuracy),
        "mean_moved": _mean([one.moved for one in task.drift]),
        "mean_uncertainty": _mean([one.uncertainty for one in task.drift if one.uncertainty is not None]),
    }


def _mean(values: list[float]) -> float | None:
    return finite(sum(values) / len(values)) if values else None


def classes_document(version: int, state: LearnerState) -> dict[str, Any]:
    """Return the answer to GET /classes."""
    moved: dict[Label, list[dict[str, Any]]] = {}
    for number, task in enumerate(state.tasks, 1):
        for one in task.drift:
            unsure = None if one.uncertainty is None else finite(one.uncertainty)
            entry = {"task": number, "distance": finite(one.moved), "uncertainty": unsure}
            moved.setdefault(one.label, []).append(entry)
    return {"version": version, "classes": class_facts(state, lambda _, label: {"moved": moved.get(label, [])})}


# -- protodrift inspect -----------------------------------------------------------------------------------------------


def inspected(clf: IncrementalClassifier, bytes_of: dict[Label, int]) -> dict[str, Any]:
    """Return all facts of a classifier.

    Args:
        clf: a classifier that has learned.
        bytes_of: bytes per class (`audit.class_bytes`).
    """
    state = clf.state_
    calibration = state.calibration
    limits = calibration.limits(clf.unknown_rate)

    def more(row: int, label: Label) -> dict[str, Any]:
        return {
            "bytes": bytes_of[label],
            "really_held_out": bool(calibration.honest[row]),
            "temperature": float(calibration.temperatures[row]),
            "spread": finite(float(calibration.spread[row])),
            "unknown_beyond": finite(float(limits[row])),
            "novelty_quantiles": _quantiles(calibration.quantiles[row].tolist()),
        }

    return {
        "input": state.spec.to_json(),
        **network_facts(clf),
        "unknown_rate": clf.unknown_rate,
        "images_stored": 0 if state.trained.exemplars is None else len(state.trained.exemplars),
        "tasks": [_task(task) for task in state.tasks],
        "classes": class_facts(state, more),
    }


def _task(task: LearnedTask) -> dict[str, Any]:
    return {
        "source": task.source,
        "classes": list(task.classes),
        "images": list(task.images),
        "refreshed": [list(one) for one in task.refreshed],
        "epochs": len(task.history),
        "note": task.note,
        "held_out": None if task.held_out is None else list(task.held_out),
        "drift": [{"class": d.label, "moved": d.moved, "uncertainty": d.uncertainty} for d in task.drift],
    }


def _quantiles(values: list[float]) -> dict[str, float | None]:
    return {str(level): None if q == math.inf else q for level, q in zip(LEVELS, values, strict=True)}
