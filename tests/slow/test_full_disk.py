"""A disk that is really full: a small tmpfs, which then grows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .watching import results, stages, tensors

pytestmark = pytest.mark.slow

ARGS = ["run", "digits", "--methods", "E-EWC,E-EWC+SDC", "--tasks", "2"]
ARGS += ["--set", "training.epochs=3", "--set", "training.epoch=released"]


def run(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "protodrift", *ARGS, "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, and a function that sets its size in kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:  # fails, never skips
        pytest.fail(f"this test needs the right to mount a tmpfs (run it as root): {mounted.stderr}")
    try:
        yield (
            folder,
            lambda size: subprocess.run(["mount", "-o", f"remount,size={size}k", str(folder)], check=True),
        )
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_explained_and_room_is_all_it_takes(disk, tmp_path):
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    needed = sum(file.stat().st_size for file in (tmp_path / "whole").rglob("*") if file.is_file()) // 1024
    folder, resize = disk
    out = folder / "run"
    met, had = 0, 0
    for size in [16, 200, needed // 3, needed // 2, 2 * needed // 3, 5 * needed // 6, 4 * needed]:
        resize(max(size, 16))
        done = run(out)
        if done.returncode == 0:
            break
        met += 1
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        said = done.stderr.strip().splitlines()[-1]
        assert said.startswith("protodrift: error: cannot ")
        assert "No space left on device" in said
        assert len(stages(out)) >= had  # nothing that was finished is lost
        had = len(stages(out))
        if had:
            assert "Everything finished so far is kept" in said
        assert not list(folder.rglob(".new-*"))  # what was half-written gives its room back
    print(f"\nthe disk was full {met} times, {had} of {len(stages(out))} stages were kept by then")
    assert done.returncode == 0, done.stderr
    assert met >= 4
    assert had > 0
    assert results(out) == results(tmp_path / "whole")
    assert tensors(out) == tensors(tmp_path / "whole")
