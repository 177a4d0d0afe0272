"""R-EWC: the rotated network is the same network, its Fisher information is nearer to diagonal, and nobody sees it."""

import copy

import pytest
import torch
from torch import nn

from protodrift import Method
from protodrift.data.arrays import InputSpec
from protodrift.networks import build_embedder
from protodrift.networks.backbones.resnet import ResNet
from protodrift.objectives import Softmax, Triplet
from protodrift.penalties import EWC, REWC, LwF
from protodrift.penalties.rewc import Rotated, measure_rotations, rotatable, turn, turn_fisher
from protodrift.training.context import TaskContext
from protodrift.training.step import Step

IMAGES = InputSpec((2, 6, 6), "free", -3.0, 3.0)


class Plain(nn.Module):
    """What can go wrong with a layer: in-place ReLU behind it, bias, padding modes, groups, one layer used twice."""

    def __init__(self, inplace=True):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect")
        self.strided = nn.Conv2d(6, 4, 3, stride=2, bias=False)
        self.grouped = nn.Conv2d(4, 4, 1, groups=2)
        self.first = nn.Linear(16, 5)
        self.shared = self.second = nn.Linear(5, 5)
        self.unused = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x):
        x = self.relu(self.strided(self.relu(self.conv(x))))
        x = self.relu(self.first(self.grouped(x).flatten(1)))
        return self.second(self.relu(self.shared(x)))


@pytest.fixture(params=["plain", "resnet", "mlp"])
def setting(request):
    """Return a network, and the context of a finished task of forty inputs of two classes."""
    return make(request.param)


def make(kind, objective=Triplet(margin=2.0, mining="all"), **options):
    torch.manual_seed(1)
    rows = torch.arange(40) % 2
    if kind == "mlp":
        images = torch.randn(40, 5) @ torch.randn(5, 5) + rows[:, None]
        spec, backbone = InputSpec((5,), "free", -3.0, 3.0), nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    else:
        images = torch.randn(40, 2, 6, 6).cumsum(2) + rows[:, None, None, None]
        spec, backbone = IMAGES, Plain(**options) if kind == "plain" else ResNet((8, 16), (1, 1), 2, "cifar")
    network = build_embedder(backbone, spec, embedding_dim=3, normalize=False, seed=0).eval()
    return TaskContext(network, objective, images, rows, 1, 0)


def test_the_network_answers_the_same_after_rotating_and_after_merging(setting):
    network = copy.deepcopy(setting.network)
    before = network(setting.images)
    kept = REWC().end_task(setting, {}, {})
    names = [name for name, _ in network.named_parameters()]
    layers = {name: (type(m), m.weight.stride()) for name, m in network.named_modules() if hasattr(m, "weight")}
    state = REWC().start_task(setting, kept, network)
    assert any(isinstance(module, Rotated) for module in network.modules())
    torch.testing.assert_close(network(setting.images), before, atol=1e-5, rtol=1e-5)
    assert [name for name, _ in network.named_parameters()] == names
    REWC().merge(network, state)
    torch.testing.assert_close(network(setting.images), before, atol=1e-5, rtol=1e-5)
    assert {n: (type(m), m.weight.stride()) for n, m in network.named_modules() if hasattr(m, "weight")} == layers
    assert list(network.state_dict()) == list(setting.network.state_dict())
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight, setting.network.get_parameter(name), atol=1e-5, rtol=1e-5)


