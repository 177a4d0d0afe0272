"""Stored larger than seen: random crops train, the center is evaluated, in experiments as in a classifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protodrift import MAS, SDC, Dataset, IncrementalClassifier, Method, TaskStream
from protodrift.data import RandomCropFlip, ResizedCropFlip
from protodrift.errors import InputError
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.methods import Schedule
from protodrift.networks import embed
from protodrift.training.config import Training

FAST = Training(epochs=1, learning_rate=3e-4)


@pytest.fixture(scope="module")
def data():
    rng = np.random.RandomState(0)
    X = np.concatenate([rng.randint(0, 200, (1, 24, 30, 3)) + rng.randint(0, 56, (10, 24, 30, 3)) for _ in range(4)])
    return X.astype(np.uint8), np.repeat(np.arange(4), 10)


def frame(X: np.ndarray) -> np.ndarray:
    """Other pixels around the same 16 x 16 center."""
    changed = X.copy()
    changed[:, :4], changed[:, 20:], changed[:, :, :7], changed[:, :, 23:] = 0, 255, 0, 255
    return changed


@pytest.mark.parametrize("augment", [RandomCropFlip(16), ResizedCropFlip(16)])
def test_a_tree_and_a_classifier_agree_and_see_the_center_only(data, augment, tmp_path):
    X, y = data
    method = Method(penalty=MAS(), drift=SDC())
    clf = IncrementalClassifier(
        "convnet", embedding_dim=8, penalty=MAS(), drift=SDC(), training=FAST, augment=augment, crop=16
    )
    clf.partial_fit(X[:20], y[:20]).partial_fit(X[20:], y[20:])
    assert np.array_equal(clf.transform(X), clf.transform(frame(X)))

    stream = TaskStream(Dataset(X, y, X, y), classes=[[0, 1], [2, 3]])
    network = Network("convnet", embedding_dim=8, crop=16)
    tree = Tree(stream, network=network, training=FAST, augment=augment)
    prototypes = tree.prototypes(method, 2)
    assert torch.equal(prototypes.means, torch.from_numpy(clf.prototypes_))

    clf.save(tmp_path / "model")
    loaded = IncrementalClassifier.load(tmp_path / "model")
    assert loaded.crop == 16
    assert np.array_equal(loaded.transform(X), clf.transform(X))
    loaded.set_params(crop=None)
    with pytest.raises(InputError, match="crop was 16 when this model learned its first task"):
        loaded.partial_fit(X, y + 9)


def test_the_view_is_part_of_what_a_stage_is(data):
    X, y = data
    stream = TaskStream(Dataset(X, y, X, y), classes=[[0, 1], [2, 3]])
    method = Method(schedule=Schedule(train="none"))
    whole, center = (
        Tree(stream, network=Network("convnet", crop=crop), training=FAST, augment=None) for crop in (None, 16)
    )
    assert whole.plan({"E-Pre": method}).keys().isdisjoint(center.plan({"E-Pre": method}))
    images = torch.from_numpy(X[:20]).permute(0, 3, 1, 2)
    network = center.trained(method, 0).network
    assert torch.equal(center.embeddings(method, 1).z_new, embed(network.pooled(), images[:, :, 4:20, 7:23]))
    assert not torch.equal(center.embeddings(method, 1).z_new, whole.embeddings(method, 1).z_new)
