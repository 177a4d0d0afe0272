"""Rotation labels: in the first task only, one joint softmax, and nothing of it is left."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protodrift import Method, TaskStream
from protodrift.errors import InputError
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import Schedule
from protodrift.networks import build_embedder
from protodrift.objectives import RotatedSoftmax, Softmax, turned
from protodrift.objectives.rotations import RotatedHead
from protodrift.penalties import SI, LwF
from protodrift.training import trainer
from protodrift.training.config import Training, Warmup
from protodrift.training.trainer import Trained, train_network
from tests.penalties.conftest import Notebook

METHOD = Method(RotatedSoftmax(), LwF(gamma=10.0, over="all"), schedule=Schedule(batch_norm="train"))
OPTIONS = {"training": Training(epochs=3, batch_size=16, epoch="shuffled"), "augment": None, "seed": 0}


@pytest.fixture
def start(small_digits):
    network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(small_digits.train.images)
    return Trained(network.eval())


def test_images_are_turned_each_by_its_own_quarter():
    images = torch.arange(2 * 4 * 3 * 5 * 5).view(8, 3, 5, 5).to(torch.uint8)
    quarters = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    for image, view, quarter in zip(images, turned(images, quarters), quarters.tolist(), strict=True):
        np.testing.assert_array_equal(view, np.rot90(image, quarter, axes=(1, 2)))
    with pytest.raises(InputError, match=r"square images; got inputs of shape \(3, 4, 5\)"):
        turned(torch.zeros(1, 3, 4, 5), torch.zeros(1))


def steps_of(monkeypatch, run):
    """Return images, targets, logits and loss of every step."""
    seen, plain = [], trainer._Run.step

    def step(self, step):
        logits = [part.detach() for part in step.logits]
        values = plain(self, step)
        seen.append((step.images, step.targets, logits, float(values[0]), len(self.network.heads)))
        return values

    monkeypatch.setattr(trainer._Run, "step", step)
    result = run()
    monkeypatch.setattr(trainer._Run, "step", plain)
    return seen, result


def test_the_first_task_is_trained_on_classes_times_rotations(start, small_digits, monkeypatch):
    new = small_digits.train.of_classes([3, 8])
    seen, result = steps_of(monkeypatch, lambda: train_network(start, new, task=1, method=METHOD, **OPTIONS))
    plain = {image.numpy().tobytes(): label for image, label in zip(new.images, new.labels, strict=True)}
    drawn = []
    for images, targets, logits, loss, _ in seen:
        assert logits[0].shape[1] == 8
        by_hand = []
        for image, target, outputs in zip(images, targets.tolist(), logits[0].double(), strict=True):
            back = image.rot90(-(target % 4), dims=(1, 2)).contiguous()
            assert plain[back.numpy().tobytes()] == (3, 8)[target // 4]  # label 4 c + r: class c, r quarters
            by_hand.append(math.log(sum(math.exp(float(o) - float(outputs[target])) for o in outputs)))
        assert loss == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-4)
        drawn += (targets % 4).tolist()
    assert all(drawn.count(quarter) > len(drawn) / 8 for quarter in range(4))
    assert [tuple(head.weight.shape) for head in result.network.heads] == [(2, result.network.embedding_dim)]
    assert not any(isinstance(module, RotatedHead) for module in result.network.modules())


def test_what_stays_are_the_outputs_for_images_that_are_not_turned(start, small_digits, monkeypatch):
    new = small_digits.train.of_classes([3, 8])
    merged = {}
    plain = RotatedSoftmax.merge

    def merge(self, network):
        with torch.no_grad():
            merged["before"] = network.eval().logits(network(new.images))[0]
        plain(self, network)

    monkeypatch.setattr(RotatedSoftmax, "merge", merge)
    result = train_network(start, new, task=1, method=METHOD, **OPTIONS)
    with torch.no_grad():
        after = result.network.logits(result.network(new.images))[0]
    torch.testing.assert_close(after, merged["before"][:, ::4])


def test_later_tasks_are_plain_softmax(start, small_digits, monkeypatch):
    first = train_network(start, small_digits.train.of_classes([3, 8]), task=1, method=METHOD, **OPTIONS)
    new = small_digits.train.of_classes([1, 7])
    seen, later = steps_of(monkeypatch, lambda: train_network(first, new, task=2, method=METHOD, **OPTIONS))
    images = {image.numpy().tobytes() for image in new.images}
    assert all(image.contiguous().numpy().tobytes() in images for batch, *_ in seen for image in batch)
    same = train_network(first, new, task=2, method=replace(METHOD, objective=Softmax()), **OPTIONS)
    for a, b in zip(later.network.state_dict().values(), same.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_task_that_is_not_trained_has_a_plain_head(start, small_digits):
    method = replace(METHOD, schedule=Schedule(train="none"))
    result = train_network(start, small_digits.train.of_classes([3, 8]), task=1, method=method, **OPTIONS)
    assert result.network.heads[0].out_features == 2


def test_an_interrupted_training_goes_on_bit_for_bit(start, small_digits):
    new, notebook = small_digits.train.of_classes([3, 8]), Notebook()

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_network(start, new, task=1, method=METHOD, checkpoint=notebook, on_progress=stop, **OPTIONS)
    resumed = train_network(start, new, task=1, method=METHOD, checkpoint=notebook, **OPTIONS)
    undisturbed = train_network(start, new, task=1, method=METHOD, **OPTIONS)
    assert resumed.history == undisturbed.history
    for name, value in undisturbed.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name


def test_stages_with_rotations_also_in_the_warm_up_are_read_again(small_digits, tmp_path):
    stream = TaskStream(small_digits, classes=[[3, 8], [1, 7]])
    training = replace(OPTIONS["training"], epochs=1)

    def tree(rotations: bool) -> Tree:
        warmup = Warmup(training, rotations=rotations)
        return Tree(stream, network=Network(), training=training, warmup=warmup, store=Store(tmp_path))

    first, second, other = tree(True), tree(True), tree(False)
    here, there = (t.run({"it": METHOD})["it"] for t in (first, second))
    assert first.computed["warm"] == 1
    assert not second.computed
    np.testing.assert_array_equal(here.accuracy_matrix, there.accuracy_matrix)
    other.run({"it": METHOD})
    assert other.computed["warm"] == 1


def test_a_penalty_that_follows_weights_is_refused():
    with pytest.raises(InputError, match=r"SI follows every weight.*RotatedSoftmax.*Use Softmax"):
        Method(RotatedSoftmax(), SI())
