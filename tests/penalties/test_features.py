"""Feature distillation, plain and through a projector, and one softmax over all old classes, against naive loops."""

import copy

import pytest
import torch
from torch import nn

from protodrift import Method
from protodrift.data.tasks import TaskStream
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.methods import Schedule
from protodrift.networks import build_embedder
from protodrift.objectives import CosineHeads, Softmax
from protodrift.penalties import FeatureDistillation, LwF, feature_distance, projected
from protodrift.training.context import TaskContext
from protodrift.training.step import Step

PROJECTED = FeatureDistillation(gamma=10.0, distance="mse", projector=24)


@pytest.fixture
def step(small_digits):
    """A float64 step of a network with heads of two, two and one classes, and the old network without the last."""
    images = small_digits.train.images[:12].double()
    networks = []
    for seed, sizes in ((1, [2, 2]), (2, [2, 2, 1])):
        network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=seed)
        network.standardize.fit(images)
        torch.manual_seed(seed)
        for size in sizes:
            Softmax().grow(network, size)
            network.heads[-1].weight.data *= 20  # outputs that differ
        networks.append(network.double().eval())
    old, new = networks
    return Step(new, images, torch.full((12,), 4), objective=Softmax(), network_old=old)


def test_distances_are_the_naive_loops(step):
    z, z_old = step.z.tolist(), step.z_old.tolist()
    total = sum((a - b) ** 2 for new, old in zip(z, z_old, strict=True) for a, b in zip(new, old, strict=True))
    count, size = len(z), len(z[0])
    for distance, value in {"squared": total / count, "mse": total / count / size, "norm": total**0.5}.items():
        found = FeatureDistillation(distance=distance).penalty(step, {})
        assert found.item() == pytest.approx(value, rel=1e-12)
        assert feature_distance(step.z, step.z_old, distance).item() == found.item()
    unit = FeatureDistillation(unit=True).penalty(step, {})
    cosine = torch.nn.functional.cosine_similarity(step.z, step.z_old)
    assert float(unit) == pytest.approx(float((2 - 2 * cosine).mean()), rel=1e-9)


def test_the_projector_is_an_mlp_with_gelu(step):
    context = TaskContext(step.network_old, Softmax(), step.images, step.targets, 2, 0)
    torch.manual_seed(3)
    state = PROJECTED.start_task(context, {}, step.network)
    size = step.z.shape[1]
    mlp = nn.Sequential(nn.Linear(size, 24), nn.GELU(), nn.Linear(24, size)).double()
    torch.manual_seed(3)
    for layer in (mlp[0], mlp[2]):
        fresh = nn.Linear(layer.in_features, layer.out_features)
        layer.load_state_dict(fresh.state_dict())
    torch.testing.assert_close(projected(step.z, state), mlp(step.z), rtol=1e-12, atol=1e-12)
    expected = nn.functional.mse_loss(mlp(step.z), step.z_old)
    found = PROJECTED.penalty(step, state)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    found.backward(retain_graph=True)
    expected.backward()
    torch.testing.assert_close(state["0.weight"].grad, mlp[0].weight.grad, rtol=1e-9, atol=1e-15)


def test_the_projector_learns_and_is_thrown_away(learn):
    first, second = learn(Softmax(), PROJECTED)[1:]
    assert second.penalty_state == ({},)
    assert first.network.state_dict().keys() < second.network.state_dict().keys()
    added = second.network.state_dict().keys() - first.network.state_dict().keys()
    assert added == {"heads.1.weight", "heads.1.bias"}
    assert second.history[-1]["penalty"] < second.history[0]["penalty"]


@pytest.mark.parametrize(
    "penalty",
    [
        PROJECTED,
        FeatureDistillation(gamma=0.1),
        FeatureDistillation(gamma=0.1, first=True),
        LwF(gamma=10.0, over="all"),
    ],
)
def test_interrupted_trainings_and_stages_on_disk_are_the_same(
    learn, interrupted, same_state, tree_twice, objective, penalty
):
    assert same_state(learn(objective, penalty)[-1], interrupted(objective, penalty))
    tree_twice(Method(objective, penalty))


def test_plain_distillation_holds_the_features(learn, tiny):
    def moved(penalty):
        _, before, after = learn(Softmax(), penalty)
        with torch.no_grad():
            return float((after.network(tiny[1].images) - before.network(tiny[1].images)).norm())

    free = moved(None)
    assert moved(FeatureDistillation(gamma=10.0)) < 0.5 * free


