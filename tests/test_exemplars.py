"""Which images are kept: iCaRL's herding against a loop written from its Algorithms 4 and 5."""

import pytest
import torch

from protodrift.common.config import decode, encode
from protodrift.data import Examples, load_digits
from protodrift.errors import InputError
from protodrift.exemplars import Everything, Herding, herding_order
from protodrift.methods import Method
from protodrift.networks import build_embedder, embed
from protodrift.objectives import SigmoidHeads
from protodrift.prototypes import update_prototypes
from protodrift.readouts import NearestExemplarMean, View
from protodrift.training.task import compute_prototypes


def algorithm_4(z, m):
    """p_k = argmin_x || mu - 1/k [phi(x) + sum_{j<k} phi(p_j)] ||, one image after another."""
    n, dims = len(z), len(z[0])
    mu = [sum(x[d] for x in z) / n for d in range(dims)]
    chosen = []
    for k in range(1, min(m, n) + 1):
        best, nearest = None, float("inf")
        for i in range(n):
            if i in chosen:
                continue
            mean = [(z[i][d] + sum(z[j][d] for j in chosen)) / k for d in range(dims)]
            gap = sum((a - b) ** 2 for a, b in zip(mu, mean, strict=True))
            if gap < nearest:
                best, nearest = i, gap
        chosen.append(best)
    return chosen


@pytest.mark.parametrize(("seed", "n", "count"), [(0, 20, 20), (1, 15, 6), (2, 1, 4), (3, 30, 12)])
def test_herding_order_equals_algorithm_4(seed, n, count):
    z = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert herding_order(z, count).tolist() == algorithm_4(z.tolist(), count)


def test_fewer_exemplars_are_the_first_of_more():
    z = torch.randn(25, 6, generator=torch.Generator().manual_seed(0))
    assert herding_order(z, 25)[:7].tolist() == herding_order(z, 7).tolist()


@pytest.fixture(scope="module")
def tasks():
    """Two tasks of two digits, 12 images of each, that know their rows in the dataset."""
    train = load_digits().train
    parts = [[train.of_classes([label]) for label in pair] for pair in ([3, 8], [1, 7])]
    return [Examples.concatenate([part.at(torch.arange(12)) for part in pair]) for pair in parts]


@pytest.fixture(scope="module")
def network(tasks):
    network = build_embedder("convnet", load_digits().spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(tasks[0].images)
    return network.eval()


@pytest.fixture(scope="module")
def embedding(network):
    return lambda images: embed(network, images, 256, fold=False)


def counts(kept):
    return {label: kept.labels.count(label) for label in dict.fromkeys(kept.labels)}


def test_a_total_is_shared_and_old_classes_give_up_their_last_ones(tasks, embedding):
    first = Herding(total=15).keep(None, tasks[0], embedding)
    both = Herding(total=15).keep(first, tasks[1], embedding)
    assert counts(first) == {3: 7, 8: 7}
    assert counts(both) == {3: 3, 8: 3, 1: 3, 7: 3}
    for label in (3, 8):
        assert torch.equal(both.of_classes([label]).ids, first.of_classes([label]).ids[:3])


def test_what_is_kept_is_chosen_on_features_of_unit_length(tasks, network, embedding):
    kept = Herding(per_class=4).keep(None, tasks[0], embedding)
    for label in (3, 8):
        members = tasks[0].of_classes([label])
        z = embed(network, members.images).double()
        z = z / z.norm(dim=1, keepdim=True)
        assert kept.of_classes([label]).ids.tolist() == members.ids[algorithm_4(z.tolist(), 4)].tolist()


def test_per_class_stays_the_same_however_many_classes_there_are(tasks, embedding):
    herding = Herding(total=1, per_class=5)
    both = herding.keep(herding.keep(None, tasks[0], embedding), tasks[1], embedding)
    assert counts(both) == {3: 5, 8: 5, 1: 5, 7: 5}


def test_fewer_exemplars_than_the_number_of_classes_keep_one_of_each(tasks, embedding):
    herding = Herding(total=3)
    both = herding.keep(herding.keep(None, tasks[0], embedding), tasks[1], embedding)
    assert counts(both) == {3: 1, 8: 1, 1: 1, 7: 1}


def test_a_class_with_few_images_gives_what_it_has(tasks, embedding):
    few = tasks[0].at(torch.tensor([0, 1, 12, 13, 14]))
    assert counts(Herding(total=100).keep(None, few, embedding)) == {3: 2, 8: 3}


def test_everything_keeps_everything(tasks, embedding):
    both = Everything().keep(Everything().keep(None, tasks[0], embedding), tasks[1], embedding)
    assert both.ids.tolist() == tasks[0].ids.tolist() + tasks[1].ids.tolist()


def test_nearest_exemplar_mean_is_icarls_algorithm_1(tasks, network, embedding):
    """mu_y: mean of the exemplars' unit features, brought back to unit length; the class is the nearest mu_y."""
    herding, readout = Herding(total=12), NearestExemplarMean()
    kept = herding.keep(herding.keep(None, tasks[0], embedding), tasks[1], embedding)
    method = Method(SigmoidHeads(), exemplars=herding, readout=readout)
    old = compute_prototypes(method, 1, tasks[0], embed(network, tasks[0].images))
    z_new, exemplars = embed(network, tasks[1].images), (kept, embed(network, kept.images))
    computed = compute_prototypes(method, 2, tasks[1], z_new, old=old, exemplars=exemplars)
    store, _ = update_prototypes(old, computed)
    test = load_digits().test.of_classes([1, 3, 7, 8])
    z = embed(network, test.images)
    predicted = [store.labels[row] for row in readout.predict(View(z, store.means)).tolist()]

    def unit(vector):
        return vector / vector.norm()

    means = {}
    for label in store.labels:
        exemplars = [unit(x) for x in embed(network, kept.of_classes([label]).images).double()]
        means[label] = unit(sum(exemplars) / len(exemplars))
    naive = [min(means, key=lambda y: float((unit(x) - means[y]).norm())) for x in z.double()]
    assert predicted == naive


def test_options():
    for choice in (Herding(total=9), Herding(per_class=3), Everything()):
        assert decode(encode(choice)) == choice
    with pytest.raises(InputError, match="at least 1"):
        Herding(total=0)
