"""Feature distillation: hold the features of the current images, as they are or through a learned projector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import flag, number, one_of, optional, whole
from .base import Context, Penalty, Step, Tensors

Distance = Literal["squared", "mse", "norm"]


def feature_distance(z: torch.Tensor, z_old: torch.Tensor, distance: Distance = "squared") -> torch.Tensor:
    """Return how far features are from the old network's, (N, D), (N, D) -> scalar.

    Args:
        z, z_old: features of the same views by the new and the old network.
        distance: "squared": mean_i |z_i - z_i^{t-1}|^2; "mse": the mean over images and dimensions, 1 / D of that;
            "norm": the length of all differences together, sqrt(sum_i |z_i - z_i^{t-1}|^2).

    >>> z, z_old = torch.tensor([[3.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 4.0], [1.0, 0.0]])
    >>> [float(feature_distance(z, z_old, distance)) for distance in ("squared", "mse", "norm")]
    [12.5, 6.25, 5.0]
    """
    difference = z - z_old
    if distance == "norm":
        length: torch.Tensor = torch.linalg.vector_norm(difference)
        return length
    squares = difference.square()
    return squares.mean() if distance == "mse" else squares.sum(dim=1).mean()


def projected(z: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return D(z) = W_2 gelu(W_1 z + b_1) + b_2, (N, D) -> (N, D).

    Args:
        z: features.
        weights: "0.weight" (H, D), "0.bias" (H,), "1.weight" (D, H), "1.bias" (D,).
    """
    hidden = F.gelu(F.linear(z, weights["0.weight"], weights["0.bias"]))
    return F.linear(hidden, weights["1.weight"], weights["1.bias"])


@dataclass(frozen=True)
class FeatureDistillation(Penalty):
    """Hold z: L = distance(z_i^t, z_i^{t-1}), or through a learned projector D, L = distance(D(z_i^t), z_i^{t-1}).

    For objectives that classify z are the pooled features. Plain distillation holds the space itself; through a
    projector the old features only have to be readable from the new ones, and the space may turn and stretch
    (AdaGauss, Rypesc et al., NeurIPS 2024). The projector is trained along, by the same optimizer, and begins anew in
    each task.

    Args:
        gamma: trade-off; 10 in AdaGauss and PASS.
        distance: see `feature_distance`. AdaGauss: "mse"; PASS: "norm".
        projector: hidden units of D, an MLP with one hidden layer and GELU; None: no projector. AdaGauss: 32 D.
        unit: compare directions, z / |z|.
        first: hold the network that the first task starts from, too. A pretrained one knows more than the first task's
            images can teach it; of random weights there is nothing to hold.
    """

    asks_old_network: ClassVar[bool] = True
    gamma: float = 1.0
    distance: Distance = "squared"
    projector: int | None = None
    unit: bool = False
    first: bool = False
    rules: ClassVar = {
        "gamma": number(0),
        "distance": one_of("squared", "mse", "norm"),
        "projector": optional(whole(1)),
        "unit": flag,
        "first": flag,
    }

    @property
    def acts_first(self) -> bool:
        """As configured."""
        return self.first

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Return the projector's first weights, those of torch's linear layers."""
        if self.projector is None:
            return {}
        size: int = network.embedding_dim  # type: ignore[assignment]
        like = next(network.parameters())
        layers = [nn.Linear(size, self.projector), nn.Linear(self.projector, size)]
        return {
            f"{i}.{name}": weight.detach().to(like).requires_grad_()
            for i, layer in enumerate(layers)
            for name, weight in layer.named_parameters()
        }

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return the distance of the batch."""
        z, z_old = projected(step.z, state) if state else step.z, step.z_old
        if self.unit:
            z, z_old = F.normalize(z, dim=1), F.normalize(z_old, dim=1)
        return feature_distance(z, z_old, self.distance)
