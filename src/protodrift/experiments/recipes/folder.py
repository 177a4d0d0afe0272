"""Any image folder: `protodrift run folder --data DIR --tasks 6`."""

from __future__ import annotations

from ...methods import METHODS
from ..recipe import Recipe


def recipe() -> Recipe:
    """Return the generic recipe: every named method, six tasks, the paper's constants where it prints them."""
    return Recipe(
        name="folder",
        about="any folder of class folders, every method; a fifth of each class is held out for testing",
        data="folder",
        rows=tuple(METHODS.items()),
        tasks=6,
        class_order=0,
        size=32,
    )