def test_training_in_rotated_axes_reaches_the_merged_network(setting):
    """Whatever W' became, merging changes no answer; biases are trained too."""
    network = copy.deepcopy(setting.network)
    state = REWC().start_task(setting, REWC().end_task(setting, {}, {}), network)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn_like(weight)
    moved = network(setting.images)
    other = copy.deepcopy(network)
    torch.testing.assert_close(other(setting.images), moved)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    REWC().merge(network, state)
    torch.testing.assert_close(network(setting.images), moved, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(moved, setting.network(setting.images), atol=1e-2)
    REWC().merge(other, state)
    assert not any(bool(weight.any()) for weight in other.parameters())


def test_rotations_are_orthogonal_and_every_wide_enough_layer_has_them(setting):
    rotations = measure_rotations(setting)
    for u in rotations.values():
        torch.testing.assert_close(u @ u.T, torch.eye(len(u)), atol=1e-5, rtol=0)
    names = {key.split(":")[1] for key in rotations}
    if isinstance(setting.network.backbone, Plain):
        assert names == {"backbone.conv", "backbone.strided", "backbone.first", "head"}
    else:
        assert names == set(rotatable(setting.network))


def test_heads_stay_plain():
    context = make("mlp", Softmax())
    Softmax().grow(context.network, 2)
    assert set(rotatable(context.network)) == {"backbone.0", "backbone.2", "head"}


def layer_gradients(context, layer):
    """Return the gradient of each image's loss with respect to one layer's weight, (n, O, I, ...)."""
    weight = context.network.get_parameter(f"{layer}.weight")
    found = []
    for step in context.steps():
        for loss in context.objective.single_losses(step):
            found.append(torch.autograd.grad(loss, weight, retain_graph=True)[0])
    return torch.stack(found)


def off_diagonal_share(gradients):
    flat = gradients.flatten(1).double()
    fisher = flat.T @ flat / len(flat)
    return float(1 - fisher.diagonal().square().sum() / fisher.square().sum())


@pytest.mark.parametrize(
    ("kind", "layer", "share"),
    [
        ("mlp", "backbone.0", 0.8),
        ("mlp", "backbone.2", 0.8),
        ("mlp", "head", 0.8),
        # The places of a kernel stay as correlated as they were: channels are all that is rotated.
        ("plain", "backbone.conv", 1.0),
        ("plain", "backbone.strided", 1.0),
    ],
)
def test_rotating_takes_energy_out_of_the_off_diagonal_of_the_full_fisher(kind, layer, share):
    context = make(kind)
    rotations = measure_rotations(context)
    u1, u2 = rotations[f"U1:{layer}"], rotations[f"U2:{layer}"]
    gradients = layer_gradients(context, layer)
    plain = off_diagonal_share(gradients)
    rotated = off_diagonal_share(torch.stack([turn(g, u2.T, u1.T) for g in gradients]))
    assert rotated < share * plain


@pytest.mark.parametrize("fisher", ["batch", "single"])
def test_the_kept_fisher_is_that_of_the_rotated_weights(fisher):
    context = make("plain")
    context.network.double()  # embeddings hardly depend on a bias: in float32 its gradient is mostly rounding
    kept = REWC(fisher=fisher).end_task(context, {}, {})
    if fisher == "single":
        gradients = layer_gradients(context, "backbone.conv") / 32**0.5
    else:
        weight = context.network.backbone.conv.weight
        losses = [context.objective.loss(step) for step in context.steps()]
        gradients = torch.stack([torch.autograd.grad(loss, weight)[0] for loss in losses])
    u1, u2 = kept["U1:backbone.conv"].double(), kept["U2:backbone.conv"].double()
    expected = torch.zeros_like(kept["backbone.conv.weight"])
    for g in gradients:
        for i in range(3):
            for j in range(3):
                expected[:, :, i, j] += (u2.T @ g[:, :, i, j] @ u1.T) ** 2 / len(gradients)
    torch.testing.assert_close(kept["backbone.conv.weight"], expected, atol=1e-9, rtol=1e-5)
    plain = EWC(fisher=fisher).end_task(context, {}, {})
    for name in ("backbone.conv.bias", "backbone.grouped.weight", "backbone.shared.weight"):
        torch.testing.assert_close(kept[name], plain[name], atol=1e-9, rtol=1e-5)


def test_the_gradient_is_that_of_the_layers_output_and_not_of_what_an_in_place_relu_made_of_it():
    here, there = measure_rotations(make("plain", inplace=True)), measure_rotations(make("plain", inplace=False))
    assert here.keys() == there.keys()
    assert all(torch.equal(here[key], there[key]) for key in here)


def test_the_penalty_is_ewcs_in_rotated_weights():
    context = make("mlp")
    kept = REWC().end_task(context, {}, {})
    network = copy.deepcopy(context.network)
    state = REWC().start_task(context, kept, network)
    step = Step(
        network,
        context.images,
        context.targets,
        objective=context.objective,
        network_old=context.network,
    )
    assert REWC().penalty(step, state).item() == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        for weight in network.parameters():
            weight += torch.randn_like(weight)
    got = REWC().penalty(step, state).item()
    REWC().merge(network, state)
    expected = 0.0
    for name, weight in network.named_parameters():
        difference = (weight - context.network.get_parameter(name)).detach()
        layer = name.removesuffix(".weight")
        if f"U1:{layer}" in kept and name.endswith(".weight"):
            difference = kept[f"U2:{layer}"].T @ difference @ kept[f"U1:{layer}"].T
        expected += 0.5 * float((kept[name] * difference**2).sum())
    assert got == pytest.approx(expected, rel=1e-4)


def test_accumulated_fishers_are_turned_into_the_new_axes():
    torch.manual_seed(0)

    def draw(n):
        return torch.linalg.qr(torch.randn(n, n))[0]

    kept = {"a.weight": torch.rand(3, 4), "U1:a": draw(4), "U2:a": draw(3), "b.weight": torch.rand(3, 2)}
    new = {"U1:a": draw(4), "U2:a": draw(3), "U1:b": draw(2), "U2:b": draw(3)}
    got = turn_fisher(kept, new)
    for layer, (o, i) in {"a": (3, 4), "b": (3, 2)}.items():
        u1, u2 = (kept.get(f"{u}:{layer}", torch.eye(n)) for u, n in (("U1", i), ("U2", o)))
        # vec(A W B) = (A kron B^T) vec(W), row by row
        turned = torch.kron(new[f"U2:{layer}"].T @ u2, new[f"U1:{layer}"] @ u1.T)
        full = turned @ torch.diag(kept[f"{layer}.weight"].flatten()) @ turned.T
        torch.testing.assert_close(got[f"{layer}.weight"].flatten(), full.diagonal(), atol=1e-6, rtol=1e-5)
    assert set(got) == {"a.weight", "b.weight"}


def test_training_moves_less_along_important_directions_than_fine_tuning(learn, objective):
    free, held = learn(objective, None), learn(objective, REWC())
    kept = held[1].penalty_state[0]

    def moved(states):
        total = 0.0
        for name, old in states[1].network.named_parameters():
            difference = (states[2].network.get_parameter(name) - old).detach()
            layer = name.removesuffix(".weight")
            if name.endswith(".weight") and f"U1:{layer}" in kept:
                difference = turn(difference, kept[f"U2:{layer}"].T, kept[f"U1:{layer}"].T)
            total += float((kept[name] * difference**2).sum())
        return total

    assert moved(held) < 0.2 * moved(free)
    assert not any(isinstance(module, Rotated) for module in held[2].network.modules())
    convolution = held[2].network.backbone.layers[4].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("penalty", [REWC(), REWC(accumulate=True), (LwF(), REWC(fisher="single"))])
def test_rewc_is_the_same_twice_and_after_an_interruption(learn, interrupted, same_state, objective, penalty):
    once = learn(objective, penalty)[-1]
    assert same_state(once, learn(objective, penalty)[-1])
    assert same_state(once, interrupted(objective, penalty))


@pytest.mark.parametrize("accumulate", [False, True])
def test_rewc_in_a_tree_of_stages(tree_twice, objective, accumulate):
    tree_twice(Method(objective, REWC(accumulate=accumulate)))


def test_a_gamma_of_zero_is_fine_tuning(learn, objective):
    free, zero = learn(objective, None)[-1], learn(objective, REWC(gamma=0))[-1]
    assert all(torch.equal(a, b) for a, b in zip(free.network.parameters(), zero.network.parameters(), strict=True))


def test_a_task_of_one_class_keeps_rotations_and_importances():
    context = make("mlp")
    kept = REWC().end_task(context, {}, {})
    one = TaskContext(context.network, context.objective, context.images, torch.zeros_like(context.targets), 2, 0)
    after = REWC().end_task(one, kept, {})
    assert after.keys() == kept.keys()
    assert all(torch.equal(after[name], kept[name]) for name in kept)
    nothing = REWC().end_task(one, {}, {})
    assert not any(bool(value.any()) for value in nothing.values())
    assert REWC().start_task(one, nothing, copy.deepcopy(context.network)) == {}


@pytest.mark.parametrize("penalty", [EWC(), REWC()])
def test_the_head_of_an_older_task_does_not_waste_away(learn, penalty):
    """After the second task the first head has no Fisher information; weight decay must not eat what nobody holds."""
    states = learn(Softmax(), penalty, tasks=3)
    before, after = (states[t].network.heads[0].weight for t in (2, 3))
    assert torch.equal(before, after)
