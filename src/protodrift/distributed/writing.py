"""The first rank reads and writes the disk for all: the others need not see its file system."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common.progress import Reporter, silent
from ..errors import RunError
from .world import Tensors, World

if TYPE_CHECKING:
    from ..experiments.stages import Tree
    from ..experiments.store import Store
    from ..methods import Method
    from ..training.trainer import Checkpoint

Packed = tuple[dict[str, Any], dict[str, Tensors]]


class SharedStore:
    """A store of stages that all ranks ask at the same time; the first one has it, and sends what it holds.

    Args:
        world: the ranks.
        store: on the first rank the store; None elsewhere, or where stages are kept in memory only.
        planned: keys of the stages that are to be computed; all others are there.
    """

    def __init__(self, world: World, store: Store | None, planned: Collection[str] = ()) -> None:
        self._world = world
        self._store = store
        self._planned = planned

    @property
    def room(self) -> Path | None:
        """As `Store.room`, on the first rank."""
        return None if self._store is None else self._store.room

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

    def has(self, kind: str, key: str) -> bool:
        """Return whether a stage is there."""
        return self._world.on_first(lambda: self._store is not None and self._store.has(kind, key))

    def seconds(self, kind: str, key: str) -> float:
        """Return how long a stage took."""
        return self._world.on_first(lambda: 0.0 if self._store is None else self._store.seconds(kind, key))

    def put(
        self, kind: str, key: str, described: Mapping[str, Any], data: Mapping[str, Any], tensors: Mapping[str, Tensors]
    ) -> None:
        """Write a finished stage."""
        self._world.on_first(
            lambda: None if self._store is None else self._store.put(kind, key, described, data, tensors)
        )

    def checkpoint(self, kind: str, key: str) -> SharedCheckpoint:
        """Return where a training keeps its last finished epoch."""
        return SharedCheckpoint(self._world, None if self._store is None else self._store.checkpoint(kind, key))


class SharedCheckpoint:
    """The last finished epoch, kept by the first rank for all; implements `trainer.Checkpoint`."""

    def __init__(self, world: World, checkpoint: Checkpoint | None) -> None:
        self._world = world
        self._checkpoint = checkpoint

    def load(self) -> Packed | None:
        """Return what was saved last, on every rank."""
        return self._world.on_first(lambda: None if self._checkpoint is None else self._checkpoint.load())

    def save(self, data: dict[str, Any], tensors: dict[str, Tensors]) -> None:
        """Replace what was saved."""
        self._world.on_first(lambda: None if self._checkpoint is None else self._checkpoint.save(data, tensors))


def compute_together(world: World, tree: Tree, methods: Mapping[str, Method], reporter: Reporter = silent) -> None:
    """Compute all missing stages but the read-outs, every stage by all ranks.

    Read-outs are left to the first rank: they are small, and made from embeddings that it has stored.

    Args:
        world: the ranks; all of them call this at the same time.
        tree: the same on all ranks, but the store, which only the first has.
        methods: what is asked for.
        reporter: shows progress.
    """
    names, plain = list(methods), tree.store

    def planned() -> list[list[Any]]:
        plan = tree.plan(methods)
        reporter.plan({key: stage.kind for key, stage in plan.items() if stage.kind != "readout"})
        index = {method: number for number, method in enumerate(methods.values())}
        stages = [(key, stage.kind, index[stage.method], stage.task) for key, stage in plan.items()]
        return [list(stage) for stage in stages if stage[1] != "readout"]

    plan = world.on_first(planned)
    own = [tree.key(kind, methods[names[number]], task) for _, kind, number, task in plan]
    world.agree("data, settings or threads", repr(own))
    tree.store = SharedStore(world, plain, {key for key, *_ in plan})  # type: ignore[assignment]
    try:
        for _, kind, number, task in plan:
            tree.compute(kind, methods[names[number]], task)
    finally:
        tree.store = plain
