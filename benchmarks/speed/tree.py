"""Case f: nine rows of the eleven-task protocol as one tree of shared stages, against each row alone.

The rows, tasks and warm-up of the recipe `cifar100-eleven` (fifty classes, then ten tasks of five) at small scale:
generated images of 16 x 16, a small network, the recipe's own epochs on both sides, and as large a share of test images
and of images for true means as in CIFAR-100. A row alone has a store of its own and nothing in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from protodrift.data.examples import Dataset
from protodrift.data.tasks import TaskStream
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.results import MethodResult
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store

from .harness import Result, Setup, clocked, compared, interleaved
from .material import pictures

OURS, ALONE = "a tree of stages", "nine rows one by one"
ROWS = ("E-Fix", *(f"E-{name}{drift}" for name in ("FT", "LwF", "EWC", "MAS") for drift in ("", "+SDC")))


def run(setup: Setup) -> Iterator[Result]:
    """Measure the whole of a recipe, with its warm-up and without."""
    for name in ("with its warm-up", "without a warm-up"):
        setup.say(f"tree: nine rows of the eleven-task protocol, at small scale, {name}")
        recipe, stream = small(each=10)
        if name.startswith("without"):
            recipe = replace(recipe, warmup=None)
        sides = {
            OURS: clocked(partial(together, recipe, stream)),
            ALONE: clocked(partial(alone, recipe, stream)),
        }
        seconds = interleaved(sides, 1 if setup.quick else setup.rounds(2), warmup=0)
        tree, methods = recipe.tree(stream), recipe.methods
        numbers = {
            "trainings_of_a_task": tree.trainings(methods),
            "trainings_one_by_one": sum(tree.trainings({n: m}) for n, m in methods.items()),
        }
        yield compared(
            "tree", f"nine E-rows, eleven tasks, {name}", seconds, OURS, ALONE, aim="<= 0.333", unit="of the time",
            inverse=True, numbers=numbers,
        )  # fmt: skip


def small(each: int, classes: int = 100) -> tuple[Recipe, TaskStream]:
    """Return the recipe at small scale, and its tasks: `each` training images of each class."""
    full = get_recipe("cifar100-eleven", "cpu")
    assert full.warmup is not None
    warmup = replace(full.warmup, training=replace(full.warmup.training, batch_size=64))
    training = replace(full.training, batch_size=32)
    recipe = replace(
        full.only(list(ROWS)), size=16, network=Network("convnet", 64), warmup=warmup, training=training,
        mean_images=1
    )  # fmt: skip
    if classes != 100:
        recipe = replace(recipe, first=classes // 2, step=classes // 4)
    train, test = (pictures(classes, n, 16, noise=150, seed=s) for n, s in ((each, 0), (max(1, each // 5), 1)))
    return recipe, recipe.stream(Dataset(train.images, train.labels, test.images, test.labels, name="generated"))


def together(recipe: Recipe, stream: TaskStream) -> dict[str, MethodResult]:
    """Run all rows as one tree."""
    with tempfile.TemporaryDirectory() as folder:
        return recipe.tree(stream, store=Store(Path(folder))).run(recipe.methods)


def alone(recipe: Recipe, stream: TaskStream) -> dict[str, MethodResult]:
    """Run every row by itself."""
    results: dict[str, MethodResult] = {}
    for name, method in recipe.methods.items():
        with tempfile.TemporaryDirectory() as folder:
            results.update(recipe.tree(stream, store=Store(Path(folder))).run({name: method}))
    return results
