"""Squared gradients of the losses of single images, without a pass over the network for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from .. import distributed
from ..training.step import Step
from .base import TaskContext, Tensors

if TYPE_CHECKING:
    from ..networks.embedder import Embedder
    from ..objectives import Objective

_CHUNK_ELEMENTS = 2**26  # per-image gradients held at once: 256 MB of float32


def mean_squared_gradients(context: TaskContext) -> Tensors:
    """Return mean_i (d l_i / d theta)^2 over the images of all importance batches, by name, on the CPU.

    For objectives in which an image's loss l_i depends on that image alone (those that classify): the gradients of a
    chunk of images are then one vectorized call. In a loop, each loss would go back through its whole batch.
    """
    network, objective = context.network, context.objective
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    buffers = dict(network.named_buffers())
    function = _Loss(network, objective)

    def loss(weights: Tensors, image: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        named = {f"network.{name}": value for name, value in {**weights, **buffers}.items()}
        value: torch.Tensor = functional_call(function, named, (image[None], row[None]))
        return value

    per_image = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    chunk = max(1, _CHUNK_ELEMENTS // sum(weight.numel() for weight in weights.values()))
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count = torch.zeros(1, dtype=torch.long)
    for step in context.steps():
        count += len(step.images)
        for images, targets in zip(step.images.split(chunk), step.targets.split(chunk), strict=True):
            for name, gradients in per_image(weights, images, targets).items():
                sums[name] += gradients.square().sum(dim=0)
    world = distributed.current()
    if not world.alone:
        world.sum([count], "importances")
        world.sum(list(sums.values()), "importances")
    return {name: (total / max(int(count), 1)).cpu().contiguous() for name, total in sums.items()}


class _Loss(nn.Module):
    """Gives `functional_call` the objective's loss of one image as a forward."""

    def __init__(self, network: Embedder, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, image: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        step = Step(self.network, image, row, objective=self.objective, generator=torch.Generator())
        return self.objective.single_losses(step).sum()
