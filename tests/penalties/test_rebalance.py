"""Rebalance's terms against their formulas, and what they do in a training."""

import copy
import math

import pytest
import torch

from protodrift.common.config import decode, encode
from protodrift.data import Examples, load_digits
from protodrift.errors import InputError
from protodrift.exemplars import Herding
from protodrift.methods import Method
from protodrift.networks import build_embedder
from protodrift.objectives import CosineHeads, Softmax
from protodrift.penalties import LessForget, MarginRanking
from protodrift.training.config import Training
from protodrift.training.step import Step
from protodrift.training.trainer import Trained, train_network
from tests.training.tasks import advance

OBJECTIVE = CosineHeads()


def network_with(sizes, seed):
    network = build_embedder("convnet", load_digits().spec, embedding_dim=None, normalize=False, seed=seed).double()
    torch.manual_seed(seed)
    for size in sizes:
        OBJECTIVE.grow(network, size)
    return network.eval()


def step_of(classes, old, new):
    """Four images of each of these digits; the old network knows `old` classes, the new one `new` more."""
    train = load_digits().train
    images = torch.cat([train.of_classes([label]).images[:4] for label in classes])
    rows = torch.tensor(classes).repeat_interleave(4)
    networks = network_with([*old, new], 2), network_with(old, 1)
    return Step(networks[0], images, rows, objective=OBJECTIVE, network_old=networks[1])


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b))


@pytest.mark.parametrize(("old", "new"), [([2], 2), ([2, 2], 1), ([1, 2], 5)])
def test_less_forget_with_its_adaptive_weight(old, new):
    step = step_of([0, 1, 2], old, new)
    terms = [1 - cosine(z, z_old) for z, z_old in zip(step.z, step.z_old, strict=True)]
    naive = math.sqrt(sum(old) / new) * sum(terms) / len(terms)
    assert float(LessForget().penalty(step, {})) == pytest.approx(naive, abs=1e-10)


@pytest.mark.parametrize("reading", ["paper", "released"])
@pytest.mark.parametrize(("new", "negatives"), [(3, 2), (2, 1), (1, 2)])
def test_margin_ranking(new, negatives, reading):
    """Images of the new classes take no part; a task of one class has one negative."""
    step = step_of([0, 2, 1, 3], [2, 1], new)
    weights = [w for head in step.network.heads for w in head.weight]
    count, total, images = min(negatives, new), 0.0, 0
    for z, y in zip(step.z, step.targets.tolist(), strict=True):
        if y < 3:
            images += 1
            hardest = sorted((cosine(z, w) for w in weights[3:]), reverse=True)[:count]
            total += sum(max(0.0, 0.5 - cosine(z, weights[y]) + score) for score in hardest)
    naive = total / images / (1 if reading == "paper" else count)
    ours = MarginRanking(margin=0.5, negatives=negatives, reading=reading).penalty(step, {})
    assert float(ours) == pytest.approx(naive, abs=1e-10)


def test_margin_ranking_without_old_images_is_zero():
    assert float(MarginRanking().penalty(step_of([2, 3], [2], 2), {})) == 0


@pytest.fixture(scope="module")
def tasks():
    train = load_digits().train
    parts = [train.of_classes(pair) for pair in ([0, 1], [2, 3], [4, 5])]
    return [Examples(part.images[:48], part.labels[:48]) for part in parts]


def learn(tasks, penalty, objective=OBJECTIVE, epochs=1):
    network = build_embedder("convnet", load_digits().spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(tasks[0].images)
    states = [Trained(network.eval())]
    method = Method(objective, penalty, Herding(per_class=5))
    for t, examples in enumerate(tasks, 1):
        args = {"training": Training(epochs=epochs, learning_rate=1e-3), "augment": None, "seed": 0}
        states.append(advance(states[-1], examples, task=t, method=method, **args))
    return states


def test_less_forget_fixes_the_old_classes_weights_in_training_and_lets_them_go_after_it(tasks):
    _, first, second, third = learn(tasks, (LessForget(), MarginRanking()))
    for before, after in ((first, second), (second, third)):
        for head, later in zip(before.network.heads, after.network.heads, strict=False):
            assert torch.equal(head.weight, later.weight)
        assert all(weight.requires_grad for weight in after.network.parameters())
        assert float(before.network.heads[0].eta) != float(after.network.heads[0].eta)
    assert third.history[-1]["penalty"] > 0
    *_, free = learn(tasks[:2], MarginRanking())
    assert not torch.equal(free.network.heads[0].weight, first.network.heads[0].weight)


def test_less_forget_holds_the_orientation_of_embeddings(tasks):
    def turned(penalty):
        _, before, after = learn(tasks[:2], penalty, epochs=2)
        with torch.no_grad():
            z_old, z = (state.network(tasks[1].images) for state in (before, after))
        return float((1 - torch.nn.functional.cosine_similarity(z, z_old)).mean())

    assert turned(LessForget(gamma=50.0)) < 0.8 * turned(None)


def test_an_interrupted_training_goes_on_bit_for_bit(tasks):
    """Fixed weights have no state in the optimizer, and are fixed again after the interruption."""

    class InMemory:
        saved = None

        def load(self):
            return self.saved

        def save(self, data, tensors):
            self.saved = copy.deepcopy((data, tensors))

    def interrupt(progress):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    _, first = learn(tasks[:1], (LessForget(), MarginRanking()))
    method = Method(OBJECTIVE, (LessForget(), MarginRanking()), Herding(per_class=5))
    args = {"task": 2, "method": method, "training": Training(epochs=3), "augment": None, "seed": 0}
    checkpoint = InMemory()
    with pytest.raises(KeyboardInterrupt):
        train_network(first, tasks[1], on_progress=interrupt, checkpoint=checkpoint, **args)
    resumed = train_network(first, tasks[1], checkpoint=checkpoint, **args).network.state_dict()
    undisturbed = train_network(first, tasks[1], **args).network.state_dict()
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)
    assert torch.equal(resumed["heads.0.weight"], first.network.heads[0].weight)


@pytest.mark.parametrize("penalty", [LessForget(), MarginRanking()])
def test_other_heads_are_refused(tasks, penalty):
    with pytest.raises(InputError, match=r"objective=CosineHeads\(\)"):
        learn(tasks[:2], penalty, Softmax(over="all"))


def test_options():
    for penalty in (LessForget(gamma=2.0), MarginRanking(negatives=3, reading="released")):
        assert decode(encode(penalty)) == penalty
    with pytest.raises(InputError, match="at least 1"):
        MarginRanking(negatives=0)
