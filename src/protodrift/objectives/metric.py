"""Metric-learning losses, computed by pytorch-metric-learning.

That library normalizes embeddings and averages only the non-zero losses unless told otherwise. Here z is used as it is
(the network normalizes, or does not) and the mean goes over all terms, so that Eq. 1 is Eq. 1. Both choices are passed
explicitly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn

from ..common.config import number, one_of, optional
from ..errors import InputError
from ..training.step import Step
from .base import Held, Objective

if TYPE_CHECKING:
    from ..networks.embedder import Embedder

MINING = ("random", "all", "semi-hard", "batch-hard")


@dataclass(frozen=True)
class _Metric(Objective):
    """An objective that is a function of (z, labels, mined tuples)."""

    def _loss(self) -> nn.Module:
        """Return the library's loss, averaging over all terms."""
        raise NotImplementedError

    def _tuples(self, step: Step) -> Any:
        """Return the mined triplets or pairs, or None for all that the loss can form."""
        return None

    def loss(self, step: Step) -> torch.Tensor:
        """Mean over all terms; a batch without a valid term gives 0 with gradient 0."""
        out: torch.Tensor = _cached_loss(self)(step.z, step.targets, self._tuples(step))
        return out

    def missing_signal(self, targets: torch.Tensor) -> str:
        """A metric loss needs two classes, and a class with two images."""
        counts = torch.bincount(targets)
        if int((counts > 0).sum()) < 2:
            return "a task of one class has no negatives; it gets its prototype and the network stays as it is"
        if int(counts.max()) < 2:
            return "no class has two images, so there is no positive pair; the network stays as it is"
        return ""

    def held(self, step: Step) -> Held:
        """The embeddings (Eq. 4)."""
        return Held("embeddings", [step.z], [step.z_old])

    def output(self, network: Embedder, images: torch.Tensor) -> torch.Tensor:
        """The embedding before its normalization: afterwards its length is constant, and MAS would measure zero."""
        return network.raw(images)

    def single_losses(self, step: Step) -> torch.Tensor:
        """Mean over the terms of each anchor, (A,)."""
        return _anchor_means(_cached_loss(self), step, self._tuples(step))


@lru_cache(maxsize=64)
def _cached_loss(objective: _Metric) -> nn.Module:
    return objective._loss()


def _anchor_means(loss: nn.Module, step: Step, tuples: Any) -> torch.Tensor:
    """Ask the library for the single terms of a loss and average them by anchor."""
    averaging = loss.reducer
    loss.reducer = reducers.DoNothingReducer()
    try:
        parts = loss(step.z, step.targets, tuples)
    finally:
        loss.reducer = averaging
    total = step.z.new_zeros(len(step.z))
    seen = torch.zeros(len(step.z), dtype=torch.bool, device=step.z.device)
    for part in parts.values():
        terms, indices = part["losses"], part["indices"]
        if not isinstance(terms, torch.Tensor) or terms.ndim == 0:
            continue  # no valid term of this kind in the batch
        anchors = indices if isinstance(indices, torch.Tensor) else indices[0]
        counts = torch.bincount(anchors, minlength=len(total)).clamp(min=1)
        total = total + torch.zeros_like(total).index_add(0, anchors, terms.flatten()) / counts
        seen[anchors] = True
    return total[seen]


