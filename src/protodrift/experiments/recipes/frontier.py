"""The budget `frontier`: the best rows that are known for two cores. Untrained patches are the bar for trained ones."""

from __future__ import annotations

from dataclasses import replace

from ...drift import Drift, GaussianProcess, LocalLinear, Oracle, RelativeSDC, RidgeToIdentity
from ...methods import METHODS, Method, Schedule
from ...objectives import Softmax
from ...penalties import LwF
from ...readouts import FeCAM, LiftedRidge, NearestClassMean, Readout, RidgeClassifier, StreamingLDA
from ...training.config import Training
from ..recipe import Recipe

PATCHES_SHRINKAGE = 0.01
"""Chosen on a fifth of the training images, among 0.003, 0.01, 0.03, 0.1 and 0.2."""

HELD_OUT = 0.1
"""Of the training images in eleven tasks: they chose what follows, and no training saw them."""

TRAINING = Training(
    epochs=16,
    later_epochs=6,
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

READOUTS: dict[str, Readout] = {
    "NCM": NearestClassMean(),
    "LDA": StreamingLDA(shrinkage=0.01),
    "ridge": RidgeClassifier(),
    "FeCAM": FeCAM(),
    "lift": LiftedRidge(4096),
}

DRIFTS: dict[str, Drift] = {
    "SDC": RelativeSDC(),  # features of any length: the paper's sigma is for unit vectors
    "map": RidgeToIdentity(),
    "local": LocalLinear(),
    "GP": GaussianProcess(),
    "oracle": Oracle(),
}

FIXED = Method(Softmax(), schedule=Schedule(train="first"))
LEARNED = Method(Softmax(), LwF(gamma=10.0, over="all"))
SMALL_PATCHES = replace(METHODS["Patches+SLDA"], backbone="patches-400")


def patches_row() -> Method:
    """Return discriminant analysis of untrained patches, with the shrinkage for fifty thousand images."""
    return replace(METHODS["Patches+SLDA"], readout=StreamingLDA(shrinkage=PATCHES_SHRINKAGE))


def cifar100(recipe: Recipe) -> Recipe:
    """Return a split of CIFAR-100 with its frontier rows."""
    return replace(recipe, rows=(("Patches+SLDA", patches_row()),), budget="frontier", table="")


def eleven_tasks(recipe: Recipe) -> Recipe:
    """Return fifty classes, then ten tasks of five: a network that stays as the first task left it, one that goes on
    learning and is compensated, and both beside what never drifts, by the same read-outs."""
    lda = READOUTS["LDA"]
    rows = {"Patches-400+LDA": replace(SMALL_PATCHES, readout=lda)}
    for name, readout in READOUTS.items():
        rows[f"Fixed+{name}"] = replace(FIXED, readout=readout)
        rows[f"Learned+{name}"] = replace(LEARNED, readout=readout)
        for moved, drift in DRIFTS.items():
            rows[f"Learned+{moved}+{name}"] = replace(LEARNED, readout=readout, drift=drift)
    for moved, drift in DRIFTS.items():
        rows[f"Fixed beside Learned+{moved}+LDA"] = replace(LEARNED, readout=lda, drift=drift, beside=FIXED)
        rows[f"Patches-400 beside Learned+{moved}+LDA"] = replace(
            LEARNED, readout=lda, drift=drift, beside=SMALL_PATCHES
        )
    rows["Patches-400 beside Fixed+LDA"] = replace(FIXED, readout=lda, beside=SMALL_PATCHES)
    rows["Patches beside Fixed+LDA"] = replace(FIXED, readout=lda, beside=patches_row())
    return replace(
        cifar100(recipe),
        rows=(*cifar100(recipe).rows, *rows.items()),
        held_out=HELD_OUT,
        warmup=None,
        classifier_training=TRAINING,
    )
