"""CIFAR-100 with ResNet-32: Table 5, Figs. 7 and 11, the CIFAR part of Fig. 2; and the field's ten equal tasks.

The constants of the `cpu` budget were chosen on validation images; `results/cifar100_search.md` records the search.
"""

from __future__ import annotations

from dataclasses import replace

from ...drift import SDC
from ...objectives import Triplet
from ...penalties import EWC, MAS, LwF
from ...training.config import Training, Warmup
from ..recipe import Recipe
from ..setup import Network
from . import frontier
from .rows import (
    CPU_PENALTIES,
    EXEMPLARS,
    PAPER_PENALTIES,
    SOFTMAX,
    Penalties,
    Rows,
    check_budget,
    embedding_rows,
    frozen_rows,
    named_rows,
)

CLASS_ORDER = 1993  # the released code's numpy seed
DRIFT = SDC(sigma=0.2)  # Sec. 5: 0.3, CIFAR-100 0.2
OBJECTIVE = Triplet(margin=0.2, mining="random")  # m is not printed and the released 0 collapses; no hard mining here

# Sec. 5. One "epoch" is every class once with 8 images, as in the released code: 50 are 51 steps in a later task.
PAPER_TRAINING = Training(epochs=50, learning_rate=1e-6, epoch="released")

CPU_TRAINING = Training(
    epochs=2, learning_rate=1e-5, later_learning_rate=1e-5, batch_size=128, rate_schedule="one-cycle"
)
TEN_RATE = 3e-5  # of later tasks in ten equal ones: a network of ten classes has more to learn
CLASSIFIER = Training(epochs=2, learning_rate=1e-3, later_learning_rate=1e-4, batch_size=128, rate_schedule="one-cycle")
EXEMPLAR = replace(CLASSIFIER, later_learning_rate=1e-3)  # old images hold the network, too
SOFTMAX_PENALTIES: Penalties = {"EWC": (EWC(gamma=1e6),), "MAS": (MAS(gamma=10.0),)}

WARMUP = Training(  # not in the paper; the released code has one. As is usual for CIFAR, with one cycle of the rate
    epochs=160,
    learning_rate=0.2,
    weight_decay=5e-4,
    batch_size=128,
    epoch="shuffled",
    optimizer="sgd",
    rate_schedule="one-cycle",
)


# For comparing drift estimators: small, and at a rate at which not moving the prototypes costs points.
DRIFT_PENALTIES: Penalties = {**PAPER_PENALTIES, "E-MAS": (MAS(gamma=1.0),), "E-LwF": (LwF(gamma=0.1),)}
DRIFT_TRAINING = replace(CPU_TRAINING, epochs=6, learning_rate=1e-4, later_learning_rate=3e-5, batch_size=64)


def eleven_tasks(budget: str = "cpu") -> Recipe:
    """Return Table 5 and Fig. 7: fifty classes, then ten tasks of five."""
    check_budget(budget, "drift", "frontier")
    if budget == "drift":
        return _small(eleven_tasks("cpu"))
    if budget == "frontier":
        return frontier.eleven_tasks(eleven_tasks("cpu"))
    paper = budget == "paper"
    rows = _rows(PAPER_PENALTIES if paper else CPU_PENALTIES)
    return Recipe(
        name="cifar100-eleven",
        about="Table 5, Figs. 2, 7, 11: CIFAR-100 in eleven tasks, 50 + 10x5, ResNet-32 after a warm-up",
        data="cifar100",
        rows=tuple(rows.items()),
        first=50,
        step=5,
        class_order=CLASS_ORDER,
        size=32,
        view="cifar",
        network=Network("resnet32"),
        training=PAPER_TRAINING if paper else CPU_TRAINING,
        classifier_training=_as_long_as_the_paper(CLASSIFIER) if paper else CLASSIFIER,
        exemplar_training=_as_long_as_the_paper(EXEMPLAR) if paper else EXEMPLAR,
        warmup=Warmup(WARMUP if paper else replace(WARMUP, epochs=30)),
        table="table5_eleven_tasks/cifar100",
        budget=budget,
        mean_images=None if paper else 50,
    )


def _as_long_as_the_paper(training: Training) -> Training:
    """Return our rates, which the paper does not print for rows that classify, with its epochs and batches."""
    return replace(training, epochs=PAPER_TRAINING.epochs, batch_size=PAPER_TRAINING.batch_size)


def ten_tasks(budget: str = "cpu") -> Recipe:
    """Return the field's later protocol: ten tasks of ten classes, a cold start, where drift matters most."""
    if budget == "frontier":
        return frontier.cifar100(ten_tasks("cpu"))
    recipe = replace(
        eleven_tasks(budget),
        name="cifar100-ten",
        about="CIFAR-100 in ten equal tasks (cold start), ResNet-32 after a warm-up on the first ten classes",
        tasks=10,
        first=None,
        step=None,
        table="",
    )
    if budget == "cpu":
        return replace(recipe, training=replace(CPU_TRAINING, later_learning_rate=TEN_RATE))
    # Ten classes of a hundred images: an epoch is eight steps, and fifteen of them are no warm-up.
    return recipe if budget == "paper" else warmed(recipe, epochs=40)


def _small(recipe: Recipe) -> Recipe:
    """Return the budget `drift`: a hundred training and fifty test images per class, a warm-up of fifteen epochs."""
    small = replace(
        recipe,
        rows=tuple({**frozen_rows(OBJECTIVE), **embedding_rows(OBJECTIVE, DRIFT_PENALTIES, DRIFT)}.items()),
        train_images=100,
        test_images=50,
        training=DRIFT_TRAINING,
        table="",
        budget="drift",
    )
    return warmed(small, epochs=15)


def warmed(recipe: Recipe, epochs: int) -> Recipe:
    """Return the recipe with a warm-up of so many epochs."""
    assert recipe.warmup is not None
    return replace(recipe, warmup=replace(recipe.warmup, training=replace(recipe.warmup.training, epochs=epochs)))


def joint(budget: str = "cpu") -> Recipe:
    """Return Fig. 7's upper bound after the last task: a classifier of all classes at once."""
    check_budget(budget)
    training = replace(WARMUP, epochs=160 if budget == "paper" else 30)
    return Recipe(
        name="cifar100-joint",
        about="Fig. 7's joint training for its last task: CIFAR-100 in one task of a hundred classes",
        data="cifar100",
        rows=tuple(named_rows(["FT"]).items()),
        tasks=1,
        class_order=CLASS_ORDER,
        size=32,
        view="cifar",
        network=Network("resnet32"),
        training=training,
        classifier_training=training,
        budget=budget,
    )


def _rows(penalties: Penalties) -> Rows:
    return {
        **frozen_rows(OBJECTIVE),
        **embedding_rows(OBJECTIVE, penalties, DRIFT),
        **named_rows((*SOFTMAX, *EXEMPLARS, "Joint"), SOFTMAX_PENALTIES),
    }
