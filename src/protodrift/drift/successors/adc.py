"""Adversarial drift compensation (ADC, CVPR 2024): current images are bent until the old network takes them for an old
class; how those move stands for how the class moves. It needs images and both networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...common.config import PRECISIONS, number, one_of, optional, whole
from ...common.geometry import squared_distances
from ...errors import InputError
from ..base import Drift, FittedDrift, Network, check_prototypes
from .gate import an_estimator


@dataclass(frozen=True)
class Probes:
    """Pairs of embeddings of bent images, for any estimator.

    Attributes:
        z_old, z_new: (M, D) through the network before and after the task.
        owner: (M,) the prototype (row) for which each image was bent.
    """

    z_old: torch.Tensor
    z_new: torch.Tensor
    owner: torch.Tensor


def adversarial_pairs(
    network_old: Network,
    network_new: Network,
    images: torch.Tensor,
    prototypes: torch.Tensor,
    *,
    candidates: int = 100,
    steps: int = 3,
    step_size: float = 25.0,
    precision: str = "float32",
) -> Probes:
    """Bend the images nearest to each prototype toward it, and return those that the old network takes for its class.

        x <- x - step_size * gradient of |f_old(x) - p|^2, `steps` times, from the `candidates` nearest images.

    An image counts as bent if p is then its nearest prototype. Networks are used as they are: put them in eval mode.

    Args:
        network_old, network_new: f before and after the task.
        images: (N, ...) the current images, as the networks take them; integers are made float.
        prototypes: (K, D) in the space of the old network.
        candidates: images to try for each prototype.
        steps: gradient steps.
        step_size: of one step, for images of pixel variance 1; other scales are allowed for.
        precision: "float32", or "bfloat16" for the gradients alone (autocast): they say only which way to bend. What
            the networks make of the bent images is measured in float32 in either case.
    """
    images = images.float()
    step_size *= float(images.var(correction=0)) or 1.0  # networks here take raw pixels and standardize themselves
    with torch.no_grad():
        seen = torch.cat([network_old(part) for part in images.split(256)])
    z_all, device = seen.cpu(), seen.device
    check_prototypes(prototypes, z_all.shape[1])
    nearest = (
        squared_distances(prototypes.double(), z_all.double()).topk(min(candidates, len(images)), largest=False).indices
    )
    chosen, owner = nearest.flatten(), torch.arange(len(prototypes)).repeat_interleave(nearest.shape[1])
    found: list[tuple[torch.Tensor, ...]] = [(z_all[:0], z_all[:0], owner[:0])]
    for rows in torch.arange(len(chosen)).split(_BATCH):
        x, row = images[chosen[rows]].to(device), owner[rows]
        target = prototypes[row].to(x)
        for _ in range(steps):
            x.requires_grad_(True)
            with torch.enable_grad():
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                    z = network_old(x)
                loss = (z.to(x) - target).square().sum()  # a sum: each image has the gradient of its own term
            x = (x - step_size * torch.autograd.grad(loss, x)[0]).detach()
        with torch.no_grad():
            z_old, z_new = network_old(x).cpu(), network_new(x).cpu()
        bent = squared_distances(prototypes.double(), z_old.double()).argmin(dim=0) == row
        found.append((z_old[bent], z_new[bent], row[bent]))
    return Probes(*(torch.cat(part) for part in zip(*found, strict=True)))


_BATCH = 64  # images bent at a time: enough for the convolutions, and few enough for the processor's cache


@dataclass(frozen=True)
class ADC(Drift):
    """p -> p + mean(f_new(x) - f_old(x)) over the images that were bent to p's class; without any, p stays.

    Args:
        candidates, steps, step_size, precision: as for `adversarial_pairs`.
        estimator: an estimator to be fitted on all bent pairs instead of averaging each prototype's own.
    """

    needs_networks: ClassVar[bool] = True

    candidates: int = 100
    steps: int = 3
    step_size: float = 25.0
    estimator: Drift | None = None
    precision: str = "float32"
    rules: ClassVar = {
        "candidates": whole(1),
        "steps": whole(1),
        "step_size": number(above=0),
        "estimator": optional(an_estimator),
        "precision": one_of(*PRECISIONS),
    }

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedDrift:
        """Refuse: embeddings alone cannot be bent."""
        raise InputError("ADC bends images: it needs them and both networks. Use ADC().probe(f_old, f_new, images, p).")

    def probe(
        self, network_old: Network, network_new: Network, images: torch.Tensor, prototypes: torch.Tensor
    ) -> FittedDrift:
        """Bend the current images toward the prototypes, and fit on what comes out."""
        probes = adversarial_pairs(
            network_old,
            network_new,
            images,
            prototypes,
            candidates=self.candidates,
            steps=self.steps,
            step_size=self.step_size,
            precision=self.precision,
        )
        if self.estimator is not None and len(probes.owner):
            return self.estimator.fit(probes.z_old, probes.z_new, probes.owner)
        return FittedADC(probes, len(prototypes))


@dataclass(frozen=True)
class FittedADC(FittedDrift):
    """Bent pairs; it knows only the prototypes they were bent for."""

    probes: Probes
    count: int

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return p + the mean drift of its own pairs, and `effective_samples`: how many there are."""
        if len(prototypes) != self.count:
            raise ValueError(f"images were bent for {self.count} prototypes, not for {len(prototypes)}")
        delta = (self.probes.z_new - self.probes.z_old).double()
        sums = torch.zeros(prototypes.shape, dtype=torch.float64).index_add_(0, self.probes.owner, delta)
        counts = torch.bincount(self.probes.owner, minlength=self.count)
        moved = prototypes.double() + sums / counts.clamp(min=1)[:, None]
        return moved.to(prototypes.dtype), {"effective_samples": counts.to(prototypes.dtype)}
