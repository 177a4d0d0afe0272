"""How a network is trained: configuration only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..common.config import PRECISIONS, Config, number, one_of, optional, whole
from ..methods import Method
from ..objectives import Softmax
from ..readouts import MaxOverHeads


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
        optimizer: "adam" (Sec. 5), or "sgd" with Nesterov momentum 0.9; a new one for each task.
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
    epoch: Literal["full", "released", "shuffled"] = "full"
    optimizer: Literal["adam", "sgd"] = "adam"
    rate_schedule: Literal["constant", "one-cycle"] = "constant"
    precision: Literal["float32", "bfloat16"] = "float32"
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
