"""Metric-learning losses, computed by pytorch-metric-learning.

That library normalizes embeddings and averages only the non-zero losses by default. Here z is used as it is
(the network normalizes, or does not) and the mean goes over all terms, so that Eq. 1 is Eq. 1. Both choices are passed
explicitly.

Every loss is a function of embeddings z, (N, D), and class indices, (N,). With `reduction="anchor"` it returns the mean
over the terms of each anchor instead of one number, (A,); images that are no anchor are left out.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn

from ..common.config import number, one_of, optional
from ..common.outside import Outside
from ..errors import InputError
from .base import Held, Network, Objective, Step

Mining = Literal["random", "all", "semi-hard", "batch-hard"]
MINING: tuple[Mining, ...] = get_args(Mining)
Reduction = Literal["mean", "anchor"]
Triplets = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Anchors, positives and negatives: three (T,) tensors of positions in the batch."""


def triplet_loss(
    z: torch.Tensor,
    targets: torch.Tensor,
    margin: float = 0.2,
    triplets: Triplets | None = None,
    *,
    reduction: Reduction = "mean",
) -> torch.Tensor:
    """Return the triplet loss, Eq. 1: the mean of max(0, d_pos - d_neg + m) over triplets, Euclidean distances.

    Args:
        z: (N, D) embeddings.
        targets: (N,) class of each.
        margin: m.
        triplets: those that count; None: all of the batch. Without any the loss is 0 with gradient 0.
        reduction: "mean" or "anchor".

    >>> triplet_loss(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1]), margin=2.5)
    tensor(1.)
    """
    return _reduced(_triplet(margin), z, targets, triplets, reduction)


def batch_hard_loss(z: torch.Tensor, targets: torch.Tensor, margin: float = 0.2) -> torch.Tensor:
    """Return the triplet loss of the farthest positive and nearest negative of each anchor, Eq. 1.

    The library computes all distances twice, for its miner and for its loss. Here they are computed once, in the same
    way: values and gradients are the same to the last bit.

    >>> batch_hard_loss(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1]), margin=2.5)
    tensor(1.)
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


def valid_triplets(targets: torch.Tensor, generator: torch.Generator) -> Triplets:
    """Draw one random negative for every (anchor, positive) pair of a batch.

    Args:
        targets: (N,) class of each image.
        generator: source of randomness.

    Returns:
        The triplets. An image without a positive is never an anchor; in a batch of one class there is no triplet.
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


def contrastive_loss(
    z: torch.Tensor,
    targets: torch.Tensor,
    positive_margin: float = 0.0,
    negative_margin: float = 1.0,
    *,
    reduction: Reduction = "mean",
) -> torch.Tensor:
    """Return the mean of max(0, d - m_pos) over positive pairs + the mean of max(0, m_neg - d) over negative pairs.

    >>> contrastive_loss(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1]))
    tensor(1.)
    """
    return _reduced(_contrastive(positive_margin, negative_margin), z, targets, None, reduction)


def multi_similarity_loss(
    z: torch.Tensor,
    targets: torch.Tensor,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = 0.1,
    *,
    reduction: Reduction = "mean",
) -> torch.Tensor:
    """Return the multi-similarity loss (Wang et al., CVPR 2019) on cosine similarities S.

    Mean over images i of
    1/alpha log(1 + sum_{positives k} exp(-alpha (S_ik - base)))
    + 1/beta log(1 + sum_{negatives k} exp(beta (S_ik - base)))
    over the pairs its miner keeps: negatives more similar than the least similar positive minus epsilon, and positives
    less similar than the most similar negative plus epsilon; None keeps all pairs.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(float(multi_similarity_loss(z, torch.tensor([0, 0, 1]), epsilon=None)), 4)
    0.1044
    """
    distance = distances.CosineSimilarity()
    mined = None if epsilon is None else miners.MultiSimilarityMiner(epsilon=epsilon, distance=distance)(z, targets)
    return _reduced(_multi_similarity(alpha, beta, base), z, targets, mined, reduction)


def angular_loss(
    z: torch.Tensor, targets: torch.Tensor, alpha: float = 40.0, *, reduction: Reduction = "mean"
) -> torch.Tensor:
    """Return the angular loss (Wang et al., ICCV 2017) on embeddings brought to unit length, alpha in degrees.

    Mean over positive pairs (a, p) of
    log(1 + sum_{negatives n} exp(4 tan^2(alpha) (z_a + z_p).z_n - 2 (1 + tan^2(alpha)) z_a.z_p)).

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(float(angular_loss(z, torch.tensor([0, 0, 1]))), 4)
    0.0326
    """
    return _reduced(_angular(alpha), z, targets, None, reduction)


def _euclidean(*, normalize: bool = False) -> Any:
    return distances.LpDistance(normalize_embeddings=normalize, p=2, power=1)


@lru_cache(maxsize=64)
def _triplet(margin: float) -> nn.Module:
    options = {"swap": False, "smooth_loss": False, "triplets_per_anchor": "all"}
    reducer = reducers.MeanReducer()
    return losses.TripletMarginLoss(  # type: ignore[no-any-return]
        margin=margin, distance=_euclidean(), reducer=reducer, **options
    )


