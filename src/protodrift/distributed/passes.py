"""Ordered passes over images: each rank embeds its share, and what follows from all of them is merged.

Prototypes, SDC, its gate and the covariance of SLDA are sums over images, so only sums travel, and no rank ever holds
all embeddings. Those that are stored go to the first rank block by block, and from there into a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..common.files import nameless_file
from ..common.labels import Label
from ..common.pool import Pool
from ..common.ram import size_text
from ..common.sums import S
from ..common.sums import merged as merge_pieces
from ..drift.base import Drift, FittedDrift
from ..drift.kernel import DriftSums, MeanSums
from ..drift.sdc import SDC, RelativeSDC, relative_bandwidth
from ..drift.successors.gate import Gated
from ..drift.successors.local import LocalLinear
from ..errors import RunError
from ..networks.embedder import Embedder, block_rows, embed, embed_in_parts
from ..prototypes.store import Prototypes
from .world import Tensors, World

if TYPE_CHECKING:
    from ..methods import Method


def embedded_share(
    world: World, network: Embedder, images: torch.Tensor, batch_size: int | None = None, *, fold: bool = True
) -> torch.Tensor:
    """Embed this rank's share of N images: rows `world.own(N)`, (n, D)."""
    own = images[world.own(len(images))]
    if not len(own):
        return torch.empty(0, network.embedding_dim, dtype=next(network.parameters()).dtype)
    return embed(network, own, batch_size, fold=fold)


def embedded(
    world: World, network: Embedder, images: torch.Tensor, batch_size: int | None = None, *, fold: bool = True
) -> torch.Tensor:
    """Embed N images, each rank its share, and return all of them on every rank, (N, D)."""
    if world.alone:
        return embed(network, images, batch_size, fold=fold)
    return world.gather(embedded_share(world, network, images, batch_size, fold=fold), len(images), "passes")


BLOCK = 2**21
"""Bytes of embeddings that a rank sends to the first one at once."""


def embedded_on_first(
    world: World, network: Embedder, parts: Sequence[torch.Tensor], folder: Path | None = None
) -> torch.Tensor:
    """Embed N images, given in parts, each rank its share of every part; the first rank gets them all.

    Args:
        world: the ranks.
        network: F.
        parts: images; their embeddings follow each other.
        folder: where the first rank puts them: into a file without a name, memory-mapped, which is gone when nobody
            looks at it any more. None: into memory. A process that is alone has them in memory.

    Returns:
        (N, D) on the first rank, (0, D) on the others, which never hold more than a block.
    """
    if world.alone:
        found = [embed(network, part) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)
    size, kind = network.embedding_dim, next(network.parameters()).dtype
    whole = _room(sum(map(len, parts)) if world.is_first else 0, size, kind, folder)
    start = 0
    for part in parts:
        shares = [world.own(len(part), rank) for rank in range(world.size)]
        most = max(share.stop - share.start for share in shares)
        rows = block_rows(network, part.shape[1:], BLOCK)
        mine = part[shares[world.rank]]
        own = embed_in_parts(network, mine, rows) if len(mine) else iter(())
        for at in range(0, most, rows):
            block = next(own, whole[:0])
            for share, sent in zip(shares, world.blocks_on_first(block, min(rows, most - at), "passes"), strict=False):
                rest = sent[: max(0, share.stop - share.start - at)]
                first = start + share.start + at
                whole[first : first + len(rest)] = rest
        start += len(part)
    return whole


def joined(world: World, parts: Sequence[torch.Tensor], folder: Path | None = None) -> torch.Tensor:
    """Return embeddings one after another, where `embedded_on_first` puts them."""
    if world.alone or not world.is_first:
        return torch.cat(list(parts))
    whole = _room(sum(map(len, parts)), parts[0].shape[1], parts[0].dtype, folder)
    start = 0
    for part in parts:
        for some in part.split(_COPIED):
            whole[start : start + len(some)] = some
            start += len(some)
    return whole


_COPIED = 4096  # rows at once


def _room(count: int, size: int, kind: torch.dtype, folder: Path | None) -> torch.Tensor:
    """Return room for (count, size) embeddings: in a file without a name, or in memory."""
    if folder is None or not count:
        return torch.empty(count, size, dtype=kind)
    numbers = torch.empty(0, dtype=kind).numpy().dtype
    total = count * size * numbers.itemsize
    try:
        with nameless_file(folder, total) as file:
            mapped = np.memmap(file, numbers, "r+", shape=(count, size))
    except OSError as error:
        raise RunError(
            f"no room for {size_text(total)} of embeddings in {folder}: {error.strerror or error}. Everything finished "
            "so far is kept: make room or choose another disk, and run the same command again."
        ) from None
    return torch.from_numpy(mapped)


def merged_means(world: World, sums: MeanSums) -> MeanSums:
    """Return the sums and counts over all ranks."""
    sums = MeanSums(sums.sums.clone(), sums.counts.clone())
    world.sum([sums.sums], "passes")
    world.sum([sums.counts], "passes")
    return sums


