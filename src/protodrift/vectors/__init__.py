"""Stored embeddings, moved into the space of an upgraded model."""

from .mover import CANDIDATES, HeldOutReport, Mover, Recalls, fit_mover
from .streaming import Transported, transport

__all__ = ["CANDIDATES", "HeldOutReport", "Mover", "Recalls", "Transported", "fit_mover", "transport"]
