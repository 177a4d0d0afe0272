"""A real `protodrift learn` is killed at 20 moments, meets a full and a read-only disk, and another learner."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protodrift import IncrementalClassifier
from protodrift.model import versions
from tests.model.directories import read_only
from tests.slow.test_full_disk import disk  # noqa: F401  a fixture

pytestmark = pytest.mark.slow

KILLS = 20
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def photos(root: Path, *classes: str) -> Path:
    for name in classes:
        rng = np.random.RandomState(sum(map(ord, name)))
        (root / name).mkdir(parents=True)
        color = rng.randint(0, 256, 3)
        for i in range(12):
            pixels = np.clip(color + rng.randint(-40, 40, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "protodrift", *map(str, args)]


def done(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)


def digest(model: Path) -> dict[str, str]:
    """What a model directory holds, but for its lock and drafts that a kill left."""
    files = [p for p in model.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.parts[-3:])]
    return {str(p.relative_to(model)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def current(model: Path) -> dict[str, str]:
    """The files of the current version, without its number."""
    folder = model / "versions" / str(versions.read_current(model).version)
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A model of one task, the next task's photos, and the model after it, undisturbed."""
    root = tmp_path_factory.mktemp("learn")
    photos(root / "first", "owl", "emu", "jay")
    photos(root / "second", "kea", "tui", "rook")
    first = done("learn", root / "birds", root / "first", "--train", "--epochs", 3, "--size", 32, "--quiet")
    assert first.returncode == 0, first.stderr
    shutil.copytree(root / "birds", root / "after")
    started = time.monotonic()
    second = done("learn", root / "after", root / "second", "--epochs", 6, "--quiet")
    assert second.returncode == 0, second.stderr
    return root, time.monotonic() - started


def test_a_task_killed_at_20_moments_leaves_the_old_or_the_new_model_and_finishes(prepared, tmp_path):
    root, seconds = prepared
    old, new = digest(root / "birds"), digest(root / "after")
    seen = {"old": 0, "new": 0, "resumed": 0}
    for kill in range(KILLS):
        model = Path(shutil.copytree(root / "birds", tmp_path / f"birds{kill}"))
        process = subprocess.Popen(
            command("learn", model, root / "second", "--epochs", 6, "--quiet"),
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(seconds * (kill + 0.5) / KILLS)
        process.kill()
        process.wait()
        IncrementalClassifier.load(model)
        now = digest(model)
        versions = {name: value for name, value in now.items() if not name.startswith("versions/2/")}
        if now == new:
            seen["new"] += 1
            continue
        assert versions == old  # a whole second version may be there; CURRENT does not name it yet
        seen["old"] += 1
        again = done("learn", model, root / "second", "--epochs", 6, "--quiet")
        assert again.returncode == 0, again.stderr
        seen["resumed"] += "went on after epoch" in again.stdout
        assert current(model) == current(root / "after")  # bit for bit, whatever number the version got
        assert (
            IncrementalClassifier.load(model).classes_.tolist()
            == IncrementalClassifier.load(root / "after").classes_.tolist()
        )
        assert not model.with_name(f"{model.name}.learning").exists()
    print(f"\n{KILLS} kills: {seen}")
    assert seen["old"] >= 10
    assert seen["resumed"] >= 1


def test_a_full_and_a_read_only_disk_are_explained(prepared, disk, tmp_path):  # noqa: F811
    root, _ = prepared
    folder, resize = disk
    resize(200_000)
    model = Path(shutil.copytree(root / "birds", folder / "birds"))
    before = digest(model)
    used = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) // 1024
    resize(used + 300)
    full = done("learn", model, root / "second", "--epochs", 2, "--quiet")
    assert full.returncode == 1
    assert "No space left on device" in full.stderr
    assert "Traceback" not in full.stderr
    assert digest(model) == before
    IncrementalClassifier.load(model)
    resize(200_000)
    assert done("learn", model, root / "second", "--epochs", 2, "--quiet").returncode == 0
    other = Path(shutil.copytree(root / "birds", tmp_path / "ro" / "birds"))
    with read_only(other.parent) as place:
        refused = done("learn", place / "birds", root / "second", "--quiet")
        assert refused.returncode == 1
        assert "Traceback" not in refused.stderr
    assert digest(other) == digest(root / "birds")


def test_of_two_tasks_at_once_one_is_told_to_wait_and_readers_go_on(prepared, tmp_path):
    root, _ = prepared
    model = Path(shutil.copytree(root / "birds", tmp_path / "birds"))
    photo = next((root / "first" / "owl").iterdir())
    args = command("learn", model, root / "second", "--epochs", 6, "--quiet")
    two = [
        subprocess.Popen(args, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    while any(process.poll() is None for process in two):
        answer = done("predict", model, photo, "--json")
        assert answer.returncode == 0, answer.stderr
    said = sorted((process.returncode, process.communicate()[1]) for process in two)
    assert [status for status, _ in said] == [0, 1]
    assert "another process is writing" in said[1][1] or "knows 'kea'" in said[1][1]
    assert len(IncrementalClassifier.load(model).classes_) == 6
