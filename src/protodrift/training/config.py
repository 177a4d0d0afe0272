"""How a network is trained: configuration only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch

from ..common.config import PRECISIONS, Config, flag, number, one_of, optional, whole
from ..methods import Method
from ..objectives import RotatedSoftmax, Softmax
from ..readouts import MaxOverHeads


def _shares(value: Any) -> str | None:
    shares = value if isinstance(value, tuple) else ()
    numbers = all(isinstance(share, (int, float)) and 0 < share < 1 for share in shares)
    if not shares or not numbers or any(a >= b for a, b in pairwise(shares)):
        return "must be increasing shares of the steps between 0 and 1, such as (0.3, 0.6, 0.8)"
    return None


_LATER = ("epochs", "learning_rate", "weight_decay", "milestones")


@dataclass(frozen=True)
class Training(Config):
    """How the network is trained on one task.

    Args:
        epochs: passes over a task.
        later_epochs: from the second task on; None: the same.
        learning_rate: one for all layers; its highest value where the schedule changes it.
        later_learning_rate: from the second task on; None: the same. A network that starts from random weights needs a
            larger one in its first task, and with a large one later it forgets more than drift compensation can mend.
        weight_decay: 2e-4, as in the released code; the paper does not print it. Of "adam" and "sgd" it is part of the
            gradient, of "adamw" it is apart from it: each step makes weights smaller by rate * decay of them.
        later_weight_decay: from the second task on; None: the same.
        batch_size: 32 in the paper (Sec. 5).
        images_per_class: images of each class in a batch: 32 = 4 classes x 8. With few classes it takes more.
        epoch: "full": every image at least once, in class-balanced batches; "released": every class once with
            `images_per_class` images, the "epoch" of the released code; "shuffled": every image once, in random order,
            for objectives that need no positives.
        optimizer: "adam" (Sec. 5), "adamw", or "sgd" with momentum; a new one for each task.
        momentum, nesterov: of "sgd".
        clip: the gradient of all weights together is made no longer than this; None: as long as it is.
        rate_schedule: "constant"; "one-cycle": the rate rises from 1/25 to its peak over the first 30 % of a task's
            steps and falls to nearly zero, both as a cosine; "cosine": it falls to zero as half a cosine; "milestones":
            it is divided by ten at some shares of the steps.
        rise: of "cosine" and "milestones": the share of the steps over which the rate first rises, linearly, from 1/25.
        milestones: the shares; (0.3, 0.6, 0.8) are epochs 60, 120 and 160 of 200.
        later_milestones: from the second task on; None: the same.
        precision: "float32", or "bfloat16": the backbones compute in bfloat16 (autocast); weights, optimizer, embedding
            head, losses and penalties stay float32, and so do importances and all embeddings that prototypes and drift
            are made of. It pays on GPUs, and on CPUs with instructions for it (AVX512-BF16, AMX); elsewhere it is
            slower.
    """

    epochs: int = 10
    later_epochs: int | None = None
    learning_rate: float = 1e-3
    later_learning_rate: float | None = None
    weight_decay: float = 2e-4
    later_weight_decay: float | None = None
    batch_size: int = 32
    images_per_class: int = 8
    epoch: Literal["full", "released", "shuffled"] = "full"
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    momentum: float = 0.9
    nesterov: bool = True
    clip: float | None = None
    rate_schedule: Literal["constant", "one-cycle", "cosine", "milestones"] = "constant"
    rise: float = 0.0
    milestones: tuple[float, ...] = (0.3, 0.6, 0.8)
    later_milestones: tuple[float, ...] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    rules: ClassVar = {
        "epochs": whole(0),
        "later_epochs": optional(whole(0)),
        "learning_rate": number(above=0),
        "later_learning_rate": optional(number(above=0)),
        "weight_decay": number(0),
        "later_weight_decay": optional(number(0)),
        "batch_size": whole(4),
        "images_per_class": whole(2),
        "epoch": one_of("full", "released", "shuffled"),
        "optimizer": one_of("adam", "adamw", "sgd"),
        "momentum": number(0, 0.9999),
        "nesterov": flag,
        "clip": optional(number(above=0)),
        "rate_schedule": one_of("constant", "one-cycle", "cosine", "milestones"),
        "rise": number(0, 0.9),
        "milestones": _shares,
        "later_milestones": optional(_shares),
        "precision": one_of(*PRECISIONS),
    }

    def __post_init__(self) -> None:
        for name in ("milestones", "later_milestones"):  # a list, as from --set, is as good
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        super().__post_init__()

    @property
    def autocast(self) -> torch.dtype | None:
        """The type in which backbones compute; None: that of their weights."""
        return torch.bfloat16 if self.precision == "bfloat16" else None

    def of_task(self, first: bool) -> Training:
        """Return how a first task is trained, or a later one: nothing in it is said of other tasks."""
        changes: dict[str, Any] = {}
        for name in _LATER:
            later = getattr(self, f"later_{name}")
            if not first and later is not None:
                changes[name] = later
            changes[f"later_{name}"] = None
        return replace(self, **changes)


@dataclass(frozen=True)
class Warmup(Config):
    """A training of the backbone as a plain classifier of the first task's classes, before the first task.

    The paper trains CIFAR-100 and ImageNet-Subset "without pre-training"; its released code starts them from such a
    warm-up, without which nothing works. Here it is a stage that can be seen. Its head is thrown away.

    Args:
        training: how it is trained.
        smoothing: label smoothing of the cross-entropy.
        rotations: rotation labels (`RotatedSoftmax`).
    """

    training: Training = Training(
        epochs=160, learning_rate=0.2, weight_decay=5e-4, batch_size=128, epoch="shuffled", optimizer="sgd",
        rate_schedule="one-cycle",
    )  # fmt: skip
    smoothing: float = 0.0
    rotations: bool = False
    rules: ClassVar = {"smoothing": number(0, 0.9), "rotations": flag}

    @property
    def method(self) -> Method:
        """The warm-up as a method: task 0."""
        objective = RotatedSoftmax if self.rotations else Softmax
        return Method(objective(smoothing=self.smoothing), readout=MaxOverHeads())
