"""Moves a whole store of prototypes after a task, and tells what was done."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..common.labels import Label
from ..drift.base import FittedDrift
from .covariance import dense, form_of
from .store import Prototypes


@dataclass(frozen=True)
class DriftReport:
    """What drift compensation did to each old class in the last task.

    Attributes:
        labels: the K old classes.
        before, after: (K, D) their prototypes before and after compensation.
        diagnostics: named (K,) values of the estimator, such as `effective_samples`.
    """

    labels: tuple[Label, ...]
    before: torch.Tensor
    after: torch.Tensor
    diagnostics: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def vectors(self) -> torch.Tensor:
        """The drift vectors Delta, (K, D)."""
        return self.after - self.before

    @property
    def distances(self) -> dict[Label, float]:
        """How far each class was moved."""
        lengths = torch.linalg.vector_norm(self.vectors, dim=1).tolist()
        return dict(zip(self.labels, lengths, strict=True))

    def __repr__(self) -> str:
        moved = list(self.distances.values())
        mean = sum(moved) / len(moved) if moved else 0.0
        return f"DriftReport({len(self.labels)} old classes, moved by {mean:.3g} on average)"


def compensate(old: Prototypes, fitted: FittedDrift | None) -> tuple[Prototypes, DriftReport]:
    """Return the old classes' prototypes in the new embedding space (Eq. 13), and a report; None leaves them."""
    if fitted is None:
        return old, DriftReport(old.labels, old.means, old.means)
    means, diagnostics = fitted.explain(old.means)
    form, statistics = form_of(old.statistics), old.statistics
    if form is not None:
        means, covariances = fitted.transport(old.means, dense(old.statistics, len(old)))
        statistics = form.shorten(covariances, old.counts)
    return old.moved_to(means, statistics), DriftReport(old.labels, old.means, means, diagnostics)
