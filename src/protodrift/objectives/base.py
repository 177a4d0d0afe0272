"""The interface of an objective."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from ..config import Config
from ..step import Step


@dataclass(frozen=True)
class Objective(Config):
    """What a batch is trained for. Configuration only; it may read anything of the `Step`."""

    @abstractmethod
    def loss(self, step: Step) -> torch.Tensor:
        """Return the batch's loss, a scalar with gradient."""

    @abstractmethod
    def anchor_losses(self, step: Step) -> torch.Tensor:
        """Return a loss for each anchor of the batch, (A,), for importances that need single losses."""
