"""How sure an answer is, and when the right answer is "none of them".

Both are measured at every task, on images that the answer did not depend on, against all classes known by then: how far
an image lies from the class that it is *given*, rightly or not, and how sharp a softmax over the scores must be to be
right as often as it says (a temperature). "Far" is relative where there are three classes or more: the distance to the
class over the mean distance to all classes, in the coordinates of the read-out. An image of none of the classes is
about equally far from all. With one or two classes it is the plain distance.

Both change as classes are added, also where the network stays as it is: with more classes an image lies relatively
farther from its own, and a covariance of more images makes scores sharper. Old images are gone, so what the newest task
says holds for all classes. What earlier tasks said counts the less, the more classes have come since (`STALE`).

A network that is trained knows its newest classes best. There each class keeps how far its images lay from its
prototype: its spread, which grows by the uncertainty u of its drift to sqrt(spread^2 + u^2). Limits and temperatures of
other classes follow by it from those of the newest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..common.geometry import squared_distances

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 1.0)
"""Which quantiles of the novelty of held-out images are kept: a limit can be set for any share of them."""

UNKNOWN_RATE = 0.05
"""The share of images of known classes that may be called unknown, where nobody says another."""

PRIOR_IMAGES = 5.0
"""A class's own spread counts as much as that of all classes together when it rests on this many images."""

STALE = 6.0
"""What was measured among k of now K classes counts by (k / K)^STALE: 0.4 for 60 of 70, 0.02 for 10 of 20.

Of 1, 2, 4, 8 and infinity, tried on three sets of photos, 4 and 8 came closest to the rate asked for."""

SEVERAL = 3
"""From this many classes on, distances are relative to those of the other classes."""

DEFAULT_TEMPERATURE = 0.1
"""Where no image could be held out: d^2 of unit vectors lies in 0..4."""


@dataclass(frozen=True)
class Calibration:
    """What is known about the answers of K classes. Immutable; rows as in `Prototypes`.

    Attributes:
        quantiles: (K, len(LEVELS)) of the novelty of images that are given the class; inf: not known.
        temperatures: (K,) of the softmax over scores, for answers that name the class.
        spread: (K,) the mean distance between an image of the class and its prototype; inf: not known.
        evidence: (K,) images behind quantiles and temperature; those of earlier tasks count less.
        images: (K,) held-out images of the class itself.
        honest: (K,) whether those images were really held out: False, where the network was trained on them too.
    """

    quantiles: torch.Tensor
    temperatures: torch.Tensor
    spread: torch.Tensor
    evidence: torch.Tensor
    images: torch.Tensor
    honest: torch.Tensor

    def __len__(self) -> int:
        return len(self.quantiles)

    @staticmethod
    def unknown(count: int, temperature: float = DEFAULT_TEMPERATURE) -> Calibration:
        """Return the calibration of `count` classes about which nothing is known: nothing is ever too far away."""
        return Calibration(
            torch.full((count, len(LEVELS)), torch.inf),
            torch.full((count,), float(temperature)),
            torch.full((count,), torch.inf),
            torch.zeros(count),
            torch.zeros(count, dtype=torch.long),
            torch.zeros(count, dtype=torch.bool),
        )

    def named(self) -> dict[str, torch.Tensor]:
        """Return the parts by name, for files."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def limits(self, rate: float = UNKNOWN_RATE) -> torch.Tensor:
        """Return (K,) the novelty beyond which an image is called unknown; inf: not known, or nothing ever is.

        Args:
            rate: the share of images of known classes that may be called unknown; 0: none.
        """
        if rate <= 0:
            return torch.full((len(self),), torch.inf)
        level = min(max(1 - rate, 0.0), 1.0)
        above = next(i for i, one in enumerate(LEVELS) if one >= level - 1e-12)
        if LEVELS[above] <= level + 1e-12:
            return self.quantiles[:, above]
        part = (level - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1])
        low, high = self.quantiles[:, above - 1], self.quantiles[:, above]
        return torch.where(torch.isfinite(high), low + part * (high - low), torch.inf)

    def at(self, targets: list[int]) -> Calibration:
        """Return the calibration of some of the classes; limits are not known where distances are another kind."""
        some = Calibration(*(value[targets] for value in self.named().values()))
        return some._of_another_kind() if len(some) < SEVERAL <= len(self) else some

    def joined(self, new: Calibration) -> Calibration:
        """Return these classes, then the new ones."""
        return Calibration(*(torch.cat([value, new.named()[name]]) for name, value in self.named().items()))

    def merged(self, other: Calibration, targets: list[int]) -> Calibration:
        """Return these classes, then some of those of another model: each with what was measured where it was learned.

        A model of one or two classes had plain distances: where there are more now, its limits are not known.
        """
        several = len(self) + len(targets) >= SEVERAL
        parts = (one._of_another_kind() if len(one) < SEVERAL and several else one for one in (self, other))
        first, second = parts
        return first.joined(Calibration(*(value[targets] for value in second.named().values())))

    def moved(self, uncertainty: torch.Tensor | None) -> Calibration:
        """Return the rows as they are after their prototypes were moved: spread -> sqrt(spread^2 + u^2).

        Limits grow as distances do, temperatures as their squares.

        Args:
            uncertainty: (K,) u, how far each moved prototype may be off; None or not finite: not known.
        """
        if uncertainty is None:
            return self
        u = torch.where(torch.isfinite(uncertainty), uncertainty, 0.0).to(self.spread.dtype)
        spread = torch.hypot(self.spread, u)
        growth = torch.where(torch.isfinite(spread), spread / self.spread.clamp(min=1e-12), 1.0)
        return replace(
            self,
            spread=spread,
            quantiles=self.quantiles * growth[:, None],
            temperatures=self.temperatures * growth.square(),
        )

    def _of_another_kind(self) -> Calibration:
        """Return the rows where plain distances took the place of relative ones, or the other way around."""
        nothing = torch.full_like(self.quantiles, torch.inf)
        return replace(self, quantiles=nothing, evidence=torch.zeros_like(self.evidence))


def distances_to(z: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Return Euclidean distances, (N, D), (K, D) -> (N, K)."""
    return squared_distances(z, prototypes).sqrt()


