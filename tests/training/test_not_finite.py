"""A part that returns NaN or infinity is named, and everything is as it was: in the classifier and in experiments."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from protodrift.data.tasks import TaskStream
from protodrift.drift import Drift, FittedDrift
from protodrift.errors import DivergedError, InputError, NotFiniteError
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import Method, Schedule
from protodrift.objectives.metric import EmbeddingLoss
from protodrift.penalties import Penalty
from protodrift.readouts import Mahalanobis, NearestClassMean, Readout
from protodrift.training.config import Training


@dataclass(frozen=True)
class FittedLost(FittedDrift):
    value: float

    def explain(self, prototypes):
        moved = prototypes.clone()
        moved[-1, 0] = self.value
        return moved, {}


@dataclass(frozen=True)
class LostDrift(Drift):
    value: str = "nan"

    def fit(self, z_old, z_new, targets=None):
        return FittedLost(float(self.value))


@dataclass(frozen=True)
class LostScores(Readout):
    value: str = "nan"

    def scores(self, view):
        scores = view.z @ view.prototypes.T
        scores[0, 0] = float(self.value)
        return scores


@dataclass(frozen=True)
class LostState(NearestClassMean):
    value: str = "nan"

    def learn(self, readout_state, z, targets, task, seed):
        return {"kept": torch.tensor([1.0, float(self.value) if task > 1 else 0.0])}


@dataclass(frozen=True)
class LostPenalty(Penalty):
    gamma: float = 1.0

    def penalty(self, step, state):
        return step.z.sum() * float("nan")


@dataclass(frozen=True)
class LostKept(Penalty):
    gamma: float = 1.0
    value: str = "nan"

    def penalty(self, step, state):
        return step.z.sum() * 0

    def end_task(self, context, penalty_state, state):
        return {"kept": torch.tensor(float(self.value) if context.task > 1 else 0.0)}


@dataclass(frozen=True)
class LostLoss(EmbeddingLoss):
    def losses(self, z, targets, drawn, reduction):
        return z.sum() * float("nan")


class LostNetwork(nn.Module):
    """Gives NaN for the first image of a batch, once `broken` says so: in answers, or in training."""

    broken = ""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer, self.value = nn.Linear(64, 4), value

    def forward(self, x):
        z = self.layer(x.flatten(1))
        if self.broken == ("training" if self.training else "answers"):
            z = torch.where(torch.arange(len(x))[:, None] == 0, self.value, z)
        return z


def snapshot(clf):
    state = clf.state_
    network = {name: value.clone() for name, value in state.trained.network.state_dict().items()}
    return state, network, state.prototypes.means.clone(), copy.deepcopy(state.readout_state)


def unchanged(clf, before):
    state, network, means, learned = before
    now = clf.state_
    return (
        now is state
        and torch.equal(now.prototypes.means, means)
        and now.readout_state.keys() == learned.keys()
        and all(torch.equal(value, network[name]) for name, value in now.trained.network.state_dict().items())
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            lambda v: {"drift": LostDrift(v)},
            r"LostDrift returned NaN or infinity in the prototypes that it moved.*1 of 16 values",
        ),
        (lambda v: {"readout": LostState(v)}, r"LostState returned NaN or infinity in what it keeps as 'kept'"),
        (lambda v: {"penalty": LostKept(value=v)}, r"LostKept returned NaN or infinity in what it keeps for 'kept'"),
    ],
    ids=["drift", "read-out", "penalty"],
)
def test_a_part_that_returns_no_number_is_named_and_nothing_changes(make_classifier, task_of, parts, message, value):
    clf = make_classifier(**parts(value)).partial_fit(*task_of(0, 1))
    before, params = snapshot(clf), clf.get_params()
    with pytest.raises(NotFiniteError, match=message) as caught:
        clf.partial_fit(*task_of(2, 3))
    assert "Nothing was changed" in str(caught.value)
    assert unchanged(clf, before)
    assert clf.get_params() == params


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_scores_that_are_no_numbers_are_refused_and_minus_infinity_is_a_class_that_must_not_win(
    make_classifier, task_of, value
):
    with pytest.raises(NotFiniteError, match="LostScores returned NaN or infinity in its scores"):
        make_classifier(readout=LostScores(value)).partial_fit(*task_of(0, 1))  # calibration asks for them
    clf = make_classifier().partial_fit(*task_of(0, 1))
    before, X = snapshot(clf), task_of(0, 1, test=True)[0]
    clf.set_params(readout=LostScores(value))
    for ask in (clf.predict, clf.predict_proba, clf.decision_function, clf.recognize):
        with pytest.raises(NotFiniteError, match="LostScores returned NaN or infinity in its scores"):
            ask(X)
    assert unchanged(clf, before)
    clf.set_params(readout=LostScores("-inf"))
    assert clf.predict(X)[0] == 1


def test_a_loss_or_a_penalty_that_is_no_number_is_named(make_classifier, task_of):
    with pytest.raises(DivergedError, match=r"loss nan, penalty 0 \(of LostLoss\)"):
        make_classifier(objective=LostLoss()).partial_fit(*task_of(0, 1))
    clf = make_classifier(penalty=[LostKept(value="0"), LostPenalty()]).partial_fit(*task_of(0, 1))
    before = snapshot(clf)
    with pytest.raises(DivergedError, match=r"penalty nan \(of LostPenalty\)"):
        clf.partial_fit(*task_of(2, 3))
    assert unchanged(clf, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_network_that_returns_no_number_is_named(make_classifier, task_of, value, monkeypatch):
    clf = make_classifier(backbone=LostNetwork(value), normalize=False).partial_fit(*task_of(0, 1))
    fixed = make_classifier(backbone=LostNetwork(value), schedule=Schedule(train="none")).partial_fit(*task_of(0, 1))
    before, X = snapshot(clf), task_of(0, test=True)[0]
    monkeypatch.setattr(LostNetwork, "broken", "answers")
    for one in (clf, fixed):
        with pytest.raises(
            NotFiniteError, match="LostNetwork returned NaN or infinity in the embeddings of a task's images"
        ):
            one.partial_fit(*task_of(2, 3))
    with pytest.raises(InputError, match=r"row 0 of X .*LostNetwork returned NaN or infinity"):
        clf.predict(X)
    monkeypatch.setattr(LostNetwork, "broken", "training")
    with pytest.raises(DivergedError, match=r"\(of LostNetwork"):
        clf.partial_fit(*task_of(2, 3))
    assert unchanged(clf, before)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Method(drift=LostDrift()), "LostDrift returned NaN or infinity in the prototypes that it moved"),
        (Method(readout=LostState()), "LostState returned NaN or infinity in what it keeps as 'kept'"),
        (Method(readout=LostScores()), "LostScores returned NaN or infinity in its scores"),
        (Method(penalty=LostKept()), "LostKept returned NaN or infinity in what it keeps for 'kept'"),
    ],
    ids=["drift", "state", "scores", "penalty"],
)
def test_no_stage_is_kept_of_a_part_that_returns_no_number(tmp_path, small_digits, method, message):
    stream = TaskStream(small_digits, classes=[[0, 1], [2, 3]])
    made = {"network": Network("convnet", embedding_dim=8), "training": Training(epochs=1)}
    tree = Tree(stream, **made, store=Store(tmp_path))
    with pytest.raises(NotFiniteError, match=message):
        tree.run({"own": method})
    kept = {stage.kind for stage in Store(tmp_path).listing()}
    assert "train" in kept
    again = Tree(stream, **made, store=Store(tmp_path))
    with pytest.raises(NotFiniteError, match=message):  # found again, and not read from disk as a result
        again.run({"own": method})


def test_covariances_that_are_no_numbers_are_refused(make_classifier, task_of):
    @dataclass(frozen=True)
    class FittedStretched(FittedDrift):
        def explain(self, prototypes):
            return prototypes, {}

        def gaussians(self, prototypes, covariances):
            return prototypes, covariances * float("inf")

    @dataclass(frozen=True)
    class Stretched(Drift):
        def fit(self, z_old, z_new, targets=None):
            return FittedStretched()

    clf = make_classifier(drift=Stretched(), readout=Mahalanobis()).partial_fit(*task_of(0, 1))
    before = snapshot(clf)
    with pytest.raises(NotFiniteError, match="Stretched returned NaN or infinity in the covariances that it moved"):
        clf.partial_fit(*task_of(2, 3))
    assert unchanged(clf, before)
