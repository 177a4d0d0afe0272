"""Where the images of a task are: all here, or in pieces elsewhere.

What an estimator or a read-out needs of all images at once is asked of a pool: a sum, a least or k-th smallest value,
the farthest row.
Of images that are all in this process the answer is what was asked; `distributed.passes.OnRanks` asks all ranks. So the
same lines compute with images that lie in pieces, and no piece ever leaves its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..drift.base import Drift, FittedDrift


class Pool:
    """All images are here."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all pieces of values that each piece has, of one shape."""
        return values

    def least(self, values: torch.Tensor) -> torch.Tensor:
        """Return the least over all pieces, element by element; a piece without images gives inf."""
        return values

    def smallest(self, values: torch.Tensor, k: int) -> torch.Tensor:
        """Return the k-th smallest number of each row over all pieces, (R,): values (R, n) >= 0, float64, k >= 1.

        >>> Pool().smallest(torch.tensor([[3.0, 1.0, 2.0]]), 2)
        tensor([2.])
        """
        return values.kthvalue(k, dim=1).values

    def farthest(self, z: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return the row of z, (D,), whose value in (n,) is the largest over all pieces; some piece has a row."""
        return z[values.argmax()]

    def images(self, z: torch.Tensor) -> int:
        """Return how many images all pieces have."""
        return int(self.total(torch.tensor(len(z))))

    def fit(
        self, drift: Drift, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None
    ) -> FittedDrift:
        """Return an estimator fitted on the pairs of all pieces."""
        return drift.fit(z_old, z_new, labels)

    def counts(self, rows: torch.Tensor) -> torch.Tensor:
        """Return how many images of all pieces each class has, (K,), for rows (n,) of this piece; K follows from them.

        >>> Pool().counts(torch.tensor([0, 2, 2]))
        tensor([1, 0, 2])
        """
        top = rows.max() if len(rows) else torch.tensor(-1)
        most = -int(self.least(-top.double()))
        return self.total(torch.bincount(rows, minlength=most + 1))

    def means(self, z: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the class means over all pieces, (K, D) in float64: z (n, D), rows (n,), counts (K,) by `counts`."""
        sums = torch.zeros(len(counts), z.shape[1], dtype=torch.float64).index_add_(0, rows, z.double())
        return self.total(sums) / counts[:, None]


HERE = Pool()
