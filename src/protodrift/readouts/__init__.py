"""z -> class."""

from .base import Readout, View
from .heads import MaxOverClasses, MaxOverHeads
from .ncm import NearestClassMean, NearestExemplarMean, nearest_class_mean, squared_distances

__all__ = [
    "MaxOverClasses",
    "MaxOverHeads",
    "NearestClassMean",
    "NearestExemplarMean",
    "Readout",
    "View",
    "nearest_class_mean",
    "squared_distances",
]