@lru_cache(maxsize=64)
def _contrastive(positive_margin: float, negative_margin: float) -> nn.Module:
    return losses.ContrastiveLoss(  # type: ignore[no-any-return]
        pos_margin=positive_margin, neg_margin=negative_margin, distance=_euclidean(), reducer=reducers.MeanReducer()
    )


@lru_cache(maxsize=64)
def _multi_similarity(alpha: float, beta: float, base: float) -> nn.Module:
    distance, reducer = distances.CosineSimilarity(), reducers.MeanReducer()
    return losses.MultiSimilarityLoss(  # type: ignore[no-any-return]
        alpha=alpha, beta=beta, base=base, distance=distance, reducer=reducer
    )


@lru_cache(maxsize=64)
def _angular(alpha: float) -> nn.Module:
    distance = _euclidean(normalize=True)
    return losses.AngularLoss(alpha=alpha, distance=distance, reducer=reducers.MeanReducer())  # type: ignore[no-any-return]


def _reduced(
    loss: nn.Module, z: torch.Tensor, targets: torch.Tensor, tuples: Any, reduction: Reduction
) -> torch.Tensor:
    """Return a loss of the library, or the mean over the terms of each anchor, (A,)."""
    if reduction == "mean":
        mean: torch.Tensor = loss(z, targets, tuples)
        return mean
    averaging = loss.reducer
    loss.reducer = reducers.DoNothingReducer()
    try:
        parts = loss(z, targets, tuples)
    finally:
        loss.reducer = averaging
    total = z.new_zeros(len(z))
    seen = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    for part in parts.values():
        terms, indices = part["losses"], part["indices"]
        if not isinstance(terms, torch.Tensor) or terms.ndim == 0:
            continue  # no valid term of this kind in the batch
        anchors = indices if isinstance(indices, torch.Tensor) else indices[0]
        counts = torch.bincount(anchors, minlength=len(total)).clamp(min=1)
        total = total + torch.zeros_like(total).index_add(0, anchors, terms.flatten()) / counts
        seen[anchors] = True
    return total[seen]


@dataclass(frozen=True)
class EmbeddingLoss(Objective):
    """An objective that is a function of embeddings and class indices: `losses`."""

    @abstractmethod
    def losses(self, z: torch.Tensor, targets: torch.Tensor, drawn: Any, reduction: Reduction) -> torch.Tensor:
        """Return the loss of a batch, or that of each anchor."""

    def loss(self, step: Step) -> torch.Tensor:
        """Mean over all terms; a batch without a valid term gives 0 with gradient 0."""
        return self.losses(step.z, step.targets, step.drawn, "mean")

    def single_losses(self, step: Step) -> torch.Tensor:
        """Mean over the terms of each anchor, (A,)."""
        return self.losses(step.z, step.targets, step.drawn, "anchor")

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

    def output(self, step: Step) -> torch.Tensor:
        """The embedding before its normalization: afterwards its length is constant, and MAS would measure zero."""
        return step.raw


@dataclass(frozen=True)
class Triplet(EmbeddingLoss):
    """Triplet loss, Eq. 1: L_T = max(0, d_+ - d_- + m), Euclidean distances (not squared), mean over the triplets.

    Args:
        margin: m. The released code's default of 0 collapses when trained from scratch.
        mining: which triplets of a batch count. "random": each (anchor, positive) with one random negative; "all";
            "semi-hard": negatives farther than the positive but within the margin; "batch-hard": farthest positive and
            nearest negative of each anchor (it collapses on tasks of few classes).
    """

    margin: float = 0.2
    mining: Mining = "random"
    rules: ClassVar = {"margin": number(0), "mining": one_of(*MINING)}

    def draw(self, targets: torch.Tensor, generator: torch.Generator) -> Triplets | None:
        """Draw the negatives of a batch."""
        return valid_triplets(targets, generator) if self.mining == "random" else None

    def losses(
        self, z: torch.Tensor, targets: torch.Tensor, drawn: Triplets | None, reduction: Reduction
    ) -> torch.Tensor:
        """Return the loss of the mined triplets."""
        if self.mining == "batch-hard" and reduction == "mean":
            return batch_hard_loss(z, targets, self.margin)
        triplets = drawn
        if self.mining == "batch-hard":
            triplets = miners.BatchHardMiner(distance=_euclidean())(z, targets)
        elif self.mining == "semi-hard":
            miner = miners.TripletMarginMiner(margin=self.margin, type_of_triplets="semihard", distance=_euclidean())
            triplets = miner(z, targets)
        return triplet_loss(z, targets, self.margin, triplets, reduction=reduction)


