"""A penalty, an objective and a choice of exemplars of the user's own: what they must have, and that they work."""

from dataclasses import dataclass

import pytest
import torch

from protodrift import IncrementalClassifier, Training
from protodrift.data import Examples
from protodrift.exemplars import Exemplars
from protodrift.objectives import Objective, triplet_loss
from protodrift.objectives.metric import EmbeddingLoss
from protodrift.penalties import Penalty


@pytest.mark.parametrize("kind", [Objective, Penalty, Exemplars, EmbeddingLoss])
def test_what_is_required_is_asked_for_when_a_part_is_made(kind):
    @dataclass(frozen=True)
    class Unfinished(kind):
        gamma: float = 1.0

    with pytest.raises(TypeError, match="abstract method"):
        Unfinished()


@dataclass(frozen=True)
class Shaken(EmbeddingLoss):
    """A triplet loss of embeddings with noise that `draw` draws."""

    def draw(self, targets, generator):
        return torch.rand(len(targets), 1, generator=generator)

    def losses(self, z, targets, drawn, reduction):
        return triplet_loss(z + 0.1 * drawn, targets, 2.0, reduction=reduction)


@dataclass(frozen=True)
class Shorter(Penalty):
    """Holds embeddings of the old network's length, and remembers how often it was asked."""

    gamma: float = 0.5

    def start_task(self, context, penalty_state, network):
        return {"asked": penalty_state.get("asked", torch.zeros(1))}

    def penalty(self, step, state):
        state["asked"] = state["asked"] + 1
        return (step.z.norm(dim=1) - step.z_old.norm(dim=1)).square().mean()

    def end_task(self, context, penalty_state, state):
        return context.reduce({"asked": state.get("asked", torch.zeros(1))})


@dataclass(frozen=True)
class Latest(Exemplars):
    """Keeps the last image of every class."""

    def keep(self, kept, new, embed):
        last = {label: i for i, label in enumerate(new.labels)}
        assert embed(new.images).shape == (len(new), 8)
        parts = [] if kept is None else [kept]
        return Examples.concatenate([*parts, new.at(torch.tensor(list(last.values())))])


def test_parts_of_ones_own_learn(task_of):
    parts = {"objective": Shaken(), "penalty": Shorter(), "exemplars": Latest()}
    clf = IncrementalClassifier(embedding_dim=8, normalize=False, training=Training(epochs=2, batch_size=16), **parts)
    for pair in ((0, 1), (2, 3)):
        clf.partial_fit(*task_of(*pair))
    trained = clf.state_.trained
    assert float(trained.penalty_state[0]["asked"]) > 2  # every step of the second task
    assert trained.history[-1]["penalty"] > 0
    assert trained.exemplars.labels == (0, 1, 2, 3)
    again = IncrementalClassifier(embedding_dim=8, normalize=False, training=Training(epochs=2, batch_size=16), **parts)
    for pair in ((0, 1), (2, 3)):
        again.partial_fit(*task_of(*pair))
    assert torch.equal(clf.state_.prototypes.means, again.state_.prototypes.means)
