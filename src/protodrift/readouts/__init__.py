"""z -> class."""

from .base import LinearReadout, Readout, View
from .expert_gate import ExpertGate, reconstruction_errors
from .gaussian import Bayes, Mahalanobis, RidgeClassifier, fecam_covariance, ridge_weights, squared_mahalanobis
from .heads import MaxOverClasses, MaxOverHeads
from .ncm import NearestClassMean, NearestExemplarMean, nearest_class_mean
from .slda import StreamingLDA, discriminants

__all__ = [
    "Bayes",
    "ExpertGate",
    "LinearReadout",
    "Mahalanobis",
    "MaxOverClasses",
    "MaxOverHeads",
    "NearestClassMean",
    "NearestExemplarMean",
    "Readout",
    "RidgeClassifier",
    "StreamingLDA",
    "View",
    "discriminants",
    "fecam_covariance",
    "nearest_class_mean",
    "reconstruction_errors",
    "ridge_weights",
    "squared_mahalanobis",
]