@dataclass(frozen=True)
class Contrastive(EmbeddingLoss):
    """Contrastive loss: mean of max(0, d - m_+) over positive pairs + mean of max(0, m_- - d) over negative pairs.

    Args:
        positive_margin: m_+, the distance below which a positive pair costs nothing.
        negative_margin: m_-, the distance beyond which a negative pair costs nothing.
    """

    positive_margin: float = 0.0
    negative_margin: float = 1.0
    rules: ClassVar = {"positive_margin": number(0), "negative_margin": number(above=0)}

    def losses(self, z: torch.Tensor, targets: torch.Tensor, drawn: None, reduction: Reduction) -> torch.Tensor:
        """Return the loss of all pairs."""
        return contrastive_loss(z, targets, self.positive_margin, self.negative_margin, reduction=reduction)


@dataclass(frozen=True)
class MultiSimilarity(EmbeddingLoss):
    """Multi-similarity loss (Wang et al., CVPR 2019); `multi_similarity_loss` has the formula.

    Args:
        alpha, beta, base: as in the formula.
        epsilon: of the miner; None keeps all pairs.
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

    def losses(self, z: torch.Tensor, targets: torch.Tensor, drawn: None, reduction: Reduction) -> torch.Tensor:
        """Return the loss of the mined pairs."""
        return multi_similarity_loss(z, targets, self.alpha, self.beta, self.base, self.epsilon, reduction=reduction)


@dataclass(frozen=True)
class Angular(EmbeddingLoss):
    """Angular loss (Wang et al., ICCV 2017) on unit-length embeddings; `angular_loss` has the formula.

    Args:
        alpha: the angle in degrees.
    """

    alpha: float = 40.0
    rules: ClassVar = {"alpha": number(above=0, high=89)}

    def losses(self, z: torch.Tensor, targets: torch.Tensor, drawn: None, reduction: Reduction) -> torch.Tensor:
        """Return the loss of all positive pairs."""
        return angular_loss(z, targets, self.alpha, reduction=reduction)


@dataclass(frozen=True)
class MetricLoss(EmbeddingLoss):
    """Any loss of pytorch-metric-learning, with an optional miner of it, used exactly as you set them up.

    A loss with weights of its own (proxies, centers) says for how many classes: `num_classes` is at least that of all
    tasks. They are trained beside the network, task after task, in a parameter group of their own.

    A model trained with it asks for it again when it is loaded: `IncrementalClassifier.load(path,
    objective=MetricLoss(...))`. A run knows it by a digest of its settings and weights.

    Args:
        loss_function: the loss.
        miner: chooses pairs or triplets of a batch; None: all.
        rate: the learning rate of the loss's own weights, in learning rates of the network. They have no weight decay.

    >>> from pytorch_metric_learning import losses
    >>> objective = MetricLoss(losses.NTXentLoss(temperature=0.2))
    """

    loss_function: nn.Module = field(default_factory=lambda: losses.TripletMarginLoss())
    miner: Any = None
    rate: float = 1.0
    rules: ClassVar = {"rate": number(above=0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.loss_function, (losses.BaseMetricLossFunction, Outside)):
            raise InputError(
                f"MetricLoss takes a loss of pytorch_metric_learning.losses, got {type(self.loss_function).__name__}."
            )

    def grow(self, network: Network, classes: int) -> None:
        """Give the network the loss's own weights, once: they say for how many classes."""
        if _weights_of(self.loss_function) and not hasattr(network, "loss"):
            like = next(iter(network.parameters()))
            network.loss = copy.deepcopy(self.loss_function).to(like.device)

    def weight_groups(self, network: Network) -> list[dict[str, Any]]:
        """The loss's own weights."""
        own = _weights_of(getattr(network, "loss", None))
        return [{"params": own, "rate": self.rate, "weight_decay": 0.0}] if own else []

    def loss(self, step: Step) -> torch.Tensor:
        """The given loss."""
        return self._of(step, "mean")

    def single_losses(self, step: Step) -> torch.Tensor:
        """The terms of each anchor."""
        return self._of(step, "anchor")

    def _of(self, step: Step, reduction: Reduction) -> torch.Tensor:
        own = getattr(step.network, "loss", self.loss_function)
        # A proxy loss takes a class without a proxy for one that has none of its own, without an error.
        classes = getattr(own, "num_classes", 0) or len(getattr(own, "proxy_labels", ()))
        if classes and _weights_of(own) and int(step.targets.max()) >= classes:
            raise InputError(
                f"{type(own).__name__} has weights for num_classes={classes}, and this is class number "
                f"{int(step.targets.max()) + 1}. Say how many classes all tasks together have."
            )
        return self._reduced(own, step.z, step.targets, reduction)

    def losses(self, z: torch.Tensor, targets: torch.Tensor, drawn: None, reduction: Reduction) -> torch.Tensor:
        """Return the given loss, as it was given, of the tuples that the given miner finds."""
        return self._reduced(self.loss_function, z, targets, reduction)

    def _reduced(self, loss: nn.Module, z: torch.Tensor, targets: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        if isinstance(loss, Outside):
            raise InputError(f"a run's files tell of {loss.name}, but do not hold it. Pass the loss again.")
        return _reduced(loss, z, targets, None if self.miner is None else self.miner(z, targets), reduction)


def _weights_of(loss: Any) -> list[nn.Parameter]:
    """Return the trainable weights of a loss."""
    return list(loss.parameters()) if isinstance(loss, nn.Module) else []
