"""Networks, and what penalties and exemplars keep beside them: the stages warm, root, train and consolidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ...common.tensorfiles import Tensors
from ...data.examples import Examples
from ...methods import Method, training_name
from ...training.config import Training
from ...training.trainer import Trained, consolidate, train_network
from ..identity import described
from ..setup import Setup
from .base import Ask, Given, Packed, Stage


class _NetworkStage(Stage[Trained]):
    """A stage whose value is a network."""

    @property
    def heads(self) -> int:
        """The task after which a network has the heads of this one."""
        return self.task

    def pack(self, value: Trained) -> Packed:
        """Return weights, history, and what penalties that follow the path of a training have seen of it."""
        tensors = {"network": dict(value.network.state_dict())}
        tensors.update({f"running{i}": state for i, state in enumerate(value.running)})
        return {"history": list(value.history), "note": value.note, "running": len(value.running)}, tensors

    def unpack(self, packed: Packed) -> Trained:
        """Return the network, in eval mode."""
        data, tensors = packed
        network = self.setup.fresh_network(self.method, self.heads)
        network.load_state_dict(tensors["network"])
        return Trained(
            network.to(self.setup.device).eval(),
            self.setup.head_classes(self.method, self.heads),
            history=tuple(data["history"]),
            note=data["note"],
            running=tuple(tensors[f"running{i}"] for i in range(data["running"])),
        )

    def train(self, before: Trained, training: Training, given: Given) -> Trained:
        """Train the network of this stage; without what penalties and exemplars keep, which `Consolidate` has."""
        with given.reporter.training(training_name(self.method, self.task)) as on_progress:
            trained = train_network(
                before,
                self.setup.data(max(1, self.task)),
                task=self.task,
                method=self.method,
                training=training,
                augment=self.setup.views,
                seed=self.setup.seed,
                on_progress=on_progress,
                checkpoint=given.checkpoint,
                world=self.setup.world,
            )
        following = any(penalty.follows_path for penalty in self.method.penalties)
        return replace(trained, penalty_state=(), exemplars=None, running=trained.running if following else ())


class Warm(_NetworkStage):
    """The backbone trained as a classifier of the first task's classes: task 0. Its method is the warm-up's own."""

    kind, version, trains = "warm", 2, True
    heads = 1  # that of the first task's classes

    def parents(self) -> tuple[Stage[Any], ...]:
        """It begins."""
        return ()

    def identity(self) -> Mapping[str, Any]:
        """Initial weights, and the warm-up."""
        assert self.setup.warmup is not None
        return {
            **self.setup.initial(self.method),
            "objective": described(self.method.objective),
            "training": described(self.setup.warmup.training.of_task(first=True)),
            "augment": described(self.setup.views),
        }

    def compute(self, given: Given) -> Trained:
        """Train on the first task."""
        assert self.setup.warmup is not None
        return self.train(_untrained(self.setup, self.method), self.setup.warmup.training, given)


class Root(_NetworkStage):
    """The network before the first task."""

    kind, version = "root", 2

    def parents(self) -> tuple[Stage[Any], ...]:
        """The warm-up, if there is one; a backbone of the method's own has none."""
        warmup = None if self.method.backbone else self.setup.warmup
        return () if warmup is None else (Warm.of(self.setup, warmup.method),)

    def identity(self) -> Mapping[str, Any]:
        """Initial weights and standardization."""
        return self.setup.initial(self.method)

    def compute(self, given: Given) -> Trained:
        """Return initial weights, in the backbone those of the warm-up."""
        if not self.parents():
            return _untrained(self.setup, self.method)
        warm = given.of(cast(Warm, self.parents()[0])).network
        network = self.setup.fresh_network(self.method, 0)
        network.standardize.load_state_dict(warm.standardize.state_dict())
        network.backbone.load_state_dict(warm.backbone.state_dict())
        return Trained(network.to(self.setup.device).eval())


