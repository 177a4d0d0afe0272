"""Objectives that classify, against naive loops: softmax, iCaRL's sigmoids, Rebalance's cosine heads."""

import copy
import math
from functools import partial

import pytest
import torch

from protodrift.common import seeding
from protodrift.common.config import decode, encode
from protodrift.data import Examples, load_digits
from protodrift.errors import InputError
from protodrift.exemplars import Herding
from protodrift.methods import Method
from protodrift.networks import build_embedder, embed
from protodrift.objectives import CosineHeads, SigmoidHeads, Softmax, imprinted_weights
from protodrift.penalties import LwF
from protodrift.training.config import Training
from protodrift.training.context import TaskContext
from protodrift.training.step import Step
from protodrift.training.trainer import Trained, train_network

COSINE = CosineHeads(scale=7.0)


@pytest.fixture
def two_tasks():
    """A float64 network with a head of two classes and one of three, its frozen elder, and a batch of all five."""

    def make(objective):
        digits = load_digits()
        images = torch.cat([digits.train.of_classes([label]).images[:4] for label in range(5)])
        rows = torch.arange(5).repeat_interleave(4)
        networks = []
        for seed, sizes in ((1, [2]), (2, [2, 3])):
            network = build_embedder("convnet", digits.spec, embedding_dim=None, normalize=False, seed=seed)
            network.standardize.fit(images)
            network = network.double().eval()
            torch.manual_seed(seed)
            for size in sizes:
                objective.grow(network, size)
            networks.append(network)
        old, new = networks
        step = Step(new, images, rows, objective=objective, network_old=old)
        return step, TaskContext(old, objective, images, rows, 2, 0)

    return make


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def log_softmax(outputs, c):
    top = max(outputs)
    return outputs[c] - top - math.log(sum(math.exp(o - top) for o in outputs))


def outputs(logits, i):
    """The outputs of all heads for image i, as numbers."""
    return [o for part in logits for o in part[i].tolist()]


def test_one_softmax_over_all_classes(two_tasks):
    step, _ = two_tasks(Softmax(over="all"))
    naive = [-log_softmax(outputs(step.logits, i), int(y)) for i, y in enumerate(step.targets)]
    torch.testing.assert_close(step.objective.single_losses(step), torch.tensor(naive, dtype=torch.float64))
    assert step.objective.loss(step).item() == pytest.approx(sum(naive) / len(naive), abs=1e-10)


def test_a_softmax_a_head_trains_the_newest_head_only(two_tasks):
    whole, _ = two_tasks(Softmax())
    new = whole.targets >= 2
    args = {"objective": whole.objective}
    step = Step(whole.network, whole.images[new], whole.targets[new], **args)
    naive = [-log_softmax(step.logits[1][i].tolist(), int(y) - 2) for i, y in enumerate(step.targets)]
    torch.testing.assert_close(step.objective.single_losses(step), torch.tensor(naive, dtype=torch.float64))
    step.objective.loss(step).backward()
    assert all(weight.grad is None for weight in step.network.heads[0].parameters())
    assert all(bool(weight.grad.any()) for weight in step.network.heads[1].parameters())


def test_lwf_holds_each_old_heads_softmax_at_a_temperature(two_tasks):
    step, _ = two_tasks(Softmax())
    naive = 0.0
    for i in range(len(step.targets)):
        now, old = ([o / 2 for o in logits[0][i].tolist()] for logits in (step.logits, step.logits_old))
        naive -= sum(math.exp(log_softmax(old, c)) * log_softmax(now, c) for c in range(2)) / len(step.targets)
    assert LwF(temperature=2.0).penalty(step, {}).item() == pytest.approx(naive, abs=1e-10)


def test_icarl_loss_is_its_papers_sum_over_classes(two_tasks):
    """Algorithm 3: new classes have targets [y = c], old classes have the old network's sigmoids, exemplars too."""
    step, _ = two_tasks(SigmoidHeads())
    naive = 0.0
    for i, y in enumerate(step.targets.tolist()):
        g = [sigmoid(o) for o in outputs(step.logits, i)]
        q = [sigmoid(o) for o in outputs(step.logits_old, i)]
        for c in range(5):
            target = q[c] if c < 2 else float(y == c)
            naive -= target * math.log(g[c]) + (1 - target) * math.log(1 - g[c])
    ours = step.objective.loss(step) + LwF(gamma=1.0).penalty(step, {})
    assert ours.item() == pytest.approx(naive / len(step.targets), abs=1e-9)


@pytest.mark.parametrize("classes", [1, 2, 3, 50])
def test_a_new_sigmoid_head_begins_at_the_prior_of_its_classes(two_tasks, classes):
    """Where z says nothing, every class has the probability 1 / classes; one or two begin as any linear layer."""
    network = two_tasks(Softmax())[0].network
    SigmoidHeads(prior=False).grow(network, classes)
    assert float(network.heads[-1].bias.abs().max()) <= network.embedding_dim**-0.5
    SigmoidHeads().grow(network, classes)
    nothing = torch.zeros(1, network.embedding_dim).double()
    if classes > 2:
        assert network.heads[-1](nothing).sigmoid().tolist()[0] == pytest.approx([1 / classes] * classes)


def test_icarl_sends_no_gradient_into_the_old_network(two_tasks):
    step, _ = two_tasks(SigmoidHeads())
    LwF().penalty(step, {}).backward()
    assert all(weight.grad is None for weight in step.network_old.parameters())
    assert bool(step.network.heads[0].weight.grad.any())
    assert step.network.heads[1].weight.grad is None


