"""Optimizers, learning rates from step to step, clipping, and what later tasks do differently."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from protodrift.common.config import decode, encode
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.settings import with_settings
from protodrift.methods import Method
from protodrift.networks import build_embedder
from protodrift.objectives import Softmax
from protodrift.penalties import FeatureDistillation
from protodrift.training.config import Training
from protodrift.training.optimizer import clip_gradients, make_optimizer, rate_at
from protodrift.training.trainer import Trained, train_network
from tests.penalties.conftest import Notebook

FIELD = Training(  # the family of LwF + NCM
    epochs=200, later_epochs=100, learning_rate=0.1, later_learning_rate=0.05, weight_decay=5e-4,
    later_weight_decay=2e-4, batch_size=128, epoch="shuffled", optimizer="sgd", nesterov=False,
    rate_schedule="milestones", later_milestones=(0.45, 0.9),
)  # fmt: skip


def rates(training, steps):
    return [rate_at(training, step / steps) for step in range(steps)]


def torchs(scheduler, steps, rate):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule, found = scheduler(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_cosine_and_milestones_are_torchs():
    lr = torch.optim.lr_scheduler
    cosine = Training(learning_rate=0.3, rate_schedule="cosine")
    assert rates(cosine, 40) == pytest.approx(torchs(lambda o: lr.CosineAnnealingLR(o, 40), 40, 0.3))
    first, later = FIELD.of_task(first=True), FIELD.of_task(first=False)
    assert rates(first, 200) == pytest.approx(torchs(lambda o: lr.MultiStepLR(o, [60, 120, 160]), 200, 0.1))
    assert rates(later, 100) == pytest.approx(torchs(lambda o: lr.MultiStepLR(o, [45, 90]), 100, 0.05))


@pytest.mark.parametrize("schedule", ["cosine", "milestones"])
def test_the_rate_rises_linearly_to_its_peak(schedule):
    found = rates(Training(learning_rate=1.0, rate_schedule=schedule, rise=0.1, milestones=(0.5,)), 100)
    assert found[0] == pytest.approx(1 / 25)
    assert [b - a for a, b in pairwise(found[:11])] == pytest.approx([0.096] * 10)
    assert max(found) == found[10] == 1.0
    assert found[-1] < 0.11


def test_later_tasks_have_their_own_epochs_rates_decay_and_milestones():
    first, later = FIELD.of_task(first=True), FIELD.of_task(first=False)
    assert (first.epochs, first.learning_rate, first.weight_decay) == (200, 0.1, 5e-4)
    assert (later.epochs, later.learning_rate, later.weight_decay) == (100, 0.05, 2e-4)
    assert (first.milestones, later.milestones) == ((0.3, 0.6, 0.8), (0.45, 0.9))
    for training in (first, later):  # what acts in other tasks is not in it: stages of equal trainings are shared
        assert training == training.of_task(first=True) == training.of_task(first=False)
    same = Training(epochs=3)
    assert same.of_task(first=True) == same.of_task(first=False) == same
    assert decode(encode(FIELD)) == FIELD


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"milestones": (0.6, 0.3)}, "increasing shares"),
        ({"milestones": ()}, "increasing shares"),
        ({"later_milestones": (60, 120)}, "between 0 and 1"),
        ({"clip": 0.0}, "clip=0.0 must be greater than 0"),
        ({"optimizer": "adamW"}, "Did you mean 'adamw'"),
        ({"rise": 1.0}, "rise"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_what_a_training_refuses(changes, why):
    with pytest.raises(InputError, match=why):
        Training(**changes)


def test_settings_of_a_recipe_reach_the_new_options():
    wanted = {"training.milestones": "[0.5, 0.9]", "training.optimizer": "adamw", "training.clip": "1"}
    training = with_settings(get_recipe("digits"), wanted).training
    assert (training.milestones, training.optimizer, training.clip) == ((0.5, 0.9), "adamw", 1)
    hash(training)


def test_steps_of_every_optimizer_are_those_of_their_definition():
    """Three steps on g = 2 theta, by hand; the second group has no weight decay."""
    rate, decay, momentum = 0.1, 0.5, 0.9

    def stepped(training):
        weights = [torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64)) for _ in range(2)]
        optimizer = make_optimizer(
            [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.0}],
            replace(training, learning_rate=rate, weight_decay=decay, momentum=momentum),
        )
        for _ in range(3):
            optimizer.zero_grad()
            sum(weight.square() for weight in weights).backward()
            optimizer.step()
        return [float(weight.detach()) for weight in weights]

    def by_hand(kind, decay):
        theta, velocity, m, v = 1.0, 0.0, 0.0, 0.0
        for t in (1, 2, 3):
            gradient = 2 * theta + (0 if kind == "adamw" else decay * theta)
            if kind.startswith("sgd"):
                velocity = gradient if t == 1 else momentum * velocity + gradient
                theta -= rate * (gradient + momentum * velocity if kind == "sgd nesterov" else velocity)
                continue
            theta *= 1 - rate * decay if kind == "adamw" else 1
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            theta -= rate * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return theta

    for kind, training in {
        "sgd": Training(optimizer="sgd", nesterov=False),
        "sgd nesterov": Training(optimizer="sgd"),
        "adam": Training(),
        "adamw": Training(optimizer="adamw"),
    }.items():
        assert stepped(training) == pytest.approx([by_hand(kind, decay), by_hand(kind, 0.0)], abs=1e-9), kind


def test_clipping_keeps_the_direction_and_shortens_only_what_is_longer():
    weights = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    for clip, length in ((None, 13.0), (26.0, 13.0), (6.5, 6.5)):
        weights[0].grad, weights[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
        clip_gradients(weights, clip)
        found = torch.cat([weight.grad for weight in weights])
        torch.testing.assert_close(found, torch.tensor([3.0, 4.0, 12.0]) * length / 13, rtol=1e-5, atol=0)


@pytest.fixture
def start(small_digits):
    network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(small_digits.train.images)
    return Trained(network.eval())


def test_the_whole_gradient_is_clipped_in_every_step_the_projector_too(start, small_digits, monkeypatch):
    lengths, step = [], torch.optim.SGD.step

    def seen(self, *args):
        grads = [w.grad for group in self.param_groups for w in group["params"] if w.grad is not None]
        lengths.append((float(torch.cat([g.flatten() for g in grads]).norm()), len(grads)))
        return step(self, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", seen)
    method = Method(Softmax(), FeatureDistillation(gamma=1e3, projector=4))
    training = Training(epochs=2, learning_rate=1e-3, optimizer="sgd", clip=0.01, batch_size=16)
    common = {"method": method, "training": training, "augment": None, "seed": 0}
    first = train_network(start, small_digits.train.of_classes([3, 8]), task=1, **common)
    count = len(lengths)
    train_network(first, small_digits.train.of_classes([1, 7]), task=2, **common)
    assert all(length == pytest.approx(0.01, rel=1e-3) for length, _ in lengths)
    assert lengths[-1][1] == lengths[count - 1][1] + 4  # the projector's; of the heads only the new one has a gradient


def test_later_epochs_are_made_and_reported(start, small_digits):
    training = Training(epochs=3, later_epochs=1, batch_size=16)
    common = {"method": Method(Softmax()), "training": training, "augment": None, "seed": 0}
    seen = []
    first = train_network(start, small_digits.train.of_classes([3, 8]), task=1, on_progress=seen.append, **common)
    train_network(first, small_digits.train.of_classes([1, 7]), task=2, on_progress=seen.append, **common)
    assert [(p.task, p.epoch, p.epochs) for p in seen] == [(1, 1, 3), (1, 2, 3), (1, 3, 3), (2, 1, 1)]


@pytest.mark.parametrize(
    "training",
    [
        Training(epochs=3, batch_size=16, optimizer="sgd", momentum=0.0, rate_schedule="cosine", rise=0.2, clip=1.0),
        Training(epochs=3, batch_size=16, optimizer="sgd", nesterov=False, rate_schedule="milestones", clip=0.1),
        Training(epochs=3, batch_size=16, optimizer="adamw", weight_decay=0.1, rate_schedule="cosine"),
    ],
)
def test_an_interrupted_training_goes_on_bit_for_bit(start, small_digits, training):
    method = Method(Softmax(), FeatureDistillation(projector=8, distance="mse", gamma=10.0))
    common = {"method": method, "training": training, "augment": None, "seed": 0}
    first = train_network(start, small_digits.train.of_classes([3, 8]), task=1, **common)
    new = small_digits.train.of_classes([1, 7])

    def stop(progress):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    notebook = Notebook()
    with pytest.raises(KeyboardInterrupt):
        train_network(first, new, task=2, checkpoint=notebook, on_progress=stop, **common)
    assert "0.weight" in notebook.saved[1]["penalty0"]
    resumed = train_network(first, new, task=2, checkpoint=notebook, **common)
    undisturbed = train_network(first, new, task=2, **common)
    assert resumed.history == undisturbed.history
    for name, value in undisturbed.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name
    assert all(torch.equal(resumed.running[0][name], value) for name, value in undisturbed.running[0].items())
    assert not any(value.requires_grad for value in undisturbed.running[0].values())
