"""Thousands of classes: no K x K matrix and no N x K scores at once, and the same answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from protodrift import IncrementalClassifier, NearestClassMean, Schedule, StreamingLDA, metrics
from protodrift.model import evaluate as evaluation
from protodrift.model.evaluate import evaluate
from protodrift.readouts import NearestExemplarMean, View, ncm
from protodrift.readouts import base as readouts
from protodrift.training import checking


@pytest.fixture
def cloud():
    g = torch.Generator().manual_seed(0)
    z, prototypes = torch.randn(101, 6, generator=g) + 50, torch.randn(37, 6, generator=g) + 50
    prototypes[5] = torch.nan  # a class without a prototype
    prototypes[20] = prototypes[3]  # a tie: the first wins
    return z, prototypes


def naive(z, prototypes):
    distances = torch.linalg.vector_norm(z.double()[:, None] - prototypes.double(), dim=2)
    return torch.where(distances.isnan(), torch.inf, distances).argmin(dim=1)


@pytest.mark.parametrize("block", [1, 7, 36, 37, 1000])
def test_nearest_mean_in_blocks_is_that_of_a_plain_loop(cloud, block, monkeypatch):
    z, prototypes = cloud
    monkeypatch.setattr(ncm, "_AT_ONCE", 5 * block)
    monkeypatch.setattr(ncm, "_BLOCK", block)
    assert torch.equal(ncm.nearest_class_mean(z, prototypes), naive(z, prototypes))


@pytest.mark.parametrize("readout", [NearestClassMean(), NearestExemplarMean(), StreamingLDA()])
@pytest.mark.parametrize("elements", [1, 37 * 10, 37 * 100, 2**25])
def test_predictions_in_parts_are_those_of_all_scores(cloud, readout, elements, monkeypatch):
    z, prototypes = cloud
    kept = readout.learn({}, z, torch.arange(101) % 10, 1, 0)
    view = View(z, prototypes, readout_state=kept)
    whole = readout.scores(view).argmax(dim=1)
    monkeypatch.setattr(readouts.View.parts, "__defaults__", (elements, 2**31))
    monkeypatch.setattr(ncm, "_AT_ONCE", elements)
    monkeypatch.setattr(ncm, "_BLOCK", 10)
    assert torch.equal(readout.predict(view), whole)
    assert max(len(part.z) for part in view.parts(elements)) <= max(1, elements // 37)


@pytest.mark.parametrize("classes", [5, 6, 7, 30])
def test_discriminant_coordinates_are_whitened_distances_in_the_plane_of_the_means(classes):
    g = torch.Generator().manual_seed(0)
    z, means = torch.randn(40, 6, generator=g).double(), torch.randn(classes, 6, generator=g).double()
    readout = StreamingLDA(shrinkage=0.01)
    kept = readout.learn({}, z, torch.arange(40) % 4, 1, 0)
    at, of = readout.coordinates(View(z, means, readout_state=kept))
    sigma = kept["scatter"] / kept["count"]
    sigma = 0.99 * sigma + 0.01 * sigma.trace() / 6 * torch.eye(6, dtype=torch.float64)
    white = torch.linalg.inv(torch.linalg.cholesky(sigma)).T
    plane = torch.linalg.svd((means - means.mean(dim=0)) @ white, full_matrices=False).Vh[: classes - 1]
    expected = torch.cdist(z @ white @ plane.T, means @ white @ plane.T)
    torch.testing.assert_close(torch.cdist(at, of), expected, rtol=1e-8, atol=1e-8)


@pytest.fixture(scope="module")
def many():
    """2,100 classes of two feature vectors each, learned by a network that is left as it is."""
    rng = np.random.RandomState(0)
    X = np.repeat(rng.randn(2100, 32).astype(np.float32), 2, axis=0) + rng.randn(4200, 32).astype(np.float32) / 20
    y = [f"c{i // 2:04d}" for i in range(4200)]
    return learned(X, y, images=400), X, y


def learned(X, y, images):
    """Learn 2,100 classes; so many images are checked."""
    clf = IncrementalClassifier(embedding_dim=32, schedule=Schedule(train="none"), temperature="auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "CHECKED_SCORES", 2100 * images)
        return clf.partial_fit(X, y)


def test_an_evaluation_of_many_classes_makes_no_matrix(many, monkeypatch):
    clf, X, y = many
    monkeypatch.setattr(metrics, "confusion_matrix", None)  # nobody calls it
    X, y = X[::2], y[::2]
    found = evaluate(clf, X[:100], y[:100])
    assert found.confusion is not None  # 100 classes and what they were taken for
    whole = evaluate(clf, X, y)
    assert len(whole.classes) == 2100
    assert whole.confusion is None
    said = json.loads(json.dumps(whole.to_json()))
    assert said["confusion"] is None
    answers = clf.predict(X)
    right = np.mean(answers == np.array(y))
    assert whole.all.accuracy == pytest.approx(right)
    assert sum(n for one, other, n in said["confusion_counts"] if one == other) == round(2100 * right)
    assert sum(n for *_, n in said["confusion_counts"]) == 2100
    for label, (count, share, mostly) in whole.per_class.items():
        own = answers[np.array(y) == label].tolist()
        assert (count, share) == (1, own.count(label))
        assert (mostly is None) == (share == 1)


def test_the_batch_of_an_evaluation_does_not_matter(many, monkeypatch):
    clf, X, y = many
    whole = evaluate(clf, X[:50], y[:50])
    monkeypatch.setattr(evaluation, "_SCORES_AT_ONCE", 7 * 2100)
    asked = []
    plain = IncrementalClassifier.recognize
    monkeypatch.setattr(IncrementalClassifier, "recognize", lambda self, X: (asked.append(len(X)), plain(self, X))[1])
    assert evaluate(clf, X[:50], y[:50]).counts == whole.counts
    assert max(asked) == 7


def test_calibration_is_measured_on_a_sample_where_scores_would_not_fit(many):
    clf, X, y = many
    assert int(clf.state_.calibration.images.sum()) == 400
    calibration = learned(X, y, images=100).state_.calibration
    assert int(calibration.images.sum()) == 100
    limits = calibration.limits()
    assert bool(torch.isfinite(limits).all())
    assert float(limits.median() / clf.state_.calibration.limits().median()) == pytest.approx(1, 0.2)


def test_counts_are_the_matrix_without_its_zeros():
    rng = np.random.RandomState(0)
    truth, guess = rng.randint(0, 5, (2, 200)).tolist()
    matrix = metrics.confusion_matrix(truth, guess, range(5))
    assert metrics.confusion_counts(truth, guess) == {
        (i, j): int(matrix[i, j]) for i in range(5) for j in range(5) if matrix[i, j]
    }
