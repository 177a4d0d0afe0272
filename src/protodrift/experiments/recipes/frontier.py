"""The budget `frontier`: the best rows that are known for two cores. Untrained patches are the bar for trained ones."""

from __future__ import annotations

from dataclasses import replace

from ...methods import METHODS, Method
from ...readouts import StreamingLDA
from ...training.config import Training
from ..recipe import Recipe

PATCHES_SHRINKAGE = 0.01
"""Chosen on a fifth of the training images, among 0.003, 0.01, 0.03, 0.1 and 0.2."""

TRAINING = Training(
    epochs=30,
    later_epochs=10,
    learning_rate=0.2,
    later_learning_rate=0.02,
    weight_decay=5e-4,
    later_weight_decay=2e-4,
    batch_size=128,
    epoch="shuffled",
    optimizer="sgd",
    rate_schedule="one-cycle",
    precision="bfloat16",
)


def patches_row() -> Method:
    """Return discriminant analysis of untrained patches, with the shrinkage for fifty thousand images."""
    return replace(METHODS["Patches+SLDA"], readout=StreamingLDA(shrinkage=PATCHES_SHRINKAGE))


def cifar100(recipe: Recipe) -> Recipe:
    """Return a split of CIFAR-100 with its frontier rows."""
    return replace(recipe, rows=(("Patches+SLDA", patches_row()),), budget="frontier", table="")


def eleven_tasks(recipe: Recipe) -> Recipe:
    """Return fifty classes, then ten tasks of five: frozen rows, learned rows and both beside each other."""
    rows = {name: METHODS[name] for name in ("FeCAM", "ACIL", "LwF+NCM")}
    return replace(
        cifar100(recipe),
        rows=(*cifar100(recipe).rows, *rows.items()),
        policy="trivial",
        warmup=None,
        classifier_training=TRAINING,
    )
