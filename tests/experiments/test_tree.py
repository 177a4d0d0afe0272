"""The walk of the graph of stages, and what a tree holds, loads and computes."""

from collections import Counter

import numpy as np
import pytest
import torch

from protodrift import EWC, SDC, Everything, Method, TaskStream, Triplet
from protodrift.experiments.setup import Network
from protodrift.experiments.stages import KINDS
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree, walk
from protodrift.training.config import Training

PLAIN = Method(Triplet(margin=2.0))
HELD = Method(Triplet(margin=2.0), EWC(gamma=1e3), drift=SDC())


@pytest.fixture
def make(small_digits, tmp_path):
    def tree(classes, store=True):
        stream = TaskStream(small_digits, classes=classes)
        training = Training(epochs=1, batch_size=16, images_per_class=8, learning_rate=3e-4)
        kept = Store(tmp_path / "run") if store else None
        return Tree(stream, network=Network(embedding_dim=8), training=training, store=kept)

    return tree


def test_a_walk_gives_every_stage_once_after_its_parents_and_none_beyond_what_is_there(make):
    tree = make([[3, 8], [1, 7]], store=False)
    last = tree.stage("readout", HELD, 2)
    found = walk([last, last], lambda stage: False)
    assert Counter(stage.kind for stage in found.values()) == {
        "root": 1, "train": 2, "consolidate": 2, "embed": 2, "readout": 2
    }  # fmt: skip
    keys = list(found)
    for i, stage in enumerate(found.values()):
        assert {parent.key for parent in stage.parents()} <= set(keys[:i])
    beyond = walk([last], lambda stage: stage.task == 1 or stage.kind == "root")
    assert {(stage.kind, stage.task) for stage in beyond.values()} == {
        (kind, 2) for kind in ("train", "consolidate", "embed", "readout")
    }


def test_every_kind_of_stage_comes_back_from_disk_as_it_was_computed(make):
    computed = make([[3, 8], [1, 7]])
    methods = {"held": HELD, "all": Method(Triplet(margin=2.0), exemplars=Everything())}
    stages = computed.stages_of(methods)
    computed.run(methods)
    loaded = make([[3, 8], [1, 7]])
    for key, stage in loaded.stages_of(methods).items():
        mine, theirs = computed.value(stages[key]), loaded.value(stage)
        (data, tensors), (again, tensors_again) = stage.pack(mine), stage.pack(theirs)
        assert data == again
        assert tensors.keys() == tensors_again.keys()
        for name, named in tensors.items():
            assert named.keys() == tensors_again[name].keys()
            assert all(torch.equal(value, tensors_again[name][part]) for part, value in named.items())
    assert not loaded.computed
    assert set(loaded.loaded) == set(KINDS) - {"warm"}


def test_what_a_method_stores_is_its_own_where_the_training_is_shared(make):
    """In a first task E-FT and E-EWC are one training, and only one of them keeps importances."""
    results = make([[3, 8]]).run({"E-FT": PLAIN, "E-EWC": HELD})
    network = make([[3, 8]]).trained(HELD, 1)
    importances = sum(t.numel() * t.element_size() for state in network.penalty_state for t in state.values())
    assert importances > 0
    assert results["E-EWC"].bytes_stored == results["E-FT"].bytes_stored + importances


def test_stages_that_do_not_fit_in_memory_are_dropped_and_read_again(make, monkeypatch):
    classes = [[3, 8], [1, 7]]
    expected = make(classes, store=False).run({"E-EWC": HELD})["E-EWC"]
    monkeypatch.setattr("protodrift.experiments.tree._CACHED_BYTES", 1)
    tree = make(classes)
    result = tree.run({"E-EWC": HELD})["E-EWC"]
    assert len(tree._memory) == 1
    assert tree.loaded["train"] > 0
    assert sum(tree.computed.values()) == len(tree.stages_of({"E-EWC": HELD}))  # none of them twice
    np.testing.assert_array_equal(result.accuracy_matrix, expected.accuracy_matrix)
