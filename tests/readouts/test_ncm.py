import pytest
import torch
from sklearn.neighbors import NearestCentroid

from protodrift.data import load_digits
from protodrift.prototypes.store import Prototypes
from protodrift.readouts import NearestClassMean, View, nearest_class_mean


def test_prototypes_and_ncm_agree_with_scikit_learn():
    digits = load_digits()
    z, y = digits.train.images.flatten(1).double(), digits.train.labels
    reference = NearestCentroid().fit(z.numpy(), y)
    store = Prototypes.of(digits.classes, z, digits.train.targets_of(digits.classes), 1)
    torch.testing.assert_close(store.means, torch.from_numpy(reference.centroids_))
    test = digits.test.images.flatten(1).double()
    ours = [store.labels[row] for row in nearest_class_mean(test, store.means).tolist()]
    assert ours == reference.predict(test.numpy()).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_class_without_a_prototype_never_wins(bad):
    """A zero vector in its place would: the origin is near everything small."""
    prototypes = torch.tensor([[5.0, 5.0], [bad, 0.0], [9.0, 9.0]])
    z = torch.zeros(4, 2)
    assert nearest_class_mean(z, prototypes).tolist() == [0] * 4
    scores = NearestClassMean().scores(View(z, prototypes))
    assert bool((scores[:, 1] == -torch.inf).all())
    assert scores.softmax(dim=1)[:, 1].tolist() == [0] * 4


def test_joined_prototypes_keep_order_and_replace_what_was_computed_again():
    z = torch.eye(4)
    old = Prototypes.of(["b", "a"], z[:2], torch.tensor([0, 1]), 1)
    new = Prototypes.of(["a", "c"], z[2:], torch.tensor([0, 1]), 2)
    both = Prototypes.joined(old, new)
    assert both.labels == ("b", "a", "c")
    torch.testing.assert_close(both.means, z[[0, 2, 3]])
    assert both.tasks.tolist() == [1, 1, 2]
    torch.testing.assert_close(old.means, z[:2])
    assert both.row("c") == 2
