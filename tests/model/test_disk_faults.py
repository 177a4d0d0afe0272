"""Disks that fail, writers that are killed or come at the same time: a whole version is always there."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys

import pytest
from filelock import FileLock

from protodrift import IncrementalClassifier
from protodrift.common import files
from protodrift.errors import ModelFileError
from tests.model.directories import FULL, fault, files_of, read_only

load = IncrementalClassifier.load


def test_a_read_only_disk_is_an_error_and_the_old_version_still_loads(two_clouds, model, vectors, same):
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui"))
    with read_only(model) as path:
        with pytest.raises(ModelFileError, match=r"cannot write the model to .*Check that the disk is writable"):
            two_clouds.save(path)
        with pytest.raises(ModelFileError, match="cannot write the model to"):
            two_clouds.save(path / "deeper")
        assert same(load(model), old)
    assert same(load(two_clouds.save(model)), two_clouds)


@pytest.mark.parametrize("lasting", [True, False], ids=["for good", "once"])
@pytest.mark.parametrize("function", ["fsync", "rename", "replace", "open", "mkdir", "write"])
@pytest.mark.parametrize("raised", [FULL, KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
def test_a_fault_at_any_moment_leaves_the_old_version_whole(
    two_clouds, model, vectors, same, monkeypatch, function, raised, lasting
):
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui"))
    before, messages = files_of(model), []
    for at in range(1, 99):
        with monkeypatch.context() as patch:
            calls = fault(patch, function, at, raised, lasting)
            try:
                two_clouds.save(model)
            except KeyboardInterrupt:
                pass
            except ModelFileError as error:
                messages.append(str(error))
            else:
                if len(calls) < at:  # this save was over before the fault
                    break
                old, before = copy.deepcopy(two_clouds), files_of(model)  # a fault that does not matter
        assert len(calls) >= at
        assert same(load(model), old)
        assert {name: content for name, content in files_of(model).items() if name in before} == before
    assert all("No space left on device. What was there before is unchanged" in text for text in messages)
    assert 1 < at < 99  # the fault happened, and every moment of a save was tried
    assert same(load(model), two_clouds)
    shutil.rmtree(model)
    assert same(load(two_clouds.save(model, onto=0)), two_clouds)


@pytest.mark.parametrize("function", ["fsync", "rename", "replace"])
def test_a_fault_in_the_first_save_leaves_a_path_that_can_be_saved_to(
    two_clouds, tmp_path, same, monkeypatch, function
):
    with monkeypatch.context() as patch:
        fault(patch, function, 1, FULL, True)
        with pytest.raises(ModelFileError, match="No space left on device"):
            two_clouds.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="is not a protodrift model"):
        load(tmp_path / "m")
    assert same(load(two_clouds.save(tmp_path / "m")), two_clouds)


def test_a_writer_that_was_killed_is_cleaned_up_after(two_clouds, model, same):
    draft = model / "versions" / ".new-2"
    draft.mkdir()
    (draft / "network.safetensors").write_bytes(b"half")
    assert same(load(model), two_clouds)
    assert same(load(two_clouds.save(model)), two_clouds)
    assert sorted(p.name for p in (model / "versions").iterdir()) == ["1", "2"]


def test_a_second_writer_is_told_to_wait(two_clouds, model, same):
    before = files_of(model)
    with FileLock(model / ".lock"), pytest.raises(ModelFileError, match=r"another process is writing to .*Try again"):
        two_clouds.save(model)
    assert files_of(model) == before
    two_clouds.save(model)


def test_a_writer_in_another_process_is_waited_for(two_clouds, model, same):
    script = f"""
import sys
from filelock import FileLock
with FileLock({str(model / ".lock")!r}):
    print("locked", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ModelFileError, match="another process is writing"):
            two_clouds.save(model)
        assert same(load(model), two_clouds)  # readers never wait
    finally:
        process.communicate("")
    two_clouds.save(model)


def test_a_reader_that_started_before_a_save_reads_the_old_version_whole(two_clouds, model, vectors, same, monkeypatch):
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui"))
    real, saved = files.read_bytes, []

    def slow(path, *most):
        content = real(path, *most)
        if path.name == "CURRENT" and not saved:
            saved.append(1)
            two_clouds.save(model)  # a writer comes between the reader's two looks
        return content

    monkeypatch.setattr(files, "read_bytes", slow)
    assert same(load(model), old)
    assert same(load(model), two_clouds)
