"""Trains one task: L = L_ML + gamma * L_C (Eq. 7).

`advance` takes what training left behind after task t-1 and the images of task t, and returns what it leaves behind
after task t. It never changes what it was given: an error or an interrupt in the middle loses nothing.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from .. import distributed
from ..common import seeding
from ..common.config import PRECISIONS, Config, number, one_of, optional, whole
from ..common.labels import Label, sorted_labels
from ..data.batches import class_balanced_batches, shuffled_batches
from ..data.examples import Examples
from ..data.views import Augmentation
from ..distributed.batches import Layers, Share, average_gradients, check_agreement
from ..errors import CollapseWarning, DivergedError, NothingToTrainWarning
from ..methods import Method
from ..networks.embedder import Embedder, embed, laid_out
from ..objectives import Softmax
from ..penalties import Penalty, TaskContext, Tensors
from ..readouts import MaxOverHeads
from .step import KnownAnswers, Step


@dataclass(frozen=True)
class Training(Config):
    """How the network is trained on one task.

    Args:
        epochs: passes over a task.
        learning_rate: one for all layers; the peak where the schedule is "one-cycle".
        later_learning_rate: from the second task on; None: the same. A network that starts from random weights needs a
            larger one in its first task, and with a large one later it forgets more than drift compensation can mend.
        weight_decay: 2e-4, as in the released code; the paper does not print it.
        batch_size: 32 in the paper (Sec. 5).
        images_per_class: images of each class in a batch: 32 = 4 classes x 8. With few classes it takes more.
        epoch: "full": every image at least once, in class-balanced batches; "released": every class once with
            `images_per_class` images, the "epoch" of the released code; "shuffled": every image once, in random order,
            for objectives that need no positives.
        optimizer: "adam" (Sec. 5), or "sgd" with Nesterov momentum 0.9; a new one each task.
        rate_schedule: "constant", or "one-cycle": the rate rises from 1/25 to its peak over the first 30 % of a task's
            steps and falls to nearly zero, both as a cosine.
        precision: "float32", or "bfloat16": the backbones compute in bfloat16 (autocast); weights, optimizer, embedding
            head, losses and penalties stay float32, and so do importances and all embeddings that prototypes and drift
            are made of. It pays on GPUs, and on CPUs with instructions for it (AVX512-BF16, AMX); elsewhere it is
            slower.
    """

    epochs: int = 10
    learning_rate: float = 1e-3
    later_learning_rate: float | None = None
    weight_decay: float = 2e-4
    batch_size: int = 32
    images_per_class: int = 8
    epoch: str = "full"
    optimizer: str = "adam"
    rate_schedule: str = "constant"
    precision: str = "float32"
    rules: ClassVar = {
        "epochs": whole(0),
        "learning_rate": number(above=0),
        "later_learning_rate": optional(number(above=0)),
        "weight_decay": number(0),
        "batch_size": whole(4),
        "images_per_class": whole(2),
        "epoch": one_of("full", "released", "shuffled"),
        "optimizer": one_of("adam", "sgd"),
        "rate_schedule": one_of("constant", "one-cycle"),
        "precision": one_of(*PRECISIONS),
    }

    @property
    def autocast(self) -> torch.dtype | None:
        """The type in which backbones compute; None: that of their weights."""
        return torch.bfloat16 if self.precision == "bfloat16" else None

    def rate(self, first: bool) -> float:
        """Return the learning rate of a first task, or of a later one."""
        return self.learning_rate if first or self.later_learning_rate is None else self.later_learning_rate


@dataclass(frozen=True)
class Warmup(Config):
    """A training of the backbone as a plain classifier of the first task's classes, before the first task.

    The paper trains CIFAR-100 and ImageNet-Subset "without pre-training"; its released code starts them from such a
    warm-up, without which nothing works. Here it is a stage that can be seen. Its head is thrown away.

    Args:
        training: how it is trained.
        smoothing: label smoothing of the cross-entropy.
    """

    training: Training = Training(
        epochs=160, learning_rate=0.2, weight_decay=5e-4, batch_size=128, epoch="shuffled", optimizer="sgd",
        rate_schedule="one-cycle",
    )  # fmt: skip
    smoothing: float = 0.0
    rules: ClassVar = {"smoothing": number(0, 0.9)}

    @property
    def method(self) -> Method:
        """The warm-up as a method: task 0."""
        return Method(Softmax(smoothing=self.smoothing), readout=MaxOverHeads())


def one_cycle(done: float) -> float:
    """Return the learning rate as a share of its peak when a share `done` of all steps is done.

    >>> [round(one_cycle(done), 3) for done in (0, 0.15, 0.3, 0.65, 1)]
    [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    rising, start, end = 0.3, 1 / 25, 1 / 25e4
    low, at = (start, done / rising) if done < rising else (end, (1 - done) / (1 - rising))
    return low + (1 - low) * (1 - math.cos(math.pi * at)) / 2


@dataclass(frozen=True)
class Progress:
    """Where a training is; given to the `on_progress` callback after every epoch."""

    task: int
    epoch: int
    epochs: int
    loss: float
    penalty: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Trained:
    """Everything that training leaves behind after a task.

    Attributes:
        network: F^t, in eval mode; never changed again.
        classes: all classes seen so far, in task order, sorted within a task.
        penalty_state: what each penalty keeps, in the order of the method's penalties.
        exemplars: the images kept, or None.
        history: for each epoch of the last task: mean loss, mean of gamma * L_C.
        note: why the network was not trained in the last task, or "".
        running: the penalties' states at the end of training; `consolidate` uses them up.
    """

    network: Embedder
    classes: tuple[Label, ...] = ()
    penalty_state: tuple[Tensors, ...] = ()
    exemplars: Examples | None = None
    history: tuple[dict[str, float], ...] = ()
    note: str = ""
    running: tuple[Tensors, ...] = ()


class Checkpoint(Protocol):
    """Where a training keeps its last finished epoch, to go on from there after a crash."""

    def load(self) -> tuple[dict[str, Any], dict[str, Tensors]] | None:
        """Return what was saved last, or None."""

    def save(self, data: dict[str, Any], tensors: dict[str, Tensors]) -> None:
        """Replace what was saved; all or nothing."""


def asks_old_network_once(method: Method, training: Training, augment: Augmentation | None) -> bool:
    """Return whether the old network's answers are computed once a task: views never change, and come again."""
    asks = any(penalty.asks_old_network for penalty in method.penalties)
    maps = any(penalty.needs_maps for penalty in method.penalties)  # these are too large to be kept
    return asks and not maps and augment is None and training.epochs > 1 and training.epoch != "released"


def advance(
    previous: Trained,
    new: Examples,
    *,
    task: int,
    method: Method,
    training: Training,
    augment: Augmentation | None,
    seed: int,
    on_progress: OnProgress | None = None,
) -> Trained:
    """Learn task t: train the network, then let penalties and exemplars take what they keep.

    Args:
        previous: what the task before left behind; for the first task just the initial network.
        new: D^t.
        task: t, counted from 1.
        method, training, augment: the configuration.
        seed: the run's seed; all randomness follows from it and t.
        on_progress: called after every epoch.
    """
    result = train_network(
        previous,
        new,
        task=task,
        method=method,
        training=training,
        augment=augment,
        seed=seed,
        on_progress=on_progress,
    )
    return consolidate(result, previous, new, task=task, method=method, seed=seed)


def train_network(
    previous: Trained,
    new: Examples,
    *,
    task: int,
    method: Method,
    training: Training,
    augment: Augmentation | None,
    seed: int,
    on_progress: OnProgress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Train the network on D^t and the exemplars kept; penalties act from the second task on.

    With a `checkpoint` the last finished epoch is saved, and an interrupted training goes on from there to the same
    result, bit for bit: every epoch draws its randomness from (seed, t, epoch).
    """
    added = sorted_labels(new.labels)
    classes = previous.classes + added
    examples = new if previous.exemplars is None else Examples.concatenate([previous.exemplars, new])
    targets = examples.targets_of(classes)
    context = TaskContext(previous.network, method.objective, examples.images, targets, task, seed)
    note = "" if method.schedule.trains(task) else f"the schedule trains {method.schedule.train!r} tasks"
    if not note:
        note = method.objective.missing_signal(targets)
        if note:
            warnings.warn(f"task {task}: {note}.", NothingToTrainWarning, stacklevel=3)
    network = previous.network
    if method.objective.classifies or not (note or training.epochs == 0):
        network = copy.deepcopy(network)
        with seeding.global_seed(seed, "new head", task):
            method.objective.start_task(network, context, len(added))
    before = Trained(network.eval(), classes, previous.penalty_state, previous.exemplars, (), note)
    if note or training.epochs == 0:
        return before
    run = _Run(network, previous.network, method, training, augment, seed, task)
    run.start(context, previous.penalty_state)
    epoch = 1 if checkpoint is None else run.resume(checkpoint.load())
    for e in range(epoch, training.epochs + 1):
        run.epoch(e, examples.images, targets)
        if checkpoint is not None and e < training.epochs:
            checkpoint.save(*run.snapshot())
        if on_progress is not None:
            on_progress(Progress(task, e, training.epochs, run.history[-1]["loss"], run.history[-1]["penalty"]))
    run.merge()
    _check_finite_weights(network, task, run.rate)
    _warn_if_collapsed(network, examples.images, task)
    return replace(before, network=network.eval(), history=tuple(run.history), running=run.states)


def consolidate(trained: Trained, previous: Trained, new: Examples, *, task: int, method: Method, seed: int) -> Trained:
    """Let penalties measure what they keep, and memory take its images."""
    context = TaskContext(trained.network, method.objective, new.images, new.targets_of(trained.classes), task, seed)
    kept = previous.penalty_state
    if method.schedule.trains(task):  # a network that is never trained again needs nothing that holds it
        nothing: tuple[Tensors, ...] = ({},) * len(method.penalties)
        verbs = zip(method.penalties, previous.penalty_state or nothing, trained.running or nothing, strict=True)
        kept = tuple(penalty.end_task(context, old, state) for penalty, old, state in verbs)
    exemplars = None if method.exemplars is None else method.exemplars.keep(previous.exemplars, new, trained.network)
    return replace(trained, penalty_state=kept, exemplars=exemplars, running=())


_KNOWN_ELEMENTS = 2**28  # of the old network's answers to a task, held at once: 1 GiB
_OPTIMIZER_STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")  # Adam's and SGD's


class _Run:
    """One training while it runs: network, optimizer, penalties' states, history."""

    def __init__(
        self,
        network: Embedder,
        network_old: Embedder,
        method: Method,
        training: Training,
        augment: Augmentation | None,
        seed: int,
        task: int,
    ) -> None:
        self.network = network
        self.world = distributed.current()
        # A task that starts from the initial network is a first task: nothing is old, nothing is held.
        self.first = task <= 1 or method.schedule.start == "initial"
        self.network_old = None if self.first else network_old
        self.method = method
        self.training = training
        self.augment = augment
        self.seed = seed
        self.task = task
        self.rate = training.rate(self.first)
        self.history: list[dict[str, float]] = []
        self.states: tuple[Tensors, ...] = ()
        self._answers: KnownAnswers | None = None
        # To look at a number on a GPU is to wait for it: there losses are looked at once in a while.
        self.patience = 1 if next(network.parameters()).device.type == "cpu" else 50

    def start(self, context: TaskContext, kept: tuple[Tensors, ...]) -> None:
        """Let penalties prepare (they may reparametrize the network), then make the optimizer."""
        self.states = tuple(
            dict(penalty.start_task(context, old, self.network)) if self._acts(penalty) else {}
            for penalty, old in zip(self.method.penalties, kept or ({},) * len(self.method.penalties), strict=True)
        )
        # Where each head is trained alone, the loss does not reach the old ones. A penalty's gradient of nearly zero
        # must not expose them to weight decay: Adam would make full steps of it, and wear them out.
        resting = [] if self.method.objective.spans_tasks else list(self.network.heads[:-1].parameters())
        left = {id(weight) for weight in resting}
        groups: list[dict[str, Any]] = [{"params": [w for w in self.network.parameters() if id(w) not in left]}]
        if resting:
            groups.append({"params": resting, "weight_decay": 0.0})
        decay = self.training.weight_decay
        self.optimizer: torch.optim.Optimizer
        if self.training.optimizer == "adam":
            self.optimizer = torch.optim.Adam(groups, lr=self.rate, weight_decay=decay)
        else:
            self.optimizer = torch.optim.SGD(groups, lr=self.rate, momentum=0.9, nesterov=True, weight_decay=decay)

    def _acts(self, penalty: Penalty) -> bool:
        # A gamma of zero holds nothing: such a penalty is left out, and costs nothing.
        return penalty.gamma > 0 and (not self.first or penalty.follows_path)

    def epoch(self, number: int, all_images: torch.Tensor, all_rows: torch.Tensor) -> None:
        """Train one epoch."""
        seed, task, training = self.seed, self.task, self.training
        order = seeding.generator(seed, "batches", task, number)
        if training.epoch == "shuffled":
            batches = shuffled_batches(len(all_rows), training.batch_size, order)
        else:
            balanced = class_balanced_batches(
                all_rows,
                batch_size=training.batch_size,
                images_per_class=training.images_per_class,
                epoch=training.epoch,
                generator=order,
            )
            batches = list(balanced)
        views = seeding.generator(seed, "augmentation", task, number)
        mining = seeding.generator(seed, "mining", task, number)
        device = next(self.network.parameters()).device
        _train_mode(self.network, frozen_statistics=self.method.schedule.holds_statistics(self.first))
        known = self._known(all_images, all_rows)
        waiting: list[list[torch.Tensor]] = []
        losses: list[float] = []
        penalties: list[float] = []
        layers = Layers(self.world)
        with layers.of(self.network), seeding.global_seed(seed, "layers", task, number):  # dropout and the like
            for number_of_batch, batch in enumerate(batches):
                if training.rate_schedule == "one-cycle":
                    done = (number - 1 + number_of_batch / len(batches)) / training.epochs
                    for group in self.optimizer.param_groups:
                        group["lr"] = self.rate * one_cycle(done)
                layers.share = share = self._share(len(batch))
                images = self._views(all_images, batch, share, views)
                step = Step(
                    self.network,
                    laid_out(images, device),
                    all_rows[batch].to(device),
                    objective=self.method.objective,
                    generator=mining,
                    network_old=self.network_old,
                    autocast=training.autocast,
                    share=share,
                    known_z_old=None if known is None else known.of(batch),
                )
                waiting.append(self.step(step))
                if len(waiting) < self.patience and number_of_batch < len(batches) - 1:
                    continue
                for loss, *held in _numbers(waiting):
                    losses.append(loss)
                    penalties.append(sum(held, 0.0))
                    if not math.isfinite(loss + penalties[-1]):
                        raise _diverged(task, number, len(losses), loss, penalties[-1], self.rate)
                waiting = []
        self.history.append({"loss": sum(losses) / len(losses), "penalty": sum(penalties) / len(penalties)})
        check_agreement(self.world, self.network)

    def _known(self, all_images: torch.Tensor, all_rows: torch.Tensor) -> KnownAnswers | None:
        """Return the old network's answers, made once a task, where later epochs would only compute them again."""
        if self.network_old is None or not self.world.alone:
            return None
        if not asks_old_network_once(self.method, self.training, self.augment):
            return None
        if len(all_images) * self.network_old.embedding_dim > _KNOWN_ELEMENTS:
            return None
        if self._answers is None:
            objective, autocast = self.method.objective, self.training.autocast
            self._answers = KnownAnswers(self.network_old, all_images, all_rows, objective=objective, autocast=autocast)
        return self._answers

    def _share(self, count: int) -> Share | None:
        """Return this rank's share of a batch of `count` images; None where there is one rank."""
        if self.world.alone:
            return None
        of_maps = any(penalty.needs_maps and self._acts(penalty) for penalty in self.method.penalties)
        return Share(self.world, count, of_maps=of_maps)

    def _views(
        self, all_images: torch.Tensor, batch: torch.Tensor, share: Share | None, generator: torch.Generator
    ) -> torch.Tensor:
        """Return random views of this rank's images of a batch; they are drawn for the whole batch."""
        augment = self.augment if all_images.ndim == 4 else None
        if share is None:
            images = all_images[batch]
            return images if augment is None else augment(images, generator)
        if augment is None:
            return all_images[batch[share.own]]
        if not augment.can_be_shared:
            return augment(all_images[batch], generator)[share.own]
        height, width = all_images.shape[2:]
        drawn = augment.draw(len(batch), height, width, generator)
        return augment.apply(all_images[batch[share.own]], tuple(part[share.own] for part in drawn))

    def step(self, step: Step) -> list[torch.Tensor]:
        """Take one optimizer step on L = L_ML + gamma * L_C (Eq. 7); return L_ML and each penalty's gamma * L_C."""
        loss = total = self.method.objective.loss(step)
        active = [(p, state) for p, state in zip(self.method.penalties, self.states, strict=True) if self._acts(p)]
        held = [] if self.first else [p.gamma * p.penalty(step, state) for p, state in active]
        values = [part.detach() for part in (loss, *held)]
        total = sum(held, loss)
        # Only where each step's loss is looked at, a step that makes no sense can be left out.
        if total.requires_grad and (self.patience > 1 or all(math.isfinite(value) for value in values)):
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
            average_gradients(self.world, self.network)
            self.optimizer.step()
            for p, state in active:
                p.after_step(step, state)
        return values

    def merge(self) -> None:
        """Undo what penalties did to the network."""
        for penalty, state in zip(self.method.penalties, self.states, strict=True):
            if self._acts(penalty):
                penalty.merge(self.network, state)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Tensors]]:
        """Return everything that the next epoch depends on."""
        optimizer = {
            f"{i}.{name}": value
            for i, weight in enumerate(self.network.parameters())
            for name, value in self.optimizer.state[weight].items()
        }
        tensors = {"network": dict(self.network.state_dict()), "optimizer": optimizer}
        tensors.update({f"penalty{i}": state for i, state in enumerate(self.states)})
        return {"epoch": len(self.history), "history": self.history}, tensors

    def resume(self, saved: tuple[dict[str, Any], dict[str, Tensors]] | None) -> int:
        """Go back to a snapshot, and return the number of the next epoch."""
        if saved is None:
            return 1
        data, tensors = saved
        self.history = list(data["history"])
        self.network.load_state_dict(tensors["network"])
        for i, weight in enumerate(self.network.parameters()):
            names = [name for name in _OPTIMIZER_STATE if f"{i}.{name}" in tensors["optimizer"]]
            for name in names:
                value = tensors["optimizer"][f"{i}.{name}"]
                # In the layout of the weight, as the optimizer made it: it decides which loop runs, and the last bits.
                like = value.clone() if name == "step" else torch.empty_like(weight).copy_(value)
                self.optimizer.state[weight][name] = like.detach()
        self.states = tuple(tensors[f"penalty{i}"] for i in range(len(self.states)))
        return int(data["epoch"]) + 1


