"""Any image folder: `protodrift run folder --data DIR`."""

from __future__ import annotations

from dataclasses import replace

from ...drift import (
    AdaGauss,
    AffineKernel,
    Drift,
    DualProjection,
    EFCKernel,
    Gated,
    GaussianProcess,
    LocalLinear,
    MeanShift,
    Procrustes,
    RelativeSDC,
    Ridge,
    RidgeToIdentity,
)
from ...methods import METHODS, Method, with_drift
from ...readouts import LiftedRidge
from ...training.config import Training
from ..recipe import Recipe
from ..setup import Network
from . import photos
from .rows import CPU_PENALTIES, SOFTMAX, Rows, embedding_rows, frozen_rows, named_rows

ESTIMATORS: dict[str, Drift] = {
    "relative": RelativeSDC(),
    "gated": Gated(photos.DRIFT),
    "shift": MeanShift(),
    "ridge": Ridge(),
    "ridge-to-identity": RidgeToIdentity(),
    "procrustes": Procrustes(),
    "local": LocalLinear(),
    "affine": AffineKernel(),
    "gp": GaussianProcess(),
    "efc": EFCKernel(),
    "dpcr": DualProjection(),
    "adagauss": AdaGauss(),
}
"""What may stand in the place of SDC, as rows E-FT+NAME: read-outs of one training."""

FEW_PASSES = Training(epochs=4, learning_rate=3e-5, later_learning_rate=1e-5, batch_size=32)
"""Of metric losses: few photos soon spoil a pretrained network, see results/practitioner.md."""


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


def photo_recipe(network: Network, size: int, classes: int) -> Recipe:
    """Return the recipe for photos and a pretrained network: penalties and batch norm as for CUB on two cores.

    Args:
        network, size: as they fit the photos.
        classes: how many there are; six tasks, or as many as there are pairs of classes.
    """
    rows: Rows = {
        **frozen_rows(photos.CPU_OBJECTIVE, "pretrained"),
        **embedding_rows(photos.CPU_OBJECTIVE, CPU_PENALTIES, photos.DRIFT, batch_norm="pretrained"),
        **named_rows([*SOFTMAX, "Joint"], photos.CPU_SOFTMAX_PENALTIES, batch_norm="pretrained"),
    }
    rows |= {f"E-FT+{name}": with_drift(rows["E-FT"], drift) for name, drift in ESTIMATORS.items()}
    return replace(
        recipe(),
        about="any folder of class folders with a pretrained network; a fifth of each class is held out for testing",
        rows=tuple(rows.items()),
        tasks=max(1, min(6, classes // 2)),
        size=size,
        network=network,
        training=FEW_PASSES,
        classifier_training=photos.CPU_CLASSIFIER,
    )
