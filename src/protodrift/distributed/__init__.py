"""One training over several processes (ranks), as torchrun starts them: docs/distributed.md.

    torchrun --nproc_per_node=2 -m protodrift run digits

Every rank runs the same program on its share of every batch. A process that was started without torchrun is the world
of one rank, where all of this costs nothing: `current()` is `ALONE`, and nothing of torch.distributed is used.

    world.py      who takes part, what is sent, and how errors end all ranks
    batches.py    a step of training: shares, gathered embeddings, batch norm, dropout, gradients
    passes.py     ordered passes over images: embeddings, prototypes and SDC from shards
    writing.py    the first rank reads and writes the disk for all
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import ALONE, World, current, joined

__all__ = ["ALONE", "World", "current", "joined", "launched"]


def launched() -> bool:
    """Return whether torchrun (or what sets the same variables) started this process beside others."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def __getattr__(name: str) -> Any:
    if name in ("ALONE", "World", "current", "joined"):
        from . import world

        return getattr(world, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
