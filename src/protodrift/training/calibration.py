"""How sure an answer is, and when the right answer is "none of them".

Both are measured on held-out images: how far they lie from their own prototype (quantiles, one row per class) and how
sharp a softmax over the scores must be to be right as often as it says (a temperature). Where the network was trained
on these images too (`held_out=0`), they are left out of the prototypes only, and the row is marked as not `honest`.

Without old images neither can be measured again later. So each row stays with its class, and moves with its prototype:
where drift compensation says that a prototype may be off by u, distances to it grow to sqrt(q^2 + u^2).

"Far" is relative where there are three classes or more: the distance to the class over the mean distance to all
classes, in the coordinates of the read-out. An image of none of the classes is about equally far from all. With one or
two classes it is the plain distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..common import seeding
from ..common.geometry import squared_distances
from ..data.batches import members_of
from ..readouts import Readout, View

LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Which quantiles of the held-out distances are kept."""

UNKNOWN_LEVEL = 0.95
"""An image farther away than this share of held-out images of its class is called unknown."""

PRIOR_IMAGES = 5.0
"""A class's own scale counts as much as that of all classes together when it rests on this many images."""

SEVERAL = 3
"""From this many classes on, distances are relative to those of the other classes."""

FOLDS = 5
"""Parts into which a task is cut for checking answers, where the network does not learn from it."""

CHECKED_SCORES = 2**23
"""Scores of held-out images for a temperature, images x classes: 64 MB of float64, gone over about 20 times."""

DEFAULT_TEMPERATURE = 0.1
"""Where no image could be held out: d^2 of unit vectors lies in 0..4."""


@dataclass(frozen=True)
class Calibration:
    """What is known about the distances and scores of K classes. Immutable; rows as in `Prototypes`.

    Attributes:
        quantiles: (K, len(LEVELS)) of the distance between an image of the class and its prototype; inf: not known.
        relative: (K, len(LEVELS)) of the relative distance; inf: not known.
        temperatures: (K,) of the softmax over scores, for answers that name the class.
        images: (K,) held-out images behind each row; 0: taken over from the other classes, or not known.
        honest: (K,) whether those images were really held out: False, where the network was trained on them too.
    """

    quantiles: torch.Tensor
    relative: torch.Tensor
    temperatures: torch.Tensor
    images: torch.Tensor
    honest: torch.Tensor

    def __len__(self) -> int:
        return len(self.quantiles)

    @staticmethod
    def unknown(count: int, temperature: float = DEFAULT_TEMPERATURE) -> Calibration:
        """Return the calibration of `count` classes about which nothing is known: nothing is ever too far away."""
        return Calibration(
            torch.full((count, len(LEVELS)), torch.inf),
            torch.full((count, len(LEVELS)), torch.inf),
            torch.full((count,), float(temperature)),
            torch.zeros(count, dtype=torch.long),
            torch.zeros(count, dtype=torch.bool),
        )

    def named(self) -> dict[str, torch.Tensor]:
        """Return the parts by name, for files."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def thresholds(self) -> torch.Tensor:
        """(K,) the relative distance beyond which an image is called unknown; inf: not known."""
        return self.relative[:, LEVELS.index(UNKNOWN_LEVEL)]

    def at(self, targets: list[int]) -> Calibration:
        """Return the calibration of some of the classes."""
        return Calibration(*(value[targets] for value in self.named().values()))

    def joined(self, new: Calibration) -> Calibration:
        """Return these classes, then the new ones."""
        return Calibration(*(torch.cat([value, new.named()[name]]) for name, value in self.named().items()))

    def settled(self) -> Calibration:
        """Return the classes with a temperature each: where none could be fitted, the median of those that could.

        With one class there is nothing to fit, with one image of each nothing to fit it on. Such a class must not stay
        at the default when others are known: that is a scale of distances, and scores may have any other.
        """
        fitted = self.temperatures != torch.tensor(DEFAULT_TEMPERATURE, dtype=self.temperatures.dtype)
        if bool(fitted.all()) or not bool(fitted.any()):
            return self
        middle = self.temperatures[fitted].median()
        return replace(self, temperatures=torch.where(fitted, self.temperatures, middle))

    def novelty(self, best: torch.Tensor, distances: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
        """Return how far images are, over how far 95 % of held-out images of their class are, (N,); above 1: unknown.

        Args:
            best: (N,) the class that each was given.
            distances: (N, K) to every prototype.
            relative: (N, K) relative distances, `relative_distances`.
        """
        level = LEVELS.index(UNKNOWN_LEVEL)
        plain = distances.gather(1, best[:, None]).squeeze(1) / self.quantiles[best, level]
        share = relative.gather(1, best[:, None]).squeeze(1) / self.relative[best, level]
        known = torch.isfinite(self.relative[best, level])
        return torch.where(known, share.double(), plain.double())

    def moved(self, uncertainty: torch.Tensor | None) -> Calibration:
        """Return the rows as they are after their prototypes were moved: q -> sqrt(q^2 + u^2).

        Args:
            uncertainty: (K,) u, how far each moved prototype may be off; None or not finite: not known, q stays.
        """
        if uncertainty is None:
            return self
        u = torch.where(torch.isfinite(uncertainty), uncertainty, 0.0).to(self.quantiles.dtype)
        moved = torch.hypot(self.quantiles, u[:, None].expand_as(self.quantiles))
        grown = torch.where(torch.isfinite(moved), moved / self.quantiles.clamp(min=1e-12), 1.0)
        return replace(self, quantiles=moved, relative=self.relative * grown)


def distances_to(z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Return Euclidean distances, (N, D), (K, D) -> (N, K)."""
    return squared_distances(z, prototypes).sqrt()


