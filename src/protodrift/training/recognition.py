"""From embeddings to answers: classes, how sure they are, and whether an image is of none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..common.labels import Label
from ..networks.embedder import Embedder
from ..penalties import Tensors
from ..prototypes.store import Prototypes
from ..readouts import Readout, View
from .calibration import distances_to, relative_distances

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
        novelty: (N,) how far from the answer's prototype, over how far 95 % of held-out images of that class are; 0
            where no image could be held out.
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


def readout_view(z: torch.Tensor, prototypes: Prototypes, network: Embedder, readout_state: Tensors) -> View:
    """Return what a read-out may look at, for (N, D) embeddings z by this network."""
    device = next(network.parameters()).device
    with torch.no_grad():
        logits = [part.cpu() for part in network.logits(z.to(device))]
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


def recognize(
    state: LearnerState, readout: Readout, z: torch.Tensor, temperature: float | str, classes: np.ndarray
) -> Recognized:
    """Return the answers for (N, D) embeddings with all that is known about them."""
    view = view_of(state, z)
    scores = readout.scores(view)
    best = scores.argmax(dim=1)
    distances = distances_to(readout.space(z), state.prototypes.means)
    novelty = state.calibration.novelty(best, distances, relative_distances(*readout.coordinates(view)))
    sure = probabilities(state, scores, temperature)
    return Recognized(classes, best.numpy(), sure.numpy(), distances.numpy(), novelty.numpy(), z.numpy())
