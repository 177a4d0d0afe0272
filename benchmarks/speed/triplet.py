"""Case d: the triplet loss with its gradient, against pytorch-metric-learning's own, for every mining we offer.

The library side is what its documentation shows: a miner and a `TripletMarginLoss`, set up once. For "random" it is the
library's sampler, with as many triplets: seven for each anchor, which has seven positives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils import loss_and_miner_utils

from protodrift.objectives import Triplet
from protodrift.objectives.metric import MINING, Mining

from .harness import Result, Setup, Side, clocked, compared, interleaved

OURS, LIBRARY = "protodrift", "pytorch-metric-learning"
MARGIN = 0.2
NOTE = 'The aim is never to be slower; 0.03 is for noise. "all" and "semi-hard" are the library\'s own calls.'
BATCHES = (32, 128, 512)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(N, D) embeddings and (N,) classes -> the loss."""


def run(setup: Setup) -> Iterator[Result]:
    """Measure losses."""
    for mining in MINING:
        for batch in BATCHES[: 2 if setup.quick else None]:
            setup.say(f"triplet: {mining}, batch {batch}")
            z, rows = embeddings(batch)
            often = max(1, (64 if mining != "all" else 16) // (batch // 32) ** (2 if mining == "all" else 1))
            sides = {OURS: _side(ours(mining), z, rows, often), LIBRARY: _side(library(mining), z, rows, often)}
            seconds = interleaved(sides, setup.rounds(9))
            yield compared("triplet", f"{mining}, batch {batch}", seconds, OURS, LIBRARY, aim=">= 0.97", note=NOTE)


def embeddings(batch: int, d: int = 512, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of unit vectors (N, D), eight of each class around a common center, and their classes."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.arange(batch // 8).repeat_interleave(8)
    centers = torch.randn(batch // 8, d, generator=draw)
    z = centers[rows] + 1.5 * torch.randn(batch, d, generator=draw)
    return torch.nn.functional.normalize(z, dim=1), rows


def ours(mining: Mining) -> Loss:
    """Return our loss as a function of embeddings and classes."""
    objective = Triplet(margin=MARGIN, mining=mining)
    draw = torch.Generator().manual_seed(0)

    def loss(z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return objective.losses(z, rows, objective.draw(rows, draw), "mean")

    return loss


def library(mining: str) -> Loss:
    """Return the library's loss as a function of embeddings and classes."""
    distance = distances.LpDistance(normalize_embeddings=False, p=2, power=1)
    criterion = losses.TripletMarginLoss(margin=MARGIN, distance=distance, reducer=reducers.MeanReducer())
    mined: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "all": lambda z, rows: None,
        "random": lambda z, rows: loss_and_miner_utils.get_random_triplet_indices(rows, t_per_anchor=7),
        "semi-hard": miners.TripletMarginMiner(margin=MARGIN, type_of_triplets="semihard", distance=distance),
        "batch-hard": miners.BatchHardMiner(distance=distance),
    }

    def loss(z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = criterion(z, rows, mined[mining](z, rows))
        return out

    return loss


def _side(loss: Loss, z: torch.Tensor, rows: torch.Tensor, often: int) -> Side:
    def work() -> None:
        for _ in range(often):
            loss(z.detach().requires_grad_(True), rows).backward()

    return clocked(work)
