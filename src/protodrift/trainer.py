"""Trains one task: L = L_ML + gamma * L_C (Eq. 7).

`advance` takes what training left behind after task t-1 and the images of task t, and returns what it leaves behind
after task t. It never changes what it was given: an error or an interrupt in the middle loses nothing.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from . import seeding
from .config import Config, number, one_of, optional, whole
from .data.batches import class_balanced_batches, missing_signal
from .data.dataset import Examples
from .data.transforms import CropFlip
from .errors import CollapseWarning, DivergedError, NothingToTrainWarning
from .labels import sorted_labels
from .methods import Method
from .networks.embedder import Embedder, embed
from .penalties import TaskContext, Tensors
from .step import Step


@dataclass(frozen=True)
class Training(Config):
    """How the network is trained on one task.

    Args:
        epochs: passes over a task.
        learning_rate: of Adam, one for all layers; a new Adam each task.
        later_learning_rate: from the second task on; None: the same. A network that starts from random weights wants a
            larger one in its first task.
        weight_decay: 2e-4, as in the released code; the paper does not print it.
        batch_size: 32 in the paper (Sec. 5).
        images_per_class: images of each class in a batch: 32 = 4 classes x 8. With few classes it takes more.
        epoch: "full": every image at least once; "released": every class once with `images_per_class` images, the
            "epoch" of the released code.
    """

    epochs: int = 30
    learning_rate: float = 1e-3
    later_learning_rate: float | None = None
    weight_decay: float = 2e-4
    batch_size: int = 32
    images_per_class: int = 8
    epoch: str = "full"
    rules: ClassVar = {
        "epochs": whole(0),
        "learning_rate": number(above=0),
        "later_learning_rate": optional(number(above=0)),
        "weight_decay": number(0),
        "batch_size": whole(4),
        "images_per_class": whole(2),
        "epoch": one_of("full", "released"),
    }

    def rate(self, task: int) -> float:
        """Return the learning rate of task t, counted from 1."""
        return self.learning_rate if task == 1 or self.later_learning_rate is None else self.later_learning_rate


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
        kept: what each penalty keeps, in the order of the method's penalties.
        memory: the images kept, or None.
        history: for each epoch of the last task: mean loss, mean of gamma * L_C.
        note: why the network was not trained in the last task, or "".
    """

    network: Embedder
    kept: tuple[Tensors, ...] = ()
    memory: Examples | None = None
    history: tuple[dict[str, float], ...] = ()
    note: str = ""


def advance(
    previous: Trained,
    new: Examples,
    *,
    task: int,
    method: Method,
    training: Training,
    augment: CropFlip | None,
    seed: int,
    on_progress: OnProgress | None = None,
) -> Trained:
    """Learn task t: train the network, then let penalties and memory take what they keep.

    Args:
        previous: what the task before left behind; for the first task just the initial network.
        new: D^t.
        task: t, counted from 1.
        method, training, augment: the configuration.
        seed: the run's seed; all randomness follows from it and t.
        on_progress: called after every epoch.
    """
    examples = new if previous.memory is None else Examples.concatenate([previous.memory, new])
    result = train_network(
        previous,
        examples,
        task=task,
        method=method,
        training=training,
        augment=augment,
        seed=seed,
        on_progress=on_progress,
    )
    return close_task(result, previous, new, task=task, method=method, seed=seed)


