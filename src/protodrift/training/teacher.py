"""The old network as penalties ask it where `Schedule.batch_norm` is "adapted" (Teacher Adaptation)."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import nn

from ..networks.embedder import Embedder, laid_out


@torch.no_grad()
def adapted(network: Embedder, batches: Iterable[torch.Tensor]) -> Embedder:
    """Return a copy whose batch norms have the statistics of these images; weights stay, and so does the network.

    One pass: mean and variance of each layer are averages over the batches, each seen through the layers before with
    their own batch's statistics, as in training.

    Args:
        network: F^{t-1}.
        batches: (n, ...) views of the new task's images, two or more in each, in random order: a batch of one class has
            the variance of that class.
    """
    result = copy.deepcopy(network).eval()
    norms = [module for module in result.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    rates = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
        norm.train()
    device = next(result.parameters()).device
    for images in batches if norms else ():
        result.features(laid_out(images, device))
    for norm, rate in zip(norms, rates, strict=True):
        norm.momentum = rate
    return result.eval()
