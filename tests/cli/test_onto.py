"""`protodrift learn` when somebody else writes to the same model, or takes it away, while a task is learned."""

from __future__ import annotations

import os
import shutil

import pytest

from protodrift import IncrementalClassifier
from protodrift.model import learn as learning
from protodrift.model import versions
from tests.cli.test_model_commands import frozen, photos, run  # noqa: F401
from tests.model.directories import files_of


@pytest.fixture
def meanwhile(monkeypatch):
    """Let something happen once, while `learn` reads its photos."""

    def arrange(act):
        real, done = learning.read_photos, []

        def read(*args, **kwargs):
            found = real(*args, **kwargs)
            if not done:
                done.append(1)
                act()
            return found

        monkeypatch.setattr(learning, "read_photos", read)

    return arrange


@pytest.fixture
def intruder(frozen, tmp_path):  # noqa: F811
    """What a process does that ignores the lock: it removes it, and learns blue."""
    files = sorted(photos(tmp_path / "other", "blue").rglob("*.png"))

    def write():
        (frozen / ".lock").unlink()
        clf = IncrementalClassifier.load(frozen)
        clf.partial_fit(files, ["blue"] * len(files)).save(frozen)

    return write


def test_a_version_that_came_meanwhile_is_not_written_over(run, frozen, tmp_path, meanwhile, intruder):  # noqa: F811
    photos(tmp_path / "third", "gray", "dark", seed=3)
    meanwhile(intruder)
    status, _, err = run("learn", "birds", "third", "--quiet")
    assert status == 1
    assert "birds is version 2 (" in err
    assert "made from version 1 (" in err
    assert "add --onto latest" in err
    assert sorted(IncrementalClassifier.load(frozen).classes_) == ["blue", "green", "red"]


def test_onto_latest_learns_again_on_top_of_it(run, frozen, tmp_path, meanwhile, intruder):  # noqa: F811
    photos(tmp_path / "third", "gray", "dark", seed=3)
    meanwhile(intruder)
    status, out, _ = run("learn", "birds", "third", "--quiet", "--onto", "latest")
    assert status == 0
    assert "learning again on top of what somebody else wrote: birds is version 2" in out
    assert sorted(IncrementalClassifier.load(frozen).classes_) == ["blue", "dark", "gray", "green", "red"]
    assert [one.version for one in versions.chain(frozen)] == [3, 2, 1]


def test_onto_a_version_is_refused_before_anything_is_learned(run, frozen, tmp_path):  # noqa: F811
    photos(tmp_path / "third", "gray", "dark", seed=3)
    before = files_of(frozen)
    for wanted in ("0", "2"):
        status, _, err = run("learn", "birds", "third", "--quiet", "--onto", wanted)
        assert status == 1
        assert f"not version {wanted}. Nothing was learned" in err
    assert files_of(frozen) == before
    assert run("learn", "new", "third", "--onto", "1", "--quiet")[0] == 1
    assert not (tmp_path / "new").exists()
    assert run("learn", "birds", "third", "--quiet", "--onto", "1")[0] == 0
    with pytest.raises(SystemExit):
        run("learn", "birds", "third", "--onto", "first")


@pytest.mark.parametrize("onto", [(), ("--onto", "latest")], ids=["default", "latest"])
@pytest.mark.parametrize("place", ["gone", "empty", "another model"])
def test_a_model_that_goes_away_is_an_error_and_never_a_new_model(
    run,  # noqa: F811
    frozen,  # noqa: F811
    tmp_path,
    meanwhile,
    place,
    onto,
):
    photos(tmp_path / "third", "gray", "dark", seed=3)
    before, there = files_of(frozen), {}

    def exchange():
        os.rename(frozen, tmp_path / "elsewhere")
        if place == "empty":
            frozen.mkdir()
        elif place == "another model":
            shutil.copytree(tmp_path / "elsewhere", frozen)
        there.update(files_of(frozen) if frozen.exists() else {})

    meanwhile(exchange)
    status, _, err = run("learn", "birds", "third", "--quiet", *onto)
    assert status == 1
    assert f"birds was {'removed' if place == 'gone' else 'exchanged'} while this process worked on it" in err
    assert files_of(tmp_path / "elsewhere") == before
    assert frozen.exists() == (place != "gone")
    assert (files_of(frozen) if frozen.exists() else {}) == there


def test_a_first_task_does_not_tidy_up_what_took_its_place(run, tmp_path, meanwhile):  # noqa: F811
    photos(tmp_path / "first", "red", "green")

    def exchange():
        shutil.rmtree(tmp_path / "birds")
        (tmp_path / "birds" / "versions" / ".new-1").mkdir(parents=True)  # another process at its first task

    meanwhile(exchange)
    status, _, err = run("learn", "birds", "first", "--epochs", "1", "--size", "32", "--quiet")
    assert status == 1
    assert "birds was exchanged" in err
    assert (tmp_path / "birds" / "versions" / ".new-1").exists()
