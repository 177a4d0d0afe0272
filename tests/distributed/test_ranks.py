"""Two ranks on this machine against one process. The long comparisons are in tests/slow/test_distributed.py."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protodrift.distributed import ALONE, World, current, joined, launched, passes
from protodrift.errors import RunError

HERE = Path(__file__).parent


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"distributed_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


ranks, program = load("ranks"), load("program")
TRAININGS = ("uneven", "views and dropout", "own parts", "as the field trains")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two ranks found."""
    out = tmp_path_factory.mktemp("two")
    return ranks.run(2, out, "sums", "declared", "stored", "refusals", "tasks", *TRAININGS)


@pytest.fixture(scope="module")
def one():
    """What this process finds alone."""
    found = {}
    with torch.random.fork_rng():
        program.sums(found, ALONE)
        program.declared(found, ALONE)
        program.stored(found, ALONE)
        program.tasks(found, ALONE)
        for name in TRAININGS:
            method, options = program.TRAININGS[name]
            program.train(found, name, method, **options)
    return found


@pytest.mark.parametrize("scenario", TRAININGS)
def test_every_step_in_float64_is_that_of_one_process(one, two, scenario):
    """Loss, weights, gradients and batch norm's statistics of 20 steps of both tasks, on both ranks."""
    names = [name for name in one if name.startswith(f"{scenario}/")]
    for task in (1, 2):
        assert any(name.startswith(f"{scenario}/task{task}/{program.STEPS}/gradient/") for name in names)
    for name in names:
        for rank in range(2):
            torch.testing.assert_close(two[f"{rank}/{name}"], one[name], rtol=0, atol=1e-8, msg=f"{rank}/{name}")


def test_shares_of_any_size_are_gathered_in_order(two):
    for count in (0, 1, 5, 8):
        for rank in range(2):
            assert torch.equal(two[f"{rank}/sums/gathered{count}"], two[f"{rank}/sums/expected{count}"])
        rows = two[f"0/sums/expected{count}"]
        for rank in range(2):
            share = World(rank, 2).own(count)
            block = two[f"0/sums/block{rank} of {count}"]
            assert torch.equal(block[: share.stop - share.start], rows[share])
            assert not block[share.stop - share.start :].any()
            assert f"1/sums/block{rank} of {count}" not in two
    assert World(0, 2).own(5) == slice(0, 2)
    assert World(1, 2).own(5) == slice(2, 5)


def test_sums_and_what_the_first_rank_has_reach_every_rank(two):
    for rank in range(2):
        assert two[f"{rank}/sums/summed"].tolist() == [3.0] * 4 + [1.0]
        assert two[f"{rank}/sums/sent"].tolist() == [0, 3, 6]
        assert two[f"{rank}/sums/nothing"].shape == (0, 2)


@pytest.mark.parametrize("count", [1, 60])
def test_prototypes_and_sdc_of_shares_are_those_of_the_whole(one, two, count):
    for name in ("moved", "samples", "means", "counts"):
        for rank in range(2):
            whole = one[f"sums/{name}{count}"]
            torch.testing.assert_close(two[f"{rank}/sums/{name}{count}"], whole, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", program.LESSONS)
def test_a_classifier_learns_the_same_from_shares(one, two, name):
    """Two tasks, and known classes again: prototypes, drift, what the read-out learned, calibration."""
    names = [key for key in one if key.startswith(f"tasks/{name}/") and not key.endswith("/sent")]
    assert len(names) >= 9
    for key in names:
        for rank in range(2):
            torch.testing.assert_close(two[f"{rank}/{key}"], one[key], rtol=1e-2, atol=2e-3, msg=f"{rank}/{key}")
            if "counts" in key or "prototypes" in key:
                assert torch.equal(two[f"{rank}/{key}"], two[f"0/{key}"]), key
    for number in range(2):
        assert torch.equal(two[f"1/tasks/{name}/counts{number}"], one[f"tasks/{name}/counts{number}"])


def test_declared_sums_of_shares_give_what_the_whole_gives(one, two):
    """In float64, also with classes that a rank has nothing of, and with one image in all."""
    names = [key for key in one if key.startswith("declared/")]
    assert len(names) == 4 * 6
    for key in names:
        for rank in range(2):
            torch.testing.assert_close(two[f"{rank}/{key}"], one[key], rtol=1e-9, atol=1e-9, msg=f"{rank}/{key}")
        if "whole " in key:
            torch.testing.assert_close(one[key.replace("whole ", "")], one[key], rtol=1e-9, atol=1e-9, msg=key)


def test_embeddings_reach_the_first_rank_in_blocks_and_nobody_else(one, two):
    for place in ("file", "memory"):
        torch.testing.assert_close(two[f"0/stored/{place}"], one[f"stored/{place}"], rtol=0, atol=1e-6)
        assert torch.equal(two[f"0/stored/{place} twice"], two[f"0/stored/{place}"].repeat(2, 1))
        assert two[f"1/stored/{place}"].shape == (0, 16)
    assert int(two["0/stored/left"]) == 0


def test_a_full_disk_is_told_before_embeddings_are_computed(tmp_path, monkeypatch):
    def full(descriptor, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        RunError, match=r"no space for 2\.0 MB of embeddings in .*: No space left on device\. Everything"
    ):
        passes._allocated(1000, 512, torch.float32, tmp_path)
    assert not list(tmp_path.iterdir())


def test_embeddings_stay_where_they_are_unless_an_estimator_needs_them(two):
    """After both tasks and before the second: 75 and 30 images per rank, 16 numbers of 4 bytes. SDC sends sums."""
    whole = int(two["0/tasks/ridge/sent"])
    assert whole == (75 + 2 * 30) * 16 * 4
    # With what calibration sends, less than half of what four gathered passes over both tasks would be.
    assert int(two["0/tasks/sdc/sent"]) < (2 * 75 + 2 * 30) * 16 * 4 / 2


def test_weights_of_a_module_of_the_users_are_the_first_ranks(two):
    assert torch.equal(two["0/tasks/own/prototypes"], two["1/tasks/own/prototypes"])


def test_errors_reach_every_rank(two):
    said = {name: [bytes(two[f"{r}/refusals/{name}"].tolist()).decode() for r in range(2)] for name in
            ("disk", "data", "weights")}  # fmt: skip
    assert said["disk"] == ["the disk is full"] * 2
    assert said["data"][0] == said["data"][1]
    assert said["data"][0].startswith("the photos of rank 1 differ from those of rank 0.")
    assert "the ranks do not have the same weights any more: weight and 1 others differ." in said["weights"][1]


def test_a_plain_process_is_a_world_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert not launched()
    with joined() as world:
        assert world is ALONE
    assert (current().rank, current().size, current().is_first) == (0, 1, True)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not launched()


def test_help_does_not_import_torch():
    code = "import sys; from protodrift.cli import parser; parser(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
