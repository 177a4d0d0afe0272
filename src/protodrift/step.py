"""What objectives and penalties see of one training step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .networks.embedder import Embedder
    from .objectives.base import Objective


class Step:
    """One batch on its way through the network. Everything is computed when first asked for, and once.

    Args:
        network: the network in training, F^t.
        images: (N, ...) the batch, as the network takes it (after augmentation).
        rows: (N,) class of each image: its position among all classes seen so far, in task order.
        objective: what the network is trained for.
        generator: for objectives that draw triplets by chance.
        network_old: the frozen network of the task before, F^{t-1}; None in the first task.
    """

    def __init__(
        self,
        network: Embedder,
        images: torch.Tensor,
        rows: torch.Tensor,
        *,
        objective: Objective,
        generator: torch.Generator,
        network_old: Embedder | None = None,
    ) -> None:
        self.network = network
        self.images = images
        self.rows = rows
        self.objective = objective
        self.generator = generator
        self._network_old = network_old

    @property
    def network_old(self) -> Embedder:
        """The frozen network of the task before."""
        if self._network_old is None:
            raise RuntimeError("the first task has no old network")
        return self._network_old

    @cached_property
    def old(self) -> Step:
        """The same views through the frozen old network, without gradient."""
        with torch.no_grad():
            return Step(self.network_old, self.images, self.rows, objective=self.objective, generator=self.generator)

    @cached_property
    def feature_maps(self) -> torch.Tensor:
        """Maps of the backbone's last convolution, (N, C, h, w)."""
        return self.network.feature_maps(self.images)

    @cached_property
    def features(self) -> torch.Tensor:
        """Pooled features of the backbone, (N, features)."""
        # Through the maps where a backbone has them: a penalty that asks for them later does not pay a second pass.
        if all(callable(getattr(self.network.backbone, name, None)) for name in ("feature_maps", "from_maps")):
            return self.network.from_maps(self.feature_maps)
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
        with torch.no_grad():
            return self.old.z

    @cached_property
    def logits(self) -> list[torch.Tensor]:
        """The outputs of every classification head, (N, classes of its task) each."""
        return self.network.logits(self.z)

    @cached_property
    def logits_old(self) -> list[torch.Tensor]:
        """The outputs of the old network's heads; no gradient."""
        with torch.no_grad():
            return self.old.logits
