"""The interface of a read-out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from ..config import Config


@dataclass(frozen=True)
class Readout(Config):
    """How an embedding gets its class. Configuration only."""

    @abstractmethod
    def scores(self, z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
        """Return (N, K) scores, larger is better; a class that must not win gets -inf."""

    def predict(self, z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
        """Return the row of the best class for each embedding, (N,)."""
        return self.scores(z, prototypes).argmax(dim=1)
