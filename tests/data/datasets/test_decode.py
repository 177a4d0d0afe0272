"""Worker processes decode what this process would, and their end is noticed."""

from __future__ import annotations

import subprocess

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


def test_workers_end_with_the_work(photos, tmp_path, monkeypatch):
    started = []

    def remember(task):
        started.append(start(task))
        return started[-1]

    start = decode._start
    monkeypatch.setattr(decode, "_start", remember)
    run([photos], tmp_path / "out", workers=2)

    def stop(*args):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([photos], tmp_path / "again", workers=2, on_progress=stop)
    assert len(started) == 4
    assert all(process.returncode is not None for process in started)


def test_a_worker_that_dies_is_said(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_START", "import sys; sys.exit(3)")
    with pytest.raises(RunError, match=r"ended early \(status 3\).*workers=0"):
        run([photos], tmp_path / "out", workers=2)


def test_few_images_start_no_worker(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    run([photos], tmp_path / "out")


def test_room_that_is_not_there_is_an_error_and_no_crash(photos, tmp_path, monkeypatch):
    """A mapped file on a full disk kills the process, so the room is taken before."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"too large|No space"):
            run([photos], tmp_path / "out", size=32)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
