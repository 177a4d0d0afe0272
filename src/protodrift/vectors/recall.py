"""Nearest neighbors, exactly and by blocks, and how many of the right ones a search finds."""

from __future__ import annotations

import torch

from ..common.geometry import squared_distances
from ..errors import InputError, did_you_mean

METRICS = ("l2", "ip", "cosine")
"""How a search compares two vectors: Euclidean distance, inner product, or the angle."""

_BLOCK = 1024  # queries at a time: a block of scores against 100,000 vectors is 400 MB


def similarity(queries: torch.Tensor, vectors: torch.Tensor, metric: str) -> torch.Tensor:
    """Return scores, larger is nearer, (Q, D), (N, D) -> (Q, N): -|q - x|^2, <q, x>, or the cosine.

    >>> similarity(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]]), "l2")
    tensor([[-4., -1.]])
    >>> similarity(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]]), "ip")
    tensor([[3., 1.]])
    """
    check_metric(metric)
    if metric == "cosine":
        queries, vectors = (torch.nn.functional.normalize(part, dim=1) for part in (queries, vectors))
    return -squared_distances(queries, vectors) if metric == "l2" else queries @ vectors.T


def nearest(
    queries: torch.Tensor, vectors: torch.Tensor, k: int, metric: str = "l2", *, same: bool = False
) -> torch.Tensor:
    """Return the rows of the k nearest vectors, nearest first, (Q, D), (N, D) -> (Q, k).

    Args:
        queries, vectors: in one space.
        k: at most N.
        metric: one of `METRICS`.
        same: query i is vector i (of two models, perhaps): a query does not find itself.
    """
    parts = []
    for start in range(0, len(queries), _BLOCK):
        scores = similarity(queries[start : start + _BLOCK], vectors, metric)
        if same:
            rows = torch.arange(len(scores))
            scores[rows, rows + start] = -torch.inf
        parts.append(scores.topk(k, dim=1).indices)
    return torch.cat(parts)


def recall(found: torch.Tensor, true: torch.Tensor, k: int) -> float:
    """Return Recall@k, the share of the k true neighbors that are among the first k found: mean |F_k & T_k| / k.

    >>> recall(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[2, 9], [5, 6]]), 2)
    0.25
    """
    hits = found[:, :k, None] == true[:, None, :k]
    return float(hits.any(dim=2).double().mean())


def first_found(found: torch.Tensor, true: torch.Tensor, k: int) -> float:
    """Return the share of queries whose one nearest neighbor is among the first k found.

    >>> first_found(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[2, 9], [5, 6]]), 2)
    0.5
    """
    return float((found[:, :k] == true[:, :1]).any(dim=1).double().mean())


def check_metric(metric: str) -> None:
    """Refuse a metric that is not one of `METRICS`."""
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}. {did_you_mean(metric, METRICS)}")