def relative_distances(z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Return each distance over the mean distance to all prototypes, (N, C), (K, C) -> (N, K).

    >>> relative_distances(torch.tensor([[0.0]]), torch.tensor([[1.0], [2.0], [3.0]]))
    tensor([[0.5000, 1.0000, 1.5000]])
    """
    distances = distances_to(z, prototypes)
    return distances / distances.mean(dim=1, keepdim=True).clamp(min=1e-12)


def class_quantiles(distances: torch.Tensor, targets: torch.Tensor, count: int) -> torch.Tensor:
    """Return the LEVELS quantiles of each class's distances, (N,) -> (count, len(LEVELS)).

    A class has too few images for a 95 % quantile of its own. So a class gives its scale s_c (its mean distance, drawn
    toward that of all classes by `PRIOR_IMAGES`), and all classes together the shape: q_c = s_c * quantile(d / s).
    Quantiles are those of a conformal prediction: the ceil((n + 1) level)-th smallest of n, at most the largest.

    Args:
        distances: (N,) of held-out images to the prototype of their own class.
        targets: (N,) their classes, 0..count-1; a class without images gets the scale of all.

    >>> class_quantiles(torch.ones(4), torch.tensor([0, 0, 1, 1]), 2).tolist()[0]
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    if len(distances) == 0:
        return torch.full((count, len(LEVELS)), torch.inf)
    d = distances.double()
    n = torch.bincount(targets, minlength=count).double()
    own = torch.zeros(count, dtype=torch.float64).index_add_(0, targets, d)
    scale = ((own + PRIOR_IMAGES * d.mean()) / (n + PRIOR_IMAGES)).clamp(min=1e-12)
    shape = (d / scale[targets]).sort().values
    picked = [min(len(shape), math.ceil((len(shape) + 1) * level)) - 1 for level in LEVELS]
    return (scale[:, None] * shape[picked]).to(distances.dtype)


def fit_temperature(scores: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the T that makes softmax(scores / T) say how often it is right: the least mean negative log-likelihood.

    The targets keep 1 / (N + 2) for the other classes (Platt's correction): a few images that are all answered rightly
    do not make it infinitely sure. The loss is convex in 1 / T, so it has one minimum in log T. With the gaps to the
    best score, log p_c = -gap_c / T - log sum_c exp(-gap_c / T): all but the last term is linear in 1 / T, and an
    evaluation is one pass over the (N, K) gaps.

    Args:
        scores: (N, K), larger is better; -inf for a class that must not win.
        targets: (N,) the right classes.
    """
    from scipy.optimize import minimize_scalar  # slow to import, and predicting needs none of it

    usable = torch.isfinite(scores).any(dim=1) & torch.isfinite(scores.gather(1, targets[:, None])).squeeze(1)
    scores, targets = scores[usable].double(), targets[usable]
    if len(scores) == 0 or scores.shape[1] < 2:
        return DEFAULT_TEMPERATURE
    gaps = scores.amax(dim=1, keepdim=True) - scores
    finite = torch.isfinite(gaps)
    spread = float(gaps[finite].mean())
    if not spread > 0:
        return DEFAULT_TEMPERATURE
    known, total = finite.sum(dim=1), torch.where(finite, gaps, 0.0).sum(dim=1)
    own = gaps.gather(1, targets[:, None]).squeeze(1)
    miss, others = 1.0 / (len(gaps) + 2), gaps.shape[1] - 1

    def loss(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        log_sum = (gaps / -temperature).exp_().sum(dim=1).log()
        right = -own / temperature - log_sum
        rest = (-total / temperature - known * log_sum - right) / others
        return float(-((1 - miss) * right + miss * rest).mean())

    center, width = math.log(spread), math.log(1e3)
    found = minimize_scalar(loss, bounds=(center - width, center + width), method="bounded", options={"xatol": 1e-4})
    return math.exp(found.x)


def folds(targets: torch.Tensor, count: int, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cut N images into `count` parts, class by class; return (the others, the part) for each part, as positions.

    Every image of a class with at least two is in one part; the one image of a class is in none.
    """
    part_of = torch.full((len(targets),), -1)
    for members in members_of(targets):
        if len(members) > 1:
            order = members[torch.randperm(len(members), generator=generator)]
            part_of[order] = torch.arange(len(order)) % min(count, len(order))
    parts = [((part_of != i).nonzero().flatten(), (part_of == i).nonzero().flatten()) for i in range(count)]
    return [(rest, part) for rest, part in parts if len(part)]


def hold_out(targets: torch.Tensor, share: float, generator: torch.Generator, most: int = 50) -> torch.Tensor:
    """Choose which images are held out, (N,) bool: of each class of five or more a share, from one to `most`."""
    held = torch.zeros(len(targets), dtype=torch.bool)
    if share <= 0:
        return held
    for members in members_of(targets):
        if len(members) >= 5:
            take = min(most, max(1, round(share * len(members))))
            held[members[torch.randperm(len(members), generator=generator)[:take]]] = True
    return held


def splits_of(
    targets: torch.Tensor, held: torch.Tensor, *, classes: int, seed: int, task: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return how a task's images are checked: for each pass (the images that stay, those that are held out).

    Those that training did not see, or, where there are none, each image in turn (`FOLDS`). So few are held out at once
    that their scores of all classes are at most `CHECKED_SCORES`: temperature and the shape of distances are shared by
    all classes, so they can be measured on a sample.

    Args:
        targets: (N,) the task's classes, 0..C-1.
        held: (N,) bool, images that the network was not trained on.
        classes: K, all classes after the task.
        seed, task: from which all randomness follows.
    """
    if bool(held.any()):
        splits = [((~held).nonzero().flatten(), held.nonzero().flatten())]
    else:
        splits = folds(targets, FOLDS, seeding.generator(seed, "folds", task))
    most = max(1, CHECKED_SCORES // classes // max(1, len(splits)))
    generator = seeding.generator(seed, "checked images", task)

    def some(part: torch.Tensor) -> torch.Tensor:
        return part[torch.randperm(len(part), generator=generator)[:most].sort().values] if len(part) > most else part

    return [(rest, some(part)) for rest, part in splits]


@dataclass(frozen=True)
class Checked:
    """Held-out images of C new classes among K, and what a read-out that had not seen them says about them.

    Attributes:
        scores: (n, K).
        distances: (n,) to the prototype of the own class.
        relative: (n,) the same, relative.
        targets: (n,) classes, 0..C-1.
    """

    scores: torch.Tensor
    distances: torch.Tensor
    relative: torch.Tensor
    targets: torch.Tensor

    @staticmethod
    def of(readout: Readout, view: View, targets: torch.Tensor, first: int) -> Checked:
        """Return what a read-out says of the images of a view, whose classes follow the `first` old ones."""
        own = distances_to(readout.space(view.z), view.prototypes[first:]).gather(1, targets[:, None])
        relative = relative_distances(*readout.coordinates(view)).gather(1, targets[:, None] + first)
        return Checked(readout.scores(view), own.squeeze(1), relative.squeeze(1).float(), targets)

    @staticmethod
    def joined(parts: Sequence[Checked]) -> Checked:
        """Return the images of all parts."""
        return Checked(*(torch.cat([getattr(p, name) for p in parts]) for name in Checked.__dataclass_fields__))

    def accuracy(self, first: int) -> float:
        """Return the share that was answered rightly among all classes, of which the `first` are old."""
        return float((self.scores.argmax(dim=1) == self.targets + first).double().mean())


def measured(checked: Checked | None, before: Calibration, count: int, honest: bool) -> Calibration:
    """Return the rows of `count` new classes.

    Args:
        checked: their held-out images; None: one image per class, nothing can be held out, and the medians of the
            other classes are used.
        before: the rows of the old classes.
        count: C.
        honest: whether the network was not trained on the images.
    """
    if checked is None:
        known, unknown = before.at(before.images.nonzero().flatten().tolist()), Calibration.unknown(count)
        if not len(known):
            return unknown
        return replace(
            unknown,
            quantiles=known.quantiles.median(dim=0).values.repeat(count, 1),
            relative=known.relative.median(dim=0).values.repeat(count, 1),
        )
    targets, first = checked.targets, len(before)
    images = torch.bincount(targets, minlength=count)
    quantiles = class_quantiles(checked.distances, targets, count)
    several = first + count >= SEVERAL
    return Calibration(
        quantiles,
        class_quantiles(checked.relative, targets, count) if several else torch.full_like(quantiles, torch.inf),
        torch.full((count,), fit_temperature(checked.scores, targets + first)),
        images,
        torch.full((count,), honest) & (images > 0),
    )
