"""Tiny tasks of digits, and the ways a penalty is really used: task after task, interrupted, as a tree of stages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from protodrift import Method, TaskStream
from protodrift.data import Dataset
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.networks import build_embedder
from protodrift.networks.build import embedding_options
from protodrift.objectives import Softmax, Triplet
from protodrift.training.config import Training
from protodrift.training.trainer import Trained, consolidate, train_network
from tests.training.tasks import advance

OBJECTIVES = {"softmax": Softmax(), "triplet": Triplet(margin=2.0)}  # at this margin no loss is ever zero
TRAINING = Training(epochs=2, learning_rate=1e-3, batch_size=16)


@pytest.fixture(params=list(OBJECTIVES))
def objective(request):
    return OBJECTIVES[request.param]


@pytest.fixture
def tiny(small_digits: Dataset):
    """Return three tasks of two digits, sixteen images each."""
    return [small_digits.train.of_classes(pair) for pair in ([3, 8], [1, 7], [0, 6])]


def initial(small_digits: Dataset, objective) -> Trained:
    network = build_embedder("convnet", small_digits.spec, **embedding_options(objective, 8, True), seed=0)
    network.standardize.fit(small_digits.train.images)
    return Trained(network.eval())


@pytest.fixture
def learn(small_digits: Dataset, tiny) -> Callable[..., list[Trained]]:
    """Return what training leaves behind before the first and after every task."""

    def run(objective, penalty, tasks: int = 2, training: Training = TRAINING, **options) -> list[Trained]:
        states = [initial(small_digits, objective)]
        for t, examples in enumerate(tiny[:tasks], 1):
            method = Method(objective, penalty, **options)
            states.append(advance(states[-1], examples, task=t, method=method, training=training, augment=None, seed=0))
        return states

    return run


class Notebook:
    """A checkpoint in memory that keeps what a file would: plain layout, nothing shared."""

    def __init__(self) -> None:
        self.saved = None

    def load(self):
        return self.saved

    def save(self, data, tensors) -> None:
        copied = {f: {k: v.detach().contiguous().clone() for k, v in named.items()} for f, named in tensors.items()}
        self.saved = ({**data, "history": list(data["history"])}, copied)


@pytest.fixture
def interrupted(small_digits: Dataset, tiny) -> Callable[..., Trained]:
    """Return what two tasks leave behind when each is interrupted after its first epoch and goes on from there."""

    def stop(progress) -> None:
        raise KeyboardInterrupt

    def run(objective, penalty) -> Trained:
        state = initial(small_digits, objective)
        for t, examples in enumerate(tiny[:2], 1):
            notebook = Notebook()
            method = Method(objective, penalty)
            common = {"task": t, "method": method, "training": TRAINING, "augment": None, "seed": 0}
            with pytest.raises(KeyboardInterrupt):
                train_network(state, examples, **common, on_progress=stop, checkpoint=notebook)
            assert notebook.saved is not None
            trained = train_network(state, examples, **common, checkpoint=notebook)
            state = consolidate(trained, state, examples, task=t, method=method, seed=0)
        return state

    return run


@pytest.fixture
def tree_twice(small_digits: Dataset, tmp_path) -> Callable[..., None]:
    """Run a method as stages on disk; a second tree on the same disk must compute nothing and say the same."""

    def run(method: Method) -> None:
        stream = TaskStream(small_digits, classes=[[3, 8], [1, 7], [0, 6]])

        def tree() -> Tree:
            return Tree(stream, network=Network(embedding_dim=8), training=TRAINING, store=Store(tmp_path))

        first, second = tree(), tree()
        here, there = (t.run({"it": method})["it"] for t in (first, second))
        assert first.computed["train"] == 3
        assert not second.computed
        np.testing.assert_array_equal(here.accuracy_matrix, there.accuracy_matrix)
        for a, b in zip(first.trained(method, 3).penalty_state, second.trained(method, 3).penalty_state, strict=True):
            assert same_tensors(a, b)
        a, b = (t.trained(method, 3).network.state_dict() for t in (first, second))
        assert same_tensors(a, b)
        assert not second.computed

    return run


def same_tensors(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture
def same_state() -> Callable[[Trained, Trained], bool]:
    """Whether two trainings left the same behind, bit for bit."""

    def compare(a: Trained, b: Trained) -> bool:
        kept = all(same_tensors(x, y) for x, y in zip(a.penalty_state, b.penalty_state, strict=True))
        return kept and a.history == b.history and same_tensors(a.network.state_dict(), b.network.state_dict())

    return compare
