"""How stored prototypes are moved when the network moves: semantic drift compensation and its relatives."""

from .base import Drift, FittedDrift
from .compensate import DriftReport, compensate
from .oracle import Oracle
from .sdc import SDC, FittedSDC, semantic_drift

__all__ = ["SDC", "Drift", "DriftReport", "FittedDrift", "FittedSDC", "Oracle", "compensate", "semantic_drift"]
