"""Worker processes decode what this process would, and their end is noticed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from protodrift.data import read_image
from protodrift.data.datasets import decode
from protodrift.data.datasets.decode import CHUNK, decode_files
from protodrift.errors import InputError, RunError

from . import layouts


@pytest.fixture
def photos(tmp_path):
    rng = np.random.RandomState(0)
    return [
        layouts.photo(tmp_path / "in" / f"{i} ü.jpg", tuple(rng.randint(0, 256, 3).tolist()), (9 + i % 5, 12))
        for i in range(2 * CHUNK + 5)
    ]


def run(parts, out, **options):
    given = [(files, out / f"{i}.npy") for i, files in enumerate(parts)]
    out.mkdir(exist_ok=True)
    bad = decode_files(given, **{"size": 8, "fit": "squash", "skip_bad": False, **options})
    return [np.load(file) for _, file in given], bad


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_rows_are_the_files_in_their_order(photos, tmp_path, workers):
    (train, test), bad = run([photos, photos[:3]], tmp_path / "out", workers=workers)
    expected = np.stack([read_image(file, 8, "squash").transpose(2, 0, 1) for file in photos])
    np.testing.assert_array_equal(train, expected)
    np.testing.assert_array_equal(test, expected[:3])
    assert bad == [{}, {}]


def test_bad_files_are_named_by_their_row(photos, tmp_path):
    layouts.cut_short(photos[CHUNK + 1])
    (photos[0].parent / "x.jpg").write_bytes(b"no image")
    _, bad = run([photos, [photos[0].parent / "x.jpg"]], tmp_path / "out", workers=2, skip_bad=True)
    assert list(bad[0]) == [CHUNK + 1]
    assert str(photos[CHUNK + 1]) in bad[0][CHUNK + 1]
    assert list(bad[1]) == [0]
    with pytest.raises(InputError, match="cannot be read as an image"):
        run([photos], tmp_path / "again", workers=2)


def children():
    """The running children of this process that are workers."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z" and b"LokyProcess" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


def soon_gone(pids):
    until = time.monotonic() + 60
    while (left := pids & children()) and time.monotonic() < until:
        time.sleep(0.1)
    return not left


def test_workers_do_not_import_torch_and_end_with_the_work(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "IDLE_SECONDS", 0.5)
    seen = set()

    def look(*args):
        for pid in children() - seen:
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
            seen.add(pid)

    run([photos], tmp_path / "out", workers=2, on_progress=look)
    assert len(seen) == 2
    assert soon_gone(seen)

    def stop(*args):
        seen.update(children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([photos], tmp_path / "again", workers=2, on_progress=stop)
    assert soon_gone(seen)


def test_a_worker_that_dies_is_said(photos, tmp_path):
    def kill(*args):
        for pid in children():
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(RunError, match=r"ended early.*workers=0"):
        run([photos * 20], tmp_path / "out", workers=2, on_progress=kill)
    (again,), _ = run([photos], tmp_path / "again", workers=2)  # the next call has processes of its own
    assert len(again) == len(photos)


def test_few_images_start_no_worker(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_in_workers", None)
    run([photos], tmp_path / "out")


def test_a_full_disk_is_an_error_and_no_crash(photos, tmp_path, monkeypatch):
    """A mapped file on a full disk kills the process, so the space is reserved before."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"too large|No space"):
            run([photos], tmp_path / "out", size=32)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