def test_the_network_that_the_first_task_starts_from_can_be_held_too(learn, tiny):
    def moved(penalty):  # batch norm's statistics would move all the same
        start, after, _ = learn(Softmax(), penalty, schedule=Schedule(batch_norm="pretrained"))
        with torch.no_grad():
            return float((after.network(tiny[0].images) - start.network(tiny[0].images)).norm()), after.history

    free, history = moved(FeatureDistillation(gamma=10.0))
    assert all(epoch["penalty"] == 0 for epoch in history)
    held, history = moved(FeatureDistillation(gamma=10.0, first=True))
    assert held < 0.5 * free
    assert history[-1]["penalty"] > 0
    assert moved(FeatureDistillation(gamma=0.0, first=True))[0] == free


def test_a_first_task_that_is_held_is_another_stage(small_digits):
    tree = Tree(TaskStream(small_digits, classes=[[3, 8], [1, 7]]), network=Network(embedding_dim=8))
    plain, held = (Method(Softmax(), FeatureDistillation(gamma=0.1, first=first)) for first in (False, True))
    first_task = tree.stage("train", Method(Softmax()), 1).key
    assert tree.stage("train", plain, 1).key == first_task  # nothing acts there: it is shared
    assert tree.stage("train", held, 1).key != first_task


def test_lwf_as_the_field_writes_it(step):
    """10 * -mean_i sum_c softmax(z_old / T)_c log softmax(z_new[:, :known] / T)_c: one softmax over ALL old classes."""
    new = torch.cat(step.logits, dim=1)[:, :4] / 2
    old = torch.cat(step.logits_old, dim=1) / 2
    total = 0.0
    for i in range(len(new)):
        p = [float(v.exp() / old[i].exp().sum()) for v in old[i]]
        q = [float(v.exp() / new[i].exp().sum()) for v in new[i]]
        total -= sum(a * torch.tensor(b).double().log().item() for a, b in zip(p, q, strict=True))
    penalty = LwF(gamma=10.0, temperature=2.0, over="all")
    found = penalty.gamma * penalty.penalty(step, {})
    assert float(found) == pytest.approx(10 * total / len(new), rel=1e-6)
    assert float(found) != pytest.approx(10 * float(LwF().penalty(step, {})), rel=1e-3)  # a softmax for each head


def test_the_new_logits_alone_make_the_cross_entropy(step):
    found = Softmax().single_losses(step)
    assert torch.equal(found, torch.zeros_like(found))  # the last head has one class


@pytest.mark.parametrize("learned", [True, False])
def test_cosine_heads_of_the_current_task_only(learn, learned):
    objective = CosineHeads(scale=16.0, over="head", learned=learned, imprint="all")
    _, first, second = learn(objective, FeatureDistillation(gamma=0.3))
    before, after = first.network.heads[0], second.network.heads[0]
    assert torch.equal(before.weight, after.weight)  # the loss does not reach the old head
    etas = [float(head.eta) for state in (first, second) for head in state.network.heads]
    assert all(eta == 16.0 for eta in etas) is not learned
    assert etas[1] == etas[2]  # tied
    assert ("heads.0.eta" in dict(second.network.named_parameters())) is learned
    assert "heads.1.eta" in second.network.state_dict()
    assert not objective.spans_tasks


def test_cosine_heads_start_at_the_class_means_also_in_the_first_task(small_digits, tiny):
    objective = CosineHeads(scale=16.0, over="head", learned=False, imprint="all")
    network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0).eval()
    for examples, first in ((tiny[0], 0), (tiny[1], 2)):
        rows = examples.targets_of(tuple(sorted(set(examples.labels)))) + first
        context = TaskContext(copy.deepcopy(network), objective, examples.images, rows, 1, 0)
        with torch.no_grad():
            z = nn.functional.normalize(network(examples.images), dim=1)
        objective.start_task(network, context, 2)
        for c in range(2):
            mean = z[rows == first + c].mean(dim=0)
            torch.testing.assert_close(network.heads[-1].weight[c], mean / mean.norm(), rtol=1e-4, atol=1e-5)
    plain = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0).eval()
    CosineHeads().start_task(plain, context, 2)  # Rebalance begins at random
    assert float(plain.heads[0].weight.norm(dim=1).max()) < 0.95
