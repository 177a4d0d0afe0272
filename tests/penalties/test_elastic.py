"""EFC's penalty, against its released rule written as loops over images and classes."""

import pytest
import torch

from protodrift import Method
from protodrift.errors import InputError
from protodrift.objectives import CosineHeads, Softmax, Triplet
from protodrift.penalties import ElasticFeatures, elastic_loss, empirical_feature_matrix
from protodrift.training.context import TaskContext
from tests.penalties.conftest import TRAINING
from tests.training.tasks import advance


def released(network, images, weight):
    """sum_c p_c J_c' J_c with J the Jacobian of log softmax by z, mean over images: EFC's own computation."""
    total = torch.zeros(weight.shape[1], weight.shape[1], dtype=torch.float64)
    for image in images:
        z = network(image[None]).detach().double().requires_grad_()
        log_p = torch.cat([head.double()(z) for head in network.heads], dim=1).log_softmax(dim=1)[0]
        for c in range(len(log_p)):
            (jacobian,) = torch.autograd.grad(log_p[c], z, retain_graph=True)
            total += log_p[c].exp().detach() * torch.outer(jacobian[0], jacobian[0])
    for head in network.heads:
        head.float()
    return total / len(images)


def test_the_matrix_and_the_loss_are_those_of_the_released_code(learn, tiny):
    *_, trained = learn(Softmax(), ElasticFeatures(), tasks=2)
    weight = torch.cat([head.weight for head in trained.network.heads]).detach()
    expected = released(trained.network, tiny[1].images, weight)  # of the last task's images, over all heads
    torch.testing.assert_close(trained.penalty_state[0]["E"].double(), expected, rtol=1e-4, atol=1e-8)
    with torch.no_grad():
        logits = torch.cat(trained.network.logits(trained.network(tiny[1].images)), dim=1)
    torch.testing.assert_close(empirical_feature_matrix(logits, weight).double(), expected, rtol=1e-3, atol=1e-7)
    g = torch.Generator().manual_seed(0)
    z, z_old = torch.randn(2, 5, len(expected), generator=g, dtype=torch.float64)
    regularizer = 10 * expected + 0.1 * torch.eye(len(expected), dtype=torch.float64)
    by_hand = sum(float((a - b) @ regularizer @ (a - b)) for a, b in zip(z, z_old, strict=True)) / 5
    found = 10 * elastic_loss(z, z_old, expected, ElasticFeatures().damping)
    assert float(found) == pytest.approx(by_hand, rel=1e-9)


def test_interrupted_trainings_and_stages_on_disk_are_the_same(learn, interrupted, same_state, tree_twice):
    assert same_state(learn(Softmax(), ElasticFeatures())[-1], interrupted(Softmax(), ElasticFeatures()))
    tree_twice(Method(Softmax(), ElasticFeatures()))


def test_shares_of_images_merge(learn, tiny, monkeypatch):
    trained = learn(Softmax(), ElasticFeatures(), tasks=1)[-1]
    examples = tiny[0]
    context = TaskContext(trained.network, Softmax(), examples.images, examples.targets_of((3, 8)), 1, 0)
    whole = ElasticFeatures().end_task(context, {}, {})["E"]
    parts = []
    for own in (slice(0, 5), slice(5, 32)):
        monkeypatch.setattr(TaskContext, "share", lambda self, own=own: self.images[own])
        monkeypatch.setattr(TaskContext, "reduce", lambda self, sums: parts.append(sums) or sums)
        ElasticFeatures().end_task(context, {}, {})
    both = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    monkeypatch.setattr(TaskContext, "reduce", lambda self, sums: both)
    torch.testing.assert_close(ElasticFeatures().end_task(context, {}, {})["E"], whole)


@pytest.mark.parametrize("objective", [Triplet(), CosineHeads()])
def test_other_heads_are_refused(learn, objective):
    with pytest.raises(InputError, match="ElasticFeatures measures linear heads"):
        learn(objective, ElasticFeatures(), tasks=1)


def test_it_must_have_measured_the_task_before(learn, tiny):
    first = learn(Softmax(), (), tasks=1)[-1]
    method = Method(Softmax(), ElasticFeatures())
    with pytest.raises(InputError, match="from the first task on"):
        advance(first, tiny[1], task=2, method=method, seed=0, training=TRAINING, augment=None)
