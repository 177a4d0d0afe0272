"""AdaGauss's adapter: a small network from old to new embeddings, through which whole Gaussians go (NeurIPS 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ...common.config import number, whole
from ...common.covariance import Covariance
from ...common.geometry import Spectrum, subspace
from ...common.seeding import generator
from ..base import Drift, FittedDrift, check_pairs, check_prototypes
from .folds import nearest


@dataclass(frozen=True)
class AdaGauss(Drift):
    """An adapter g: z_old -> z_new is trained on the current images; N(p, Sigma) is pushed through it by samples.

        g(x) = x + W2 gelu(W1 x),  min mean |g(m_i) - z_i|^2;   p, Sigma -> mean and covariance of g(x), x ~ N(p, Sigma)

    Samples start from the same normal numbers for every class. Without covariances p -> g(p). The adapter works
    in the directions that old and new embeddings span. It starts as the identity (W2 = 0), a departure: the original
    starts from random weights and forgets what it was not shown.

    Args:
        hidden: width of its one hidden layer.
        epochs, learning_rate, batch_size, weight_decay: of AdamW with a cosine schedule.
        samples: of each class.
        seed: of weights, batches and samples.
    """

    hidden: int = 128
    epochs: int = 30
    learning_rate: float = 1e-3
    batch_size: int = 64
    weight_decay: float = 1e-2
    samples: int = 10_000
    seed: int = 0
    rules: ClassVar = {
        "hidden": whole(1),
        "epochs": whole(1),
        "learning_rate": number(above=0),
        "batch_size": whole(1),
        "weight_decay": number(0),
        "samples": whole(2),
        "seed": whole(0),
    }

    @property
    def keeps(self) -> Covariance | None:
        """A full covariance of every class."""
        return Covariance()

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedAdaGauss:
        """Train the adapter."""
        check_pairs(z_old, z_new)
        mean, basis = subspace(torch.cat([z_old, z_new]))
        x, y = (z_old.double() - mean) @ basis, (z_new.double() - mean) @ basis
        scale = float(x.square().sum(dim=1).mean().sqrt().clamp(min=1e-12))
        layers = self._trained((x / scale).float(), (y / scale).float())
        return FittedAdaGauss(self, mean, basis, scale, layers, z_old)

    def _trained(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        draw = generator(self.seed, "adapter")
        size = x.shape[1]
        shapes = ((self.hidden, size), (self.hidden,), (size, self.hidden), (size,))
        layers = [torch.zeros(shape) for shape in shapes]
        layers[0].normal_(generator=draw).mul_(max(size, 1) ** -0.5)
        for layer in layers:
            layer.requires_grad_(True)
        optimizer = torch.optim.AdamW(layers, lr=self.learning_rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        with torch.enable_grad():
            for _ in range(self.epochs):
                for part in torch.randperm(len(x), generator=draw).split(self.batch_size):
                    loss = (_adapt(x[part], layers) - y[part]).square().sum(dim=1).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                schedule.step()
        return tuple(layer.detach() for layer in layers)


def _adapt(x: torch.Tensor, layers: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> torch.Tensor:
    return x + F.linear(F.gelu(F.linear(x, layers[0], layers[1])), layers[2], layers[3])


@dataclass(frozen=True)
class FittedAdaGauss(FittedDrift):
    """A trained adapter, in coordinates of the subspace over `scale`."""

    config: AdaGauss
    mean: torch.Tensor
    basis: torch.Tensor
    scale: float
    layers: tuple[torch.Tensor, ...]
    z_old: torch.Tensor

    def adapt(self, x: torch.Tensor) -> torch.Tensor:
        """Return g(x), (N, D) -> (N, D) in float64; what lies beyond the subspace stays."""
        inside = (x.double() - self.mean) @ self.basis
        moved = _adapt((inside / self.scale).float(), self.layers).double() * self.scale
        return x.double() + (moved - inside) @ self.basis.T

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return g(p), and the `distance` to the nearest image the adapter has seen."""
        check_prototypes(prototypes, len(self.mean))
        distance = nearest(prototypes, self.z_old)
        return self.adapt(prototypes).to(prototypes.dtype), {"distance": distance.to(prototypes.dtype)}

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and covariance of g(x), x ~ N(p, Sigma).

        g(x) = x + V h + c with h = gelu(W1 u), and h depends on x only through u = B'(x - mean), so only u is sampled:
        u = u_p + A w, w standard normal, A A' = B' Sigma B. With L = E[w h'], K = Cov(x, w) = Sigma B A'^+ and C_e the
        covariance of h - w L,

            p -> p + V E[h] + c,   Sigma -> Sigma - K K' + (K + V L')(K + V L')' + V C_e V'

        E[h], L and C_e are over samples, as wide as the hidden layer and not as the embedding. What is linear in h is
        exact, and the result is positive semidefinite.
        """
        draw = generator(self.config.seed, "adapter samples")
        white = _white(torch.randn(self.config.samples, self.basis.shape[1], generator=draw, dtype=torch.float64))
        into, bias, out, constant = (layer.double() for layer in self.layers)
        into, out = into / self.scale, self.scale * self.basis @ out
        means, moved = prototypes.double() + self.scale * self.basis @ constant, covariances.clone()
        for row, (p, sigma) in enumerate(zip(prototypes.double(), covariances.double(), strict=True)):
            across = sigma @ self.basis
            spread = Spectrum.of(self.basis.T @ across)
            roots = spread.values.sqrt()
            w = white[:, : len(roots)]
            center = into @ ((p - self.mean) @ self.basis) + bias
            h = F.gelu((center + w @ (into @ (spread.vectors * roots)).T).float()).double()
            average = h.mean(dim=0)
            linear = w.T @ h.sub_(average) / len(w)
            rest = h.addmm_(w, linear, alpha=-1)
            before = across @ (spread.vectors / roots)
            after = before + out @ linear.T
            means[row] += out @ average
            pushed = sigma - before @ before.T + after @ after.T
            moved[row] = (pushed + out @ (rest.T @ rest / len(w)) @ out.T).to(moved.dtype)
        return means.to(prototypes.dtype), moved


def _white(noise: torch.Tensor) -> torch.Tensor:
    """Return (S, r) samples whose mean is 0 and whose covariance is exactly I, if there are enough of them.

    So are their first columns by themselves: a triangular factor mixes a column with earlier ones only.
    """
    centered = noise - noise.mean(dim=0)
    if len(noise) <= noise.shape[1]:
        return centered
    factor, _ = torch.linalg.cholesky_ex(centered.T @ centered / len(noise))
    white: torch.Tensor = torch.linalg.solve_triangular(factor, centered.T, upper=False).T
    return white
