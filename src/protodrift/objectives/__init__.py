"""L_ML: what a batch is trained for."""

from .base import Held, Objective
from .metric import Angular, Contrastive, MetricLoss, MultiSimilarity, Triplet
from .softmax import SigmoidHeads, Softmax

__all__ = [
    "Angular",
    "Contrastive",
    "Held",
    "MetricLoss",
    "MultiSimilarity",
    "Objective",
    "SigmoidHeads",
    "Softmax",
    "Triplet",
]
