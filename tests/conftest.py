"""Small real data and small real models, shared by all tests."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable

import numpy as np
import pytest
import torch

from protodrift import SDC, IncrementalClassifier, Training, Triplet
from protodrift.data import Dataset, Examples, load_digits

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background ignores Ctrl-C for them and all that they start; some press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # the networks here are tiny: threads only wait for each other

QUICK = Training(epochs=1, batch_size=16, images_per_class=8)
"""Enough steps to move every weight."""


def first_of_each(examples: Examples, count: int) -> Examples:
    """Return the first `count` images of every class."""
    seen: dict[object, int] = {}
    rows = []
    for i, label in enumerate(examples.labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= count:
            rows.append(i)
    return Examples(examples.images[rows], tuple(examples.labels[i] for i in rows))


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """All of scikit-learn's digits."""
    return load_digits()


@pytest.fixture(scope="session")
def small_digits(digits: Dataset) -> Dataset:
    """Sixteen training and eight test images of every digit, as numpy arrays in (N, H, W)."""
    assert digits.test is not None
    train, test = first_of_each(digits.train, 16), first_of_each(digits.test, 8)
    return Dataset(train.images, train.labels, test.images, test.labels, name="small digits")


@pytest.fixture(scope="session")
def task_of(small_digits: Dataset) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return X, y of some digits: `X, y = task_of(0, 1)`; a fresh copy each time."""

    def pick(*classes: int, test: bool = False) -> tuple[np.ndarray, np.ndarray]:
        part = small_digits.test if test else small_digits.train
        assert part is not None
        chosen = part.of_classes(classes)
        return chosen.images[:, 0].numpy().copy(), np.array(chosen.labels)

    return pick


@pytest.fixture(scope="session")
def vectors() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return X, y of Gaussian clouds: `X, y = vectors("owl", "emu")`; the place of a cloud follows from its label."""

    def pick(*classes: str | int, count: int = 12, dim: int = 6) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for label in classes:
            rng = np.random.RandomState(sum(map(ord, str(label))))
            parts.append(2 * rng.randn(dim) + rng.randn(count, dim))
        return np.concatenate(parts), np.repeat(np.array(classes), count)

    return pick


@pytest.fixture(scope="session")
def colors() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return X, y of noisy color patterns, (N, 16, 16, 3) uint8: `X, y = colors(0, 1)`."""

    def pick(*classes: int, count: int = 12) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for label in classes:
            rng = np.random.RandomState(label)
            pattern, noise = rng.randint(0, 256, (1, 16, 16, 3)), rng.randint(-60, 60, (count, 16, 16, 3))
            parts.append(np.clip(pattern + noise, 0, 255).astype(np.uint8))
        return np.concatenate(parts), np.repeat(np.array(classes), count)

    return pick


@pytest.fixture(scope="session")
def make_classifier() -> Callable[..., IncrementalClassifier]:
    """Make a small, fast classifier; with this margin the loss never is zero, nor are importances."""

    def make(**params: object) -> IncrementalClassifier:
        defaults = {"embedding_dim": 8, "objective": Triplet(margin=2.0), "drift": SDC(), "training": QUICK}
        return IncrementalClassifier(**{**defaults, **params})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def _two_tasks(task_of: Callable, make_classifier: Callable) -> IncrementalClassifier:
    return make_classifier().partial_fit(*task_of(0, 1)).partial_fit(*task_of(2, 3))


@pytest.fixture
def two_tasks(_two_tasks: IncrementalClassifier) -> IncrementalClassifier:
    """Return a convnet that learned digits 0, 1 and then 2, 3; every test gets its own copy."""
    return copy.deepcopy(_two_tasks)


@pytest.fixture(scope="session")
def _two_clouds(vectors: Callable, make_classifier: Callable) -> IncrementalClassifier:
    return make_classifier().partial_fit(*vectors("owl", "emu")).partial_fit(*vectors("jay", "ibis"))


@pytest.fixture
def two_clouds(_two_clouds: IncrementalClassifier) -> IncrementalClassifier:
    """Return an MLP that learned owl, emu and then jay, ibis from vectors; every test gets its own copy."""
    return copy.deepcopy(_two_clouds)


def same_model(a: IncrementalClassifier, b: IncrementalClassifier) -> bool:
    """Whether two classifiers have learned the same, bit for bit: network, prototypes, drift, what penalties keep."""
    s, t = a.state_, b.state_
    pairs = [
        (s.trained.network.state_dict(), t.trained.network.state_dict()),
        *zip(s.trained.penalty_state, t.trained.penalty_state, strict=True),
        ({"m": s.prototypes.means, "c": s.prototypes.counts}, {"m": t.prototypes.means, "c": t.prototypes.counts}),
        ({"b": s.drift.before, "a": s.drift.after}, {"b": t.drift.before, "a": t.drift.after}),
        (s.drift.diagnostics, t.drift.diagnostics),
    ]
    tensors = all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in pairs)
    return tensors and (s.prototypes.labels, s.tasks, s.spec) == (t.prototypes.labels, t.tasks, t.spec)


@pytest.fixture(scope="session")
def same() -> Callable[[IncrementalClassifier, IncrementalClassifier], bool]:
    """Return `same_model`."""
    return same_model
