"""Case g: answers of `IncrementalClassifier.predict`, against the bare network and an argmin over prototypes.

- the bare network: eval mode, inference mode, channels last, one batch; distances by `torch.cdist`.
- the same pass: `networks.embed`, which `predict` uses, and the argmin: what is left is the reading and checking of X.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from protodrift.drift import SDC
from protodrift.learner import IncrementalClassifier
from protodrift.networks.embedder import embed, evaluating, laid_out
from protodrift.training.config import Training

from .harness import Result, Setup, clocked, compared, interleaved
from .material import pictures

OURS, BARE, PASS = "predict", "bare network + argmin", "embed + argmin"


def run(setup: Setup) -> Iterator[Result]:
    """Measure predictions."""
    clf = classifier()
    for count, often in ((256, 1), (1, 20)):
        setup.say(f"predict: {count} images" if count > 1 else "predict: one image")
        X = pictures(8, 32, 32, seed=1).images[:count].numpy()
        sides = {
            OURS: clocked(clf.predict, X, often=often),
            BARE: clocked(bare, clf, X, often=often),
            PASS: clocked(same_pass, clf, X, often=often),
        }
        seconds = interleaved(sides, setup.rounds(11))
        name = f"ResNet-32, 32 x 32, {count} image{'s' * (count > 1)}, 100 classes"
        for other in (BARE, PASS):
            aim = "<= 1.05" if count == 256 else ""
            yield compared("predict", name, seconds, OURS, other, aim=aim, unit="of its time", inverse=True)


def classifier(classes: int = 100, backbone: str = "resnet32") -> IncrementalClassifier:
    """Return a classifier that knows prototypes of so many classes; its network is not trained."""
    first = pictures(classes, 2, 32)
    clf = IncrementalClassifier(backbone, drift=SDC(), training=Training(epochs=0))
    return clf.partial_fit(first.images, first.labels)


def bare(clf: IncrementalClassifier, X: np.ndarray) -> np.ndarray:
    """Return the labels of X by the network and the nearest prototype, and nothing else."""
    state = clf.state_
    network = state.trained.network
    with evaluating(network), torch.inference_mode():
        z = network(laid_out(torch.from_numpy(X), torch.device("cpu")))
        nearest = torch.cdist(z, state.prototypes.means).argmin(dim=1)
    labels: np.ndarray = np.array(state.prototypes.labels)[nearest.numpy()]
    return labels


def same_pass(clf: IncrementalClassifier, X: np.ndarray) -> np.ndarray:
    """Return the labels of X by `embed` and the nearest prototype."""
    state = clf.state_
    z = embed(state.trained.network, torch.from_numpy(X))
    nearest = torch.cdist(z, state.prototypes.means).argmin(dim=1)
    labels: np.ndarray = np.array(state.prototypes.labels)[nearest.numpy()]
    return labels
