"""The loop behind all engines, on workers of this process: order, capacity, lost workers, refused names."""

from collections import Counter

import pytest
import torch

from protodrift.common.progress import Reporter
from protodrift.errors import RunError
from protodrift.experiments import run as runs
from protodrift.experiments.engines import Job, Outcome
from protodrift.experiments.engines.dispatch import dispatch
from protodrift.experiments.engines.worker import Setting, compute
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.experiments.store import Store


@pytest.fixture(scope="module")
def recipe():
    changed = {"training.epochs": "1", "tasks": "2"}
    return with_settings(get_recipe("digits").only(["E-FT+SDC", "E-EWC"]), changed)


@pytest.fixture
def tree(recipe, tmp_path):
    return recipe.tree(recipe.stream(runs.load_data(recipe, None)), store=Store(tmp_path))


class Here:
    """Workers that compute in this process when they are waited for; some die of a stage that they had begun to write.

    Attributes:
        most: how many jobs were under way at the same time.
        begun: kinds and tasks, in the order in which they were sent.
    """

    def __init__(self, tree, *, capacity=2, retries=2, deaths=None):
        self.tree, self.retries, self._capacity = tree, retries, capacity
        self._deaths = Counter(deaths or {})
        self._jobs = {}
        self.most, self.begun = 0, []

    def capacity(self):
        return self._capacity

    def submit(self, job):
        self._jobs[len(self.begun)] = job
        self.begun.append((job.kind, job.task))
        return len(self.begun) - 1

    def wait(self, running):
        self.most = max(self.most, len(running))
        handle = max(running)  # the last one first: no engine promises an order
        job = self._jobs[handle]
        if self._deaths[job.kind, job.task]:
            self._deaths[job.kind, job.task] -= 1
            (self.tree.store.stages / f".new-{job.kind}-{job.key[:24]}").mkdir()
            return [(handle, Outcome(lost="killed"))]
        before = sum(self.tree.computed.values())
        setting = Setting(str(self.tree.store.path), lambda reporter: self.tree, torch.get_num_threads())
        problem = compute(setting, job, lambda *event: None)
        assert problem or sum(self.tree.computed.values()) == before + 1  # its parents were there
        return [(handle, Outcome(problem))]


class Notes(Reporter):
    def __init__(self):
        self.notes, self.stages = [], Counter()

    def note(self, text):
        self.notes.append(text)

    def done(self, *, training):
        self.stages[training] += 1


def test_every_stage_is_computed_once_within_capacity_and_trainings_come_first(tree, recipe):
    plan, notes = tree.plan(recipe.methods), Notes()
    workers = Here(tree, capacity=2)
    dispatch(workers, plan, tree.store, notes)
    assert tree.plan(recipe.methods) == {}
    assert notes.stages == Counter(stage.trains for stage in plan.values())
    assert workers.most == 2
    # After task 1 its importances and embeddings are ready too, and the training of task 2 is sent before them.
    assert workers.begun[:3] == [("root", 0), ("train", 1), ("train", 2)]


def test_a_full_or_empty_cluster_still_gets_one_stage(tree, recipe):
    workers, methods = Here(tree, capacity=0), recipe.only(["E-FT+SDC"]).methods
    dispatch(workers, tree.plan(methods), tree.store, Notes())
    assert workers.most == 1
    assert tree.plan(methods) == {}


def test_a_stage_that_lost_its_worker_is_tried_again_without_what_was_half_written(tree, recipe):
    notes = Notes()
    deaths = {("train", 2): 2, ("readout", 1): 1}
    dispatch(Here(tree, deaths=deaths), tree.plan(recipe.methods), tree.store, notes)
    assert tree.plan(recipe.methods) == {}
    assert len(notes.notes) == 3
    assert any(note.startswith("train (Triplet") and "killed" in note for note in notes.notes)
    assert not list(tree.store.stages.glob(".new-*"))


def test_a_stage_that_kills_every_worker_ends_the_run(tree, recipe):
    workers = Here(tree, retries=1, deaths={("train", 1): 9})
    with pytest.raises(RunError, match=r"died 2 times in the stage train \(Triplet, task 1\): killed.*run the same"):
        dispatch(workers, tree.plan(recipe.methods), tree.store, Notes())
    assert workers.begun.count(("train", 1)) == 2
    assert [p.name.split("-")[0] for p in tree.store.stages.glob("[!.]*")] == ["root"]  # what was finished is kept


def test_a_worker_with_other_data_refuses_a_stage_before_it_computes(tree, recipe):
    key, stage = next(iter(tree.plan(recipe.methods).items()))
    setting = Setting(str(tree.store.path), lambda reporter: tree, torch.get_num_threads())
    problem = compute(setting, Job(0, "0" * len(key), stage.kind, stage.method, stage.task), lambda *event: None)
    assert "under another name" in problem
    assert not tree.computed
    assert compute(setting, Job(0, key, stage.kind, stage.method, stage.task), lambda *event: None) == ""
    assert tree.computed == {"root": 1}
