"""L_C: what holds the old knowledge while a new task is learned."""

from .base import Penalty, TaskContext, Tensors
from .ewc import EWC
from .lwf import LwF
from .mas import MAS
from .rebalance import LessForget, MarginRanking

__all__ = ["EWC", "MAS", "LessForget", "LwF", "MarginRanking", "Penalty", "TaskContext", "Tensors"]
