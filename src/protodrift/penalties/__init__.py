"""L_C: what holds the old knowledge while a new task is learned.

A pure function per equation, and a configured penalty that calls it.
"""

from .attention import Attention, attention_loss, grad_cam
from .base import Penalty, Tensors
from .ewc import EWC, fisher
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
    "Importance",
    "LessForget",
    "LwF",
    "MarginRanking",
    "Penalty",
    "Tensors",
    "alignment_loss",
    "attention_loss",
    "distillation_loss",
    "fisher",
    "grad_cam",
    "less_forget_loss",
    "margin_ranking_loss",
    "mas_importance",
    "path_integral",
    "quadratic_penalty",
    "si_importance",
    "sigmoid_distillation_loss",
]
