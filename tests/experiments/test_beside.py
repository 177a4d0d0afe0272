"""Features that cannot drift beside those that can: one read-out of both, and only the latter are moved."""

import pytest
import torch

from protodrift import SDC, Method, Schedule, Softmax, StreamingLDA, TaskStream, Triplet
from protodrift.errors import InputError
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.readouts import ExpertGate, NearestClassMean, View
from protodrift.training.config import Training

PATCHES = Method(readout=StreamingLDA(), schedule=Schedule(train="none"), backbone="patches-100")
LEARNED = Method(Triplet(margin=2.0), drift=SDC(sigma=5.0))
BOTH = Method(Triplet(margin=2.0), drift=SDC(sigma=5.0), beside=PATCHES)


@pytest.fixture
def tree(small_digits):
    stream = TaskStream(small_digits, classes=[[3, 8], [1, 7], [0, 2]])
    training = Training(epochs=1, batch_size=16, images_per_class=8, learning_rate=1e-2)
    return Tree(stream, network=Network(embedding_dim=8, normalize=False), training=training)


def test_one_training_serves_both_rows_and_patches_are_embedded_once(tree):
    tree.run({"learned": LEARNED, "both": BOTH, "patches": PATCHES})
    assert tree.computed["train"] == 3
    assert tree.computed["embed"] == 6


def test_the_read_out_sees_both_and_moves_only_what_can_drift(tree):
    before, after = (tree.readout(BOTH, t).prototypes.means for t in (1, 2))
    alone = tree.readout(LEARNED, 2).prototypes.means
    assert after.shape == (4, 8 + 800)
    torch.testing.assert_close(after[:, :8], alone)
    assert not torch.equal(before[:, :8], after[:2, :8])
    assert torch.equal(before[:, 8:], after[:2, 8:])
    z = torch.cat([tree.embeddings(LEARNED, 2).z_test, tree.embeddings(PATCHES, 2).z_test], dim=1)
    expected = NearestClassMean().predict(View(z, after))
    assert torch.equal(tree.readout(BOTH, 2).predicted, expected)


def test_a_first_network_can_stand_beside_a_learned_one(tree):
    first = Method(Triplet(margin=2.0), schedule=Schedule(train="first"))
    hybrid = Method(Triplet(margin=2.0), drift=SDC(sigma=5.0), beside=first)
    means = tree.readout(hybrid, 3).prototypes.means
    torch.testing.assert_close(means[:, 8:], tree.readout(first, 3).prototypes.means)


def test_a_backbone_of_the_methods_own_has_no_warm_up_and_its_features_are_the_embedding(tree):
    assert tree.embeddings(PATCHES, 1).z_new.shape[1] == 800
    assert not tree.computed["train"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beside": Method()}, "train='none'"),
        ({"beside": "patches-100"}, "must be a Method"),
        ({"beside": Method(schedule=Schedule(train="none"), beside=PATCHES)}, "without another method"),
        ({"objective": Softmax(), "readout": ExpertGate(), "beside": PATCHES}, "read-outs of prototypes"),
    ],
)
def test_what_cannot_stand_beside_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Method(**changes)
