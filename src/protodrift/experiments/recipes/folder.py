"""Any image folder: `protodrift run folder --data DIR --tasks 6`."""

from __future__ import annotations

from dataclasses import replace

from ...methods import METHODS, Method
from ...readouts import LiftedRidge
from ..recipe import Recipe


def _smaller(method: Method) -> Method:
    """Return a method whose random layer has 2,000 units: Gram matrices of every task are kept in the run."""
    readout = method.readout
    return replace(method, readout=replace(readout, units=2000)) if isinstance(readout, LiftedRidge) else method


def recipe() -> Recipe:
    """Return the generic recipe: every named method, six tasks, the paper's constants where it prints them."""
    return Recipe(
        name="folder",
        about="any folder of class folders, every method; a fifth of each class is held out for testing",
        data="folder",
        rows=tuple((name, _smaller(method)) for name, method in METHODS.items()),
        tasks=6,
        class_order=0,
        size=32,
    )
