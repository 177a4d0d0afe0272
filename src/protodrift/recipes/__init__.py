"""Experiments as data: one function a table or figure; `RECIPES` lists them by name."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError, did_you_mean
from . import digits, folder
from .base import Recipe, with_settings

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits.recipe,
    "digits-2d": digits.picture_recipe,
    "folder": folder.recipe,
}
"""Every recipe by name."""


def get_recipe(name: str) -> Recipe:
    """Return a named recipe.

    Raises:
        InputError: for an unknown name, with the nearest one.
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}. {did_you_mean(name, RECIPES)}")
    return RECIPES[name]()


__all__ = ["RECIPES", "Recipe", "get_recipe", "with_settings"]
