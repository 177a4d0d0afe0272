"""L_C: what holds the old knowledge while a new task is learned."""

from .attention import Attention
from .base import Penalty, TaskContext, Tensors
from .ewc import EWC
from .lwf import LwF
from .mas import MAS
from .rebalance import LessForget, MarginRanking
from .rewc import REWC
from .si import SI

__all__ = [
    "EWC",
    "MAS",
    "REWC",
    "SI",
    "Attention",
    "LessForget",
    "LwF",
    "MarginRanking",
    "Penalty",
    "TaskContext",
    "Tensors",
]
