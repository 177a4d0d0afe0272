"""Ordered passes over images: each rank embeds its share, and what follows from all of them is merged.

Where all that follows is declared as sums (prototypes, SDC, the covariance of SLDA) only these are sent, and no rank
ever holds all embeddings. Those that are stored go to the first rank block by block, and from there into a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..common.machine import size_text
from ..common.sums import S
from ..common.sums import merged as merge_pieces
from ..data.spill import mapped
from ..errors import RunError
from ..networks.embedder import Embedder, block_rows, embed, embed_in_parts
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
        folder: where the first rank puts them: into an unlinked, memory-mapped file, which is gone when nobody
            looks at it any more. None: into memory. A process that is alone has them in memory.

    Returns:
        (N, D) on the first rank, (0, D) on the others, which never hold more than a block.
    """
    if world.alone:
        found = [embed(network, part) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)
    size, kind = network.embedding_dim, next(network.parameters()).dtype
    whole = _allocated(sum(map(len, parts)) if world.is_first else 0, size, kind, folder)
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
    whole = _allocated(sum(map(len, parts)), parts[0].shape[1], parts[0].dtype, folder)
    start = 0
    for part in parts:
        for some in part.split(_COPIED):
            whole[start : start + len(some)] = some
            start += len(some)
    return whole


_COPIED = 4096  # rows at once


def _allocated(count: int, size: int, kind: torch.dtype, folder: Path | None) -> torch.Tensor:
    """Return space for (count, size) embeddings: mapped from an unlinked file, or in memory."""
    if folder is None or not count:
        return torch.empty(count, size, dtype=kind)
    try:
        return mapped((count, size), kind, folder)
    except OSError as error:
        raise RunError(
            f"no space for {size_text(count * size * kind.itemsize)} of embeddings in {folder}: "
            f"{error.strerror or error}. Everything finished so far is kept: free some or choose another disk, and run "
            "the same command again."
        ) from None


def can_merge(method: Method) -> bool:
    """Return whether all that follows from a task's embeddings follows from sums over images that merge.

    Prototypes do. Exemplars, covariances, and drift estimators or read-outs that declare no sums look at all embeddings
    at once: for them every rank gathers these.
    """
    drift, readout = method.drift, method.readout
    return (
        method.exemplars is None
        and readout.keeps is None
        and readout.can_merge
        and (drift is None or (drift.declares_sums and drift.keeps is None))
    )


def merged(world: World, sums: S) -> S:
    """Return the sums over the images of all ranks, merged in the order of the ranks: the same bits on each."""
    if world.alone:
        return sums
    gathered = {name: world.gather(value[None], world.size, "passes") for name, value in sums.pack().items()}
    kind = type(sums)
    return merge_pieces([kind(**{name: rows[rank] for name, rows in gathered.items()}) for rank in range(world.size)])
