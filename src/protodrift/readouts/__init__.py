"""z -> class."""

from .base import Readout, View
from .expert_gate import ExpertGate, reconstruction_errors
from .gaussian import Bayes, Mahalanobis, RidgeClassifier
from .heads import MaxOverClasses, MaxOverHeads
from .ncm import NearestClassMean, NearestExemplarMean, nearest_class_mean
from .slda import StreamingLDA

__all__ = [
    "Bayes",
    "ExpertGate",
    "Mahalanobis",
    "MaxOverClasses",
    "MaxOverHeads",
    "NearestClassMean",
    "NearestExemplarMean",
    "Readout",
    "RidgeClassifier",
    "StreamingLDA",
    "View",
    "nearest_class_mean",
    "reconstruction_errors",
]
