"""The stages of an experiment: what each is known by, what it is made from, how it is computed, stored and read.

    warm -> root -> train 1 -> consolidate 1 -> train 2 -> consolidate 2 -> ...
                       |             |             |             |
                    embed 1          |          embed 2          |      embeddings of training and test images
                       |             |             |             |
                    readout 1 <------+-------> readout 2 <-------+      one chain per drift estimator and read-out

A stage's key is the hash of what acts in it, of nothing else, and of its parents' keys. Methods that begin alike have
the same first stages: in the first task no penalty acts, so E-FT, E-LwF, E-EWC and E-Fix share its training.
A stage exists only where something happens: without a warm-up there is no `warm`, a task in which the network stays as
it is has no `train`, and a method that keeps nothing has no `consolidate`.
"""

from __future__ import annotations

from typing import Any

from .base import Given, Packed, Stage
from .embed import Embed, Embeddings
from .networks import Consolidate, Root, Train, Warm, network_after, trained_after
from .readout import ReadOut, ReadoutResult

KINDS: dict[str, type[Stage[Any]]] = {stage.kind: stage for stage in (Warm, Root, Train, Consolidate, Embed, ReadOut)}
"""Every kind of stage by name, those first that an engine begins with when several are ready."""

__all__ = [
    "KINDS",
    "Consolidate",
    "Embed",
    "Embeddings",
    "Given",
    "Packed",
    "ReadOut",
    "ReadoutResult",
    "Root",
    "Stage",
    "Train",
    "Warm",
    "network_after",
    "trained_after",
]
