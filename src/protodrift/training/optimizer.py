"""The optimizer of a task, and its learning rate from step to step."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import Any

import torch

from .config import Training


def make_optimizer(groups: list[dict[str, Any]], training: Training) -> torch.optim.Optimizer:
    """Return a new optimizer of groups of weights, each with options of its own beside those of the training."""
    common: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        return torch.optim.Adam(groups, **common)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(groups, **common)
    nesterov = training.nesterov and training.momentum > 0  # torch refuses one without the other
    return torch.optim.SGD(groups, momentum=training.momentum, nesterov=nesterov, **common)


def clip_gradients(weights: Iterable[torch.Tensor], clip: float | None) -> None:
    """Make the gradient of all weights together no longer than `clip`: g <- g min(1, clip / |g|)."""
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(weights, clip)


def rate_at(training: Training, done: float) -> float:
    """Return the learning rate when a share `done` of a task's steps is done."""
    return training.learning_rate * _SHARES[training.rate_schedule](training, done)


def one_cycle(done: float) -> float:
    """Return the learning rate as a share of its peak when a share `done` of all steps is done.

    >>> [round(one_cycle(done), 3) for done in (0, 0.15, 0.3, 0.65, 1)]
    [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    rising, start, end = 0.3, 1 / 25, 1 / 25e4
    low, at = (start, done / rising) if done < rising else (end, (1 - done) / (1 - rising))
    return low + (1 - low) * (1 - math.cos(math.pi * at)) / 2


def cosine(done: float, rise: float = 0.0) -> float:
    """Return the rate as a share of its peak: a linear rise from 1/25, then half a cosine down to zero.

    >>> [round(cosine(done, 0.2), 3) for done in (0, 0.1, 0.2, 0.6, 1)]
    [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    return _rise(done, rise) if done < rise else (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2


def milestones(done: float, shares: tuple[float, ...], rise: float = 0.0) -> float:
    """Return the rate as a share of its peak: a linear rise from 1/25; a tenth of it from each milestone on.

    >>> [round(milestones(done, (0.3, 0.6)), 3) for done in (0, 0.29, 0.3, 0.6, 1)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    """
    return _rise(done, rise) * 0.1 ** bisect.bisect_right(shares, done)


def _rise(done: float, rise: float) -> float:
    return 1.0 if done >= rise else 1 / 25 + (1 - 1 / 25) * done / rise


_SHARES = {
    "constant": lambda training, done: 1.0,
    "one-cycle": lambda training, done: one_cycle(done),
    "cosine": lambda training, done: cosine(done, training.rise),
    "milestones": lambda training, done: milestones(done, training.milestones, training.rise),
}
