"""Trains one task: L = L_ML + gamma * L_C (Eq. 7).

`train_network` takes what training left behind after task t-1 and the images of task t, and returns what it leaves
behind after task t; `consolidate` lets penalties and exemplars take what they keep. Neither changes what it was given:
an error or an interrupt in the middle loses nothing.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..common import seeding
from ..common.finite import check_finite, name_of
from ..common.labels import Label, sorted_labels
from ..common.progress import OnProgress, Progress
from ..data.batches import class_balanced_batches, shuffled_batches
from ..data.examples import Examples
from ..data.views import Augmentation, share_of
from ..distributed.batches import Layers, Share, average_gradients, check_agreement
from ..distributed.world import ALONE, World
from ..errors import CollapseWarning, DivergedError, NothingToTrainWarning
from ..methods import Method
from ..networks.embedder import Embedder, embed, laid_out
from ..penalties import Penalty, Tensors
from .checkpoint import Checkpoint, Snapshot, detached, restore, snapshot, trained_weights
from .config import Training
from .context import TaskContext
from .optimizer import clip_gradients, make_optimizer, rate_at
from .step import KnownAnswers, Step
from .teacher import adapted


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


def asks_old_network_once(method: Method, training: Training, augment: Augmentation | None) -> bool:
    """Return whether the old network's answers are computed once per task: views never change, and come again."""
    asks = any(penalty.asks_old_network for penalty in method.penalties)
    maps = any(penalty.needs_maps for penalty in method.penalties)  # these are too large to be kept
    return asks and not maps and augment is None and training.epochs > 1 and training.epoch != "released"


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
    world: World = ALONE,
) -> Trained:
    """Train the network on D^t and the exemplars kept; penalties act from the second task on.

    Args:
        previous: what the task before left behind; for the first task just the initial network.
        new: D^t.
        task: t, counted from 1.
        method, training, augment: the configuration.
        seed: the run's seed; all randomness follows from it and t.
        on_progress: called after every epoch.
        checkpoint: where the last finished epoch is kept.
        world: the ranks that train together.

    With a `checkpoint` the last finished epoch is saved, and an interrupted training goes on from there to the same
    result, bit for bit: every epoch draws its randomness from (seed, t, epoch).
    """
    training = training.of_task(method.schedule.is_first(task))
    added = sorted_labels(new.labels)
    classes = previous.classes + added
    examples = new if previous.exemplars is None else Examples.concatenate([previous.exemplars, new])
    targets = examples.targets_of(classes)
    context = TaskContext(previous.network, method.objective, examples.images, targets, task, seed, world)
    note = "" if method.schedule.trains(task) else f"the schedule trains {method.schedule.train!r} tasks"
    if not note:
        note = method.objective.missing_signal(targets)
        if not any(weight.requires_grad for weight in previous.network.parameters()):
            note = "the network has no weights that can be trained; it stays as it is"
        if note:
            warnings.warn(f"task {task}: {note}.", NothingToTrainWarning, stacklevel=3)
    network = previous.network
    if method.objective.classifies or not (note or training.epochs == 0):
        network = copy.deepcopy(network)
        with seeding.global_seed(seed, "new head", task):
            method.objective.start_task(network, context, len(added))
    before = Trained(network.eval(), classes, previous.penalty_state, previous.exemplars, (), note)
    if note or training.epochs == 0:
        if network is not previous.network:
            method.objective.merge(network)
        return before
    run = _Run(network, previous.network, method, training, augment, seed, task, world)
    run.start(context, previous.penalty_state)
    run.adapt_old_network(examples.images)
    epoch = 1 if checkpoint is None else run.resume(checkpoint.load())
    for e in range(epoch, training.epochs + 1):
        run.epoch(e, examples.images, targets)
        if checkpoint is not None and e < training.epochs:
            checkpoint.save(*run.snapshot())
        if on_progress is not None:
            on_progress(Progress(task, e, training.epochs, run.history[-1]["loss"], run.history[-1]["penalty"]))
    run.merge()
    _check_finite_weights(network, task, training.learning_rate)
    _warn_if_collapsed(network, examples.images, task)
    return replace(before, network=network.eval(), history=tuple(run.history), running=tuple(map(detached, run.states)))


def consolidate(
    trained: Trained,
    previous: Trained,
    new: Examples,
    *,
    task: int,
    method: Method,
    seed: int,
    world: World = ALONE,
) -> Trained:
    """Let penalties measure what they keep, and exemplars be chosen.

    Args:
        trained: what `train_network` returned.
        previous, new, task, method, seed, world: what it was given.
    """
    targets = new.targets_of(trained.classes)
    # Importances are measured with weights exchanged for a while: never those that the classifier answers with.
    network = copy.deepcopy(trained.network) if trained.network is previous.network else trained.network
    context = TaskContext(network, method.objective, new.images, targets, task, seed, world)
    states = previous.penalty_state
    if method.schedule.trains(task):  # a network that is never trained again needs nothing that holds it
        nothing: tuple[Tensors, ...] = ({},) * len(method.penalties)
        measured = zip(method.penalties, states or nothing, trained.running or nothing, strict=True)
        states = tuple(penalty.end_task(context, old, state) for penalty, old, state in measured)
        for penalty, state in zip(method.penalties, states, strict=True):
            check_finite(penalty, "what it keeps for", state)
    exemplars = None if method.exemplars is None else method.exemplars.keep(previous.exemplars, new, context.embed)
    return replace(trained, penalty_state=states, exemplars=exemplars, running=())


