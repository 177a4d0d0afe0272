"""E-MAS: hold each weight in proportion to how sensitive the embedding is to it (Eq. 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from ..common.config import number, one_of
from .base import Context, Reduce, Tensors
from .gradients import image_gradients, mean_squared_gradients
from .importance import Importance


def mas_importance(
    network: nn.Module,
    images: torch.Tensor,
    output: Callable[[torch.Tensor], torch.Tensor] | None = None,
    reduce: Reduce | None = None,
) -> Tensors:
    """Return Omega_p = mean_i | d ||F(x_i)||^2 / d theta_p | (Eq. 6).

    Args:
        network: whose weights.
        images: (N, ...) inputs.
        output: F, which calls `network`: (1, ...) -> (1, outputs). None: the network itself.
        reduce: sums over processes that have some of the images each.

    Returns:
        Omega by name of the weight, in its shape, on the CPU.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(network.weight, -3.0)
    >>> mas_importance(network, torch.tensor([[1.0], [2.0]]))
    {'weight': tensor([[15.]])}
    """
    function = network if output is None else output
    return image_gradients(network, lambda image: function(image).square().sum(), [(images,)], torch.abs, reduce)


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
    reading: Literal["paper", "released"] = "paper"
    rules: ClassVar = {"gamma": number(0), "reading": one_of("paper", "released")}

    @property
    def accumulate(self) -> bool:
        """The paper accumulates, the released code replaces."""
        return self.reading == "paper"

    def importance(self, context: Context) -> Tensors:
        """Return Omega_p."""
        if self.reading == "released":
            norms = (torch.linalg.vector_norm(step.output, dim=1).sum() for step in context.steps())
            return mean_squared_gradients(context.network, norms, context.reduce)

        def output(image: torch.Tensor) -> torch.Tensor:
            return context.step(image, context.targets[:1]).output  # it depends on no class

        return mas_importance(context.network, context.share(), output, context.reduce)
