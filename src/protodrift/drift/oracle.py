"""The oracle: the true statistics now, computed from old images; for evaluation only.

It is an aid and not a ceiling: misplaced prototypes can score above true ones, as where a large first task crowds later
classes, and true means with covariances of another day below both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import Drift, FittedDrift, Known


@dataclass(frozen=True)
class Oracle(Drift):
    """Put every prototype where its class really is now, with the covariance that it really has, where one is kept.

    A learner without old images cannot; an experiment can.
    """

    evaluation_only: ClassVar[bool] = True

    def fit(self, z_old: torch.Tensor, z_new: torch.Tensor, targets: torch.Tensor | None = None) -> FittedDrift:
        """Refuse: pairs of current images do not hold the answer."""
        raise ValueError("the oracle needs the old classes' true means: use Oracle().knowing(true_means)")

    def knowing(
        self, true_means: torch.Tensor, covariances: torch.Tensor | None = None, scatter: torch.Tensor | None = None
    ) -> FittedDrift:
        """Return an estimator that answers with the true statistics of the old classes, in prototype order."""
        return Known(true_means, covariances=covariances, true_scatter=scatter)