_KNOWN_ELEMENTS = 2**28  # of the old network's answers to a task, held at once: 1 GiB


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
        world: World = ALONE,
    ) -> None:
        self.network = network
        self.world = world
        self.first = method.schedule.is_first(task)
        self.method, self.training, self.augment = method, training, augment
        holding = not self.first or any(self._acts(p) and p.acts_first for p in method.penalties)
        self.network_old = network_old if holding else None
        self.seed, self.task = seed, task
        self.history: list[dict[str, float]] = []
        self.states: tuple[Tensors, ...] = ()
        self._answers: KnownAnswers | None = None
        # To look at a number on a GPU is to wait for it: there losses are looked at once in a while.
        self.patience = 1 if next(network.parameters()).device.type == "cpu" else 50

    def start(self, context: TaskContext, penalty_states: tuple[Tensors, ...]) -> None:
        """Let penalties prepare (they may reparametrize the network), then make the optimizer."""
        penalties = self.method.penalties
        with seeding.global_seed(self.seed, "penalties", self.task):
            self.states = tuple(
                dict(penalty.start_task(context, old, self.network)) if self._acts(penalty) else {}
                for penalty, old in zip(penalties, penalty_states or ({},) * len(penalties), strict=True)
            )
        # Where each head is trained alone, the loss does not reach the old ones. A penalty's gradient of nearly zero
        # must not expose them to weight decay: Adam would make full steps of it, and wear them out.
        resting = [] if self.method.objective.spans_tasks else list(self.network.heads[:-1].parameters())
        own = self.method.objective.weight_groups(self.network)
        left = {id(weight) for weight in [*resting, *(weight for group in own for weight in group["params"])]}
        self.weights = trained_weights(self.network, self.states)
        groups: list[dict[str, Any]] = [{"params": [weight for weight in self.weights if id(weight) not in left]}]
        if resting:
            groups.append({"params": resting, "weight_decay": 0.0})
        groups += own
        self.optimizer = make_optimizer(groups, self.training)

    def adapt_old_network(self, images: torch.Tensor) -> None:
        """Give the network that penalties ask the statistics of this task's views, where the schedule says so."""
        if self.network_old is None or self.method.schedule.batch_norm != "adapted":
            return
        draws = seeding.generator(self.seed, "statistics", self.task)
        batches = shuffled_batches(len(images), self.training.batch_size, draws)
        self.network_old = adapted(self.network_old, (_views(images, b, self.augment, None, draws) for b in batches))

    def _acts(self, penalty: Penalty) -> bool:
        # A gamma of zero holds nothing: such a penalty is left out, and costs nothing.
        return penalty.gamma > 0 and (not self.first or penalty.follows_path or penalty.acts_first)

    def epoch(self, number: int, images: torch.Tensor, targets: torch.Tensor) -> None:
        """Train one epoch on all images, (N, ...), of classes (N,)."""
        batches = _batches(targets, self.training, seeding.generator(self.seed, "batches", self.task, number))
        _train_mode(self.network, frozen_statistics=self.method.schedule.holds_statistics(self.first))
        waiting: list[list[torch.Tensor]] = []
        losses: list[float] = []
        penalties: list[float] = []
        layers = Layers(self.world)
        # The seed is for dropout and the like.
        with layers.of(self.network), seeding.global_seed(self.seed, "layers", self.task, number):
            for at, step in enumerate(self._steps(number, batches, images, targets)):
                rate = rate_at(self.training, (number - 1 + at / len(batches)) / self.training.epochs)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate * group.get("rate", 1.0)
                layers.share = step.share
                waiting.append(self.step(step))
                if len(waiting) < self.patience and at < len(batches) - 1:
                    continue
                for loss, *held in _numbers(waiting):
                    losses.append(loss)
                    penalties.append(sum(held, 0.0))
                    if not math.isfinite(loss + penalties[-1]):
                        raise self._diverged(number, len(losses), loss, held, step)
                waiting = []
        self.history.append({"loss": sum(losses) / len(losses), "penalty": sum(penalties) / len(penalties)})
        check_agreement(self.world, self.network)

    def _steps(
        self, number: int, batches: list[torch.Tensor], images: torch.Tensor, targets: torch.Tensor
    ) -> Iterator[Step]:
        """Yield the steps of an epoch: random views of each batch, and what the objective draws for it."""
        views = seeding.generator(self.seed, "augmentation", self.task, number)
        mining = seeding.generator(self.seed, "mining", self.task, number)
        device = next(self.network.parameters()).device
        known = self._known(images, targets)
        for batch in batches:
            share, objective = self._share(len(batch)), self.method.objective
            own_targets = targets[batch].to(device)
            drawn = objective.draw(own_targets, mining)
            own_views = _views(images, batch, self.augment, share, views)
            own = slice(None) if share is None else share.own
            own_views, own_targets = objective.shown(self.network, own_views, own_targets, drawn, own)
            yield Step(
                self.network,
                laid_out(own_views, device),
                own_targets,
                objective=objective,
                drawn=drawn,
                network_old=self.network_old,
                autocast=self.training.autocast,
                share=share,
                known_z_old=None if known is None else known.of(batch),
            )

    def _known(self, images: torch.Tensor, targets: torch.Tensor) -> KnownAnswers | None:
        """Return the old network's answers, made once per task, where later epochs would only compute them again."""
        if self.network_old is None or not self.world.alone:
            return None
        if not asks_old_network_once(self.method, self.training, self.augment):
            return None
        if len(images) * self.network_old.embedding_dim > _KNOWN_ELEMENTS:
            return None
        if self._answers is None:
            objective, autocast = self.method.objective, self.training.autocast
            self._answers = KnownAnswers(self.network_old, images, targets, objective=objective, autocast=autocast)
        return self._answers

    def _share(self, count: int) -> Share | None:
        """Return this rank's share of a batch of `count` images; None where there is one rank."""
        if self.world.alone:
            return None
        of_maps = any(penalty.needs_maps and self._acts(penalty) for penalty in self.method.penalties)
        return Share(self.world, count, of_maps=of_maps)

    def step(self, step: Step) -> list[torch.Tensor]:
        """Take one optimizer step on L = L_ML + gamma * L_C (Eq. 7); return L_ML and each penalty's gamma * L_C."""
        active = [(p, state) for p, state in zip(self.method.penalties, self.states, strict=True) if self._acts(p)]
        loss = step.loss
        held = [p.gamma * p.penalty(step, state) for p, state in active if not self.first or p.acts_first]
        values = [part.detach() for part in (loss, *held)]
        total = sum(held, loss)
        # Only where each step's loss is looked at, a step that makes no sense can be left out.
        if total.requires_grad and (self.patience > 1 or all(math.isfinite(value) for value in values)):
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
            average_gradients(self.world, self.weights)
            clip_gradients(self.weights, self.training.clip)
            self.optimizer.step()
            for p, state in active:
                p.after_step(step, state)
        return values

    def _diverged(self, epoch: int, number: int, loss: float, held: list[float], step: Step) -> DivergedError:
        """Return the error for a loss or penalty that is not finite; it names the part that it came from."""
        acting = [penalty for penalty in self.method.penalties if self._acts(penalty)]
        wrong = [name_of(p) for p, value in zip(acting, held, strict=False) if not math.isfinite(value)]
        if not math.isfinite(loss):
            wrong.insert(0, name_of(self.method.objective))
        if not bool(torch.isfinite(step.z).all()):
            wrong.insert(0, name_of(self.network.backbone))  # the others saw what the network gave them
        advice = "a smaller gamma or a" if sum(held, 0.0) != 0 else "a"
        return DivergedError(
            f"training diverged in task {self.task}, epoch {epoch}, step {number}: loss {loss:g}, penalty "
            f"{sum(held, 0.0):g} (of {', '.join(wrong)}). The model is what it was before this task. Try {advice} "
            f"smaller learning rate (now {self.training.learning_rate:g}), and check X for extreme values."
        )

    def merge(self) -> None:
        """Undo what the objective and penalties did to the network."""
        for penalty, state in zip(self.method.penalties, self.states, strict=True):
            if self._acts(penalty):
                penalty.merge(self.network, state)
        self.method.objective.merge(self.network)

    def snapshot(self) -> Snapshot:
        """Return everything that the next epoch depends on."""
        return snapshot(self.network, self.optimizer, self.states, self.history)

    def resume(self, saved: Snapshot | None) -> int:
        """Go back to a snapshot, and return the number of the next epoch."""
        if saved is not None:
            data, tensors = saved
            self.history = list(data["history"])
            self.states = restore(tensors, self.network, self.optimizer, self.states)
        return len(self.history) + 1


def _batches(targets: torch.Tensor, training: Training, generator: torch.Generator) -> list[torch.Tensor]:
    """Return the positions of each batch's images in an epoch."""
    if training.epoch == "shuffled":
        return shuffled_batches(len(targets), training.batch_size, generator)
    return list(
        class_balanced_batches(
            targets,
            batch_size=training.batch_size,
            images_per_class=training.images_per_class,
            epoch=training.epoch,
            generator=generator,
        )
    )


def _views(
    images: torch.Tensor,
    batch: torch.Tensor,
    augment: Augmentation | None,
    share: Share | None,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return random views of this rank's images of a batch; they are drawn for the whole batch."""
    own = slice(None) if share is None else share.own
    if augment is None or images.ndim != 4:
        return images[batch[own]]
    if share is None or not augment.can_be_shared:
        return augment(images[batch], generator)[own]
    height, width = images.shape[2:]
    drawn = augment.draw(len(batch), height, width, generator)
    return augment.apply(images[batch[own]], share_of(drawn, own))


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
