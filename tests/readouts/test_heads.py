"""Read-outs of heads against naive loops."""

import math

import numpy as np
import pytest
import torch

from protodrift.data import load_digits
from protodrift.data.tasks import TaskStream
from protodrift.exemplars import Everything, Herding
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import Method
from protodrift.objectives import CosineHeads, SigmoidHeads, Softmax
from protodrift.penalties import LessForget, LwF, MarginRanking
from protodrift.readouts import MaxOverClasses, MaxOverHeads, NearestExemplarMean, View
from protodrift.training.config import Training


@pytest.fixture
def view():
    g = torch.Generator().manual_seed(0)
    logits = [4 * torch.randn(30, size, generator=g, dtype=torch.float64) for size in (2, 3, 2)]
    return View(torch.zeros(30, 4), torch.zeros(7, 4), logits)


def test_max_over_heads_compares_probabilities_within_heads(view):
    predicted = MaxOverHeads().predict(view)
    for i in range(30):
        probabilities = []
        for logits in view.logits:
            exponentials = [math.exp(float(o)) for o in logits[i]]
            probabilities += [e / sum(exponentials) for e in exponentials]
        torch.testing.assert_close(MaxOverHeads().scores(view)[i].exp().tolist(), probabilities)
        assert int(predicted[i]) == max(range(7), key=lambda c: probabilities[c])


def test_max_over_classes_compares_outputs_of_all_heads(view):
    predicted = MaxOverClasses().predict(view)
    for i in range(30):
        outputs = [float(o) for logits in view.logits for o in logits[i]]
        assert MaxOverClasses().scores(view)[i].tolist() == outputs
        assert int(predicted[i]) == outputs.index(max(outputs))
    assert not torch.equal(predicted, MaxOverHeads().predict(view))


def test_neither_looks_at_prototypes():
    assert not MaxOverHeads.uses_prototypes
    assert not MaxOverClasses.uses_prototypes


def test_classifying_methods_learn_and_come_back_from_disk(tmp_path):
    """Joint is above all and exemplar methods above FT; a second run loads everything."""
    icarl = Method(SigmoidHeads(), LwF(), Herding(60), readout=MaxOverClasses())
    methods = {
        "FT": Method(Softmax(), readout=MaxOverHeads()),
        "FT*": Method(Softmax()),
        "Joint": Method(Softmax(over="all"), exemplars=Everything(), readout=MaxOverClasses()),
        "iCaRL-CNN": icarl,
        "iCaRL-NME": Method(icarl.objective, icarl.penalty, icarl.exemplars, readout=NearestExemplarMean()),
        "Rebalance": Method(CosineHeads(), (LessForget(), MarginRanking()), Herding(60), readout=MaxOverClasses()),
    }
    stream = TaskStream(load_digits(), classes=[[3, 8], [1, 7], [0, 5]])

    def run():
        tree = Tree(stream, training=Training(epochs=3), store=Store(tmp_path))
        return tree, tree.run(methods)

    tree, results = run()
    assert tree.computed["train"] == 4 * 3  # FT and FT* are one training, iCaRL is one, Joint, Rebalance
    final = {name: result.average_accuracy[-1] for name, result in results.items()}
    assert final["Joint"] > 0.95
    for name in ("iCaRL-CNN", "iCaRL-NME", "Rebalance"):
        assert final["FT*"] < final["FT"] < final[name] <= final["Joint"] + 0.01
    again, loaded = run()
    assert not again.computed
    for name, result in results.items():
        np.testing.assert_array_equal(loaded[name].accuracy_matrix, result.accuracy_matrix)
        np.testing.assert_array_equal(loaded[name].confusion, result.confusion)
        assert loaded[name].bytes_stored == result.bytes_stored
