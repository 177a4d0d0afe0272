"""What is kept of old classes, moved into the embedding space after a task (Eq. 13)."""

from __future__ import annotations

import torch

from ..common.finite import check_finite
from ..drift import FittedDrift
from ..methods import Method
from ..penalties import Tensors
from ..prototypes.store import Prototypes
from ..prototypes.update import DriftReport, update_prototypes


def move_prototypes(
    method: Method, old: Prototypes | None, computed: Prototypes, fitted: FittedDrift | None
) -> tuple[Prototypes, DriftReport]:
    """Return all prototypes after a task (`update_prototypes`), and refuse what the drift estimator did not know.

    Args:
        method: its drift was fitted.
        old: the prototypes before the task, or None.
        computed: those computed from images of this task.
        fitted: what `fit_drift` returned.
    """
    prototypes, report = update_prototypes(old, computed, fitted)
    if old is not None and fitted is not None:
        there = torch.isfinite(old.means).all(dim=1)  # a class without an image never had a place
        check_finite(method.drift, "the prototypes that it moved", report.after[there])
        check_finite(method.drift, "the covariances that it moved", prototypes.statistics)
    return prototypes, report


def move_readout(
    method: Method, readout_state: Tensors, old: Prototypes | None, fitted: FittedDrift | None, task: int, seed: int
) -> Tensors:
    """Return what the read-out keeps in the new embedding space; `old` and `fitted` as for `move_prototypes`."""
    if old is None or fitted is None:
        return readout_state
    moved = method.readout.moved(readout_state, fitted, old.means, old.counts, task, seed)
    check_finite(method.drift, "what the read-out keeps, moved", moved)
    return moved
