"""z -> class."""

from .base import Readout
from .ncm import NearestClassMean, nearest_class_mean, squared_distances

__all__ = ["NearestClassMean", "Readout", "nearest_class_mean", "squared_distances"]
