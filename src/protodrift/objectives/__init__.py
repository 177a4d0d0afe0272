"""L_ML: what a batch is trained for."""

from .base import Held, Objective
from .cosine import CosineHeads
from .metric import Angular, Contrastive, MetricLoss, MultiSimilarity, Triplet
from .softmax import SigmoidHeads, Softmax

__all__ = [
    "Angular",
    "Contrastive",
    "CosineHeads",
    "Held",
    "MetricLoss",
    "MultiSimilarity",
    "Objective",
    "SigmoidHeads",
    "Softmax",
    "Triplet",
]