def train_network(
    previous: Trained,
    examples: Examples,
    *,
    task: int,
    method: Method,
    training: Training,
    augment: CropFlip | None,
    seed: int,
    on_progress: OnProgress | None = None,
) -> Trained:
    """Return the network after training on `examples`; penalties act from the second task on."""
    rows = examples.rows_of(sorted_labels(examples.labels))
    note = "" if method.schedule.trains(task) else f"the schedule trains {method.schedule.train!r} tasks"
    if not note:
        note = missing_signal(rows)
        if note:
            warnings.warn(f"task {task}: {note}.", NothingToTrainWarning, stacklevel=3)
    if note or training.epochs == 0:
        return Trained(previous.network, previous.kept, previous.memory, (), note)
    network = copy.deepcopy(previous.network)
    context = TaskContext(previous.network, method.objective, examples.images, rows, task, seed)
    # A gamma of zero holds nothing: such a penalty is left out, and costs nothing.
    active = [
        (penalty, dict(penalty.start_task(context, kept)))
        for penalty, kept in zip(method.penalties, previous.kept or ({},) * len(method.penalties), strict=True)
        if task > 1 and penalty.gamma > 0
    ]
    optimizer = torch.optim.Adam(network.parameters(), lr=training.rate(task), weight_decay=training.weight_decay)
    device = next(network.parameters()).device
    _train_mode(network, frozen_statistics=task > 1 and method.schedule.batch_norm == "frozen")
    history = []
    for epoch in range(1, training.epochs + 1):
        batches = class_balanced_batches(
            rows,
            batch_size=training.batch_size,
            images_per_class=training.images_per_class,
            epoch=training.epoch,
            generator=seeding.generator(seed, "batches", task, epoch),
        )
        views = seeding.generator(seed, "augmentation", task, epoch)
        mining = seeding.generator(seed, "mining", task, epoch)
        losses, penalties = [], []
        with seeding.global_seed(seed, "layers", task, epoch):  # dropout and the like
            for batch in batches:
                images = examples.images[batch]
                if augment is not None and images.ndim == 4:
                    images = augment(images, views)
                step = Step(
                    network,
                    images.to(device),
                    rows[batch].to(device),
                    generator=mining,
                    network_old=previous.network if task > 1 else None,
                )
                loss = method.objective.loss(step)
                held = sum((p.gamma * p.penalty(step, state) for p, state in active), torch.zeros((), device=device))
                total = loss + held if active else loss  # Eq. 7
                losses.append(float(loss.detach()))
                penalties.append(float(held.detach()))
                if not torch.isfinite(total.detach()):
                    raise _diverged(task, epoch, len(losses), losses[-1], penalties[-1], training)
                if not total.requires_grad:
                    continue
                optimizer.zero_grad(set_to_none=True)
                total.backward()
                optimizer.step()
                for penalty, state in active:
                    penalty.after_step(step, state)
        history.append({"loss": sum(losses) / len(losses), "penalty": sum(penalties) / len(penalties)})
        if on_progress is not None:
            on_progress(Progress(task, epoch, training.epochs, history[-1]["loss"], history[-1]["penalty"]))
    network.eval()
    _check_finite_weights(network, task, training)
    _warn_if_collapsed(network, examples.images, task)
    return Trained(network, previous.kept, previous.memory, tuple(history), "")


def close_task(trained: Trained, previous: Trained, new: Examples, *, task: int, method: Method, seed: int) -> Trained:
    """Let penalties measure what they keep, and memory take its images."""
    rows = new.rows_of(sorted_labels(new.labels))
    context = TaskContext(trained.network, method.objective, new.images, rows, task, seed)
    before = previous.kept or ({},) * len(method.penalties)
    kept = previous.kept
    if method.schedule.trains(task):  # a network that is never trained again needs nothing that holds it
        kept = tuple(penalty.end_task(context, old) for penalty, old in zip(method.penalties, before, strict=True))
    memory = None if method.memory is None else method.memory.keep(previous.memory, new)
    return Trained(trained.network, kept, memory, trained.history, trained.note)


def _train_mode(network: Embedder, *, frozen_statistics: bool) -> None:
    network.train()
    if frozen_statistics:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()  # running statistics stay; the affine weights still train


def _diverged(task: int, epoch: int, step: int, loss: float, penalty: float, training: Training) -> DivergedError:
    what = f"loss {loss:g}, penalty {penalty:g}"
    advice = "a smaller gamma or a" if penalty != 0 else "a"
    return DivergedError(
        f"training diverged in task {task}, epoch {epoch}, step {step}: {what}. The model is what it was before this "
        f"task. Try {advice} smaller learning rate (now {training.rate(task):g}), and check X for extreme values."
    )


def _check_finite_weights(network: Embedder, task: int, training: Training) -> None:
    for name, weight in network.state_dict().items():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise DivergedError(
                f"training diverged in task {task}: {name} is not finite after the last step. The model is what it was "
                f"before this task. Try a smaller learning rate (now {training.rate(task):g})."
            )


def _warn_if_collapsed(network: Embedder, images: torch.Tensor, task: int) -> None:
    """Warn when all embeddings have fallen onto one point, which a loss curve alone hardly shows."""
    z = embed(network, images[:: max(1, len(images) // 256)])
    spread = torch.linalg.vector_norm(z - z.mean(dim=0), dim=1).mean()
    length = torch.linalg.vector_norm(z, dim=1).mean()
    if spread < 0.02 * length:
        warnings.warn(
            f"task {task}: the embeddings collapsed (mean distance to their centre {float(spread):.2g} at a length of "
            f"{float(length):.2g}), so classes cannot be told apart. Try mining='random', a larger margin or a smaller "
            "learning rate.",
            CollapseWarning,
            stacklevel=4,
        )
