from __future__ import annotations

import pytest

from protodrift import METHODS, SDC, Method, Oracle, TaskStream, Training, Triplet
from protodrift.data import load_digits
from protodrift.stages import MethodResult, Network, Tree


@pytest.fixture(scope="session")
def results() -> dict[str, MethodResult]:
    tree = Tree(TaskStream(load_digits(), classes=[[0, 1, 2], [3, 4], [5, 6]]), training=Training(epochs=1))
    methods = {name: METHODS[name] for name in ("E-Fix", "E-FT", "E-FT+SDC", "E-Joint")}
    return tree.run({**methods, "E-FT+oracle": Method(drift=Oracle())})


@pytest.fixture(scope="session")
def single() -> dict[str, MethodResult]:
    """Results of a stream of one task: no forgetting, no old prototypes."""
    tree = Tree(TaskStream(load_digits(), classes=[[0, 1, 2]]), training=Training(epochs=1))
    return tree.run({"E-FT": METHODS["E-FT"], "E-FT+SDC": METHODS["E-FT+SDC"]})


@pytest.fixture(scope="session")
def flat() -> Tree:
    """A tree of a 2-D embedding."""
    stream = TaskStream(load_digits(), classes=[[0, 1, 2], [3, 4]])
    return Tree(stream, network=Network(embedding_dim=2, normalise=False), training=Training(epochs=1))


@pytest.fixture
def flat_method() -> Method:
    return Method(objective=Triplet(margin=1.0), drift=SDC(sigma=0.7))


@pytest.fixture
def evil() -> str:
    """A name that is markup, with characters that XML and UTF-8 cannot hold."""
    return "<b>&\"'</b><script>alert(1)</script>\x00\ud800"
