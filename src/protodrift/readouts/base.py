"""The interface of a read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..common.config import Config, flag, number
from ..common.covariance import Covariance, dense
from ..common.covariance import Tensors as Tensors
from ..common.finite import check_scores
from ..common.sums import Sums
from ..common.transport import Transport
from ..errors import InputError

SCORES_AT_ONCE = 2**25
"""Scores held at once where only the best class is asked for, n x K: 256 MB of float64."""

Scorer = Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]
"""(N, D) embeddings and the outputs of the heads -> (N, K) scores."""

_ANSWERS = ("left_out", "scores", "scorer", "linear", "axes", "coordinates")


@dataclass(frozen=True)
class View:
    """What a read-out may look at when it classifies N images.

    Attributes:
        z: (N, D) their embeddings.
        prototypes: (K, D) of all classes seen, in task order.
        logits: the outputs of the network's heads, one (N, classes of its task) per task; empty for metric objectives.
        readout_state: what the read-out itself learned so far.
        z_of_task: t -> (N, D), embeddings by the network as it was after task t (0: the initial one), for read-outs
            that keep all networks; None where only the last network is at hand.
        logits_of_task: t -> the outputs of the heads of that network; None likewise.
        statistics: what is kept of each class beside its prototype, see `common.covariance.Covariance`.
        counts: (K,) images behind each prototype; empty where nobody counted.
    """

    z: torch.Tensor
    prototypes: torch.Tensor
    logits: list[torch.Tensor] = field(default_factory=list)
    readout_state: Tensors = field(default_factory=dict)
    z_of_task: Callable[[int], torch.Tensor] | None = None
    logits_of_task: Callable[[int], list[torch.Tensor]] | None = None
    statistics: Tensors = field(default_factory=dict)
    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(0))

    def parts(self, elements: int = SCORES_AT_ONCE, rows: int = 2**31) -> Iterator[View]:
        """Yield the images in parts of so few that (n, K) scores and (n, D) copies have at most `elements`, or one.

        A part has at most `rows` images. A view of every network is not cut: what it asks for belongs to all images.
        """
        size = min(rows, max(1, elements // max(1, *self.prototypes.shape)))
        if len(self.z) <= size or self.z_of_task is not None:
            yield self
            return
        for start in range(0, len(self.z), size):
            at = slice(start, start + size)
            yield replace(self, z=self.z[at], logits=[part[at] for part in self.logits])

    def covariances(self) -> torch.Tensor:
        """Return the covariance of every class, (K, D, D).

        Raises:
            InputError: if none were kept.
        """
        if not self.statistics:
            raise InputError(
                "this read-out needs a covariance of every class, and the model kept none when it learned. Learn all "
                "tasks with it, or use NearestClassMean()."
            )
        return dense(self.statistics, len(self.prototypes))


@dataclass(frozen=True)
class Readout(Config, ABC):
    """How an embedding gets its class. Configuration only; what it learns goes through `learn` as named tensors.

    A subclass is a frozen dataclass with `scores`. Everything else is optional:

    - `space` and `space_name`: where prototypes are averaged and compared.
    - `keeps`: what is kept of every class beside its mean.
    - `learn`: what is learned from a finished task beside prototypes; `refreshed`, if a class can come again.
    - `moved`: what was learned, after the network moved.
    - `added`: what two models have learned apart, added up, so that they can be merged.
    - `sums` and `learn_sums`: the same for images that lie in pieces (on ranks). A read-out that learns and declares no
      sums still works there: the embeddings of all pieces are gathered.
    - `centers`: where prototypes are compared, if not where they are.
    - `scorer` in place of `scores` (`PreparedReadout`): what depends on no image is computed once, and a model can be
      exported.
    - `axes` or `coordinates`: where distances say how sure an answer is.
    - `left_out`: scores as if an image had never been seen, in closed form; otherwise a task is checked in folds.
    - `uses_prototypes`, `needs_heads`, `needs_every_network`: what it looks at.
    """

    uses_prototypes: ClassVar[bool] = True
    """Whether prototypes, and so drift, matter to it."""

    needs_heads: ClassVar[bool] = False
    """Whether it reads classification heads, which only some objectives train."""

    needs_every_network: ClassVar[bool] = False
    """Whether it asks the networks of earlier tasks, which a learner does not keep."""

    most_rows: ClassVar[int] = 2**31
    """Images that are scored at once, at most."""

    @property
    def space_name(self) -> str:
        """Names what `space` does: stages that agree on it can be shared."""
        return "plain"

    @property
    def keeps(self) -> Covariance | None:
        """What it needs to be kept of every class beside the mean; None: nothing."""
        return None

    def space(self, z: torch.Tensor) -> torch.Tensor:
        """Map embeddings into the space in which prototypes are averaged and compared, (N, D) -> (N, D)."""
        return z

    def centers(self, prototypes: torch.Tensor) -> torch.Tensor:
        """Return where classes are compared with images in `space`, (K, D) -> (K, D): their prototypes."""
        return prototypes

    def scorer(self, view: View) -> Scorer | None:
        """Return `scores` as a function of images, with all that depends on no image computed; None: there is none.

        The images of the view are not looked at. An exported graph holds this function and its constants.
        """
        return None

    @property
    def has_scorer(self) -> bool:
        """Whether `scorer` belongs to these scores: a subclass may have changed the scores alone."""
        first = next(cls for cls in type(self).__mro__ if "scores" in vars(cls) or "scorer" in vars(cls))
        return "scorer" in vars(first) and first is not Readout

    def learn(self, readout_state: Tensors, z: torch.Tensor, targets: torch.Tensor, task: int, seed: int) -> Tensors:
        """Learn from a finished task's embeddings, in `space`, and return what to keep.

        Args:
            readout_state: what was kept before.
            z: (N, D) the task's training images through the network after the task; for read-outs that need every
                network, through the initial network.
            targets: (N,) their classes: positions among all classes seen so far.
            task: t, counted from 1.
            seed: the run's seed.
        """
        return readout_state

    @property
    def can_merge(self) -> bool:
        """Whether it learns nothing, or from sums."""
        return type(self).learn is Readout.learn or type(self).sums is not Readout.sums

    def sums(self, z: torch.Tensor, targets: torch.Tensor, classes: int) -> Sums | None:
        """Return sums over some of a task's images from which `learn_sums` learns; None: there are none.

        Args:
            z: (n, D) embeddings of this piece, as for `learn`; n may be 0.
            targets: (n,) their classes.
            classes: K, the number of classes seen so far, the same for all pieces.
        """
        return None

    def learn_sums(self, readout_state: Tensors, sums: Sums, task: int, seed: int) -> Tensors:
        """Return what `learn` returns for the images of all pieces, from their merged sums."""
        if type(self).learn is Readout.learn:
            return readout_state
        raise NotImplementedError(f"{type(self).__name__} declares sums and has no learn_sums: write both or neither.")

    def refreshed(
        self,
        readout_state: Tensors,
        means: torch.Tensor,
        counts: torch.Tensor,
        added: torch.Tensor,
        added_counts: torch.Tensor,
    ) -> Tensors:
        """Return what to keep when `learn` saw images of classes that it had seen before.

        Args:
            readout_state: what `learn` returned.
            means, counts: (R, D) and (R,) the prototypes of those classes without these images, and how many are behind
                each.
            added, added_counts: (R, D) and (R,) the means of these images, and how many there are.
        """
        return readout_state

    def settled(self, readout_state: Tensors) -> Tensors:
        """Return what is kept after a task in the form in which it is stored."""
        return readout_state

    def added(
        self, readout_state: Tensors, other: Tensors, targets: torch.Tensor, classes: int, sign: int = 1
    ) -> Tensors | None:
        """Return what to keep of the images behind two states together, learned apart by the same network.

        Images of a class that stands in both: `refreshed` is called after this, as it is after `learn`.

        Args:
            readout_state: what is kept of the images of some of the K classes.
            other: what is kept of other images.
            targets: (K',) where the other's classes are among the K; -1: it is none of them.
            classes: K.
            sign: -1: the images behind the other are among those behind the first, and are taken away.

        Returns:
            None: such states do not add up.
        """
        return readout_state if type(self).learn is Readout.learn else None

    def moved(
        self,
        readout_state: Tensors,
        fitted: Transport,
        prototypes: torch.Tensor,
        counts: torch.Tensor,
        task: int,
        seed: int,
    ) -> Tensors:
        """Return what to keep after the network moved, before `learn` sees the images of the task that moved it.

        Args:
            readout_state: what was kept before the task.
            fitted: the drift estimator that moves the prototypes.
            prototypes, counts: (K, D) and (K,) of the old classes, before they are moved.
            task, seed: t and the run's seed.
        """
        return readout_state

    def axes(self, view: View) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return `coordinates` as an affine map, (space(z) - center) @ axes; the images of the view are not looked at.

        Returns:
            center (D,) and axes (D, C) in float64; None: the identity.
        """
        return None

    def coordinates(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and prototypes where this read-out compares them by distance, (N, C) and (K, C).

        Calibration asks there how far an image is from the class it was given: by default in `space`.
        """
        found = self.axes(view)
        if found is None:
            return self.space(view.z), view.prototypes
        center, axes = found
        return (self.space(view.z).double() - center) @ axes, (view.prototypes.double() - center) @ axes

    def left_out(self, view: View, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return what is said of each image as if it had never been seen; None: there is no closed form for it.

        Args:
            view: of images that prototypes and `readout_state` were computed from, with the `counts` of all classes.
            targets: (N,) their classes, each of two images or more.

        Returns:
            (N, K) scores, and (N, K) distances in `coordinates`.
        """
        return None

    @property
    def leaves_out(self) -> bool:
        """Whether `left_out` belongs to these scores: a subclass may have changed the scores alone."""
        first = next(cls for cls in type(self).__mro__ if any(name in vars(cls) for name in _ANSWERS))
        return "left_out" in vars(first) and first is not Readout

    @abstractmethod
    def scores(self, view: View) -> torch.Tensor:
        """Return (N, K) scores, larger is better; a class that must not win gets -inf."""

    def predict(self, view: View) -> torch.Tensor:
        """Return the row of the best class for each image, (N,); all (N, K) scores never exist at once."""
        return torch.cat([check_scores(self, self.scores(part)).argmax(dim=1) for part in view.parts()])


def powered(z: torch.Tensor, power: float) -> torch.Tensor:
    """Return sign(z) |z|^power: for features that are never negative, Tukey's ladder of powers.

    A square root draws in the few large activations that pooled features have, and makes a class more nearly Gaussian.
    Of features of both signs, small ones are blown up: leave those at power 1.

    >>> powered(torch.tensor([4.0, 0.0, -9.0]), 0.5)
    tensor([ 2.,  0., -3.])
    """
    return z if power == 1 else z.sign() * z.abs() ** power


@dataclass(frozen=True)
class PoweredReadout(Readout):
    """A read-out whose space is a power of the features.

    Args:
        tukey: z <- sign(z) |z|^tukey before anything is averaged; 1 leaves z, 0.5 is for features >= 0, as pooled ones.
        unit: then z <- z / |z|.
    """

    _: KW_ONLY
    tukey: float = 1.0
    unit: bool = False
    rules: ClassVar = {"tukey": number(above=0, high=1), "unit": flag}

    @property
    def space_name(self) -> str:
        """The power, and whether length is one."""
        names = [f"tukey {self.tukey:g}"] * (self.tukey != 1) + ["unit length"] * self.unit
        return ", ".join(names) or "plain"

    def space(self, z: torch.Tensor) -> torch.Tensor:
        """Return sign(z) |z|^tukey, of unit length if that is asked for."""
        z = powered(z, self.tukey)
        return F.normalize(z, dim=1) if self.unit else z


@dataclass(frozen=True)
class PreparedReadout(Readout):
    """A read-out whose scores need much that depends on no image: a factorization, for example. It has `scorer`."""

    @abstractmethod
    def scorer(self, view: View) -> Scorer:
        """Return `scores` as a function of images, see `Readout.scorer`."""

    def scores(self, view: View) -> torch.Tensor:
        """Return (N, K) scores; a class without a prototype gets -inf."""
        return torch.cat(list(self._scores(view)))

    def predict(self, view: View) -> torch.Tensor:
        """Return the row of the best class for each image, (N,)."""
        return torch.cat([check_scores(self, scores).argmax(dim=1) for scores in self._scores(view)])

    def _scores(self, view: View) -> Iterator[torch.Tensor]:
        scorer = self.scorer(view)
        return (scorer(part.z, part.logits) for part in view.parts(rows=self.most_rows))


@dataclass(frozen=True)
class LinearReadout(PreparedReadout):
    """A read-out whose scores are a linear map of the embedding, in float64. A subclass has `linear`."""

    @abstractmethod
    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return w (D, K) and b (K,) in float64, score_k = space(z) . w_k + b_k; b is -inf without a prototype."""

    def scorer(self, view: View) -> Scorer:
        """Return z -> space(z) . w_k + b_k; the map is solved for once."""
        weights, bias = self.linear(view)
        return lambda z, logits: self.space(z).double() @ weights + bias


def present(prototypes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prototypes with zeros for classes that have none, (K, D), and 0 or, for those, -inf, (K,): their bias."""
    valid = torch.isfinite(prototypes).all(dim=1)
    bias = torch.zeros(len(prototypes), dtype=prototypes.dtype).masked_fill(~valid, -torch.inf)
    return torch.where(valid[:, None], prototypes, 0.0), bias
