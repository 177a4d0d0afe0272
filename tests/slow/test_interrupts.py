"""500 interrupts of `partial_fit` at random bytecodes: nothing is left behind, and later results have the same bits."""

from __future__ import annotations

import copy
import gc
import random

import pytest
import torch

from protodrift import EWC, MAS, LwF, Training
from tests.training.interrupting import calls_of, interrupted

PARTS = {
    "E-FT": {},
    "E-EWC": {"penalty": EWC(gamma=10.0)},
    "E-MAS": {"penalty": MAS(gamma=10.0)},  # torch.func's transforms
    "E-LwF bfloat16": {"penalty": LwF(), "training": Training(epochs=2, batch_size=8, precision="bfloat16")},
}
INTERRUPTS = 500


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_an_interrupt_leaves_nothing_behind(make_classifier, vectors, same, name):
    params = {"training": Training(epochs=2, batch_size=8), **PARTS[name]}
    first = make_classifier(**params).partial_fit(*vectors("owl", "emu"))
    task = vectors("kea", "tui")
    reference = copy.deepcopy(first).partial_fit(*task)
    start = copy.deepcopy(first)
    threads, state = torch.get_num_threads(), first.state_
    calls = calls_of(lambda: copy.deepcopy(first).partial_fit(*task))
    rng, out = random.Random(name), 0
    gc.disable()  # or an interrupt may come in a callback of the collector, where Python drops it
    try:
        for _ in range(INTERRUPTS // len(PARTS)):
            clf = copy.copy(first)
            out += interrupted(lambda clf=clf: clf.partial_fit(*task), rng.randint(1, calls), rng.randint(0, 80))
            torch.manual_seed(rng.randint(0, 2**30))  # no result depends on the global generator
            if clf.state_ is not state:  # the interrupt came too late, or Python dropped it
                assert same(clf, reference)
                clf.state_ = state
            assert same(clf, start)
            assert torch.get_num_threads() == threads
            assert same(clf.partial_fit(*task), reference)
    finally:
        gc.enable()
    assert out > INTERRUPTS // len(PARTS) // 2
