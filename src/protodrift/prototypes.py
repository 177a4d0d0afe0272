"""Prototypes: every class is its mean embedding (Eq. 3). One store, from label to row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .labels import Label


def class_means(z: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the mean embedding of each class, Eq. 3: mu_c = 1/n_c sum_i [y_i = c] z_i.

    Summed in float64, so that the mean of many images does not depend on their order. Embeddings of unit length have a
    mean inside the unit ball; it is not normalised again.

    Args:
        z: (N, D) embeddings.
        rows: (N,) class index of each, in 0..count-1.
        count: K, the number of classes.

    Returns:
        (K, D); a class without an image gets NaN, which no read-out ever chooses.

    >>> class_means(torch.tensor([[0.0, 2.0], [2.0, 2.0], [5.0, 5.0]]), torch.tensor([0, 0, 1]), 2)
    tensor([[1., 2.],
            [5., 5.]])
    """
    sums = torch.zeros(count, z.shape[1], dtype=torch.float64).index_add_(0, rows, z.double())
    counts = torch.bincount(rows, minlength=count)
    return (sums / counts[:, None]).to(z.dtype)


@dataclass(frozen=True)
class Prototypes:
    """The prototypes of all classes seen so far. Immutable: every change returns a new store.

    Attributes:
        labels: K labels in task order, sorted within a task.
        means: (K, D) mu_c.
        counts: (K,) images each was computed from.
        tasks: (K,) the task, counted from 1, in which each class was learned.
    """

    labels: tuple[Label, ...]
    means: torch.Tensor
    counts: torch.Tensor
    tasks: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, label: Label) -> int:
        """Return the row of a label."""
        return self.labels.index(label)

    def moved_to(self, means: torch.Tensor) -> Prototypes:
        """Return the same classes at other places."""
        if means.shape != self.means.shape:
            raise ValueError(f"{tuple(means.shape)} means for prototypes of shape {tuple(self.means.shape)}")
        return replace(self, means=means)

    @staticmethod
    def of(labels: Sequence[Label], z: torch.Tensor, rows: torch.Tensor, task: int) -> Prototypes:
        """Compute the prototypes of a task's classes from its embeddings (Eq. 3)."""
        return Prototypes(
            tuple(labels),
            class_means(z, rows, len(labels)),
            torch.bincount(rows, minlength=len(labels)),
            torch.full((len(labels),), task),
        )

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
        return Prototypes(
            old.labels + tuple(new.labels[row] for row in fresh),
            torch.cat([means, new.means[fresh]]),
            torch.cat([counts, new.counts[fresh]]),
            torch.cat([old.tasks, new.tasks[fresh]]),
        )
