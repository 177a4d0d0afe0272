"""E-MAS: hold each weight in proportion to how sensitive the embedding is to it (Eq. 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.func import functional_call, grad, vmap

from .. import distributed
from ..common.config import number, one_of
from .base import Importance, TaskContext, Tensors, squared_gradients

if TYPE_CHECKING:
    from ..networks.embedder import Embedder
    from ..objectives import Objective

_CHUNK_ELEMENTS = 2**26  # per-image gradients held at once: 256 MB of float32


@dataclass(frozen=True)
class MAS(Importance):
    """Memory aware synapses, Eq. 6: L_MAS = sum_p 1/2 Omega_p (theta_p^t - theta_p^{t-1})^2.

    Omega is measured on the embedding *before* its L2 normalization: the length of a normalized embedding is constant,
    its gradient zero, and E-MAS would silently be E-FT.

    Args:
        gamma: trade-off; 1e6 in the paper (Sec. 5).
        reading: "paper": mean over images of | d ||F(x)||^2 / d theta_p |, summed over the tasks; "released": mean over
            batches of the squared gradient of the batch's summed ||F(x)||, the last task's only.
    """

    gamma: float = 1e6
    reading: str = "paper"
    rules: ClassVar = {"gamma": number(0), "reading": one_of("paper", "released")}

    @property
    def accumulate(self) -> bool:
        """The paper accumulates, the released code replaces."""
        return self.reading == "paper"

    def importance(self, context: TaskContext) -> Tensors:
        """Return Omega_p."""
        if self.reading == "released":
            outputs = (context.objective.output(context.network, step.images) for step in context.steps())
            norms = (torch.linalg.vector_norm(output, dim=1).sum() for output in outputs)
            return squared_gradients(context.network, norms)
        return _mean_absolute_gradients(context)


def _mean_absolute_gradients(context: TaskContext) -> Tensors:
    """Return mean_i | d ||F(x_i)||^2 / d theta |, all gradients of a chunk of images in one vectorized call."""
    network = context.network
    device = next(network.parameters()).device
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    buffers = dict(network.named_buffers())
    function = _Output(network, context.objective)

    def squared_norm(weights: Tensors, image: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = functional_call(function, _prefixed(weights, buffers), (image[None],))
        return output.square().sum()

    per_image = vmap(grad(squared_norm), in_dims=(None, 0), randomness="different")
    chunk = max(1, min(64, _CHUNK_ELEMENTS // sum(weight.numel() for weight in weights.values())))
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    world = distributed.current()
    for part in context.images[world.own(len(context.images))].split(chunk):
        for name, gradients in per_image(weights, part.to(device)).items():
            sums[name] += gradients.abs().sum(dim=0)
    world.sum(list(sums.values()), "importances")
    return {name: (total / len(context.images)).cpu().contiguous() for name, total in sums.items()}


class _Output(torch.nn.Module):
    """Gives `functional_call` the objective's output as a forward."""

    def __init__(self, network: Embedder, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.objective.output(self.network, images)


def _prefixed(weights: Tensors, buffers: Tensors) -> Tensors:
    return {f"network.{name}": value for name, value in {**weights, **buffers}.items()}
