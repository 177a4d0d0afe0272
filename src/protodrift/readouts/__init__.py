"""z -> class."""

from .base import LinearReadout, PoweredReadout, PreparedReadout, Readout, View, powered
from .expert_gate import ExpertGate, reconstruction_errors
from .gaussian import Bayes, FeCAM, Mahalanobis, fecam_covariance, squared_mahalanobis
from .heads import MaxOverClasses, MaxOverHeads
from .ncm import NearestClassMean, NearestExemplarMean, nearest_class_mean
from .ridge import LiftedRidge, RidgeClassifier, left_out_errors, ridge_weights
from .scatter import ScatterReadout
from .slda import StreamingLDA, discriminants

__all__ = [
    "Bayes",
    "ExpertGate",
    "FeCAM",
    "LiftedRidge",
    "LinearReadout",
    "Mahalanobis",
    "MaxOverClasses",
    "MaxOverHeads",
    "NearestClassMean",
    "NearestExemplarMean",
    "PoweredReadout",
    "PreparedReadout",
    "Readout",
    "RidgeClassifier",
    "ScatterReadout",
    "StreamingLDA",
    "View",
    "discriminants",
    "fecam_covariance",
    "left_out_errors",
    "nearest_class_mean",
    "powered",
    "reconstruction_errors",
    "ridge_weights",
    "squared_mahalanobis",
]
