"""Stages in several processes: the same results, and clear words when a worker dies."""

import os
import queue
import signal

import pytest
import torch

from protodrift.common.progress import LineReporter
from protodrift.errors import RunError
from protodrift.experiments import engines
from protodrift.experiments import run as runs
from protodrift.experiments.engines.worker import receive
from protodrift.experiments.recipes import get_recipe, with_settings

NAMES = ["E-Fix", "E-FT", "E-FT+SDC", "E-EWC", "FT"]


@pytest.fixture
def recipe():
    return with_settings(get_recipe("digits").only(NAMES), {"training.epochs": "1", "tasks": "3"})


def numbers(document):
    return [{k: v for k, v in result.items() if k != "seconds"} for result in document["results"]]


def test_two_processes_give_what_one_gives(recipe, tmp_path, capsys):
    alone = runs.run(recipe, tmp_path / "alone")
    together = runs.run(recipe, tmp_path / "together", jobs=2, reporter=LineReporter())
    assert numbers(together) == numbers(alone)
    stages = [sorted(p.name for p in (tmp_path / name / "stages").iterdir()) for name in ("alone", "together")]
    assert stages[0] == stages[1]
    assert "Triplet+EWC, task 2: epoch 1/1" in capsys.readouterr().err


def test_a_plan_names_everything_that_is_missing_and_what_it_is_made_from(recipe, tmp_path):
    tree = recipe.tree(recipe.stream(runs.load_data(recipe, None)))
    plan = tree.plan(recipe.methods)
    before = list(plan)
    for i, stage in enumerate(plan.values()):
        assert {parent.key for parent in stage.parents()} <= set(before[:i])  # a stage comes after what it is made from
    for stage in plan.values():
        counted = sum(tree.computed.values())
        tree.value(stage)
        assert sum(tree.computed.values()) == counted + 1  # its parents were there: nothing else was computed
    assert tree.plan(recipe.methods) == {}


def die(reporter):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_reported(recipe):
    tree = recipe.tree(recipe.stream(runs.load_data(recipe, None)))
    with pytest.raises(RunError, match="worker process died"):
        engines.compute_stages(die, tree, recipe.methods, engine=engines.LocalEngine(2), reporter=LineReporter())


def test_a_worker_has_the_threads_of_the_run(recipe, tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        runs.run(recipe.only(["E-Fix"]), tmp_path, jobs=2)
        fresh = recipe.tree(recipe.stream(runs.load_data(recipe, None)), store=runs.Store(tmp_path))
        assert fresh.plan(recipe.only(["E-Fix"]).methods) == {}  # keys carry the number of threads
    finally:
        torch.set_num_threads(before)


def test_progress_that_cannot_be_shown_does_not_stop_the_work():
    """Workers wait when nobody empties the queue of events."""
    events = queue.SimpleQueue()
    for event in [(1, "a", None), (1, "b", None), None]:
        events.put(event)
    seen = []

    def gone(number, label, at):
        seen.append(label)
        raise BrokenPipeError

    receive(events, gone)
    assert seen == ["a", "b"]
