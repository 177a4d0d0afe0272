"""Experiments as data: one function per table or figure; `RECIPES` lists them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from ...errors import InputError, did_you_mean
from ..recipe import Recipe
from ..settings import with_settings
from . import cifar100, digits, folder, imagenet, mnist, photos

RECIPES: dict[str, Callable[..., Recipe]] = {
    "digits": digits.recipe,
    "digits-2d": digits.picture_recipe,
    "folder": folder.recipe,
    "cub200-six": photos.cub200,
    "flowers102-six": photos.flowers102,
    "caltech101-six": photos.caltech101,
    "cub200-no-birds": photos.no_birds,
    "cub200-multi-similarity": photos.multi_similarity,
    "cub200-angular": photos.angular,
    "cars196-six": photos.cars196,
    "cifar100-eleven": cifar100.eleven_tasks,
    "imagenet-subset-eleven": imagenet.subset_eleven,
    "cub100-ten": photos.cub100_ten,
    "caltech101-ten": photos.caltech101_ten,
    "cub200-vgg-four": photos.vgg_four,
    "mnist-2d": mnist.picture_recipe,
    "cifar100-ten": cifar100.ten_tasks,
    "cifar100-joint": cifar100.joint,
}
"""Every recipe by name. Those of the paper's experiments take a budget: "paper", "cpu", some "drift" or "frontier"."""


def get_recipe(name: str, budget: str | None = None) -> Recipe:
    """Return a named recipe, for some with a choice of budget: one of `rows.BUDGETS`.

    Raises:
        InputError: for an unknown name, with the nearest one.
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}. {did_you_mean(name, RECIPES)}")
    make = RECIPES[name]
    if budget is None:
        return make()
    if "budget" not in inspect.signature(make).parameters:
        raise InputError(f"recipe {name!r} has one budget only: drop --budget.")
    return make(budget)


__all__ = ["RECIPES", "Recipe", "get_recipe", "with_settings"]
