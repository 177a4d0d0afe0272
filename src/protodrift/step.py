"""What objectives and penalties see of one training step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .networks.embedder import Embedder


class Step:
    """One batch on its way through the network. Everything is computed when first asked for, and once.

    Args:
        network: the network in training, F^t.
        network_old: the frozen network of the task before, F^{t-1}; None in the first task.
        images: (N, ...) the batch, as the network takes it (after augmentation).
        rows: (N,) class index of each image.
        generator: for objectives that draw triplets by chance.
    """

    def __init__(
        self,
        network: Embedder,
        images: torch.Tensor,
        rows: torch.Tensor,
        *,
        generator: torch.Generator,
        network_old: Embedder | None = None,
    ) -> None:
        self.network = network
        self.network_old = network_old
        self.images = images
        self.rows = rows
        self.generator = generator

    @cached_property
    def features(self) -> torch.Tensor:
        """Pooled features of the backbone, (N, features)."""
        return self.network.features(self.images)

    @cached_property
    def raw(self) -> torch.Tensor:
        """Embeddings before normalisation, (N, D)."""
        out: torch.Tensor = self.network.head(self.features)
        return out

    @cached_property
    def z(self) -> torch.Tensor:
        """Embeddings z^t of the batch, (N, D)."""
        return self.network.finish(self.raw)

    @cached_property
    def z_old(self) -> torch.Tensor:
        """Embeddings z^{t-1} of the same views through the frozen old network, (N, D); no gradient."""
        if self.network_old is None:
            raise RuntimeError("the first task has no old network")
        with torch.no_grad():
            out: torch.Tensor = self.network_old(self.images)
        return out
