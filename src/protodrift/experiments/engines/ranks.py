"""Ranks of torchrun: every stage is computed by all of them, and the first one reads and writes the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...common.progress import Reporter, silent
from ...common.tensorfiles import Tensors
from ...distributed.world import World
from ...distributed.writing import SharedCheckpoint
from ...errors import RunError
from ...methods import Method
from ..stages import Packed
from ..store import Store
from ..tree import Tree, announce


class SharedStore:
    """A store of stages that all ranks ask at the same time; the first one has it, and sends what it holds.

    Args:
        world: the ranks.
        store: on the first rank the store; None elsewhere, or where stages are kept in memory only.
        planned: keys of the stages that are to be computed; all others are there.
    """

    def __init__(self, world: World, store: Store | None, planned: set[str]) -> None:
        self._world = world
        self._store = store
        self._planned = planned

    @property
    def scratch(self) -> Path | None:
        """As `Store.scratch`, on the first rank."""
        return None if self._store is None else self._store.scratch

    def get(self, kind: str, key: str) -> Packed | None:
        """Return a stage, or None.

        Embeddings are not sent: they are large, and only the first rank, which stores them, looks at them.
        """
        if kind == "embed":
            return self._embeddings(key)
        return self._world.on_first(lambda: None if self._store is None else self._store.get(kind, key))

    def _embeddings(self, key: str) -> Packed | None:
        if key in self._planned:
            return None
        if not self._world.is_first:
            nothing = torch.empty(0, 0)
            names = ("z_old", "z_new", "z_test", "z_kept", "true_means")
            return {"seconds": 0.0}, {"embeddings": dict.fromkeys(names, nothing)}
        found = None if self._store is None else self._store.get("embed", key)
        if found is None:
            raise RunError("stored embeddings were damaged and are removed. Run the same command again.")
        return found

    def put(
        self, kind: str, key: str, about: Mapping[str, Any], data: Mapping[str, Any], tensors: Mapping[str, Tensors]
    ) -> None:
        """Write a finished stage."""

        def write() -> bool:
            if self._store is None:
                return False
            self._store.put(kind, key, about, data, tensors)
            return True

        if self._world.on_first(write):
            self._planned.discard(key)

    def checkpoint(self, kind: str, key: str) -> SharedCheckpoint:
        """Return where a training keeps its last finished epoch."""
        return SharedCheckpoint(self._world, None if self._store is None else self._store.checkpoint(kind, key))


def compute_together(tree: Tree, methods: Mapping[str, Method], reporter: Reporter = silent) -> None:
    """Compute all missing stages but the read-outs, every stage by all ranks of the tree's world.

    Read-outs are left to the first rank: they are small, and made from embeddings that it has stored.

    Args:
        tree: the same on all ranks, but the store, which only the first has. All ranks call this at the same time.
        methods: what is asked for.
        reporter: shows progress.
    """
    world, store, stages = tree.world, tree.store, tree.stages_of(methods)
    world.agree("data, settings or threads", repr(list(stages)))

    def missing() -> list[str]:
        plan = {key: stage for key, stage in tree.plan(methods).items() if stage.kind != "readout"}
        announce(plan.values(), reporter)
        return list(plan)

    planned = world.on_first(missing)
    tree.store = SharedStore(world, store, set(planned))  # type: ignore[assignment]
    try:
        for key in planned:
            tree.value(stages[key])
    finally:
        tree.store = store
