"""z -> class."""

from .base import Readout, View
from .expert_gate import ExpertGate, reconstruction_errors
from .heads import MaxOverClasses, MaxOverHeads
from .ncm import NearestClassMean, NearestExemplarMean, nearest_class_mean, squared_distances
from .slda import StreamingLDA

__all__ = [
    "ExpertGate",
    "MaxOverClasses",
    "MaxOverHeads",
    "NearestClassMean",
    "NearestExemplarMean",
    "Readout",
    "StreamingLDA",
    "View",
    "nearest_class_mean",
    "reconstruction_errors",
    "squared_distances",
]
