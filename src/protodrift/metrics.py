"""How well a stream of tasks was learned. Pure functions on numpy arrays.

`acc` is always the accuracy matrix a[k, j], (T, T): accuracy on task j after learning task k, NaN for j > k. Python
counts from 0, so a_{1,1} of the paper is `acc[0, 0]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from .common.labels import Label

Array = np.ndarray

_RANKED_ELEMENTS = 2**24  # distances between images held at once: 128 MB


def task_accuracies(y_true: Sequence[Label], y_pred: Sequence[Label], tasks: Sequence[Sequence[Label]]) -> Array:
    """Return the accuracy on each task, one row of a[k, j]: (T,), NaN for a task without test images.

    Args:
        y_true, y_pred: labels; predictions are over all seen classes (task-agnostic).
        tasks: the classes of each task.

    >>> task_accuracies(["a", "a", "b"], ["a", "b", "b"], [["a"], ["b"], ["c"]])
    array([0.5, 1. , nan])
    """
    _same_length(y_true, y_pred)
    task_of = {label: t for t, classes in enumerate(tasks) for label in classes}
    right, total = np.zeros(len(tasks)), np.zeros(len(tasks))
    for truth, guess in zip(y_true, y_pred, strict=True):
        total[task_of[truth]] += 1
        right[task_of[truth]] += truth == guess
    with np.errstate(invalid="ignore"):
        return right / total


def accuracy_matrix(rows: Sequence[Sequence[float] | Array]) -> Array:
    """Return a[k, j], (T, T), from its rows: after task k, the accuracy on each of the tasks up to k; NaN above.

    >>> accuracy_matrix([[0.9], [0.5, 0.7]])
    array([[0.9, nan],
           [0.5, 0.7]])
    """
    acc = np.full((len(rows), len(rows)), np.nan)
    for k, row in enumerate(rows):
        if len(row) != k + 1:
            raise ValueError(f"row {k + 1} of an accuracy matrix has {k + 1} accuracies, got {len(row)}")
        acc[k, : k + 1] = row
    return acc


def average_accuracy(acc: Array) -> Array:
    """Return A_k = 1/k sum_{j<=k} a[k, j] for every k: the mean over tasks (Sec. 3.2), (T,).

    >>> average_accuracy(np.array([[0.9, np.nan], [0.5, 0.7]]))
    array([0.9, 0.6])
    """
    acc = _matrix(acc)
    return np.array([acc[k, : k + 1].mean() for k in range(len(acc))])


def overall_accuracy(acc: Array, test_counts: Sequence[int]) -> Array:
    """Return the accuracy over the test images of all seen classes after each task, (T,).

    It weights a task by its images; A_k does not. For a stream such as 50 + 10x5 the two differ a lot.

    Args:
        acc: (T, T).
        test_counts: test images of each task, (T,); NaN where no seen task has any.

    >>> overall_accuracy(np.array([[0.9, np.nan], [0.5, 0.7]]), [300, 100])
    array([0.9 , 0.55])
    """
    acc = _matrix(acc)
    counts = np.asarray(test_counts, dtype=float)
    there = counts > 0  # a task without test images says nothing, and its accuracy is NaN

    def over(k: int) -> float:
        some = there[: k + 1]
        return float(np.average(acc[k, : k + 1][some], weights=counts[: k + 1][some])) if some.any() else np.nan

    return np.array([over(k) for k in range(len(acc))])


def average_forgetting(acc: Array) -> Array:
    """Return F_k = 1/(k-1) sum_{j<k} f_j^k, f_j^k = max_{j<=l<k} a[l, j] - a[k, j], (T,); NaN for the first task.

    (The paper's text swaps the indices of a; this is the definition of Chaudhry et al. that it cites.)

    >>> average_forgetting(np.array([[0.9, np.nan], [0.5, 0.7]]))
    array([nan, 0.4])
    """
    acc = _matrix(acc)
    result = np.full(len(acc), np.nan)
    for k in range(1, len(acc)):
        result[k] = np.mean([acc[j:k, j].max() - acc[k, j] for j in range(k)])
    return result


def backward_transfer(acc: Array) -> Array:
    """Return 1/(k-1) sum_{j<k} a[k, j] - a[j, j], (T,): what later tasks gave to, or took from, old ones.

    Lopez-Paz and Ranzato, NeurIPS 2017; NaN for the first task.

    >>> backward_transfer(np.array([[0.9, np.nan], [0.5, 0.7]]))
    array([ nan, -0.4])
    """
    acc = _matrix(acc)
    result = np.full(len(acc), np.nan)
    for k in range(1, len(acc)):
        result[k] = np.mean([acc[k, j] - acc[j, j] for j in range(k)])
    return result


def forward_transfer(before: Sequence[float], chance: Sequence[float]) -> Array:
    """Return 1/(k-1) sum_{1<j<=k} b_j - chance_j, (T,): what a network knew of tasks that it had not seen.

    Lopez-Paz and Ranzato, NeurIPS 2017, measure b_j with the head of task j. Classes that are not learned yet have no
    prototype, so here b_j is how well the network before task j tells its classes apart (`left_out_accuracy`).

    Args:
        before: b_j of each task, (T,).
        chance: 1 / number of classes of each task, (T,).

    >>> forward_transfer([0.5, 0.9, 0.7], [0.5, 0.5, 0.5])
    array([nan, 0.4, 0.3])
    """
    gains = np.asarray(before, dtype=float) - np.asarray(chance, dtype=float)
    result = np.full(len(gains), np.nan)
    for k in range(1, len(gains)):
        result[k] = gains[1 : k + 1].mean()
    return result


def left_out_accuracy(z: torch.Tensor, targets: torch.Tensor, classes: int) -> float:
    """Return the accuracy of the nearest class mean, each image left out of the mean of its own class.

    Args:
        z: (N, D) embeddings.
        targets: (N,) class of each, 0 to classes - 1. An image that is alone in its class counts as wrong.
        classes: K.

    >>> left_out_accuracy(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]), 2)
    1.0
    """
    counts = torch.bincount(targets, minlength=classes)
    sums = torch.zeros(classes, z.shape[1], dtype=torch.float64)
    rows = max(1, 2**18 // max(1, z.shape[1]))  # 2 MB at once: embeddings may be a file beyond memory
    parts = list(zip(z.split(rows), targets.split(rows), strict=True))
    for part, own in parts:
        sums.index_add_(0, own, part.double())
    means = sums / counts.clamp(min=1)[:, None]
    right = 0
    for single, own in parts:
        part = single.double()
        other = torch.cdist(part, means)
        without = (sums[own] - part) / (counts[own] - 1).clamp(min=1)[:, None]
        distance = torch.linalg.vector_norm(part - without, dim=1)
        other[:, counts == 0] = torch.inf
        other.scatter_(1, own[:, None], torch.inf)
        right += int(((distance < other.min(dim=1).values) & (counts[own] > 1)).sum())
    return right / len(z)


def confusion_matrix(y_true: Sequence[Label], y_pred: Sequence[Label], classes: Sequence[Label]) -> Array:
    """Return counts, (K, K): row = true class, column = predicted class, in the order of `classes`.

    >>> confusion_matrix(["a", "a", "b"], ["a", "b", "b"], ["a", "b"])
    array([[1, 1],
           [0, 1]])
    """
    from sklearn import metrics  # slow to import, and only this function needs it

    _same_length(y_true, y_pred)
    index = {label: i for i, label in enumerate(classes)}  # labels may be ints that no array can hold
    targets, predicted = ([index[label] for label in labels] for labels in (y_true, y_pred))
    counts: Array = metrics.confusion_matrix(targets, predicted, labels=range(len(classes)))
    return counts


CONFUSION_CLASSES = 2000
"""A matrix of more classes is not made: at 2,000 it has 32 MB, at 100,000 it would have 80 GB, nearly all zeros."""


def confusion_counts(y_true: Sequence[Label], y_pred: Sequence[Label]) -> dict[tuple[Label, Label], int]:
    """Return how often each (true class, predicted class) occurs: the confusion matrix without its zeros.

    >>> confusion_counts(["a", "a", "b"], ["a", "b", "b"])
    {('a', 'a'): 1, ('a', 'b'): 1, ('b', 'b'): 1}
    """
    _same_length(y_true, y_pred)
    return dict(Counter(zip(y_true, y_pred, strict=True)))


def prototype_distance(prototypes: torch.Tensor, true_means: torch.Tensor) -> Array:
    """Return the Euclidean distance of each prototype to the true mean of its class now, (K, D), (K, D) -> (K,).

    This is the length of the semantic drift that is left (Eq. 8, Fig. 5).

    >>> prototype_distance(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    array([5.])
    """
    distances: Array = torch.linalg.vector_norm(prototypes.double() - true_means.double(), dim=1).numpy()
    return distances


def expected_calibration_error(confidence: Array, right: Array, bins: int = 15) -> float:
    """Return ECE = sum_b n_b / N |mean confidence in b - share right in b|, over `bins` equal bins of (0, 1].

    Args:
        confidence: (N,) probability of the answer given.
        right: (N,) whether it was right.

    >>> round(expected_calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])), 3)
    0.1
    """
    _same_length(confidence, right)
    confidence, right = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    if not len(confidence):
        return float("nan")
    bin_of = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = [abs((confidence - right)[bin_of == b].sum()) for b in range(bins)]
    return float(sum(gaps) / len(confidence))


def auroc(positive: Array, negative: Array) -> float:
    """Return how likely a positive scores above a negative, ties counting half (the area under the ROC curve).

    >>> auroc(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    0.875
    """
    from scipy.stats import rankdata  # slow to import, and only this function needs it

    positive, negative = np.asarray(positive, dtype=float), np.asarray(negative, dtype=float)
    if not len(positive) or not len(negative):
        return float("nan")
    ranks = rankdata(np.concatenate([positive, negative]))  # ties share the mean of their ranks; infinity may be there
    above = ranks[: len(positive)].sum() - len(positive) * (len(positive) + 1) / 2
    return float(above / (len(positive) * len(negative)))


def recall_at(z: Array, labels: Array, ks: Sequence[int]) -> dict[int, float]:
    """Return Recall@k for retrieval: the share of images with one of their class among the k nearest other images.

    Images that are the only one of their class are left out; NaN if all are.

    Args:
        z: (N, D) embeddings.
        labels: (N,).

    >>> recall_at(np.array([[0.0], [1.0], [1.5], [9.0]]), np.array(["a", "a", "b", "b"]), [1, 2])
    {1: 0.5, 2: 0.75}
    """
    hits = [relevant for relevant, _ in _rankings(z, labels)]
    return {k: float(np.mean([hit[:k].any() for hit in hits])) if hits else float("nan") for k in ks}


def mean_average_precision(z: Array, labels: Array) -> float:
    """Return mAP for retrieval: for each image all others ranked by distance, AP = mean precision at each of its class.

    >>> round(mean_average_precision(np.array([[0.0], [1.0], [1.5], [9.0]]), np.array(["a", "a", "b", "b"])), 4)
    0.7083
    """
    values = []
    for relevant, total in _rankings(z, labels):
        precision = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
        values.append(float((precision * relevant).sum() / total))
    return float(np.mean(values)) if values else float("nan")


def _rankings(z: Array, labels: Array) -> Iterator[tuple[Array, int]]:
    """Yield for each image which of all others, nearest first, are of its class, and how many are."""
    z, labels = np.asarray(z, dtype=np.float64), np.asarray(labels)
    _same_length(z, labels)
    z = z - z.mean(axis=0)
    squares = (z**2).sum(axis=1)
    at_once = max(1, min(512, _RANKED_ELEMENTS // max(1, len(z))))
    for start in range(0, len(z), at_once):
        distances = squares[start : start + at_once, None] - 2 * z[start : start + at_once] @ z.T + squares
        for i, row in enumerate(distances, start):
            row[i] = -np.inf  # itself, first
            relevant = (labels == labels[i])[np.argsort(row, kind="stable")][1:]
            if relevant.any():
                yield relevant, int(relevant.sum())


def _matrix(acc: Array) -> Array:
    acc = np.asarray(acc, dtype=float)
    if acc.ndim != 2 or acc.shape[0] != acc.shape[1]:
        raise ValueError(f"an accuracy matrix is (T, T), got {acc.shape}")
    return acc


def _same_length(y_true: Sequence[Label] | Array, y_pred: Sequence[Label] | Array) -> None:
    if len(y_true) != len(y_pred):
        raise ValueError(f"{len(y_true)} true labels but {len(y_pred)} predictions")
