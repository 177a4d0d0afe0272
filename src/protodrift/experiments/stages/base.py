"""What a stage is, whatever its kind."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from ...common.progress import Reporter, silent
from ...common.tensorfiles import Tensors
from ...methods import Method, training_name
from ...training.checkpoint import Checkpoint
from ..setup import Setup

S = TypeVar("S", bound="Stage[Any]")
V = TypeVar("V")

Packed = tuple[dict[str, Any], dict[str, Tensors]]
"""A stage as it is stored: JSON data, and named files of named tensors."""


class Ask(Protocol):
    """Gives the value of a stage."""

    def __call__(self, stage: Stage[V]) -> V:
        """Return the value."""


@dataclass(frozen=True)
class Given:
    """What a stage is computed with.

    Attributes:
        values: of its parents, by key.
        reporter: shows the progress of a training.
        checkpoint: where a training keeps its last finished epoch; None: nowhere.
        scratch: a folder for files that are too large for memory, until the stage is written; None: memory.
    """

    values: Mapping[str, Any]
    reporter: Reporter = silent
    checkpoint: Checkpoint | None = None
    scratch: Path | None = None

    def of(self, stage: Stage[V]) -> V:
        """Return the value of a parent."""
        return cast(V, self.values[stage.key])


class Stage(ABC, Generic[V]):
    """One step of an experiment, and its value of type V. Made by `of`.

    Class attributes:
        kind: what stages of this class are called.
        version: raised by hand when the numbers that it computes change.
        trains: whether it trains a network. Trainings are most of the time of a run, and others wait for them.
    """

    kind: ClassVar[str]
    version: ClassVar[int]
    trains: ClassVar[bool] = False

    def __init__(self, setup: Setup, method: Method, task: int) -> None:
        self.setup = setup
        self.method = method
        self.task = task

    @classmethod
    def of(cls: type[S], setup: Setup, method: Method, task: int = 0) -> S:
        """Return this kind of stage of a method and task; equal arguments return the same object."""
        name = (cls, method, task)
        if name not in setup.stages:
            setup.stages[name] = cls(setup, method, task)
        return cast(S, setup.stages[name])

    @abstractmethod
    def parents(self) -> tuple[Stage[Any], ...]:
        """Return the stages whose values it is computed from."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return the settings, beside its parents, that its value depends on; JSON-able."""

    @abstractmethod
    def compute(self, given: Given) -> V:
        """Compute its value."""

    @abstractmethod
    def pack(self, value: V) -> Packed:
        """Return a value as it is stored."""

    @abstractmethod
    def unpack(self, packed: Packed) -> V:
        """Invert `pack`."""

    @cached_property
    def key(self) -> str:
        """The hash that it is known by."""
        parents = [parent.key for parent in self.parents()]
        known_by = {"kind": self.kind, "version": self.version, "parents": parents, **self.identity()}
        return hashlib.sha256(json.dumps(known_by, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.kind} ({training_name(self.method, self.task)})"
