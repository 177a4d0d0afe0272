"""From embeddings to answers: classes, how sure they are, and whether an image is of none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..common.finite import check_scores, name_of
from ..common.geometry import squared_distances_to
from ..common.labels import Label
from ..errors import InputError
from ..networks.embedder import Embedder
from ..penalties import Tensors
from ..prototypes.store import Prototypes
from ..readouts import Readout, View
from ..readouts.base import Scorer
from .calibration import UNKNOWN_RATE, distances_to, novelty

if TYPE_CHECKING:
    from .state import LearnerState


@dataclass(frozen=True)
class Recognized:
    """Answers for N images over K classes.

    Attributes:
        classes: (K,) all labels.
        best: (N,) the answer, as a position in `classes`.
        probabilities: (N, K) confidence.
        distances: (N, K) Euclidean distance to each prototype.
        novelty: (N,) how far from the answer's class, over the limit beyond which an image is called unknown; 0 where
            no image could be held out.
        embeddings: (N, D) z.
    """

    classes: np.ndarray
    best: np.ndarray
    probabilities: np.ndarray
    distances: np.ndarray
    novelty: np.ndarray
    embeddings: np.ndarray

    @property
    def unknown(self) -> np.ndarray:
        """(N,) whether an image is far from every class."""
        far: np.ndarray = self.novelty > 1
        return far

    @property
    def labels(self) -> np.ndarray:
        """(N,) the label of the best class, also of images that are unknown."""
        named: np.ndarray = self.classes[self.best]
        return named

    def top(self, row: int, count: int) -> list[tuple[Label, float, float]]:
        """Return the `count` likeliest classes of an image: label, probability, distance."""
        order = np.argsort(-self.probabilities[row], kind="stable")
        order = order[order != self.best[row]]  # the answer first, also among equals
        order = np.concatenate([[self.best[row]], order])[:count]
        return [
            (self.classes[i].item(), float(self.probabilities[row, i]), float(self.distances[row, i])) for i in order
        ]


def checked_embeddings(network: Embedder, z: torch.Tensor) -> torch.Tensor:
    """Return the embeddings of a user's images, (N, D); refuse them if the network overflowed.

    Raises:
        InputError: naming the first such row, and the network.
    """
    broken = (~torch.isfinite(z).all(dim=1)).nonzero().flatten()
    if len(broken):
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(
            f"row {int(broken[0])} of X{more} is so far from anything that was learned that the network overflows: "
            f"{name_of(network.backbone)} returned NaN or infinity. Check the scale of X, and fill values such as "
            "3.4e38."
        )
    return z


def readout_view(z: torch.Tensor, prototypes: Prototypes, network: Embedder, readout_state: Tensors) -> View:
    """Return what a read-out may look at, for (N, D) embeddings z by this network, features beside it after them."""
    device, own = next(network.parameters()).device, z[:, : network.embedding_dim]
    with torch.no_grad():
        logits = [part.cpu() for part in network.logits(own.to(device))]
    return View(z, prototypes.means, logits, readout_state, statistics=prototypes.statistics, counts=prototypes.counts)


def view_of(state: LearnerState, z: torch.Tensor) -> View:
    """Return what a read-out may look at after what was learned, for (N, D) embeddings z by its network."""
    return readout_view(z, state.prototypes, state.trained.network, state.readout_state)


def probabilities(state: LearnerState, scores: torch.Tensor, temperature: float | str) -> torch.Tensor:
    """Return softmax(scores / temperature), (N, K); "auto": the temperature of the class that was answered."""
    return _softened(scores, scores.argmax(dim=1), temperatures_of(state, temperature))


def temperatures_of(state: LearnerState, temperature: float | str) -> torch.Tensor:
    """Return the temperature of the probabilities for answers of each class, (K,) float64; "auto": as measured."""
    measured = state.calibration.temperatures.double()
    return measured if temperature == "auto" else torch.full_like(measured, float(temperature))


def _softened(scores: torch.Tensor, best: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    return (scores.double() / temperatures[best, None]).softmax(dim=1)


class Recognizer:
    """What answers need of a state and do not depend on images: both factorizations of the read-out are in it.

    `scorer` and `answer` are functions of tensors that never branch on their values: an exported graph is made of them.

    Args:
        state: what was learned.
        readout: it answers.

    Attributes:
        scorer: as `Readout.scorer`.
        is_affine: whether the coordinates of the read-out are an affine map of its space: else there is no `answer`.
    """

    def __init__(self, state: LearnerState, readout: Readout) -> None:
        self.readout = readout
        view, means = view_of(state, state.prototypes.means[:0]), state.prototypes.means
        self.scorer: Scorer | None = readout.scorer(view) if readout.has_scorer else None
        self.is_affine = type(readout).coordinates is Readout.coordinates
        self._axes = readout.axes(view) if self.is_affine else None
        self._plain = squared_distances_to(means)
        if self._axes is not None:
            center, project = self._axes
            self._inside = squared_distances_to((means.double() - center) @ project)

    def answer(
        self, scores: torch.Tensor, z: torch.Tensor, temperatures: torch.Tensor, limits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what is said of N images.

        Args:
            scores: (N, K) of the read-out.
            z: (N, D) their embeddings.
            temperatures, limits: (K,) see `Calibration`.

        Returns:
            The best class (N,), probabilities (N, K), distances in `space` (N, K), and novelty over its limit (N,).
        """
        plain = self.distances(z)
        return self.finished(scores, plain, plain if self._axes is None else self._coordinates(z), temperatures, limits)

    def distances(self, z: torch.Tensor) -> torch.Tensor:
        """Return (N, K) distances to the prototypes in the read-out's space."""
        return self._plain(self.readout.space(z)).sqrt()

    def _coordinates(self, z: torch.Tensor) -> torch.Tensor:
        assert self._axes is not None
        center, project = self._axes
        return self._inside((self.readout.space(z).double() - center) @ project).sqrt()

    @staticmethod
    def finished(
        scores: torch.Tensor,
        plain: torch.Tensor,
        distances: torch.Tensor,
        temperatures: torch.Tensor,
        limits: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what `answer` does, given (N, K) distances in space and in coordinates."""
        best = scores.argmax(dim=1)
        far = novelty(best, plain, distances) / limits[best]
        return best, _softened(scores, best, temperatures), plain, far


def recognizer(state: LearnerState, readout: Readout) -> Recognizer:
    """Return the recognizer of a state, made once for as long as the read-out stays the same."""
    kept: Recognizer | None = vars(state).get("_recognizer")
    if kept is None or kept.readout != readout:
        kept = Recognizer(state, readout)
        vars(state)["_recognizer"] = kept  # a state never changes, so it does not either
    return kept


def scores_of(state: LearnerState, readout: Readout, z: torch.Tensor) -> torch.Tensor:
    """Return the read-out's scores for (N, D) embeddings, (N, K)."""
    scorer, view = recognizer(state, readout).scorer, view_of(state, z)
    if scorer is None:
        return check_scores(readout, readout.scores(view))
    parts = view.parts(rows=readout.most_rows)
    return check_scores(readout, torch.cat([scorer(part.z, part.logits) for part in parts]))


def recognize(
    state: LearnerState,
    readout: Readout,
    z: torch.Tensor,
    temperature: float | str,
    unknown_rate: float = UNKNOWN_RATE,
) -> Recognized:
    """Return the answers for (N, D) embeddings with all that is known about them.

    Args:
        state: what was learned.
        readout: it answers.
        z: the embeddings.
        temperature: of the probabilities, see `probabilities`.
        unknown_rate: the share of images of known classes that may be called unknown.
    """
    made, scores = recognizer(state, readout), scores_of(state, readout, z)
    measures = temperatures_of(state, temperature), state.calibration.limits(unknown_rate)
    if made.is_affine:
        found = made.answer(scores, z, *measures)
    else:
        inside = distances_to(*readout.coordinates(view_of(state, z)))
        found = made.finished(scores, made.distances(z), inside, *measures)
    best, sure, distances, far = (part.numpy() for part in found)
    return Recognized(state.classes, best, sure, distances, far, z.numpy())
