"""Mean squared and mean absolute gradients: what importances are made of.

`reduce` sums over processes that have some of the images each (`base.Reduce`); without it one process has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from .base import Reduce, Tensors, trainable

_CHUNK_ELEMENTS = 2**26  # per-image gradients held at once: 256 MB of float32


def mean_squared_gradients(network: nn.Module, losses: Iterable[torch.Tensor], reduce: Reduce | None = None) -> Tensors:
    """Return the mean over scalar `losses` of (d loss / d theta)^2, for each trainable weight by name, on the CPU."""
    named = trainable(network)
    names, weights = list(named), list(named.values())
    sums = [torch.zeros_like(weight) for weight in weights]
    count = 0
    for loss in losses:
        count += 1
        if not loss.requires_grad or not weights:  # no valid triplet in this batch: its gradient is zero
            continue
        gradients = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += gradient.square()
    return _means(dict(zip(names, sums, strict=True)), count, reduce)


def image_gradients(
    network: nn.Module,
    function: Callable[..., torch.Tensor],
    batches: Iterable[tuple[torch.Tensor, ...]],
    measure: Callable[[torch.Tensor], torch.Tensor],
    reduce: Reduce | None = None,
) -> Tensors:
    """Return mean_i measure(d f(x_i) / d theta) over single images, for each trainable weight by name, on the CPU.

    The gradients of a chunk of images are one vectorized call. In a loop, each would go back through its whole batch.

    Args:
        network: its weights are differentiated by.
        function: f, which calls `network`: batches of one image each -> scalar. It may depend on that image only.
        batches: tuples of tensors of the same length; what f takes.
        measure: element by element, such as `torch.square`.
        reduce: see above.

    Raises:
        RuntimeError: if torch.func cannot vectorize f.
    """
    weights = {name: weight.detach() for name, weight in trainable(network).items()}
    if not weights:
        return {}
    buffers = dict(network.named_buffers())
    device = next(iter(weights.values())).device
    whole = _Function(network, function)

    def value(weights: Tensors, *inputs: torch.Tensor) -> torch.Tensor:
        named = {f"network.{name}": tensor for name, tensor in {**weights, **buffers}.items()}
        result: torch.Tensor = functional_call(whole, named, tuple(part[None] for part in inputs))
        return result

    chunk = max(1, min(64, _CHUNK_ELEMENTS // sum(weight.numel() for weight in weights.values())))
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count = 0
    for batch in batches:
        if not len(batch[0]):
            continue
        count += len(batch[0])
        per_image = vmap(grad(value), in_dims=(None, *[0] * len(batch)), randomness="different")
        for parts in zip(*(part.split(chunk) for part in batch), strict=True):
            for name, gradients in per_image(weights, *(part.to(device) for part in parts)).items():
                sums[name] += measure(gradients).sum(dim=0)
    return _means(sums, count, reduce)


class _Function(nn.Module):
    """Gives `functional_call` a function of a network as a forward."""

    def __init__(self, network: nn.Module, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.network = network
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def _means(sums: Tensors, count: int, reduce: Reduce | None) -> Tensors:
    """Return sums / count, both over all processes; in plain layout, which decides the last bits of a later sum."""
    totals = {"": torch.tensor([count]), **sums}  # no weight is called ""
    if reduce is not None:
        totals = reduce(totals)
    number = max(int(totals.pop("")), 1)
    return {name: (total / number).cpu().contiguous() for name, total in totals.items()}
