"""Which old images are kept. None: that is the promise; everything: joint training, the upper bound."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from .config import Config
from .data.dataset import Examples


@dataclass(frozen=True)
class Memory(Config):
    """What is kept of the images of finished tasks. Configuration only; the images are in the learner's state."""

    @abstractmethod
    def keep(self, kept: Examples | None, new: Examples) -> Examples | None:
        """Return what to keep after a task, from what was kept before it and the task's own examples."""


@dataclass(frozen=True)
class Everything(Memory):
    """Keep all images of all tasks: joint training. Needs what exemplar-free learning does without."""

    def keep(self, kept: Examples | None, new: Examples) -> Examples | None:
        """Return all examples so far."""
        return new if kept is None else Examples.concatenate([kept, new])
