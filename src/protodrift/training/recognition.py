"""From embeddings to answers: classes, how sure they are, and whether an image is of none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..common.finite import check_scores, name_of
from ..common.labels import Label
from ..errors import InputError
from ..networks.embedder import Embedder
from ..penalties import Tensors
from ..prototypes.store import Prototypes
from ..readouts import Readout, View
from ..readouts.base import LinearReadout
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
    if temperature == "auto":
        temperatures = state.calibration.temperatures[scores.argmax(dim=1), None].double()
    else:
        temperatures = torch.tensor(float(temperature), dtype=torch.float64)
    return (scores.double() / temperatures).softmax(dim=1)


@dataclass(frozen=True)
class _Constants:
    """What answers need of a state and do not depend on images: both factorizations of the read-out are in it."""

    readout: Readout
    linear: tuple[torch.Tensor, torch.Tensor] | None
    axes: tuple[torch.Tensor, torch.Tensor] | None


def _constants(state: LearnerState, readout: Readout) -> _Constants:
    """Return the constants of a state, computed once for as long as the read-out stays the same."""
    kept: _Constants | None = vars(state).get("_constants")
    if kept is None or kept.readout != readout:
        view = view_of(state, state.prototypes.means[:0])
        is_linear = type(readout).scores is LinearReadout.scores
        is_affine = type(readout).coordinates is Readout.coordinates
        kept = _Constants(
            readout, readout.linear(view) if is_linear else None, readout.axes(view) if is_affine else None
        )
        vars(state)["_constants"] = kept  # a state never changes, so they do not either
    return kept


def scores_of(state: LearnerState, readout: Readout, z: torch.Tensor) -> torch.Tensor:
    """Return the read-out's scores for (N, D) embeddings, (N, K)."""
    linear = _constants(state, readout).linear
    if linear is None:
        return check_scores(readout, readout.scores(view_of(state, z)))
    return check_scores(readout, readout.space(z).double() @ linear[0] + linear[1])


def _distances(state: LearnerState, readout: Readout, z: torch.Tensor) -> torch.Tensor:
    """Return (N, K) distances in the coordinates of the read-out."""
    axes = _constants(state, readout).axes
    if axes is None:
        return distances_to(*readout.coordinates(view_of(state, z)))
    center, project = axes
    means = state.prototypes.means.double()
    return distances_to((readout.space(z).double() - center) @ project, (means - center) @ project)


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
    scores = scores_of(state, readout, z)
    best = scores.argmax(dim=1)
    distances = distances_to(readout.space(z), state.prototypes.means)
    far = novelty(best, distances, _distances(state, readout, z))
    far = far / state.calibration.limits(unknown_rate)[best]
    sure = probabilities(state, scores, temperature)
    return Recognized(state.classes, best.numpy(), sure.numpy(), distances.numpy(), far.numpy(), z.numpy())
