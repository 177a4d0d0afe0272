"""A part with only what its base class requires works with every other part: minimal parts of each axis, crossed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from protodrift import EWC, MAS, SDC, IncrementalClassifier, LwF, StreamingLDA, Training, Triplet
from protodrift.data import Examples
from protodrift.drift import AdaGauss, Drift, FittedDrift, Gated, Procrustes, Ridge
from protodrift.exemplars import Exemplars, Herding
from protodrift.objectives import Objective
from protodrift.objectives.base import Held
from protodrift.penalties import REWC, SI, Penalty
from protodrift.readouts import Bayes, Mahalanobis, NearestClassMean, Readout, RidgeClassifier


class Shifted(FittedDrift):
    def __init__(self, shift):
        self.shift = shift

    def explain(self, prototypes):
        return prototypes + self.shift, {}


@dataclass(frozen=True)
class LeastDrift(Drift):
    def fit(self, z_old, z_new, targets=None):
        return Shifted((z_new - z_old).mean(dim=0))


@dataclass(frozen=True)
class LeastReadout(Readout):
    def scores(self, view):
        return view.z @ view.prototypes.T


@dataclass(frozen=True)
class LeastPenalty(Penalty):
    gamma: float = 1.0

    def penalty(self, step, state):
        return (step.z - step.z_old).square().mean()


@dataclass(frozen=True)
class LeastExemplars(Exemplars):
    def keep(self, kept, new, embed):
        return new if kept is None else Examples.concatenate([kept, new])


@dataclass(frozen=True)
class LeastObjective(Objective):
    """Images near the mean of their class."""

    def missing_signal(self, targets):
        return "" if len(targets.unique()) > 1 else "one class"

    def single_losses(self, step):
        means = torch.stack([step.z[step.targets == target].mean(dim=0) for target in step.targets])
        return (step.z - means).square().sum(dim=1) - 0.1 * step.z.square().sum(dim=1)

    def loss(self, step):
        return self.single_losses(step).mean()

    def held(self, step):
        return Held("embeddings", [step.z], [step.z_old])

    def output(self, step):
        return step.raw


LEAST = {
    "objective": LeastObjective(),
    "penalty": LeastPenalty(),
    "exemplars": LeastExemplars(),
    "drift": LeastDrift(),
    "readout": LeastReadout(),
}
OURS = {
    "objective": [Triplet(margin=2.0)],
    "penalty": [None, LwF(), EWC(gamma=1.0), EWC(gamma=1.0, fisher="single"), MAS(gamma=1.0), SI(), REWC(gamma=1.0)],
    "exemplars": [None, Herding(8)],
    "drift": [None, SDC(), Ridge(), Procrustes(), AdaGauss(), Gated(SDC()), Gated(LeastDrift())],
    "readout": [NearestClassMean(), StreamingLDA(), Mahalanobis(), Bayes(), RidgeClassifier()],
}
CROSSED = [LEAST] + [
    {**{a: OURS[a][0] for a in LEAST}, axis: least, other: part}
    for axis, least in LEAST.items()
    for other, parts in OURS.items()
    if other != axis
    for part in parts
]


@pytest.mark.parametrize("parts", CROSSED, ids=lambda parts: "-".join(type(part).__name__ for part in parts.values()))
def test_the_required_methods_are_enough(vectors, tmp_path, same, parts):
    training = Training(epochs=1, batch_size=8)
    clf = IncrementalClassifier(embedding_dim=4, training=training, temperature="auto", **parts)
    for pair in (("owl", "emu"), ("kea", "tui")):
        clf.partial_fit(*vectors(*pair))
    if parts["exemplars"] is None:
        clf.partial_fit(*vectors("owl", "jay", count=6), known="refresh")
    X, _ = vectors("owl", "kea")
    found = clf.recognize(X)
    assert found.probabilities.shape == (len(X), len(clf.classes_))
    assert torch.isfinite(torch.from_numpy(found.probabilities)).all()
    again = IncrementalClassifier.load(clf.save(tmp_path / "m", store_images=True))
    assert same(again, clf)
    assert again.predict(X).tolist() == clf.predict(X).tolist()
