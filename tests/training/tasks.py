"""One task of a training, as the learner goes through it, for tests of the parts."""

from __future__ import annotations

from typing import Any

from protodrift.data import Examples
from protodrift.methods import Method
from protodrift.training.trainer import Trained, consolidate, train_network


def advance(previous: Trained, new: Examples, *, task: int, method: Method, seed: int, **options: Any) -> Trained:
    """Train the network on a task, then let penalties and exemplars take what they keep."""
    trained = train_network(previous, new, task=task, method=method, seed=seed, **options)
    return consolidate(trained, previous, new, task=task, method=method, seed=seed)
