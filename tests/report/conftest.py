from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protodrift import METHODS, SDC, Method, TaskStream, Training, Triplet
from protodrift.data import load_digits
from protodrift.drift import Oracle
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.run import results_document, run
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.report import Summary, summaries

Document = dict[str, Any]


def document_of(classes: list[list[int]], methods: dict[str, Method], seeds: tuple[int, ...] = (0,)) -> Document:
    stream = TaskStream(load_digits(), classes=classes)
    results = []
    for seed in seeds:
        results += Tree(stream, training=Training(epochs=1), seed=seed).run(methods).values()
    recipe = Recipe("made up", "A test", "digits", tuple(methods.items()))
    made = results_document(recipe, stream.task_classes, stream.split, results, "protodrift run made-up")
    return json.loads(json.dumps(made, allow_nan=False))  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def document() -> Document:
    """Three tasks, two seeds."""
    methods = {name: METHODS[name] for name in ("E-Fix", "E-FT", "E-FT+SDC", "E-Joint")}
    methods["E-FT+oracle"] = Method(drift=Oracle())
    return document_of([[0, 1, 2], [3, 4], [5, 6]], methods, (0, 1))


@pytest.fixture(scope="session")
def one_seed(document: Document) -> Document:
    return {**document, "results": [entry for entry in document["results"] if entry["seed"] == 0]}


@pytest.fixture(scope="session")
def results(one_seed: Document) -> dict[str, Summary]:
    """Summaries of one seed."""
    return summaries([one_seed])


@pytest.fixture(scope="session")
def single_document() -> Document:
    """A stream of one task: no forgetting, no old prototypes."""
    return document_of([[0, 1, 2]], {"E-FT": METHODS["E-FT"], "E-FT+SDC": METHODS["E-FT+SDC"]})


@pytest.fixture(scope="session")
def single(single_document: Document) -> dict[str, Summary]:
    return summaries([single_document])


@pytest.fixture(scope="session")
def flat() -> Tree:
    """A tree of a 2-D embedding."""
    stream = TaskStream(load_digits(), classes=[[0, 1, 2], [3, 4]])
    return Tree(stream, network=Network(embedding_dim=2, normalize=False), training=Training(epochs=1))


@pytest.fixture(scope="session")
def flat_method() -> Method:
    return Method(objective=Triplet(margin=1.0), drift=SDC(sigma=0.7))


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, on disk, with pictures; tests must not change it."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    methods = {name: METHODS[name] for name in ("E-FT", "E-FT+SDC", "E-LwF+SDC")}
    recipe = Recipe(
        "tiny",
        "two tasks of two digits",
        "digits",
        tuple(methods.items()),
        classes=((0, 1), (2, 3)),
        network=Network(embedding_dim=2, normalize=False),
        training=Training(epochs=1),
    )
    run(recipe, out, seeds=(3, 4), command="protodrift run tiny")
    return out


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run directory with nothing but results: `write_run("name", document, recipe="other")`."""

    def make(name: str, document: Document, **changes: object) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps({**copy.deepcopy(document), **changes}))
        return folder

    return make


@pytest.fixture
def evil() -> str:
    """A name that is markup, with characters that XML and UTF-8 cannot hold."""
    return "<b>&\"'</b><script>alert(1)</script>\x00\ud800"
