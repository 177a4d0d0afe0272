"""Engines that compute the stages of a tree: several processes on this machine, or a Ray cluster.

A tree says which stages are missing and what each is made from (`Tree.plan`). An engine computes them in any order
that respects that; results do not depend on the order, because a stage seeds itself. Stages go to and come from the
store, so workers share nothing else.

dispatch.py   the one loop: what is ready, what is done, whose worker is gone
worker.py     what a worker does with a stage, whoever started it
local.py      processes of this machine
ray.py        tasks of a Ray cluster (the extra `ray`; imported only when it is used)
"""

from .dispatch import Engine, Outcome, Workers, compute_stages
from .local import LocalEngine
from .ray import RayEngine
from .worker import Job

__all__ = ["Engine", "Job", "LocalEngine", "Outcome", "RayEngine", "Workers", "compute_stages"]
