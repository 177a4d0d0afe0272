"""bfloat16: what computes in it, what does not, and that nothing else changes by its being there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protodrift.common.config import decode, encode
from protodrift.data import InputSpec
from protodrift.data.tasks import TaskStream
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.settings import with_settings
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import get_method
from protodrift.networks import build_embedder
from protodrift.networks.backbones.efficientnet_lite import SameConv2d
from protodrift.objectives import Softmax, Triplet
from protodrift.training.config import Training, Warmup
from protodrift.training.step import Step
from protodrift.training.trainer import Trained, train_network
from tests.training.tasks import advance

HALF = Training(epochs=2, batch_size=16, precision="bfloat16")
CLASSES = [[3, 8], [1, 7]]


@pytest.fixture
def start(small_digits):
    network = build_embedder("convnet", small_digits.spec, embedding_dim=8, seed=0)
    network.standardize.fit(small_digits.train.images)
    return Trained(network.eval())


def run(start, examples, name="E-FT", task=1, training=HALF):
    method = get_method(name)
    return advance(start, examples, task=task, method=method, training=training, augment=None, seed=0)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def seen_types(network, kind):
    """Return a list that fills with the types of what modules of a kind give."""
    types = []
    for module in network.modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    return types


def test_the_backbone_computes_in_bfloat16_and_all_else_in_float32(small_digits):
    network = build_embedder("convnet", small_digits.spec, embedding_dim=8)
    objective = Softmax()
    objective.grow(network, 10)
    convolutions, linear = seen_types(network, nn.Conv2d), seen_types(network, nn.Linear)
    images, rows = small_digits.train.images[:16], torch.arange(16) % 10
    step = Step(
        network,
        images,
        rows,
        objective=objective,
        network_old=network,
        autocast=torch.bfloat16,
    )
    loss = objective.loss(step)
    kinds = [step.feature_maps, step.features, step.z, step.logits[0], step.z_old, loss]
    assert [value.dtype for value in kinds] == [torch.float32] * len(kinds)
    assert convolutions == [torch.bfloat16] * 6  # three by the network, three by the old one
    assert set(linear) == {torch.float32}
    loss.backward()
    assert all(weight.grad.dtype == torch.float32 for weight in network.backbone.parameters())
    plain = Step(network, images, rows, objective=objective)
    assert torch.equal(plain.z, network(images))  # without it a step is the network's own pass
    assert torch.allclose(step.z, plain.z, atol=0.03)
    assert not torch.equal(step.z, plain.z)


def test_on_the_cpu_depthwise_convolutions_stay_float32():
    network = build_embedder("efficientnet-lite0", InputSpec((3, 32, 32), "uint8", 0, 255), embedding_dim=8)
    single, joint = [], []
    for module in network.modules():
        if isinstance(module, SameConv2d):
            types = single if module.groups > 1 else joint
            module.register_forward_hook(lambda module, inputs, output, types=types: types.append(output.dtype))
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    step = Step(
        network,
        images,
        torch.tensor([0, 0, 1, 1]),
        objective=Triplet(),
        autocast=torch.bfloat16,
    )
    step.z.sum().backward()
    assert set(single) == {torch.float32}
    assert set(joint) == {torch.bfloat16}
    assert len(single) == 16
    assert all(bool(torch.isfinite(weight.grad).all()) for weight in network.backbone.parameters())


@pytest.mark.parametrize("name", ["E-FT", "E-LwF", "E-EWC", "LwM", "E-MAS"])
def test_two_tasks_train(start, small_digits, name):
    """A network of the same kind comes out, in float32, and again the same."""
    method = get_method(name)
    if method.objective.classifies:
        network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0)
        network.standardize.fit(small_digits.train.images)
        start = Trained(network.eval())
    states = []
    for _ in range(2):
        state = start
        for t, classes in enumerate(CLASSES, 1):
            state = run(state, small_digits.train.of_classes(classes), name, t)
        states.append(state)
    a, b = states
    assert all(v.dtype == torch.float32 for v in a.network.state_dict().values() if v.is_floating_point())
    assert same(a.network, b.network)
    assert all(torch.equal(x[k], y[k]) for x, y in zip(a.penalty_state, b.penalty_state, strict=True) for k in x)
    assert not torch.equal(a.network.backbone.layers[0].weight, start.network.backbone.layers[0].weight)


def test_it_learns_what_float32_learns(start, small_digits):
    losses = [
        [epoch["loss"] for epoch in run(start, small_digits.train, training=Training(epochs=4, precision=p)).history]
        for p in ("float32", "bfloat16")
    ]
    assert losses[1][-1] < 0.8 * losses[1][0]
    assert losses[1] == pytest.approx(losses[0], rel=0.15)
    assert losses[1] != losses[0]


class Notebook:
    """A checkpoint in memory that keeps what a file would: plain layout, nothing shared."""

    saved = None

    def load(self):
        return self.saved

    def save(self, data, tensors):
        copied = {f: {k: v.detach().contiguous().clone() for k, v in named.items()} for f, named in tensors.items()}
        self.saved = ({**data, "history": list(data["history"])}, copied)


@pytest.mark.parametrize("name", ["E-LwF", "E-EWC"])
def test_an_interrupted_training_goes_on_to_the_same_bits(start, small_digits, name):
    def stop(progress):
        raise KeyboardInterrupt

    first = run(start, small_digits.train.of_classes(CLASSES[0]), name)
    new = small_digits.train.of_classes(CLASSES[1])
    common = {"task": 2, "method": get_method(name), "training": HALF, "augment": None, "seed": 0}
    whole = train_network(first, new, **common)
    notebook = Notebook()
    with pytest.raises(KeyboardInterrupt):
        train_network(first, new, **common, on_progress=stop, checkpoint=notebook)
    assert notebook.saved is not None
    resumed = train_network(first, new, **common, checkpoint=notebook)
    assert same(resumed.network, whole.network)
    assert resumed.history == whole.history


def test_stages_in_bfloat16_are_others_than_those_in_float32(small_digits, tmp_path):
    assert decode(encode(HALF)) == HALF
    assert decode(encode(Training())).precision == "float32"
    stream = TaskStream(small_digits, classes=CLASSES)
    method = get_method("E-FT+SDC")

    def tree(precision, warm="float32"):
        training = Training(epochs=1, batch_size=16, precision=precision)
        warmup = Warmup(Training(epochs=1, batch_size=16, epoch="shuffled", precision=warm))
        network = Network(embedding_dim=8)
        return Tree(stream, network=network, training=training, warmup=warmup, store=Store(tmp_path))

    single, half, warm = tree("float32"), tree("bfloat16"), tree("float32", "bfloat16")
    results = [t.run({"it": method})["it"] for t in (single, half, warm)]
    assert half.computed == {"train": 2, "embed": 2, "readout": 2}
    assert warm.computed["warm"] == 1
    assert not same(single.trained(method, 1).network, half.trained(method, 1).network)
    assert all(result.prototypes[-1].means.dtype == torch.float32 for result in results)
    again = tree("bfloat16")
    again.run({"it": method})
    assert not again.computed


def test_it_can_be_set_by_name():
    recipe = get_recipe("cifar100-eleven")
    changed = with_settings(recipe, {"training.precision": "bfloat16", "warmup.training.precision": "bfloat16"})
    assert changed.training.precision == changed.warmup.training.precision == "bfloat16"
    assert changed.warmup.training.epochs == recipe.warmup.training.epochs
    with pytest.raises(InputError, match="Did you mean 'bfloat16'"):
        Training(precision="bfloat")
