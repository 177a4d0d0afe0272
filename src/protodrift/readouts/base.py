"""The interface of a read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from ..common.config import Config
from ..common.covariance import Covariance, dense
from ..common.covariance import Tensors as Tensors
from ..common.sums import Sums
from ..errors import InputError

SCORES_AT_ONCE = 2**25
"""Scores held at once where only the best class is asked for, n x K: 256 MB of float64."""


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

    def parts(self, elements: int = SCORES_AT_ONCE) -> Iterator[View]:
        """Yield the images in parts of so few that their (n, K) scores are at most `elements`, or one image.

        A view of every network is not cut: what it asks for belongs to all images.
        """
        size = max(1, elements // max(1, len(self.prototypes)))
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
    - `sums` and `learn_sums`: the same for images that lie in pieces (on ranks). A read-out that learns and declares no
      sums still works there: the embeddings of all pieces are gathered.
    - `centers`: where prototypes are compared, if not where they are.
    - `linear`: the scores as a linear map, where they are one; then a model can be exported.
    - `coordinates`: where distances say how sure an answer is.
    - `uses_prototypes`, `needs_heads`, `needs_every_network`: what it looks at.
    """

    uses_prototypes: ClassVar[bool] = True
    """Whether prototypes, and so drift, matter to it."""

    needs_heads: ClassVar[bool] = False
    """Whether it reads classification heads, which only some objectives train."""

    needs_every_network: ClassVar[bool] = False
    """Whether it asks the networks of earlier tasks, which a learner does not keep."""

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

    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the scores as a linear map, score_k = space(z) . w_k + b_k up to what all classes share.

        The images of the view are not looked at. An exported graph scores classes by this map.

        Returns:
            w (D, K) and b (K,), -inf for a class without a prototype; None: the scores are no linear map.
        """
        return None

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

    def coordinates(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and prototypes where this read-out compares them by distance, (N, C) and (K, C).

        Calibration asks there how far an image is from the class it was given: by default in `space`.
        """
        return self.space(view.z), view.prototypes

    @abstractmethod
    def scores(self, view: View) -> torch.Tensor:
        """Return (N, K) scores, larger is better; a class that must not win gets -inf."""

    def predict(self, view: View) -> torch.Tensor:
        """Return the row of the best class for each image, (N,); all (N, K) scores never exist at once."""
        return torch.cat([self.scores(part).argmax(dim=1) for part in view.parts()])


@dataclass(frozen=True)
class LinearReadout(Readout):
    """A read-out whose scores are a linear map of the embedding, in float64. A subclass has `linear`."""

    @abstractmethod
    def linear(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return w (D, K) and b (K,) in float64, see `Readout.linear`."""

    def scores(self, view: View) -> torch.Tensor:
        """Return space(z) . w_k + b_k, (N, K); a class without a prototype gets -inf."""
        weights, bias = self.linear(view)
        return self.space(view.z).double() @ weights + bias

    def predict(self, view: View) -> torch.Tensor:
        """Return the row of the best class for each image, (N,); the map is solved for once."""
        weights, bias = self.linear(view)
        parts = (self.space(part.z).double() @ weights + bias for part in view.parts())
        return torch.cat([scores.argmax(dim=1) for scores in parts])


def present(prototypes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prototypes with zeros for classes that have none, (K, D), and 0 or, for those, -inf, (K,): their bias."""
    valid = torch.isfinite(prototypes).all(dim=1)
    bias = torch.zeros(len(prototypes), dtype=prototypes.dtype).masked_fill(~valid, -torch.inf)
    return torch.where(valid[:, None], prototypes, 0.0), bias
