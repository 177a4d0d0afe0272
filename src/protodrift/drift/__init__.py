"""How stored prototypes are moved when the network moves: semantic drift compensation and its relatives."""

from .base import Drift, FittedDrift, Known
from .kernel import KernelSums, kernel_sums
from .oracle import Oracle
from .sdc import SDC, FittedSDC, semantic_drift
from .successors.adagauss import AdaGauss
from .successors.adc import ADC, Probes, adversarial_pairs
from .successors.blend import Blend
from .successors.dpcr import DualProjection
from .successors.efc import EFCKernel
from .successors.folds import HeldOut, leave_one_class_out
from .successors.gate import Gated
from .successors.gp import GaussianProcess
from .successors.linear import MeanShift, Procrustes, Ridge, RidgeToIdentity, procrustes, ridge_map
from .successors.local import LocalLinear, local_linear_drift
from .successors.relative import RelativeSDC, relative_bandwidth
from .successors.residual import AffineKernel

__all__ = [
    "ADC",
    "SDC",
    "AdaGauss",
    "AffineKernel",
    "Blend",
    "Drift",
    "DualProjection",
    "EFCKernel",
    "FittedDrift",
    "FittedSDC",
    "Gated",
    "GaussianProcess",
    "HeldOut",
    "KernelSums",
    "Known",
    "LocalLinear",
    "MeanShift",
    "Oracle",
    "Probes",
    "Procrustes",
    "RelativeSDC",
    "Ridge",
    "RidgeToIdentity",
    "adversarial_pairs",
    "kernel_sums",
    "leave_one_class_out",
    "local_linear_drift",
    "procrustes",
    "relative_bandwidth",
    "ridge_map",
    "semantic_drift",
]