def valid_triplets(
    targets: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw one random negative for every (anchor, positive) pair of a batch.

    Args:
        targets: (N,) class index of each image.
        generator: source of randomness.

    Returns:
        Anchors, positives and negatives, three (T,) index tensors. An image without a positive is never an anchor; in a
        batch of one class there is no triplet.
    """
    device, targets = targets.device, targets.cpu()  # the generator is the CPU's, and a batch is small
    same = targets[:, None] == targets[None, :]
    anchors, positives = (same & ~torch.eye(len(targets), dtype=torch.bool)).nonzero(as_tuple=True)
    negative_count = (~same).sum(dim=1)
    keep = negative_count[anchors] > 0
    anchors, positives = anchors[keep], positives[keep]
    # The k-th negative of an anchor, k uniform: sorting a row of `same` puts its negatives first, in index order.
    order = same.to(torch.int8).argsort(dim=1, stable=True)
    pick = (torch.rand(len(anchors), generator=generator) * negative_count[anchors]).long()
    return anchors.to(device), positives.to(device), order[anchors, pick].to(device)


@dataclass(frozen=True)
class Triplet(_Metric):
    """Triplet loss, Eq. 1: L_T = max(0, d_+ - d_- + m), Euclidean distances (not squared), mean over the triplets.

    Args:
        margin: m. The released code's default of 0 collapses when trained from scratch.
        mining: which triplets of a batch count. "random": each (anchor, positive) with one random negative; "all";
            "semi-hard": negatives farther than the positive but within the margin; "batch-hard": farthest positive and
            nearest negative of each anchor (it collapses on tasks of few classes).
    """

    margin: float = 0.2
    mining: str = "random"
    rules: ClassVar = {"margin": number(0), "mining": one_of(*MINING)}

    def _loss(self) -> nn.Module:
        return losses.TripletMarginLoss(  # type: ignore[no-any-return]
            margin=self.margin,
            swap=False,
            smooth_loss=False,
            triplets_per_anchor="all",
            distance=distances.LpDistance(normalize_embeddings=False, p=2, power=1),
            reducer=reducers.MeanReducer(),
        )

    def skip(self, targets: torch.Tensor, generator: torch.Generator) -> None:
        """Draw the negatives of a batch."""
        if self.mining == "random":
            valid_triplets(targets, generator)

    def _tuples(self, step: Step) -> Any:
        if self.mining == "random":
            return valid_triplets(step.targets, step.generator)
        if self.mining == "all":
            return None
        return _cached_miner(self)(step.z, step.targets)

    def loss(self, step: Step) -> torch.Tensor:
        """Mean over all triplets; a batch without one gives 0 with gradient 0."""
        return super().loss(step) if self.mining != "batch-hard" else batch_hard(step.z, step.targets, self.margin)

    def _miner(self) -> Any:
        distance = distances.LpDistance(normalize_embeddings=False, p=2, power=1)
        if self.mining == "batch-hard":
            return miners.BatchHardMiner(distance=distance)
        return miners.TripletMarginMiner(margin=self.margin, type_of_triplets="semihard", distance=distance)


@lru_cache(maxsize=64)
def _cached_miner(objective: Triplet) -> Any:
    return objective._miner()


def batch_hard(z: torch.Tensor, targets: torch.Tensor, margin: float) -> torch.Tensor:
    """Return the triplet loss of the farthest positive and nearest negative of each anchor, Eq. 1.

    The library computes all distances twice, for its miner and for its loss. Here they are computed once, in the same
    way: values and gradients are the same to the last bit.

    Args:
        z: (N, D) embeddings.
        targets: (N,) class index of each.
        margin: m.
    """
    distance = torch.cdist(z, z)
    same = targets[:, None] == targets[None, :]
    with torch.no_grad():
        far, positive = distance.masked_fill(~same, -1.0).fill_diagonal_(-1.0).max(dim=1)
        near, negative = distance.masked_fill(same, torch.inf).min(dim=1)
        anchors = ((far >= 0) & near.isfinite()).nonzero().flatten()
    if not len(anchors):
        return z.sum() * 0
    d_pos, d_neg = distance[anchors, positive[anchors]], distance[anchors, negative[anchors]]
    return torch.relu(d_pos - d_neg + margin).mean()


@dataclass(frozen=True)
class Contrastive(_Metric):
    """Contrastive loss: mean of max(0, d - m_+) over positive pairs + mean of max(0, m_- - d) over negative pairs.

    Args:
        positive_margin: m_+, the distance below which a positive pair costs nothing.
        negative_margin: m_-, the distance beyond which a negative pair costs nothing.
    """

    positive_margin: float = 0.0
    negative_margin: float = 1.0
    rules: ClassVar = {"positive_margin": number(0), "negative_margin": number(above=0)}

    def _loss(self) -> nn.Module:
        return losses.ContrastiveLoss(  # type: ignore[no-any-return]
            pos_margin=self.positive_margin,
            neg_margin=self.negative_margin,
            distance=distances.LpDistance(normalize_embeddings=False, p=2, power=1),
            reducer=reducers.MeanReducer(),
        )


@dataclass(frozen=True)
class MultiSimilarity(_Metric):
    """Multi-similarity loss (Wang et al., CVPR 2019) on cosine similarities S.

    Mean over images i of
    1/alpha log(1 + sum_{positives k} exp(-alpha (S_ik - base)))
    + 1/beta log(1 + sum_{negatives k} exp(beta (S_ik - base)))
    over the pairs its miner keeps.

    Args:
        alpha, beta, base: as in the formula.
        epsilon: the miner keeps negatives more similar than the least similar positive minus epsilon, and positives
            less similar than the most similar negative plus epsilon; None keeps all pairs.
    """

    alpha: float = 2.0
    beta: float = 50.0
    base: float = 0.5
    epsilon: float | None = 0.1
    rules: ClassVar = {
        "alpha": number(above=0),
        "beta": number(above=0),
        "base": number(-1, 1),
        "epsilon": optional(number(0)),
    }

    def _loss(self) -> nn.Module:
        return losses.MultiSimilarityLoss(  # type: ignore[no-any-return]
            alpha=self.alpha,
            beta=self.beta,
            base=self.base,
            distance=distances.CosineSimilarity(),
            reducer=reducers.MeanReducer(),
        )

    def _tuples(self, step: Step) -> Any:
        if self.epsilon is None:
            return None
        return miners.MultiSimilarityMiner(epsilon=self.epsilon, distance=distances.CosineSimilarity())(
            step.z, step.targets
        )


@dataclass(frozen=True)
class Angular(_Metric):
    """Angular loss (Wang et al., ICCV 2017) on unit-length embeddings.

    Mean over positive pairs (a, p) of
    log(1 + sum_{negatives n} exp(4 tan^2(alpha) (z_a + z_p).z_n - 2 (1 + tan^2(alpha)) z_a.z_p)).

    Args:
        alpha: the angle in degrees.
    """

    alpha: float = 40.0
    rules: ClassVar = {"alpha": number(above=0, high=89)}

    def _loss(self) -> nn.Module:
        return losses.AngularLoss(  # type: ignore[no-any-return]
            alpha=self.alpha,
            distance=distances.LpDistance(normalize_embeddings=True, p=2, power=1),
            reducer=reducers.MeanReducer(),
        )


@dataclass(frozen=True)
class MetricLoss(_Metric):
    """Any loss of pytorch-metric-learning, with an optional miner of it, used exactly as you set them up.

    It must have no trainable weights of its own (proxy losses need all classes up front). A model trained with it asks
    for it again when it is loaded: `IncrementalClassifier.load(path, objective=MetricLoss(...))`.

    >>> from pytorch_metric_learning import losses
    >>> objective = MetricLoss(losses.NTXentLoss(temperature=0.2))
    """

    loss_function: nn.Module = field(default_factory=lambda: losses.TripletMarginLoss())
    miner: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.loss_function, losses.BaseMetricLossFunction):
            raise InputError(
                f"MetricLoss takes a loss of pytorch_metric_learning.losses, got {type(self.loss_function).__name__}."
            )
        if any(True for _ in self.loss_function.parameters()):
            raise InputError(
                f"{type(self.loss_function).__name__} has weights of its own (proxies): it needs all classes up front. "
                "Use a pair or triplet loss."
            )

    def _loss(self) -> nn.Module:
        return self.loss_function

    def _tuples(self, step: Step) -> Any:
        return None if self.miner is None else self.miner(step.z, step.targets)
