"""What moves stored statistics into a new embedding space, as those see it that keep them: a fitted drift estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Transport(Protocol):
    """A fitted drift estimator."""

    def explain(self, prototypes: torch.Tensor, /) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the moved prototypes, (K, D) -> (K, D), and named (K,) diagnostics."""
        ...

    def gaussians(self, prototypes: torch.Tensor, covariances: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return moved means and covariances, (K, D) and (K, D, D)."""
        ...

    def scatter(self, prototypes: torch.Tensor, counts: torch.Tensor, scatter: torch.Tensor, /) -> torch.Tensor:
        """Return the moved scatter of all images about their own class's mean, (D, D)."""
        ...
