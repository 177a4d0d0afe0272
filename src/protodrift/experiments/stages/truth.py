"""What the oracle knows beside the true means: the second moments of old classes by the network now."""

from __future__ import annotations

import torch

from ...common.covariance import class_covariances
from ...common.scatter import ScatterSums
from ...methods import Method
from ...networks.embedder import Embedder, embed
from ..setup import Setup


def true_moments(
    setup: Setup, method: Method, task: int, network: Embedder, *, each: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the covariances of the classes of all tasks before t, (K, D, D), or None, and their scatter, or None.

    Measured on all their training images, in the read-out's space.

    Args:
        setup, method, task: of the experiment.
        network: after the task.
        each: whether a covariance of every class is wanted, or one scatter of all.
    """
    covariances: list[torch.Tensor] = []
    scatter: torch.Tensor | None = None
    for past in range(1, task):
        data, classes = setup.data(past), setup.stream.task_classes[past - 1]
        z, targets = method.readout.space(embed(network, data.images)), data.targets_of(classes)
        if each:
            covariances.append(class_covariances(z, targets, len(classes)))
        else:
            scatter = ScatterSums.of(z, targets, len(classes), scatter).scatter
    return torch.cat(covariances) if each else None, scatter
