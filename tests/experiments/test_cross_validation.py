"""Cross-validation over tasks: what a fold leaves out is never learned, and drift is compared on one training."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from protodrift import SDC, Dataset, IncrementalClassifier, TaskStream, Training
from protodrift.errors import InputError
from protodrift.experiments.cross_validation import cross_validate_incremental


class ByHeart(ClassifierMixin, BaseEstimator):
    """Knows the images that it has seen, and nothing else; `forgets`: and only those of the last task."""

    def __init__(self, forgets=False):
        self.forgets = forgets

    def partial_fit(self, X, y):
        seen = {} if self.forgets else dict(getattr(self, "seen_", {}))
        self.seen_ = seen | {tuple(x): label for x, label in zip(X.tolist(), y, strict=True)}
        return self

    def predict(self, X):
        return np.array([self.seen_.get(tuple(x), "none") for x in X.tolist()])


@pytest.fixture
def stream():
    rng = np.random.default_rng(0)
    labels = [name for name in "abcdef" for _ in range(12)]
    X = rng.normal(size=(72, 5)) + 3 * np.repeat(rng.normal(size=(6, 5)), 12, axis=0)
    return TaskStream(Dataset(X, labels, name="clouds"), tasks=3)


def test_what_is_left_out_was_never_learned_and_is_all_there(stream):
    found = cross_validate_incremental(ByHeart(), stream, cv=3)
    there = np.tril(np.ones((3, 3), dtype=bool))
    assert (found["accuracy_matrix"][:, there] == 0).all()
    assert np.isnan(found["accuracy_matrix"][:, ~there]).all()
    assert found["average_accuracy"].shape == found["average_forgetting"].shape == (3, 3)


def test_images_that_were_learned_are_known_again():
    X = np.repeat(np.arange(4.0), 6)[:, None]  # every image of a class is the same
    twins = TaskStream(Dataset(X, [name for name in "abcd" for _ in range(6)], name="twins"), tasks=2)
    kept = cross_validate_incremental(ByHeart(), twins, cv=2)
    lost = cross_validate_incremental(ByHeart(forgets=True), twins, cv=2)
    assert kept["test_score"].tolist() == [1, 1]
    assert lost["accuracy_matrix"][:, 1].tolist() == [[0, 1], [0, 1]]
    assert lost["test_score"].tolist() == [0.5, 0.5]
    assert lost["average_forgetting"][:, 1].tolist() == [1, 1]


def test_a_search_over_drift_compares_something_and_changes_nothing(stream):
    clf = IncrementalClassifier("mlp", embedding_dim=4, training=Training(epochs=3, learning_rate=3e-3))
    found = [cross_validate_incremental(clf.set_params(drift=drift), stream, cv=2) for drift in (SDC(), None, SDC())]
    first = [one["accuracy_matrix"][:, 0, 0].tolist() for one in found]
    assert first[0] == first[1]  # one training
    assert np.array_equal(found[0]["accuracy_matrix"], found[2]["accuracy_matrix"], equal_nan=True)
    assert not np.array_equal(found[0]["accuracy_matrix"], found[1]["accuracy_matrix"], equal_nan=True)
    assert not hasattr(clf, "state_")


@pytest.mark.parametrize("cv", [1, 13, True, 2.0])
def test_folds_that_cannot_be_are_refused(stream, cv):
    with pytest.raises(InputError, match=r"cv=.* at least 2 and at most the images of a class"):
        cross_validate_incremental(ByHeart(), stream, cv=cv)
