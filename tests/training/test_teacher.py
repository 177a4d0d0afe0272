"""Teacher adaptation: the network that penalties ask has the new task's batch-norm statistics."""

import copy

import pytest
import torch
from torch import nn

from protodrift.data import CropFlip
from protodrift.methods import Method, Schedule
from protodrift.networks import build_embedder
from protodrift.objectives import Softmax
from protodrift.penalties import FeatureDistillation
from protodrift.training import trainer
from protodrift.training.config import Training
from protodrift.training.teacher import adapted
from protodrift.training.trainer import Trained, train_network
from tests.penalties.conftest import Notebook

OPTIONS = {"training": Training(epochs=2, batch_size=16, epoch="shuffled"), "augment": CropFlip(pad=1), "seed": 0}


def method(batch_norm):
    return Method(Softmax(), FeatureDistillation(gamma=1.0), schedule=Schedule(batch_norm=batch_norm))


@pytest.fixture
def first(small_digits):
    network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(small_digits.train.images)
    new = small_digits.train.of_classes([3, 8])
    return train_network(Trained(network.eval()), new, task=1, method=method("train"), **OPTIONS)


def norms(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def test_statistics_are_those_of_the_images_and_weights_stay(first, small_digits):
    images = small_digits.train.of_classes([1, 7]).images
    before = copy.deepcopy(first.network.state_dict())
    found = adapted(first.network, [images])
    # The first layer by hand: mean and variance of its inputs over all images and places.
    inputs = []
    hook = norms(found)[0].register_forward_hook(lambda module, given, out: inputs.append(given[0]))
    with torch.no_grad():
        found(images)
    hook.remove()
    values = inputs[0].permute(1, 0, 2, 3).flatten(1).double()
    torch.testing.assert_close(norms(found)[0].running_mean.double(), values.mean(dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norms(found)[0].running_var.double(), values.var(dim=1), rtol=1e-4, atol=1e-5)
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, before[name])  # what was given is not changed
    for a, b in zip(found.parameters(), first.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not found.training
    assert [m.momentum for m in norms(found)] == [m.momentum for m in norms(first.network)]
    parts = adapted(first.network, images.split(8))
    mean = torch.stack([norms(adapted(first.network, [part]))[0].running_mean for part in images.split(8)]).mean(dim=0)
    torch.testing.assert_close(norms(parts)[0].running_mean, mean)


def test_penalties_ask_the_adapted_network_and_statistics_keep_moving(first, small_digits, monkeypatch):
    asked, plain = [], trainer._Run.step
    monkeypatch.setattr(trainer._Run, "step", lambda self, step: (asked.append(step.network_old), plain(self, step))[1])
    new = small_digits.train.of_classes([1, 7])
    results = {kind: train_network(first, new, task=2, method=method(kind), **OPTIONS) for kind in ("adapted", "train")}
    own, same = asked[0], asked[-1]
    assert same is first.network
    assert own is not first.network
    for a, b, c in zip(norms(own), norms(first.network), norms(results["adapted"].network), strict=True):
        assert not torch.equal(a.running_mean, b.running_mean)
        assert not torch.equal(c.running_mean, b.running_mean)
        assert torch.equal(a.weight, b.weight)
    assert results["adapted"].history != results["train"].history


def test_an_interrupted_training_goes_on_bit_for_bit(first, small_digits):
    new, notebook = small_digits.train.of_classes([1, 7]), Notebook()

    def stop(progress):
        raise KeyboardInterrupt

    options = {"task": 2, "method": method("adapted"), **OPTIONS}
    with pytest.raises(KeyboardInterrupt):
        train_network(first, new, checkpoint=notebook, on_progress=stop, **options)
    resumed = train_network(first, new, checkpoint=notebook, **options)
    undisturbed = train_network(first, new, **options)
    assert resumed.history == undisturbed.history
    for name, value in undisturbed.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name


def test_a_network_without_batch_norm_stays_as_it_is(small_digits):
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    network = build_embedder(backbone, small_digits.spec, embedding_dim=None, normalize=False, seed=0)
    found = adapted(network, [small_digits.train.images])
    for a, b in zip(found.state_dict().values(), network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