def merged_drift(world: World, own: DriftSums) -> DriftSums:
    """Return the kernel sums over all ranks, merged in the order of the ranks: the same bits on every one."""
    if world.alone:
        return own
    parts = {name: world.gather(part[None], world.size, "passes") for name, part in own.pack().items()}
    merged = own.unpack({name: part[0] for name, part in parts.items()})
    for rank in range(1, world.size):
        merged = merged.merge(own.unpack({name: part[rank] for name, part in parts.items()}))
    return merged


class OnRanks(Pool):
    """The images lie on several ranks, each its share. All ranks ask together."""

    def __init__(self, world: World) -> None:
        self.world = world

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        values = values.clone()
        self.world.sum([values], "passes")
        return values

    def least(self, values: torch.Tensor) -> torch.Tensor:
        """Return the least over all ranks, element by element."""
        return self.world.gather(values[None], self.world.size, "passes").amin(dim=0)

    def smallest(self, values: torch.Tensor, k: int) -> torch.Tensor:
        """Return the k-th smallest of each row, (R,): 64 rounds of counting halve the numbers that it can be.

        Numbers that are not negative have the order of their bits, so the answer is exact.
        """
        bits = values.double().contiguous().view(torch.int64)
        low = torch.full((len(values),), -1)
        high = torch.full((len(values),), torch.inf, dtype=torch.float64).view(torch.int64)
        while bool((high - low > 1).any()):  # k numbers or more are <= high, fewer than k are <= low
            middle = low + (high - low) // 2
            enough = self.total((bits <= middle[:, None]).sum(dim=1)) >= k
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high.view(torch.float64)

    def farthest(self, z: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return the row with the largest value; of several, the first rank's."""
        best = torch.full((1, 1 + z.shape[1]), -torch.inf, dtype=torch.float64)
        if len(z):
            at = values.argmax()
            best = torch.cat([values[at, None], z[at]])[None].double()
        rows = self.world.gather(best, self.world.size, "passes")
        return rows[rows[:, 0].argmax(), 1:].to(z.dtype)

    def fit(
        self, drift: Drift, z_old: torch.Tensor, z_new: torch.Tensor, labels: torch.Tensor | None = None
    ) -> FittedDrift:
        """Return the estimator fitted on the pairs of all ranks; only for what `can_merge` accepts."""
        if isinstance(drift, (Gated, LocalLinear)):
            return drift.fit_in(self, z_old, z_new, labels)
        assert isinstance(drift, (SDC, RelativeSDC))
        return _FittedOnRanks(self, drift, z_old, z_new)


@dataclass(frozen=True)
class _FittedOnRanks(FittedDrift):
    """SDC with a vector field that lies on several ranks."""

    ranks: OnRanks
    config: SDC | RelativeSDC
    z_old: torch.Tensor
    z_new: torch.Tensor

    def explain(self, prototypes: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return mu + Delta (Eq. 13) and what the estimator says beside it, the same on every rank."""
        if isinstance(self.config, SDC):
            return self._merged(prototypes, self.config.sigma)
        told = self.config.fraction, self.config.neighbors
        sigma = relative_bandwidth(prototypes, self.z_old, *told, self.ranks)
        moved, said = self._merged(prototypes, sigma)
        return moved, {**said, "sigma": sigma.to(prototypes.dtype)}

    def _merged(self, prototypes: torch.Tensor, sigma: float | torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        return merged_drift(self.ranks.world, DriftSums(prototypes, sigma).add(self.z_old, self.z_new)).finish()


_FROM_SUMS = (SDC, RelativeSDC, LocalLinear)


def can_merge(method: Method) -> bool:
    """Return whether a method's prototypes, drift and read-out follow from sums over images.

    SDC and local linear drift, gated or not, and read-outs that learn nothing or from sums (SLDA) do. Other drift
    estimators and read-outs look at all embeddings at once: for them every rank gathers these.
    """
    from ..readouts import Readout

    readout, drift = method.readout, method.drift
    learns = type(readout).learn is not Readout.learn and not readout.learns_from_sums
    moving = drift.estimator if isinstance(drift, Gated) else drift
    return (
        method.exemplars is None
        and not learns
        and readout.keeps is None
        and (moving is None or type(moving) in _FROM_SUMS)
    )


def share_prototypes(
    world: World, labels: Sequence[Label], z: torch.Tensor, rows: torch.Tensor, task: int
) -> Prototypes:
    """Compute the prototypes of a task's classes (Eq. 3) from the embeddings that each rank has.

    Args:
        world: the ranks.
        labels: K classes.
        z: (n, D) this rank's.
        rows: (n,) their classes.
        task: t.
    """
    sums = merged_means(world, MeanSums.empty(len(labels), z.shape[1]).add(z, rows))
    return Prototypes(tuple(labels), sums.finish(z.dtype), sums.counts, torch.full((len(labels),), task))


def merged(world: World, sums: S) -> S:
    """Return the sums over the images of all ranks, merged in the order of the ranks: the same bits on each."""
    if world.alone:
        return sums
    gathered = {name: world.gather(value[None], world.size, "passes") for name, value in sums.pack().items()}
    kind = type(sums)
    return merge_pieces([kind(**{name: rows[rank] for name, rows in gathered.items()}) for rank in range(world.size)])
