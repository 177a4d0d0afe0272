"""The comparison of drift estimators: the ratio, its interval, and that it goes the way the product goes."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.compare import ESTIMATORS, Cell, compare, movements, read_out, summarize, table
from protodrift import SDC, LwF, Method, TaskStream, Training, Triplet
from protodrift.common.config import decode, encode
from protodrift.data import load_digits
from protodrift.drift import ADC, Gated, LocalLinear, MeanShift, Oracle
from protodrift.errors import InputError
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.methods import with_drift
from protodrift.readouts import Bayes, Mahalanobis, MaxOverHeads, NearestClassMean, StreamingLDA


def cell(estimator="SDC", seed=0, gain=0.1, gap=0.2, error=0.1, method="E-FT"):
    return Cell("s", method, seed, estimator, 0.5 + gain, 0.5, 0.5 + gap, error, 0.4)


def test_the_gap_closed_is_a_ratio_of_sums_over_cells_with_a_gap():
    cells = [cell(gain=0.1, gap=0.2), cell(seed=1, gain=0.3, gap=0.3), cell(seed=2, gain=-0.01, gap=0.01)]
    (one,) = summarize(cells)
    assert (one.cells, one.pooled) == (3, 2)
    assert one.gap_closed == pytest.approx(0.4 / 0.5)
    assert one.low == pytest.approx(0.5)  # either cell alone
    assert one.high == pytest.approx(1.0)
    assert one.small_gain == pytest.approx(-0.01)
    assert one.worst == pytest.approx(-0.01)
    assert one.relative_error == pytest.approx(0.25)


def test_without_a_gap_there_is_no_ratio_but_points():
    cells = [cell(gap=0.01, gain=0.004), cell("none of it", gap=0.01, gain=0)]
    assert math.isnan(summarize(cells)[0].gap_closed)
    assert "+0.4 pt" in table(cells)


def test_it_reads_out_the_same_trainings_with_every_estimator():
    stream = TaskStream(load_digits(), classes=[[3, 8], [1, 7], [0, 6]])
    tree = Tree(stream, network=Network(embedding_dim=16), training=Training(epochs=1, learning_rate=3e-4))
    methods = {"E-FT": Method(objective=Triplet(margin=0.5)), "E-LwF": Method(Triplet(margin=0.5), LwF())}
    cells = compare(tree, methods, {"SDC": SDC(), "shift": MeanShift(), "again": Oracle()}, setting="digits")
    assert tree.computed["train"] == 5  # the first task is shared
    assert [(c.method, c.estimator) for c in cells[:3]] == [("E-FT", "SDC"), ("E-FT", "shift"), ("E-FT", "again")]
    result = tree.run({"x": Method(objective=Triplet(margin=0.5), drift=SDC())})["x"]
    assert cells[0].accuracy == result.average_accuracy[-1]
    assert cells[0].error == pytest.approx(result.old_prototype_distance[1:].mean())
    assert cells[2].gain == pytest.approx(cells[2].gap)  # the oracle closes its gap
    assert cells[2].error == pytest.approx(0, abs=1e-6)
    assert table(cells).count("\n") == 4


def test_read_outs_of_the_same_prototypes_are_those_of_a_run():
    stream = TaskStream(load_digits(), classes=[[3, 8], [1, 7], [0, 6]])
    tree = Tree(stream, network=Network(embedding_dim=16), training=Training(epochs=1, learning_rate=3e-4))
    method = Method(objective=Triplet(margin=0.5), drift=LocalLinear())
    readouts = {"mean": NearestClassMean(), "fecam": Mahalanobis(), "bayes": Bayes()}
    found = read_out(tree, method, readouts)
    assert len(set(found.values())) == 3  # they do not agree, so this can fail
    for name, readout in readouts.items():
        result = tree.run({name: replace(method, readout=readout)})[name]
        assert found[name] == pytest.approx(result.overall_accuracy[-1])
    for wrong in (Mahalanobis(tukey=0.5), StreamingLDA(), MaxOverHeads()):
        with pytest.raises(InputError, match="'this' looks at more than embeddings"):
            read_out(tree, method, {"this": wrong})


def test_adc_runs_in_a_tree():
    stream = TaskStream(load_digits(), classes=[[3, 8], [1, 7]])
    tree = Tree(stream, network=Network(embedding_dim=16), training=Training(epochs=1, learning_rate=3e-4))
    still, bent = (tree.prototypes(Method(drift=drift), 2).means for drift in (None, ADC(candidates=10)))
    assert torch.equal(still[2:], bent[2:])
    assert bool(torch.isfinite(bent).all())


def test_the_listed_estimators_can_be_written_down():
    for drift in ESTIMATORS.values():
        assert decode(encode(drift)) == drift


def test_movements_tell_what_is_said_beside_what_is_true():
    stream = TaskStream(load_digits(), classes=[[3, 8], [1, 7], [0, 6]])
    tree = Tree(stream, network=Network(embedding_dim=16), training=Training(epochs=1, learning_rate=3e-4))
    drift = Gated(SDC(0.5))
    found = movements(tree, {"E-FT": Method(Triplet(margin=0.2))}, {"gated": drift}, setting="digits")
    assert [(m.task, m.label) for m in found] == [(2, 3), (2, 8), (3, 3), (3, 8), (3, 1), (3, 7)]
    method = with_drift(Method(Triplet(margin=0.2)), drift)
    after, true = tree.prototypes(method, 3).means, tree.true_means(method, 3)
    last = [m for m in found if m.task == 3]
    for row, movement in enumerate(last):
        assert movement.error == pytest.approx(float((after[row] - true[row]).norm()), rel=1e-5)
        assert 0 <= movement.gate <= 1
    # the errors of two tasks add up like independent ones: class 3 was moved twice, class 1 once
    pairs = tree.embeddings(method, 3)
    rows = stream[2].data.targets_of(stream[2].classes)
    before = tree.prototypes(method, 2).means
    step = drift.fit(pairs.z_old, pairs.z_new, rows).diagnostics(before)["uncertainty"]
    assert last[0].predicted == pytest.approx(math.hypot(found[0].predicted, float(step[0])), rel=1e-5)
    assert last[2].predicted == pytest.approx(float(step[2]), rel=1e-5)
