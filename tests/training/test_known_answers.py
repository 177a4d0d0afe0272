"""The old network is asked once per task where views never change: the same training as asking it in every step."""

from __future__ import annotations

import pytest
import torch

from protodrift.data import CropFlip
from protodrift.methods import METHODS, get_method
from protodrift.networks import build_embedder
from protodrift.training.config import Training
from protodrift.training.step import KnownAnswers, Step
from protodrift.training.trainer import Trained, _Run, asks_old_network_once, train_network
from tests.training.tasks import advance

TWICE = Training(epochs=2, batch_size=16)


def beginning(digits, method):
    size = None if method.objective.classifies else 8
    network = build_embedder("convnet", digits.spec, embedding_dim=size, normalize=size is not None, seed=0)
    network.standardize.fit(digits.train.images)
    return Trained(network.eval())


def second_task(digits, method, training=TWICE, augment=None, **more):
    """Return the images that went through the old network in the second task, and what was trained."""
    common = {"method": method, "augment": augment, "seed": 0}
    first = advance(
        beginning(digits, method), digits.train.of_classes([3, 8]), task=1, training=Training(epochs=1), **common
    )
    seen, old = [], first.network.backbone.layers[0]
    # The network in training is a copy, and takes the hook along.
    hook = old.register_forward_hook(lambda module, inputs, output: seen.append(len(output) if module is old else 0))
    new = digits.train.of_classes([1, 7])
    trained = train_network(first, new, task=2, training=training, **common, **more)
    hook.remove()
    return sum(seen), len(new), trained


@pytest.mark.parametrize("name", ["E-LwF", "LwF", "iCaRL-NME", "Rebalance"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_once_is_as_good_as_in_every_step(small_digits, monkeypatch, name, precision):
    method = get_method(name)
    training = Training(epochs=2, batch_size=16, precision=precision)
    once, _, trained = second_task(small_digits, method, training)
    monkeypatch.setattr(_Run, "_known", lambda *args: None)
    every, _, expected = second_task(small_digits, method, training)
    assert once < every
    for a, b in zip(trained.network.state_dict().values(), expected.network.state_dict().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=0, atol=1e-6 if precision == "float32" else 2e-3)


def test_the_old_network_sees_each_image_once(small_digits):
    for epochs in (2, 4):
        seen, images, _ = second_task(small_digits, METHODS["E-LwF"], Training(epochs=epochs, batch_size=16))
        assert seen == images


@pytest.mark.parametrize(
    ("name", "training", "augment", "once"),
    [
        ("E-LwF", TWICE, None, True),
        ("E-LwF", TWICE, CropFlip(pad=1), False),
        ("E-LwF", Training(epochs=1), None, False),
        ("E-LwF", Training(epochs=3, epoch="released"), None, False),
        ("LwM", TWICE, None, False),
        ("E-EWC", TWICE, None, False),
        ("E-FT", TWICE, None, False),
    ],
)
def test_only_where_the_same_views_come_again(small_digits, name, training, augment, once):
    assert asks_old_network_once(get_method(name), training, augment) is once
    if not once and name == "E-LwF":
        seen, images, _ = second_task(small_digits, METHODS[name], training, augment)
        assert seen >= images * (training.epochs if training.epoch == "full" else 1)


def test_answers_are_the_old_networks_own(small_digits):
    method = METHODS["E-LwF"]
    network = beginning(small_digits, method).network
    images, rows = small_digits.train.images, torch.arange(len(small_digits.train.images)) % 10
    known = KnownAnswers(network, images, rows, objective=method.objective)
    batch = torch.tensor([150, 3, 77, 3])
    step = Step(
        network,
        images[batch],
        rows[batch],
        objective=method.objective,
        network_old=network,
        known_z_old=known.of(batch),
    )
    with torch.no_grad():
        expected = network(images[batch])
    assert torch.allclose(step.z_old, expected, atol=1e-6)
    assert not step.z_old.requires_grad
    assert [part.shape for part in step.logits_old] == [part.shape for part in step.old.logits]


def test_an_interrupted_training_goes_on_to_the_same_bits(small_digits):
    class Notebook:
        saved = None

        def load(self):
            return self.saved

        def save(self, data, tensors):
            copied = {f: {k: v.detach().contiguous().clone() for k, v in t.items()} for f, t in tensors.items()}
            self.saved = ({**data, "history": list(data["history"])}, copied)

    def stop(progress):
        raise KeyboardInterrupt

    notebook, training = Notebook(), Training(epochs=3, batch_size=16)
    _, _, whole = second_task(small_digits, METHODS["E-LwF"], training)
    with pytest.raises(KeyboardInterrupt):
        second_task(small_digits, METHODS["E-LwF"], training, checkpoint=notebook, on_progress=stop)
    _, _, resumed = second_task(small_digits, METHODS["E-LwF"], training, checkpoint=notebook)
    for a, b in zip(resumed.network.state_dict().values(), whole.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