def _train_mode(network: Embedder, *, frozen_statistics: bool) -> None:
    network.train()
    if frozen_statistics:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()  # running statistics stay; the affine weights still train


def _numbers(steps: list[list[torch.Tensor]]) -> list[list[float]]:
    """Return the scalars of some steps as numbers, brought to the CPU together."""
    if len(steps) == 1:
        return [[float(value) for value in steps[0]]]
    device = steps[0][0].device
    flat = iter(torch.stack([value.to(device) for values in steps for value in values]).tolist())
    return [[next(flat) for _ in values] for values in steps]


def _diverged(task: int, epoch: int, step: int, loss: float, penalty: float, rate: float) -> DivergedError:
    what = f"loss {loss:g}, penalty {penalty:g}"
    advice = "a smaller gamma or a" if penalty != 0 else "a"
    return DivergedError(
        f"training diverged in task {task}, epoch {epoch}, step {step}: {what}. The model is what it was before this "
        f"task. Try {advice} smaller learning rate (now {rate:g}), and check X for extreme values."
    )


def _check_finite_weights(network: Embedder, task: int, rate: float) -> None:
    for name, weight in network.state_dict().items():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise DivergedError(
                f"training diverged in task {task}: {name} is not finite after the last step. The model is what it was "
                f"before this task. Try a smaller learning rate (now {rate:g})."
            )


def _warn_if_collapsed(network: Embedder, images: torch.Tensor, task: int) -> None:
    """Warn when all embeddings have fallen onto one point, which a loss curve alone hardly shows."""
    z = embed(network, images[:: max(1, len(images) // 256)])
    spread = torch.linalg.vector_norm(z - z.mean(dim=0), dim=1).mean()
    length = torch.linalg.vector_norm(z, dim=1).mean()
    if spread < 0.02 * length:
        warnings.warn(
            f"task {task}: the embeddings collapsed (mean distance to their center {float(spread):.2g} at a length of "
            f"{float(length):.2g}), so classes cannot be told apart. Try mining='random', a larger margin or a smaller "
            "learning rate.",
            CollapseWarning,
            stacklevel=4,
        )
