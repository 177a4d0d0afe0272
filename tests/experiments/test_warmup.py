"""The warm-up stage and the schedules it brought: a visible stage, shared by all methods, resumed like any other."""

import dataclasses

import pytest
import torch
from torch import nn

from protodrift.common import seeding
from protodrift.data import load_digits
from protodrift.data.batches import shuffled_batches
from protodrift.data.tasks import TaskStream
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import METHODS
from protodrift.objectives import Softmax
from protodrift.training.config import Training, Warmup
from protodrift.training.optimizer import one_cycle
from protodrift.training.step import Step

TRAINING = Training(
    epochs=3, learning_rate=0.05, weight_decay=5e-4, batch_size=64, epoch="shuffled", optimizer="sgd",
    rate_schedule="one-cycle",
)  # fmt: skip
METHODS_HERE = {name: METHODS[name] for name in ("E-Pre", "E-Fix", "E-FT", "FT")}


@pytest.fixture(scope="module")
def stream():
    return TaskStream(load_digits(), 2)


def tree(stream, **options):
    return Tree(stream, warmup=Warmup(TRAINING), training=Training(epochs=1, learning_rate=1e-4), **options)


def test_all_methods_share_one_warm_up_and_start_from_its_backbone(stream):
    warmed = tree(stream)
    results = warmed.run(METHODS_HERE)
    assert warmed.computed["warm"] == 1
    roots = [warmed.trained(method, 0).network for method in METHODS_HERE.values()]
    for root in roots[1:]:
        for a, b in zip(roots[0].backbone.parameters(), root.backbone.parameters(), strict=True):
            assert torch.equal(a, b)
    cold = Tree(stream, training=Training(epochs=1, learning_rate=1e-4)).run({"E-Pre": METHODS["E-Pre"]})
    # A network that learned the first task's classes tells them apart better than one with random weights.
    assert results["E-Pre"].accuracy_matrix[0, 0] > cold["E-Pre"].accuracy_matrix[0, 0]


def test_another_warm_up_is_another_tree(stream):
    a, b = tree(stream), tree(stream)
    b.warmup = Warmup(dataclasses.replace(TRAINING, epochs=4))
    keys = [set(t.plan({"E-FT": METHODS["E-FT"]})) for t in (a, b)]
    assert not keys[0] & keys[1]


def test_an_interrupted_warm_up_goes_on_bit_for_bit(stream, tmp_path, monkeypatch):
    whole = tree(stream)
    network = whole.value(whole.stage("warm", whole.warmup.method, 0)).network
    broken = tree(stream, store=Store(tmp_path))
    from protodrift.training import trainer

    epoch = trainer._Run.epoch

    def interrupted(self, number, *args):
        if number == 3:
            raise KeyboardInterrupt
        epoch(self, number, *args)

    monkeypatch.setattr(trainer._Run, "epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broken.value(broken.stage("warm", broken.warmup.method, 0))
    seen = []
    monkeypatch.setattr(trainer._Run, "epoch", lambda self, n, *a: (seen.append(n), epoch(self, n, *a))[1])
    resumed = tree(stream, store=Store(tmp_path))
    again = resumed.value(resumed.stage("warm", resumed.warmup.method, 0)).network
    assert seen == [3]
    for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_one_cycle_is_torchs():
    steps = 1000
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=steps, cycle_momentum=False)
    for step in range(steps):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(one_cycle(step / steps), abs=6e-3)
        optimizer.step()
        schedule.step()


def test_shuffled_batches_hold_every_image_once_and_no_scrap():
    for count, expected in ((130, [64, 66]), (160, [64, 64, 32]), (10, [10])):
        batches = shuffled_batches(count, 64, seeding.generator(0, "batches"))
        assert [len(batch) for batch in batches] == expected
        assert torch.cat(batches).sort().values.tolist() == list(range(count))


def test_label_smoothing_is_the_mixture_with_the_uniform_target(stream):
    objective, smoothing = Softmax(smoothing=0.3), 0.3
    start = tree(stream).trained(METHODS["FT"], 1)
    data = stream[0].data
    rows = data.targets_of(stream.task_classes[0])[:16]
    step = Step(start.network, data.images[:16], rows, objective=objective)
    log_p = step.logits[-1].log_softmax(dim=1)
    for i in range(16):
        target = torch.full((log_p.shape[1],), smoothing / log_p.shape[1])
        target[rows[i]] += 1 - smoothing
        assert objective.single_losses(step)[i].item() == pytest.approx(-(target * log_p[i]).sum().item(), abs=1e-5)


def test_true_means_from_some_images_add_their_movement_to_the_mean_of_all(stream):
    few, whole = (Tree(stream, training=Training(epochs=1, learning_rate=1e-4), mean_images=n) for n in (7, None))
    method = METHODS["E-FT"]
    rows = stream[0].data.targets_of(stream.task_classes[0])
    then, now = few.z_train(method, 1, 1), few.z_train(method, 2, 1)
    true = few.true_means(method, 2)
    for row in range(len(stream.task_classes[0])):
        mine = rows == row
        moved = now[mine][:7].mean(dim=0) - then[mine][:7].mean(dim=0)
        assert torch.allclose(true[row], then[mine].mean(dim=0) + moved, atol=1e-6)
    exact = whole.true_means(method, 2)
    first = len(stream.task_classes[0])
    assert torch.equal(true[first:], exact[first:])  # new classes: all of their images
    # The movement of a few images says more about the true mean than their mean does.
    naive = torch.stack([now[rows == row][:7].mean(dim=0) for row in range(first)])
    assert (true[:first] - exact[:first]).norm(dim=1).mean() < 0.5 * (naive - exact[:first]).norm(dim=1).mean()
