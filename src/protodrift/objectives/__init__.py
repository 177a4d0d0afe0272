"""L_ML: what a batch is trained for."""

from .base import Objective
from .metric import Angular, Contrastive, MetricLoss, MultiSimilarity, Triplet

__all__ = ["Angular", "Contrastive", "MetricLoss", "MultiSimilarity", "Objective", "Triplet"]
