"""The first rank writes the disk for all: the others need not see its file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .world import Tensors, World

if TYPE_CHECKING:
    from ..training.checkpoint import Checkpoint


class SharedCheckpoint:
    """The last finished epoch, kept by the first rank for all; implements `training.checkpoint.Checkpoint`."""

    def __init__(self, world: World, checkpoint: Checkpoint | None) -> None:
        self._world = world
        self._checkpoint = checkpoint

    def load(self) -> tuple[dict[str, Any], dict[str, Tensors]] | None:
        """Return what was saved last, on every rank."""
        return self._world.on_first(lambda: None if self._checkpoint is None else self._checkpoint.load())

    def save(self, data: dict[str, Any], tensors: dict[str, Tensors]) -> None:
        """Replace what was saved."""
        self._world.on_first(lambda: None if self._checkpoint is None else self._checkpoint.save(data, tensors))
