"""Attention distillation (LwM): the maps against a naive Grad-CAM, and in real trainings."""

import copy

import pytest
import torch

from protodrift import Method
from protodrift.data.arrays import InputSpec
from protodrift.errors import InputError
from protodrift.networks import build_embedder
from protodrift.objectives import Softmax, Triplet
from protodrift.penalties import Attention, LwF
from protodrift.penalties.attention import grad_cam
from protodrift.readouts import MaxOverHeads
from protodrift.training.context import TaskContext
from protodrift.training.step import Step

LWM = (LwF(), Attention())


@pytest.fixture
def pair(small_digits):
    """Return an old network with two heads, one that has moved and got a third, and six images."""
    images = small_digits.train.images[:6]
    old = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0).eval()
    old.standardize.fit(small_digits.train.images)
    torch.manual_seed(0)
    for classes in (2, 3):
        Softmax().grow(old, classes)
    new = copy.deepcopy(old)
    Softmax().grow(new, 2)
    with torch.no_grad():
        for weight in new.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return old, new, images


def step_of(old, new, images):
    rows = torch.tensor([5, 6] * 3)
    return Step(new, images, rows, objective=Softmax(), network_old=old)


def naive_map(network, image, chosen):
    """Grad-CAM of one image, map by map, position by position."""
    maps = network.feature_maps(image[None]).detach().requires_grad_()
    scores = torch.cat(network.logits(network.from_maps(maps)), dim=1)[0]
    scores[chosen].backward()
    _, channels, height, width = maps.shape
    q = torch.zeros(height, width)
    for k in range(channels):
        alpha = maps.grad[0, k].sum() / (height * width)
        for i in range(height):
            for j in range(width):
                q[i, j] += alpha * maps[0, k, i, j].detach()
    return q.clamp(min=0)


def naive_loss(old, new, images):
    total = 0.0
    for image in images:
        scores = torch.cat(old.logits(old(image[None])), dim=1)[0].detach()
        chosen = max(range(5), key=lambda c: float(scores[c]))
        q, q_old = (naive_map(network, image, chosen).flatten() for network in (new, old))
        q, q_old = (v / v.norm() if v.norm() > 0 else v for v in (q, q_old))
        total += float((q - q_old).abs().sum())
    return total / len(images)


def test_the_maps_are_those_of_a_naive_grad_cam(pair):
    _, network, images = pair
    step = step_of(None, network, images)
    chosen = torch.tensor([0, 1, 2, 3, 4, 0])
    q = grad_cam(step.feature_maps, torch.cat(step.logits, dim=1), chosen)
    assert bool((q > 0).any())
    for i, image in enumerate(images):
        torch.testing.assert_close(q[i], naive_map(network, image, int(chosen[i])), atol=1e-5, rtol=1e-4)


def test_the_penalty_is_that_of_a_naive_loop_whatever_was_asked_for_first(pair):
    step = step_of(*pair)
    expected = naive_loss(*pair)
    assert expected > 0.01
    assert Attention().penalty(step, {}).item() == pytest.approx(expected, abs=1e-5)
    later = step_of(*pair)
    Softmax().loss(later)
    LwF().penalty(later, {})
    assert Attention().penalty(later, {}).item() == pytest.approx(expected, abs=1e-5)


def test_equal_networks_cost_nothing_and_different_ones_have_a_gradient(pair):
    old, new, images = pair
    assert Attention().penalty(step_of(old, copy.deepcopy(old), images), {}).item() == 0
    Attention().penalty(step_of(old, new, images), {}).backward()
    for name in ("backbone.layers.0.weight", "backbone.layers.8.weight", "heads.1.weight"):
        assert float(new.get_parameter(name).grad.abs().max()) > 0
    assert new.heads[2].weight.grad is None  # no new class is explained
    assert all(weight.grad is None for weight in old.parameters())


def test_the_gradient_is_that_of_the_maps_change_too(pair):
    """Also alpha depends on the weights: compared with finite differences, in float64."""
    old, new, images = (part.double() for part in pair)
    weight = new.heads[1].weight  # the head of the classes that these images look like
    (gradient,) = torch.autograd.grad(Attention().penalty(step_of(old, new, images), {}), weight)
    assert float(gradient.abs().max()) > 1e-3
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = []
    for epsilon in (1e-6, -1e-6):
        moved = copy.deepcopy(new)
        with torch.no_grad():
            moved.heads[1].weight += epsilon * direction
        values.append(Attention().penalty(step_of(old, moved, images), {}).item())
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-4)


def test_a_map_of_zeros_is_no_division_by_zero(pair):
    old, new, images = pair
    with torch.no_grad():
        for head in new.heads:
            head.weight.zero_()
    loss = Attention().penalty(step_of(old, new, images), {})
    loss.backward()
    assert torch.isfinite(loss)
    assert all(bool(torch.isfinite(w.grad).all()) for w in new.parameters() if w.grad is not None)


def test_every_network_sees_a_batch_once(pair):
    """A second pass would cost time, and move the running statistics of batch norm twice."""
    old, new, images = pair
    passes = []
    for network in (old, new):
        network.backbone.layers[0].register_forward_hook(lambda *_, network=network: passes.append(network))
    step = step_of(old, new, images)
    Softmax().loss(step)
    for penalty in LWM:
        penalty.penalty(step, {})
    assert len(passes) == 2
    assert passes.count(old) == 1


def test_lwm_trains_and_stays_nearer_to_the_old_attention(learn, tiny):
    def distance(states):
        images = tiny[1].images
        step = Step(
            states[2].network,
            images,
            torch.full((len(images),), 2),
            objective=Softmax(),
            network_old=states[1].network,
        )
        return Attention().penalty(step, {}).item()

    assert distance(learn(Softmax(), (LwF(), Attention(gamma=3.0)))) < distance(learn(Softmax(), LwF()))


def test_lwm_is_the_same_twice_and_after_an_interruption(learn, interrupted, same_state):
    once = learn(Softmax(), LWM)[-1]
    assert same_state(once, learn(Softmax(), LWM)[-1])
    assert same_state(once, interrupted(Softmax(), LWM))
    assert once.penalty_state == ({}, {})


def test_lwm_in_a_tree_of_stages(tree_twice):
    tree_twice(Method(Softmax(), LWM, readout=MaxOverHeads()))


def test_a_gamma_of_zero_is_lwf(learn):
    lwf, zero = learn(Softmax(), LwF())[-1], learn(Softmax(), (LwF(), Attention(gamma=0)))[-1]
    assert all(torch.equal(a, b) for a, b in zip(lwf.network.parameters(), zero.network.parameters(), strict=True))


def test_embeddings_have_no_class_scores_to_explain(learn):
    with pytest.raises(InputError, match="objective that classifies"):
        learn(Triplet(margin=2.0), Attention())


def test_a_backbone_without_feature_maps_is_refused_before_training():
    network = build_embedder("mlp", InputSpec((5,), "free", -3.0, 3.0), embedding_dim=None, normalize=False).eval()
    Softmax().grow(network, 2)
    context = TaskContext(network, Softmax(), torch.randn(4, 5), torch.tensor([2, 3, 2, 3]), 2, 0)
    with pytest.raises(InputError, match="has no feature maps"):
        Attention().start_task(context, {}, network)
