"""How prototypes are updated after a task: old ones are moved (Eq. 13), new ones computed (Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ..common.covariance import dense, form_of
from ..common.labels import Label
from ..common.transport import Transport
from .covariance import refreshed
from .store import ClassSums, Prototypes


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


def compensate(old: Prototypes, fitted: Transport | None) -> tuple[Prototypes, DriftReport]:
    """Return the old classes' prototypes in the new embedding space (Eq. 13), and a report; None leaves them."""
    if fitted is None:
        return old, DriftReport(old.labels, old.means, old.means)
    means, diagnostics = fitted.explain(old.means)
    form, statistics = form_of(old.statistics), old.statistics
    if form is not None and form.form == "shared":  # one matrix: not (K, D, D)
        total = old.counts.sum().clamp(min=1)
        moved = fitted.scatter(old.means, old.counts, total * old.statistics["shared"].double()) / total
        statistics = {"shared": moved.to(old.means.dtype)}
    elif form is not None:
        means, covariances = fitted.gaussians(old.means, dense(old.statistics, len(old)))
        statistics = form.shorten(covariances, old.counts)
    return old.moved_to(means, statistics), DriftReport(old.labels, old.means, means, diagnostics)


def update_prototypes(
    old: Prototypes | None, new: Prototypes, fitted: Transport | None = None
) -> tuple[Prototypes, DriftReport]:
    """Return all prototypes after a task: the old ones moved (Eq. 13), the new ones as they were computed (Eq. 3).

    Args:
        old: the prototypes before the task; None in the first one.
        new: those computed from images of this task, and from exemplars where some are kept: a class that is in both
            takes the new one.
        fitted: an estimator that has seen how the current images moved; None leaves the old ones where they are.
    """
    if old is None:
        return new, DriftReport((), new.means[:0], new.means[:0])
    moved, report = compensate(old, fitted)
    return Prototypes.joined(moved, new), report


def refresh_prototypes(
    prototypes: Prototypes, labels: Sequence[Label], added: ClassSums, covariances: torch.Tensor | None = None
) -> Prototypes:
    """Return prototypes with more images of R known classes merged, weighted by counts.

    mu = (n mu + m mu_added) / (n + m), and covariances about the common mean (`covariance.refreshed`).

    Args:
        prototypes: of all classes, moved; n images behind each.
        labels: the R classes.
        added: sums over their m new images each.
        covariances: (R, D, D) of these images about their own means, where covariances are kept.

    >>> known = Prototypes.of(["a"], torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), 1)
    >>> refresh_prototypes(known, ["a"], ClassSums.of(torch.ones(1, 1), torch.tensor([0]), 1)).means
    tensor([[0.2500]])
    """
    rows = [prototypes.row(label) for label in labels]
    means, counts, statistics = prototypes.means.clone(), prototypes.counts.clone(), prototypes.statistics
    more = added.means(means.dtype)
    if covariances is not None:
        statistics = refreshed(statistics, counts, rows, covariances, added.counts, means[rows] - more)
    n, m = counts[rows].double()[:, None], added.counts.double()[:, None]
    means[rows] = ((n * means[rows].double() + m * more.double()) / (n + m)).to(means.dtype)
    counts[rows] += added.counts
    return replace(prototypes, means=means, counts=counts, statistics=statistics)
