"""Attention distillation: the network must go on looking where the old one looked (Dhar et al., CVPR 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..common.config import number
from ..errors import InputError
from .base import Context, Penalty, Step, Tensors


def grad_cam(maps: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Return where each image's score comes from, Q = ReLU(sum_k alpha_k A_k), with gradient.

    alpha_k is the mean over positions of the gradient of the image's score with respect to its k-th map A_k.

    Args:
        maps: (N, C, h, w) feature maps A, from which `scores` were computed, each image's from its own maps.
        scores: (N, K) outputs before the softmax.
        classes: (N,) the class to explain for each image.

    Returns:
        Q, (N, h, w).
    """
    chosen = scores.gather(1, classes[:, None]).sum()
    (gradient,) = torch.autograd.grad(chosen, maps, create_graph=True)
    alpha = gradient.mean(dim=(2, 3), keepdim=True)
    return (alpha * maps).sum(dim=1).relu()


def attention_loss(q: torch.Tensor, q_old: torch.Tensor) -> torch.Tensor:
    """Return L_AD = mean_i sum_j | Q_ij / ||Q_i|| - Q_ij^{t-1} / ||Q_i^{t-1}|| |, (N, h, w), (N, h, w) -> scalar.

    A map of zeros stays one.

    >>> attention_loss(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 0.0]]]))
    tensor(1.2000)
    """
    difference = F.normalize(q.flatten(1), dim=1) - F.normalize(q_old.flatten(1), dim=1)
    return difference.abs().sum(dim=1).mean()


@dataclass(frozen=True)
class Attention(Penalty):
    """L_AD of Learning without Memorizing; LwM = (LwF(), Attention()): L = L_C + L_D + gamma L_AD.

    For every image the old class b that the old network scores highest is explained by both networks with a Grad-CAM
    map Q (see `grad_cam`). With the maps as vectors of h * w positions j and ||.|| the L2 norm (their Eq. 5),
    L_AD = mean over images of sum_j | Q_j / ||Q|| - Q_j^{t-1} / ||Q^{t-1}|| |.

    It needs an objective with heads, whose class scores it explains, and a backbone with feature maps.

    Args:
        gamma: trade-off; chosen on validation data of the digits, whose maps are only 2 x 2: 0.01 to 0.1 is as good as
            LwF alone, more is worse. Known ports take 1 (FACIL) and 0.1 (PyCIL).
    """

    gamma: float = 0.1
    rules: ClassVar = {"gamma": number(0)}
    needs_maps: ClassVar[bool] = True

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Check that there are scores to explain and maps to explain them with."""
        if not context.classifies:
            raise InputError(
                "Attention (LwM) explains the scores of old classes, and an embedding has none. Use it with an "
                "objective that classifies, such as Softmax(), or hold embeddings with LwF()."
            )
        device = next(context.network.parameters()).device
        _ = context.step(context.images[:1].to(device), context.targets[:1]).feature_maps
        return {}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return L_AD of the batch."""
        top = torch.cat(step.logits_old, dim=1).argmax(dim=1)  # (N,)
        with torch.no_grad():
            maps_old = step.old.feature_maps
        with torch.enable_grad():  # with respect to the old maps only: nothing before them, and no weight
            maps_old = maps_old.detach().requires_grad_()
            q_old = grad_cam(maps_old, step.old.scores_of_maps(maps_old), top).detach()
        scores = torch.cat(step.logits[: len(step.logits_old)], dim=1)
        return attention_loss(grad_cam(step.feature_maps, scores, top), q_old)
