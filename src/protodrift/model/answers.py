"""What the API says about a model and about images, as what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.labels import Label
from ..learner import IncrementalClassifier, Recognized
from ..training.state import LearnedTask, LearnerState


def finite(value: float, digits: int = 6) -> float | None:
    """Return a rounded number; None for what JSON cannot hold: infinite or not a number."""
    return round(float(value), digits) if math.isfinite(value) else None


def predictions(
    names: Sequence[str], found: Recognized, start: int, *, top: int, always_name: bool
) -> list[dict[str, Any]]:
    """Return one answer an image; row `start` of `found` is the first."""
    result = []
    for row, name in enumerate(names, start):
        unknown = bool(found.unknown[row]) and not always_name
        ranked = [
            {"class": label, "confidence": finite(share), "distance": finite(distance)}
            for label, share, distance in found.top(row, top)
        ]
        result.append(
            {
                "file": name,
                "class": None if unknown else ranked[0]["class"],
                "unknown": unknown,
                "novelty": finite(found.novelty[row]),
                "top": ranked,
            }
        )
    return result


def embeddings(names: Sequence[str], z: np.ndarray) -> list[dict[str, Any]]:
    """Return one embedding an image, (N, D)."""
    return [{"file": name, "embedding": row.tolist()} for name, row in zip(names, z, strict=True)]


def about_model(name: str, version: int, clf: IncrementalClassifier) -> dict[str, Any]:
    """Return what a model is and what it went through."""
    state = clf.state_
    network = state.trained.network
    return {
        "name": name,
        "version": version,
        "classes": len(state.prototypes),
        "backbone": clf.backbone if isinstance(clf.backbone, str) else type(clf.backbone).__name__,
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "embedding_dim": network.embedding_dim,
        "image_size": state.spec.shape[1],
        "drift": None if clf.drift is None else type(clf.drift).__name__,
        "readout": type(clf.readout).__name__,
        "tasks": [_about_task(number, task) for number, task in enumerate(state.tasks, 1)],
    }


def _about_task(number: int, task: LearnedTask) -> dict[str, Any]:
    moved = [one.moved for one in task.drift]
    unsure = [one.uncertainty for one in task.drift if one.uncertainty is not None]
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
        "mean_moved": finite(sum(moved) / len(moved)) if moved else None,
        "mean_uncertainty": finite(sum(unsure) / len(unsure)) if unsure else None,
    }


def about_classes(version: int, state: LearnerState) -> dict[str, Any]:
    """Return every class that a model knows."""
    prototypes, calibration = state.prototypes, state.calibration
    moved: dict[Label, list[dict[str, Any]]] = {label: [] for label in prototypes.labels}
    for number, task in enumerate(state.tasks, 1):
        for one in task.drift:
            unsure = None if one.uncertainty is None else finite(one.uncertainty)
            moved.setdefault(one.label, []).append(
                {"task": number, "distance": finite(one.moved), "uncertainty": unsure}
            )
    return {
        "version": version,
        "classes": [
            {
                "class": label,
                "task": int(prototypes.tasks[row]),
                "images": int(prototypes.counts[row]),
                "held_out_images": int(calibration.images[row]),
                "moved": moved[label],
            }
            for row, label in enumerate(prototypes.labels)
        ],
    }
