"""EFC's penalty: hold features, most in the directions that matter for the heads (Magistri et al., ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..common.config import number
from ..errors import InputError
from .base import Context, Penalty, Step, Tensors

_BLOCK = 256  # images measured at once


def empirical_feature_matrix(logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return E = mean_i W'(diag(p_i) - p_i p_i')W, p_i = softmax(logits_i), (N, K), (K, D) -> (D, D).

    It is the expected outer product of d log p(c | z) / dz over the classes c that the heads expect.

    >>> empirical_feature_matrix(torch.zeros(3, 2), torch.tensor([[1.0], [-1.0]]))
    tensor([[1.]])
    """
    p = logits.softmax(dim=1)
    return weight.T @ (torch.diag(p.mean(dim=0)) - p.T @ p / len(p)) @ weight


def elastic_loss(z: torch.Tensor, z_old: torch.Tensor, matrix: torch.Tensor, damping: float) -> torch.Tensor:
    """Return mean_i (z_i - z_i^{t-1}) (E + damping I) (z_i - z_i^{t-1})', (N, D), (N, D), (D, D) -> scalar.

    >>> elastic_loss(torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2), torch.diag(torch.tensor([2.0, 0.0])), 0.5)
    tensor(23.)
    """
    difference = z - z_old
    return ((difference @ matrix) * difference).sum(dim=1).mean() + damping * difference.square().sum(dim=1).mean()


@dataclass(frozen=True)
class ElasticFeatures(Penalty):
    """Hold features in the metric of the empirical feature matrix E of the last task's images, see `elastic_loss`.

    E says how strongly a movement of z changes the softmax over all heads; where it is small, features may move freely.
    It is measured anew after each task, on that task's images. EFC replays noisy prototypes beside it and re-balances
    its head, which this penalty does not.

    Args:
        gamma: trade-off; 10 in EFC's code.
        damping: of the identity, relative to gamma; EFC's 0.1 is 0.01 of its 10.
    """

    asks_old_network: ClassVar[bool] = True
    stores: ClassVar[str] = "a D x D matrix"
    gamma: float = 10.0
    damping: float = 0.01
    rules: ClassVar = {"gamma": number(0), "damping": number(0)}

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Return E, on the network's device."""
        if "E" not in penalty_state:
            raise InputError(
                "ElasticFeatures needs what it measured after the task before, but this model learned that one without "
                "it. Use this penalty from the first task on."
            )
        return {"E": penalty_state["E"].to(next(network.parameters()))}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_EFC of the batch."""
        return elastic_loss(step.z, step.z_old, state["E"], self.damping)

    @torch.no_grad()
    def end_task(self, context: Context, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Measure E on the task's images: its two sums over images merge over processes."""
        heads = [module for name, module in context.network.named_modules() if name.startswith("heads.")]
        weights = [head.weight for head in heads if isinstance(head, nn.Linear)]
        if not weights or len(weights) < len(heads):
            raise InputError(
                f"ElasticFeatures measures linear heads, and this network has {len(weights)} of them. Use "
                "objective=Softmax()."
            )
        weight = torch.cat(weights).double()
        sums = {
            "p": weight.new_zeros(len(weight)),
            "pp": weight.new_zeros(len(weight), len(weight)),
            "count": weight.new_zeros(1),
        }
        for images in context.share().split(_BLOCK):
            unused = context.targets[: len(images)]  # logits do not look at classes
            step = context.step(images.to(weight.device), unused)
            p = torch.cat(step.logits, dim=1).double().softmax(dim=1)
            sums["p"] += p.sum(dim=0)
            sums["pp"] += p.T @ p
            sums["count"] += len(p)
        sums = context.reduce(sums)
        spread = (torch.diag(sums["p"]) - sums["pp"]) / sums["count"]
        return {"E": (weight.T @ spread @ weight).float().cpu().contiguous()}
