"""Experiments as a tree of stages: what begins alike is computed once, what is on disk is not computed again.

Methods that agree on objective, penalty and exemplars are ONE training, read out with every drift estimator and
read-out asked for; methods that begin alike share the beginning. That one mechanism is the cache, the resume after a
crash, and the unit that a cluster runs.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch

from ..common.modes import own_modes
from ..common.progress import Reporter, silent
from ..common.tensorfiles import Tensors
from ..methods import Method
from ..networks.embedder import embed
from ..prototypes.store import Prototypes
from ..training.state import tensor_bytes
from ..training.trainer import Trained
from .results import MethodResult, method_result
from .setup import Setup
from .stages import KINDS, Embed, Embeddings, Given, ReadOut, ReadoutResult, Stage, network_after, trained_after
from .store import Store

_CACHED = 24  # stages held in memory when a store has them on disk
_CACHED_BYTES = 2**31  # their tensors take no more: one covariance of 12,800 features is 660 MB; the newest one stays

V = TypeVar("V")


def walk(stages: Iterable[Stage[Any]], there: Callable[[Stage[Any]], bool]) -> dict[str, Stage[Any]]:
    """Return the stages that these need and that are not there, by key: each once, after its parents.

    What a stage that is there was made from is not looked at: old trainings can be removed.
    """
    found: dict[str, Stage[Any]] = {}

    def visit(stage: Stage[Any]) -> None:
        if stage.key in found or there(stage):
            return
        for parent in stage.parents():
            visit(parent)
        found[stage.key] = stage

    for stage in stages:
        visit(stage)
    return found


def announce(stages: Collection[Stage[Any]], reporter: Reporter) -> None:
    """Say how many stages will be computed."""
    reporter.plan(len(stages), sum(stage.trains for stage in stages))


@dataclass(eq=False, repr=False)
class Tree(Setup):
    """The stages of one stream, one network and one seed, for any number of methods.

    Args (beside those of `Setup`):
        store: where stages are kept on disk; None keeps them in memory only.
        reporter: shows progress.

    Attributes:
        computed: how many stages of each kind were really computed. `computed["train"]` counts trainings of one task.
        loaded: how many came from the store.
    """

    store: Store | None = None
    reporter: Reporter = silent

    def __post_init__(self) -> None:
        super().__post_init__()
        self.computed: Counter[str] = Counter()
        self.loaded: Counter[str] = Counter()
        self._memory: OrderedDict[str, tuple[Any, float, int]] = OrderedDict()  # key -> value, seconds it took, bytes

    # -- results -------------------------------------------------------------------------------------------------

    def run(self, methods: Mapping[str, Method]) -> dict[str, MethodResult]:
        """Return the result of every method; trainings are shared wherever methods agree."""
        announce(self.plan(methods).values(), self.reporter)
        results = {}
        for name, method in methods.items():
            wanted = self._readouts(method)
            # Results have no covariances and the like in them; of many features those of all tasks are gigabytes.
            readouts = [replace(self.value(stage), readout_state={}) for stage in wanted]
            stages = walk(wanted, _nowhere).values()
            seconds = sum(self._seconds(stage) for stage in stages)
            trainings = [stage.key[:24] for stage in stages if stage.kind == "train"]
            history = [self._history(method, task) for task in range(1, len(self.tasks) + 1)]
            results[name] = method_result(self, name, method, readouts, seconds, history, trainings)
            self.reporter.result(f"{name}: {results[name].summary}")
        return results

    def trained(self, method: Method, task: int) -> Trained:
        """Return what training leaves behind after task t (0: the initial network)."""
        return trained_after(self, method, task, self.value)

    def embeddings(self, method: Method, task: int) -> Embeddings:
        """Return the embeddings after task t that read-outs and figures need."""
        return self.value(Embed.of(self, method, task))

    def z_train(self, method: Method, task: int, of_task: int) -> torch.Tensor:
        """Return the training images of one task by the network after another, (N, D); not kept."""
        return embed(self.value(network_after(self, method, task)).network, self.data(of_task).images)

    def true_means(self, method: Method, task: int) -> torch.Tensor:
        """Return the true mean of every class seen up to task t in the space of its network, (K, D) (Eq. 8)."""
        return self.embeddings(method, task).true_means

    def readout(self, method: Method, task: int) -> ReadoutResult:
        """Return prototypes and predictions after task t."""
        return self.value(ReadOut.of(self, method, task))

    def prototypes(self, method: Method, task: int) -> Prototypes:
        """Return the prototypes after task t: the old ones compensated (Eq. 13), the new ones computed (Eq. 3)."""
        return self.readout(method, task).prototypes

    # -- stages --------------------------------------------------------------------------------------------------

    def stage(self, kind: str, method: Method, task: int) -> Stage[Any]:
        """Return a stage by its kind."""
        return KINDS[kind].of(self, method, task)

    def plan(self, methods: Mapping[str, Method]) -> dict[str, Stage[Any]]:
        """Return the stages that a run of these methods would compute now, by key, each after its parents."""
        return walk(self._wanted(methods), self._has)

    def stages_of(self, methods: Mapping[str, Method]) -> dict[str, Stage[Any]]:
        """Return all stages of these methods, whether they are computed yet or not."""
        return walk(self._wanted(methods), _nowhere)

    def trainings(self, methods: Mapping[str, Method]) -> int:
        """Return how many trainings of one task these methods need in all, whether they are computed yet or not."""
        return sum(stage.kind == "train" for stage in self.stages_of(methods).values())

    def value(self, stage: Stage[V]) -> V:
        """Return what a stage holds: from memory, from the store, or computed from its parents."""
        held = self._memory.get(stage.key) or self._loaded(stage) or self._computed(stage)
        self._memory[stage.key] = held
        self._memory.move_to_end(stage.key)
        if self.store is not None:
            self._make_room()
        return cast(V, held[0])

    def _make_room(self) -> None:
        """Drop the stages that were asked for longest ago, until the others fit."""
        size = sum(held[2] for held in self._memory.values())
        while len(self._memory) > 1 and (len(self._memory) > _CACHED or size > _CACHED_BYTES):
            _, (_, _, dropped) = self._memory.popitem(last=False)
            size -= dropped

    def _wanted(self, methods: Mapping[str, Method]) -> list[ReadOut]:
        return [stage for method in methods.values() for stage in self._readouts(method)]

    def _readouts(self, method: Method) -> list[ReadOut]:
        return [ReadOut.of(self, method, task) for task in range(1, len(self.tasks) + 1)]

    def _has(self, stage: Stage[Any]) -> bool:
        return stage.key in self._memory or (self.store is not None and self.store.has(stage.kind, stage.key))

    def _loaded(self, stage: Stage[V]) -> tuple[V, float, int] | None:
        packed = None if self.store is None else self.store.get(stage.kind, stage.key)
        if packed is None:
            return None
        self.loaded[stage.kind] += 1
        return stage.unpack(packed), packed[0]["seconds"], _bytes(packed[1])

    def _computed(self, stage: Stage[V]) -> tuple[V, float, int]:
        values = {parent.key: self.value(parent) for parent in stage.parents()}
        given = Given(values, self.reporter)
        if self.store is not None:
            checkpoint = self.store.checkpoint(stage.kind, stage.key)
            given = Given(values, self.reporter, checkpoint, self.store.scratch)
        started = time.perf_counter()
        with own_modes():
            value = stage.compute(given)
        seconds = time.perf_counter() - started
        self.computed[stage.kind] += 1
        self.reporter.done(training=stage.trains)
        size = 0
        if self.store is not None:
            data, tensors = stage.pack(value)
            size = _bytes(tensors)
            about = {"kind": stage.kind, "seed": self.seed, "ranks": self.world.size}
            self.store.put(stage.kind, stage.key, about, {**data, "seconds": seconds}, tensors)
        return value, seconds, size

    def _history(self, method: Method, task: int) -> list[dict[str, float]]:
        """Return the losses of each epoch of a task; nothing where it trains nothing, or its training is removed."""
        stage = network_after(self, method, task)
        if stage.task != task or stage.kind != "train":
            return []
        if stage.key in self._memory:
            return list(self._memory[stage.key][0].history)
        return [] if self.store is None else list(self.store.facts(stage.kind, stage.key).get("history", ()))

    def _seconds(self, stage: Stage[Any]) -> float:
        if stage.key in self._memory:
            return self._memory[stage.key][1]
        return 0.0 if self.store is None else self.store.seconds(stage.kind, stage.key)


def _bytes(tensors: Mapping[str, Tensors]) -> int:
    """Return how large the tensors of a stage are."""
    return sum(tensor_bytes(file) for file in tensors.values())


def _nowhere(stage: Stage[Any]) -> bool:
    return False
