"""Prototypes: every class is its mean embedding (Eq. 3). One store, from label to row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ..common.covariance import Covariance, Tensors
from ..common.labels import Label
from ..common.scatter import class_sums
from ..common.sums import Sums
from . import covariance as class_statistics


def class_means(z: torch.Tensor, targets: torch.Tensor, count: int) -> torch.Tensor:
    """Return the mean embedding of each class, Eq. 3: mu_c = 1/n_c sum_i [y_i = c] z_i.

    Summed in float64, so that the mean of many images does not depend on their order. Embeddings of unit length have a
    mean inside the unit ball; it is not normalized again.

    Args:
        z: (N, D) embeddings.
        targets: (N,) class index of each, in 0..count-1.
        count: K, the number of classes.

    Returns:
        (K, D); a class without an image gets NaN, which no read-out ever chooses.

    >>> class_means(torch.tensor([[0.0, 2.0], [2.0, 2.0], [5.0, 5.0]]), torch.tensor([0, 0, 1]), 2)
    tensor([[1., 2.],
            [5., 5.]])
    """
    return ClassSums.of(z, targets, count).means(z.dtype)


@dataclass(frozen=True)
class ClassSums(Sums):
    """Sums and counts of each class, from which its mean follows (Eq. 3).

    Attributes:
        counts: (K,) int64, images of each class.
        sums: (K, D) float64, the sum of their embeddings.
    """

    counts: torch.Tensor
    sums: torch.Tensor

    @staticmethod
    def of(z: torch.Tensor, targets: torch.Tensor, count: int) -> ClassSums:
        """Return the sums over (N, D) embeddings of classes (N,) in 0..K-1, K = count; N may be 0."""
        if z.ndim != 2 or len(z) != len(targets):
            raise ValueError(f"z must be (N, D) with N targets, got {tuple(z.shape)} and {tuple(targets.shape)}")
        return ClassSums(torch.bincount(targets, minlength=count), class_sums(z, targets, count))

    def merge(self, other: ClassSums) -> ClassSums:
        """Return the sums over both sets of images."""
        return ClassSums(self.counts + other.counts, self.sums + other.sums)

    def means(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the means, (K, D); a class without an image gets NaN."""
        return (self.sums / self.counts[:, None]).to(dtype)


@dataclass(frozen=True)
class Prototypes:
    """The prototypes of all classes seen so far. Immutable: every change returns a new store.

    Attributes:
        labels: K labels in task order, sorted within a task.
        means: (K, D) mu_c.
        counts: (K,) images each was computed from.
        tasks: (K,) the task, counted from 1, in which each class was learned.
        statistics: what is kept of each class beside its mean: a covariance in the form that `Covariance` says, or
            nothing.
    """

    labels: tuple[Label, ...]
    means: torch.Tensor
    counts: torch.Tensor
    tasks: torch.Tensor
    statistics: Tensors = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, label: Label) -> int:
        """Return the row of a label."""
        return self.labels.index(label)

    def moved_to(self, means: torch.Tensor, statistics: Tensors | None = None) -> Prototypes:
        """Return the same classes at other places, with other statistics if they are given."""
        if means.shape != self.means.shape:
            raise ValueError(f"{tuple(means.shape)} means for prototypes of shape {tuple(self.means.shape)}")
        return replace(self, means=means, statistics=self.statistics if statistics is None else statistics)

    @staticmethod
    def of(
        labels: Sequence[Label], z: torch.Tensor, targets: torch.Tensor, task: int, covariance: Covariance | None = None
    ) -> Prototypes:
        """Compute the prototypes of a task's classes from its embeddings (Eq. 3), and the covariances asked for."""
        return Prototypes(
            tuple(labels),
            class_means(z, targets, len(labels)),
            torch.bincount(targets, minlength=len(labels)),
            torch.full((len(labels),), task),
            {} if covariance is None else covariance.measure(z, targets, len(labels)),
        )

    @staticmethod
    def from_sums(
        labels: Sequence[Label], sums: ClassSums, task: int, dtype: torch.dtype = torch.float32
    ) -> Prototypes:
        """Return the prototypes of a task's classes from sums over its images (Eq. 3), which may have been merged."""
        return Prototypes(tuple(labels), sums.means(dtype), sums.counts, torch.full((len(labels),), task))

    @staticmethod
    def joined(old: Prototypes | None, new: Prototypes) -> Prototypes:
        """Return old and new classes in one store; a class that stands in both takes its new mean and count."""
        if old is None:
            return new
        again = {label: row for row, label in enumerate(new.labels)}
        known = set(old.labels)
        fresh = [row for label, row in again.items() if label not in known]
        means, counts = old.means.clone(), old.counts.clone()
        for row, label in enumerate(old.labels):
            if label in again:
                means[row], counts[row] = new.means[again[label]], new.counts[again[label]]
        both = [(row, again[label]) for row, label in enumerate(old.labels) if label in again]
        stay = int(old.counts.sum()) - sum(int(old.counts[row]) for row, _ in both)
        statistics = class_statistics.joined(
            old.statistics, new.statistics, counts=(stay, int(new.counts.sum())), again=both, fresh=fresh
        )
        return Prototypes(
            old.labels + tuple(new.labels[row] for row in fresh),
            torch.cat([means, new.means[fresh]]),
            torch.cat([counts, new.counts[fresh]]),
            torch.cat([old.tasks, new.tasks[fresh]]),
            statistics,
        )