def novelty(best: torch.Tensor, plain: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """Return how far images are from the class that they are given, (N,) float64.

    Args:
        best: (N,) that class.
        plain: (N, K) distances to the prototypes in the read-out's space; they count for one or two classes.
        distances: (N, K) in the read-out's coordinates; from three classes on each counts over the mean of its row.

    >>> novelty(torch.tensor([0]), torch.tensor([[4.0, 9.0, 9.0]]), torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    chosen = plain if plain.shape[1] < SEVERAL else distances
    own = chosen.gather(1, best[:, None]).squeeze(1).double()
    return own if plain.shape[1] < SEVERAL else own / distances.double().mean(dim=1).clamp(min=1e-12)


def sketch(values: torch.Tensor) -> torch.Tensor:
    """Return the LEVELS quantiles of values, (n,) -> (len(LEVELS),).

    Those of a conformal prediction: the ceil((n + 1) level)-th smallest of n, at least the first and at most the last.

    >>> sketch(torch.arange(1.0, 100.0))[LEVELS.index(0.95)]
    tensor(95.)
    """
    picked = [min(len(values), max(1, math.ceil((len(values) + 1) * level - 1e-9))) - 1 for level in LEVELS]
    return values.sort().values[picked]


def fit_temperature(scores: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the T at which softmax(scores / T) is right as often as it says, on average.

    The share counts one right and one wrong answer more than there are, (right + 1) / (N + 2): a few images that are
    all answered rightly do not make it infinitely sure. With the gaps to the best score the confidence is
    1 / sum_c exp(-gap_c / T), which falls as T grows, so there is one such T; an evaluation is one pass over the (N, K)
    gaps. Where no T between a thousandth and a thousand times the mean gap does it, it is the nearest of these.

    Args:
        scores: (N, K), larger is better; -inf for a class that must not win.
        targets: (N,) the right classes.

    >>> scores = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    >>> T = fit_temperature(scores, torch.tensor([0, 0, 1, 1]))
    >>> (scores / T).softmax(dim=1).amax(dim=1)  # three of four are right: (3 + 1) / (4 + 2)
    tensor([0.6667, 0.6667, 0.6667, 0.6667])
    """
    from scipy.optimize import brentq  # slow to import, and predicting needs none of it

    usable = torch.isfinite(scores.gather(1, targets[:, None])).squeeze(1) & (torch.isfinite(scores).sum(dim=1) > 1)
    scores, targets = scores[usable].double(), targets[usable]
    if len(scores) == 0:
        return DEFAULT_TEMPERATURE
    gaps = scores.amax(dim=1, keepdim=True) - scores
    spread = float(gaps[torch.isfinite(gaps)].mean())
    if not spread > 0:
        return DEFAULT_TEMPERATURE
    right = (int((scores.argmax(dim=1) == targets).sum()) + 1) / (len(scores) + 2)

    def too_sure(log_temperature: float) -> float:
        return float((gaps / -math.exp(log_temperature)).exp_().sum(dim=1).reciprocal_().mean()) - right

    low, high = math.log(spread) - math.log(1e3), math.log(spread) + math.log(1e3)
    if too_sure(low) <= 0:
        return math.exp(low)
    if too_sure(high) >= 0:
        return math.exp(high)
    return math.exp(brentq(too_sure, low, high, xtol=1e-4))


@dataclass(frozen=True)
class Checked:
    """Images of some of K classes, and what a read-out that had not seen them says about them.

    Attributes:
        scores: (n, K).
        novelty: (n,) how far from the class that they are given.
        distances: (n,) to the prototype of their own class.
        targets: (n,) their classes.
    """

    scores: torch.Tensor
    novelty: torch.Tensor
    distances: torch.Tensor
    targets: torch.Tensor

    @staticmethod
    def of(scores: torch.Tensor, plain: torch.Tensor, distances: torch.Tensor, targets: torch.Tensor) -> Checked:
        """Return what is said of images, given (n, K) scores, plain distances, and distances in coordinates."""
        own = plain.gather(1, targets[:, None]).squeeze(1)
        return Checked(scores, novelty(scores.argmax(dim=1), plain, distances), own, targets)

    @staticmethod
    def joined(parts: Sequence[Checked]) -> Checked:
        """Return the images of all parts."""
        return Checked(*(torch.cat([getattr(p, name) for p in parts]) for name in Checked.__dataclass_fields__))

    @property
    def accuracy(self) -> float:
        """The share that was answered rightly among all K classes."""
        return float((self.scores.argmax(dim=1) == self.targets).double().mean())


def recalibrated(
    before: Calibration, checked: Checked | None, means: torch.Tensor, *, trained: bool, honest: bool
) -> Calibration:
    """Return the calibration of K classes after a task.

    Args:
        before: of the classes known before, moved with their prototypes.
        checked: images of this task; None: none could be held out, and new classes take over what others have.
        means: (K, D) all prototypes.
        trained: whether the network was trained in this task: it knows the classes of the images best.
        honest: whether the network was not trained on the images.
    """
    first, count = len(before), len(means)
    if first < SEVERAL <= count:
        before = before._of_another_kind()
    rows = before.joined(_alike(before, count - first))
    if checked is None:
        return rows
    n = len(checked.targets)
    rows = _with_images(rows, checked, honest)
    old = rows.evidence * (first / count) ** STALE
    share = (n / (old + n))[:, None]
    # A network that stays treats new classes as old ones.
    factor = _expected(rows.spread, means, set(checked.targets.tolist())) if trained else torch.ones(count)
    measured = sketch(checked.novelty).to(rows.quantiles.dtype) * factor[:, None]
    quantiles = torch.where(torch.isfinite(rows.quantiles), torch.lerp(rows.quantiles, measured, share), measured)
    temperature = fit_temperature(checked.scores, checked.targets)
    temperatures = rows.temperatures
    if temperature != DEFAULT_TEMPERATURE:
        known = (rows.temperatures != torch.tensor(DEFAULT_TEMPERATURE)) & (old > 0)
        fitted = math.log(temperature) + 2 * factor.log()
        blended = torch.lerp(rows.temperatures.log(), fitted, share.squeeze(1))
        temperatures = torch.where(known, blended, fitted).exp()
    return replace(rows, quantiles=quantiles, temperatures=temperatures, evidence=old + n)


def _alike(before: Calibration, count: int) -> Calibration:
    """Return rows for `count` more classes: the middle of those that are known."""
    rows = Calibration.unknown(count)
    if not len(before):
        return rows
    quantiles, temperature, spread, evidence = (
        value.median(dim=0).values
        for value in (before.quantiles, before.temperatures[:, None], before.spread[:, None], before.evidence[:, None])
    )
    return replace(
        rows,
        quantiles=quantiles.repeat(count, 1),
        temperatures=temperature.repeat(count),
        spread=spread.repeat(count),
        evidence=evidence.repeat(count),
    )


def _with_images(rows: Calibration, checked: Checked, honest: bool) -> Calibration:
    """Return the rows with the spread of the classes of the images; a class of few is drawn toward that of all."""
    d, count = checked.distances.double(), len(rows)
    n = torch.bincount(checked.targets, minlength=count)
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, checked.targets, d)
    known = (rows.images > 0) & torch.isfinite(rows.spread)
    prior = torch.where(known, rows.images.double(), PRIOR_IMAGES)
    toward = torch.where(known, rows.spread.double(), d.mean())
    spread = (sums + prior * toward) / (n + prior)
    there = (n > 0) | ~torch.isfinite(rows.spread)
    return replace(
        rows,
        spread=torch.where(there, spread.to(rows.spread.dtype), rows.spread),
        images=rows.images + n,
        honest=torch.where(n > 0, honest, rows.honest),
    )


def _expected(spread: torch.Tensor, means: torch.Tensor, newest: set[int]) -> torch.Tensor:
    """Return (K,) how novel images of each class are expected to be, over those of the newest classes.

    An image of class c lies about spread_c from mu_c, and sqrt(spread_c^2 + |mu_c - mu_k|^2) from mu_k.
    """
    expected = spread.double()
    if len(means) >= SEVERAL:
        apart = means.double() - means.double().mean(dim=0)
        squared = apart.square().sum(dim=1)
        expected = expected / (expected.square() + squared + squared.mean()).sqrt().clamp(min=1e-12)
    expected = expected.clamp(min=1e-12)
    return (expected / expected[sorted(newest)].mean()).to(spread.dtype)
