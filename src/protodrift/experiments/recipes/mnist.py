"""Figs. 4 and 8 on MNIST: drift vectors in a 2-D embedding, two tasks of five classes."""

from __future__ import annotations

from dataclasses import replace

from ...training.config import Training
from ..recipe import Recipe
from . import digits
from .rows import check_budget


def picture_recipe(budget: str = "cpu") -> Recipe:
    """Return the paper's own 2-D experiment; `digits-2d` is the same on data that comes with the install.

    The paper prints no constants for it, so both budgets have ours; `paper` measures true means on all images.
    """
    check_budget(budget)
    return replace(
        digits.picture_recipe(),
        name="mnist-2d",
        about="Figs. 4 and 8: drift vectors on MNIST in a 2-D embedding, for E-FT, E-LwF, E-EWC and E-MAS",
        data="mnist",
        classes=None,
        tasks=2,
        class_order=0,  # "two disjoint tasks randomly" (Sec. 4)
        size=28,
        training=Training(epochs=1, learning_rate=1e-3, later_learning_rate=1e-4, batch_size=128),
        mean_images=500 if budget == "cpu" else None,
        budget=budget,
    )
