"""Nothing is bound to the CPU: networks and losses run where their weights are, and a device is seldom waited for.

`meta` tensors have shapes and no values, and refuse to be mixed with those of the CPU: what was made on the wrong
device shows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protodrift.data import InputSpec
from protodrift.errors import DivergedError
from protodrift.methods import METHODS, Method
from protodrift.networks import build_embedder
from protodrift.networks.embedder import laid_out
from protodrift.networks.folding import folded
from protodrift.objectives import CosineHeads, SigmoidHeads, Softmax
from protodrift.penalties import EWC, LwF
from protodrift.training.config import Training
from protodrift.training.step import Step
from protodrift.training.trainer import Trained, _Run, train_network
from tests.training.tasks import advance

META = torch.device("meta")
COLOR = InputSpec((3, 32, 32), "uint8", 0, 255)


@pytest.mark.parametrize("backbone", ["convnet", "resnet32", "resnet18", "vgg16", "efficientnet-lite0"])
def test_networks_run_where_their_weights_are(backbone):
    with META:
        network = build_embedder(backbone, COLOR, embedding_dim=7)
    images = laid_out(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), META)
    assert images.is_contiguous(memory_format=torch.channels_last)
    for one in (network.eval(), folded(network)):
        z = one(images)
        assert (z.device, tuple(z.shape)) == (META, (4, 7))


@pytest.mark.parametrize("objective", [Softmax(), Softmax(over="all"), SigmoidHeads(), CosineHeads()])
def test_losses_and_penalties_are_made_where_the_batch_is(objective):
    networks = []
    for _ in range(2):
        network = build_embedder("convnet", COLOR, embedding_dim=None, normalize=False)
        for _ in range(2):
            objective.grow(network, 3)
        networks.append(network.to(META))
    network, old = networks
    images, rows = torch.zeros(8, 3, 32, 32, device=META), torch.zeros(8, dtype=torch.long, device=META)
    step = Step(network, images, rows, objective=objective, network_old=old)
    importances = {name: torch.ones(weight.shape) for name, weight in old.named_parameters()}  # on the CPU
    held = [LwF().penalty(step, {}), EWC().penalty(step, importances)]
    for value in (objective.loss(step), *held):
        assert value.device == META
        assert value.ndim == 0


def learn(digits, monkeypatch, patience, rate=1e-3):
    made = _Run.__init__

    def patient(self, *args):
        made(self, *args)
        self.patience = patience

    monkeypatch.setattr(_Run, "__init__", patient)
    method = METHODS["E-EWC"]
    network = build_embedder("convnet", digits.spec, embedding_dim=8, seed=0)
    network.standardize.fit(digits.train.images)
    common = {"method": method, "augment": None, "seed": 0}
    training = Training(epochs=2, batch_size=8, images_per_class=4)
    first, second = (digits.train.of_classes(classes) for classes in ([3, 8], [1, 7]))
    state = advance(Trained(network.eval()), first, task=1, training=training, **common)
    return train_network(state, second, task=2, training=replace(training, learning_rate=rate), **common)


def test_losses_looked_at_later_are_the_same_losses(small_digits, monkeypatch):
    at_once, later, last = (learn(small_digits, monkeypatch, patience) for patience in (1, 3, 1000))
    for other in (later, last):
        assert other.history == at_once.history
        weights = zip(other.network.state_dict().values(), at_once.network.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in weights)


def test_a_divergence_that_is_seen_later_names_the_same_step(small_digits, monkeypatch):
    messages = []
    for patience in (1, 3, 1000):
        with pytest.raises(DivergedError) as caught:
            learn(small_digits, monkeypatch, patience, rate=1e30)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] == messages[2]
    assert "step 2" in messages[0]


def test_on_the_cpu_every_step_is_looked_at(small_digits):
    network = build_embedder("convnet", small_digits.spec, embedding_dim=8)
    run = _Run(network, network, Method(), Training(), None, 0, 1)
    assert run.patience == 1
    assert _Run(network.to(META), network, Method(), Training(), None, 0, 1).patience > 1