class Train(_NetworkStage):
    """The network after task t."""

    kind, version, trains = "train", 2, True

    def parents(self) -> tuple[Stage[Any], ...]:
        """What the task starts from."""
        return stages_after(self.setup, self.method, _start(self.method, self.task))

    def identity(self) -> Mapping[str, Any]:
        """Only what acts: in the first task only penalties that say so, and no exemplars."""
        method, setup = self.method, self.setup
        first = self.task == 1
        acting = tuple(p for p in method.penalties if not first or p.follows_path or p.acts_first)
        holds = not first or method.schedule.holds_statistics(first=True)
        return {
            "task": self.task,
            "trains": method.schedule.trains(self.task),
            "objective": described(method.objective),
            "training": described(setup.training_of(method, self.task)),
            "augment": described(setup.views),
            "data": setup.fingerprints[self.task - 1][0],
            "penalty": described(acting),
            "batch_norm": method.schedule.batch_norm if holds else None,
            "exemplars": None if first else described(method.exemplars),
        }

    def compute(self, given: Given) -> Trained:
        """Train the network on the task."""
        before = trained_after(self.setup, self.method, _start(self.method, self.task), given.of)
        return self.train(before, self.setup.training_of(self.method), given)


def _untrained(setup: Setup, method: Method) -> Trained:
    network = setup.fresh_network(method, 0)
    network.begin(setup.data(1).images, setup.seed)
    return Trained(network.to(setup.device).eval())


def _start(method: Method, task: int) -> int:
    """Return the task whose end task t starts from; 0: the initial network."""
    return 0 if method.schedule.start == "initial" else task - 1


def network_after(setup: Setup, method: Method, task: int) -> Stage[Trained]:
    """Return the stage that made the network after task t: that of the last training, or the root."""
    while task and not (method.schedule.trains(task) or method.objective.classifies):
        task -= 1  # the network is simply still there
    return Train.of(setup, method, task) if task else Root.of(setup, method)


@dataclass(frozen=True)
class Consolidated:
    """What penalties and exemplars keep after a task."""

    penalty_state: tuple[Tensors, ...]
    exemplars: Examples | None


class Consolidate(Stage[Consolidated]):
    """What penalties measure after task t, and which images are kept."""

    kind, version = "consolidate", 2

    def parents(self) -> tuple[Stage[Any], ...]:
        """The network, and what was kept before."""
        kept = kept_after(self.setup, self.method, _start(self.method, self.task))
        return (network_after(self.setup, self.method, self.task), *kept)

    def identity(self) -> Mapping[str, Any]:
        """Penalties and exemplars."""
        kept = {"penalty": described(self.method.penalties), "exemplars": described(self.method.exemplars)}
        return {"task": self.task, "data": self.setup.fingerprints[self.task - 1][0], **kept}

    def compute(self, given: Given) -> Consolidated:
        """Let penalties measure, and exemplars be chosen."""
        setup, method, task = self.setup, self.method, self.task
        network, *kept = self.parents()
        before = Trained(given.of(network).network)
        for stage in kept:
            before = replace(before, **vars(given.of(stage)))
        trained = replace(given.of(network), classes=setup.head_classes(method, task))
        ended = consolidate(
            trained, before, setup.data(task), task=task, method=method, seed=setup.seed, world=setup.world
        )
        return Consolidated(ended.penalty_state, ended.exemplars)

    def pack(self, value: Consolidated) -> Packed:
        """Return penalties' tensors, and which images are kept."""
        tensors = {f"penalty{i}": state for i, state in enumerate(value.penalty_state)}
        if value.exemplars is not None:
            assert value.exemplars.ids is not None  # a stream's examples know their rows
            tensors["exemplars"] = {"ids": value.exemplars.ids}
        return {"penalties": len(value.penalty_state)}, tensors

    def unpack(self, packed: Packed) -> Consolidated:
        """Return both; images come from the dataset."""
        data, tensors = packed
        exemplars = None
        if "exemplars" in tensors:
            exemplars = self.setup.stream.dataset.train.at(tensors["exemplars"]["ids"])
        return Consolidated(tuple(tensors[f"penalty{i}"] for i in range(data["penalties"])), exemplars)


def kept_after(setup: Setup, method: Method, task: int) -> tuple[Consolidate, ...]:
    """Return the stage that holds what is kept after task t; none where nothing is."""
    return (Consolidate.of(setup, method, task),) if task and (method.penalties or method.exemplars) else ()


def stages_after(setup: Setup, method: Method, task: int) -> tuple[Stage[Any], ...]:
    """Return the stages that hold everything that training leaves behind after task t."""
    return (network_after(setup, method, task), *kept_after(setup, method, task))


def trained_after(setup: Setup, method: Method, task: int, ask: Ask) -> Trained:
    """Return everything that training leaves behind after task t (0: the initial network)."""
    trained = replace(ask(network_after(setup, method, task)), classes=setup.head_classes(method, task))
    for stage in kept_after(setup, method, task):
        trained = replace(trained, **vars(ask(stage)))
    return trained
