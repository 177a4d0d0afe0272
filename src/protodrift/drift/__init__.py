"""How stored prototypes are moved when the network moves: semantic drift compensation and its relatives."""

from .adagauss import AdaGauss
from .adc import ADC, Probes, adversarial_pairs
from .base import Drift, FittedDrift
from .blend import Blend
from .compensate import DriftReport, compensate
from .dpcr import DualProjection
from .efc import EFCKernel
from .folds import HeldOut, leave_one_class_out
from .gate import Gated
from .gp import GaussianProcess
from .linear import MeanShift, Procrustes, Ridge, RidgeToIdentity
from .local import LocalLinear
from .oracle import Oracle
from .residual import AffineKernel
from .sdc import SDC, FittedSDC, KernelSums, RelativeSDC, semantic_drift
from .sharded import DriftSums, MeanSums

__all__ = [
    "ADC",
    "SDC",
    "AdaGauss",
    "AffineKernel",
    "Blend",
    "Drift",
    "DriftReport",
    "DriftSums",
    "DualProjection",
    "EFCKernel",
    "FittedDrift",
    "FittedSDC",
    "Gated",
    "GaussianProcess",
    "HeldOut",
    "KernelSums",
    "LocalLinear",
    "MeanShift",
    "MeanSums",
    "Oracle",
    "Probes",
    "Procrustes",
    "RelativeSDC",
    "Ridge",
    "RidgeToIdentity",
    "adversarial_pairs",
    "compensate",
    "leave_one_class_out",
    "semantic_drift",
]
