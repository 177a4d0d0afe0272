"""Every class is its mean embedding (Eq. 3), and what little else a read-out needs; after a task it moves (Eq. 13)."""

from ..common.transport import Transport
from .store import ClassSums, Prototypes, class_means
from .update import DriftReport, compensate, refresh_prototypes, update_prototypes

__all__ = [
    "ClassSums",
    "DriftReport",
    "Prototypes",
    "Transport",
    "class_means",
    "compensate",
    "refresh_prototypes",
    "update_prototypes",
]