@pytest.mark.parametrize("objective", [Softmax(), Softmax(over="all"), SigmoidHeads()])
def test_the_output_that_mas_measures_is_all_heads_side_by_side(two_tasks, objective):
    step, _ = two_tasks(objective)
    torch.testing.assert_close(objective.output(step), torch.cat(step.logits, dim=1))
    assert decode(encode(objective)) == objective


def test_one_class_alone_trains_a_sigmoid_but_no_softmax():
    one, two = torch.zeros(4, dtype=torch.long), torch.tensor([0, 1])
    assert "one class" in Softmax().missing_signal(one)
    assert Softmax().missing_signal(two) == SigmoidHeads().missing_signal(one) == ""


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b))


def test_cosine_loss_is_the_cross_entropy_of_scaled_cosines_over_all_classes(two_tasks):
    step, _ = two_tasks(COSINE)
    weights = [w for head in step.network.heads for w in head.weight]
    naive = []
    for z, y in zip(step.z, step.targets.tolist(), strict=True):
        logits = [7.0 * cosine(z, w) for w in weights]
        naive.append(-logits[y] + math.log(sum(math.exp(o) for o in logits)))
    torch.testing.assert_close(step.objective.single_losses(step), torch.tensor(naive, dtype=torch.float64))
    assert float(COSINE.loss(step)) == pytest.approx(sum(naive) / len(naive), abs=1e-9)


def test_what_lwf_holds_of_cosine_heads_is_one_softmax_over_all_old_classes(two_tasks):
    held = COSINE.held(two_tasks(COSINE)[0])
    assert (held.kind, [tuple(part.shape) for part in held.now + held.old]) == ("logits", [(20, 2), (20, 2)])


def test_imprinted_weights_follow_their_formula(two_tasks):
    """Old classes' images (a memory's) take no part; the length is the mean length of old weights."""
    step, context = two_tasks(COSINE)
    old = step.network_old.heads[0].weight.detach()
    new = step.targets >= 2
    ours = imprinted_weights(context.embed(step.images[new]), step.targets[new] - 2, 3, old)
    length = sum(math.sqrt(sum(float(x) ** 2 for x in w)) for w in old) / 2
    for c in range(3):
        mean = torch.zeros(512, dtype=torch.float64)
        members = [z for z, y in zip(embed(context.network, step.images), step.targets, strict=True) if y == 2 + c]
        for z in members:
            mean += z / math.sqrt(sum(float(x) ** 2 for x in z)) / len(members)
        naive = mean / math.sqrt(sum(float(x) ** 2 for x in mean)) * length
        torch.testing.assert_close(ours[c], naive)


def test_a_task_starts_with_imprinted_weights_and_the_first_with_ordinary_ones(two_tasks):
    step, context = two_tasks(COSINE)
    network = copy.deepcopy(step.network_old)
    COSINE.start_task(network, context, 3)
    new = context.targets >= 2
    z, old = context.embed(context.images[new]), network.heads[0].weight.detach()
    expected = imprinted_weights(z, context.targets[new] - 2, 3, old)
    torch.testing.assert_close(network.heads[1].weight.detach(), expected)
    torch.testing.assert_close(network.heads[0].weight, step.network_old.heads[0].weight)
    first, plain = (build_embedder("convnet", load_digits().spec, embedding_dim=None, seed=0) for _ in range(2))
    with seeding.global_seed(0, "head"):
        COSINE.start_task(first, context, 2)
    with seeding.global_seed(0, "head"):
        COSINE.grow(plain, 2)
    assert torch.equal(first.heads[0].weight, plain.heads[0].weight)


def test_all_heads_share_one_eta_in_copies_and_after_loading(two_tasks):
    network = copy.deepcopy(two_tasks(COSINE)[0].network)
    a, b = network.heads
    assert a.eta is b.eta
    assert sum(weight is a.eta for weight in network.parameters()) == 1
    with torch.no_grad():
        a.eta.fill_(3.0)
    fresh = two_tasks(COSINE)[0].network
    fresh.load_state_dict({name: value.clone() for name, value in network.state_dict().items()})
    assert float(fresh.heads[1].eta) == 3.0
    assert fresh.heads[0].eta is fresh.heads[1].eta
    z = torch.randn(4, network.embedding_dim, dtype=torch.float64)
    torch.testing.assert_close(fresh.logits(z), network.logits(z))
    moved = copy.deepcopy(network).float()
    assert moved.heads[0].eta is moved.heads[1].eta


def test_eta_and_all_heads_are_trained_together():
    train = load_digits().train
    parts = [train.of_classes(pair) for pair in ([0, 1], [2, 3])]
    tasks = [Examples(part.images[:32], part.labels[:32]) for part in parts]
    network = build_embedder("convnet", load_digits().spec, embedding_dim=None, normalize=False, seed=0)
    method = Method(COSINE, exemplars=Herding(8))
    args = {"method": method, "training": Training(epochs=1), "augment": None, "seed": 0}
    first = train_network(Trained(network.eval()), tasks[0], task=1, **args)
    kept = Trained(
        first.network, first.classes, exemplars=method.exemplars.keep(None, tasks[0], partial(embed, first.network))
    )
    second = train_network(kept, tasks[1], task=2, **args)
    assert float(first.network.heads[0].eta) != 7.0
    assert second.network.heads[0].eta is second.network.heads[1].eta
    assert float(second.network.heads[1].eta) != float(first.network.heads[0].eta)
    assert not torch.equal(second.network.heads[0].weight, first.network.heads[0].weight)


def test_options_of_cosine_heads():
    assert decode(encode(COSINE)) == COSINE
    with pytest.raises(InputError, match="greater than 0"):
        CosineHeads(scale=0)
