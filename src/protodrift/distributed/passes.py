"""Ordered passes over images: each rank embeds its share, and what follows from all of them is merged.

Prototypes and SDC are sums over images (`drift.sharded`), so only sums travel, and no rank ever holds all embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..drift.compensate import DriftReport, compensate
from ..drift.sdc import SDC
from ..drift.sharded import DriftSums, MeanSums
from ..labels import Label
from ..networks.embedder import Embedder, embed
from ..prototypes import Prototypes
from .world import World

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


def embedded_on_first(world: World, network: Embedder, images: torch.Tensor) -> torch.Tensor:
    """Embed N images, each rank its share; all of them on the first rank, (N, D), none on the others, (0, D)."""
    if world.alone:
        return embed(network, images)
    return world.gather_on_first(embedded_share(world, network, images), len(images), "passes")


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


def can_merge(method: Method) -> bool:
    """Return whether a method's prototypes, drift and read-out follow from sums over images.

    SDC and nearest class means do. Other drift estimators and read-outs that learn look at all embeddings at once: for
    them every rank gathers these.
    """
    from ..readouts import Readout

    learns = type(method.readout).learn is not Readout.learn or method.readout.keeps is not None
    return method.memory is None and not learns and (method.drift is None or type(method.drift) is SDC)


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


def share_compensate(
    world: World, old: Prototypes, drift: SDC | None, z_old: torch.Tensor | None, z_new: torch.Tensor
) -> tuple[Prototypes, DriftReport]:
    """Move old prototypes (Eq. 13) by the pairs that each rank has, (n, D) each; z_old None: the network stayed."""
    if drift is None or z_old is None:
        return compensate(old, None)
    moved, diagnostics = merged_drift(world, DriftSums(old.means, drift.sigma).add(z_old, z_new)).finish()
    return old.moved_to(moved), DriftReport(old.labels, old.means, moved, diagnostics)
