"""What the cases compute on: generated images, and networks whose batch norms have seen them."""

from __future__ import annotations

import torch

from protodrift.data.arrays import InputSpec
from protodrift.data.examples import Examples
from protodrift.networks.build import build_embedder
from protodrift.networks.embedder import Embedder


def pictures(classes: int, each: int, side: int, *, noise: float = 40, seed: int = 0) -> Examples:
    """Return seeded images, (classes * each, 3, side, side) uint8: a coarse pattern for each class, and noise."""
    draw = torch.Generator().manual_seed(1 + seed)
    coarse = torch.rand(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    patterns = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    rows = torch.arange(classes).repeat(each)
    grain = torch.randn(len(rows), 3, side, side, generator=draw)
    images = (255 * patterns[rows] + noise * grain).clamp(0, 255).to(torch.uint8)
    return Examples(images, tuple(rows.tolist()))


def network_for(backbone: str, images: torch.Tensor, *, embedding_dim: int | None = 512, seed: int = 0) -> Embedder:
    """Return a network with the pixel statistics of images, and batch norms that have seen some of them."""
    spec = InputSpec(tuple(images.shape[1:]), "uint8", 0.0, 255.0)
    network = build_embedder(backbone, spec, embedding_dim=embedding_dim, seed=seed)
    network.standardize.fit(images)
    with torch.no_grad():
        network.train()
        for part in images[:64].split(32):
            network(part)
    return network.eval()
