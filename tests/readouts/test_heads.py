"""Read-outs of heads against naive loops."""

import math

import pytest
import torch

from protodrift.readouts import MaxOverClasses, MaxOverHeads, View


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
