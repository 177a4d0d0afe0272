"""A user's own drift estimator and read-out do all that ours do: they are asked what they can do, not what they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnxruntime
import pytest
import torch

from protodrift.common.sums import merged
from protodrift.data import load_digits
from protodrift.data.tasks import TaskStream
from protodrift.distributed.passes import can_merge
from protodrift.drift import SDC, Drift, FittedDrift, Gated, Oracle, Ridge
from protodrift.errors import InputError
from protodrift.experiments.samples import take
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.methods import Method
from protodrift.model.export import export_onnx
from protodrift.objectives import Triplet
from protodrift.penalties import Penalty
from protodrift.readouts import ExpertGate, Mahalanobis, Readout, StreamingLDA
from protodrift.training.config import Training
from tests.own_parts import OwnMeanShift, OwnMedianShift, OwnProduct


def test_what_an_interface_needs_is_asked_for_when_a_part_is_made():
    @dataclass(frozen=True)
    class NoFit(Drift):
        pass

    @dataclass(frozen=True)
    class NoScores(Readout):
        pass

    class NoExplain(FittedDrift):
        pass

    for kind, missing in ((NoFit, "fit"), (NoScores, "scores"), (NoExplain, "explain")):
        with pytest.raises(TypeError, match=missing):
            kind()


def test_a_method_with_another_signature_is_refused_when_its_class_is_defined():
    def fit(self, z_old, z_new): ...

    def loss(self, step, more): ...

    def penalty(self, step, *, state): ...

    def explain(self): ...

    def keeps(self): ...

    for base, method, message in (
        (Drift, fit, r"Mine.fit\(self, z_old, z_new\) does not .* Write def fit\(self, z_old, z_new, targets=None\)"),
        (Triplet, loss, r"Mine.loss\(self, step, more\) does not take what Objective.loss .* def loss\(self, step\)"),
        (Penalty, penalty, r"Mine.penalty\(self, step, \*, state\) .* def penalty\(self, step, state\)"),
        (FittedDrift, explain, r"Mine.explain\(self\) does .* Write def explain\(self, prototypes\)"),
        (Readout, keeps, "Mine.keeps is read without being called: write @property above def keeps"),
    ):
        with pytest.raises(InputError, match=message):
            type("Mine", (base,), {method.__name__: method, "__module__": __name__})


def test_a_method_may_name_its_arguments_otherwise_and_take_more():
    @dataclass(frozen=True)
    class OtherNames(Drift):
        def fit(self, before, after, labels=None, *, slow=False):
            return OwnMeanShift().fit(before, after)

    @dataclass(frozen=True)
    class AnyNumber(Drift):
        def fit(self, *pairs, **options):
            return OwnMeanShift().fit(*pairs)

    for kind in (OtherNames, AnyNumber):
        assert Method(drift=kind()).drift.fit(torch.zeros(2, 3), torch.ones(2, 3), None).shift.tolist() == [1, 1, 1]


def test_hooks_that_are_not_there_say_what_to_do():
    with pytest.raises(InputError, match=r"use fit\(z_old, z_new\)"):
        OwnMeanShift().probe(lambda x: x, lambda x: x, torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(InputError, match=r"use fit\(z_old, z_new\)"):
        OwnMeanShift().knowing(torch.zeros(1, 2))
    assert OwnMedianShift().sums(*3 * [torch.zeros(1, 2)]) is None
    assert Mahalanobis().sums(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), 1) is None


@pytest.mark.parametrize(
    ("method", "from_sums"),
    [
        (Method(drift=OwnMeanShift(), readout=OwnProduct()), True),
        (Method(drift=OwnMedianShift()), False),
        (Method(drift=SDC(), readout=StreamingLDA()), True),
        (Method(drift=None), True),
        (Method(drift=Ridge()), False),
        (Method(drift=Gated(SDC())), False),
        (Method(readout=Mahalanobis()), False),
    ],
    ids=str,
)
def test_ranks_ask_a_part_whether_it_declares_sums(method, from_sums):
    assert can_merge(method) == from_sums
    assert not ExpertGate().can_merge


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_own_sums_merge(pieces):
    g = torch.Generator().manual_seed(0)
    z_old, prototypes = torch.randn(40, 3, generator=g), torch.randn(2, 3, generator=g)
    z_new, drift = z_old + torch.randn(40, 3, generator=g), OwnMeanShift()
    cuts = zip(z_old.tensor_split(pieces), z_new.tensor_split(pieces), strict=True)
    sums = merged([drift.sums(prototypes, old, new) for old, new in cuts])
    moved = drift.fit_sums(prototypes, sums).transport(prototypes)
    torch.testing.assert_close(moved, drift.fit(z_old, z_new).transport(prototypes))


def test_own_parts_learn_are_saved_and_exported(make_classifier, colors, tmp_path):
    clf = make_classifier(backbone="convnet", drift=OwnMeanShift(), readout=OwnProduct())
    clf.partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3))
    report = clf.drift_
    assert float(report.vectors.abs().max()) > 0
    torch.testing.assert_close(report.vectors[0], report.vectors[1])
    clf.save(tmp_path / "model")
    again = type(clf).load(tmp_path / "model")
    X, _ = colors(0, 1, 2, 3, count=9)
    assert again.predict(X).tolist() == clf.predict(X).tolist()
    export_onnx(again, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (chosen,) = session.run(["class"], {"images": np.ascontiguousarray(X.transpose(0, 3, 1, 2))})
    assert (np.array(clf.classes_)[chosen] == clf.predict(X)).mean() > 0.9  # but for ties


def test_own_drift_is_drawn_and_refused_where_it_cannot_be():
    stream = TaskStream(load_digits(), classes=[[0, 1, 2], [3, 4]])
    tree = Tree(stream, network=Network(embedding_dim=2, normalize=False), training=Training(epochs=1))
    picture = take(tree, "own", Method(drift=OwnMeanShift()))
    step = picture.moved - picture.saved
    torch.testing.assert_close(step, step[:1].expand(3, 2))
    for drift in (OwnMedianShift(), Oracle(), None):
        with pytest.raises(InputError, match="can be drawn"):
            take(tree, "own", Method(drift=drift))
