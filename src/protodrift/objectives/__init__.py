"""L_ML: what a batch is trained for. A pure function per equation, and a configured objective that calls it."""

from .base import Held, Objective
from .cosine import CosineHeads, cosine_losses, imprinted_weights
from .metric import (
    Angular,
    Contrastive,
    MetricLoss,
    MultiSimilarity,
    Triplet,
    angular_loss,
    batch_hard_loss,
    contrastive_loss,
    multi_similarity_loss,
    triplet_loss,
    valid_triplets,
)
from .rotations import RotatedSoftmax, turned
from .softmax import SigmoidHeads, Softmax, sigmoid_losses, softmax_losses

__all__ = [
    "Angular",
    "Contrastive",
    "CosineHeads",
    "Held",
    "MetricLoss",
    "MultiSimilarity",
    "Objective",
    "RotatedSoftmax",
    "SigmoidHeads",
    "Softmax",
    "Triplet",
    "angular_loss",
    "batch_hard_loss",
    "contrastive_loss",
    "cosine_losses",
    "imprinted_weights",
    "multi_similarity_loss",
    "sigmoid_losses",
    "softmax_losses",
    "triplet_loss",
    "turned",
    "valid_triplets",
]
