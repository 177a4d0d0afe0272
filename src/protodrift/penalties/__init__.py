"""L_C: what holds the old knowledge while a new task is learned.

A pure function per equation, and a configured penalty that calls it.
"""

from .attention import Attention, attention_loss, grad_cam
from .base import Penalty, Tensors
from .elastic import ElasticFeatures, elastic_loss, empirical_feature_matrix
from .ewc import EWC, fisher
from .features import FeatureDistillation, feature_distance, projected
from .importance import Importance, quadratic_penalty
from .lwf import LwF, alignment_loss, distillation_loss, sigmoid_distillation_loss
from .mas import MAS, mas_importance
from .rebalance import LessForget, MarginRanking, less_forget_loss, margin_ranking_loss
from .rewc import REWC
from .si import SI, path_integral, si_importance

__all__ = [
    "EWC",
    "MAS",
    "REWC",
    "SI",
    "Attention",
    "ElasticFeatures",
    "FeatureDistillation",
    "Importance",
    "LessForget",
    "LwF",
    "MarginRanking",
    "Penalty",
    "Tensors",
    "alignment_loss",
    "attention_loss",
    "distillation_loss",
    "elastic_loss",
    "empirical_feature_matrix",
    "feature_distance",
    "fisher",
    "grad_cam",
    "less_forget_loss",
    "margin_ranking_loss",
    "mas_importance",
    "path_integral",
    "projected",
    "quadratic_penalty",
    "si_importance",
    "sigmoid_distillation_loss",
]
