"""The trainer: what trains, what does not, what is said, and that nothing given is changed."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from protodrift.data import CropFlip, Examples, load_digits
from protodrift.errors import CollapseWarning, DivergedError, InputError, NothingToTrainWarning
from protodrift.methods import METHODS, Method, Schedule, get_method
from protodrift.networks import build_embedder
from protodrift.objectives import Triplet
from protodrift.readouts import MaxOverHeads
from protodrift.training.config import Training
from protodrift.training.trainer import Trained, train_network
from tests.training.tasks import advance

FAST = Training(epochs=1, learning_rate=1e-3)


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.fixture
def start(digits):
    network = build_embedder("convnet", digits.spec, embedding_dim=16, seed=0)
    network.standardize.fit(digits.train.images)
    return Trained(network.eval())


def run(start, examples, *, task=1, method=Method(), training=FAST, seed=0, **more):
    return advance(start, examples, task=task, method=method, training=training, augment=None, seed=seed, **more)


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_training_lowers_the_loss_and_reports_progress(start, digits):
    seen = []
    result = run(start, digits.train.of_classes([3, 8]), training=Training(epochs=4), on_progress=seen.append)
    assert [p.epoch for p in seen] == [1, 2, 3, 4]
    assert result.history[-1]["loss"] < 0.7 * result.history[0]["loss"]
    assert [h["loss"] for h in result.history] == [p.loss for p in seen]


def test_what_was_given_is_not_changed(start, digits):
    before = copy.deepcopy(start.network)
    examples = digits.train.of_classes([3, 8])
    images = examples.images.clone()
    result = run(start, examples)
    assert same_weights(start.network, before)
    assert torch.equal(examples.images, images)
    assert not same_weights(result.network, before)
    assert not result.network.training


def test_one_seed_is_one_result_and_another_seed_another(start, digits):
    examples = digits.train.of_classes([3, 8])
    assert same_weights(run(start, examples).network, run(start, examples).network)
    assert not same_weights(run(start, examples).network, run(start, examples, seed=1).network)


@pytest.mark.parametrize(("labels", "why"), [((3,) * 6, "one class"), ((0, 1, 2, 3, 4, 5), "no class has two images")])
def test_a_task_without_signal_leaves_the_network_and_says_so(start, digits, labels, why):
    with pytest.warns(NothingToTrainWarning, match=why):
        result = run(start, Examples(digits.train.images[:6], labels))
    assert result.network is start.network
    assert why in result.note


@pytest.mark.parametrize("counts", [(1, 30), (2, 2), (2, 40), (1, 1, 2), (40, 1, 1, 1)])
def test_few_and_tiny_classes_still_train(start, digits, counts):
    """A class of one image gives negatives; a batch size larger than the task is no problem."""
    rows = [
        i for label, n in enumerate(counts) for i in [j for j, y in enumerate(digits.train.labels) if y == label][:n]
    ]
    examples = Examples(digits.train.images[rows], tuple(digits.train.labels[i] for i in rows))
    result = run(start, examples, training=Training(epochs=1, batch_size=128, learning_rate=1e-3))
    assert len(result.history) == 1
    assert not same_weights(result.network, start.network)


@pytest.mark.parametrize(("policy", "moves"), [("frozen", False), ("train", True), ("pretrained", False)])
def test_batch_norm_policy(start, digits, policy, moves):
    method = Method(schedule=Schedule(batch_norm=policy))
    first = run(start, digits.train.of_classes([3, 8]), method=method)
    second = run(first, digits.train.of_classes([1, 7]), task=2, method=method)
    norms = [
        (m, n)
        for m, n in zip(first.network.modules(), second.network.modules(), strict=True)
        if isinstance(m, nn.BatchNorm2d)
    ]
    assert norms
    moved_start = any(
        not torch.equal(m.running_mean, n.running_mean)
        for m, n in zip(start.network.modules(), first.network.modules(), strict=True)
        if isinstance(m, nn.BatchNorm2d)
    )
    assert moved_start is (policy != "pretrained")  # else the first task learns its statistics
    for before, after in norms:
        assert torch.equal(before.running_mean, after.running_mean) is not moves
        assert not torch.equal(before.weight, after.weight)  # affine weights train either way


@pytest.mark.parametrize(
    ("train", "trains"), [("all", [True, True]), ("first", [True, False]), ("none", [False, False])]
)
def test_the_schedule_says_which_tasks_train(start, digits, train, trains):
    method = Method(schedule=Schedule(train=train))
    state = start
    for t, classes in enumerate(([3, 8], [1, 7]), 1):
        after = run(state, digits.train.of_classes(classes), task=t, method=method)
        assert (not same_weights(after.network, state.network)) is trains[t - 1]
        state = after


def test_the_released_epoch_takes_one_step_for_four_classes(start, digits, monkeypatch):
    steps = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, *a: (steps.append(1), step(self, *a)))
    run(start, digits.train.of_classes([0, 1, 2, 3]), training=Training(epochs=3, epoch="released"))
    assert len(steps) == 3


def test_the_learning_rate_of_later_tasks_is_its_own(start, digits, monkeypatch):
    rates = []
    init = torch.optim.Adam.__init__

    def spy(self, params, **kwargs):
        rates.append(kwargs["lr"])
        init(self, params, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "__init__", spy)
    training = Training(epochs=1, learning_rate=1e-3, later_learning_rate=1e-5)
    for task in (1, 2):
        run(start, digits.train.of_classes([3, 8]), task=task, training=training)
    assert rates == [1e-3, 1e-5]


@dataclasses.dataclass(frozen=True)
class NotFinite(Triplet):
    """A triplet loss that becomes infinite at its third step."""

    def loss(self, step):
        calls.append(1)
        return super().loss(step) * (torch.inf if len(calls) == 3 else 1)


calls: list[int] = []


def test_a_loss_that_is_not_finite_stops_and_says_where(start, digits):
    calls.clear()
    with pytest.raises(DivergedError, match=r"task 1, epoch 1, step 3: loss inf.*smaller learning rate \(now 0.001\)"):
        run(start, digits.train.of_classes([3, 8]), method=Method(objective=NotFinite()))


def test_a_huge_learning_rate_is_an_error_not_a_broken_model(start, digits):
    with pytest.raises(DivergedError, match="learning rate"):
        run(start, digits.train.of_classes([3, 8]), training=Training(epochs=2, learning_rate=1e30))


def test_collapse_is_said(digits):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.bias + 1e-4 * x.flatten(1)[:, :4] + 0 * x.sum()

    network = build_embedder(Constant(), digits.spec, embedding_dim=None, normalize=True)
    network.standardize.fit(digits.train.images)
    with pytest.warns(CollapseWarning, match="collapsed"):
        run(Trained(network.eval()), digits.train.of_classes([3, 8]), training=Training(epochs=1, learning_rate=1e-9))


def test_augmentation_is_used_in_training_only(start, digits):
    examples = digits.train.of_classes([3, 8])
    kwargs = {"task": 1, "method": Method(), "training": FAST, "seed": 0}
    plain = train_network(start, examples, augment=None, **kwargs)
    moved = train_network(start, examples, augment=CropFlip(pad=1), **kwargs)
    assert not same_weights(plain.network, moved.network)


def test_dropout_is_seeded_and_leaves_the_global_generator_alone(digits):
    class Dropping(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5))

    network = build_embedder(Dropping(), digits.spec, embedding_dim=8)
    network.standardize.fit(digits.train.images)
    start, examples = Trained(network.eval()), digits.train.of_classes([3, 8])
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = run(start, examples).network
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(8)
    assert same_weights(first, run(start, examples).network)


def test_methods_by_name():
    assert get_method("E-EWC+SDC") is METHODS["E-EWC+SDC"]
    with pytest.raises(InputError, match=r"Did you mean 'E-EWC\+SDC'"):
        get_method("EWC+SDC")
    embedding_side = {"E-Pre", "E-Fix", "E-FT", "E-LwF", "E-EWC", "E-MAS", "E-Joint"}
    assert embedding_side <= set(METHODS)
    assert {f"{name}+SDC" for name in ("E-FT", "E-LwF", "E-EWC", "E-MAS")} <= set(METHODS)


def test_a_read_out_of_heads_needs_an_objective_that_classifies():
    with pytest.raises(InputError, match=r"MaxOverHeads.*Triplet.*Softmax"):
        Method(objective=Triplet(), readout=MaxOverHeads())


@pytest.mark.parametrize("axis", ["objective", "penalty", "drift", "exemplars", "readout", "schedule"])
def test_a_method_refuses_what_does_not_belong_on_an_axis(axis):
    with pytest.raises(InputError, match=axis):
        Method(**{axis: "EWC"})
    with pytest.raises(InputError, match=axis):
        Method(**{axis: Triplet if axis != "objective" else Schedule})
