"""Single-image Fisher information of classifiers, all images of a batch together: the loop's values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protodrift.networks import build_embedder
from protodrift.objectives import CosineHeads, SigmoidHeads, Softmax
from protodrift.penalties import EWC
from protodrift.penalties.base import IMPORTANCE_BATCH
from protodrift.penalties.ewc import single_fisher
from protodrift.training.context import TaskContext


@pytest.mark.parametrize("objective", [Softmax(), Softmax(over="all", smoothing=0.1), SigmoidHeads(), CosineHeads()])
@pytest.mark.parametrize("elements", [2**26, 1])  # all images of a batch in one call, or one in a call
def test_the_fisher_information_is_that_of_a_loop_over_images(small_digits, monkeypatch, objective, elements):
    monkeypatch.setattr("protodrift.penalties.gradients._CHUNK_ELEMENTS", elements)
    network = build_embedder("convnet", small_digits.spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(small_digits.train.images)
    for classes in (3, 4):
        objective.grow(network, classes)
    network.eval()
    new = small_digits.train.of_classes([0, 1, 2, 3]).at(torch.arange(30))
    rows = torch.tensor(new.labels) + 3
    context = TaskContext(network, objective, new.images, rows, 2, 0)
    fisher = EWC(fisher="single").importance(context)

    names, weights = zip(*network.named_parameters(), strict=True)
    expected, count = [torch.zeros_like(weight).double() for weight in weights], 0
    for step in context.steps():
        for i in range(len(step.targets)):
            one = type(step)(
                network,
                step.images[i : i + 1],
                step.targets[i : i + 1],
                objective=objective,
            )
            gradients = torch.autograd.grad(objective.single_losses(one)[0], weights, allow_unused=True)
            count += 1
            for total, gradient in zip(expected, gradients, strict=True):
                total += 0 if gradient is None else gradient.double().square()
    for name, total in zip(names, expected, strict=True):
        assert torch.allclose(fisher[name].double(), total / count / IMPORTANCE_BATCH, rtol=1e-4, atol=1e-10), name
        assert fisher[name].is_contiguous()
    assert any(bool(value.any()) for value in fisher.values())


class Looks(nn.Module):
    """A backbone that looks at its values, which torch.func cannot do for many images together."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, x):
        out = self.layer(x.flatten(1))
        return out if float(out.detach().abs().max()) < 1e9 else out * 0


def test_a_module_that_cannot_be_vectorized_goes_the_long_way(small_digits):
    module, objective = Looks(), Softmax()
    network = build_embedder(module, small_digits.spec, embedding_dim=None, normalize=False)
    network.standardize.fit(small_digits.train.images)
    objective.grow(network, 10)
    new = small_digits.train.at(torch.arange(20))
    context = TaskContext(network.eval(), objective, new.images, torch.tensor(new.labels), 1, 0)
    with pytest.raises(RuntimeError):
        single_fisher(context)
    fisher = EWC(fisher="single").importance(context)
    assert bool(fisher["backbone.layer.weight"].any())
